//! Branch decisions of entropy-triggered rollouts (ARPO, arXiv:2507.19849).

use crate::argument_checks::{finite, same_length};
use crate::ragged::Ragged;
use crate::{Error, Result, names};

names! {
    /// Aggregation of the token entropies of a segment.
    "reduce" Reduce {
        /// Sum, as in the public code: a short segment looks less uncertain.
        Sum = "sum",
        /// Mean.
        Mean = "mean",
    }
}

/// Return the entropy of each segment: over its first `limit` tokens, divided by the maximum `ln(vocabulary)`.
///
/// Token entropies are in nats. The public code computes them over the ten likeliest tokens, with `limit` 20. A segment
/// without tokens has entropy 0.
///
/// ```
/// use agentrl_compute::ragged::Ragged;
/// use agentrl_compute::rollout::{Reduce, segment_entropy};
///
/// let most = 4.0_f32.ln();
/// let entropies = [most, most, 0.0, most];
/// let segments = Ragged::new(&entropies, &[0, 3, 3, 4])?;
/// let found = segment_entropy(segments, 2, 4, Reduce::Sum)?;
/// assert!((found[0] - 2.0).abs() < 1e-6 && found[1] == 0.0 && (found[2] - 1.0).abs() < 1e-6);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if `limit` is 0, `vocabulary` is below 2, or an entropy is not finite.
pub fn segment_entropy(entropies: Ragged<'_, f32>, limit: usize, vocabulary: u64, reduce: Reduce) -> Result<Vec<f64>> {
    if limit == 0 {
        return Err(Error::invalid("limit is 0; give at least 1 token"));
    }
    if vocabulary < 2 {
        return Err(Error::invalid(format!("vocabulary is {vocabulary}; give at least 2 tokens")));
    }
    let largest = (vocabulary as f64).ln();
    let segment = |(row, tokens): (usize, &[f32])| {
        let first = &tokens[..tokens.len().min(limit)];
        let sum: f64 = first.iter().map(|&entropy| f64::from(entropy)).sum();
        if !sum.is_finite() {
            return Err(Error::invalid(format!(
                "entropies of segment {row} have sum {sum}; give finite entropies, or no tokens if they are unknown"
            )));
        }
        Ok(match reduce {
            Reduce::Sum => sum / largest,
            Reduce::Mean => sum / first.len().max(1) as f64 / largest,
        })
    };
    entropies.iter().enumerate().map(segment).collect()
}

/// Options of [`entropy_branches`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchOptions {
    /// Rollouts allowed in each group in total.
    pub budget: u32,
    /// Rows that one row may become in one call: itself and at most `beam - 1` copies.
    pub beam: u32,
    /// Probability of a copy if the entropy has not changed.
    pub probability: f64,
    /// Weight β of the change of entropy.
    pub entropy_weight: f64,
}

/// Columns of [`entropy_branches`]. A row is a rollout that is still active.
#[derive(Clone, Copy, Debug)]
pub struct BranchColumns<'a> {
    /// The row's group, an index into `existing`.
    pub groups: &'a [u32],
    /// Entropy of the segment just generated; 0 if unknown.
    pub entropy: &'a [f64],
    /// Entropy of the rollout's first segment; 0 if unknown.
    pub initial_entropy: &'a [f64],
    /// Random numbers in [0, 1): `beam - 1` for each row, in row order.
    pub uniform: &'a [f64],
    /// Number of rollouts of each group so far, including finished ones.
    pub existing: &'a [u32],
}

/// Return the number of copies to create of each row.
///
/// Rows are visited in order. Each may have at most
/// `min(beam - 1, budget - existing - copies made in its group before)` copies. Each copy has its own random number `u`
/// and is created iff `clip(u - β · (H - H_initial), 0, 1) <= probability`: with probability
/// `clip(probability + β · ΔH, 0, 1)`, or always if `probability` is 1. A group at or beyond its budget gets no copies.
///
/// ```
/// use agentrl_compute::rollout::{BranchColumns, BranchOptions, entropy_branches};
///
/// let options = BranchOptions { budget: 4, beam: 2, probability: 0.5, entropy_weight: 0.2 };
/// let columns = BranchColumns {
///     groups: &[0, 0, 0],
///     entropy: &[1.0, 2.0, 1.0],
///     initial_entropy: &[1.0, 1.0, 1.0],
///     uniform: &[0.6, 0.6, 0.1],
///     existing: &[3],
/// };
/// assert_eq!(entropy_branches(&columns, &options)?, [0, 1, 0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a group has no value in `existing`, a number is not finite, a random number is
/// outside [0, 1), `beam` is 0, or `probability` is outside [0, 1].
pub fn entropy_branches(columns: &BranchColumns<'_>, options: &BranchOptions) -> Result<Vec<u32>> {
    let &BranchColumns { groups, entropy, initial_entropy, uniform, existing } = columns;
    let &BranchOptions { budget, beam, probability, entropy_weight } = options;
    same_length("entropy", entropy.len(), "groups", groups.len())?;
    same_length("initial_entropy", initial_entropy.len(), "groups", groups.len())?;
    let Some(coins) = beam.checked_sub(1).map(|copies| copies as usize) else {
        return Err(Error::invalid("beam is 0; give at least 1 (no branching)"));
    };
    let rows = groups.len();
    if Some(uniform.len()) != rows.checked_mul(coins) {
        return Err(Error::invalid(format!(
            "uniform has {} values, but {rows} rows with beam {beam} need {coins} each; give {} numbers",
            uniform.len(),
            rows.saturating_mul(coins)
        )));
    }
    if !(0.0..=1.0).contains(&probability) {
        return Err(Error::invalid(format!("probability is {probability}; give a number from 0 to 1")));
    }
    if !entropy_weight.is_finite() {
        return Err(Error::invalid(format!("entropy_weight is {entropy_weight}; give a finite number")));
    }
    if let Some(index) = uniform.iter().position(|u| !(0.0..1.0).contains(u)) {
        return Err(Error::invalid(format!(
            "uniform[{index}] is {}; give numbers of at least 0 and below 1",
            uniform[index]
        )));
    }
    let mut remaining: Vec<u32> = existing.iter().map(|&existing| budget.saturating_sub(existing)).collect();
    let mut copies = Vec::with_capacity(groups.len());
    for (row, &group) in groups.iter().enumerate() {
        let change = finite("entropy", row, entropy[row])? - finite("initial_entropy", row, initial_entropy[row])?;
        let Some(remaining) = remaining.get_mut(group as usize) else {
            return Err(Error::invalid(format!(
                "groups[{row}] is {group}, but existing has {} values; give one for each group",
                existing.len()
            )));
        };
        let allowed = coins.min(*remaining as usize);
        let tossed = &uniform[row * coins..row * coins + allowed];
        let made =
            tossed.iter().filter(|&&u| (u - entropy_weight * change).clamp(0.0, 1.0) <= probability).count() as u32;
        *remaining -= made;
        copies.push(made);
    }
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::uniform;
    use proptest::prelude::*;

    fn message<T>(result: Result<T>) -> String {
        result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    const OPTIONS: BranchOptions = BranchOptions { budget: 4, beam: 2, probability: 0.5, entropy_weight: 0.2 };
    const COLUMNS: BranchColumns<'static> =
        BranchColumns { groups: &[0], entropy: &[1.0], initial_entropy: &[1.0], uniform: &[0.2], existing: &[1] };

    #[test]
    fn segments_by_hand() -> Result<()> {
        let entropies = [1.0, 2.0, 3.0, 4.0];
        let segments = Ragged::new(&entropies, &[1, 4, 4])?;
        let per_token = 1.0 / 100.0_f64.ln();
        let sums = segment_entropy(segments, 2, 100, Reduce::Sum)?;
        let means = segment_entropy(segments, 20, 100, Reduce::Mean)?;
        assert!((sums[0] - 5.0 * per_token).abs() < 1e-15 && sums[1] == 0.0);
        assert!((means[0] - 3.0 * per_token).abs() < 1e-15 && means[1] == 0.0);
        Ok(())
    }

    #[test]
    fn bad_segments_are_refused() -> Result<()> {
        let unknown = [f32::NAN, 1.0];
        let segments = Ragged::new(&unknown, &[1, 2, 2])?;
        assert_eq!(message(segment_entropy(segments, 20, 100, Reduce::Sum)), "fine");
        assert_eq!(message(segment_entropy(segments, 0, 100, Reduce::Sum)), "limit is 0; give at least 1 token");
        assert_eq!(message(segment_entropy(segments, 1, 1, Reduce::Sum)), "vocabulary is 1; give at least 2 tokens");
        assert_eq!(
            message(segment_entropy(Ragged::new(&unknown, &[0, 1])?, 20, 100, Reduce::Sum)),
            "entropies of segment 0 have sum NaN; give finite entropies, or no tokens if they are unknown"
        );
        assert_eq!((Reduce::from_name("sum")?, Reduce::from_name("mean")?), (Reduce::Sum, Reduce::Mean));
        assert_eq!(message(Reduce::from_name("max")), "reduce is \"max\"; use \"sum\" or \"mean\"");
        Ok(())
    }

    #[test]
    fn slots_are_given_in_order_until_the_budget_is_used() -> Result<()> {
        // Every draw branches; group 0 has three slots left, group 1 none, group 2 is over its budget.
        let columns = BranchColumns {
            groups: &[0, 1, 0, 2, 0],
            entropy: &[1.0; 5],
            initial_entropy: &[1.0; 5],
            uniform: &[0.0; 10],
            existing: &[5, 8, 9],
        };
        let options = BranchOptions { budget: 8, beam: 3, ..OPTIONS };
        assert_eq!(entropy_branches(&columns, &options)?, [2, 0, 1, 0, 0]);
        let no_beam = BranchColumns { uniform: &[], ..columns };
        assert_eq!(entropy_branches(&no_beam, &BranchOptions { beam: 1, ..options })?, [0; 5]);
        Ok(())
    }

    #[test]
    fn each_copy_has_its_own_coin_within_the_allowance() -> Result<()> {
        // One slot is left: only the first draw of the row is used, and it fails; the second would succeed.
        let columns = BranchColumns { uniform: &[0.9, 0.1], existing: &[3], ..COLUMNS };
        assert_eq!(entropy_branches(&columns, &BranchOptions { beam: 3, ..OPTIONS })?, [0]);
        let columns = BranchColumns { existing: &[2], ..columns };
        assert_eq!(entropy_branches(&columns, &BranchOptions { beam: 3, ..OPTIONS })?, [1]);
        // A draw equal to the probability branches.
        assert_eq!(entropy_branches(&BranchColumns { uniform: &[0.5], ..COLUMNS }, &OPTIONS)?, [1]);
        Ok(())
    }

    #[test]
    fn the_share_of_branches_follows_the_entropy() -> Result<()> {
        const ROWS: usize = 20_000;
        let draws: Vec<f64> = (0..ROWS as u64).map(|row| uniform(3, row)).collect();
        for (change, expected) in [(0.0, 0.5), (1.0, 0.7), (-2.0, 0.1), (10.0, 1.0), (-10.0, 0.0)] {
            let columns = BranchColumns {
                groups: &vec![0; ROWS],
                entropy: &vec![2.0 + change; ROWS],
                initial_entropy: &vec![2.0; ROWS],
                uniform: &draws,
                existing: &[0],
            };
            let options = BranchOptions { budget: u32::MAX, ..OPTIONS };
            let made: u32 = entropy_branches(&columns, &options)?.iter().sum();
            // Four standard errors of a fair coin.
            assert!((f64::from(made) / ROWS as f64 - expected).abs() < 4.0 * 0.5 / (ROWS as f64).sqrt(), "{change}");
        }
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        let with = |columns: BranchColumns<'_>| message(entropy_branches(&columns, &OPTIONS));
        let options = |options| message(entropy_branches(&COLUMNS, &options));
        assert_eq!(
            with(BranchColumns { entropy: &[], ..COLUMNS }),
            "entropy has 0 values, but groups has 1; give one value of each for every row"
        );
        assert_eq!(
            with(BranchColumns { initial_entropy: &[f64::NAN], ..COLUMNS }),
            "initial_entropy[0] is NaN, but must be finite; correct it or mark the row invalid"
        );
        assert_eq!(
            with(BranchColumns { uniform: &[], ..COLUMNS }),
            "uniform has 0 values, but 1 rows with beam 2 need 1 each"
        );
        assert_eq!(
            with(BranchColumns { uniform: &[1.0], ..COLUMNS }),
            "uniform[0] is 1; give numbers of at least 0 and below 1"
        );
        assert_eq!(
            with(BranchColumns { existing: &[], ..COLUMNS }),
            "groups[0] is 0, but existing has 0 values; give one for each group"
        );
        assert_eq!(options(BranchOptions { beam: 0, ..OPTIONS }), "beam is 0; give at least 1 (no branching)");
        assert_eq!(
            options(BranchOptions { probability: 1.5, ..OPTIONS }),
            "probability is 1.5; give a number from 0 to 1"
        );
        assert_eq!(
            options(BranchOptions { entropy_weight: f64::INFINITY, ..OPTIONS }),
            "entropy_weight is inf; give a finite number"
        );
    }

    proptest! {
        /// Compare with the naive loop that the public code describes, one slot at a time.
        #[test]
        fn as_the_naive_loop(
            rows in prop::collection::vec((0_u32..3, 0.0_f64..3.0, 0.0_f64..3.0), 0..12),
            existing in prop::collection::vec(0_u32..6, 3),
            (budget, beam) in (0_u32..8, 1_u32..5),
            seed in any::<u64>(),
        ) {
            let groups: Vec<u32> = rows.iter().map(|row| row.0).collect();
            let entropy: Vec<f64> = rows.iter().map(|row| row.1).collect();
            let initial: Vec<f64> = rows.iter().map(|row| row.2).collect();
            let coins = beam as usize - 1;
            let draws: Vec<f64> = (0..(rows.len() * coins) as u64).map(|index| uniform(seed, index)).collect();
            let options = BranchOptions { budget, beam, probability: 0.5, entropy_weight: 0.4 };
            let columns = BranchColumns {
                groups: &groups,
                entropy: &entropy,
                initial_entropy: &initial,
                uniform: &draws,
                existing: &existing,
            };
            let found = entropy_branches(&columns, &options)?;
            for group in 0..3_u32 {
                let remaining = i64::from(budget) - i64::from(existing[group as usize]);
                let mut created = 0;
                for row in (0..rows.len()).filter(|&row| groups[row] == group) {
                    let most = (i64::from(beam) - 1).min(remaining - created);
                    let before = created;
                    for coin in 0..most.max(0) {
                        let p = draws[row * coins + coin as usize] - 0.4 * (entropy[row] - initial[row]);
                        if p.clamp(0.0, 1.0) <= 0.5 {
                            created += 1;
                        }
                    }
                    prop_assert_eq!(i64::from(found[row]), created - before);
                }
            }
        }
    }
}
