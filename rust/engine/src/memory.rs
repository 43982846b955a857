//! Registered memory of all ranks in a run with payload.

use std::io;

use memmap2::MmapMut;

use crate::dtype::Dtype;
use crate::pattern::Fill;

const LINE: usize = 64;

/// One flat range of bytes a rank, all in one mapping.
#[derive(Debug)]
pub struct Memory {
    map: MmapMut,
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
        Ok(Memory { map, ranks, stride, bytes, dtype })
    }

    /// Memory as from [`Memory::new`], but for what `fills` are going to write, in the pages of an earlier run if they
    /// are enough: the system hands out fresh pages more slowly than a run fills them.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn renew(self, (ranks, bytes): (usize, usize), dtype: Dtype, fills: &[Fill]) -> io::Result<Memory> {
        let (stride, size) = layout(ranks, bytes)?;
        if self.map.len() < size {
            drop(self);
            return Memory::new(ranks, bytes, dtype);
        }
        let mut map = self.map;
        let range = |fill: &Fill| {
            let start = fill.rank as usize * stride + fill.offset as usize;
            (start, start + fill.count as usize * dtype.size())
        };
        let mut filled: Vec<(usize, usize)> = fills.iter().map(range).chain([(size, size)]).collect();
        filled.sort_unstable();
        let mut end = 0;
        for (start, next) in filled {
            // Or what an earlier run left, which may be right, would hide that this one brought nothing.
            map[end.min(start)..start].fill(0);
            end = end.max(next);
        }
        Ok(Memory { map, ranks, stride, bytes, dtype })
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

    /// A rank's bytes.
    pub fn rank(&self, rank: usize) -> &[u8] {
        &self.map[rank * self.stride..][..self.bytes]
    }

    /// A rank's bytes, to write.
    pub fn rank_mut(&mut self, rank: usize) -> &mut [u8] {
        &mut self.map[rank * self.stride..][..self.bytes]
    }

    /// Bytes of all ranks, one after the other.
    pub fn to_vec(&self) -> Vec<u8> {
        (0..self.ranks).flat_map(|rank| self.rank(rank)).copied().collect()
    }

    /// Copies what a packet carries from the sender's memory to the receiver's.
    #[inline]
    pub fn place(&mut self, from: (usize, u64), to: (usize, u64), len: usize) {
        let (source, target) = (from.0 * self.stride + from.1 as usize, to.0 * self.stride + to.1 as usize);
        debug_assert!(from.1 as usize + len <= self.bytes && to.1 as usize + len <= self.bytes, "inside a rank");
        self.map.copy_within(source..source + len, target);
    }

    /// The 8 bytes at `address`, as a little-endian number: what atomics work on.
    pub fn word(&self, rank: usize, address: u64) -> u64 {
        let bytes = self.rank(rank)[address as usize..].first_chunk();
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Writes 8 bytes.
    pub fn set_word(&mut self, rank: usize, address: u64, value: u64) {
        self.rank_mut(rank)[address as usize..][..8].copy_from_slice(&value.to_le_bytes());
    }

    /// COPY inside a rank.
    pub fn copy(&mut self, rank: usize, source: u64, target: u64, len: usize) {
        self.rank_mut(rank).copy_within(source as usize..source as usize + len, target as usize);
    }

    /// SUM inside a rank: `target += source`. Ranges must not overlap.
    pub fn sum(&mut self, rank: usize, source: u64, target: u64, len: usize) {
        let (dtype, source, target) = (self.dtype, source as usize, target as usize);
        let bytes = self.rank_mut(rank);
        if source < target {
            let (low, high) = bytes.split_at_mut(target);
            dtype.add(&mut high[..len], &low[source..][..len]);
        } else {
            let (low, high) = bytes.split_at_mut(source);
            dtype.add(&mut low[target..][..len], &high[..len]);
        }
    }

    /// Flips all bits of one byte: how a test shows that corruption is noticed.
    pub fn flip(&mut self, rank: usize, address: u64) {
        self.rank_mut(rank)[address as usize] ^= 0xFF;
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
    use super::*;

    #[test]
    fn kept_memory_is_zero_where_it_is_not_filled_and_of_the_new_shape() {
        let mut memory = Memory::new(3, 100, Dtype::Int8).expect("memory");
        let capacity = memory.capacity();
        for (ranks, bytes, fits) in [(3, 100, true), (2, 160, true), (1, 1, true), (4, 129, false)] {
            (0..memory.ranks).for_each(|rank| memory.rank_mut(rank).fill(0xaa));
            memory.release();
            // In no order, and two touch.
            let offsets: &[u64] = if bytes < 100 { &[] } else { &[40, 0, 20, 30] };
            let fill = |&offset| Fill { rank: ranks as u32 - 1, offset, count: 10, index: 0 };
            let fills: Vec<Fill> = offsets.iter().map(fill).collect();
            memory = memory.renew((ranks, bytes), Dtype::Int8, &fills).expect("memory");
            fills.iter().for_each(|f| memory.rank_mut(f.rank as usize)[f.offset as usize..][..10].fill(0));
            assert_eq!(memory.to_vec(), vec![0; ranks * bytes]);
            assert_eq!(memory.capacity() == capacity, fits, "{ranks} ranks of {bytes} bytes");
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
        memory.rank_mut(2)[90..].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        memory.place((2, 90), (0, 7), 10);
        let mut right = vec![0; 300];
        right[7..17].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        right[290..].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(memory.to_vec(), right);
    }
}
