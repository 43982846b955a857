//! Defaults and what they may be, for those who show them.

use metaroce_fabric::{
    DEADLOCK_CHECK, DRAW_BITS, Ecmp, LossConfig, MAX_DEGREE, MAX_FLOWLETS, MAX_PLANES, MAX_RATE, MAX_TIERS,
    PAUSE_FRAME, PfcConfig, QUANTUM, RESPONSE, Switching, TRIM_RESERVE,
};
use metaroce_proto::settings::{METAROCE, MRC, ROCEV2, Setting, export};
use metaroce_proto::{MetaRoceConfig, MrcConfig, RoceConfig};
use metaroce_wire::lengths;
use serde_json::{Value, json};

use crate::spec::reroute_delay;

/// Rows of `Fabric` and, behind "pfc." and "loss.", of `PfcConfig` and `LossConfig`; then the constants. The fabric checks them.
const FABRIC: &[Setting] = &[
    Setting::choice(
        "ecmp",
        &["linear", "mixed", "qp"],
        "ours: CRC, XOR hashes are linear in it",
        "How UDP source port, or port and QP, enter a switch's ECMP choice.",
    ),
    Setting::number(
        "reroute_delay_ps",
        "ps",
        (0, u64::MAX),
        "ours: long beside a round trip",
        "From a failure or repair until all switches know.",
    ),
    Setting::switch("trim", "optional (F9)", "Full queues cut data packets down to their headers."),
    Setting::switch("control_priority", "optional (F9)", "Control packets overtake queued data."),
    Setting::switch("last_hop_ecn", "F9: no such setting is needed", "Switch ports that lead to hosts mark."),
    Setting::choice(
        "balance",
        &["ecmp", "flowlet", "flowlet-random", "spray", "spray-least", "pinned"],
        "F9 asks for ECMP; others: for RoCEv2",
        "Choice of a switch among several ports that lead closer.",
    ),
    Setting::number(
        "flowlet_gap_ps",
        "ps",
        (1, u64::MAX),
        "Junos: 16 us",
        "Flowlets: pause after which a flow may take another port.",
    ),
    Setting::number(
        "flowlet_entries",
        "rows",
        (1, MAX_FLOWLETS as u64),
        "Junos; ours: all for one group",
        "Flowlets: rows of a switch's table.",
    ),
    Setting::switch(
        "explicit_queues",
        "ours: same results, slower",
        "Switch ports keep packets in queues; exact priorities.",
    ),
    Setting::switch("lossless", "optional (F7: no PFC)", "Data is a lossless class (PFC), control a lossy one."),
    Setting::number(
        "pfc.buffer_bytes",
        "bytes",
        (1, u64::MAX),
        "ours: 16 MB usual at 3.2 Tbit/s",
        "Packet buffer of a switch.",
    ),
    Setting::number(
        "pfc.xoff_shift",
        "shift",
        (0, 16),
        "HPCC simulator",
        "A link may hold free shared buffer >> this.",
    ),
    Setting::number("pfc.xon_offset_bytes", "bytes", (0, u64::MAX), "HPCC simulator", "XON so far below XOFF."),
    Setting::number(
        "pfc.reserve_bytes",
        "bytes",
        (0, u64::MAX),
        "HPCC simulator",
        "Each link's own, before it shares.",
    ),
    Setting::number(
        "pfc.headroom_bytes",
        "bytes",
        (0, u64::MAX),
        "ours: docs/topologies.md",
        "For what comes after XOFF, a link; 0 = what its cable needs.",
    ),
    Setting::number(
        "pfc.headroom_percent",
        "percent",
        (1, 1000),
        "ours: all of it",
        "Taken of that; below 100 lossy on purpose.",
    ),
    Setting::switch("pfc.watchdog", "SONiC: off until started", "Drops what a port holds that is paused for too long."),
    Setting::number(
        "pfc.watchdog_detect_ps",
        "ps",
        (1, u64::MAX / 4),
        "SONiC: 200 ms",
        "A pause of this length is a storm.",
    ),
    Setting::number(
        "pfc.watchdog_restore_ps",
        "ps",
        (1, u64::MAX / 4),
        "SONiC: up to 400 ms",
        "From its end until the port forwards again.",
    ),
    Setting::probability("loss.probability", "ours: none unless asked for", "Probability of a draw."),
    Setting::choice("loss.per", &["packet", "link"], "ours", "One draw a packet end to end, or one a link crossed."),
    Setting::choice("loss.on", &["data_and_ack", "data"], "ours", "Packets that may be lost."),
    Setting::fixed("gap", "bytes", lengths::GAP as u64, "IEEE 802.3", "Preamble and least gap of every frame."),
    Setting::fixed(
        "frame",
        "bytes",
        lengths::FRAME as u64,
        "IEEE 802.3, RFC 791, RFC 768",
        "Ethernet, IPv4, UDP, FCS.",
    ),
    Setting::fixed("least_frame", "bytes", lengths::MIN_FRAME as u64, "IEEE 802.3", "Shortest frame, FCS included."),
    Setting::fixed(
        "trimmed",
        "bytes",
        lengths::TRIMMED as u64,
        "ours; UET 1.0.3: at least 24",
        "A trimmed packet on the wire: frame and headers of any transport.",
    ),
    Setting::fixed(
        "trim_reserve",
        "divisor",
        TRIM_RESERVE,
        "ours: eight trimmed to a whole packet of 4 KiB",
        "Reserve for trimmed packets, of the queue, without control_priority.",
    ),
    Setting::fixed(
        "loss_draw",
        "bits",
        DRAW_BITS as u64,
        "ours: exact to 2^-32",
        "Width of a draw of loss, or of an ECN mark.",
    ),
    Setting::fixed(
        "pause_frame",
        "bytes",
        PAUSE_FRAME as u64,
        "IEEE 802.1Qbb: 64, and the gap",
        "A pause frame on the wire; goes before all else.",
    ),
    Setting::fixed("pause_quantum", "bits", QUANTUM, "IEEE 802.3 annex 31B", "Unit of the next three."),
    Setting::fixed("response_100g", "quanta", RESPONSE[0].1, "IEEE 802.3 annex 31B", "Response to XOFF, XON, to 100G."),
    Setting::fixed("response_200g", "quanta", RESPONSE[1].1, "IEEE 802.3 annex 31B", "The same at 200 Gbit/s."),
    Setting::fixed(
        "response_400g",
        "quanta",
        RESPONSE[2].1,
        "IEEE 802.3 annex 31B",
        "At 400 Gbit/s; above in proportion (ours).",
    ),
    Setting::fixed(
        "deadlock_check",
        "ps",
        DEADLOCK_CHECK.0,
        "ours: long beside a pause that ends",
        "Looks for a deadlock while ports are paused.",
    ),
    Setting::fixed("most_planes", "planes", MAX_PLANES as u64, "ours: published results have 4 and 8", "Most planes."),
    Setting::fixed("most_tiers", "tiers", MAX_TIERS as u64, "ours: a three-tier fat tree", "Most tiers of switches."),
    Setting::fixed(
        "most_links",
        "links",
        MAX_DEGREE as u64,
        "ours: what a route choice can name",
        "Most links of a node.",
    ),
    Setting::fixed("most_rate", "bit/s", MAX_RATE, "ours: a byte takes a whole picosecond", "Highest rate of a link."),
];

/// All defaults, as JSON.
pub fn defaults() -> Value {
    json!({
        "metaroce": MetaRoceConfig::default(),
        "rocev2": RoceConfig::default(),
        "mrc": MrcConfig::default(),
        "fabric": fabric_defaults(),
        "loss": LossConfig::default(),
    })
}

fn fabric_defaults() -> Value {
    let Switching {
        trim,
        control_priority,
        last_hop_ecn,
        explicit_queues,
        lossless,
        balance,
        flowlet_gap,
        flowlet_entries,
    } = Switching::default();
    json!({
        "ecmp": Ecmp::default(),
        "reroute_delay_ps": reroute_delay(),
        "trim": trim,
        "control_priority": control_priority,
        "last_hop_ecn": last_hop_ecn,
        "balance": balance,
        "flowlet_gap_ps": flowlet_gap.0,
        "flowlet_entries": flowlet_entries,
        "explicit_queues": explicit_queues,
        "lossless": lossless.is_some(),
        "pfc": PfcConfig::default(),
    })
}

/// Every setting and constant with its default, unit, source and what it may be, as JSON: arrays of rows
/// "metaroce", "rocev2", "mrc" and "fabric".
pub fn profiles() -> Value {
    let defaults = defaults();
    json!({
        "metaroce": export(METAROCE, &defaults["metaroce"]),
        "rocev2": export(ROCEV2, &defaults["rocev2"]),
        "mrc": export(MRC, &defaults["mrc"]),
        "fabric": export(FABRIC, &fabric(&defaults)),
    })
}

/// The fields of the fabric, and of flow control and loss behind their prefixes.
fn fabric(defaults: &Value) -> Value {
    let mut fields = defaults["fabric"].clone();
    let pfc = fields.as_object_mut().and_then(|fields| fields.remove("pfc")).unwrap_or_default();
    for (prefix, group) in [("pfc", &pfc), ("loss", &defaults["loss"])] {
        for (name, value) in group.as_object().into_iter().flatten() {
            fields[format!("{prefix}.{name}")] = value.clone();
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use metaroce_fabric::Balance;
    use metaroce_proto::settings::{Allowed, mismatch};

    use super::*;

    #[test]
    fn every_field_of_the_fabric_has_a_row_and_every_row_a_field() {
        assert_eq!(mismatch(FABRIC, &fabric(&defaults())), None);
    }

    #[test]
    fn a_choice_lists_exactly_the_names_that_the_field_takes() {
        for row in FABRIC {
            let Allowed::Choice(names) = row.allowed else { continue };
            let told = match row.name.strip_prefix("loss.") {
                Some(field) => serde_json::from_value::<LossConfig>(json!({field: "no such name"})).err(),
                None if row.name == "balance" => serde_json::from_value::<Balance>(json!("no such name")).err(),
                None => serde_json::from_value::<Ecmp>(json!("no such name")).err(),
            };
            let told = told.expect("no such name").to_string();
            assert_eq!(told.split('`').skip(3).step_by(2).collect::<Vec<_>>(), names, "{}: {told}", row.name);
        }
    }
}
