//! Where values are rounded to integers, so that their sums do not depend on their order.

use super::accumulator::{binary_order, power_of_two, times_power_of_two};
use super::moments::{Extent, Moments};
use crate::Float;
use crate::simd::{BLOCK, wide};

/// Binary digits that a sum of this many numbers can grow by.
#[inline]
pub(super) fn headroom(count: u64) -> i32 {
    (u64::BITS - count.saturating_sub(1).leading_zeros()).cast_signed()
}

/// Digits of a value on its grid. With so many, adding a float rounds to it: see [`Grid::round`].
pub(super) const DIGITS: i32 = 51;

/// Values from which on several are squared at once.
const MANY: usize = 64;

/// A float from which on all are whole, in the middle of those of its binary order.
pub(super) const WHOLE: f64 = 1.5 * (1_u64 << 52) as f64;

/// `2^26 a + b`: halves whose products are those of 32 bits, of which processors make several at once.
#[inline(always)]
pub(super) fn halves(value: i64) -> [i64; 2] {
    [i64::from((value >> 26) as i32), i64::from((value & ((1 << 26) - 1)) as i32)]
}

/// The whole number next to one that is at most `2^51` in size.
#[inline(always)]
pub(super) fn nearest(value: f64) -> i64 {
    (value + WHOLE).to_bits().cast_signed() - WHOLE.to_bits().cast_signed()
}

/// The sum `2^52 high + low` as a float.
#[inline(always)]
pub(super) fn squares(high: i64, low: i64) -> f64 {
    high as f64 * (1_u64 << 52) as f64 + low as f64
}

/// Where values are rounded to integers: multiples of a power of two, relative to an origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(super) origin: f64,
    /// A value's distance from the origin, times this power of two, is an integer; in two factors, for it can exceed a float.
    scale: [f64; 2],
    pub(super) exponent: i32,
}

impl Grid {
    /// The finest grid on which sums of squares of these values fit an `i128`.
    #[inline]
    pub(crate) fn of(extent: Extent) -> Self {
        let origin = extent.origin();
        let furthest = (extent.most - origin).abs().max((extent.least - origin).abs());
        let headroom = headroom(extent.count);
        let digits = DIGITS.min((126 - headroom) / 2);
        let exponent = digits - 1 - binary_order(furthest);
        let first = exponent.min(1000);
        Self { origin, scale: [power_of_two(first), power_of_two(exponent - first)], exponent }
    }

    /// The nearest integer: the difference of two floats of one binary order is that of their bits.
    #[inline]
    pub(crate) fn round(&self, value: f64) -> i64 {
        nearest((value - self.origin) * self.scale[0] * self.scale[1])
    }

    /// Sums of some of the values of the grid; those that are NaN are none.
    #[inline]
    pub(super) fn moments<T: Float>(&self, values: &[T]) -> Moments {
        let (mut first, mut second) = (0, 0);
        for few in values.chunks(BLOCK) {
            // Sums of few values fit 64 bits, as the values of all grids do.
            let mut sum = 0;
            if few.len() >= MANY {
                let mut numbers = [0.0; BLOCK];
                T::read(few, &mut numbers[..few.len()]);
                (sum, second) = self.add_many(&numbers[..few.len()], second);
            } else {
                for value in few {
                    let value = if value.to_f64().is_nan() { 0 } else { self.round(value.to_f64()) };
                    sum += value;
                    second += i128::from(value) * i128::from(value);
                }
            }
            first += i128::from(sum);
        }
        Moments { weight: 0, first, second }
    }

    /// The sum of at most [`BLOCK`] values, and what is known already with their squares added.
    ///
    /// A value `2^26 a + b` has the square `2^52 a² + 2^27 a b + b²`; products of so few values add up to no more than 64 bits
    /// hold.
    #[inline(never)]
    pub(super) fn add_many(&self, numbers: &[f64], squares: i128) -> (i64, i128) {
        let [sum, high, middle, low] = wide(
            #[inline(always)]
            || {
                let mut sums = [0_i64; 4];
                for &number in numbers {
                    let value = self.round(if number.is_nan() { self.origin } else { number });
                    let [a, b] = halves(value);
                    sums[0] += value;
                    sums[1] += a * a;
                    sums[2] += a * b;
                    sums[3] += b * b;
                }
                sums
            },
        );
        (sum, squares + (i128::from(high) << 52) + (i128::from(middle) << 27) + i128::from(low))
    }

    /// The mean of so many values of the grid, of the sum of their integers.
    #[inline]
    pub(crate) fn mean(&self, count: u64, sum: i128) -> f64 {
        self.origin + times_power_of_two(sum as f64 / count as f64, -self.exponent)
    }
}
