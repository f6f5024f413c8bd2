//! Mean and variance from integer sums on a grid that is chosen before the first addition.
//!
//! An [`Extent`] (count and range) fixes the grid, [`Moments`] are integer sums on it. Both merge exactly, so any order
//! of the rows and any split over threads or ranks gives the same bits. If the range of the values is far from zero,
//! they are taken relative to its middle, so a large offset costs no digits.

use super::extent::Extent;
use super::fixed_point::{Accumulator, binary_order, times_power_of_two};
use super::grid::{Grid, halves, headroom, nearest, squares};
use crate::Float;
use crate::simd::{BLOCK, keep, wide};

/// Smallest number of values that are squared with SIMD.
const SQUARED_AT_ONCE: usize = 64;

/// Sums of weights, values and squares on the grid of an [`Extent`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// Sum of the weights; 0 without weights.
    pub weight: i128,
    /// Sum of the values.
    pub first: i128,
    /// Sum of the squares.
    pub second: i128,
}

impl Moments {
    /// Return the sums of values on the grid of an extent that includes them.
    #[inline(never)]
    pub(crate) fn of<T: Float>(extent: Extent, values: &[T], weights: &[f64]) -> Self {
        if extent.count == 0 || extent.least >= extent.most && weights.is_empty() {
            return Self::default();
        }
        if weights.is_empty() {
            return grid_moments(&Grid::of(extent), values);
        }
        let units = WeightedGrid::of(extent);
        let [mut weight_sum, mut first, mut second] = [units.empty; 3];
        for (value, &weight) in values.iter().zip(weights) {
            let distance = (value.to_f64() - units.origin) * units.distance;
            let weight = weight * units.weight;
            weight_sum.add(weight);
            first.add(weight * distance);
            second.add(weight * distance * distance);
        }
        Self { weight: weight_sum.integer(), first: first.integer(), second: second.integer() }
    }

    /// Return the sums of the valid values on the grid of an extent that includes them.
    pub(crate) fn of_valid<T: Float>(extent: Extent, values: &[T], valid: Option<&[bool]>) -> Self {
        if extent.count == 0 || extent.least >= extent.most {
            return Self::default();
        }
        let grid = Grid::of(extent);
        let (mut numbers, mut found) = ([0.0; BLOCK], Self::default());
        for (place, values) in values.chunks(BLOCK).enumerate() {
            let numbers = &mut numbers[..values.len()];
            T::read(values, numbers);
            if let Some(valid) = valid {
                keep(numbers, &valid[place * BLOCK..][..values.len()]);
            }
            let (sum, second) = add_many(&grid, numbers, found.second);
            found = Self { first: found.first + i128::from(sum), second, ..found };
        }
        found
    }

    /// Return the sums of the values of both.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self { weight: self.weight + other.weight, first: self.first + other.first, second: self.second + other.second }
    }
}

/// Return the sums of values on a grid. NaN is skipped.
#[inline]
fn grid_moments<T: Float>(grid: &Grid, values: &[T]) -> Moments {
    let (mut first, mut second) = (0, 0);
    for few in values.chunks(BLOCK) {
        // Values of all grids have at most 51 digits, so the sum of a block fits 64 bits.
        let mut sum = 0;
        if few.len() >= SQUARED_AT_ONCE {
            let mut numbers = [0.0; BLOCK];
            T::read(few, &mut numbers[..few.len()]);
            (sum, second) = add_many(grid, &numbers[..few.len()], second);
        } else {
            for value in few {
                let value = if value.to_f64().is_nan() { 0 } else { grid.round(value.to_f64()) };
                sum += value;
                second += i128::from(value) * i128::from(value);
            }
        }
        first += i128::from(sum);
    }
    Moments { weight: 0, first, second }
}

/// Return the sum of at most [`BLOCK`] values, and `squares` with their squares added.
///
/// A value `2^26 a + b` has the square `2^52 a² + 2^27 a b + b²`. The sums of these products over a block fit 64 bits.
#[inline(never)]
fn add_many(grid: &Grid, numbers: &[f64], squares: i128) -> (i64, i128) {
    let [sum, high, middle, low] = wide(
        #[inline(always)]
        || {
            let mut sums = [0_i64; 4];
            for &number in numbers {
                let value = grid.round(if number.is_nan() { grid.origin } else { number });
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

/// Scaling of values and weights for weighted sums: both are multiplied by powers of two, to at most 2.
#[derive(Clone, Copy, Debug)]
struct WeightedGrid {
    origin: f64,
    /// Distances from the origin are below `2^(order + 1)`.
    order: i32,
    distance: f64,
    weight: f64,
    empty: Accumulator,
}

impl WeightedGrid {
    fn of(extent: Extent) -> Self {
        let origin = extent.origin();
        let furthest = (extent.most - origin).abs().max((extent.least - origin).abs());
        let order = binary_order(furthest);
        Self {
            origin,
            order,
            distance: times_power_of_two(1.0, -order),
            weight: times_power_of_two(1.0, -binary_order(extent.heaviest)),
            // A weight times two distances is at most 8.
            empty: Accumulator::new(8.0, extent.count),
        }
    }
}

/// Statistics of one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Number of votes.
    pub count: u64,
    /// Sum of the weights; the count without weights.
    pub weight: f64,
    /// Mean; NaN for a group without votes. Exactly the value if all values are equal.
    pub mean: f64,
    /// Standard deviation `sqrt(Σ w (x - mean)² / (Σ w - ddof))`; NaN if the divisor is not above 0. Exactly 0 if all
    /// values are equal.
    pub std: f64,
    /// Smallest value; NaN for a group without votes.
    pub least: f64,
    /// Largest value; NaN for a group without votes.
    pub most: f64,
}

impl Statistics {
    /// Return the statistics of all votes: the same as [`finish`](Self::finish) of their sums, with the grid computed
    /// once.
    #[inline]
    pub(crate) fn of<T: Float>(values: &[T], weights: &[f64], ddof: u32) -> Self {
        let extent = Extent::of(values, weights);
        if !weights.is_empty() || extent.count == 0 || extent.least >= extent.most {
            return Self::finish(extent, Moments::of(extent, values, weights), ddof);
        }
        let grid = Grid::of(extent);
        Self::plain(extent, &grid, grid_moments(&grid, values), ddof)
    }

    /// Return the statistics from the sums of all votes.
    #[inline(never)]
    pub fn finish(extent: Extent, moments: Moments, ddof: u32) -> Self {
        let Extent { count, least, most, .. } = extent;
        if count == 0 {
            return Self { count, weight: 0.0, mean: f64::NAN, std: f64::NAN, least: f64::NAN, most: f64::NAN };
        }
        if least < most && moments.weight == 0 {
            return Self::plain(extent, &Grid::of(extent), moments, ddof);
        }
        if moments.weight == 0 {
            return Self::new(extent, count as f64, ddof, least, (0.0, 0));
        }
        let units = WeightedGrid::of(extent);
        let weight = units.empty.with(moments.weight).divided_by(1.0) / units.weight;
        let (mean, variance) =
            if least < most { weighted_moments(extent, moments, weight - f64::from(ddof)) } else { (least, (0.0, 0)) };
        Self::new(extent, weight, ddof, mean, variance)
    }

    /// Return the statistics of values without weights that are not all equal.
    #[inline]
    fn plain(extent: Extent, grid: &Grid, moments: Moments, ddof: u32) -> Self {
        let weight = extent.count as f64;
        let (mean, variance) = plain_moments(extent.count, grid, moments, weight - f64::from(ddof));
        Self::new(extent, weight, ddof, mean, variance)
    }

    #[inline]
    fn new(extent: Extent, weight: f64, ddof: u32, mean: f64, variance: (f64, i32)) -> Self {
        let Extent { count, least, most, .. } = extent;
        let std = if weight > f64::from(ddof) { times_power_of_two(variance.0.sqrt(), variance.1) } else { f64::NAN };
        // Rounding can move the mean out of the range by one digit.
        Self { count, weight, mean: mean.clamp(least, most), std, least, most }
    }
}

/// Groups with at most two to the power of this many votes have sums that fit 64 bits and are computed without rounding
/// loss. That saves integer divisions, which would cost as much as everything else.
const SMALL_GROUP_BITS: i32 = 12;

/// Return the mean, and the variance as `(v, e)`: the variance is `v · 4^e`, the standard deviation `sqrt(v) · 2^e`.
#[inline]
fn plain_moments(votes: u64, grid: &Grid, Moments { first, second, .. }: Moments, divisor: f64) -> (f64, (f64, i32)) {
    let count = votes as f64;
    let (mean, variance) = if headroom(votes) <= SMALL_GROUP_BITS {
        let mean = first as i64 as f64 / count;
        // Exact sum of squares about m, the integer nearest to the mean. About the mean itself it is less by at most a
        // quarter for each value, which is below the precision of a float as large as a square of half of the grid's
        // digits.
        let m = i128::from(nearest(mean));
        let about = second - m * (2 * first - m * i128::from(votes));
        (mean, squares((about >> 52) as i64, (about & ((1 << 52) - 1)) as i64) / divisor)
    } else {
        (first as f64 / count, squares_of_many(i128::from(votes), first, second) / divisor)
    };
    (grid.origin + times_power_of_two(mean, -grid.exponent), (variance, -grid.exponent))
}

/// Return the sum of squares about the mean.
#[inline(never)]
fn squares_of_many(count: i128, first: i128, second: i128) -> f64 {
    // Exact squares about m, the largest integer that is at most the mean. Intermediate results may wrap, because the
    // last one fits.
    let (nearest, rest) = (first.div_euclid(count), first.rem_euclid(count));
    let about = second.wrapping_sub(nearest.wrapping_mul((2 * first).wrapping_sub(nearest.wrapping_mul(count))));
    // Then about the mean itself: Σ (q - m)² - rest² / count.
    let squares = match about.checked_mul(count) {
        Some(product) => (product - rest * rest) as f64 / count as f64,
        None => about as f64 - rest as f64 * (rest as f64 / count as f64),
    };
    squares.max(0.0)
}

/// Return the same for values with weights.
fn weighted_moments(extent: Extent, moments: Moments, divisor: f64) -> (f64, (f64, i32)) {
    let units = WeightedGrid::of(extent);
    let [weight, first, second] = [moments.weight, moments.first, moments.second].map(Double::of);
    let mean = first.0 / weight.0;
    // Σ w (d - q)² = Σ w d² - q (2 Σ w d - q Σ w) for any q; with 106 digits, because the terms may nearly cancel.
    let cross = first.plus(first).plus(weight.times(-mean)).times(-mean);
    let squares = units.empty.with(1).divided_by(1.0) * second.plus(cross).0.max(0.0);
    let variance = squares / (divisor * units.weight);
    (units.origin + mean / units.distance, (variance, units.order))
}

/// An unevaluated sum of two floats.
#[derive(Clone, Copy)]
struct Double(f64, f64);

impl Double {
    fn of(integer: i128) -> Self {
        let high = integer as f64;
        Self(high, integer.wrapping_sub(high as i128) as f64)
    }

    fn normal(high: f64, low: f64) -> Self {
        let sum = high + low;
        Self(sum, low - (sum - high))
    }

    fn plus(self, other: Self) -> Self {
        let sum = self.0 + other.0;
        let part = sum - self.0;
        let lost = (self.0 - (sum - part)) + (other.0 - part);
        Self::normal(sum, lost + self.1 + other.1)
    }

    fn times(self, factor: f64) -> Self {
        let product = self.0 * factor;
        // Dekker's product: halves of 26 digits have exact products.
        let halves = |value: f64| {
            let shifted = value * 134_217_729.0;
            let high = shifted - (shifted - value);
            (high, value - high)
        };
        let ((a, b), (c, d)) = (halves(self.0), halves(factor));
        let lost = ((a * c - product) + a * d + b * c) + b * d;
        Self::normal(product, lost + self.1 * factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::naive;
    use proptest::prelude::*;

    fn one_shot(values: &[f64], weights: &[f64], ddof: u32) -> Statistics {
        let extent = Extent::of(values, weights);
        Statistics::finish(extent, Moments::of(extent, values, weights), ddof)
    }

    #[test]
    fn by_hand() {
        let found = one_shot(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0], &[], 0);
        assert_eq!(found, Statistics { count: 8, weight: 8.0, mean: 5.0, std: 2.0, least: 2.0, most: 9.0 });
        let found = one_shot(&[1.0, 3.0], &[3.0, 1.0], 0);
        assert_eq!(found, Statistics { count: 2, weight: 4.0, mean: 1.5, std: 0.75_f64.sqrt(), least: 1.0, most: 3.0 });
        let none = one_shot(&[], &[], 1);
        assert!(none.count == 0 && none.mean.is_nan() && none.std.is_nan() && none.least.is_nan());
    }

    /// An integer weight is the same as a row that is repeated that often.
    #[test]
    fn a_weight_is_a_frequency() {
        let found = one_shot(&[1.0, 0.1, -3.0], &[2.0, 3.0, 1.0], 1);
        let repeated = one_shot(&[1.0, 1.0, 0.1, 0.1, 0.1, -3.0], &[], 1);
        assert!((found.mean - repeated.mean).abs() < 1e-15 && (found.std - repeated.std).abs() < 1e-15);
        assert_eq!(found.weight.to_bits(), 6.0_f64.to_bits());
    }

    #[test]
    fn neither_an_offset_nor_size_nor_one_heavy_weight_costs_digits() {
        let pattern = [1.0, 2.0, 3.0, 4.0];
        let std = (5.0_f64 / 3.0).sqrt();
        let offset = one_shot(&pattern.map(|value| value + 1e12), &[], 1);
        assert_eq!(offset.mean.to_bits(), (1e12_f64 + 2.5).to_bits());
        assert!((offset.std / std - 1.0).abs() < 1e-15);
        for size in [1e-320, 1e-300, 1e300, 4e307] {
            for weights in [&[][..], &[1.0; 4], &[1e-310; 4], &[1e300; 4]] {
                let found = one_shot(&pattern.map(|value| value * size), weights, 0);
                let tolerance = if size < 1e-310 { 1e-3 } else { 1e-14 };
                assert!((found.mean / size / 2.5 - 1.0).abs() < tolerance, "{size} {weights:?} {found:?}");
                assert!((found.std / size / 1.25_f64.sqrt() - 1.0).abs() < tolerance, "{size} {weights:?} {found:?}");
            }
        }
        let heavy = one_shot(&[1.0, 0.0], &[1e12, 1.0], 0);
        let exact = 1e6 / (1e12 + 1.0);
        assert!((heavy.std / exact - 1.0).abs() < 1e-14, "{heavy:?}");
    }

    /// 1/3, 0.1 and similar values times a count are not floats, so sum and quotient are rounded; the mean must not be.
    #[test]
    fn equal_values_are_their_own_mean() {
        for count in 1..200 {
            for value in [0.1, 1.0 / 3.0, -0.7, 1e300, f64::MAX, 5e-324, 0.0] {
                for weights in [vec![], vec![0.3; count]] {
                    let found = one_shot(&vec![value; count], &weights, 0);
                    assert_eq!((found.mean - value).to_bits(), 0);
                    assert_eq!(found.std.to_bits(), 0);
                }
            }
        }
    }

    proptest! {
        /// Merged parts of any size, in any order, give the bits of the whole.
        #[test]
        fn parts_merge_exactly(
            rows in prop::collection::vec((prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL, 0.1_f64..1e9), 1..40),
            cut in 0_usize..40,
            weighted in any::<bool>(),
        ) {
            let (values, weights): (Vec<f64>, Vec<f64>) = rows.iter().map(|&(value, weight)| (value / 4.0, weight)).unzip();
            let weights = if weighted { weights } else { vec![] };
            let cut = cut % values.len();
            let parts = [(&values[cut..], weights.get(cut..).unwrap_or(&[])), (&values[..cut], weights.get(..cut).unwrap_or(&[]))];
            let extent = parts.map(|(values, weights)| Extent::of(values, weights));
            let extent = extent[0].merge(extent[1]);
            let moments = parts.map(|(values, weights)| Moments::of(extent, values, weights));
            let merged = Statistics::finish(extent, moments[0].merge(moments[1]), 1);
            let whole = one_shot(&values, &weights, 1);
            prop_assert_eq!((merged.mean.to_bits(), merged.std.to_bits()), (whole.mean.to_bits(), whole.std.to_bits()));
        }

        #[test]
        fn as_the_textbook(values in prop::collection::vec(-10.0_f64..10.0, 2..60), ddof in 0_u32..2) {
            let (mean, std) = naive(&values, ddof);
            for weights in [vec![], vec![1.0; values.len()]] {
                let found = one_shot(&values, &weights, ddof);
                prop_assert!((found.mean - mean).abs() < 1e-14 * 10.0, "{} {mean}", found.mean);
                prop_assert!((found.std - std).abs() < 1e-13 * 10.0, "{} {std}", found.std);
            }
        }
    }
}
