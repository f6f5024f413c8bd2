//! The grid on which values are rounded to integers, so that their sums do not depend on their order.

use super::extent::Extent;
use super::fixed_point::{binary_order, power_of_two, times_power_of_two};

/// Return the number of binary digits by which a sum of `count` numbers can grow.
#[inline]
pub(super) fn headroom(count: u64) -> i32 {
    (u64::BITS - count.saturating_sub(1).leading_zeros()).cast_signed()
}

/// Binary digits of a value on its grid. With this number, adding a float rounds the value: see [`Grid::round`].
pub(super) const DIGITS: i32 = 51;

/// `1.5 · 2^52`: floats between `2^52` and `2^53` are integers, so adding this rounds a small number to an integer.
pub(super) const WHOLE: f64 = 1.5 * (1_u64 << 52) as f64;

/// Split `value = 2^26 a + b` into `a` and `b`. Their products are 32-bit products, of which SIMD computes several at
/// once.
#[inline(always)]
pub(super) fn halves(value: i64) -> [i64; 2] {
    [i64::from((value >> 26) as i32), i64::from((value & ((1 << 26) - 1)) as i32)]
}

/// Round a number of magnitude at most `2^51` to the nearest integer.
#[inline(always)]
pub(super) fn nearest(value: f64) -> i64 {
    (value + WHOLE).to_bits().cast_signed() - WHOLE.to_bits().cast_signed()
}

/// Return the sum `2^52 high + low` as a float.
#[inline(always)]
pub(super) fn squares(high: i64, low: i64) -> f64 {
    high as f64 * (1_u64 << 52) as f64 + low as f64
}

/// Grid on which values are rounded to integers: multiples of a power of two, relative to an origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(super) origin: f64,
    /// Power of two by which a value's distance from the origin is multiplied before rounding. It has two factors,
    /// because it can overflow a float.
    scale: [f64; 2],
    pub(super) exponent: i32,
}

impl Grid {
    /// Return the finest grid on which the sums of squares of these values fit an `i128`.
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

    /// Round to the nearest integer of the grid. The difference of two floats of one binary order is the difference of
    /// their bits.
    #[inline]
    pub(crate) fn round(&self, value: f64) -> i64 {
        nearest((value - self.origin) * self.scale[0] * self.scale[1])
    }

    /// Return the mean of `count` values of the grid from the sum of their integers.
    #[inline]
    pub(crate) fn mean(&self, count: u64, sum: i128) -> f64 {
        self.origin + times_power_of_two(sum as f64 / count as f64, -self.exponent)
    }
}
