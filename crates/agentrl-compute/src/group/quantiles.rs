//! Order statistics of groups: quantiles, medians, and median distances from the median.

use super::columns::Columns;
use super::options::Middle;
use super::vote_buffer::Votes;
use crate::quantile::{self, Interpolation};
use crate::{Float, Result};

/// Return the `q`-quantile of each group's valid rows, `q` from 0 to 1; NaN for a group without any.
///
/// Sorted values have the indices `0, 1, ..., n - 1`; the quantile is at index `q · (n - 1)`, as in `numpy.quantile`.
///
/// ```
/// use agentrl_compute::group::{Columns, quantile};
/// use agentrl_compute::quantile::Interpolation;
///
/// let found = quantile(&Columns::new("values", &[4.0, 1.0, 2.0, 9.0], &[0, 0, 0, 1]), 0.75, Interpolation::Linear)?;
/// assert_eq!(found, [3.0, 9.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` for `q` outside [0, 1] or columns that [`statistics`](super::statistics) refuses.
pub fn quantile<T: Float>(columns: &Columns<'_, T>, q: f64, interpolation: Interpolation) -> Result<Vec<f64>> {
    quantile::quantile(&[], q, interpolation)?;
    let (count, sorted) = columns.check()?;
    columns
        .grouped(count, sorted)?
        .each(|group| Ok(quantile::quantile_of(group.votes().values, q, interpolation)?.unwrap_or(f64::NAN)))
}

/// Return the median of votes, and their median distance from it; NaN without votes. A weight is the multiplicity of a
/// value.
pub(super) fn median(votes: &Votes<'_>, middle: Middle) -> (f64, f64) {
    let centre = middle_of(votes.values.to_vec(), votes.weights, middle);
    let distances = votes.values.iter().map(|value| (value - centre).abs()).collect();
    (centre, middle_of(distances, votes.weights, middle))
}

fn middle_of(mut values: Vec<f64>, weights: &[f64], middle: Middle) -> f64 {
    if weights.is_empty() {
        let interpolation = if middle == Middle::Lower { Interpolation::Lower } else { Interpolation::Midpoint };
        return quantile::quantile_of(&mut values, 0.5, interpolation).ok().flatten().unwrap_or(f64::NAN);
    }
    let mut pairs: Vec<(f64, f64)> = values.into_iter().zip(weights.iter().copied()).collect();
    pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // Sorted by value and weight, so that rows may come in any order.
    let half = 0.5 * pairs.iter().map(|pair| pair.1).sum::<f64>();
    let mut below = 0.0;
    for (place, &(value, weight)) in pairs.iter().enumerate() {
        below += weight;
        if below > half || middle == Middle::Lower && below >= half {
            return value;
        }
        if below >= half {
            return 0.5 * value + 0.5 * pairs.get(place + 1).map_or(value, |next| next.0);
        }
    }
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_by_hand() {
        let median = |values: &mut [f64], weights: &[f64], middle| super::median(&Votes::of(values, weights), middle);
        let mut four = [4.0, 1.0, 2.0, 9.0];
        for weights in [&[][..], &[1.0; 4]] {
            assert_eq!(median(&mut four, weights, Middle::Midpoint), (3.0, 1.5));
            assert_eq!(median(&mut four, weights, Middle::Lower), (2.0, 1.0));
        }
        assert_eq!(median(&mut [5.0, 1.0], &[3.0, 2.0], Middle::Midpoint), (5.0, 0.0));
        assert!(median(&mut [], &[], Middle::Lower).0.is_nan());
        assert!(median(&mut [], &[], Middle::Midpoint).1.is_nan());
    }

    #[test]
    fn quantiles_by_hand() -> Result<()> {
        let values = [1.0_f32, 2.0, 3.0, 4.0, 7.0];
        let columns = Columns::new("values", &values, &[0, 0, 0, 0, 2]);
        for (interpolation, expected) in [
            (Interpolation::Linear, 1.75),
            (Interpolation::Lower, 1.0),
            (Interpolation::Higher, 2.0),
            (Interpolation::Nearest, 2.0),
            (Interpolation::Midpoint, 1.5),
        ] {
            let found = quantile(&columns, 0.25, interpolation)?;
            assert_eq!((found[0], found[1].is_nan(), found[2]), (expected, true, 7.0));
        }
        assert!(quantile(&columns, 1.5, Interpolation::Linear).is_err() && Interpolation::from_name("best").is_err());
        Ok(())
    }
}
