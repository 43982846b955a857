//! Many short lists of events: chains of chunks from one free list, so that what is pending, not how many lists there
//! are, decides how much cache is used.

use metaroce_wire::prefetch;

const NIL: u32 = u32::MAX;
/// Events of a cache line.
const LINE: usize = 8;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Chunk<const CHUNK: usize>([u64; CHUNK]);

/// Where the next event of a chain goes: its last chunk, times their length, and how many are in that; 0 if it is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct End(u32);

impl End {
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// All chains, of chunks of `CHUNK` events, which are whole cache lines.
#[derive(Debug)]
pub struct Chains<const CHUNK: usize> {
    chunks: Vec<Chunk<CHUNK>>,
    /// What was there before a chunk, full, and those before it, so that they can be asked for ahead.
    before: Vec<[u32; 3]>,
    free: u32,
    /// Chunks of the chain that is being taken.
    taking: Vec<u32>,
}

impl<const CHUNK: usize> Default for Chains<CHUNK> {
    fn default() -> Chains<CHUNK> {
        Chains { chunks: Vec::new(), before: Vec::new(), free: NIL, taking: Vec::new() }
    }
}

impl<const CHUNK: usize> Chains<CHUNK> {
    #[inline]
    fn last_chunk(end: End) -> Option<usize> {
        Some(end.0.checked_sub(1)? as usize / CHUNK)
    }

    /// How many more events the last chunk takes.
    #[inline]
    const fn room(end: End) -> usize {
        (end.0 as usize).next_multiple_of(CHUNK) - end.0 as usize
    }

    /// Adds an event where the last chunk has room. Answers whether it has.
    #[inline]
    pub fn put(&mut self, end: &mut End, event: u64) -> bool {
        let (chunk, len) = (end.0 as usize / CHUNK, end.0 as usize % CHUNK);
        match self.chunks.get_mut(chunk) {
            // A full one ends where another one begins.
            Some(chunk) if len > 0 => {
                chunk.0[len] = event;
                end.0 += 1;
                true
            }
            _ => false,
        }
    }

    /// Adds an event in a new chunk: the last one is full.
    pub fn put_in_new(&mut self, end: &mut End, event: u64) {
        let before = match Self::last_chunk(*end) {
            Some(full) => [full as u32, self.before[full][0], self.before[full][1]],
            None => [NIL; 3],
        };
        let chunk = self.free as usize;
        if let Some(free) = self.before.get_mut(chunk) {
            self.free = std::mem::replace(free, before)[0];
            self.chunks[chunk].0[0] = event;
            end.0 = (chunk * CHUNK) as u32 + 1;
        } else {
            end.0 = (self.chunks.len() * CHUNK) as u32 + 1;
            self.chunks.push(Chunk([event; CHUNK]));
            self.before.push(before);
        }
    }

    /// Moves the events of a chain behind those in `into`, as they were put.
    #[inline]
    pub fn take(&mut self, end: &mut End, into: &mut Vec<u64>) {
        let end = std::mem::take(end);
        let mut at = Self::last_chunk(end).map_or(NIL, |chunk| chunk as u32);
        while let Some(before) = self.before.get_mut(at as usize) {
            self.taking.push(at);
            let [next, _, far] = std::mem::replace(before, [self.free, NIL, NIL]);
            (self.free, at) = (at, next);
            self.prefetch(far);
        }
        self.taking.drain(..).rev().for_each(|at| into.extend_from_slice(&self.chunks[at as usize].0));
        into.truncate(into.len() - Self::room(end));
    }

    /// The events of the last chunk.
    #[inline]
    pub fn last(&self, end: End) -> &[u64] {
        Self::last_chunk(end).map_or(&[], |chunk| &self.chunks[chunk].0[..CHUNK - Self::room(end)])
    }

    /// The events of a chain, the last chunk first.
    pub fn iter(&self, end: End) -> impl Iterator<Item = u64> {
        let (mut at, mut len) = (Self::last_chunk(end), CHUNK - Self::room(end));
        let chunks = std::iter::from_fn(move || {
            let chunk = at?;
            let events = &self.chunks[chunk].0[..len];
            let next = self.before[chunk][0];
            (at, len) = ((next != NIL).then_some(next as usize), CHUNK);
            Some(events)
        });
        chunks.flatten().copied()
    }

    /// Hints that an event will be put there soon.
    #[inline]
    pub fn prefetch_end(&self, end: End) {
        if let Some(chunk) = self.chunks.get(end.0 as usize / CHUNK) {
            prefetch(&chunk.0[end.0 as usize % CHUNK]);
        }
    }

    /// Hints that a chain will be taken soon.
    #[inline]
    pub fn prefetch_last(&self, end: End) {
        if let Some(chunk) = Self::last_chunk(end) {
            self.prefetch(chunk as u32);
        }
    }

    /// The same of one whose last chunk was asked for.
    #[inline]
    pub fn prefetch_others(&self, end: End) {
        if let Some(chunk) = Self::last_chunk(end) {
            self.before[chunk].into_iter().for_each(|at| self.prefetch(at));
        }
    }

    #[inline]
    fn prefetch(&self, chunk: u32) {
        if let Some(chunk) = self.chunks.get(chunk as usize) {
            chunk.0.iter().step_by(LINE).for_each(prefetch);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chains_are_lists(steps in prop::collection::vec((0..5usize, prop::option::weighted(0.97, any::<u64>())), 0..2_000)) {
            let (mut chains, mut ends, mut lists) = (Chains::<8>::default(), [End::default(); 5], [const { Vec::new() }; 5]);
            let mut most = 0;
            for (list, step) in steps {
                let (end, right) = (&mut ends[list], &mut lists[list]);
                chains.prefetch_end(*end);
                chains.prefetch_last(*end);
                chains.prefetch_others(*end);
                if let Some(event) = step {
                    if !chains.put(end, event) {
                        chains.put_in_new(end, event);
                    }
                    right.push(event);
                } else {
                    let (mut all, mut taken): (Vec<u64>, _) = (chains.iter(*end).collect(), vec![7]);
                    chains.take(end, &mut taken);
                    prop_assert_eq!(&taken[1..], &right[..]);
                    all.sort_unstable();
                    right.sort_unstable();
                    prop_assert_eq!(&all, &*right);
                    right.clear();
                }
                prop_assert_eq!(end.is_empty(), right.is_empty());
                most = most.max(lists.iter().map(|list| list.len().div_ceil(8)).sum());
            }
            prop_assert_eq!(chains.chunks.len(), most, "chunks of taken chains are used again");
        }
    }
}
