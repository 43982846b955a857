//! Registered memory of all ranks in a run with payload.

use std::io;

use memmap2::MmapMut;

use crate::dtype::Dtype;

/// One flat range of bytes a rank.
#[derive(Debug)]
pub struct Memory {
    ranks: Vec<MmapMut>,
    dtype: Dtype,
}

impl Memory {
    /// Zeroed memory, on huge pages where there are any: a run touches all of it, in small pieces.
    ///
    /// # Errors
    /// What the operating system says if it has not that much.
    pub fn new(ranks: usize, bytes: usize, dtype: Dtype) -> io::Result<Memory> {
        let map = |_| {
            let map = MmapMut::map_anon(bytes.max(1))?;
            #[cfg(target_os = "linux")]
            // Only a hint: a kernel without huge pages refuses, and small ones do as well.
            let _ = map.advise(memmap2::Advice::HugePage);
            Ok(map)
        };
        Ok(Memory { ranks: (0..ranks).map(map).collect::<io::Result<_>>()?, dtype })
    }

    /// Memory as from [`Memory::new`], in the pages of an earlier run: the system hands out fresh
    /// pages more slowly than a run fills them.
    ///
    /// # Errors
    /// As [`Memory::new`], if the shape is another one.
    pub fn renew(self, ranks: usize, bytes: usize, dtype: Dtype) -> io::Result<Memory> {
        if self.ranks.len() != ranks || self.ranks.iter().any(|rank| rank.len() != bytes.max(1)) {
            drop(self);
            return Memory::new(ranks, bytes, dtype);
        }
        let mut renewed = Memory { dtype, ..self };
        renewed.ranks.iter_mut().for_each(|rank| rank.fill(0));
        Ok(renewed)
    }

    /// Element type.
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// A rank's bytes.
    pub fn rank(&self, rank: usize) -> &[u8] {
        &self.ranks[rank]
    }

    /// A rank's bytes, to write.
    pub fn rank_mut(&mut self, rank: usize) -> &mut [u8] {
        &mut self.ranks[rank]
    }

    /// Copies what a packet carries from the sender's memory to the receiver's.
    pub fn place(&mut self, from: (usize, u64), to: (usize, u64), len: usize) {
        let Ok([source, target]) = self.ranks.get_disjoint_mut([from.0, to.0]) else {
            return;
        };
        target[to.1 as usize..][..len].copy_from_slice(&source[from.1 as usize..][..len]);
    }

    /// The 8 bytes at `address`, as a little-endian number: what atomics work on.
    pub fn word(&self, rank: usize, address: u64) -> u64 {
        let bytes = self.ranks[rank][address as usize..].first_chunk();
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Writes 8 bytes.
    pub fn set_word(&mut self, rank: usize, address: u64, value: u64) {
        self.ranks[rank][address as usize..][..8].copy_from_slice(&value.to_le_bytes());
    }

    /// COPY inside a rank.
    pub fn copy(&mut self, rank: usize, source: u64, target: u64, len: usize) {
        self.ranks[rank].copy_within(source as usize..source as usize + len, target as usize);
    }

    /// SUM inside a rank: `target += source`. Ranges must not overlap.
    pub fn sum(&mut self, rank: usize, source: u64, target: u64, len: usize) {
        let bytes = &mut self.ranks[rank];
        let (source, target) = (source as usize, target as usize);
        if source < target {
            let (low, high) = bytes.split_at_mut(target);
            self.dtype.add(&mut high[..len], &low[source..][..len]);
        } else {
            let (low, high) = bytes.split_at_mut(source);
            self.dtype.add(&mut low[target..][..len], &high[..len]);
        }
    }

    /// Flips all bits of one byte: how a test shows that corruption is noticed.
    pub fn flip(&mut self, rank: usize, address: u64) {
        self.ranks[rank][address as usize] ^= 0xFF;
    }
}
