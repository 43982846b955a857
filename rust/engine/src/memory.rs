//! Registered memory of all ranks in a run with payload.

use std::io;
use std::ops::Range;

use memmap2::MmapMut;

use crate::dtype::Dtype;

const LINE: usize = 64;

/// Bytes that turn to zero together: of the length of most packets, which then find nothing to turn.
const BLOCK: usize = 4096;

/// One flat range of bytes a rank, all in one mapping.
#[derive(Debug)]
pub struct Memory {
    map: MmapMut,
    /// Blocks of the mapping that count as zero, whatever an earlier run has left there.
    stale: Vec<bool>,
    ranks: usize,
    /// From the start of a rank to that of the next: whole cache lines.
    stride: usize,
    bytes: usize,
    dtype: Dtype,
}

impl Memory {
    /// Zeroed memory, on huge pages where there are any: a run touches all of it, in small pieces.
    ///
    /// # Errors
    /// What the operating system says if it has not that much.
    pub fn new(ranks: usize, bytes: usize, dtype: Dtype) -> io::Result<Memory> {
        let (stride, size) = layout(ranks, bytes)?;
        let map = MmapMut::map_anon(size)?;
        #[cfg(target_os = "linux")]
        // Only a hint: a kernel without huge pages refuses, and small ones do as well.
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Memory { map, stale: vec![false; size.div_ceil(BLOCK)], ranks, stride, bytes, dtype })
    }

    /// Memory as from [`Memory::new`], in the pages of an earlier run if they are enough: the system hands out fresh
    /// pages more slowly than a run fills them.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn renew(self, ranks: usize, bytes: usize, dtype: Dtype) -> io::Result<Memory> {
        let (stride, size) = layout(ranks, bytes)?;
        if self.map.len() < size {
            drop(self);
            return Memory::new(ranks, bytes, dtype);
        }
        let mut memory = Memory { ranks, stride, bytes, dtype, ..self };
        memory.clear();
        Ok(memory)
    }

    /// Zeroes all of it. What an earlier run left might be right, and hide that this one brought nothing. But most of
    /// it is about to be written: only what is not is set to zero, when it is first looked at.
    pub fn clear(&mut self) {
        self.stale.fill(true);
    }

    /// Lets the system take pages back whenever it needs them; the contents are lost.
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

    /// The `len` bytes of a rank at `address`, to read.
    pub fn read(&mut self, rank: usize, address: u64, len: usize) -> &[u8] {
        let range = self.settled(rank, address, len);
        &self.map[range]
    }

    /// The same, to write all of them.
    pub fn write(&mut self, rank: usize, address: u64, len: usize) -> &mut [u8] {
        let range = self.overwritten(rank, address, len);
        &mut self.map[range]
    }

    /// Bytes of all ranks, one after the other.
    pub fn to_vec(&mut self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.ranks * self.bytes);
        (0..self.ranks).for_each(|rank| all.extend_from_slice(self.read(rank, 0, self.bytes)));
        all
    }

    /// Copies what a packet carries from the sender's memory to the receiver's.
    #[inline]
    pub fn place(&mut self, from: (usize, u64), to: (usize, u64), len: usize) {
        let source = self.settled(from.0, from.1, len);
        let target = self.overwritten(to.0, to.1, len);
        self.map.copy_within(source, target.start);
    }

    /// The 8 bytes at `address`, as a little-endian number: what atomics work on.
    pub fn word(&mut self, rank: usize, address: u64) -> u64 {
        self.read(rank, address, 8).first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Writes 8 bytes.
    pub fn set_word(&mut self, rank: usize, address: u64, value: u64) {
        self.write(rank, address, 8).copy_from_slice(&value.to_le_bytes());
    }

    /// COPY inside a rank.
    pub fn copy(&mut self, rank: usize, source: u64, target: u64, len: usize) {
        self.place((rank, source), (rank, target), len);
    }

    /// SUM inside a rank: `target += source`. Ranges must not overlap.
    pub fn sum(&mut self, rank: usize, source: u64, target: u64, len: usize) {
        let (source, target) = (self.settled(rank, source, len), self.settled(rank, target, len));
        if source.start < target.start {
            let (low, high) = self.map.split_at_mut(target.start);
            self.dtype.add(&mut high[..len], &low[source]);
        } else {
            let (low, high) = self.map.split_at_mut(source.start);
            self.dtype.add(&mut low[target], &high[..len]);
        }
    }

    /// Flips all bits of one byte: how a test shows that corruption is noticed.
    pub fn flip(&mut self, rank: usize, address: u64) {
        let byte = self.settled(rank, address, 1).start;
        self.map[byte] ^= 0xFF;
    }

    /// Where bytes of a rank are in the mapping, which are what they count as from now on.
    #[inline]
    fn settled(&mut self, rank: usize, address: u64, len: usize) -> Range<usize> {
        let range = self.range(rank, address, len);
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            if std::mem::take(&mut self.stale[block]) {
                let end = self.map.len().min((block + 1) * BLOCK);
                self.map[block * BLOCK..end].fill(0);
            }
        }
        range
    }

    /// The same of bytes that are about to be written: of their blocks, only those have to be zero that others are in.
    #[inline]
    fn overwritten(&mut self, rank: usize, address: u64, len: usize) -> Range<usize> {
        let range = self.range(rank, address, len);
        (range.start.div_ceil(BLOCK)..range.end / BLOCK).for_each(|whole| self.stale[whole] = false);
        self.settled(rank, address, len)
    }

    #[inline]
    fn range(&self, rank: usize, address: u64, len: usize) -> Range<usize> {
        let start = rank * self.stride + address as usize;
        assert!(address as usize + len <= self.bytes, "inside a rank");
        start..start + len
    }
}

/// From rank to rank, and in all: at least one byte.
fn layout(ranks: usize, bytes: usize) -> io::Result<(usize, usize)> {
    let stride = bytes.checked_next_multiple_of(LINE);
    let all = stride.and_then(|stride| Some((stride, stride.checked_mul(ranks)?.max(1))));
    all.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One change of memory: which, two ranks, two addresses, a length.
    type Change = (u8, (usize, usize), (usize, usize), usize);

    proptest! {
        #[test]
        fn kept_memory_is_zero_until_it_is_written(
            shape in (1..4usize, 1..40_000usize),
            kept in (1..4usize, 1..40_000usize),
            changes in prop::collection::vec(any::<Change>(), 0..12),
        ) {
            let mut memory = Memory::new(kept.0, kept.1, Dtype::Int8).expect("memory");
            let capacity = memory.capacity();
            (0..kept.0).for_each(|rank| memory.write(rank, 0, kept.1).fill(0xaa));
            memory.release();
            let (ranks, bytes) = shape;
            memory = memory.renew(ranks, bytes, Dtype::Int8).expect("memory");
            prop_assert!(memory.capacity() == capacity || bytes.next_multiple_of(LINE) * ranks > capacity);
            let mut right = vec![vec![0; bytes]; ranks];
            for (kind, of, at, len) in changes {
                // Most begin or end where a block does.
                let at = [at.0, at.1].map(|at| if kind & 8 == 0 { at % bytes } else { at % bytes / BLOCK * BLOCK });
                let (of, len) = ([of.0 % ranks, of.1 % ranks], len % (bytes - at[0].max(at[1])).min(3 * BLOCK) + 1);
                change(&mut memory, &mut right, (kind % 6, of, at), len);
            }
            prop_assert_eq!(memory.to_vec(), right.concat());
        }
    }

    fn change(memory: &mut Memory, right: &mut [Vec<u8>], (kind, of, at): (u8, [usize; 2], [usize; 2]), len: usize) {
        let (ranges, address) = (at.map(|at| at..at + len), at.map(|at| at as u64));
        let source = right[of[0]][ranges[0].clone()].to_vec();
        let target = &mut right[of[1]][ranges[1].clone()];
        match kind {
            0 => {
                memory.write(of[1], address[1], len).fill(7);
                target.fill(7);
            }
            1 => {
                memory.place((of[0], address[0]), (of[1], address[1]), len);
                target.copy_from_slice(&source);
            }
            2 if at[0].abs_diff(at[1]) >= len => {
                memory.sum(of[1], address[0], address[1], len);
                let addend = right[of[1]][ranges[0].clone()].to_vec();
                right[of[1]][ranges[1].clone()].iter_mut().zip(addend).for_each(|(t, a)| *t = t.wrapping_add(a));
            }
            3 => {
                memory.flip(of[1], address[1]);
                target[0] ^= 0xFF;
            }
            4 if len >= 8 => {
                let word = memory.word(of[1], address[1]);
                memory.set_word(of[1], address[1], word + 1);
                target[..8].copy_from_slice(&(word + 1).to_le_bytes());
            }
            _ => assert_eq!(memory.read(of[0], address[0], len), source),
        }
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
        memory.write(2, 90, 10).copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        memory.place((2, 90), (0, 7), 10);
        let mut right = vec![0; 300];
        right[7..17].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        right[290..].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(memory.to_vec(), right);
    }
}
