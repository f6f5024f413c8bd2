//! Rewards by rank within a group, for max@k and pass@k.

use crate::argument_checks::{column, same_length};
use crate::group::group_count;
use crate::rows_by_group::Members;
use crate::{Error, Result};

/// Options of [`max_at_k`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxAtK<'a> {
    /// The `k` of max@k: number of rows per subset.
    pub k: u32,
    /// Subtract the value that the other rows reach without this row: lower variance, same expectation (PKPO).
    pub leave_one_out: bool,
    /// `π/μ - 1` of each row for the first-order off-policy correction; `None` if rows are on-policy.
    pub ratio_excess: Option<&'a [f64]>,
}

/// Rewards whose policy gradient is an unbiased estimate of the gradient of the expected best of `k` rows of a group,
/// for `n ≥ k`.
///
/// With rewards ascending, `r̃_i = [C(i-1, k-1) r_i + Σ_{j>i} C(j-2, k-2) r_j] / C(n, k)`. The sum of all `r̃_i`,
/// divided by `k`, estimates max@k, and pass@k for rewards of 0 and 1. With `leave_one_out`, `k/n · max@(k-1)` of the
/// other rows is subtracted. Invalid rows get 0. Takes O(n log n). Sources: arXiv:2510.23393, PKPO arXiv:2505.15201.
///
/// ```
/// use agentrl_compute::reward::{MaxAtK, max_at_k};
///
/// let options = MaxAtK { k: 2, leave_one_out: true, ratio_excess: None };
/// let found = max_at_k(&[3.0, 0.0, 1.0, 2.0], &[0; 4], None, &options)?;
/// assert!(found.iter().zip([1.0, 0.0, 1.0 / 6.0, 0.5]).all(|(a, b)| (a - b).abs() < 1e-15));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid reward is not finite, `k` is 0, a group has fewer than `k` valid rows, or
/// both `leave_one_out` and `ratio_excess` are given.
pub fn max_at_k(rewards: &[f64], groups: &[u32], valid: Option<&[bool]>, options: &MaxAtK<'_>) -> Result<Vec<f64>> {
    let ranked = Ranked::new(rewards, groups, valid)?;
    let k = options.k as usize;
    if k == 0 {
        return Err(Error::invalid("k is 0; give at least 1"));
    }
    if let Some(excess) = options.ratio_excess {
        column("ratio_excess", excess, "rewards", rewards.len(), valid)?;
        if options.leave_one_out {
            return Err(Error::invalid(
                "leave_one_out is True, but ratio_excess is given too; leave out one of the two",
            ));
        }
    }
    let mut made = vec![0.0; rewards.len()];
    for (group, rows) in ranked.groups() {
        if rows.len() < k {
            return Err(Error::invalid(format!(
                "group {group} has {} valid rows, but max@k needs at least k = {k}; lower k or mark the group invalid",
                rows.len()
            )));
        }
        let sorted: Vec<f64> = rows.iter().map(|&row| rewards[row as usize]).collect();
        let excess: Option<Vec<f64>> =
            options.ratio_excess.map(|excess| rows.iter().map(|&row| excess[row as usize]).collect());
        let shares = of_subsets(&sorted, k, excess.as_deref());
        let without = options.leave_one_out.then(|| of_others(&sorted, k));
        for (place, &row) in rows.iter().enumerate() {
            made[row as usize] = shares[place] - without.as_ref().map_or(0.0, |without| without[place]);
        }
    }
    Ok(made)
}

/// `C(i-1-d, k-1-d) / C(n, k)` for ranks `i = 1..=n`: the share of `k`-subsets that have rank `i` as their best row and
/// contain `d` given lower rows.
fn shares(count: usize, k: usize, given: usize) -> Vec<f64> {
    let mut share = (0..=given).map(|j| (k as f64 - j as f64) / (count as f64 - j as f64)).product::<f64>();
    let mut made = vec![0.0; count];
    if k <= given || count <= given {
        return made;
    }
    for rank in (given + 1..=count).rev() {
        made[rank - 1] = share;
        // From rank i to i - 1: C(i-2-d, k-1-d) / C(i-1-d, k-1-d) = (i - k) / (i - 1 - d).
        share *= rank.saturating_sub(k) as f64 / (rank - 1 - given).max(1) as f64;
    }
    made
}

fn of_subsets(sorted: &[f64], k: usize, excess: Option<&[f64]>) -> Vec<f64> {
    let count = sorted.len();
    let [alone, with_one, with_two] = [0, 1, 2].map(|given| shares(count, k, given));
    let excess = |place: usize| excess.map_or(0.0, |excess| excess[place]);
    let mut below: f64 = (0..count).map(excess).sum();
    // Sums over the ranks above i: `fixed` has the terms without δ_i, `scaled` the factors of δ_i.
    let (mut fixed, mut scaled) = (0.0, 0.0);
    let mut made = vec![0.0; count];
    for place in (0..count).rev() {
        below -= excess(place);
        let own = alone[place] * (1.0 + excess(place)) + with_one[place] * below;
        made[place] = own * sorted[place] + fixed + excess(place) * scaled;
        fixed += sorted[place] * (with_one[place] * (1.0 + excess(place)) + with_two[place] * below);
        scaled += sorted[place] * (with_one[place] - with_two[place]);
    }
    made
}

/// Return `k/n · max@(k-1)` of all other rows, for each row.
fn of_others(sorted: &[f64], k: usize) -> Vec<f64> {
    let count = sorted.len();
    if k == 1 {
        return vec![0.0; count];
    }
    let share = shares(count - 1, k - 1, 0);
    let above: f64 = (1..count).map(|place| share[place - 1] * sorted[place]).sum();
    let (mut above, mut below) = (above, 0.0);
    let mut made = Vec::with_capacity(count);
    for place in 0..count {
        made.push((below + above) * k as f64 / count as f64);
        // Step to the next row: the current row joins those below, and the next row leaves those above.
        if place + 1 < count {
            below += share[place] * sorted[place];
            above -= share[place] * sorted[place + 1];
        }
    }
    made
}

/// Give the best row of each group its lead over the second best, and every other row 0 (arXiv:2503.19595; verl's
/// `grpo_passk` without its division by the standard deviation). The only row of a group gets 0.
///
/// ```
/// use agentrl_compute::reward::top_gap;
///
/// assert_eq!(top_gap(&[1.0, 4.0, 3.0, 9.0], &[0, 0, 0, 1], None)?, [0.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ or a valid reward is not finite.
pub fn top_gap(rewards: &[f64], groups: &[u32], valid: Option<&[bool]>) -> Result<Vec<f64>> {
    let ranked = Ranked::new(rewards, groups, valid)?;
    let mut made = vec![0.0; rewards.len()];
    for (_, rows) in ranked.groups() {
        if let [.., second, best] = rows[..] {
            made[best as usize] = rewards[best as usize] - rewards[second as usize];
        }
    }
    Ok(made)
}

/// The valid rows of each group by ascending reward; ties keep the row order.
struct Ranked<'a> {
    members: Members,
    rewards: &'a [f64],
}

impl<'a> Ranked<'a> {
    fn new(rewards: &'a [f64], groups: &[u32], valid: Option<&[bool]>) -> Result<Self> {
        same_length("groups", groups.len(), "rewards", rewards.len())?;
        crate::argument_checks::mask_length(valid, "rewards", rewards.len())?;
        column("rewards", rewards, "rewards", rewards.len(), valid)?;
        Ok(Self { members: Members::of(groups, group_count("groups", groups)?, valid), rewards })
    }

    fn groups(&self) -> impl Iterator<Item = (usize, Vec<u32>)> {
        let sorted = |rows: &[u32]| {
            let mut rows = rows.to_vec();
            rows.sort_by(|&a, &b| self.rewards[a as usize].total_cmp(&self.rewards[b as usize]));
            rows
        };
        self.members
            .iter()
            .enumerate()
            .filter(|(_, rows)| !rows.is_empty())
            .map(move |(group, rows)| (group, sorted(rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(rewards: &[f64], k: u32, leave_one_out: bool) -> Result<Vec<f64>> {
        let options = MaxAtK { k, leave_one_out, ratio_excess: None };
        max_at_k(rewards, &vec![0; rewards.len()], None, &options)
    }

    /// Return all subsets of `0..count` with `size` members.
    fn subsets(count: usize, size: usize) -> Vec<Vec<usize>> {
        (0_u32..1 << count)
            .filter(|mask| mask.count_ones() as usize == size)
            .map(|mask| (0..count).filter(|place| mask >> place & 1 == 1).collect())
            .collect()
    }

    fn best(rewards: &[f64], members: &[usize]) -> f64 {
        members.iter().map(|&row| rewards[row]).fold(f64::NEG_INFINITY, f64::max)
    }

    #[test]
    fn by_hand() -> Result<()> {
        let close = |found: Vec<f64>, expected: [f64; 4]| {
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        };
        close(plain(&[0.0, 1.0, 2.0, 3.0], 2, false)?, [1.0, 1.0, 7.0 / 6.0, 1.5]);
        close(plain(&[0.0, 1.0, 2.0, 3.0], 2, true)?, [0.0, 1.0 / 6.0, 0.5, 1.0]);
        close(plain(&[4.0, 8.0, 12.0, 16.0], 1, true)?, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(plain(&[], 3, false)?, Vec::<f64>::new());
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        let message = |result: Result<Vec<f64>>| result.map_or_else(|error| error.to_string(), |_| "fine".to_owned());
        assert_eq!(
            message(plain(&[1.0, 2.0], 3, false)),
            "group 0 has 2 valid rows, but max@k needs at least k = 3; lower k or mark the group invalid"
        );
        assert_eq!(message(plain(&[1.0], 0, false)), "k is 0; give at least 1");
        let both = MaxAtK { k: 1, leave_one_out: true, ratio_excess: Some(&[0.0]) };
        assert!(
            message(max_at_k(&[1.0], &[0], None, &both))
                .starts_with("leave_one_out is True, but ratio_excess is given")
        );
        assert!(message(top_gap(&[f64::NAN], &[0], None)).starts_with("rewards[0] is NaN"));
        assert_eq!(message(top_gap(&[f64::NAN], &[0], Some(&[false]))), "fine");
    }

    proptest! {
        #[test]
        fn as_over_all_subsets(rewards in prop::collection::vec(-3_i8..4, 1..8), pick in any::<u32>(), seed in any::<u64>()) {
            let rewards: Vec<f64> = rewards.into_iter().map(f64::from).collect();
            let count = rewards.len();
            let k = pick as usize % count + 1;
            let excess: Vec<f64> = (0..count as u64).map(|row| crate::rng::uniform(seed, row) - 0.5).collect();
            let sets = subsets(count, k);
            let found = plain(&rewards, k as u32, false)?;
            let less = plain(&rewards, k as u32, true)?;
            let options = MaxAtK { k: k as u32, leave_one_out: false, ratio_excess: Some(&excess) };
            let corrected = max_at_k(&rewards, &vec![0; count], None, &options)?;
            for row in 0..count {
                let own = sets.iter().filter(|set| set.contains(&row));
                let expected = own.clone().map(|set| best(&rewards, set)).sum::<f64>() / sets.len() as f64;
                prop_assert!((found[row] - expected).abs() < 1e-12);
                // To first order, the ratio of a subset is 1 + Σ δ.
                let ratio = |set: &[usize]| 1.0 + set.iter().map(|&row| excess[row]).sum::<f64>();
                let expected_ratio = own.map(|set| best(&rewards, set) * ratio(set)).sum::<f64>() / sets.len() as f64;
                prop_assert!((corrected[row] - expected_ratio).abs() < 1e-12, "{} {expected_ratio}", corrected[row]);
                let others: Vec<f64> = (0..count).filter(|&other| other != row).map(|other| rewards[other]).collect();
                let others_sets = subsets(count - 1, k - 1);
                let without = if k == 1 { 0.0 } else {
                    others_sets.iter().map(|set| best(&others, set)).sum::<f64>() / others_sets.len() as f64
                };
                prop_assert!((less[row] - (expected - k as f64 / count as f64 * without)).abs() < 1e-12);
            }
        }
    }
}
