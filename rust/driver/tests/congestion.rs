//! Congestion controllers of the MetaRoCE-style transport, end to end.

#![allow(clippy::float_arithmetic, reason = "fairness is a real number")]

mod common;

use common::{Job, MTU, SMALL, WRITE, counter, entry};
use metaroce_driver::{Outcome, Status};
use serde_json::{Value, json};

const CONTROLLERS: [&str; 3] = ["aimd", "nscc", "swift"];

/// Writes of `bytes` from each of `senders` to host 0, with transport settings on top.
fn run(senders: &[u32], bytes: u64, settings: &Value) -> Outcome {
    let mut job = Job::new(8);
    for &sender in senders {
        job.ranks[sender as usize].push(entry(WRITE, 0, 0, bytes));
    }
    let mut spec = SMALL.spec("metaroce", 8);
    for (name, value) in settings.as_object().expect("settings") {
        spec["transport"][name] = value.clone();
    }
    let outcome = job.run(&spec);
    assert_eq!(outcome.status, Status::Done);
    outcome
}

/// Payload rate at which all that was written arrived, over that of all planes.
fn of_line_rate(outcome: &Outcome, bytes: u64) -> f64 {
    let end = *outcome.wqe_placed.iter().max().expect("a write");
    bytes as f64 * 8e12 / end as f64 / outcome.payload_line_rate as f64
}

#[test]
fn a_lone_connection_fills_an_idle_fabric_whatever_the_controller() {
    let bytes = 64 << 20;
    for controller in CONTROLLERS {
        for (hints, sender) in [("window", 7), ("off", 7), ("off", 1)] {
            let outcome = run(&[sender], bytes, &json!({"controller": controller, "hints": hints}));
            let share = of_line_rate(&outcome, bytes);
            assert!(share >= 0.97, "{controller}, hints {hints}, from {sender}: {share:.4}");
            assert_eq!(counter(&outcome, "dropped_queue"), 0, "{controller}");
        }
    }
}

#[test]
fn two_connections_without_hints_share_their_receiver() {
    let bytes = 64 << 20;
    for controller in CONTROLLERS {
        let outcome = run(&[6, 7], bytes, &json!({"controller": controller, "hints": "off"}));
        let rates: Vec<f64> = outcome.wqe_placed.iter().map(|at| bytes as f64 / *at as f64).collect();
        let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|r| r * r).sum::<f64>());
        let jain = sum * sum / (2.0 * squares);
        assert!(rates.len() == 2 && jain >= 0.95, "{controller}: Jain {jain:.4}, {rates:?}");
        let share = of_line_rate(&outcome, 2 * bytes);
        assert!(share >= 0.95, "{controller}: {share:.4}");
    }
}

#[test]
fn random_loss_slows_only_those_who_take_it_for_congestion() {
    let bytes = 32 << 20;
    let time = |settings: Value| {
        let mut job = Job::new(8);
        job.ranks[7].push(entry(WRITE, 0, 0, bytes));
        let mut spec = SMALL.spec("metaroce", 8);
        spec["loss"] = json!({"probability": 0.1, "on": "data"});
        spec["transport"] = settings;
        let outcome = job.run(&spec);
        assert_eq!(outcome.status, Status::Done);
        *outcome.wqe_placed.iter().max().expect("a write")
    };
    for controller in CONTROLLERS {
        let settings = json!({"kind": "metaroce", "hints": "off", "controller": controller});
        let mut cutting = settings.clone();
        cutting["cut_on_loss"] = json!(true);
        let (repaired, obeyed) = (time(settings), time(cutting));
        assert!(obeyed > repaired, "{controller}: {obeyed} ps with cuts, {repaired} ps without");
    }
}

#[test]
fn an_unknown_controller_is_refused_by_name() {
    let mut spec = SMALL.spec("metaroce", 8);
    spec["transport"]["controller"] = json!("cubic");
    let told = Job::write(8, 7, MTU).try_run(&spec).expect_err("no such controller");
    for part in ["cubic", "aimd", "nscc", "swift"] {
        assert!(told.contains(part), "{told}");
    }
}
