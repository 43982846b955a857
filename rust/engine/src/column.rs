//! Whole numbers of many entries, in as few bytes as they need.

/// A column. Most programs repeat few values: what a column takes is what its largest number needs,
/// and nothing where all are equal.
#[derive(Clone, Debug)]
pub enum Column {
    /// So many times the same number; an absent column is no times 0.
    Same(u64, usize),
    /// What the column holds again and again, up to so many numbers.
    Repeated(Box<Column>, usize),
    /// Numbers that end in so many 0 bits: what is above those.
    Scaled(Box<Column>, u32),
    /// Below 2^8.
    Bytes(Vec<u8>),
    /// Below 2^16.
    Shorts(Vec<u16>),
    /// Below 2^32.
    Words(Vec<u32>),
    /// All others.
    Longs(Vec<u64>),
}

impl Default for Column {
    fn default() -> Column {
        Column::Same(0, 0)
    }
}

impl Column {
    /// Goes through `values` twice.
    pub fn of(values: impl ExactSizeIterator<Item = u64> + Clone) -> Column {
        let (least, most, bits) = values
            .clone()
            .fold((u64::MAX, 0, 0), |(least, most, bits), value| (value.min(least), value.max(most), value | bits));
        let zeros = if bits == 0 { 0 } else { bits.trailing_zeros() };
        if least >= most {
            return Column::Same(most, values.len());
        }
        if width(most >> zeros) < width(most) {
            return Column::Scaled(Box::new(Column::plain(values.map(|value| value >> zeros), most >> zeros)), zeros);
        }
        Column::plain(values, most)
    }

    fn plain(values: impl Iterator<Item = u64>, most: u64) -> Column {
        match width(most) {
            1 => Column::Bytes(values.map(|value| value as u8).collect()),
            2 => Column::Shorts(values.map(|value| value as u16).collect()),
            4 => Column::Words(values.map(|value| value as u32).collect()),
            _ => Column::Longs(values.collect()),
        }
    }

    /// The same, kept once if every rank of `entries` entries has the same numbers.
    pub fn of_ranks(values: impl ExactSizeIterator<Item = u64> + Clone, entries: usize) -> Column {
        let (len, first) = (values.len(), values.clone().take(entries));
        if entries > 0
            && len > entries
            && values.clone().skip(entries).zip(values.clone()).all(|(value, before)| value == before)
        {
            return match Column::of(first) {
                Column::Same(value, _) => Column::Same(value, len),
                first => Column::Repeated(Box::new(first), len),
            };
        }
        Column::of(values)
    }

    /// Numbers in it.
    pub const fn len(&self) -> usize {
        match self {
            Column::Same(_, len) | Column::Repeated(_, len) => *len,
            Column::Scaled(above, _) => above.len(),
            Column::Bytes(values) => values.len(),
            Column::Shorts(values) => values.len(),
            Column::Words(values) => values.len(),
            Column::Longs(values) => values.len(),
        }
    }

    /// Whether it is absent.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number `i`; of an absent column 0.
    #[inline]
    pub fn get(&self, i: usize) -> u64 {
        match self {
            Column::Same(value, _) => *value,
            Column::Repeated(first, _) => first.get(i % first.len()),
            Column::Scaled(above, zeros) => above.get(i) << zeros,
            Column::Bytes(values) => values[i].into(),
            Column::Shorts(values) => values[i].into(),
            Column::Words(values) => values[i].into(),
            Column::Longs(values) => values[i],
        }
    }

    /// All numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// The numbers in places of their own, for [`Column::decrement`].
    pub(crate) fn spread(&self) -> Column {
        Column::plain(self.iter(), self.iter().max().unwrap_or(0))
    }

    /// Takes 1 off number `i`, which is not 0 and is in a place of its own, and says what is left.
    #[inline]
    pub(crate) fn decrement(&mut self, i: usize) -> u64 {
        match self {
            Column::Same(..) | Column::Repeated(..) | Column::Scaled(..) => {}
            Column::Bytes(values) => values[i] -= 1,
            Column::Shorts(values) => values[i] -= 1,
            Column::Words(values) => values[i] -= 1,
            Column::Longs(values) => values[i] -= 1,
        }
        self.get(i)
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

    #[test]
    fn a_column_reads_as_what_it_was_made_of() {
        for bits in 1..=64 {
            let values: Vec<u64> =
                (1..20u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)).chain([0]).collect();
            let column = Column::of(values.iter().copied());
            assert_eq!(column.iter().collect::<Vec<_>>(), values);
            let thrice = values.repeat(3);
            let column = Column::of_ranks(thrice.iter().copied(), values.len());
            assert!(matches!(&column, Column::Repeated(first, 60) if first.len() == 20));
            assert_eq!(column.iter().collect::<Vec<_>>(), thrice);
            assert_eq!(column.spread().iter().collect::<Vec<_>>(), thrice);
            let first_rank_empty = Column::of_ranks(thrice.iter().copied(), 0);
            assert_eq!(first_rank_empty.iter().collect::<Vec<_>>(), thrice);
        }
        assert_eq!(Column::default().get(7), 0);
    }

    #[test]
    fn a_column_takes_what_its_largest_number_needs() {
        fn width(column: &Column) -> usize {
            match column {
                Column::Same(..) => 0,
                Column::Repeated(numbers, _) | Column::Scaled(numbers, _) => width(numbers),
                Column::Bytes(_) => 1,
                Column::Shorts(_) => 2,
                Column::Words(_) => 4,
                Column::Longs(_) => 8,
            }
        }
        let of = |most: u64| width(&Column::of([0, 1.min(most), most].into_iter()));
        let most = [0, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 32];
        assert_eq!(most.map(of), [0, 1, 2, 2, 4, 4, 8]);
        let offsets = Column::of((0..300u32).map(|i| u64::from(i) << 20));
        assert_eq!((width(&offsets), offsets.get(299)), (2, 299 << 20));
    }
}
