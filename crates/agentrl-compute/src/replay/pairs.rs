//! Preference pairs: a better and a worse row of one group, for losses that compare two answers.

use crate::argument_checks::{all_finite, same_length, within};
use crate::group::group_count;
use crate::rows_by_group::Members;
use crate::{Result, names};

names! {
    /// Rule that pairs the rows of a group.
    "matching" Matching {
        /// The row with the largest score and the row with the smallest: one pair per group.
        Extremes = "extremes",
        /// Every row with every row that has a smaller score.
        All = "all",
        /// The largest with the smallest, the second largest with the second smallest, and so on; no row is used twice.
        Disjoint = "disjoint",
        /// Every row with the lower-scored row whose length is nearest.
        Nearest = "nearest",
    }
}

/// Options of [`pairs`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pairing {
    /// Rule that pairs the rows of a group.
    pub matching: Matching,
    /// Minimum difference between the scores of the better and the worse row; with 0, the better score must be larger.
    pub margin: f64,
    /// Maximum number of pairs per group; the first ones are kept.
    pub at_most: Option<usize>,
}

/// Return pairs (better row, worse row), sorted by group, then by the better row's score (descending), then by the
/// worse row's score (ascending); ties go to the earlier row. [`Matching::Nearest`] compares `lengths`.
///
/// ```
/// use agentrl_compute::replay::{Matching, Pairing, pairs};
///
/// let options = Pairing { matching: Matching::Extremes, margin: 0.0, at_most: None };
/// assert_eq!(pairs(&[0.5, 1.0, 0.0, 0.0, 0.0], &[0, 0, 0, 1, 1], None, None, &options)?, [(1, 2)]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths of columns differ, a valid score or a length is not finite, groups are not dense, the
/// margin is negative, or [`Matching::Nearest`] has no lengths.
pub fn pairs(
    scores: &[f64],
    groups: &[u32],
    lengths: Option<&[f64]>,
    valid: Option<&[bool]>,
    options: &Pairing,
) -> Result<Vec<(i64, i64)>> {
    within("margin", options.margin, 0.0, f64::MAX)?;
    crate::argument_checks::column("scores", scores, "groups", groups.len(), valid)?;
    let lengths = match lengths {
        Some(lengths) => lengths,
        None if options.matching == Matching::Nearest => {
            return Err(crate::Error::invalid(
                "matching is \"nearest\", but lengths is missing; give one length for each row",
            ));
        }
        None => &[],
    };
    if !lengths.is_empty() {
        same_length("lengths", lengths.len(), "scores", scores.len())?;
        all_finite("lengths", lengths)?;
    }
    let members = Members::of(groups, group_count("groups", groups)?, valid);
    let mut found = Vec::new();
    for rows in members.iter() {
        let mut order: Vec<usize> = rows.iter().map(|&row| row as usize).collect();
        order.sort_by(|&one, &other| (scores[other] + 0.0).total_cmp(&(scores[one] + 0.0)).then(one.cmp(&other)));
        let ascending = {
            let mut order = order.clone();
            order.sort_by(|&one, &other| (scores[one] + 0.0).total_cmp(&(scores[other] + 0.0)).then(one.cmp(&other)));
            order
        };
        let differ = |better: usize, worse: usize| {
            scores[better] > scores[worse] && scores[better] - scores[worse] >= options.margin
        };
        let of_group: Vec<(usize, usize)> = match options.matching {
            Matching::Extremes => order.iter().copied().zip(ascending).take(1).collect(),
            Matching::Disjoint => order.iter().copied().zip(ascending).take(rows.len() / 2).collect(),
            Matching::All => {
                order.iter().flat_map(|&better| ascending.iter().map(move |&worse| (better, worse))).collect()
            }
            Matching::Nearest => {
                let nearest = |&better: &usize| {
                    let below = ascending.iter().copied().filter(|&worse| differ(better, worse));
                    let away = |row: usize| (lengths[row] - lengths[better]).abs();
                    let worse = below.min_by(|&one, &other| away(one).total_cmp(&away(other)).then(one.cmp(&other)));
                    worse.map(|worse| (better, worse))
                };
                order.iter().filter_map(nearest).collect()
            }
        };
        let of_group = of_group.into_iter().filter(|&(better, worse)| differ(better, worse));
        let pair = |(better, worse)| (better as i64, worse as i64);
        found.extend(of_group.take(options.at_most.unwrap_or(usize::MAX)).map(pair));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    const SCORES: [f64; 6] = [0.0, 1.0, 0.5, 1.0, 0.0, 9.0];
    const GROUPS: [u32; 6] = [0, 0, 0, 0, 0, 1];

    fn found(matching: Matching, margin: f64, at_most: Option<usize>) -> Result<Vec<(i64, i64)>> {
        // Lengths: row 1 is nearest to row 4, row 3 to row 2, row 2 to row 0.
        let lengths = [10.0, 50.0, 12.0, 20.0, 48.0, 0.0];
        pairs(&SCORES, &GROUPS, Some(&lengths), None, &Pairing { matching, margin, at_most })
    }

    #[test]
    fn every_matching_by_hand() -> Result<()> {
        assert_eq!(found(Matching::Extremes, 0.0, None)?, [(1, 0)]);
        assert_eq!(found(Matching::Disjoint, 0.0, None)?, [(1, 0), (3, 4)]);
        assert_eq!(found(Matching::All, 0.0, None)?, [(1, 0), (1, 4), (1, 2), (3, 0), (3, 4), (3, 2), (2, 0), (2, 4)]);
        assert_eq!(found(Matching::All, 0.6, None)?, [(1, 0), (1, 4), (3, 0), (3, 4)]);
        assert_eq!(found(Matching::All, 0.0, Some(3))?, [(1, 0), (1, 4), (1, 2)]);
        assert_eq!(found(Matching::Nearest, 0.0, None)?, [(1, 4), (3, 2), (2, 0)]);
        assert_eq!(found(Matching::Nearest, 0.6, None)?, [(1, 4), (3, 0)]);
        Ok(())
    }

    #[test]
    fn equal_scores_and_invalid_rows_make_no_pair() -> Result<()> {
        let all = Pairing { matching: Matching::All, margin: 0.0, at_most: None };
        assert!(pairs(&[1.0, 1.0, -0.0, 0.0], &[0, 0, 1, 1], None, None, &all)?.is_empty());
        let valid = [false, true, true, true, false, true];
        let mut scores = SCORES;
        scores[0] = f64::NAN;
        assert_eq!(pairs(&scores, &GROUPS, None, Some(&valid), &all)?, [(1, 2), (3, 2)]);
        assert!(pairs(&[], &[], None, None, &all)?.is_empty());
        Ok(())
    }

    #[test]
    fn wrong_columns_are_refused() {
        let nearest = Pairing { matching: Matching::Nearest, margin: 0.0, at_most: None };
        let kind = |result: Result<Vec<(i64, i64)>>| result.map_err(|error| error.kind());
        assert_eq!(kind(pairs(&SCORES, &GROUPS, None, None, &nearest)), Err(ErrorKind::InvalidInput));
        assert_eq!(kind(pairs(&SCORES, &GROUPS, Some(&[1.0]), None, &nearest)), Err(ErrorKind::InvalidInput));
        assert_eq!(kind(pairs(&[f64::NAN], &[0], None, None, &nearest)), Err(ErrorKind::InvalidInput));
        let negative = Pairing { matching: Matching::All, margin: -1.0, at_most: None };
        assert_eq!(kind(pairs(&SCORES, &GROUPS, None, None, &negative)), Err(ErrorKind::InvalidInput));
    }
}
