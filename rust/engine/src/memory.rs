//! Registered memory of all ranks in a run with payload.
//!
//! Most packets fill a page of their receiver with a page of their sender. Both are then the same frame, until one of
//! them is written and gets a frame of its own (copy on write): a packet moves what it carries without a copy, and what
//! it brings takes no memory until someone changes it.

use std::io;

use memmap2::MmapMut;

use crate::dtype::Dtype;

/// Bytes that are shared together: of the length of most packets.
pub const PAGE: usize = 4096;

/// Frame of all pages that were never written.
const ZEROES: u32 = 0;

/// In place of a frame: the page still is what this one of the repeats says.
const REPEATED: u32 = 1 << 31;

/// Pages of a repeat that get their frames when a packet brings the first of them. Ours: a message is likely to bring
/// the others as well, and neighbours are quicker to compare in the end.
const AHEAD: usize = 64;

/// One flat range of bytes a rank.
#[derive(Debug)]
pub struct Memory {
    /// Frames. Those that no page has may hold anything.
    map: MmapMut,
    /// Frame of each page, rank after rank.
    frames: Vec<u32>,
    /// Pages of each frame.
    users: Vec<u32>,
    /// Frames that have lost their pages, and the first of those that never had any.
    free: Vec<u32>,
    fresh: u32,
    repeats: Vec<Repeat>,
    ranks: usize,
    bytes: usize,
    dtype: Dtype,
}

/// Bytes from a position on that come again after each `period`: `block` is one and a page.
#[derive(Debug)]
struct Repeat {
    start: usize,
    block: Vec<u8>,
    period: usize,
}

/// What pages hold, while one frame is being written: those before it and behind it.
struct Pages<'a> {
    before: &'a [u8],
    behind: &'a [u8],
    frames: &'a [u32],
    repeats: &'a [Repeat],
}

impl<'a> Pages<'a> {
    #[inline]
    fn get(&self, page: usize) -> &'a [u8] {
        let frame = self.frames[page];
        if frame >= REPEATED {
            let Repeat { start, block, period } = &self.repeats[(frame - REPEATED) as usize];
            return &block[(page * PAGE - start) % period..][..PAGE];
        }
        let at = frame as usize * PAGE;
        if at < self.before.len() {
            &self.before[at..][..PAGE]
        } else {
            &self.behind[at - self.before.len() - PAGE..][..PAGE]
        }
    }
}

impl Memory {
    /// Zeroed memory, on the system's huge pages where there are any: a run touches much of it, in small pieces.
    ///
    /// # Errors
    /// What the operating system says if it has not that much.
    pub fn new(ranks: usize, bytes: usize, dtype: Dtype) -> io::Result<Memory> {
        let (pages, frames) = layout(ranks, bytes)?;
        let map = MmapMut::map_anon(frames * PAGE)?;
        #[cfg(target_os = "linux")]
        // Only a hint: a kernel without huge pages refuses, and others do as well.
        let _ = map.advise(memmap2::Advice::HugePage);
        let (numbers, users) = (vec![ZEROES; pages], vec![0; frames]);
        let (free, repeats) = (Vec::new(), Vec::new());
        let mut memory = Memory { map, frames: numbers, users, free, fresh: 0, repeats, ranks, bytes, dtype };
        memory.clear();
        Ok(memory)
    }

    /// Memory as from [`Memory::new`], in the frames of an earlier run if they are enough: the system hands out fresh
    /// ones more slowly than a run fills them.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn renew(self, ranks: usize, bytes: usize, dtype: Dtype) -> io::Result<Memory> {
        let (pages, frames) = layout(ranks, bytes)?;
        if self.capacity() < frames * PAGE {
            drop(self);
            return Memory::new(ranks, bytes, dtype);
        }
        let mut memory = Memory { ranks, bytes, dtype, ..self };
        memory.frames.resize(pages, ZEROES);
        memory.users.resize(frames, 0);
        memory.clear();
        Ok(memory)
    }

    /// Zeroes all of it. What an earlier run left might be right, and hide that this one brought nothing.
    pub fn clear(&mut self) {
        self.frames.fill(ZEROES);
        self.users.fill(0);
        // One more than can leave it: nobody ever writes it.
        self.users[ZEROES as usize] = self.frames.len() as u32 + 1;
        self.free.clear();
        self.repeats.clear();
        self.fresh = ZEROES + 1;
    }

    /// Lets the system take frames back whenever it needs them; the contents are lost.
    #[cfg_attr(target_os = "linux", expect(unsafe_code, reason = "pages may turn to zeroes under nobody's eyes"))]
    pub fn release(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: this is private memory, and whoever reads it next has to expect anything. Only a hint as well.
        let _ = unsafe { self.map.unchecked_advise(memmap2::UncheckedAdvice::Free) };
    }

    /// Bytes of the mapping.
    pub fn capacity(&self) -> usize {
        self.map.len()
    }

    /// Element type.
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The `len` bytes of a rank at `address`, page by page.
    pub fn pieces(&self, rank: usize, address: u64, len: usize) -> impl Iterator<Item = &[u8]> {
        let start = self.position(rank, address, len);
        steps(start, start, len).map(move |(at, len)| self.piece(start + at, len))
    }

    /// Appends the `len` bytes of a rank at `address` to `bytes`.
    pub fn read(&self, rank: usize, address: u64, len: usize, bytes: &mut Vec<u8>) {
        self.pieces(rank, address, len).for_each(|piece| bytes.extend_from_slice(piece));
    }

    /// Bytes of all ranks, one after the other.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.ranks * self.bytes);
        (0..self.ranks).for_each(|rank| self.read(rank, 0, self.bytes, &mut all));
        all
    }

    /// Writes `bytes` to a rank, from `address` on.
    pub fn write(&mut self, rank: usize, address: u64, bytes: &[u8]) {
        let start = self.position(rank, address, bytes.len());
        steps(start, start, bytes.len()).for_each(|(at, len)| self.put(start + at, &bytes[at..at + len]));
    }

    /// Writes `len` bytes that repeat themselves after each `period`: `block` is the first period and a page more, or
    /// all of them. Whole pages get theirs when they are first needed: it is then that they are wanted in the cache.
    pub fn repeat(&mut self, rank: usize, address: u64, len: usize, (block, period): (Vec<u8>, usize)) {
        let start = self.position(rank, address, len);
        for (at, len) in steps(start, start, len) {
            if len == PAGE {
                self.turn((start + at) / PAGE, REPEATED + self.repeats.len() as u32);
            } else {
                self.put(start + at, &block[at % period..][..len]);
            }
        }
        self.repeats.push(Repeat { start, block, period });
    }

    /// Moves what a packet carries from the sender's memory to the receiver's.
    #[inline]
    pub fn place(&mut self, from: (usize, u64), to: (usize, u64), len: usize) {
        let (source, target) = (self.position(from.0, from.1, len), self.position(to.0, to.1, len));
        if source.abs_diff(target) < len {
            // Onto itself, at least in part: all is read before any is written.
            let mut bytes = Vec::with_capacity(len);
            self.read(from.0, from.1, len, &mut bytes);
            self.write(to.0, to.1, &bytes);
            return;
        }
        for (at, len) in steps(source, target, len) {
            let (source, target) = (source + at, target + at);
            let frame = self.frame(source / PAGE);
            if len == PAGE {
                self.users[frame as usize] += 1;
                self.turn(target / PAGE, frame);
            } else {
                let (source, target) = (frame as usize * PAGE + source % PAGE, self.own(target));
                self.map.copy_within(source..source + len, target);
            }
        }
    }

    /// The 8 bytes at `address`, as a little-endian number: what atomics work on.
    pub fn word(&self, rank: usize, address: u64) -> u64 {
        let bytes = self.pieces(rank, address, 8).flatten();
        bytes.zip(0..).fold(0, |word, (&byte, at)| word | u64::from(byte) << (8 * at))
    }

    /// Writes 8 bytes.
    pub fn set_word(&mut self, rank: usize, address: u64, value: u64) {
        self.write(rank, address, &value.to_le_bytes());
    }

    /// COPY inside a rank.
    pub fn copy(&mut self, rank: usize, source: u64, target: u64, len: usize) {
        self.place((rank, source), (rank, target), len);
    }

    /// SUM inside a rank: `target += source`, in whole elements. Ranges must not overlap.
    pub fn sum(&mut self, rank: usize, source: u64, target: u64, len: usize) {
        let dtype = self.dtype;
        let len = len / dtype.size() * dtype.size();
        if !(source | target).is_multiple_of(dtype.size() as u64) {
            // An element may lie in two pages.
            let (mut augend, mut addend) = (Vec::with_capacity(len), Vec::with_capacity(len));
            self.read(rank, target, len, &mut augend);
            self.read(rank, source, len, &mut addend);
            let mut sum = vec![0; len];
            dtype.add(&mut sum, &augend, &addend);
            self.write(rank, target, &sum);
            return;
        }
        let (source, target) = (self.position(rank, source, len), self.position(rank, target, len));
        let mut sum = [0; PAGE];
        for (at, len) in steps(source, target, len) {
            let (source, target) = (source + at, target + at);
            if len == PAGE {
                let (source, target) = (source / PAGE, target / PAGE);
                self.rewrite(target, |sum, pages| dtype.add(sum, pages.get(target), pages.get(source)));
            } else {
                dtype.add(&mut sum[..len], self.piece(target, len), self.piece(source, len));
                self.put(target, &sum[..len]);
            }
        }
    }

    /// Flips all bits of one byte: how a test shows that corruption is noticed.
    pub fn flip(&mut self, rank: usize, address: u64) {
        let byte = self.position(rank, address, 1);
        let byte = self.own(byte);
        self.map[byte] ^= 0xFF;
    }

    /// Where bytes of a rank are among all pages.
    #[inline]
    fn position(&self, rank: usize, address: u64, len: usize) -> usize {
        assert!(address as usize + len <= self.bytes, "inside a rank");
        rank * self.bytes.next_multiple_of(PAGE) + address as usize
    }

    /// Bytes of one page, from a position on.
    #[inline]
    fn piece(&self, position: usize, len: usize) -> &[u8] {
        let pages = Pages { before: &self.map, behind: &[], frames: &self.frames, repeats: &self.repeats };
        &pages.get(position / PAGE)[position % PAGE..][..len]
    }

    /// Writes bytes of one page, from a position on.
    #[inline]
    fn put(&mut self, position: usize, bytes: &[u8]) {
        if bytes.len() == PAGE {
            self.rewrite(position / PAGE, |frame, _| frame.copy_from_slice(bytes));
        } else {
            let own = self.own(position);
            self.map[own..own + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Gives a page another frame, which `write` fills from what pages hold. The one to be had is the one that was given
    /// up last, which is still in the cache.
    #[inline]
    fn rewrite(&mut self, page: usize, write: impl FnOnce(&mut [u8], &Pages<'_>)) {
        let frame = self.free.pop().unwrap_or(self.fresh);
        self.fresh = self.fresh.max(frame + 1);
        let (before, rest) = self.map.split_at_mut(frame as usize * PAGE);
        let (own, behind) = rest.split_at_mut(PAGE);
        write(own, &Pages { before, behind, frames: &self.frames, repeats: &self.repeats });
        self.users[frame as usize] = 1;
        self.turn(page, frame);
    }

    /// Where the byte at a position is in the mapping, to be written: its page gets a frame of its own.
    #[inline]
    fn own(&mut self, position: usize) -> usize {
        let page = position / PAGE;
        if self.frames[page] >= REPEATED || self.users[self.frames[page] as usize] > 1 {
            self.rewrite(page, |frame, pages| frame.copy_from_slice(pages.get(page)));
        }
        self.frames[page] as usize * PAGE + position % PAGE
    }

    /// Frame of a page, to be read.
    #[inline]
    fn frame(&mut self, page: usize) -> u32 {
        let frame = self.frames[page];
        if frame < REPEATED {
            return frame;
        }
        for page in page..self.frames.len().min(page + AHEAD) {
            if self.frames[page] == frame {
                self.own(page * PAGE);
            }
        }
        self.frames[page]
    }

    /// A page turns to another frame, or to a repeat. The one that it had is free if no other page has it.
    #[inline]
    fn turn(&mut self, page: usize, frame: u32) {
        let lost = std::mem::replace(&mut self.frames[page], frame);
        if lost < REPEATED {
            self.users[lost as usize] -= 1;
            if self.users[lost as usize] == 0 {
                self.free.push(lost);
            }
        }
    }
}

/// Pages of all ranks, and frames for them: with that of zeroes, and one that is written while another is read.
fn layout(ranks: usize, bytes: usize) -> io::Result<(usize, usize)> {
    let pages = bytes.div_ceil(PAGE).checked_mul(ranks).filter(|&pages| pages < REPEATED as usize - 2);
    pages.map(|pages| (pages, pages + 2)).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// Splits ranges of `len` bytes at two positions where a page ends at either: how much comes before each piece, and its
/// length.
#[inline]
fn steps(one: usize, other: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let step = (len - at).min(PAGE - (one + at) % PAGE).min(PAGE - (other + at) % PAGE);
        at += step;
        (step > 0).then_some((at - step, step))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One change of memory: which, two ranks, two addresses, a length.
    type Change = (u8, (usize, usize), (usize, usize), usize);

    proptest! {
        #[test]
        fn ranks_have_what_was_written_there_and_zeroes(
            shape in (1..4usize, 1..40_000usize),
            kept in (1..4usize, 1..40_000usize),
            dtype in prop::sample::select(vec![Dtype::Int8, Dtype::Int32]),
            changes in prop::collection::vec(any::<Change>(), 0..32),
        ) {
            let mut memory = Memory::new(kept.0, kept.1, Dtype::Int8).expect("memory");
            let capacity = memory.capacity();
            (0..kept.0).for_each(|rank| memory.write(rank, 0, &vec![0xaa; kept.1]));
            memory.release();
            let (ranks, bytes) = shape;
            memory = memory.renew(ranks, bytes, dtype).expect("memory");
            prop_assert!(memory.capacity() == capacity || ranks * bytes.div_ceil(PAGE) > kept.0 * kept.1.div_ceil(PAGE));
            let mut right = vec![vec![0; bytes]; ranks];
            for (number, (kind, of, at, len)) in changes.into_iter().enumerate() {
                // Most begin or end where a page does.
                let at = [at.0, at.1].map(|at| if kind & 8 == 0 { at % bytes } else { at % bytes / PAGE * PAGE });
                let (of, len) = ([of.0 % ranks, of.1 % ranks], len % (bytes - at[0].max(at[1])).min(3 * PAGE) + 1);
                let len = if kind & 16 != 0 && len > PAGE { len / PAGE * PAGE } else { len };
                change(&mut memory, &mut right, (kind % 7, number as u8, of, at), len);
            }
            // Without the bytes: they fill pages.
            prop_assert!(memory.to_vec() == right.concat(), "memory is not what was written");
        }
    }

    fn change(
        memory: &mut Memory,
        right: &mut [Vec<u8>],
        (kind, number, of, at): (u8, u8, [usize; 2], [usize; 2]),
        len: usize,
    ) {
        let (ranges, address) = (at.map(|at| at..at + len), at.map(|at| at as u64));
        let source = right[of[0]][ranges[0].clone()].to_vec();
        let [addend, augend] = ranges.clone().map(|range| right[of[1]][range].to_vec());
        let target = &mut right[of[1]][ranges[1].clone()];
        match kind {
            0 => {
                target.iter_mut().zip(0..).for_each(|(byte, at): (_, usize)| *byte = (at % 251) as u8 ^ number);
                memory.write(of[1], address[1], target);
            }
            1 => {
                memory.place((of[0], address[0]), (of[1], address[1]), len);
                target.copy_from_slice(&source);
            }
            2 if at[0].abs_diff(at[1]) >= len => {
                memory.sum(of[1], address[0], address[1], len);
                let whole = len / memory.dtype().size() * memory.dtype().size();
                memory.dtype().add(&mut target[..whole], &augend, &addend);
            }
            6 => {
                let period = 1 + usize::from(number) * 331;
                let block: Vec<u8> = (0..len.min(period + PAGE)).map(|at| (at % period % 251) as u8).collect();
                target.iter_mut().zip(0..).for_each(|(byte, at)| *byte = block[at % period]);
                memory.repeat(of[1], address[1], len, (block, period));
            }
            3 => {
                memory.flip(of[1], address[1]);
                target[0] ^= 0xFF;
            }
            4 if len >= 8 => {
                let word = memory.word(of[1], address[1]);
                assert_eq!(word.to_le_bytes(), target[..8]);
                memory.set_word(of[1], address[1], word.wrapping_add(1));
                target[..8].copy_from_slice(&word.wrapping_add(1).to_le_bytes());
            }
            _ => {
                let mut bytes = Vec::new();
                memory.read(of[0], address[0], len, &mut bytes);
                assert!(bytes == source, "{len} bytes at {} of rank {}", at[0], of[0]);
            }
        }
    }

    #[test]
    fn equal_pages_are_one_frame_until_one_is_written() {
        let mut memory = Memory::new(8, 3 * PAGE, Dtype::Int8).expect("memory");
        memory.write(0, 0, &[1; 3 * PAGE]);
        let frames = memory.fresh;
        (1..8).for_each(|rank| memory.place((rank - 1, 0), (rank, 0), 3 * PAGE));
        assert_eq!(memory.fresh, frames);
        memory.write(4, 5, &[2; 2 * PAGE]);
        assert_eq!(memory.fresh, frames + 3);
        // Those of rank 4 are free again, and the next to be taken.
        memory.place((7, 0), (4, 0), 3 * PAGE);
        memory.write(3, 0, &[3; 3 * PAGE]);
        assert_eq!(memory.fresh, frames + 3);
    }

    #[test]
    fn memory_beyond_all_bounds_is_refused() {
        for (ranks, bytes) in [(2, usize::MAX), (1 << 20, 1 << 50), (2, 1 << 60)] {
            assert!(Memory::new(ranks, bytes, Dtype::Int8).is_err(), "{ranks} ranks of {bytes} bytes");
        }
    }

    #[test]
    fn payload_goes_from_rank_to_rank() {
        let mut memory = Memory::new(3, 100, Dtype::Int8).expect("memory");
        memory.write(2, 90, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        memory.place((2, 90), (0, 7), 10);
        let mut right = vec![0; 300];
        right[7..17].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        right[290..].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(memory.to_vec(), right);
    }
}
