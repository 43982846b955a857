//! Inputs whose sums are exact in every element type and order, and the check against them.
//!
//! Element `index` of rank `r` is the integer `u(index) XOR w(r)` of a few bits, so it depends on
//! place and rank, and a sum over all ranks has a closed form in `u` (one table entry a value).
//! u repeats after [`PERIOD`] elements, so that long ranges are filled and compared in blocks. The
//! number of bits is chosen so that the sum of all ranks stays exact in the type.

use crate::dtype::Dtype;
use crate::memory::{Memory, PAGE};

/// A prime: no whole number of packets, chunks or shards is a multiple of it, short of 4093 of them.
const PERIOD: usize = 4093;

/// Sum over all ranks, in [`Expect::from`].
pub const ALL_RANKS: u32 = u32::MAX;

/// Elements `index..index + count` of a rank's input, to be written at `offset`.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// Rank.
    pub rank: u32,
    /// Byte offset in its memory.
    pub offset: u64,
    /// Elements.
    pub count: u64,
    /// Index of the first in the rank's input.
    pub index: u64,
}

/// What must stand at `offset` in the end.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// Rank whose memory is looked at.
    pub rank: u32,
    /// Byte offset.
    pub offset: u64,
    /// Elements.
    pub count: u64,
    /// Rank whose input it is, or [`ALL_RANKS`].
    pub from: u32,
    /// Index of the first in that input.
    pub index: u64,
}

/// The pattern for a number of ranks and a type.
#[derive(Clone, Debug)]
pub struct Pattern {
    dtype: Dtype,
    bits: u32,
    /// Beyond what even one bit a rank can sum exactly, only every `sparse`-th rank is not zero.
    sparse: u32,
    /// u of two periods and a page, so that a period and a page from any index on are one slice.
    places: Vec<u8>,
    /// Encoded sum over all ranks, by value of u.
    sums: Vec<[u8; 8]>,
}

impl Pattern {
    /// The pattern.
    pub fn new(dtype: Dtype, ranks: u32) -> Pattern {
        let limit = dtype.exact_limit();
        let bits = (1..=8).rev().find(|&b| u64::from(ranks) * ((1 << b) - 1) <= limit);
        let sparse = if bits.is_some() { 1 } else { ranks.div_ceil(128) };
        let bits = bits.unwrap_or(7);
        let places = (0..2 * PERIOD + PAGE).map(|index| place(index, bits)).collect();
        let mut pattern = Pattern { dtype, bits, sparse, places, sums: Vec::new() };
        pattern.sums = (0..1u32 << pattern.bits)
            .map(|u| {
                let mut encoded = [0; 8];
                let sum = (0..ranks).map(|r| pattern.value(r, u)).fold(0, u32::wrapping_add);
                dtype.store(&mut encoded[..dtype.size()], sum);
                encoded
            })
            .collect();
        pattern
    }

    fn value(&self, rank: u32, u: u32) -> u32 {
        if self.sparse > 1 {
            return u32::from((rank + u).is_multiple_of(self.sparse));
        }
        u ^ (rank.wrapping_mul(0x9e37_79b1) >> (32 - self.bits))
    }

    /// Encoded values of one rank, by value of u.
    fn encoded(&self, rank: u32) -> Vec<[u8; 8]> {
        (0..1u32 << self.bits)
            .map(|u| {
                let mut encoded = [0; 8];
                self.dtype.store(&mut encoded[..self.dtype.size()], self.value(rank, u));
                encoded
            })
            .collect()
    }

    /// Writes inputs.
    pub fn fill(&self, memory: &mut Memory, fills: &[Fill]) {
        for fill in fills {
            let (size, block) = (self.dtype.size(), self.bytes(&self.encoded(fill.rank), fill.index, fill.count));
            memory.repeat(fill.rank as usize, fill.offset, fill.count as usize * size, (block, PERIOD * size));
        }
    }

    /// Compares bit for bit. Answers (wrong elements, elements compared).
    pub fn check(&self, memory: &Memory, expects: &[Expect]) -> (u64, u64) {
        let wrong = expects.iter().map(|expect| self.differ(memory, expect)).sum();
        (wrong, expects.iter().map(|expect| expect.count).sum())
    }

    /// Wrong elements.
    fn differ(&self, memory: &Memory, expect: &Expect) -> u64 {
        let (rank, size) = (expect.rank as usize, self.dtype.size());
        let (period, len) = (PERIOD * size, expect.count as usize * size);
        let right = match expect.from {
            ALL_RANKS => self.bytes(&self.sums, expect.index, expect.count),
            from => self.bytes(&self.encoded(from), expect.index, expect.count),
        };
        let mut at = 0;
        let is_right = |piece: &[u8]| {
            let right = &right[at % period..][..piece.len()];
            at += piece.len();
            piece == right
        };
        if memory.pieces(rank, expect.offset, len).all(is_right) {
            return 0;
        }
        let mut bytes = Vec::with_capacity(len);
        memory.read(rank, expect.offset, len, &mut bytes);
        let elements = bytes.chunks(size).zip(right[..period.min(len)].chunks(size).cycle());
        elements.filter(|(element, right)| element != right).count() as u64
    }

    /// The bytes of elements from `index` on: all `count`, or a period and what a piece of memory that begins in it may
    /// want beyond.
    fn bytes(&self, table: &[[u8; 8]], index: u64, count: u64) -> Vec<u8> {
        match self.dtype.size() {
            1 => self.elements::<1>(table, index, count),
            2 => self.elements::<2>(table, index, count),
            4 => self.elements::<4>(table, index, count),
            _ => self.elements::<8>(table, index, count),
        }
    }

    fn elements<const N: usize>(&self, table: &[[u8; 8]], index: u64, count: u64) -> Vec<u8> {
        let table: Vec<[u8; N]> = table.iter().filter_map(|entry| entry.first_chunk::<N>().copied()).collect();
        let places = &self.places[index as usize % PERIOD..][..(count as usize).min(PERIOD + PAGE / N)];
        let elements: Vec<[u8; N]> = places.iter().map(|&u| table[usize::from(u)]).collect();
        elements.into_flattened()
    }
}

/// u(index).
fn place(index: usize, bits: u32) -> u8 {
    let hash = (index as u64 % PERIOD as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (64 - bits)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_in_every_type_and_order() {
        for (name, dtype) in Dtype::NAMES {
            for ranks in [2, 7, 64, 85, 86, 200, 300, 1000] {
                let pattern = Pattern::new(dtype, ranks);
                let len = 64 * dtype.size();
                let mut memory = Memory::new(ranks as usize + 1, len, dtype).expect("memory");
                let all = |rank| Fill { rank, offset: 0, count: 64, index: 1_000_003 };
                pattern.fill(&mut memory, &(0..ranks).map(all).collect::<Vec<_>>());
                for order in [(0..ranks).collect::<Vec<_>>(), (0..ranks).rev().collect()] {
                    let mut sum = vec![0; len];
                    for rank in order {
                        let (augend, mut addend) = (sum.clone(), Vec::new());
                        memory.read(rank as usize, 0, len, &mut addend);
                        dtype.add(&mut sum, &augend, &addend);
                    }
                    memory.write(ranks as usize, 0, &sum);
                    let expect = Expect { rank: ranks, offset: 0, count: 64, from: ALL_RANKS, index: 1_000_003 };
                    assert_eq!(pattern.check(&memory, &[expect]), (0, 64), "{name}, {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn a_flipped_byte_and_a_shifted_place_are_wrong() {
        let pattern = Pattern::new(Dtype::Float32, 8);
        // Longer than periods, and elements lie across the ends of pages.
        let (offset, count) = (6, 5 * PERIOD as u64 + 7);
        let mut memory = Memory::new(8, 100_000, Dtype::Float32).expect("memory");
        pattern.fill(&mut memory, &[Fill { rank: 3, offset, count, index: 0 }]);
        let expect = |index| Expect { rank: 3, offset, count, from: 3, index };
        assert_eq!(pattern.check(&memory, &[expect(0)]), (0, count));
        assert!(pattern.check(&memory, &[expect(1)]).0 > count * 9 / 10);
        // Both bytes at the end of a page are of one element.
        for (flipped, wrong) in [(offset, 1), (4095, 2), (4096, 2), (50_000, 3), (offset + 4 * count - 1, 4)] {
            memory.flip(3, flipped);
            assert_eq!(pattern.check(&memory, &[expect(0)]), (wrong, count));
        }
    }
}
