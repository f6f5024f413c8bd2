//! Selection of rows or tokens in each group by score, as masks.

use super::top_of_column::best_of_checked;
use super::top_options::{Amount, Ties, Top};
use crate::argument_checks::{column, mask_length, same_length};
use crate::group::{Columns, group_count, quantile};
use crate::quantile::Interpolation;
use crate::rng::structural_seed;
use crate::rows_by_group::Members;
use crate::{Float, Result, thread_pool};

/// Choose the rows of each group with the largest scores, or the smallest. Every row counts once. O(n).
///
/// ```
/// use agentrl_compute::group::Columns;
/// use agentrl_compute::weight::{Amount, Ties, Top, top};
///
/// let options = Top { amount: Amount::Count(1), largest: true, ties: Ties::First };
/// let chosen = top(&Columns::new("scores", &[1.0, 3.0, 2.0, 9.0], &[0, 0, 0, 1]), &options)?;
/// assert_eq!(chosen, [false, true, false, true]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, groups are not dense or a valid score is not finite.
pub fn top<T: Float>(columns: &Columns<'_, T>, options: &Top) -> Result<Vec<bool>> {
    let columns = Columns { weights: None, units: None, ..*columns };
    let sign = if options.largest { -1.0 } else { 1.0 };
    let (count, sorted) = columns.check()?;
    if count == 1 {
        columns.check_rows()?;
        return best_of_checked(columns.values, columns.valid, options);
    }
    // The last chosen score of each group, and the number of chosen rows with exactly this score.
    let mut bounds = columns.grouped(count, sorted)?.each(|group| {
        let values = group.votes().values;
        let Some(last) = options.amount.of(values.len()).checked_sub(1) else { return Ok((f64::NEG_INFINITY, 0)) };
        for value in &mut *values {
            *value *= sign;
        }
        let (before, &mut bound, _) = values.select_nth_unstable_by(last, f64::total_cmp);
        let equal = last + 1 - before.iter().filter(|&&score| score < bound).count();
        Ok((bound, if options.ties == Ties::All { usize::MAX } else { equal }))
    })?;
    let choose = |row: usize| {
        let (group, score) = (columns.groups[row] as usize, sign * columns.values[row].to_f64());
        let (bound, equal) = &mut bounds[group];
        let tie = score - *bound == 0.0 && *equal > 0;
        let chosen = columns.counts(row) && (score < *bound || tie);
        *equal -= usize::from(chosen && tie);
        chosen
    };
    Ok((0..columns.values.len()).map(choose).collect())
}

/// Options of [`above_quantile`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AboveQuantile {
    /// From 0 to 1.
    pub q: f64,
    /// Interpolation of a quantile that falls between two values.
    pub interpolation: Interpolation,
    /// Whether a score must be above the quantile; otherwise it may equal it.
    pub strict: bool,
}

/// Choose the rows of each group whose score is at least a quantile of its scores, or above it. Every row counts once.
///
/// ```
/// use agentrl_compute::group::Columns;
/// use agentrl_compute::quantile::Interpolation;
/// use agentrl_compute::weight::{AboveQuantile, above_quantile};
///
/// let options = AboveQuantile { q: 0.5, interpolation: Interpolation::Linear, strict: false };
/// let chosen = above_quantile(&Columns::new("scores", &[1.0, 2.0, 3.0, 4.0], &[0; 4]), &options)?;
/// assert_eq!(chosen, [false, false, true, true]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// As [`top`], or if `q` is outside [0, 1].
pub fn above_quantile<T: Float>(columns: &Columns<'_, T>, options: &AboveQuantile) -> Result<Vec<bool>> {
    let columns = Columns { weights: None, units: None, ..*columns };
    let thresholds = quantile(&columns, options.q, options.interpolation)?;
    let mut chosen = vec![false; columns.values.len()];
    thread_pool::fill(&mut chosen, |start, piece| {
        for (row, chosen) in (start..).zip(piece) {
            let (score, threshold) = (columns.values[row].to_f64(), thresholds[columns.groups[row] as usize]);
            let above = if options.strict { score > threshold } else { score >= threshold };
            *chosen = above && columns.counts(row);
        }
        Ok(())
    })?;
    Ok(chosen)
}

/// Choose the rows of each group whose scores have the largest variance among all subsets of that size: the lowest `i`
/// and the highest `count - i`, for the best `i`. If scores are equal, the first rows are chosen. O(n log n). Sources:
/// PODS, arXiv:2504.13818; D3S, arXiv:2509.22115.
///
/// ```
/// use agentrl_compute::group::Columns;
/// use agentrl_compute::weight::{Amount, max_variance_subset};
///
/// let columns = Columns::new("scores", &[0.0, 0.5, 0.6, 1.0], &[0; 4]);
/// let chosen = max_variance_subset(&columns, Amount::Count(2))?;
/// assert_eq!(chosen, [true, false, false, true]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// As [`top`].
pub fn max_variance_subset(columns: &Columns<'_, f64>, amount: Amount) -> Result<Vec<bool>> {
    let scores = columns.values;
    choose(columns, |rows| {
        let count = amount.of(rows.len());
        let mut order = rows.to_vec();
        order.sort_unstable_by(|&a, &b| scores[a as usize].total_cmp(&scores[b as usize]).then(a.cmp(&b)));
        let (Some(&lowest), Some(&highest), true) = (order.first(), order.last(), count > 0) else { return Vec::new() };
        // Relative to the lowest score and to the range, so that neither an offset nor the scale costs digits.
        let range = scores[highest as usize] / 2.0 - scores[lowest as usize] / 2.0;
        let relative = |row: u32| {
            let above = scores[row as usize] / 2.0 - scores[lowest as usize] / 2.0;
            if range > 0.0 { above / range - 0.5 } else { 0.0 }
        };
        let sums =
            |rows: &[u32]| rows.iter().fold((0.0, 0.0), |(s, q), &row| (s + relative(row), q + relative(row).powi(2)));
        let spread = |(sum, squares): (f64, f64)| squares - sum * sum / count as f64;
        let mut taken = sums(&order[..count]);
        let (mut best, mut below) = (spread(taken), count);
        for low in (0..count).rev() {
            // One row less from the lowest, one more from the highest.
            let (out, into) = (relative(order[low]), relative(order[order.len() - count + low]));
            taken = (taken.0 - out + into, taken.1 - out * out + into * into);
            if spread(taken) > best + 1e-12 {
                (best, below) = (spread(taken), low);
            }
        }
        [&order[..below], &order[order.len() - (count - below)..]].concat()
    })
}

/// Options of [`quota`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Number of rows of each group to choose.
    pub target: usize,
    /// The smallest numbers of failures and of successes, as far as there are enough.
    pub at_least: (usize, usize),
    /// Seed of the random choice of failures; `None`: the first ones.
    pub seed: Option<u64>,
}

/// Choose `target` rows of each group, successes and failures in about their proportion: the successes with the
/// smallest penalty, and failures without preference (Resample-on-Correct of rStar2-Agent, arXiv:2508.20722).
///
/// If both kinds would fall to their minimum, all rows are chosen. A group with fewer rows than `target` gets none.
///
/// ```
/// use agentrl_compute::group::Columns;
/// use agentrl_compute::weight::{Quota, quota};
///
/// let success = [true, true, true, false, false, false];
/// let options = Quota { target: 4, at_least: (1, 1), seed: None };
/// let penalties = Columns::new("penalties", &[0.9, 0.1, 0.5, 0.0, 0.0, 0.0], &[0; 6]);
/// let chosen = quota(&penalties, &success, &[0, 1, 2, 3, 4, 5], &options)?;
/// assert_eq!(chosen, [false, true, true, true, true, false]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// As [`top`].
pub fn quota(columns: &Columns<'_, f64>, success: &[bool], ids: &[i64], options: &Quota) -> Result<Vec<bool>> {
    let penalties = columns.values;
    same_length("success", success.len(), columns.name, penalties.len())?;
    same_length("ids", ids.len(), columns.name, penalties.len())?;
    let target = options.target;
    choose(columns, |rows| {
        if rows.len() < target {
            return Vec::new();
        }
        let (mut won, mut lost): (Vec<u32>, Vec<u32>) = rows.iter().partition(|&&row| success[row as usize]);
        let share = |members: usize| (members as f64 * target as f64 / rows.len() as f64).round_ties_even() as usize;
        let least = (options.at_least.0.min(lost.len()), options.at_least.1.min(won.len()));
        let (mut failures, mut successes) = (share(lost.len()), share(won.len()));
        if failures <= least.0 && successes <= least.1 {
            (failures, successes) = (lost.len(), won.len());
        } else if failures <= least.0 {
            failures = least.0.min(target);
            successes = target - failures;
        } else {
            successes = if successes <= least.1 { least.1.min(target) } else { target - failures };
            failures = target - successes;
        }
        won.sort_by(|&a, &b| penalties[a as usize].total_cmp(&penalties[b as usize]));
        if let Some(seed) = options.seed {
            lost.sort_by_key(|&row| (structural_seed(&[seed, ids[row as usize].cast_unsigned()]), row));
        }
        won.truncate(successes);
        won.extend(lost.iter().take(failures));
        won
    })
}

/// Check the columns, then let `pick` choose among the valid rows of each group.
fn choose(columns: &Columns<'_, f64>, pick: impl Fn(&[u32]) -> Vec<u32> + Sync) -> Result<Vec<bool>> {
    let Columns { name, values: scores, groups, valid, .. } = *columns;
    same_length("groups", groups.len(), name, scores.len())?;
    mask_length(valid, name, scores.len())?;
    column(name, scores, name, scores.len(), valid)?;
    let members = Members::of(groups, group_count("groups", groups)?, valid);
    let picked = thread_pool::map(members.pieces(), |groups| {
        Ok(groups.flat_map(|group| pick(members.rows(group))).collect::<Vec<_>>())
    })?;
    let mut chosen = vec![false; scores.len()];
    picked.into_iter().flatten().for_each(|row| chosen[row as usize] = true);
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::group::testing::{Group, masked_groups};
    use proptest::prelude::*;

    #[test]
    fn equal_scores() -> Result<()> {
        let pick = |ties| {
            let options = Top { amount: Amount::Count(2), largest: true, ties };
            top(&Columns::new("scores", &[1.0, 2.0, 2.0, 2.0], &[0; 4]), &options)
        };
        assert_eq!(pick(Ties::First)?, [false, true, true, false]);
        assert_eq!(pick(Ties::All)?, [false, true, true, true]);
        assert_eq!(
            max_variance_subset(&Columns::new("scores", &[0.3; 4], &[0; 4]), Amount::Count(2))?,
            [true, true, false, false]
        );
        Ok(())
    }

    #[test]
    fn quotas_of_the_reference() -> Result<()> {
        let choose = |won: usize, lost: usize, target, at_least| {
            let success: Vec<bool> = (0..won + lost).map(|row| row < won).collect();
            let ids: Vec<i64> = (0..(won + lost) as i64).collect();
            let options = Quota { target, at_least, seed: Some(1) };
            let (penalties, groups) = (vec![0.0; won + lost], vec![0; won + lost]);
            let chosen = quota(&Columns::new("penalties", &penalties, &groups), &success, &ids, &options)?;
            let kept = |wanted: bool| {
                chosen.iter().zip(&success).filter(|&(&chosen, &success)| chosen && success == wanted).count()
            };
            Ok::<_, Error>((kept(true), kept(false)))
        };
        assert_eq!(choose(16, 16, 16, (2, 2))?, (8, 8));
        assert_eq!(choose(24, 8, 16, (2, 2))?, (12, 4));
        assert_eq!(choose(31, 1, 16, (2, 2))?, (15, 1));
        assert_eq!(choose(1, 31, 16, (2, 2))?, (1, 15));
        assert_eq!(choose(2, 2, 3, (2, 2))?, (2, 2));
        assert_eq!(choose(3, 3, 8, (2, 2))?, (0, 0));
        Ok(())
    }

    proptest! {
        #[test]
        fn top_rows_are_no_smaller_than_the_others((group, valid) in masked_groups(), count in 0_usize..6, largest in any::<bool>()) {
            let Group { values, groups, count: groups_count, .. } = group;
            let columns = Columns { valid: Some(&valid), ..Columns::new("scores", &values, &groups) };
            let options = Top { amount: Amount::Count(count), largest, ties: Ties::First };
            let exact = top(&columns, &options)?;
            let all = top(&columns, &Top { ties: Ties::All, ..options })?;
            for id in 0..groups_count {
                let rows: Vec<usize> = (0..values.len()).filter(|&row| groups[row] as usize == id && valid[row]).collect();
                let mut sorted = rows.clone();
                sorted.sort_by(|&a, &b| if largest { values[b].total_cmp(&values[a]) } else { values[a].total_cmp(&values[b]) });
                let expected: Vec<usize> = sorted[..count.min(rows.len())].to_vec();
                prop_assert!(rows.iter().all(|row| exact[*row] == expected.contains(row)));
                prop_assert!(rows.iter().all(|&row| all[row] == expected.iter().any(|&other| (values[other] - values[row]).abs() == 0.0)));
            }
            prop_assert!((0..values.len()).all(|row| valid[row] || !(exact[row] || all[row])));
        }

        #[test]
        fn failures_follow_the_names_of_rows(order in Just((0..10_usize).collect::<Vec<_>>()).prop_shuffle(), seed in any::<u64>()) {
            let options = Quota { target: 5, at_least: (2, 2), seed: Some(seed) };
            let draw = |order: &[usize]| {
                let (ids, success): (Vec<i64>, Vec<bool>) = order.iter().map(|&row| (100 + row as i64, row < 4)).unzip();
                quota(&Columns::new("penalties", &[0.0; 10], &[0; 10]), &success, &ids, &options)
            };
            let ours = draw(&(0..10).collect::<Vec<_>>())?;
            let theirs = draw(&order)?;
            prop_assert_eq!(ours.iter().filter(|&&chosen| chosen).count(), 5);
            prop_assert!(order.iter().zip(theirs).all(|(&row, chosen)| row < 4 || chosen == ours[row]));
        }

        #[test]
        fn the_variance_is_that_of_the_best_subset(scores in prop::collection::vec(-4_i8..5, 1..9), pick in any::<u32>()) {
            let scores: Vec<f64> = scores.into_iter().map(f64::from).collect();
            let count = pick as usize % scores.len() + 1;
            let spread = |rows: &[usize]| {
                let mean = rows.iter().map(|&row| scores[row]).sum::<f64>() / rows.len() as f64;
                rows.iter().map(|&row| (scores[row] - mean).powi(2)).sum::<f64>()
            };
            let chosen = max_variance_subset(&Columns::new("scores", &scores, &vec![0; scores.len()]), Amount::Count(count))?;
            let rows: Vec<usize> = (0..scores.len()).filter(|&row| chosen[row]).collect();
            prop_assert_eq!(rows.len(), count);
            let best = (0_u32..1 << scores.len())
                .filter(|mask| mask.count_ones() as usize == count)
                .map(|mask| spread(&(0..scores.len()).filter(|row| mask >> row & 1 == 1).collect::<Vec<_>>()))
                .fold(0.0, f64::max);
            prop_assert!((spread(&rows) - best).abs() < 1e-9);
        }
    }
}
