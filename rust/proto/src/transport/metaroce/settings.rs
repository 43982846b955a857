//! The settings and constants of the MetaRoCE-style transport, one row each.

use metaroce_wire::{RateHint, lengths};

use super::{connection, hint, ledger};
use crate::settings::Setting;

const MICROSECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000 * MICROSECOND;

/// Rows of `MetaRoceConfig`, then the constants.
pub const METAROCE: &[Setting] = &[
    Setting::number("mtu", "bytes", (256, 16_384), "usual RoCE MTU", "Payload of a full packet."),
    Setting::number(
        "paths_per_plane",
        "paths",
        (0, 64),
        "ours: fewer than routes leave links idle",
        "Paths of a connection in each plane; 0 = one a route, several where a path's SACK vector is too short.",
    ),
    Setting::number(
        "start_window_percent",
        "percent",
        (0, 1_000),
        "ours: an incast's first burst is N times this",
        "Unsolicited start window of a connection, of its bandwidth-delay product.",
    ),
    Setting::number(
        "window_cap_percent",
        "percent",
        (1, 10_000),
        "ours: below 200 permutations lose throughput",
        "Cap of the connection window, of the bandwidth-delay product.",
    ),
    Setting::switch("hints", "public (F8)", "Receiver hints in acknowledgements; off leaves ECN alone."),
    Setting::number(
        "hint_headroom_percent",
        "percent",
        (0, 10_000),
        "ours: room for a standing queue",
        "Window that a hint grants: rate x (least round trip + this share of the base one) + 1 MTU.",
    ),
    Setting::number(
        "hint_target_percent",
        "percent",
        (1, 100),
        "ours: all of it",
        "Share of the inbound rate that hints deal out.",
    ),
    Setting::number(
        "hint_life_rtts",
        "base RTTs",
        (1, 1_000_000),
        "ours: outlives a few lost acknowledgements",
        "A hint older than this has no effect.",
    ),
    Setting::number(
        "ecn_gain_shift",
        "shift",
        (1, 10),
        "DCTCP, RFC 8257: 1/16",
        "Gain of the ECN estimate of a path, as a right shift.",
    ),
    Setting::number(
        "growth_percent",
        "percent",
        (0, 1_000),
        "ours: N paths together grow N times this",
        "Growth of a path window in a round trip without marks, of an MTU.",
    ),
    Setting::number(
        "tail_var_multiple",
        "rttvar",
        (0, 100),
        "RFC 6298",
        "Time-based tail detection waits srtt + this x rttvar + tail_slack_ps.",
    ),
    Setting::number(
        "tail_slack_ps",
        "ps",
        (0, SECOND),
        "ours: less than a base round trip",
        "Constant part of the tail detection.",
    ),
    Setting::number(
        "down_after",
        "expiries",
        (1, 100),
        "ours: two may be loss",
        "Expiries in a row after which a path is down, unless it is the last one.",
    ),
    Setting::number(
        "probe_interval_ps",
        "ps",
        (MICROSECOND, 10 * SECOND),
        "ours: cheap beside a reroute",
        "Interval between probes of a path that is down; longer where the whole connection is silent.",
    ),
    Setting::number(
        "dead_after_ps",
        "ps",
        (MICROSECOND, 1_000 * SECOND),
        "ours: longer than any reroute",
        "A connection without any progress for this long fails.",
    ),
    Setting::fixed(
        "sack_bits",
        "bits",
        ledger::SACK_BITS as u64,
        "public (F6)",
        "Selective acknowledgement of a path.",
    ),
    Setting::fixed(
        "same_path_attempts",
        "attempts",
        connection::SAME_PATH_ATTEMPTS as u64,
        "ours: the same path is public (F6), to a limit",
        "A lost packet goes back to the path that lost it this many times, then to any.",
    ),
    Setting::fixed(
        "most_planes",
        "planes",
        connection::MAX_PLANES as u64,
        "ours: published results have 4 and 8",
        "Most planes of a host.",
    ),
    Setting::fixed(
        "hint_silent_rounds",
        "base RTTs",
        hint::SILENT_ROUNDS,
        "ours: one could be an accident of timing",
        "A sender without data for this long holds no share any more.",
    ),
    Setting::fixed(
        "hint_mantissa",
        "bits",
        RateHint::MANTISSA_BITS as u64,
        "ours: exact to 2^-11",
        "Mantissa of the 16-bit hint, which counts Mbit/s; the other bits are a binary exponent.",
    ),
    Setting::fixed("base_header", "bytes", lengths::MR_BASE as u64, "ours", "Connection, path, epoch, kind."),
    Setting::fixed(
        "data_header",
        "bytes",
        lengths::MR_DATA as u64,
        "ours",
        "Sequence number, stream, message, packet.",
    ),
    Setting::fixed(
        "address_header",
        "bytes",
        lengths::MR_ADDRESS as u64,
        "ours; its presence is public (F1)",
        "Address and key, or receive index, in every data packet.",
    ),
    Setting::fixed("ack_header", "bytes", lengths::MR_ACK as u64, "ours", "Acknowledgement without SACK words."),
    Setting::fixed(
        "sack_word",
        "bytes",
        lengths::MR_SACK_WORD as u64,
        "ours: only as many as reach the oldest hole",
        "One word of the selective acknowledgement.",
    ),
    Setting::fixed("probe_header", "bytes", lengths::MR_PROBE as u64, "ours", "Probe or its reply."),
    Setting::fixed("crc", "bytes", lengths::MR_CRC as u64, "ours: CRC32C", "Check value of every packet."),
];
