//! Random loss and incast, against what they must come to.

#![allow(clippy::float_arithmetic, reason = "expected counts and fairness are real numbers")]

mod common;

use common::{Job, MULTIPLANE_4X64, SMALL, WRITE, counter, entry};
use metaroce_driver::{Outcome, Status};
use serde_json::{Value, json};

/// Whether `hits` of `n` draws at `p` lie within four standard errors.
fn expected(hits: u64, n: u64, p: f64) -> bool {
    let (hits, n) = (hits as f64, n as f64);
    (hits - n * p).abs() <= 4.0 * (n * p * (1.0 - p)).sqrt()
}

fn run(loss: Value, bytes: u64) -> Outcome {
    let mut spec = SMALL.spec("metaroce", 8);
    spec["loss"] = loss;
    let outcome = Job::write(8, 7, bytes).run(&spec);
    assert_eq!(outcome.status, Status::Done);
    outcome
}

#[test]
fn loss_per_packet_drops_its_share_of_all_packets() {
    for permille in [1, 10, 100] {
        let p = f64::from(permille) / 1000.0;
        let outcome = run(json!({"probability": p, "per": "packet"}), 64 << 20);
        let (lost, injected) = (counter(&outcome, "dropped_loss"), counter(&outcome, "packets_injected"));
        assert!(injected > 20_000);
        assert!(expected(lost, injected, p), "seed 1: {lost} of {injected} at {p}");
    }
}

#[test]
fn loss_per_packet_can_spare_acknowledgements() {
    let mut spec = SMALL.spec("metaroce", 8);
    spec["loss"] = json!({"probability": 0.05, "per": "packet", "on": "data"});
    spec["transport"]["ack_every"] = json!(1);
    let outcome = Job::write(8, 7, 64 << 20).run(&spec);
    let (lost, data) = (counter(&outcome, "dropped_loss"), counter(&outcome, "data_packets_sent"));
    assert!(expected(lost, data, 0.05), "seed 1: {lost} of {data}");
    // An acknowledgement for each packet that arrived, and none of them lost.
    assert_eq!(counter(&outcome, "ack_packets"), data - lost);
}

#[test]
fn loss_per_link_compounds_over_the_links_of_a_route() {
    let outcome = run(json!({"probability": 0.01, "per": "link", "on": "data"}), 64 << 20);
    let (lost, data) = (counter(&outcome, "dropped_loss"), counter(&outcome, "data_packets_sent"));
    assert!(expected(lost, data, 1.0 - 0.99f64.powi(4)), "seed 1: {lost} of {data} over four links");
    // One draw for each link that a packet of the flow crossed.
    assert!(expected(lost, counter(&outcome, "data_link_hops"), 0.01));
}

/// Incast of `senders` × `bytes` to host 0; senders are spread over the fabric.
fn incast(kind: &str, senders: u32, bytes: u64) -> (Outcome, Vec<f64>) {
    let net = MULTIPLANE_4X64;
    let mut job = Job::new(net.hosts());
    for sender in 1..=senders {
        let rank = (sender * (net.hosts() / senders) + sender / 8) % net.hosts();
        job.ranks[rank as usize].push(entry(WRITE, 0, 0, bytes));
    }
    assert_eq!(job.ranks.iter().flatten().count(), senders as usize);
    assert!(job.ranks[0].is_empty());
    let outcome = job.run(&net.spec(kind, net.hosts()));
    assert_eq!(outcome.status, Status::Done);
    let rates = outcome.wqe_placed.iter().map(|at| bytes as f64 / *at as f64).collect();
    (outcome, rates)
}

// [F8.hint-is-share]
#[test]
fn an_incast_of_32_is_fair_and_full_and_drops_next_to_nothing() {
    let (outcome, rates) = incast("metaroce", 32, 8 << 20);
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|r| r * r).sum();
    let jain = sum * sum / (squares * rates.len() as f64);
    assert!(jain >= 0.995, "Jain {jain:.4}");
    let (dropped, data) = (counter(&outcome, "dropped_queue"), counter(&outcome, "data_packets_sent"));
    assert!(dropped * 1000 <= data, "{dropped} of {data} dropped");
    let end = *outcome.wqe_placed.iter().max().expect("32 of them");
    let rate = (32u64 * (8 << 20)) as f64 * 8e12 / end as f64;
    let share = rate / outcome.payload_line_rate as f64;
    assert!(share >= 0.95, "{share:.3} of the receiver's rate");
}
