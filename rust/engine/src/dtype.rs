//! Element types and their sums.
#![expect(clippy::float_arithmetic, reason = "payload is summed in its own type; nothing is decided by it")]

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements that are turned into singles at once, which takes one look at what the processor can.
const BATCH: usize = 128;

/// Element type of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single.
    Float32,
    /// IEEE double.
    Float64,
    /// bfloat16; summed in single, rounded to nearest even.
    Bfloat16,
    /// IEEE half; summed in single, rounded to nearest even.
    Float16,
    /// 32-bit integer, wrapping.
    Int32,
    /// 8-bit integer, wrapping.
    Int8,
}

impl Dtype {
    /// All types, by name.
    pub const NAMES: [(&'static str, Dtype); 6] = [
        ("float32", Dtype::Float32),
        ("float64", Dtype::Float64),
        ("bfloat16", Dtype::Bfloat16),
        ("float16", Dtype::Float16),
        ("int32", Dtype::Int32),
        ("int8", Dtype::Int8),
    ];

    /// Bytes an element.
    pub const fn size(self) -> usize {
        match self {
            Dtype::Float32 | Dtype::Int32 => 4,
            Dtype::Float64 => 8,
            Dtype::Bfloat16 | Dtype::Float16 => 2,
            Dtype::Int8 => 1,
        }
    }

    /// `sum[i] = augend[i] + addend[i]`, in this order of operands.
    pub fn add(self, sum: &mut [u8], augend: &[u8], addend: &[u8]) {
        match self {
            Dtype::Float32 => {
                each(sum, augend, addend, |a, b| (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes())
            }
            Dtype::Float64 => {
                each(sum, augend, addend, |a, b| (f64::from_le_bytes(a) + f64::from_le_bytes(b)).to_le_bytes())
            }
            Dtype::Bfloat16 => bfloats(sum, augend, addend),
            Dtype::Float16 => halves(sum, augend, addend),
            Dtype::Int32 => {
                each(sum, augend, addend, |a, b| {
                    i32::from_le_bytes(a).wrapping_add(i32::from_le_bytes(b)).to_le_bytes()
                });
            }
            Dtype::Int8 => each(sum, augend, addend, |[a], [b]| [a.wrapping_add(b)]),
        }
    }

    /// Writes the integer `value`, which the type must represent (or wrap), at `target[..size]`.
    #[inline]
    pub fn store(self, target: &mut [u8], value: u32) {
        match self {
            Dtype::Float32 => target.copy_from_slice(&(value as f32).to_le_bytes()),
            Dtype::Float64 => target.copy_from_slice(&f64::from(value).to_le_bytes()),
            Dtype::Bfloat16 => target.copy_from_slice(&bf16::from_f32(value as f32).to_le_bytes()),
            Dtype::Float16 => target.copy_from_slice(&f16::from_f32(value as f32).to_le_bytes()),
            Dtype::Int32 => target.copy_from_slice(&value.to_le_bytes()),
            Dtype::Int8 => target[0] = value as u8,
        }
    }

    /// Largest integer n such that all of 0..=n are exact; wrapping types have no limit.
    pub const fn exact_limit(self) -> u64 {
        match self {
            Dtype::Float32 => 1 << 24,
            Dtype::Float64 => 1 << 53,
            Dtype::Bfloat16 => 1 << 8,
            Dtype::Float16 => 1 << 11,
            Dtype::Int32 | Dtype::Int8 => u64::MAX,
        }
    }
}

#[inline]
fn each<const N: usize>(sum: &mut [u8], augend: &[u8], addend: &[u8], add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (augend, addend) = (augend.as_chunks().0, addend.as_chunks().0);
    for (sum, (&a, &b)) in sum.as_chunks_mut().0.iter_mut().zip(augend.iter().zip(addend)) {
        *sum = add(a, b);
    }
}

/// Sums of bfloat16.
fn bfloats(sum: &mut [u8], augend: &[u8], addend: &[u8]) {
    each(sum, augend, addend, two_bfloats);
    let odd = sum.len() / 4 * 4;
    each(&mut sum[odd..], &augend[odd..], &addend[odd..], |[a, b], [c, d]| {
        let [low, high, ..] = two_bfloats([a, b, 0, 0], [c, d, 0, 0]);
        [low, high]
    });
}

/// Two sums at once: either half of a word is a single's upper half, and is one with zeroes below.
#[inline]
fn two_bfloats(a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
    const UPPER: u32 = 0xffff_0000;
    let (a, b) = (u32::from_le_bytes(a), u32::from_le_bytes(b));
    let lower = nearest(f32::from_bits(a << 16) + f32::from_bits(b << 16));
    let upper = nearest(f32::from_bits(a & UPPER) + f32::from_bits(b & UPPER));
    (lower >> 16 | upper & UPPER).to_le_bytes()
}

/// In the upper half, the bfloat16 nearest to a single. Without a branch, so that the compiler can take many at once.
#[inline]
fn nearest(value: f32) -> u32 {
    let bits = value.to_bits();
    if value.is_nan() { bits | 0x40_0000 } else { bits.wrapping_add(0x7fff + (bits >> 16 & 1)) }
}

/// Sums of IEEE halves.
fn halves(sum: &mut [u8], augend: &[u8], addend: &[u8]) {
    let (mut halves, mut sums, mut singles) = ([f16::ZERO; BATCH], [0.0; BATCH], [0.0; BATCH]);
    let addends = augend.chunks(2 * BATCH).zip(addend.chunks(2 * BATCH));
    for (sum, (augend, addend)) in sum.chunks_mut(2 * BATCH).zip(addends) {
        let n = sum.len() / 2;
        let mut decode = |encoded: &[u8], into: &mut [f32]| {
            halves.iter_mut().zip(encoded.as_chunks().0).for_each(|(half, &bytes)| *half = f16::from_le_bytes(bytes));
            halves[..n].convert_to_f32_slice(into);
        };
        decode(augend, &mut sums[..n]);
        decode(addend, &mut singles[..n]);
        sums.iter_mut().zip(&singles).for_each(|(sum, single)| *sum += single);
        halves[..n].convert_from_f32_slice(&sums[..n]);
        sum.as_chunks_mut().0.iter_mut().zip(&halves).for_each(|(bytes, half)| *bytes = half.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of all numbers of two bytes and of `others` are those of the library's singles, many at once.
    fn compare(dtype: Dtype, others: &[u16], single: fn(u16) -> f32, encoded: fn(f32) -> u16) {
        let all = || 0..=u16::MAX;
        let others = others.iter().map(|&b| -> Vec<u16> { all().map(|_| b).collect() });
        for other in others.chain([all().collect(), all().map(|a| a ^ 0x8000).collect()]) {
            let augend: Vec<u8> = all().flat_map(u16::to_le_bytes).collect();
            let addend: Vec<u8> = other.iter().copied().flat_map(u16::to_le_bytes).collect();
            let mut sums = vec![0; augend.len()];
            dtype.add(&mut sums, &augend, &addend);
            for (a, (&b, sum)) in all().zip(other.iter().zip(sums.as_chunks().0)) {
                let (sum, right) = (u16::from_le_bytes(*sum), encoded(single(a) + single(b)));
                // Which of two NaNs a sum hands on is nobody's promise.
                let equal = sum == right || single(sum).is_nan() && single(right).is_nan();
                assert!(equal, "{dtype:?} {a:#x} + {b:#x}: {sum:#x}, {right:#x}");
            }
        }
    }

    #[test]
    fn sums_of_two_bytes_are_those_of_the_library() {
        let bfloat16 = [0, 1, 0x8000, 0x3f80, 0x3f81, 0xbf7f, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81];
        compare(Dtype::Bfloat16, &bfloat16, |a| bf16::from_bits(a).to_f32(), |sum| bf16::from_f32(sum).to_bits());
        let float16 = [0, 1, 0x8000, 0x3c00, 0x3c01, 0xbbff, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x7c01];
        compare(Dtype::Float16, &float16, |a| f16::from_bits(a).to_f32(), |sum| f16::from_f32(sum).to_bits());
    }

    #[test]
    fn an_odd_number_of_bfloat16_is_summed_to_the_last() {
        let encode = |values: [f32; 3]| values.map(|value| bf16::from_f32(value).to_le_bytes()).concat();
        let mut sum = [0; 6];
        Dtype::Bfloat16.add(&mut sum, &encode([1.0, -2.0, 3.0]), &encode([0.5, 2.0, 4.0]));
        assert_eq!(sum, *encode([1.5, 0.0, 7.0]));
    }

    #[test]
    fn float16_sums_are_rounded_to_nearest_even_once() {
        let add = |a: f32, b: f32| {
            let mut sum = [0; 2];
            Dtype::Float16.add(&mut sum, &f16::from_f32(a).to_le_bytes(), &f16::from_f32(b).to_le_bytes());
            f16::from_le_bytes(sum).to_f32()
        };
        let two_to = |exponent: i32| 2f32.powi(exponent);
        assert_eq!(add(2048.0, 1.0), 2048.0);
        assert_eq!(add(2050.0, 1.0), 2052.0);
        assert_eq!(add(1.0, two_to(-11)), 1.0);
        assert_eq!(add(1.0, two_to(-11) + two_to(-14)), 1.0 + two_to(-10));
        assert_eq!((add(two_to(-24), two_to(-24)), add(65504.0, 16.0)), (two_to(-23), f32::INFINITY));
    }
}
