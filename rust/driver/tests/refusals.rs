//! What cannot be run is refused in one line that names field, value and what is allowed.

mod common;

use common::{Job, Net, SMALL};
use serde_json::{Value, json};

const NET: Net = SMALL;

/// A valid specification, changed by `change`, and what it is told.
fn told(change: impl Fn(&mut Value)) -> String {
    let mut spec = NET.spec("metaroce", NET.hosts());
    change(&mut spec);
    Job::write(NET.hosts(), 1, 10_000).try_run(&spec).expect_err("refused")
}

#[test]
fn each_bad_field_is_named_with_its_value_and_what_is_allowed() {
    let hosts = NET.hosts();
    let cases: [(&[&str], String); 20] = [
        (&["loss.probability", "1", "p < 1"], told(|s| s["loss"] = json!({"probability": 1.0}))),
        (&["loss.probability", "-0.1"], told(|s| s["loss"] = json!({"probability": -0.1}))),
        (
            &["queue_bytes[0]", "1024", "at least one full packet"],
            told(|s| s["fabric"]["links"]["queue_bytes"][0] = json!(1024)),
        ),
        (&["rate_bps[1]", "0"], told(|s| s["fabric"]["links"]["rate_bps"][1] = json!(0))),
        (&["invalid type: integer `1`", "boolean"], told(|s| s["fabric"]["trim"] = json!(1))),
        (&["unknown variant `hash`", "ecmp", "spray-least"], told(|s| s["fabric"]["balance"] = json!("hash"))),
        (
            &["fabric.flowlet_gap_ps", "1000", "with balance flowlet"],
            told(|s| s["fabric"]["flowlet_gap_ps"] = json!(1000)),
        ),
        (
            &["fabric.flowlet_entries", "0", "1 to"],
            told(|s| {
                s["fabric"]["balance"] = json!("flowlet");
                s["fabric"]["flowlet_entries"] = json!(0);
            }),
        ),
        (&["transport.qps", "257", "0 to 256"], told(|s| s["transport"] = json!({"kind": "rocev2", "qps": 257}))),
        (&["unknown field `trimming`", "control_priority"], told(|s| s["fabric"]["trimming"] = json!(true))),
        (&["ecn_pmax[0]", "1.5"], told(|s| s["fabric"]["links"]["ecn_pmax"][0] = json!(1.5))),
        (&["hosts_of_ranks[1]", "distinct"], told(|s| s["hosts_of_ranks"][1] = s["hosts_of_ranks"][0].clone())),
        (&["hosts_of_ranks[0]", &hosts.to_string()], told(|s| s["hosts_of_ranks"][0] = json!(hosts))),
        (&["iterations", "0"], told(|s| s["iterations"] = json!(0))),
        (&["transport.mtu", "100"], told(|s| s["transport"]["mtu"] = json!(100))),
        (&["transport.ecn_gain_shift", "40", "1 to 10"], told(|s| s["transport"]["ecn_gain_shift"] = json!(40))),
        (&["transport.denied_planes", "15", "one left"], told(|s| s["transport"]["denied_planes"] = json!(15))),
        (
            &["faults[0].id", "99"],
            told(|s| s["faults"] = json!([{"at_ps": 0, "target": "plane", "id": 99, "up": false}])),
        ),
        (&["payload.dtype", "float8", "float32"], told(|s| s["payload"] = json!({"dtype": "float8"}))),
        (&["unknown field", "speed"], told(|s| s["speed"] = json!(1))),
    ];
    for (words, message) in cases {
        assert_eq!(message.lines().count(), 1, "{message}");
        for word in words {
            assert!(message.contains(word), "{word} missing in: {message}");
        }
    }
}

#[test]
fn a_pair_without_a_route_is_named() {
    // Without the cables of one leaf to its spines, its hosts reach nobody else.
    let message = told(|spec| {
        let leaf = json!(NET.hosts());
        let links = &mut spec["fabric"]["links"];
        let ends = links["a"].as_array().expect("a column").clone();
        let far = links["b"].as_array().expect("a column").clone();
        let between = |i: &usize| ends[*i].as_u64().min(far[*i].as_u64()) >= Some(u64::from(NET.hosts()));
        let keep: Vec<usize> =
            (0..ends.len()).filter(|i| !(between(i) && (ends[*i] == leaf || far[*i] == leaf))).collect();
        for column in ["a", "b", "rate_bps", "delay_ps", "queue_bytes", "ecn_kmin_bytes", "ecn_kmax_bytes", "ecn_pmax"]
        {
            links[column] = keep.iter().map(|&i| links[column][i].clone()).collect();
        }
    });
    assert!(message.contains("not connected in plane 0"), "{message}");
}
