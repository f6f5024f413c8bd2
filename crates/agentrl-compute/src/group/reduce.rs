//! Maps and reductions within groups: ranks, softmax, min-max scaling, extremes.

use super::columns::Columns;
use crate::argument_checks::same_length;
use crate::{Error, Float, Result};

/// The operation of [`map`] on the values of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Map {
    /// Index in ascending order, from 0; on ties, the earlier row comes first.
    Rank,
    /// `exp(x / temperature) / Σ exp(x / temperature)`.
    Softmax {
        /// Above 0. A small temperature moves all weight to the largest value, a large one makes all results equal.
        temperature: f64,
    },
    /// `(x - least) / (most - least + eps)`, and `constant` if all values are equal.
    MinMax {
        /// Added to the range.
        eps: f64,
        /// The result if all values are equal.
        constant: f64,
    },
    /// `x / mean`; 1 if all values are 0.
    MeanOne,
}

/// Compute one number for each row from the valid rows of its group; 0 for the other rows.
///
/// ```
/// use agentrl_compute::group::{Columns, Map, map};
///
/// let mut ranks = [0.0; 4];
/// map(&Columns::new("values", &[5.0, 1.0, 5.0, 2.0], &[0, 0, 0, 1]), Map::Rank, &mut ranks)?;
/// assert_eq!(ranks, [1.0, 0.0, 2.0, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` for columns that [`statistics`](super::statistics) refuses, a temperature or `eps` out of range, or,
/// with [`Map::MeanOne`], a negative value. Weights and units have no meaning here and are not read.
pub fn map<T: Float>(columns: &Columns<'_, T>, map: Map, out: &mut [T]) -> Result<()> {
    let columns = &Columns { weights: None, units: None, ..*columns };
    same_length("out", out.len(), columns.name, columns.values.len())?;
    match map {
        Map::Softmax { temperature } => positive("temperature", temperature)?,
        Map::MinMax { eps, constant } if !(0.0..f64::INFINITY).contains(&eps) || !constant.is_finite() => {
            return Err(Error::invalid(format!(
                "eps is {eps} and constant {constant}; give finite numbers, eps of at least 0"
            )));
        }
        _ => {}
    }
    let (count, sorted) = columns.check()?;
    let made = columns.grouped(count, sorted)?.each(|group| {
        let made = match map {
            Map::Rank => ranks(group.votes().values),
            Map::Softmax { temperature } => softmax(group.votes().values, temperature),
            Map::MinMax { eps, constant } => {
                let found = *group.statistics(0)?;
                let range = found.most - found.least;
                let place = |value: &f64| if range == 0.0 { constant } else { (value - found.least) / (range + eps) };
                group.votes().values.iter().map(place).collect()
            }
            Map::MeanOne => {
                let found = *group.statistics(0)?;
                if found.least < 0.0 {
                    return Err(Error::invalid(format!(
                        "{} contains {}, which has no weight with mean 1; give numbers of at least 0",
                        columns.name, found.least
                    )));
                }
                let scaled = |value: &f64| if found.mean == 0.0 { 1.0 } else { value / found.mean };
                group.votes().values.iter().map(scaled).collect()
            }
        };
        let votes = group.votes();
        Ok(made.into_iter().enumerate().map(|(vote, value)| (votes.row(vote), value)).collect::<Vec<_>>())
    })?;
    out.fill(T::from_f64(0.0));
    for (row, value) in made.into_iter().flatten() {
        out[row as usize] = T::result(row as usize, value)?;
    }
    Ok(())
}

fn positive(name: &str, value: f64) -> Result<()> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} is {value}; give a finite number above 0")))
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; order.len()];
    for (rank, place) in order.into_iter().enumerate() {
        ranks[place] = rank as f64;
    }
    ranks
}

/// Sum in ascending order, so that the order of rows does not matter.
fn sum(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.iter().sum()
}

fn softmax(values: &[f64], temperature: f64) -> Vec<f64> {
    let most = values.iter().fold(f64::NEG_INFINITY, |most, &value| most.max(value));
    let powers: Vec<f64> = values.iter().map(|value| ((value - most) / temperature).exp()).collect();
    let total = sum(&powers);
    powers.iter().map(|power| power / total).collect()
}

/// Return `temperature · ln(mean of exp(x / temperature))` of each group's valid rows; the mean for temperature 0, NaN
/// without valid rows.
///
/// ```
/// use agentrl_compute::group::{Columns, log_mean_exp};
///
/// let found = log_mean_exp(&Columns::new("values", &[0.0, 3.0_f64.ln(), 5.0], &[0, 0, 1]), 1.0)?;
/// assert!((found[0] - 2.0_f64.ln()).abs() < 1e-15 && found[1] == 5.0);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` for columns that [`statistics`](super::statistics) refuses or a temperature that is negative.
pub fn log_mean_exp<T: Float>(columns: &Columns<'_, T>, temperature: f64) -> Result<Vec<f64>> {
    if temperature != 0.0 {
        positive("temperature", temperature)?;
    }
    let (count, sorted) = columns.check()?;
    columns.grouped(count, sorted)?.each(|group| {
        if temperature == 0.0 {
            return Ok(group.statistics(0)?.mean);
        }
        let values = group.votes().values;
        let most = values.iter().fold(f64::NEG_INFINITY, |most, &value| most.max(value));
        let powers: Vec<f64> = values.iter().map(|value| ((value - most) / temperature).exp()).collect();
        Ok(most + temperature * (sum(&powers) / powers.len() as f64).ln())
    })
}

/// Return the first valid row of each group with its largest (or smallest) value; `None` for a group without valid
/// rows.
///
/// # Errors
/// `InvalidInput` for columns that [`statistics`](super::statistics) refuses.
pub fn arg_extreme<T: Float>(columns: &Columns<'_, T>, largest: bool) -> Result<Vec<Option<u32>>> {
    let (count, sorted) = columns.check()?;
    columns.grouped(count, sorted)?.each(|group| {
        let votes = group.votes();
        let values = &*votes.values;
        let better = |&a: &usize, &b: &usize| if largest { values[a] > values[b] } else { values[a] < values[b] };
        let best = (0..values.len()).reduce(|best, place| if better(&place, &best) { place } else { best });
        Ok(best.map(|place| votes.row(place)))
    })
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VALUES: [f64; 5] = [2.0, 9.0, 0.0, 1.0, 1.0];
    const GROUPS: [u32; 5] = [0, 1, 0, 0, 0];
    const VALID: [bool; 5] = [true, false, true, true, true];

    fn run(how: Map) -> Result<Vec<f64>> {
        let mut out = vec![7.0; 5];
        map(&Columns { valid: Some(&VALID), ..Columns::new("values", &VALUES, &GROUPS) }, how, &mut out)?;
        Ok(out)
    }

    #[test]
    fn by_hand() -> Result<()> {
        assert_eq!(run(Map::Rank)?, [3.0, 0.0, 0.0, 1.0, 2.0]);
        assert_eq!(run(Map::MinMax { eps: 2.0, constant: 0.5 })?, [0.5, 0.0, 0.0, 0.25, 0.25]);
        assert_eq!(run(Map::MeanOne)?, [2.0, 0.0, 0.0, 1.0, 1.0]);
        let found = run(Map::Softmax { temperature: 0.5 })?;
        let total = 4.0_f64.exp() + 1.0 + 2.0 * 2.0_f64.exp();
        for (found, expected) in found.iter().zip([4.0_f64.exp(), 0.0, 1.0, 2.0_f64.exp(), 2.0_f64.exp()]) {
            assert!((found - expected / total).abs() < 1e-15);
        }
        let mut equal = [7.0; 2];
        map(&Columns::new("values", &[0.0, 0.0], &[0, 0]), Map::MinMax { eps: 0.0, constant: 0.5 }, &mut equal)?;
        assert_eq!(equal, [0.5, 0.5]);
        map(&Columns::new("values", &[0.0, 0.0], &[0, 0]), Map::MeanOne, &mut equal)?;
        assert_eq!(equal, [1.0, 1.0]);
        Ok(())
    }

    #[test]
    fn extremes_are_first_rows() -> Result<()> {
        let columns = Columns { valid: Some(&VALID), ..Columns::new("values", &VALUES, &GROUPS) };
        assert_eq!(arg_extreme(&columns, true)?, [Some(0), None]);
        assert_eq!(arg_extreme(&columns, false)?, [Some(2), None]);
        assert_eq!(arg_extreme(&Columns::new("values", &[1.0, 1.0], &[0, 0]), true)?, [Some(0)]);
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        for (how, expected) in [
            (Map::Softmax { temperature: 0.0 }, "temperature is 0; give a finite number above 0"),
            (
                Map::MinMax { eps: -1.0, constant: 0.0 },
                "eps is -1 and constant 0; give finite numbers, eps of at least 0",
            ),
        ] {
            assert_eq!(run(how).map_err(|error| error.to_string()), Err(expected.to_owned()));
        }
        let mut out = [0.0];
        let negative = map(&Columns::new("values", &[-1.0], &[0]), Map::MeanOne, &mut out);
        assert!(negative.is_err_and(|error| error.message().starts_with("values contains -1")));
        assert!(log_mean_exp(&Columns::new("values", &[1.0], &[0]), -1.0).is_err());
    }

    proptest! {
        /// The result lies between mean and maximum, rises with 1 / temperature, and is the mean at temperature 0.
        #[test]
        fn log_mean_exp_lies_between_mean_and_maximum(values in prop::collection::vec(-1e3_f64..1e3, 1..9)) {
            let groups = vec![0; values.len()];
            let columns = Columns::new("values", &values, &groups);
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let most = values.iter().fold(f64::MIN, |most, &value| most.max(value));
            prop_assert!((log_mean_exp(&columns, 0.0)?[0] - mean).abs() < 1e-9);
            let warm = log_mean_exp(&columns, 100.0)?[0];
            let cold = log_mean_exp(&columns, 1.0)?[0];
            prop_assert!(mean - 1e-9 <= warm && warm <= cold + 1e-9 && cold <= most + 1e-9);
            let naive = (values.iter().map(|value| ((value - most) / 100.0).exp()).sum::<f64>() / values.len() as f64).ln();
            prop_assert!((warm - (most + 100.0 * naive)).abs() < 1e-9);
        }
    }
}
