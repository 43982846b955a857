//! Division by a number that stays the same, without dividing.

/// A divisor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reciprocal {
    by: u64,
    /// 2⁶⁴ ÷ `by`, rounded up.
    inverse: u64,
}

impl Reciprocal {
    /// Divides by `by`, which is at least 2.
    pub(crate) const fn new(by: u64) -> Reciprocal {
        Reciprocal { by, inverse: u64::MAX / by + 1 }
    }

    /// `number` ÷ `by`, rounded up. Exact where the product of the two is below 2⁶⁴.
    #[inline]
    pub(crate) const fn div_ceil(self, number: u64) -> u64 {
        (((number + self.by - 1) as u128 * self.inverse as u128) >> u64::BITS) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_division(by in 2u64..1 << 16, number in 0u64..1 << 47, near in 0u64..1 << 31) {
            for number in [number, near * by, (near * by).saturating_sub(1), near * by + 1] {
                prop_assert_eq!(Reciprocal::new(by).div_ceil(number), number.div_ceil(by));
            }
        }
    }
}
