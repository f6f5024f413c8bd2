//! Quantiles with `NumPy`'s definitions.

use crate::argument_checks::within;
use crate::{Result, names};

names! {
    /// Interpolation of a quantile that falls between two values.
    "interpolation" Interpolation {
        /// Linear interpolation.
        Linear = "linear",
        /// The lower value.
        Lower = "lower",
        /// The higher value.
        Higher = "higher",
        /// The nearer value; on a tie, the one at an even index.
        Nearest = "nearest",
        /// The mean of both values.
        Midpoint = "midpoint",
    }
}

/// Return the `q`-quantile of ascending values; `None` if there are none.
///
/// ```
/// use agentrl_compute::quantile::{Interpolation, quantile};
///
/// assert_eq!(quantile(&[0.0, 1.0, 2.0, 4.0], 0.75, Interpolation::Linear)?, Some(2.5));
/// assert_eq!(quantile(&[0.0, 1.0, 2.0, 4.0], 0.75, Interpolation::Lower)?, Some(2.0));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if `q` is outside [0, 1].
pub fn quantile(sorted: &[f64], q: f64, interpolation: Interpolation) -> Result<Option<f64>> {
    within("q", q, 0.0, 1.0)?;
    let Some(last) = sorted.len().checked_sub(1) else { return Ok(None) };
    Ok(Some(at_place(sorted, q * last as f64, 0, interpolation)))
}

/// Return the value at a fractional index of ascending values. `sorted[0]` has index `first`.
fn at_place(sorted: &[f64], place: f64, first: usize, interpolation: Interpolation) -> f64 {
    let at = |place: f64| sorted[place as usize - first];
    let (low, high) = (at(place.floor()), at(place.ceil()));
    match interpolation {
        Interpolation::Lower => low,
        Interpolation::Higher => high,
        Interpolation::Nearest => at(place.round_ties_even()),
        Interpolation::Midpoint => between(low, high, 0.5),
        Interpolation::Linear => between(low, high, place.fract()),
    }
}

/// Return the `q`-quantile of values in any order, without sorting all of them. The values are reordered.
pub(crate) fn quantile_of(values: &mut [f64], q: f64, interpolation: Interpolation) -> Result<Option<f64>> {
    let Some(last) = values.len().checked_sub(1) else { return quantile(values, q, interpolation) };
    within("q", q, 0.0, 1.0)?;
    let place = (q * last as f64).floor() as usize;
    let (_, low, above) = values.select_nth_unstable_by(place, f64::total_cmp);
    // Only the values at this index and the next one are read, so two values suffice.
    let pair = [*low, above.iter().copied().min_by(f64::total_cmp).unwrap_or(*low)];
    Ok(Some(at_place(&pair, q * last as f64, place, interpolation)))
}

/// Interpolate linearly from `low` to `high`, even if their distance overflows.
fn between(low: f64, high: f64, share: f64) -> f64 {
    let distance = high - low;
    if distance.is_finite() { low + distance * share } else { low * (1.0 - share) + high * share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_numpy() -> Result<()> {
        let values = [1.0, 2.0, 4.0, 8.0];
        for (interpolation, expected) in [
            (Interpolation::Linear, [1.0, 1.5, 3.0, 6.8, 8.0]),
            (Interpolation::Lower, [1.0, 1.0, 2.0, 4.0, 8.0]),
            (Interpolation::Higher, [1.0, 2.0, 4.0, 8.0, 8.0]),
            (Interpolation::Nearest, [1.0, 1.0, 4.0, 8.0, 8.0]),
            (Interpolation::Midpoint, [1.0, 1.5, 3.0, 6.0, 8.0]),
        ] {
            for (q, expected) in [0.0, 0.5 / 3.0, 0.5, 0.9, 1.0].into_iter().zip(expected) {
                let found = quantile(&values, q, interpolation)?.unwrap_or(f64::NAN);
                assert!((found - expected).abs() < 1e-12, "{interpolation:?} {q} {found}");
                let unsorted = quantile_of(&mut [4.0, 1.0, 8.0, 2.0], q, interpolation)?;
                assert_eq!(unsorted.map(f64::to_bits), Some(found.to_bits()));
            }
        }
        assert_eq!(quantile(&[-1e308, 1e308], 0.75, Interpolation::Linear)?, Some(5e307));
        assert_eq!(quantile(&[-1e308, 1e308], 0.5, Interpolation::Midpoint)?, Some(0.0));
        assert_eq!(quantile(&[], 0.5, Interpolation::Linear)?, None);
        assert!(quantile(&values, 1.5, Interpolation::Linear).is_err());
        assert_eq!(quantile_of(&mut [], 0.5, Interpolation::Linear)?, None);
        assert!(quantile_of(&mut [1.0], 1.5, Interpolation::Linear).is_err());
        assert!(Interpolation::from_name("cubic").is_err());
        Ok(())
    }
}
