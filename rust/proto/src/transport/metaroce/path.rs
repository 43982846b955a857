//! One path as its sender sees it (F3, F5): entropy, sequence, window, round trip, marks, health.

use metaroce_wire::Time;

use super::flight::{Fifo, Flight, NIL, Sent};
use super::ledger::SACK_BITS;
use crate::config::{MetaRoceConfig, Spray};
use crate::transport::FIRST_PORT;
use crate::transport::cc::{Controller, Signal, State, TICK_SHIFT, USED_SHARE};

/// A round trip sample counts for one in so many (RFC 6298).
pub const RTT_GAIN: u32 = 8;
/// A deviation counts for one in so many. Ours: RFC 6298 has 4, for the samples of one path.
pub const VARIATION_GAIN: u32 = 8;
/// The first deviation is one in so many of the round trip (RFC 6298).
pub const FIRST_VARIATION: u64 = 2;
/// Expiries in a row that leave the timer as it is. Ours: two may be loss.
pub const PATIENT_EXPIRIES: u32 = 2;
/// Doublings of the timer. Ours: to about 10 ms in a data centre.
pub const TIMER_DOUBLINGS: u32 = 10;
/// Eager detection waits for one in so many of the doubt. Ours.
pub const EAGER_SHARE: u64 = 2;
/// Longest round trip that counts, ticks: half a second. Ours: gains and averages stay within 32 bits.
pub const LONGEST: u32 = u32::MAX / 8;

/// Whether a path is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// In use.
    Up,
    /// Given up until a probe is answered.
    Down,
    /// Not to be used, by the operator's choice.
    Denied,
}

/// Mean deviation of round trips, in the units of the paths' estimates. One for a whole connection
/// (ours): a path of a slow connection has too few samples of its own.
#[derive(Clone, Copy, Debug)]
pub struct Variation(u32);

impl Variation {
    /// Half a round trip, so that the first tail detection waits three of them, as RFC 6298 starts.
    pub const fn new(rtt: Time) -> Variation {
        Variation(((rtt.0 >> TICK_SHIFT) / FIRST_VARIATION) as u32)
    }

    /// A sample missed its path's estimate by `error`.
    #[inline]
    pub fn on_error(&mut self, error: u32) {
        self.0 = self.0 - self.0 / VARIATION_GAIN + error / VARIATION_GAIN;
    }
}

// [F5.state-of-a-path]
/// A path: one cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct SendPath {
    /// Packets in flight, oldest first.
    pub flight: Fifo,
    pub next_pps: u32,
    /// Payload bytes in flight, and the window for them.
    pub in_flight: u32,
    pub cwnd: u32,
    srtt: u32,
    /// Least round trip of its route.
    base_rtt: u32,
    ce_seen: u32,
    /// The congestion round ends when this packet or a later one has arrived.
    round_end: u32,
    /// What the congestion controller remembers.
    congestion: State,
    /// Packets in flight: their numbers are contiguous, since only the oldest is ever taken out.
    pub packets: u16,
    pub entropy: u16,
    /// Its plane, and its number there.
    pub plane: u8,
    pub bit: u8,
    pub epoch: u8,
    pub state: PathState,
    /// Expiries in a row.
    pub expiries: u8,
    /// [`CUT`] and [`HOLLOW`].
    flags: u8,
    /// Packets that landed by reports on other paths since its own last one.
    aside: u16,
    /// Up: when its last expiry was. Down: when it is probed next.
    pub moment: Time,
}

const _: () = assert!(size_of::<SendPath>() == 64, "a path is one cache line");

/// Flag of a path: the window has fallen in this round.
const CUT: u8 = 1;
/// Flag of a path: of packets that landed before older ones, places may be left. Without it none is looked for.
const HOLLOW: u8 = 2;

/// What an acknowledgement says about its path.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// Packets that it takes out of flight, and their payload bytes.
    pub packets: u32,
    pub bytes: u32,
    /// Highest number that arrived, and the cumulative count of marks.
    pub max_pps: u32,
    pub ce: u32,
    pub rtt: Time,
    /// Paths of the connection that are up.
    pub paths: u32,
}

impl SendPath {
    /// A path `at` (plane, number there) that has seen nothing: window `cwnd` bytes, round trip assumed `rtt`.
    pub fn new(at: (usize, usize), entropy: u16, cwnd: u32, rtt: Time, congestion: State) -> SendPath {
        SendPath {
            flight: Fifo::EMPTY,
            next_pps: 0,
            in_flight: 0,
            cwnd,
            srtt: ticks(rtt),
            base_rtt: ticks(rtt),
            ce_seen: 0,
            round_end: 0,
            congestion,
            packets: 0,
            entropy,
            plane: at.0 as u8,
            bit: at.1 as u8,
            epoch: 0,
            state: PathState::Up,
            expiries: 0,
            flags: 0,
            aside: 0,
            moment: Time::ZERO,
        }
    }

    /// Whether a fresh packet of `mtu` bytes may leave on it. The first one always may: a window
    /// below one packet would never move. More than `SACK_BITS` packets no SACK describes. A path that
    /// fell silent gets back what it lost, and nothing more until it answers, unless it is the `only` one.
    #[inline]
    pub fn is_open(&self, mtu: u32, only: bool, spray: Spray) -> bool {
        let roomy = self.in_flight + mtu <= self.cwnd || spray == Spray::Oblivious;
        self.state == PathState::Up
            // [I13] [I19]
            && (self.in_flight == 0 || roomy && u32::from(self.packets) < SACK_BITS)
            // [F5.slow-path-stalls-nobody]
            && (self.expiries == 0 || only)
    }

    /// The number of its oldest packet in flight.
    #[inline]
    pub fn oldest_pps(&self) -> Option<u32> {
        (self.packets > 0).then(|| self.next_pps - u32::from(self.packets))
    }

    /// Its oldest packet is out of flight, and with it what landed before behind that.
    #[inline(always)]
    pub fn land(&mut self, flight: &mut Flight) -> Sent {
        let sent = flight.pop(&mut self.flight);
        self.in_flight -= sent.len;
        self.packets -= 1;
        if self.flags & HOLLOW != 0 {
            self.pass_hollow(flight);
        }
        sent
    }

    /// Landed before: nothing but its place was left.
    fn pass_hollow(&mut self, flight: &mut Flight) {
        while self.flight.first != NIL && flight.get(self.flight.first).len == 0 {
            flight.pop(&mut self.flight);
            self.packets -= 1;
        }
        if self.packets == 0 {
            self.flags &= !HOLLOW;
        }
    }

    /// A packet that is not its oldest is out of flight.
    pub fn land_behind(&mut self, flight: &mut Flight, slot: u32) -> Sent {
        self.flags |= HOLLOW;
        let sent = flight.hollow(slot);
        self.in_flight -= sent.len;
        sent
    }

    /// Smooths a round trip sample (RFC 6298). Answers by how much it missed the estimate.
    #[inline]
    pub fn on_rtt(&mut self, sample: Time) -> u32 {
        let sample = ticks(sample);
        let error = sample.abs_diff(self.srtt);
        self.srtt = self.srtt - self.srtt / RTT_GAIN + sample / RTT_GAIN;
        error
    }

    /// Smoothed round trip.
    pub const fn srtt(&self) -> Time {
        Time((self.srtt as u64) << TICK_SHIFT)
    }

    /// The ECN estimate in thousandths.
    pub fn ecn_permille(&self) -> u16 {
        self.congestion.ecn_permille()
    }

    /// Packets sent and marks reported in the current epoch.
    pub const fn epoch_totals(&self) -> (u32, u32) {
        (self.next_pps, self.ce_seen)
    }

    /// Shows an acknowledgement to the congestion controller, whose window becomes that of the path.
    #[inline]
    pub fn on_ack(&mut self, controller: &Controller, acked: Acked) {
        self.expiries = 0;
        let marked = acked.ce.saturating_sub(self.ce_seen);
        self.ce_seen += marked;
        let rtt = ticks(acked.rtt);
        self.base_rtt = self.base_rtt.min(rtt);
        let round_over = acked.max_pps >= self.round_end;
        if round_over {
            self.start_round(false);
        }
        let aside = u32::from(std::mem::take(&mut self.aside));
        let bytes = acked.bytes + aside * controller.mtu();
        let signal = Signal {
            packets: acked.packets + aside,
            bytes,
            marked,
            rtt,
            base_rtt: self.base_rtt,
            paths: acked.paths,
            round_over,
            // [F8.mark-trims-its-path] [I20]
            may_cut: self.flags & CUT == 0,
            used: USED_SHARE * u64::from(self.in_flight + bytes) >= u64::from(self.cwnd),
        };
        let window = controller.on_ack(&mut self.congestion, self.cwnd, &signal);
        if window < self.cwnd {
            self.start_round(true);
        }
        self.cwnd = window;
    }

    /// A packet is lost.
    pub fn on_loss(&mut self, controller: &Controller) {
        let window = controller.on_loss(self.cwnd);
        if window < self.cwnd && self.flags & CUT == 0 {
            self.start_round(true);
            self.cwnd = window;
        }
    }

    const fn start_round(&mut self, cut: bool) {
        self.round_end = self.next_pps;
        self.flags = self.flags & !CUT | if cut { CUT } else { 0 };
    }

    /// A packet of it was acknowledged by a report on another path.
    #[inline]
    pub fn landed_aside(&mut self) {
        self.aside = self.aside.saturating_add(1);
    }

    /// How long a packet may stay unacknowledged before time alone declares it lost: it doubles
    /// from the third expiry in a row on (the last-resort timer). `eager`: where losses happen and nothing is
    /// left to send, no acknowledgement is held back and a needless resend takes little: half the doubt will do.
    pub fn tail_timeout(&self, config: &MetaRoceConfig, variation: Variation, eager: bool) -> Time {
        // [F6.tail-timer] [I17]
        let deviations = u64::from(config.tail_var_multiple) * u64::from(variation.0);
        let doubt = (deviations << TICK_SHIFT) + config.tail_slack_ps;
        let srtt = u64::from(self.srtt) << TICK_SHIFT;
        let wait = match eager {
            true => srtt + doubt / EAGER_SHARE,
            false if config.ack_every > 1 => srtt + doubt + config.ack_delay_ps,
            false => srtt + doubt,
        };
        Time(wait << u32::from(self.expiries).saturating_sub(PATIENT_EXPIRIES).min(TIMER_DOUBLINGS))
    }

    /// The time-based detection found a loss. A batch of packets sent before the last expiry counts once.
    pub fn on_expiry(&mut self, now: Time, sent_at: Time) {
        if sent_at >= self.moment || self.expiries == 0 {
            self.expiries = self.expiries.saturating_add(1);
            self.moment = now;
        }
    }

    /// Leaves the route (F3): new entropy, new epoch with its own numbers, probe soon.
    pub fn go_down(&mut self, now: Time, stride: u16) {
        self.leave_for(PathState::Down);
        // [F3.port-may-change]
        self.entropy = port(self.entropy.wrapping_add(stride));
        self.moment = now;
    }

    /// Out of use as `state` says; with a new epoch, in which numbers and counts begin again.
    pub fn leave_for(&mut self, state: PathState) {
        self.state = state;
        // [F3.epoch] [I12] [I27]
        self.epoch = self.epoch.wrapping_add(1);
        self.next_pps = 0;
        self.start_round(false);
        self.congestion.restart();
        self.base_rtt = LONGEST;
        self.ce_seen = 0;
        self.aside = 0;
    }

    /// Marks counted in this epoch.
    pub const fn marks(&self) -> u32 {
        self.ce_seen
    }

    /// A probe was answered: in use again, with window `cwnd`.
    pub fn come_up(&mut self, cwnd: u32) {
        self.state = PathState::Up;
        self.expiries = 0;
        self.cwnd = cwnd;
        self.moment = Time::ZERO;
    }
}

/// The source port that the low bits of `number` give.
pub const fn port(number: u16) -> u16 {
    FIRST_PORT | number & !FIRST_PORT
}

/// A round trip in ticks.
#[inline]
pub fn ticks(rtt: Time) -> u32 {
    (rtt.0 >> TICK_SHIFT).min(u64::from(LONGEST)) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::super::connection::Resend;
    use super::super::flight::Order;
    use super::*;
    use crate::outbox::Piece;
    use crate::transport::cc::Place;

    fn path(config: &MetaRoceConfig) -> (SendPath, Controller) {
        let place = Place { base_rtt: ticks(Time::from_us(5)), bdp: 500_000, paths: 32, cap: 1 << 20 };
        let controller = Controller::new(config, place);
        (SendPath::new((0, 0), 0xC000, 40_960, Time::from_us(5), controller.start()), controller)
    }

    /// One round trip of `packets`, `marked` of them with CE.
    fn round(path: &mut SendPath, controller: &Controller, packets: u32, marked: u32) {
        path.next_pps += packets;
        let (ce, rtt) = (path.ce_seen + marked, Time::from_us(5));
        path.on_ack(controller, Acked { packets, bytes: packets * 4096, max_pps: path.next_pps, ce, rtt, paths: 1 });
    }

    #[test]
    fn unmarked_rounds_grow_by_a_quarter_packet_and_marked_ones_cut_once() {
        let (mut path, controller) = path(&MetaRoceConfig::default());
        round(&mut path, &controller, 10, 0);
        assert_eq!(path.cwnd, 40_960 + 1024);
        let before = path.cwnd;
        round(&mut path, &controller, 10, 10);
        assert!(path.cwnd < before && path.cwnd >= before / 2, "{}", path.cwnd);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let (mut path, controller) = path(&MetaRoceConfig::default());
        round(&mut path, &controller, 1, 0);
        assert_eq!(path.cwnd, 40_960);
    }

    #[test]
    fn the_window_never_falls_below_one_packet() {
        let (mut path, controller) = path(&MetaRoceConfig::default());
        for _ in 0..100 {
            round(&mut path, &controller, 4, 4);
        }
        assert_eq!(path.cwnd, 4096);
    }

    #[test]
    fn losses_of_a_round_halve_once_and_only_if_they_are_to() {
        for cut_on_loss in [false, true] {
            let (mut path, controller) = path(&MetaRoceConfig { cut_on_loss, ..MetaRoceConfig::default() });
            path.next_pps = 10;
            (0..3).for_each(|_| path.on_loss(&controller));
            assert_eq!(path.cwnd, if cut_on_loss { 20_480 } else { 40_960 });
            // A mark of the same round does not cut again; a loss of the next one does.
            let acked = Acked { packets: 9, bytes: 36_864, max_pps: 9, ce: 9, rtt: Time::from_us(5), paths: 1 };
            if cut_on_loss {
                path.on_ack(&controller, acked);
                assert_eq!(path.cwnd, 20_480);
                path.on_ack(&controller, Acked { packets: 0, bytes: 0, max_pps: 10, ce: 9, ..acked });
                assert!(path.cwnd < 20_480, "the marks count at the end of the round");
            }
        }
    }

    #[test]
    fn expiries_of_one_batch_count_once() {
        let (mut path, _) = path(&MetaRoceConfig::default());
        path.on_expiry(Time(100), Time(10));
        path.on_expiry(Time(100), Time(20));
        assert_eq!(path.expiries, 1);
        path.on_expiry(Time(200), Time(110));
        assert_eq!(path.expiries, 2);
    }

    proptest! {
        /// Packets leave a path in order, but for those that landed before older ones.
        #[test]
        fn the_oldest_packet_is_one_that_has_not_landed(steps in prop::collection::vec((0..3u8, any::<u32>()), 1..300)) {
            let (mut path, _) = path(&MetaRoceConfig::default());
            let (mut flight, mut order) = (Flight::new(), Order::default());
            let mut left: VecDeque<(u32, bool)> = VecDeque::new();
            for (step, pick) in steps {
                let behind = left.iter().skip(1).filter(|(_, landed)| !landed).nth(pick as usize % 8).map(|&(pps, _)| pps);
                match (step, behind) {
                    (0, _) if !left.is_empty() => {
                        prop_assert_eq!(path.land(&mut flight).piece.packet, left[0].0);
                        left.pop_front();
                        while left.pop_front_if(|(_, landed)| *landed).is_some() {}
                    }
                    (1, Some(pps)) => {
                        let slot = (0..).find(|&slot| flight.get(slot).piece.packet == pps).expect("in flight");
                        path.land_behind(&mut flight, slot);
                        left.iter_mut().filter(|(other, _)| *other == pps).for_each(|(_, landed)| *landed = true);
                    }
                    _ => {
                        let pps = path.next_pps;
                        let what = Resend { piece: Piece { message: 0, packet: pps }, path: 0, attempts: 0 };
                        flight.push(Sent::new(Time::ZERO, what, order.next_serial(), 1), &mut order, &mut path.flight);
                        (path.next_pps, path.in_flight, path.packets) = (pps + 1, path.in_flight + 1, path.packets + 1);
                        left.push_back((pps, false));
                    }
                }
                prop_assert_eq!(path.oldest_pps(), left.front().map(|&(pps, _)| pps));
                prop_assert_eq!(path.in_flight as usize, left.iter().filter(|(_, landed)| !landed).count());
            }
        }
    }
}
