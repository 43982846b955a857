//! Whole numbers of many entries, in as few bytes as they need.

/// A column. Most programs repeat few values: what a column takes is what its largest number needs without the 0 bits
/// that all end in, only those of the first rank if all ranks have the same, and nothing where all are equal.
#[derive(Clone, Debug)]
pub struct Column {
    /// From the first on; those behind repeat them.
    numbers: Numbers,
    /// How many 0 bits have been cut off.
    zeros: u32,
    len: usize,
}

#[derive(Clone, Debug)]
enum Numbers {
    /// All; an absent column is no times 0.
    Same(u64),
    /// Below 2^8.
    Bytes(Vec<u8>),
    /// Below 2^16.
    Shorts(Vec<u16>),
    /// Below 2^32.
    Words(Vec<u32>),
    /// All others.
    Longs(Vec<u64>),
}

impl Numbers {
    fn of(values: impl Iterator<Item = u64>, most: u64) -> Numbers {
        match width(most) {
            1 => Numbers::Bytes(values.map(|value| value as u8).collect()),
            2 => Numbers::Shorts(values.map(|value| value as u16).collect()),
            4 => Numbers::Words(values.map(|value| value as u32).collect()),
            _ => Numbers::Longs(values.collect()),
        }
    }
}

impl Default for Column {
    fn default() -> Column {
        Column { numbers: Numbers::Same(0), zeros: 0, len: 0 }
    }
}

impl Column {
    /// Goes through `values` twice.
    pub fn of(values: impl ExactSizeIterator<Item = u64> + Clone) -> Column {
        let len = values.len();
        let (least, most, bits) = values
            .clone()
            .fold((u64::MAX, 0, 0), |(least, most, bits), value| (value.min(least), value.max(most), value | bits));
        if least >= most {
            return Column { numbers: Numbers::Same(most), zeros: 0, len };
        }
        let zeros = bits.trailing_zeros();
        if width(most >> zeros) < width(most) {
            return Column { numbers: Numbers::of(values.map(|value| value >> zeros), most >> zeros), zeros, len };
        }
        Column { numbers: Numbers::of(values, most), zeros: 0, len }
    }

    /// The same, kept once if every rank of `entries` entries has the same numbers.
    pub fn of_ranks(values: impl ExactSizeIterator<Item = u64> + Clone, entries: usize) -> Column {
        let len = values.len();
        if entries > 0
            && len > entries
            && values.clone().skip(entries).zip(values.clone()).all(|(value, before)| value == before)
        {
            return Column { len, ..Column::of(values.take(entries)) };
        }
        Column::of(values)
    }

    /// Numbers in it.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it is absent.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number `i`; of an absent column 0.
    #[inline]
    pub fn get(&self, i: usize) -> u64 {
        debug_assert!(i < self.len || self.is_empty(), "number {i} of {}", self.len);
        let above = match &self.numbers {
            Numbers::Same(value) => return *value,
            Numbers::Bytes(values) => again(values, i).into(),
            Numbers::Shorts(values) => again(values, i).into(),
            Numbers::Words(values) => again(values, i).into(),
            Numbers::Longs(values) => again(values, i),
        };
        above << self.zeros
    }

    /// All numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// The numbers in places of their own, for [`Column::decrement`].
    pub(crate) fn spread(&self) -> Column {
        let most = self.iter().max().unwrap_or(0);
        Column { numbers: Numbers::of(self.iter(), most), zeros: 0, len: self.len }
    }

    /// Takes 1 off number `i`, which is not 0 and is in a place of its own, and says what is left.
    #[inline]
    pub(crate) fn decrement(&mut self, i: usize) -> u64 {
        match &mut self.numbers {
            Numbers::Same(_) => {}
            Numbers::Bytes(values) => values[i] -= 1,
            Numbers::Shorts(values) => values[i] -= 1,
            Numbers::Words(values) => values[i] -= 1,
            Numbers::Longs(values) => values[i] -= 1,
        }
        self.get(i)
    }
}

/// Number `i` of what is repeated.
#[inline]
fn again<T: Copy>(values: &[T], i: usize) -> T {
    match values.get(i) {
        Some(&value) => value,
        None => values[i % values.len()],
    }
}

/// Bytes of a column's numbers up to `most`.
const fn width(most: u64) -> usize {
    match most {
        0..=0xFF => 1,
        0x100..=0xFFFF => 2,
        0x1_0000..=0xFFFF_FFFF => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(column: &Column) -> usize {
        match &column.numbers {
            Numbers::Same(_) => 0,
            Numbers::Bytes(numbers) => numbers.len(),
            Numbers::Shorts(numbers) => 2 * numbers.len(),
            Numbers::Words(numbers) => 4 * numbers.len(),
            Numbers::Longs(numbers) => 8 * numbers.len(),
        }
    }

    #[test]
    fn a_column_reads_as_what_it_was_made_of() {
        for bits in 1..=64 {
            let values: Vec<u64> =
                (1..20u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)).chain([0]).collect();
            let column = Column::of(values.iter().copied());
            assert_eq!(column.iter().collect::<Vec<_>>(), values);
            let thrice = values.repeat(3);
            let column = Column::of_ranks(thrice.iter().copied(), values.len());
            assert_eq!((bytes(&column), column.len()), (bytes(&Column::of(values.iter().copied())), 60));
            assert_eq!(column.iter().collect::<Vec<_>>(), thrice);
            assert_eq!(column.spread().iter().collect::<Vec<_>>(), thrice);
            let first_rank_empty = Column::of_ranks(thrice.iter().copied(), 0);
            assert_eq!(first_rank_empty.iter().collect::<Vec<_>>(), thrice);
        }
        assert_eq!(Column::default().get(7), 0);
    }

    #[test]
    fn a_column_takes_what_its_largest_number_needs() {
        let of = |most: u64| bytes(&Column::of([0, 1.min(most), most].into_iter())) / 3;
        let most = [0, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 32];
        assert_eq!(most.map(of), [0, 1, 2, 2, 4, 4, 8]);
        let offsets = Column::of((0..300u32).map(|i| u64::from(i) << 20));
        assert_eq!((bytes(&offsets), offsets.get(299)), (600, 299 << 20));
    }
}
