//! Where values are rounded to integers, so that their sums do not depend on their order.

use super::accumulator::{binary_order, power_of_two, times_power_of_two};
use super::extent::Extent;

/// Binary digits that a sum of this many numbers can grow by.
#[inline]
pub(super) fn headroom(count: u64) -> i32 {
    (u64::BITS - count.saturating_sub(1).leading_zeros()).cast_signed()
}

/// Digits of a value on its grid. With this number, adding a float rounds to it: see [`Grid::round`].
pub(super) const DIGITS: i32 = 51;

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

    /// Return the mean of `count` values of the grid from the sum of their integers.
    #[inline]
    pub(crate) fn mean(&self, count: u64, sum: i128) -> f64 {
        self.origin + times_power_of_two(sum as f64 / count as f64, -self.exponent)
    }
}
