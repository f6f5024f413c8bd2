//! Masks of rows and groups to train on. Filters run after the statistics: a filtered row has voted.

use crate::argument_checks::{column, mask_length, within};
use crate::group::{Columns, statistics};
use crate::weight::{Amount, Ties, Top, top};
use crate::{Error, Result};

/// The condition that the scores of a group must meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupBand {
    /// Lower bound of the standard deviation, exclusive; 0 drops the groups whose scores are all equal.
    pub std_above: Option<f64>,
    /// The variance divides by `count - ddof`.
    pub ddof: u32,
    /// The smallest mean.
    pub at_least: Option<f64>,
    /// The largest mean.
    pub at_most: Option<f64>,
    /// The smallest number of valid rows.
    pub members_at_least: u64,
    /// Whether a group with one valid row passes without a standard deviation.
    pub accept_single: bool,
}

/// Return a mask of the valid rows of groups whose scores lie in the band (dynamic sampling of DAPO, arXiv:2503.14476,
/// and the accuracy bands of PRIME and others).
///
/// ```
/// use agentrl_compute::filters::{GroupBand, group_band};
///
/// let band = GroupBand {
///     std_above: Some(0.0),
///     ddof: 0,
///     at_least: Some(0.2),
///     at_most: Some(0.8),
///     members_at_least: 2,
///     accept_single: false,
/// };
/// let keep = group_band(&[1.0, 0.0, 1.0, 1.0, 0.5], &[0, 0, 1, 1, 2], None, &band)?;
/// assert_eq!(keep, [true, true, false, false, false]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, groups are not dense, a valid score is not finite, a bound is NaN or `at_least` is
/// above `at_most`.
pub fn group_band(scores: &[f64], groups: &[u32], valid: Option<&[bool]>, band: &GroupBand) -> Result<Vec<bool>> {
    let (low, high) = (band.at_least.unwrap_or(f64::NEG_INFINITY), band.at_most.unwrap_or(f64::INFINITY));
    if low.is_nan() || high.is_nan() || low > high {
        return Err(Error::invalid(format!("at_least is {low} and at_most is {high}; give at_least <= at_most")));
    }
    if let Some(std_above) = band.std_above {
        within("std_above", std_above, 0.0, f64::MAX)?;
    }
    // With too few rows, the standard deviation is NaN, which does not pass.
    let spread = |std: f64| band.std_above.is_none_or(|bound| std > bound);
    let single = |count: u64| band.accept_single && count == 1;
    let inside: Vec<bool> = statistics(&Columns { valid, ..Columns::new("scores", scores, groups) }, band.ddof)?
        .iter()
        .map(|found| {
            found.count >= band.members_at_least
                && (low..=high).contains(&found.mean)
                && (spread(found.std) || single(found.count))
        })
        .collect();
    let keep = |(row, &group): (usize, &u32)| valid.is_none_or(|valid| valid[row]) && inside[group as usize];
    Ok(groups.iter().enumerate().map(keep).collect())
}

/// Return a mask of the valid rows of the groups with the largest standard deviations. A fraction of all groups with a
/// valid row is kept, at least one; on ties, the earlier groups.
///
/// ```
/// use agentrl_compute::filters::top_groups;
///
/// let keep = top_groups(&[1.0, 0.0, 0.5, 0.5], &[0, 0, 1, 1], None, 0, 0.5)?;
/// assert_eq!(keep, [true, true, false, false]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, groups are not dense, a valid score is not finite or `fraction` is outside [0, 1].
pub fn top_groups(
    scores: &[f64],
    groups: &[u32],
    valid: Option<&[bool]>,
    ddof: u32,
    fraction: f64,
) -> Result<Vec<bool>> {
    let amount = Amount::from_options(None, Some(fraction), "floor", 1)?;
    let found = statistics(&Columns { valid, ..Columns::new("scores", scores, groups) }, ddof)?;
    let counted: Vec<bool> = found.iter().map(|found| found.count > 0).collect();
    let spreads: Vec<f64> = found.iter().map(|found| if found.std > 0.0 { found.std } else { 0.0 }).collect();
    let one_group = vec![0; spreads.len()];
    let columns = Columns { valid: Some(&counted), ..Columns::new("scores", &spreads, &one_group) };
    let chosen = top(&columns, &Top { amount, largest: true, ties: Ties::First })?;
    let keep = |(row, &group): (usize, &u32)| valid.is_none_or(|valid| valid[row]) && chosen[group as usize];
    Ok(groups.iter().enumerate().map(keep).collect())
}

/// Round the number of kept rows to a multiple. By default the kept rows with the smallest scores are dropped. With
/// `up`, the dropped rows with the largest scores are taken back, or rows are dropped if there are not enough valid
/// ones. On ties, earlier rows stay.
///
/// ```
/// use agentrl_compute::filters::round_rows;
///
/// let (keep, scores) = ([true, true, true, false], [0.3, 0.1, 0.2, 0.4]);
/// assert_eq!(round_rows(&keep, &scores, None, 2, false)?, [true, false, true, false]);
/// assert_eq!(round_rows(&keep, &scores, None, 2, true)?, [true; 4]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid score is not finite or the multiple is 0.
pub fn round_rows(
    keep: &[bool],
    scores: &[f64],
    valid: Option<&[bool]>,
    multiple: usize,
    up: bool,
) -> Result<Vec<bool>> {
    mask_length(valid, "keep", keep.len())?;
    column("scores", scores, "keep", keep.len(), valid)?;
    if multiple == 0 {
        return Err(Error::invalid("multiple is 0; give at least 1"));
    }
    let counted = |row: usize| valid.is_none_or(|valid| valid[row]);
    let kept = (0..keep.len()).filter(|&row| keep[row] && counted(row)).count();
    let all = (0..keep.len()).filter(|&row| counted(row)).count();
    let raised = kept.next_multiple_of(multiple);
    let target = if up && raised <= all { raised } else { kept / multiple * multiple };
    // Kept rows first, then by descending score: the first `target` rows in this order are kept.
    let mut order: Vec<usize> = (0..keep.len()).filter(|&row| counted(row)).collect();
    order.sort_by(|&a, &b| keep[b].cmp(&keep[a]).then(scores[b].total_cmp(&scores[a])));
    let mut rounded = vec![false; keep.len()];
    for &row in &order[..target] {
        rounded[row] = true;
    }
    Ok(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, masked_groups};
    use proptest::prelude::*;

    const ANY: GroupBand = GroupBand {
        std_above: None,
        ddof: 0,
        at_least: None,
        at_most: None,
        members_at_least: 0,
        accept_single: false,
    };

    #[test]
    fn invalid_input_is_reported() {
        let message = |result: Result<Vec<bool>>| result.map_or_else(|error| error.to_string(), |_| "fine".to_owned());
        let band = |band: GroupBand| message(group_band(&[1.0], &[0], None, &band));
        assert_eq!(
            band(GroupBand { at_least: Some(0.9), at_most: Some(0.1), ..ANY }),
            "at_least is 0.9 and at_most is 0.1; give at_least <= at_most"
        );
        assert_eq!(band(GroupBand { std_above: Some(-1.0), ..ANY }), "std_above is -1; give a number of at least 0");
        assert_eq!(message(top_groups(&[1.0], &[0], None, 0, 2.0)), "fraction is 2; give a number from 0 to 1");
        assert_eq!(message(round_rows(&[true], &[1.0], None, 0, true)), "multiple is 0; give at least 1");
    }

    #[test]
    fn a_single_row_has_no_spread() -> Result<()> {
        for ddof in [0, 1] {
            let band = GroupBand { std_above: Some(0.0), ddof, ..ANY };
            assert_eq!(group_band(&[1.0], &[0], None, &band)?, [false]);
            // `accept_single` accepts one valid row, unless its score is outside the band; equal rows are not one.
            let band = GroupBand { accept_single: true, at_most: Some(2.0), ..band };
            let keep = group_band(
                &[1.0, 9.0, 3.0, 1.0, 1.0],
                &[0, 0, 1, 2, 2],
                Some(&[true, false, true, true, true]),
                &band,
            )?;
            assert_eq!(keep, [true, false, false, false, false]);
            assert_eq!(top_groups(&[1.0, 0.0, 3.0], &[0, 1, 1], None, ddof, 0.5)?, [false, true, true]);
        }
        assert_eq!(round_rows(&[true, false], &[0.0, 0.0], Some(&[true, false]), 2, true)?, [false, false]);
        Ok(())
    }

    proptest! {
        #[test]
        fn groups_are_kept_whole((group, valid) in masked_groups(), multiple in 1_usize..5, up in any::<bool>()) {
            let Group { values, groups, .. } = group;
            let keep = group_band(&values, &groups, Some(&valid), &GroupBand { std_above: Some(0.0), ..ANY })?;
            for row in 0..values.len() {
                let same = (0..values.len()).filter(|&other| groups[other] == groups[row] && valid[other]);
                let differs = same.map(|other| values[other]).any(|other| (other - values[row]).abs() > 0.0);
                prop_assert_eq!(keep[row], valid[row] && differs);
            }
            let rounded = round_rows(&keep, &values, Some(&valid), multiple, up)?;
            let count = |mask: &[bool]| mask.iter().filter(|&&kept| kept).count();
            prop_assert_eq!(count(&rounded) % multiple, 0);
            prop_assert!(count(&rounded).abs_diff(count(&keep)) < multiple);
            let worst = (0..values.len()).filter(|&row| rounded[row] && keep[row]).map(|row| values[row]).fold(f64::INFINITY, f64::min);
            prop_assert!((0..values.len()).all(|row| !keep[row] || rounded[row] || values[row] <= worst));
        }
    }
}
