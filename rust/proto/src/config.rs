//! Every default of the transports; they live here and nowhere else. What each may be, its unit and
//! its source stand in [`crate::settings`]. "ours" marks what no public text gives.

use metaroce_wire::{HostId, Rate, Time};
use serde::{Deserialize, Serialize};

use crate::settings::{self, RangeError, Setting};
use crate::transport::rocev2::settings::LONGEST_TIMER;

/// What an endpoint is told of its place in the world: a NIC knows its ports, and is configured
/// with a base round trip time as NICs of this class are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// This host.
    pub host: HostId,
    /// Rate of the port into each plane.
    pub ports: Vec<Rate>,
    /// Round trip of a full packet and its acknowledgement on an idle fabric, longest pair.
    pub base_rtt: Time,
    /// Number of distinct routes between far hosts in a plane, at most 64.
    pub routes: u32,
}

/// Which transport, and how it is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum TransportConfig {
    /// The MetaRoCE-style transport.
    MetaRoce(MetaRoceConfig),
    /// RoCEv2 RC with go-back-N and DCQCN, on a lossy class.
    RoceV2(RoceConfig),
    /// The MRC-like transport.
    Mrc(MrcConfig),
}

impl TransportConfig {
    /// Checks every number against its row in [`TransportConfig::settings`], and what must be in order.
    ///
    /// # Errors
    /// [`RangeError`] for the first one out of range.
    pub fn check(&self) -> Result<(), RangeError> {
        settings::check(
            self.settings(),
            &serde_json::to_value(self).unwrap_or_default(), /* plain fields: cannot fail */
        )?;
        match self {
            TransportConfig::RoceV2(roce) if roce.rto_high_ps < roce.rto_low_ps => Err(RangeError {
                field: "rto_high_ps",
                value: roce.rto_high_ps,
                least: roce.rto_low_ps,
                most: LONGEST_TIMER,
            }),
            _ => Ok(()),
        }
    }

    /// What can be set, and the constants that cannot.
    pub const fn settings(&self) -> &'static [Setting] {
        match self {
            TransportConfig::MetaRoce(_) => settings::METAROCE,
            TransportConfig::RoceV2(_) => settings::ROCEV2,
            TransportConfig::Mrc(_) => settings::MRC,
        }
    }

    /// Payload bytes of a full packet.
    pub const fn mtu(&self) -> u32 {
        match self {
            TransportConfig::MetaRoce(config) => config.mtu,
            TransportConfig::RoceV2(config) => config.mtu,
            TransportConfig::Mrc(config) => config.mtu,
        }
    }
}

/// What a receiver's rate hint governs (F8 gives the hint; its use is ours).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hints {
    /// Nothing: ECN alone.
    Off,
    /// The connection window, and the pace where the share is less than a packet a round trip.
    Window,
    /// The window, and the pace always: a token bucket of 4 packets at the hinted rate.
    Pace,
}

/// What happens when the newest packets of a path stay unacknowledged for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tail {
    /// The oldest is sent again.
    Resend,
    /// A probe with a number of its own makes the gap visible; only when it stays unanswered too, the
    /// oldest is sent again.
    Probe,
}

/// Choice among the open paths of a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spray {
    /// In turn, those that have room in their windows.
    RoundRobin,
    /// The one with the smallest part of its window in use.
    Weighted,
    /// One whose last acknowledgement was unmarked, oldest first (REPS); in turn where there is none.
    Recycled,
    /// In turn, whatever their windows say.
    Oblivious,
}

/// UDP source ports of a connection's paths in a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entropies {
    /// Consecutive: distinct routes on fabrics whose ECMP hash is linear in the port.
    Consecutive,
    /// Drawn by a hash: routes at random, some of them twice.
    Hashed,
}

/// What decides on the window of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControllerKind {
    /// Additive increase, multiplicative decrease on ECN (F8), as DCTCP (RFC 8257).
    Aimd,
    /// ECN and delay: NSCC of the Ultra Ethernet specification 1.0.
    Nscc,
    /// Delay alone: Swift as in Falcon.
    Swift,
}

/// Settings of the MetaRoCE-style transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetaRoceConfig {
    /// Payload bytes of a full packet. 4096: the usual RoCE MTU.
    pub mtu: u32,
    /// Paths of a connection in each plane; 0 = one for each distinct route, or several on a plane
    /// that is too long for 256 packets a path, at most 64. Ours:
    /// fewer paths than routes leave links idle (measured on permutations).
    pub paths_per_plane: u32,
    /// What all connections of a receiver may have in flight to it before they have heard of it, percent
    /// of the bandwidth-delay product; each has an equal part, of a packet at least. Ours: enough for
    /// one that is alone, and no more than that for an incast of N.
    pub start_window_percent: u32,
    /// Cap of the connection window, percent of the bandwidth-delay product. Ours: below 200 a
    /// full-load permutation loses throughput.
    pub window_cap_percent: u32,
    /// What receiver hints in acknowledgements (F8) do.
    pub hints: Hints,
    /// Window that a hint grants: hinted rate × (least round trip seen + this percentage of the base
    /// round trip) + 1 MTU. Ours: room for a standing queue makes near and far senders equal, and
    /// keeps lost packets and acknowledgements from idling the granted share.
    pub hint_headroom_percent: u32,
    /// Share of the inbound rate that hints deal out, percent (ours).
    pub hint_target_percent: u32,
    /// A hint older than this many base round trips has no effect (ours).
    pub hint_life_rtts: u32,
    /// What decides on the window of a path: "aimd", "nscc" or "swift".
    pub controller: ControllerKind,
    /// A loss halves the window of its path, once in a round trip. Off: congestion is ECN's alone (F8).
    pub cut_on_loss: bool,
    /// AIMD and Swift: the growth of a path window is divided by the number of paths that are up, so
    /// that all paths of a connection are as aggressive as one. Off (ours).
    pub coupled_growth: bool,
    /// AIMD: gain of the per-path ECN estimate, as a right shift: 4 = 1/16 (DCTCP, RFC 8257).
    pub ecn_gain_shift: u32,
    /// AIMD: growth of a path window without marks, percent of an MTU per round trip (ours: 25).
    pub growth_percent: u32,
    /// Queueing delay aimed at, percent of the configured base round trip (NSCC; 100: UEC without
    /// trimming) or of the least round trip of the path (Swift; ours).
    pub delay_target_percent: u32,
    /// Swift: what the target of the smallest window has on top, percent of the least round trip of the
    /// path. 400: Falcon's 100 us over its base target of 25 us.
    pub flow_scaling_percent: u32,
    /// Time-based tail detection waits srtt + this × rttvar + `tail_slack_ps` (ours).
    pub tail_var_multiple: u32,
    /// Constant part of the tail detection, picoseconds (ours: 2 us).
    pub tail_slack_ps: u64,
    /// What time-based tail detection does first.
    pub tail: Tail,
    /// Numbers of a path that must have arrived behind a missing one before it counts as lost. 0 is
    /// the public rule (F6), sound where paths are FIFO; more for fabrics that reorder inside a path.
    pub gap_threshold: u32,
    /// A lost piece goes back to the path that lost it this many times, then to any (ours: 2; F6 says
    /// the same path first).
    pub same_path_attempts: u32,
    /// Packets of a connection that one acknowledgement may cover (ours). Gaps, changes of mark, ends
    /// of messages and requests of the sender are acknowledged at once.
    pub ack_every: u32,
    /// How long an acknowledgement may wait for other packets to cover, picoseconds (ours: 1 us).
    pub ack_delay_ps: u64,
    /// Which open path the next packet takes.
    pub spray: Spray,
    /// Source ports of the paths of a connection.
    pub entropies: Entropies,
    /// Planes that this host never uses: bit p for plane p (operator's choice).
    pub denied_planes: u32,
    /// Wait after a Send found no posted receive, picoseconds, doubled each time up to 1024 × (ours:
    /// 10 us, IBTA's smallest RNR step).
    pub rnr_delay_ps: u64,
    /// Expiries in a row after which a path is down, unless it is the last one (ours: 3).
    pub down_after: u32,
    /// Interval between probes of a path that is down, picoseconds (ours: 100 us; longer where the
    /// whole connection is silent).
    pub probe_interval_ps: u64,
    /// A connection without any progress for this long fails, picoseconds (ours: 2 s).
    pub dead_after_ps: u64,
}

impl Default for MetaRoceConfig {
    fn default() -> Self {
        MetaRoceConfig {
            mtu: 4096,
            paths_per_plane: 0,
            start_window_percent: 100,
            window_cap_percent: 200,
            hints: Hints::Window,
            hint_headroom_percent: 150,
            hint_target_percent: 100,
            hint_life_rtts: 8,
            controller: ControllerKind::Aimd,
            cut_on_loss: false,
            coupled_growth: false,
            ecn_gain_shift: 4,
            growth_percent: 25,
            delay_target_percent: 100,
            flow_scaling_percent: 400,
            tail_var_multiple: 4,
            tail_slack_ps: 2_000_000,
            tail: Tail::Resend,
            gap_threshold: 0,
            same_path_attempts: 2,
            ack_every: 2,
            ack_delay_ps: 1_000_000,
            spray: Spray::RoundRobin,
            entropies: Entropies::Consecutive,
            denied_planes: 0,
            rnr_delay_ps: 10_000_000,
            down_after: 3,
            probe_interval_ps: 100_000_000,
            dead_after_ps: 2_000_000_000_000,
        }
    }
}

/// How a RoCEv2 requester decides that an acknowledgement will not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoceTimer {
    /// 4.096 us × 2^`timeout_exponent`, always (IBTA local ACK timeout).
    Fixed,
    /// Adaptive retransmission: a ladder of 2, 4, 8, 16 ms, back to the first step on progress
    /// (reported by users of ConnectX-5, linux-rdma/perftest issue 251).
    Adaptive,
}

/// What a RoCEv2 QP does about a lost packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// Everything from it on is sent again; the receiver drops what comes early (IBTA RC).
    GoBackN,
    /// It alone is sent again; the receiver keeps what comes early (IRN, SIGCOMM 2018).
    SelectiveRepeat,
}

/// DCQCN parameter set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DcqcnPreset {
    /// As in the SIGCOMM 2015 paper: g 1/256, alpha timer 55 us, increase timer 55 us or 10 MB,
    /// 5 stages, 40/400 Mbit/s at 40 Gbit/s (scaled with the rate), at most one cut in 50 us.
    Paper,
    /// As NIC defaults (vendor page, mlxconfig): g 1/205, alpha timer 1 us, increase timer
    /// 300 us or 32767 × 64 B, 1 stage, 5/50 Mbit/s, at most one cut in 4 us.
    Nic,
    /// No rate control.
    Off,
}

/// The plane of each of `qps` QPs of a peer pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QpPlanes {
    /// One plane after the other, from one that differs from pair to pair.
    InTurn,
    /// By a hash of pair and QP: some planes get more than others, as with a bond that hashes.
    Hashed,
}

/// UDP source ports of QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QpPorts {
    /// A hash of pair and QP, constant for the life of the QP.
    Hashed,
    /// All alike: what is left for switches to hash is the number of the QP.
    Same,
}

/// Settings of the RoCEv2 baseline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoceConfig {
    /// Payload bytes of a full packet.
    pub mtu: u32,
    /// Timer setting; each result names it.
    pub timer: RoceTimer,
    /// t of the fixed timer, 4.096 us × 2^t. 14 = 67 ms: the verbs default. 0 = no timer (IBTA).
    pub timeout_exponent: u32,
    /// First step of the adaptive ladder, picoseconds, doubled up to 8 ×: 2 ms.
    pub adaptive_base_ps: u64,
    /// Expiries in a row without progress before the QP fails: 7, the 3-bit maximum.
    pub retry_count: u32,
    /// QPs of a peer pair in each plane; messages are split over all of them as collective
    /// libraries do. 8 × 4 planes = 32: the best of 1 to 32 on the default fabric, at loss 0.
    pub qps_per_plane: u32,
    /// QPs of a peer pair on all planes together; 0 = `qps_per_plane` in each. 1 is what published
    /// baselines often have: a pair then uses one plane.
    pub qps: u32,
    /// Planes of `qps` QPs.
    pub qp_planes: QpPlanes,
    /// UDP source ports of QPs.
    pub qp_ports: QpPorts,
    /// Smallest piece that a message is split into, bytes (ours).
    pub split_bytes: u64,
    /// In-order packets that one ACK may cover (ours: 8).
    pub ack_every: u32,
    /// Bytes that a QP may have unacknowledged, those of a Read being its answer's, percent of its port's bandwidth-delay product; 0 =
    /// no limit. NICs have such a transmit window for lossy fabrics; its size is ours: with 8 QPs a
    /// port, 25 lets a peer pair fill its path twice, and larger ones only overflow queues.
    pub window_percent: u32,
    /// Rate control.
    pub dcqcn: DcqcnPreset,
    /// What an RNR NAK asks its requester to wait, as IBTA's 5-bit code: 1 = 0.01 ms, 31 = 491.52 ms, 0 = 655.36 ms.
    pub rnr_timer: u32,
    /// RNR NAKs in a row without progress before the QP fails; 7 = no limit.
    pub rnr_retry: u32,
    /// Longest time that the fixed timer may take, percent of the nominal one. IBTA allows 400; the default is in
    /// this baseline's favour.
    pub timeout_spread_percent: u32,
    /// Reads and atomics of a QP that may wait for their answers; the peer remembers as many results of atomics.
    pub read_depth: u32,
    /// First packet sequence number of every QP, 24 bits.
    pub first_psn: u32,
    /// What is sent again after a loss. With selective repeat, the two timers below take the place of `timer`.
    pub recovery: Recovery,
    /// Selective repeat: timer with fewer than 3 packets in flight, picoseconds (IRN: 100 us).
    pub rto_low_ps: u64,
    /// Selective repeat: timer otherwise, picoseconds (IRN: 320 us).
    pub rto_high_ps: u64,
    /// DCQCN: g of alpha, 1/1024; 0 = the preset's.
    pub dcqcn_gain: u32,
    /// DCQCN: alpha decays once in this, microseconds; 0 = the preset's.
    pub dcqcn_alpha_timer_us: u64,
    /// DCQCN: at most one cut in this, microseconds; 0 = the preset's.
    pub dcqcn_cut_spacing_us: u64,
    /// DCQCN: at most one CNP of a QP in this, microseconds; 0 = the preset's.
    pub dcqcn_cnp_gap_us: u64,
    /// DCQCN: period of the timed increase, microseconds; 0 = the preset's.
    pub dcqcn_increase_timer_us: u64,
    /// DCQCN: bytes of the counted increase, bytes; 0 = the preset's.
    pub dcqcn_increase_bytes: u64,
    /// DCQCN: rounds of fast recovery; 0 = the preset's.
    pub dcqcn_stages: u32,
    /// DCQCN: additive increase, not scaled with the line rate, Mbit/s; 0 = the preset's.
    pub dcqcn_additive_mbps: u64,
    /// DCQCN: hyper increase, not scaled with the line rate, Mbit/s; 0 = the preset's.
    pub dcqcn_hyper_mbps: u64,
    /// DCQCN: least rate of a QP, Mbit/s; 0 = the preset's.
    pub dcqcn_least_mbps: u64,
    /// A QP that has lost something comes back to its rate in steps (NICs have it; what it does is ours). Off (ours).
    pub slow_restart: bool,
    /// The same after an idle time. Off (ours).
    pub slow_restart_idle: bool,
}

impl Default for RoceConfig {
    fn default() -> Self {
        RoceConfig {
            mtu: 4096,
            timer: RoceTimer::Adaptive,
            timeout_exponent: 14,
            adaptive_base_ps: 2_000_000_000,
            retry_count: 7,
            qps_per_plane: 8,
            qps: 0,
            qp_planes: QpPlanes::InTurn,
            qp_ports: QpPorts::Hashed,
            split_bytes: 16_384,
            ack_every: 8,
            window_percent: 25,
            dcqcn: DcqcnPreset::Nic,
            rnr_timer: 1,
            rnr_retry: 7,
            timeout_spread_percent: 100,
            read_depth: 16,
            first_psn: 0,
            recovery: Recovery::GoBackN,
            rto_low_ps: 100_000_000,
            rto_high_ps: 320_000_000,
            dcqcn_gain: 0,
            dcqcn_alpha_timer_us: 0,
            dcqcn_cut_spacing_us: 0,
            dcqcn_cnp_gap_us: 0,
            dcqcn_increase_timer_us: 0,
            dcqcn_increase_bytes: 0,
            dcqcn_stages: 0,
            dcqcn_additive_mbps: 0,
            dcqcn_hyper_mbps: 0,
            dcqcn_least_mbps: 0,
            slow_restart: false,
            slow_restart_idle: false,
        }
    }
}

/// Settings of the MRC-like transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MrcConfig {
    /// Payload bytes of a full packet.
    pub mtu: u32,
    /// Entropy values that a QP sprays over, in equal parts in every plane. 128: the lower end of the 128 to 256 that
    /// public text gives.
    pub entropy_count: u32,
    /// Entropy values that take the place of ones assumed bad, in equal parts in every plane (their number is ours).
    pub backup_count: u32,
    /// UDP source ports of the entropy values. Consecutive ones (ours) reach every route equally often where ECMP is
    /// linear in the port, as the explicit paths of MRC do.
    pub entropies: Entropies,
    /// Entropy values that stay in use however many seem bad (the bound is public, its size ours).
    pub min_active: u32,
    /// Sequence numbers that a QP may have on the way beyond the last cumulative one, in units of 128; 0 = four times
    /// its largest window (ours).
    pub mpr: u32,
    /// First sequence number of a QP (ours: 0).
    pub first_psn: u32,
    /// First window of a QP, percent of the bandwidth-delay product of all planes: MaxWnd of NSCC.
    pub start_window_percent: u32,
    /// Largest window: MaxWnd of NSCC.
    pub window_cap_percent: u32,
    /// Queueing delay that NSCC aims at, percent of the base round trip. 100: without trimming; 75: with it.
    pub delay_target_percent: u32,
    /// NSCC: a window that achieves little and sees loss or long delay falls to what it achieved.
    pub quick_adapt: bool,
    /// Packets that overtake one before it counts as lost, percent of the window: at least 5 packets, at most the
    /// largest window.
    pub reorder_percent: u32,
    /// t of the retransmission timer, 1.024 us × 2^t. 7 = 131 us (ours); 8 base round trips at least (ours).
    pub timeout_exponent: u32,
    /// Expiries in a row without progress before the timer begins to double: 7, the most.
    pub linear_retries: u32,
    /// Doublings, after which the QP fails. 13 (ours): after about two seconds. 25 would be for ever.
    pub exponential_retries: u32,
    /// Packets that one acknowledgement may cover: 16 KiB, as in UEC simulators. Marks, resent packets, ends of
    /// messages and requests of the sender are acknowledged at once.
    pub ack_every: u32,
    /// How long an acknowledgement may wait for other packets to cover, picoseconds (ours: 1 us).
    pub ack_delay_ps: u64,
    /// Interval between probes of a plane's entropy values that are assumed bad while none answers, picoseconds (ours:
    /// 100 us).
    pub probe_interval_ps: u64,
    /// Wait after a Send found no posted receive, picoseconds, doubled each time up to 1024 × (ours: MRC itself has
    /// neither).
    pub rnr_delay_ps: u64,
}

impl Default for MrcConfig {
    fn default() -> Self {
        MrcConfig {
            mtu: 4096,
            entropy_count: 128,
            backup_count: 32,
            entropies: Entropies::Consecutive,
            min_active: 16,
            mpr: 0,
            first_psn: 0,
            start_window_percent: 150,
            window_cap_percent: 150,
            delay_target_percent: 100,
            quick_adapt: true,
            reorder_percent: 150,
            timeout_exponent: 7,
            linear_retries: 7,
            exponential_retries: 13,
            ack_every: 4,
            ack_delay_ps: 1_000_000,
            probe_interval_ps: 100_000_000,
            rnr_delay_ps: 10_000_000,
        }
    }
}
