//! An output port and the link behind it.

use metaroce_wire::{Bytes, Class, Ecn, Envelope, Rate, Time};
use rand_pcg::Pcg32;

use crate::loss::draw;
use crate::spec::Cable;

/// The part of a directed link that every packet touches: one cache line. Queue bounds are kept
/// as times to drain, so that the hop path does not divide.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Port {
    /// When the last bit of what is queued will have left.
    pub busy_until: u64,
    limit: u64,
    kmin: u64,
    pub delay: u64,
    pub max_backlog: u64,
    /// When the last bit of the control packets that overtook data will have left.
    first_until: u64,
    /// 0 where no whole number of picoseconds describes a byte.
    ps_per_byte: u32,
    /// Length of the packet queued last: tells where the one in service will end.
    last_len: u32,
    /// Node at the far end.
    pub end: u32,
}

/// The rarely touched part.
#[derive(Clone, Debug)]
pub(crate) struct PortSide {
    pub loss: Pcg32,
    ecn: Pcg32,
    pmax: u32,
    kmax: u64,
    pub up: bool,
    configured_limit: u64,
    /// Serialisation where no whole number of picoseconds describes a byte: the rate, and what
    /// earlier packets left over, in picoseconds × rate.
    rate: u64,
    carry: u64,
}

/// Why a port did not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Down,
}

const BIT_PS: u64 = 8 * metaroce_wire::units::PS_PER_S;

/// The reserve for trimmed packets is one in so many bytes of the queue. Ours: room for eight trimmed
/// packets to each whole one of 4 KiB.
pub const TRIM_RESERVE: u64 = 4;

impl Port {
    /// The output port towards node `end`, at a switch or, with `pulled`, at a host, where nothing ever queues.
    pub(crate) fn new(cable: &Cable, end: u32, pulled: bool, marks: bool) -> Port {
        let rate = cable.rate.0;
        let drain = |bytes| drain(bytes, cable.rate);
        let marking = marks && !pulled && cable.kmax.0 > 0;
        Port {
            busy_until: 0,
            limit: if pulled { u64::MAX } else { drain(cable.queue.0) },
            kmin: if marking { drain(cable.kmin.0) } else { u64::MAX },
            delay: cable.delay.0,
            max_backlog: 0,
            first_until: 0,
            ps_per_byte: if BIT_PS.is_multiple_of(rate) { u32::try_from(BIT_PS / rate).unwrap_or(0) } else { 0 },
            last_len: 0,
            end,
        }
    }

    pub(crate) fn side(&self, cable: &Cable, loss: Pcg32, ecn: Pcg32) -> PortSide {
        let (pmax, kmax, rate) = (cable.pmax, drain(cable.kmax.0, cable.rate), cable.rate.0);
        PortSide { loss, ecn, pmax, kmax, up: true, configured_limit: self.limit, rate, carry: 0 }
    }

    /// How long what is queued will take to leave.
    pub(crate) fn backlog(&self, now: Time) -> u64 {
        self.busy_until.saturating_sub(now.0)
    }

    #[inline]
    pub(crate) fn serialisation(&self, side: &mut [PortSide], packet: &Envelope) -> u64 {
        if self.ps_per_byte == 0 {
            return side[packet.link as usize].exact(packet.len);
        }
        u64::from(packet.len) * u64::from(self.ps_per_byte)
    }

    /// The transmitter has so much more to do, behind `backlog`.
    #[inline]
    fn occupy(&mut self, now: Time, backlog: u64, serialisation: u64) {
        self.max_backlog = self.max_backlog.max(backlog);
        self.busy_until = now.0.max(self.busy_until) + serialisation;
    }

    // [F7.no-pause] [F7.full-queue-drops]
    /// Queues a packet; answers when its last bit reaches the far end.
    #[inline(always)]
    pub(crate) fn transmit(
        &mut self,
        side: &mut [PortSide],
        now: Time,
        packet: &mut Envelope,
    ) -> Result<Time, Refusal> {
        let backlog = self.busy_until.saturating_sub(now.0);
        let serialisation = self.serialisation(side, packet);
        let link = packet.link as usize;
        if backlog > self.kmin && packet.class == Class::Data {
            self.mark(&mut side[link], backlog, packet);
        }
        let full = backlog.saturating_add(serialisation) > self.limit;
        if full && side[link].up {
            return Err(Refusal::Full);
        }
        self.occupy(now, backlog, serialisation);
        self.last_len = packet.len;
        // A link that is down swallows what its transmitter still sends.
        if full { Err(Refusal::Down) } else { Ok(Time(self.busy_until + self.delay)) }
    }

    /// The same questions at an explicit port: serialisation of a packet, and whether it may queue behind `backlog`,
    /// marked if need be.
    #[inline]
    pub(crate) fn admit(
        &self,
        side: &mut [PortSide],
        backlog: u64,
        packet: &mut Envelope,
    ) -> (u64, Result<(), Refusal>) {
        let serialisation = self.serialisation(side, packet);
        let side = &mut side[packet.link as usize];
        if backlog > self.kmin && packet.class == Class::Data {
            self.mark(side, backlog, packet);
        }
        let admitted = match self.holds(backlog.saturating_add(serialisation)) {
            true => Ok(()),
            false if side.up => Err(Refusal::Full),
            false => Err(Refusal::Down),
        };
        (serialisation, admitted)
    }

    /// Whether the queue has room for so much.
    pub(crate) fn holds(&self, backlog: u64) -> bool {
        backlog <= self.limit
    }

    /// Whether the queue with its reserve for trimmed packets has room for so much.
    pub(crate) fn reserve_holds(&self, backlog: u64) -> bool {
        backlog <= self.limit.saturating_add(self.limit / TRIM_RESERVE)
    }

    /// Queues a trimmed packet behind all others, in the reserve.
    #[cold]
    pub(crate) fn transmit_reserved(
        &mut self,
        side: &mut [PortSide],
        now: Time,
        packet: &Envelope,
    ) -> Result<Time, Refusal> {
        let backlog = self.busy_until.saturating_sub(now.0);
        let serialisation = self.serialisation(side, packet);
        if !self.reserve_holds(backlog.saturating_add(serialisation)) {
            return Err(Refusal::Full);
        }
        self.occupy(now, backlog, serialisation);
        Ok(Time(self.busy_until + self.delay))
    }

    /// Queues a packet of the class that goes first: behind those of its class and the packet in
    /// service, which is taken to be as long as the data packet queued last. What is queued later
    /// is pushed back by its serialisation, so the link carries no more than its rate; data queued
    /// already keeps the arrival that it was told, so for that long the two overlap. Accepted: a
    /// control packet is a fiftieth of a data packet, and one event a hop stays enough.
    #[inline(never)]
    pub(crate) fn transmit_first(
        &mut self,
        side: &mut [PortSide],
        now: Time,
        packet: &Envelope,
    ) -> Result<Time, Refusal> {
        let backlog = self.busy_until.saturating_sub(now.0);
        let serialisation = self.serialisation(side, packet);
        let side = &mut side[packet.link as usize];
        let data = match u64::from(self.last_len) {
            len if self.ps_per_byte == 0 => Rate(side.rate).time_for(Bytes(len)).0,
            len => len * u64::from(self.ps_per_byte),
        };
        let in_service = backlog.checked_rem(data).unwrap_or(0);
        let start = self.first_until.max(now.0 + in_service);
        // Its class has the bound of the queue for itself.
        let full = (start - now.0).saturating_add(serialisation) > self.limit;
        if full && side.up {
            return Err(Refusal::Full);
        }
        self.occupy(now, backlog, serialisation);
        self.first_until = start + serialisation;
        if full { Err(Refusal::Down) } else { Ok(Time(self.first_until + self.delay)) }
    }

    // [F9.ecn-and-ecmp] [F9.nothing-else-needed]
    /// RED: probability rises from 0 at kmin to pmax at kmax, and is 1 above.
    #[cold]
    fn mark(&self, side: &mut PortSide, backlog: u64, packet: &mut Envelope) {
        let marked = backlog >= side.kmax || {
            let share = u128::from(backlog - self.kmin) * u128::from(side.pmax);
            draw(&mut side.ecn, (share / u128::from((side.kmax - self.kmin).max(1))) as u32)
        };
        if marked {
            packet.ecn = Ecn::Ce;
        }
    }

    /// Takes the link down or up. A link that is down has no room for anything.
    pub(crate) fn set_up(&mut self, side: &mut PortSide, up: bool) {
        side.up = up;
        self.limit = if up { side.configured_limit } else { 0 };
    }
}

/// Time to send so many bytes, rounded down.
fn drain(bytes: u64, rate: Rate) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(BIT_PS) / u128::from(rate.0)).unwrap_or(u64::MAX)
}

impl PortSide {
    /// Serialisation time of `len` bytes; the part below a picosecond is carried, so nothing drifts.
    #[cold]
    fn exact(&mut self, len: u32) -> u64 {
        let product = u128::from(len) * u128::from(BIT_PS) + u128::from(self.carry);
        self.carry = (product % u128::from(self.rate)) as u64;
        (product / u128::from(self.rate)) as u64
    }
}

#[cfg(test)]
mod tests {
    use metaroce_wire::HostId;

    use super::*;
    use crate::loss::{ECN, LOSS, stream};

    fn port(rate: u64) -> (Port, Vec<PortSide>) {
        let (rate, delay) = (Rate(rate), Time(1000));
        let cable =
            Cable { a: 0, b: 1, rate, delay, queue: Bytes(10_000), kmin: Bytes(2000), kmax: Bytes(4000), pmax: 0 };
        let port = Port::new(&cable, 1, false, true);
        let side = port.side(&cable, stream(1, 0, LOSS), stream(1, 0, ECN));
        (port, vec![side])
    }

    fn packet(len: u32) -> Envelope {
        Envelope { dst: HostId(1), len, ..Envelope::default() }
    }

    #[test]
    fn fractional_rates_do_not_drift() {
        let (mut port, mut side) = port(30_000_000_000);
        let mut last = Time::ZERO;
        for _ in 0..3000 {
            last = port.transmit(&mut side, last, &mut packet(1)).expect("an empty queue has room");
            last = Time(last.0 - 1000);
        }
        assert_eq!(last, Time(800_000), "3000 bytes at 30 Gbit/s");
    }

    // [F7.full-queue-drops] [F9.ecn-and-ecmp]
    #[test]
    fn a_control_packet_waits_for_the_packet_in_service_and_pushes_data_back_by_its_length() {
        for (rate, byte) in [(8_000_000_000, 1000), (3_000_000_000, 0)] {
            let (mut port, mut side) = port(rate);
            let at = |bytes: u64| Time((bytes * BIT_PS).div_ceil(rate) + 1000);
            let close = |a: Time, b: Time| a.0.abs_diff(b.0) <= if byte == 0 { 5 } else { 0 };
            for _ in 0..5 {
                port.transmit(&mut side, Time::ZERO, &mut packet(1000)).expect("room for 5000 bytes");
            }
            // The second packet is in service from 1000 to 2000 bytes, the sixth waits to 5000.
            let now = Time(1500 * BIT_PS / rate);
            let control = Envelope { class: Class::Control, ..packet(100) };
            let first = port.transmit_first(&mut side, now, &control).expect("room in its class");
            assert!(close(first, at(2100)), "{first:?} at {rate}");
            let second = port.transmit_first(&mut side, now, &control).expect("room in its class");
            assert!(close(second, at(2200)), "{second:?} at {rate}");
            let data = port.transmit(&mut side, now, &mut packet(1000)).expect("room for 6200 bytes");
            assert!(close(data, at(6200)), "{data:?} at {rate}");
            // The third data packet ends at 3200 bytes now.
            let third = port.transmit_first(&mut side, Time(3100 * BIT_PS / rate), &control).expect("room");
            assert!(close(third, at(3300)), "{third:?} at {rate}");
        }
    }

    #[test]
    fn control_packets_have_the_bound_of_the_queue_for_themselves() {
        let (mut port, mut side) = port(8_000_000_000);
        let fill = |port: &mut Port, side: &mut Vec<PortSide>, len, first| {
            let mut p = packet(len);
            (0..200)
                .take_while(|_| match first {
                    true => port.transmit_first(side, Time::ZERO, &p).is_ok(),
                    false => port.transmit(side, Time::ZERO, &mut p).is_ok(),
                })
                .count()
        };
        assert_eq!(fill(&mut port, &mut side, 1000, false), 10);
        assert_eq!(fill(&mut port, &mut side, 100, true), 100);
    }

    #[test]
    fn the_byte_bound_holds_and_marks_come_above_kmax() {
        let (mut port, mut side) = port(8_000_000_000);
        let mut outcome = Vec::new();
        for _ in 0..12 {
            let mut p = packet(1000);
            let sent = port.transmit(&mut side, Time::ZERO, &mut p);
            outcome.push((sent.is_ok(), p.ecn == Ecn::Ce));
        }
        let expected: Vec<_> = (0..12).map(|queued| (queued < 10, queued >= 4)).collect();
        assert_eq!(outcome, expected);
    }
}
