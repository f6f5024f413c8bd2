//! What needs the values of a group in order: quantiles, medians and the distance from them.

use super::columns::Columns;
use super::members::Votes;
use super::options::Middle;
use crate::{Error, Float, Result};

/// How a quantile between two values is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Between them in proportion (`NumPy`'s and torch's default).
    Linear,
    /// The one below.
    Lower,
    /// The one above.
    Higher,
    /// The nearer one; halfway, the one with the even place.
    Nearest,
    /// Their mean.
    Midpoint,
}

impl Method {
    /// The method of a name.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown name.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "linear" => Ok(Self::Linear),
            "lower" => Ok(Self::Lower),
            "higher" => Ok(Self::Higher),
            "nearest" => Ok(Self::Nearest),
            "midpoint" => Ok(Self::Midpoint),
            _ => {
                Err(Error::invalid(format!("method is {name:?}; use one of: linear, lower, higher, nearest, midpoint")))
            }
        }
    }
}

/// The `q`-th quantile of each group's valid rows, `q` from 0 to 1; NaN for a group without any.
///
/// The sorted values stand at places `0, 1, ..., n - 1`; the quantile is at place `q · (n - 1)`, as in `numpy.quantile`.
///
/// ```
/// use agentrl_compute::group::{Columns, Method, quantile};
///
/// let found = quantile(&Columns::new("values", &[4.0, 1.0, 2.0, 9.0], &[0, 0, 0, 1]), 0.75, Method::Linear)?;
/// assert_eq!(found, [3.0, 9.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` for `q` outside [0, 1] or columns that [`statistics`](super::statistics) refuses.
pub fn quantile<T: Float>(columns: &Columns<'_, T>, q: f64, method: Method) -> Result<Vec<f64>> {
    if !(0.0..=1.0).contains(&q) {
        return Err(Error::invalid(format!("q is {q}, but must lie in [0, 1]")));
    }
    let (count, sorted) = columns.check()?;
    columns.members(count, sorted).each(|group| Ok(at(sort(group.votes()), q, method)))
}

fn sort(votes: &mut Votes) -> &[f64] {
    votes.values.sort_unstable_by(f64::total_cmp);
    &votes.values
}

/// The quantile of sorted values.
fn at(sorted: &[f64], q: f64, method: Method) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = q * last as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    match method {
        Method::Linear => {
            let part = place.fract();
            if part == 0.0 { low } else { low * (1.0 - part) + high * part }
        }
        Method::Lower => low,
        Method::Higher => high,
        Method::Nearest => sorted[place.round_ties_even() as usize],
        Method::Midpoint => 0.5 * low + 0.5 * high,
    }
}

/// The median of some votes, and their median distance from it; NaN for none. A weight counts how often a value stands there.
pub(super) fn median(votes: &Votes, middle: Middle) -> (f64, f64) {
    let centre = middle_of(votes.values.clone(), &votes.weights, middle);
    let distances = votes.values.iter().map(|value| (value - centre).abs()).collect();
    (centre, middle_of(distances, &votes.weights, middle))
}

fn middle_of(mut values: Vec<f64>, weights: &[f64], middle: Middle) -> f64 {
    if weights.is_empty() {
        values.sort_unstable_by(f64::total_cmp);
        let method = if middle == Middle::Lower { Method::Lower } else { Method::Midpoint };
        return at(&values, 0.5, method);
    }
    let mut pairs: Vec<(f64, f64)> = values.into_iter().zip(weights.iter().copied()).collect();
    pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // In order of value and weight, so rows may come in any order.
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
        let votes = |values: &[f64], weights: &[f64]| Votes {
            values: values.to_vec(),
            weights: weights.to_vec(),
            rows: vec![],
        };
        let four = votes(&[4.0, 1.0, 2.0, 9.0], &[]);
        assert_eq!(median(&four, Middle::Midpoint), (3.0, 1.5));
        assert_eq!(median(&four, Middle::Lower), (2.0, 1.0));
        assert_eq!(median(&votes(&[4.0, 1.0, 2.0, 9.0], &[1.0; 4]), Middle::Midpoint), (3.0, 1.5));
        assert_eq!(median(&votes(&[4.0, 1.0, 2.0, 9.0], &[1.0; 4]), Middle::Lower), (2.0, 1.0));
        assert_eq!(median(&votes(&[5.0, 1.0], &[3.0, 2.0]), Middle::Midpoint), (5.0, 0.0));
        assert!(median(&votes(&[], &[]), Middle::Lower).0.is_nan());
        assert!(median(&votes(&[], &[]), Middle::Midpoint).1.is_nan());
    }

    #[test]
    fn quantiles_by_hand() -> Result<()> {
        let values = [1.0_f32, 2.0, 3.0, 4.0, 7.0];
        let columns = Columns::new("values", &values, &[0, 0, 0, 0, 2]);
        for (method, expected) in [
            (Method::Linear, 1.75),
            (Method::Lower, 1.0),
            (Method::Higher, 2.0),
            (Method::Nearest, 2.0),
            (Method::Midpoint, 1.5),
        ] {
            let found = quantile(&columns, 0.25, method)?;
            assert_eq!((found[0], found[1].is_nan(), found[2]), (expected, true, 7.0));
        }
        assert!(quantile(&columns, 1.5, Method::Linear).is_err() && Method::from_name("best").is_err());
        Ok(())
    }
}
