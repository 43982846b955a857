//! Congestion control by windows: one seam, three controllers. Of a path of the MetaRoCE-style transport; NSCC also of
//! an MRC-like QP.
//!
//! [`Controller`] holds what an endpoint derives from its configuration once; [`State`] is what one
//! path remembers, 8 bytes whichever controller is in use. With each acknowledgement a controller
//! is shown a [`Signal`] and answers with the new window of that path, and only of that path.
//!
//! A controller may read what its own path saw: packets and bytes acknowledged, marks, the round
//! trip against the least one of the path, and whether its window is in use. It knows no clock: a
//! *round* ends when a packet is acknowledged that left after the round began, which is one round
//! trip of the path. Loss is no signal (F8 gives congestion to ECN; loss is repaired, not obeyed):
//! [`Controller::on_loss`] changes nothing unless `cut_on_loss` is set.
//!
//! The seam, not the controller, keeps every window within one MTU and the cap. The path tells a
//! round by its sequence, and lets a window fall once in a round at most: a cut starts a new round.

pub mod aimd;
pub mod nscc;
pub mod swift;

pub use self::aimd::Aimd;
pub use self::nscc::Nscc;
pub use self::swift::Swift;
use crate::config::{ControllerKind, MetaRoceConfig};

/// Round trips are kept in ticks of 2¹⁰ ps, about a nanosecond.
pub const TICK_SHIFT: u32 = 10;
/// A window is in use where one in so many of its bytes is in flight. Ours.
pub const USED_SHARE: u64 = 2;
/// A loss that cuts takes one in so many of the window: what Falcon cuts on a first retransmission.
pub const LOSS_CUT: u32 = 2;
/// Beta of a cut by delay: UEC (gamma) and Falcon (multiplicative decrease factor) both have 0.8.
pub const BETA_PERCENT: u64 = 80;
/// No cut by delay takes more than one in so many of the window (UEC, max_md_jump; Falcon).
pub const MOST_CUT: u32 = 2;
/// Growth is kept in such parts of a byte. Ours: small steps of large windows count.
pub const PARTS: u64 = 1 << u8::BITS;

/// What an acknowledgement tells the controller of its path.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Packets that it acknowledges for the first time, and their payload bytes.
    pub packets: u32,
    pub bytes: u32,
    /// Packets that it reports as marked for the first time.
    pub marked: u32,
    /// Round trip that it measured, ticks.
    pub rtt: u32,
    /// Least round trip of this path, this one included, ticks.
    pub base_rtt: u32,
    /// Paths of the connection that are up.
    pub paths: u32,
    /// It ends a round.
    pub round_over: bool,
    /// The window has not fallen in this round.
    pub may_cut: bool,
    /// At least half of the window was in flight: one that is not used says nothing about the path.
    pub used: bool,
}

/// Where a controller works.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Configured base round trip, ticks.
    pub base_rtt: u32,
    /// Bandwidth-delay product of all planes, bytes.
    pub bdp: u64,
    /// Paths that share it.
    pub paths: u64,
    /// Largest window of a path, bytes.
    pub cap: u32,
}

/// What a path remembers for its controller.
#[derive(Clone, Copy, Debug)]
pub enum State {
    /// Marks of the round.
    Aimd(aimd::Marks),
    /// Average delay.
    Nscc(nscc::Delay),
    /// Part of a byte that growth has earned, 1/256.
    Swift(u8),
}

const _: () = assert!(size_of::<State>() == 8);

/// The controller of an endpoint's paths.
#[derive(Clone, Debug)]
pub struct Controller {
    kind: ControllerKind,
    mtu: u32,
    cap: u32,
    cut_on_loss: bool,
    aimd: Aimd,
    nscc: Nscc,
    swift: Swift,
}

impl Controller {
    /// The controller that `config` names.
    pub fn new(config: &MetaRoceConfig, place: Place) -> Controller {
        let nscc = Nscc::new(config.mtu, config.delay_target_percent, place);
        let cap = match config.controller {
            ControllerKind::Nscc => nscc.cap.min(place.cap),
            ControllerKind::Aimd | ControllerKind::Swift => place.cap,
        };
        Controller {
            kind: config.controller,
            mtu: config.mtu,
            cap: cap.max(config.mtu),
            cut_on_loss: config.cut_on_loss,
            aimd: Aimd::new(config),
            nscc,
            swift: Swift::new(config),
        }
    }

    /// Payload of a full packet, bytes.
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Largest window of a path, bytes.
    pub const fn cap(&self) -> u32 {
        self.cap
    }

    /// What a path that has seen nothing remembers.
    pub const fn start(&self) -> State {
        match self.kind {
            ControllerKind::Aimd => State::Aimd(aimd::Marks::START),
            ControllerKind::Nscc => State::Nscc(nscc::Delay::START),
            ControllerKind::Swift => State::Swift(0),
        }
    }

    /// The window that follows from `signal`, where it was `window`, bytes.
    #[inline]
    pub fn on_ack(&self, state: &mut State, window: u32, signal: &Signal) -> u32 {
        let next = match state {
            State::Aimd(marks) => self.aimd.on_ack(marks, window, signal),
            State::Nscc(delay) => self.nscc.on_ack(delay, window, signal),
            State::Swift(fraction) => self.swift.on_ack(fraction, window, signal),
        };
        // [I19]
        next.clamp(self.mtu, self.cap)
    }

    /// The window after a loss, the first of its round: halved with `cut_on_loss`, else as it was.
    /// The same for all three (ours): half is what Falcon cuts on a first retransmission, and the
    /// most that NSCC cuts at once.
    #[inline]
    pub fn on_loss(&self, window: u32) -> u32 {
        // [F8.loss-cuts-nothing] [I21]
        if self.cut_on_loss { (window / LOSS_CUT).max(self.mtu) } else { window }
    }
}

impl State {
    /// The ECN estimate in thousandths; 0 where the controller has none.
    pub const fn ecn_permille(&self) -> u16 {
        match self {
            State::Aimd(marks) => marks.permille(),
            State::Nscc(_) | State::Swift(_) => 0,
        }
    }

    /// The path leaves its route: what it saw there says nothing about the next one. The estimate of
    /// AIMD stays, since it only tells how hard the next mark cuts.
    pub const fn restart(&mut self) {
        match self {
            State::Aimd(marks) => marks.restart(),
            State::Nscc(delay) => *delay = nscc::Delay::START,
            State::Swift(fraction) => *fraction = 0,
        }
    }
}

/// Adds growth of `parts` 1/[`PARTS`] bytes to `window`, and keeps what is less than a byte for later.
#[inline]
fn grow(window: u32, fraction: &mut u8, parts: u64) -> u32 {
    let parts = parts + u64::from(*fraction);
    *fraction = parts as u8;
    (u64::from(window) + (parts / PARTS)).min(u64::from(u32::MAX)) as u32
}

/// `window` less β (over − target) ÷ over of itself, half at most.
#[inline]
fn cut(window: u32, over: u32, target: u32) -> u32 {
    let excess = u64::from(over - target);
    let less = u64::from(window) * excess * BETA_PERCENT / (100 * u64::from(over));
    window - less.min(u64::from(window / MOST_CUT)) as u32
}

#[cfg(test)]
mod tests;
