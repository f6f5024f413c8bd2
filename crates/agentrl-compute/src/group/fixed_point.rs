//! An order-independent sum of floats: integers on a grid that is chosen before the first addition.

/// Bits of an `i128` besides its sign bit and the 53 significand bits of a float.
const SPARE: i32 = 128 - 1 - 53;

/// A sum in fixed point.
///
/// The grid depends only on the largest magnitude and the number of values. It is the finest grid on which the sum
/// cannot overflow: its step is `2^-126 · count` times the power of two of the largest value, with `count` rounded up
/// to a power of two. For a million values that is 106 binary digits, so values within 53 binary orders of the largest
/// are exact. If all values are exact, so is the sum; it is rounded once, on reading. Addition of integers is
/// associative, so any order and any split over threads gives the same bits. Every finite float fits, even if
/// subnormal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accumulator {
    sum: i128,
    /// The step of the grid is two to this power.
    exponent: i32,
}

impl Accumulator {
    /// Create an empty sum for at most `count` values of magnitude at most `largest`.
    pub(crate) fn new(largest: f64, count: u64) -> Self {
        let headroom = (u64::BITS - count.saturating_sub(1).leading_zeros()).cast_signed();
        Self { sum: 0, exponent: parts(largest).1 - (SPARE - headroom) }
    }

    /// Add a value, rounded to the grid.
    pub(crate) fn add(&mut self, value: f64) {
        let (digits, exponent) = parts(value);
        let shift = exponent - self.exponent;
        self.sum += if shift >= 0 {
            i128::from(digits) << shift
        } else if shift > -63 {
            // Add half a step, then round down: the result is the nearest step.
            i128::from((digits + (1 << (-shift - 1))) >> -shift)
        } else {
            0
        };
    }

    /// Add another sum. Both must have been created for the same magnitude and count, which bound their total.
    pub(crate) fn merge(&mut self, other: &Self) {
        debug_assert_eq!(self.exponent, other.exponent);
        self.sum += other.sum;
    }

    /// Return the sum in steps of the grid.
    pub(crate) fn integer(&self) -> i128 {
        self.sum
    }

    /// Return another sum on the same grid.
    pub(crate) fn with(self, sum: i128) -> Self {
        Self { sum, ..self }
    }

    /// Return the sum divided by a number; infinite if the result is too large for a float.
    pub(crate) fn divided_by(&self, divisor: f64) -> f64 {
        times_power_of_two(self.sum as f64 / divisor, self.exponent)
    }
}

/// Split a finite float into its integer digits and binary exponent: `value = digits · 2^exponent`.
#[inline]
fn parts(value: f64) -> (i64, i32) {
    let bits = value.to_bits();
    let fraction = (bits & ((1 << 52) - 1)).cast_signed();
    let (digits, exponent) = match (bits >> 52 & 0x7ff) as i32 {
        0 => (fraction, -1074),
        biased => (fraction | 1 << 52, biased - 1075),
    };
    (if value.is_sign_negative() { -digits } else { digits }, exponent)
}

/// Return the exponent of the largest power of two that is at most a finite, positive float; at least the exponent of
/// the smallest normal float.
#[inline]
pub(crate) fn binary_order(value: f64) -> i32 {
    parts(value).1 + 52
}

/// Multiply a float by a power of two of any size.
#[inline]
pub(crate) fn times_power_of_two(value: f64, exponent: i32) -> f64 {
    if (-1022..=1023).contains(&exponent) { value * power_of_two(exponent) } else { in_steps(value, exponent) }
}

/// Return `2^exponent`, for an exponent of normal floats.
#[inline]
pub(crate) fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cold]
fn in_steps(mut value: f64, mut exponent: i32) -> f64 {
    while exponent > 1023 {
        value *= power_of_two(1023);
        exponent -= 1023;
    }
    while exponent < -1022 {
        value *= power_of_two(-1022);
        exponent += 1022;
    }
    value * power_of_two(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(values: &[f64]) -> f64 {
        let largest = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let mut sum = Accumulator::new(largest, values.len() as u64);
        for &value in values {
            sum.add(value);
        }
        sum.divided_by(1.0)
    }

    #[test]
    fn powers_of_two_of_any_size() {
        for exponent in -1074..1024 {
            let bits = if exponent < -1022 { 1 << (exponent + 1074) } else { ((exponent + 1023) as u64) << 52 };
            assert_eq!(times_power_of_two(1.0, exponent).to_bits(), bits);
        }
        assert_eq!(times_power_of_two(1.0, -1075).to_bits(), 0);
        assert!(times_power_of_two(1.0, 1024).is_infinite());
        assert_eq!((binary_order(1.0), binary_order(1.75), binary_order(0.5), binary_order(5e-324)), (0, 0, -1, -1022));
    }

    #[test]
    fn values_that_cancel_in_floats_do_not_cancel_here() {
        assert_eq!(sum(&[1e16, 1.0, -1e16]).to_bits(), 1.0_f64.to_bits());
        assert_eq!(sum(&[0.1; 10]).to_bits(), 1.0_f64.to_bits());
        assert_eq!(sum(&[f64::MAX, -f64::MAX, 1e300]).to_bits(), 1e300_f64.to_bits());
        assert_eq!(sum(&[5e-324, 5e-324]).to_bits(), 2);
        assert_eq!(sum(&[]).to_bits(), 0);
        assert_eq!(sum(&[-0.0]).to_bits(), 0);
    }

    #[test]
    fn digits_below_the_grid_are_rounded_away() {
        // Three values of at most 1: the step is 2^-124.
        let [kept, half, lost] = [-124, -125, -126].map(|exponent| times_power_of_two(1.0, exponent));
        assert_eq!(sum(&[1.0, kept + lost, -1.0]).to_bits(), kept.to_bits());
        assert_eq!(sum(&[1.0, kept + half, -1.0]).to_bits(), (2.0 * kept).to_bits());
        assert_eq!(sum(&[1.0, lost, -1.0]).to_bits(), 0);
        assert_eq!(sum(&[1.0, 1e-300, -1.0]).to_bits(), 0);
    }

    #[test]
    fn the_largest_values_do_not_overflow_the_integer() {
        for count in [1_u64, 2, 3, 4, 1 << 20, (1 << 20) + 1, 1 << 40] {
            let mut sum = Accumulator::new(f64::MAX, count);
            sum.add(f64::MAX);
            // Add the largest value as often as announced.
            let full = sum.sum.checked_mul(i128::from(count));
            assert!(full.is_some(), "{count}");
            let mean = Accumulator { sum: full.unwrap_or(0), ..sum }.divided_by(count as f64);
            assert!((mean / f64::MAX - 1.0).abs() < 1e-15, "{count}");
        }
    }

    proptest! {
        #[test]
        fn parts_make_the_value(value in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO) {
            let (digits, exponent) = parts(value);
            prop_assert!(digits.abs() < 1 << 53);
            prop_assert!((times_power_of_two(digits as f64, exponent) - value).abs() == 0.0);
        }

        /// Compare with exact integer arithmetic: multiples of 1/1024 below 2^40.
        #[test]
        fn sums_are_exact_where_a_float_can_hold_them(values in prop::collection::vec(-1_i64 << 50..1_i64 << 50, 0..9)) {
            let floats: Vec<f64> = values.iter().map(|&value| value as f64 / 1024.0).collect();
            let exact = values.iter().sum::<i64>() as f64 / 1024.0;
            prop_assert_eq!(sum(&floats).to_bits(), (exact + 0.0).to_bits());
        }

        #[test]
        fn any_order_gives_the_same_bits(
            values in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL, 0..40),
            by in any::<u64>(),
        ) {
            let mut shuffled = values.clone();
            shuffled.sort_by_key(|value| crate::rng::structural_seed(&[by, value.to_bits()]));
            prop_assert_eq!(sum(&values).to_bits(), sum(&shuffled).to_bits());
        }
    }
}
