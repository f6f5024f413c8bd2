//! Rank correlation of scores with a known order (Kendall's tau).

use crate::argument_checks::{finite, same_length};
use crate::ragged::Ragged;
use crate::{Error, Result};

/// Kendall's tau of each row: `(concordant - discordant) / ordered`, where `ordered` is the number of pairs with
/// different `truths`. For a row of two values the result is 1 if the scores agree with `truths`, else 0.
///
/// A pair with equal scores is neither concordant nor discordant. A row with a NaN score, or without an ordered pair,
/// gets 0. Takes `O(n log n)` per row. Source: URPO, arXiv:2507.17515.
///
/// ```
/// use agentrl_compute::ragged::Ragged;
/// use agentrl_compute::reward::rank_agreement;
///
/// let (scores, truths) = ([0.9, 0.5, 0.1, 7.0, 8.0], [3.0, 1.0, 2.0, 1.0, 0.0]);
/// assert_eq!(rank_agreement(Ragged::new(&scores, &[0, 3, 5])?, &truths)?, [1.0 / 3.0, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, offsets do not cover the scores, or a truth is not finite.
pub fn rank_agreement(scores: Ragged<'_, f64>, truths: &[f64]) -> Result<Vec<f64>> {
    same_length("truths", truths.len(), "scores", scores.values().len())?;
    scores.covered("scores")?;
    for (place, &truth) in truths.iter().enumerate() {
        finite("truths", place, truth)?;
    }
    if let Some(place) = scores.values().iter().position(|score| score.is_infinite()) {
        return Err(Error::invalid(format!(
            "scores[{place}] is {}; give a finite number, or NaN if it is unknown",
            scores.values()[place]
        )));
    }
    Ok((0..scores.len())
        .map(|row| scores.range(row))
        .map(|row| tau(&scores.values()[row.clone()], &truths[row]))
        .collect())
}

fn tau(scores: &[f64], truths: &[f64]) -> f64 {
    if scores.iter().any(|score| score.is_nan()) {
        return 0.0;
    }
    let mut sorted = scores.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_unstable_by(|&a, &b| truths[a].total_cmp(&truths[b]));
    let mut below = Counts(vec![0; scores.len() + 1]);
    let (mut concordant, mut discordant, mut pairs) = (0_u64, 0_u64, 0_u64);
    let mut seen = 0;
    // The truths ascend, so `>=` means equal.
    for equal in order.chunk_by(|&a, &b| truths[a] >= truths[b]) {
        for &place in equal {
            let least = sorted.partition_point(|&score| score < scores[place]);
            let most = sorted.partition_point(|&score| score <= scores[place]);
            concordant += below.before(least);
            discordant += seen - below.before(most);
            pairs += seen;
        }
        for &place in equal {
            below.add(sorted.partition_point(|&score| score < scores[place]));
        }
        seen += equal.len() as u64;
    }
    match (scores.len(), pairs) {
        (_, 0) => 0.0,
        (2, _) => concordant as f64,
        _ => (concordant as f64 - discordant as f64) / pairs as f64,
    }
}

/// Number of scores at each rank, with prefix sums in `O(log n)` (a Fenwick tree).
struct Counts(Vec<u64>);

impl Counts {
    fn add(&mut self, place: usize) {
        let mut at = place + 1;
        while at < self.0.len() {
            self.0[at] += 1;
            at += at & at.wrapping_neg();
        }
    }

    fn before(&self, place: usize) -> u64 {
        let (mut at, mut sum) = (place, 0);
        while at > 0 {
            sum += self.0[at];
            at -= at & at.wrapping_neg();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Compare every pair directly.
    fn naive(scores: &[f64], truths: &[f64]) -> f64 {
        let (mut concordant, mut discordant, mut pairs) = (0.0, 0.0, 0.0);
        for a in 0..scores.len() {
            for b in (0..scores.len()).filter(|&b| truths[a] < truths[b]) {
                pairs += 1.0;
                concordant += f64::from(u8::from(scores[a] < scores[b]));
                discordant += f64::from(u8::from(scores[a] > scores[b]));
            }
        }
        if pairs == 0.0 {
            0.0
        } else if scores.len() == 2 {
            concordant
        } else {
            (concordant - discordant) / pairs
        }
    }

    #[test]
    fn rows_by_hand() -> Result<()> {
        let scores = [1.0, 2.0, 3.0, 3.0, 2.0, 1.0, 1.0, 1.0, 2.0, f64::NAN, 1.0, 5.0, 4.0];
        let truths = [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 1.0, 2.0];
        let found = rank_agreement(Ragged::new(&scores, &[0, 3, 6, 9, 11, 13, 13])?, &truths)?;
        assert_eq!(found, [1.0, -1.0, 2.0 / 3.0, 0.0, 0.0, 0.0]);
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        let message = |scores: &[f64], offsets: &[i64], truths: &[f64]| {
            let found = Ragged::new(scores, offsets).and_then(|scores| rank_agreement(scores, truths));
            found.map_or_else(|error| error.to_string(), |found| format!("{found:?}"))
        };
        assert_eq!(
            message(&[1.0], &[0, 1], &[]),
            "truths has 0 values, but scores has 1; give one value of each for every row"
        );
        assert!(
            message(&[1.0, 2.0], &[0, 1], &[1.0, 2.0]).starts_with("offsets go from 0 to 1, but scores has 2 values")
        );
        assert!(message(&[1.0], &[0, 1], &[f64::NAN]).starts_with("truths[0] is NaN"));
        assert!(
            message(&[f64::INFINITY], &[0, 1], &[1.0]).starts_with("scores[0] is inf; give a finite number, or NaN")
        );
    }

    proptest! {
        #[test]
        fn as_every_pair_by_itself(rows in prop::collection::vec((0..4_i8, 0..4_i8), 0..12)) {
            let (scores, truths): (Vec<f64>, Vec<f64>) = rows.iter().map(|&(a, b)| (f64::from(a), f64::from(b))).unzip();
            let found = rank_agreement(Ragged::new(&scores, &[0, scores.len() as i64])?, &truths)?;
            prop_assert_eq!(found, [naive(&scores, &truths)]);
        }
    }
}
