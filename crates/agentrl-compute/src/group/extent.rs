//! Count, range and largest weight of values: an [`Extent`], which fixes the grid of their sums.

use crate::Float;
use crate::simd::{BLOCK, Summaries, Summary, keep};

/// Count, bounds and largest weight of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Number of values.
    pub count: u64,
    /// Smallest value; infinity if there is none.
    pub least: f64,
    /// Largest value; minus infinity if there is none.
    pub most: f64,
    /// Largest weight; 1 for values without weights, 0 if there is no value.
    pub heaviest: f64,
}

impl Extent {
    /// The extent of no values.
    pub const EMPTY: Self = Self { count: 0, least: f64::INFINITY, most: f64::NEG_INFINITY, heaviest: 0.0 };

    /// Return the extent of finite values and their positive weights.
    #[inline]
    pub(crate) fn of<T: Float>(values: &[T], weights: &[f64]) -> Self {
        let (mut least, mut most) = ([f64::INFINITY; VALUES_AT_ONCE], [f64::NEG_INFINITY; VALUES_AT_ONCE]);
        let (chunks, rest) = values.as_chunks::<VALUES_AT_ONCE>();
        for chunk in chunks {
            for lane in 0..VALUES_AT_ONCE {
                least[lane] = lesser(chunk[lane].to_f64(), least[lane]);
                most[lane] = greater(chunk[lane].to_f64(), most[lane]);
            }
        }
        for value in rest {
            least[0] = lesser(value.to_f64(), least[0]);
            most[0] = greater(value.to_f64(), most[0]);
        }
        let least = lesser(lesser(least[0], least[1]), lesser(least[2], least[3]));
        let most = greater(greater(most[0], most[1]), greater(most[2], most[3]));
        let heaviest = match (values.is_empty(), weights.is_empty()) {
            (true, _) => 0.0,
            (false, true) => 1.0,
            (false, false) => weights.iter().fold(0.0, |heaviest: f64, &weight| heaviest.max(weight)),
        };
        Self { count: values.len() as u64, least, most, heaviest }
    }

    /// Return the extent of the valid values.
    pub(crate) fn of_valid<T: Float>(values: &[T], valid: Option<&[bool]>) -> Self {
        let (mut numbers, mut lanes) = ([0.0; BLOCK], Summaries::EMPTY);
        for (place, values) in values.chunks(BLOCK).enumerate() {
            let numbers = &mut numbers[..values.len()];
            T::read(values, numbers);
            if let Some(valid) = valid {
                keep(numbers, &valid[place * BLOCK..][..values.len()]);
            }
            lanes.add(numbers);
        }
        let Summary { count, least, most, .. } = lanes.sum();
        Self { count, least, most, heaviest: f64::from(count > 0) }
    }

    /// Return the extent of the values of both.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            heaviest: self.heaviest.max(other.heaviest),
        }
    }

    /// Return the origin of the values: 0, or the middle of their range if the range is far from 0.
    #[inline]
    pub(super) fn origin(self) -> f64 {
        let range = self.most - self.least;
        if 2.0 * range >= self.most.abs().max(self.least.abs()) { 0.0 } else { self.least + 0.5 * range }
    }
}

/// Return the lesser of two numbers, in one instruction; `b` if one is NaN.
#[inline(always)]
pub(super) fn lesser(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// Return the greater of two numbers, in one instruction; `b` if one is NaN.
#[inline(always)]
pub(super) fn greater(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// Number of values that are compared at once to find their range.
const VALUES_AT_ONCE: usize = 4;
