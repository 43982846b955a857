//! Receives: the k-th SEND from a rank on a stream is for the k-th RECV posted for it, in order.

use std::collections::VecDeque;

use metaroce_engine::{Op, Program};

/// One stream of one pair of ranks, as its receiver sees it.
#[derive(Clone, Debug, Default)]
struct Channel {
    /// Posted receives that nothing has completed.
    receives: VecDeque<u32>,
    /// Sends posted and not received, and whether they have arrived.
    sends: VecDeque<(u32, bool)>,
    /// Number of the first of them.
    base: u32,
}

/// All channels of a program.
#[derive(Clone, Debug)]
pub(crate) struct Channels {
    channels: Vec<Channel>,
    /// Channel of each entry, where it has one.
    of: Vec<u32>,
    /// Number of each posted send in its channel.
    number: Vec<u32>,
}

impl Channels {
    pub(crate) fn new(program: &Program) -> Channels {
        let mut of = vec![u32::MAX; program.len()];
        let mut keys = Vec::new();
        let mut wqe = 0u32;
        for rank in 0..program.ranks() as u32 {
            for entry in program.of_rank(rank as usize) {
                match entry.op {
                    Op::Send | Op::WriteImm => keys.push((rank, entry.peer, entry.stream, wqe)),
                    Op::Recv => keys.push((entry.peer, rank, entry.stream, wqe)),
                    _ => {}
                }
                wqe += 1;
            }
        }
        keys.sort_unstable();
        let mut count = 0u32;
        for group in keys.chunk_by(|a, b| (a.0, a.1, a.2) == (b.0, b.1, b.2)) {
            for &(.., wqe) in group {
                of[wqe as usize] = count;
            }
            count += 1;
        }
        let number = vec![0; if keys.is_empty() { 0 } else { of.len() }];
        Channels { channels: vec![Channel::default(); count as usize], of, number }
    }

    /// Nothing is posted.
    pub(crate) fn clear(&mut self) {
        for channel in &mut self.channels {
            channel.receives.clear();
            channel.sends.clear();
        }
    }

    /// A SEND is posted.
    pub(crate) fn send(&mut self, wqe: u32) {
        let channel = &mut self.channels[self.of[wqe as usize] as usize];
        self.number[wqe as usize] = channel.base.wrapping_add(channel.sends.len() as u32);
        channel.sends.push_back((wqe, false));
    }

    /// A SEND has arrived; receives that complete with it go to `done`.
    pub(crate) fn arrived(&mut self, wqe: u32, done: &mut Vec<u32>) {
        let channel = &mut self.channels[self.of[wqe as usize] as usize];
        channel.sends[self.number[wqe as usize].wrapping_sub(channel.base) as usize].1 = true;
        channel.match_up(done);
    }

    /// A RECV is posted; receives that complete with it go to `done`.
    pub(crate) fn receive(&mut self, wqe: u32, done: &mut Vec<u32>) {
        let channel = &mut self.channels[self.of[wqe as usize] as usize];
        channel.receives.push_back(wqe);
        channel.match_up(done);
    }
}

impl Channel {
    fn match_up(&mut self, done: &mut Vec<u32>) {
        while let Some(&(_, true)) = self.sends.front()
            && let Some(receive) = self.receives.pop_front()
        {
            self.sends.pop_front();
            self.base = self.base.wrapping_add(1);
            done.push(receive);
        }
    }
}
