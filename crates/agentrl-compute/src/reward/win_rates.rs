//! Rewards from pairwise comparisons of rows.

use crate::argument_checks::{column, room, same_length};
use crate::group::sums;
use crate::{Error, Result};

/// Mean win probability of each of `count` rows over its comparisons; 0.5 for a row without comparisons.
///
/// In comparison `c`, row `first[c]` beats row `second[c]` with `probability[c]`, and `second[c]` beats `first[c]` with
/// `1 - probability[c]`. A tie is 0.5. Source: SPO, arXiv:2401.04056.
///
/// ```
/// use agentrl_compute::reward::win_rates;
///
/// assert_eq!(win_rates(&[0, 0], &[1, 2], &[1.0, 0.5], 4)?, [0.75, 0.0, 0.5, 0.5]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a row does not exist or is compared with itself, or a probability is outside [0, 1].
pub fn win_rates(first: &[i64], second: &[i64], probability: &[f64], count: usize) -> Result<Vec<f64>> {
    same_length("second", second.len(), "first", first.len())?;
    column("probability", probability, "first", first.len(), None)?;
    for (place, &p) in probability.iter().enumerate() {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::invalid(format!("probability[{place}] is {p}; give a number from 0 to 1")));
        }
        if first[place] == second[place] {
            return Err(Error::invalid(format!(
                "first[{place}] and second[{place}] are both row {}; compare two rows",
                first[place]
            )));
        }
    }
    for (name, rows) in [("first", first), ("second", second)] {
        if let Some(place) = rows.iter().position(|&row| row < 0 || row as u64 >= count as u64) {
            return Err(Error::invalid(format!(
                "{name}[{place}] is {}, but there are {count} rows; give an index of at least 0 and below {count}",
                rows[place]
            )));
        }
    }
    room("count", count, 8 * size_of::<f64>())?;
    let rows: Vec<u32> = first.iter().chain(second).map(|&row| row as u32).collect();
    let won: Vec<f64> = probability.iter().copied().chain(probability.iter().map(|p| 1.0 - p)).collect();
    let won = sums(&won, &rows, count)?;
    let met = sums(&vec![1.0; rows.len()], &rows, count)?;
    Ok(won.iter().zip(met).map(|(won, met)| if met > 0.0 { won / met } else { 0.5 }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_input_is_reported() {
        let message = |first: &[i64], second: &[i64], probability: &[f64]| {
            win_rates(first, second, probability, 2).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
        };
        assert_eq!(message(&[0], &[1], &[1.5]), "probability[0] is 1.5; give a number from 0 to 1");
        assert_eq!(message(&[1], &[1], &[1.0]), "first[0] and second[0] are both row 1; compare two rows");
        assert_eq!(
            message(&[0], &[2], &[1.0]),
            "second[0] is 2, but there are 2 rows; give an index of at least 0 and below 2"
        );
        assert!(message(&[0], &[1], &[f64::NAN]).starts_with("probability[0] is NaN"));
        assert_eq!(message(&[], &[], &[]), "fine");
    }
}
