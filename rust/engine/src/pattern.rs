//! Inputs whose sums are exact in every element type and order, and the check against them.
//!
//! Element `index` of rank `r` is the integer `u(index) XOR w(r)` of a few bits, so it depends on
//! place and rank, and a sum over all ranks has a closed form in `u` (one table entry a value).
//! u repeats after [`PERIOD`] elements, so that long ranges are filled and compared in blocks. The
//! number of bits is chosen so that the sum of all ranks stays exact in the type.

use crate::dtype::Dtype;
use crate::memory::Memory;

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
    /// u of two periods, so that a period from any index on is one slice.
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
        let places = (0..2 * PERIOD).map(|index| place(index, bits)).collect();
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
            let table = self.encoded(fill.rank);
            let len = fill.count as usize * self.dtype.size();
            let bytes = memory.write(fill.rank as usize, fill.offset, len);
            match self.dtype.size() {
                1 => self.write::<1>(bytes, fill, &table),
                2 => self.write::<2>(bytes, fill, &table),
                4 => self.write::<4>(bytes, fill, &table),
                _ => self.write::<8>(bytes, fill, &table),
            }
        }
    }

    fn write<const N: usize>(&self, bytes: &mut [u8], fill: &Fill, table: &[[u8; 8]]) {
        let (elements, _) = bytes.as_chunks_mut::<N>();
        let block = self.block::<N>(table, fill.index as usize, fill.count as usize);
        for part in elements.chunks_mut(PERIOD) {
            part.copy_from_slice(&block[..part.len()]);
        }
    }

    /// The elements from `index` on, `count` or a period of them.
    fn block<const N: usize>(&self, table: &[[u8; 8]], index: usize, count: usize) -> Vec<[u8; N]> {
        let table: Vec<[u8; N]> = table.iter().filter_map(|entry| entry.first_chunk::<N>().copied()).collect();
        let places = &self.places[index % PERIOD..][..count.min(PERIOD)];
        places.iter().map(|&u| table[usize::from(u)]).collect()
    }

    /// Compares bit for bit. Answers (wrong elements, elements compared).
    pub fn check(&self, memory: &mut Memory, expects: &[Expect]) -> (u64, u64) {
        let (mut wrong, mut checked) = (0, 0);
        for expect in expects {
            let own;
            let table = if expect.from == ALL_RANKS {
                &self.sums
            } else {
                own = self.encoded(expect.from);
                &own
            };
            let len = expect.count as usize * self.dtype.size();
            let bytes = memory.read(expect.rank as usize, expect.offset, len);
            wrong += match self.dtype.size() {
                1 => self.differ::<1>(bytes, expect, table),
                2 => self.differ::<2>(bytes, expect, table),
                4 => self.differ::<4>(bytes, expect, table),
                _ => self.differ::<8>(bytes, expect, table),
            };
            checked += expect.count;
        }
        (wrong, checked)
    }

    fn differ<const N: usize>(&self, bytes: &[u8], expect: &Expect, table: &[[u8; 8]]) -> u64 {
        let (elements, _) = bytes.as_chunks::<N>();
        let block = self.block::<N>(table, expect.index as usize, expect.count as usize);
        let parts = elements.chunks(PERIOD);
        let wrong = |part: &[[u8; N]]| {
            let right = &block[..part.len()];
            if part == right { 0 } else { part.iter().zip(right).filter(|(a, b)| a != b).count() as u64 }
        };
        parts.map(wrong).sum()
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
                    order.iter().for_each(|&r| dtype.add(&mut sum, memory.read(r as usize, 0, len)));
                    memory.write(ranks as usize, 0, len).copy_from_slice(&sum);
                    let expect = Expect { rank: ranks, offset: 0, count: 64, from: ALL_RANKS, index: 1_000_003 };
                    assert_eq!(pattern.check(&mut memory, &[expect]), (0, 64), "{name}, {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn a_flipped_byte_and_a_shifted_place_are_wrong() {
        let pattern = Pattern::new(Dtype::Float32, 8);
        let mut memory = Memory::new(8, 4000, Dtype::Float32).expect("memory");
        pattern.fill(&mut memory, &[Fill { rank: 3, offset: 0, count: 1000, index: 0 }]);
        let expect = |index| Expect { rank: 3, offset: 0, count: 1000, from: 3, index };
        assert_eq!(pattern.check(&mut memory, &[expect(0)]).0, 0);
        assert!(pattern.check(&mut memory, &[expect(1)]).0 > 900);
        memory.flip(3, 1234);
        assert_eq!(pattern.check(&mut memory, &[expect(0)]).0, 1);
    }
}
