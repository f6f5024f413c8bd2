//! Baselines of a group from more than its own rewards: a prior, or a moving mean of its key.
//!
//! The remembered state is a row of numbers for each group of the batch. Each update returns those rows after the
//! batch. A group without votes keeps its row.

use crate::argument_checks::{finite, same_length};
use crate::group::{Center, Columns, Extra, Options, Scale, Statistics, normalise, statistics};
use crate::{Error, Result};

/// Return each row's baseline: the mean of its group, shrunk towards a prior as far as noise alone explains their
/// distance. With k votes `d2 = max(0, (mean - prior)^2 - variance / k)`, `w = d2 / (d2 + variance / k)` and
/// `b = w · mean + (1 - w) · prior`.
///
/// `b` is the prior if k is 0. A row that does not vote has the prior 0. With `leave_one_out`, a row does not vote in
/// its own `b`. From V0.5, arXiv:2603.10848.
///
/// ```
/// use agentrl_compute::baseline::shrunk_mean;
/// use agentrl_compute::group::Columns;
///
/// // Mean 1, d2 = 1 - 0.25 / 2 = 0.875 and w = 0.875 / (0.875 + 0.125).
/// let columns = Columns::new("values", &[1.0, 1.0], &[0, 0]);
/// assert_eq!(shrunk_mean(&columns, &[0.0, 0.0], 0.25, false)?, [0.875, 0.875]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` as in [`statistics`], if the number of priors is wrong, a prior is not finite, or the variance is not
/// above 0.
pub fn shrunk_mean(columns: &Columns<'_, f64>, prior: &[f64], variance: f64, leave_one_out: bool) -> Result<Vec<f64>> {
    if variance.is_nan() || variance <= 0.0 {
        return Err(Error::invalid(format!("variance is {variance}; give a number above 0")));
    }
    let rows = columns.values.len();
    same_length("prior", prior.len(), columns.name, rows)?;
    let found = statistics(columns, 1)?;
    let mut above = vec![0.0; if leave_one_out { rows } else { 0 }];
    if leave_one_out {
        let options = Options { center: Center::LeaveOneOut, scale: Scale::None, ..Options::default() };
        normalise(columns, &options, Extra::default(), &mut above)?;
    }
    let shrunk = |row: usize| {
        let Statistics { count, mean, .. } = found[columns.groups[row] as usize];
        let votes = columns.counts(row);
        let expected = if votes { finite("prior", row, prior[row])? } else { 0.0 };
        // The value minus its leave-one-out advantage is the mean of the others; a row alone has no others and gets 0.
        let (count, mean) =
            if votes && leave_one_out { (count - 1, columns.values[row] - above[row]) } else { (count, mean) };
        let (noise, mean) = if count > 0 { (variance / count as f64, mean) } else { (f64::INFINITY, 0.0) };
        // w = 1 - variance / k / (mean - prior)^2, without computing the square, which can overflow.
        let distance = mean - expected;
        let explained = if distance == 0.0 { f64::INFINITY } else { noise / distance / distance };
        let share = (1.0 - explained).max(0.0);
        Ok(share * mean + (1.0 - share) * expected)
    };
    (0..rows).map(shrunk).collect()
}

/// Update a moving mean of each group: `b' = decay · b + (1 - decay) · mean`.
///
/// ```
/// use agentrl_compute::baseline::ema_mean;
/// use agentrl_compute::group::Columns;
///
/// assert_eq!(ema_mean(&Columns::new("values", &[1.0, 3.0], &[0, 0]), 0.5, &[[8.0]])?, [[5.0]]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` as in [`statistics`], or if the number of groups in `past` is wrong.
pub fn ema_mean(columns: &Columns<'_, f64>, decay: f64, past: &[[f64; 1]]) -> Result<Vec<[f64; 1]>> {
    after(&statistics(columns, 1)?, past, |_, found, &[b]| [decay * b + (1.0 - decay) * found.mean])
}

/// Update the visits, mean and standard deviation of each group over all its visits. Each visit counts once: with m and
/// s of this batch `i = n + 1`, `mean' = (n · mean + m) / i`,
/// `std'^2 = (n · std^2 + s^2 + (n / i) · (m - mean)^2) / i`.
///
/// A group of one row has s = 0. From DCPO, arXiv:2509.02333.
///
/// ```
/// use agentrl_compute::baseline::running_moments;
/// use agentrl_compute::group::Columns;
///
/// let columns = Columns::new("values", &[2.0, 4.0], &[0, 0]);
/// // m = 3 and s = 1: mean' = (1 + 3) / 2, std'^2 = (1 + 1 + 1 / 2 · 4) / 2.
/// assert_eq!(running_moments(&columns, 0, &[[1.0, 1.0, 1.0]])?, [[2.0, 2.0, 2.0_f64.sqrt()]]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` as in [`statistics`], or if the number of groups in `past` is wrong.
pub fn running_moments(columns: &Columns<'_, f64>, ddof: u32, past: &[[f64; 3]]) -> Result<Vec<[f64; 3]>> {
    after(&statistics(columns, ddof)?, past, |_, found, &[visits, mean, std]| {
        let (total, deviation) = (visits + 1.0, if found.std.is_nan() { 0.0 } else { found.std });
        let moved = found.mean - mean;
        let squares = visits * (std * std) + deviation * deviation + visits / total * (moved * moved);
        [total, (visits * mean + found.mean) / total, (squares / total).sqrt()]
    })
}

/// Update the discounted successes and failures of each group: `alpha' = decay · alpha + Σ r`,
/// `beta' = decay · beta + Σ (1 - r)`. From MSSR, arXiv:2512.18215.
///
/// `decays` has one value for each row; it must be the same for all rows of a group that vote. `name` returns the name
/// of a group for messages.
///
/// ```
/// use agentrl_compute::baseline::decayed_beta;
/// use agentrl_compute::group::Columns;
///
/// let columns = Columns::new("successes", &[1.0], &[0]);
/// assert_eq!(decayed_beta(&columns, &[0.5], &[[1.0, 3.0]], |_| "task".to_owned())?, [[1.5, 1.5]]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` as in [`statistics`], if the number of groups or decays is wrong, a reward or a decay is outside
/// [0, 1], or the decays of a group differ.
pub fn decayed_beta(
    columns: &Columns<'_, f64>,
    decays: &[f64],
    past: &[[f64; 2]],
    name: impl Fn(usize) -> String,
) -> Result<Vec<[f64; 2]>> {
    same_length("decay", decays.len(), columns.name, columns.values.len())?;
    let found = statistics(columns, 1)?;
    if let Some((group, found)) = found.iter().enumerate().find(|(_, found)| found.least < 0.0 || found.most > 1.0) {
        return Err(Error::invalid(format!(
            "{} of {} range from {:?} to {:?}; give rewards from 0 to 1",
            columns.name,
            name(group),
            found.least,
            found.most
        )));
    }
    let mut kept = vec![(f64::INFINITY, f64::NEG_INFINITY); found.len()];
    for row in (0..decays.len()).filter(|&row| columns.counts(row)) {
        let (decay, (least, most)) = (finite("decay", row, decays[row])?, &mut kept[columns.groups[row] as usize]);
        (*least, *most) = (least.min(decay), most.max(decay));
    }
    let wrong = |&(least, most): &(f64, f64)| least < most || least < 0.0 || most > 1.0;
    if let Some(group) = kept.iter().position(wrong) {
        let (least, most) = kept[group];
        return Err(Error::invalid(format!(
            "decay of {} ranges from {least:?} to {most:?}; give all its rows the same number from 0 to 1",
            name(group)
        )));
    }
    after(&found, past, |group, found, &[alpha, beta]| {
        let (decay, won) = (kept[group].1, found.mean * found.weight);
        [decay * alpha + won, decay * beta + (found.weight - won)]
    })
}

/// Return the state after a batch: `next` for groups with votes, the past state for the others.
fn after<const N: usize>(
    found: &[Statistics],
    past: &[[f64; N]],
    next: impl Fn(usize, &Statistics, &[f64; N]) -> [f64; N],
) -> Result<Vec<[f64; N]>> {
    same_length("past", past.len(), "groups", found.len())?;
    let groups = found.iter().zip(past).enumerate();
    Ok(groups.map(|(group, (found, past))| if found.count > 0 { next(group, found, past) } else { *past }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, masked_groups};
    use proptest::prelude::*;

    fn message<T>(result: Result<T>) -> String {
        result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn invalid_input_is_reported() {
        let columns = Columns::new("successes", &[1.0, 0.0], &[0, 0]);
        let beta = |columns, decays: &[f64]| message(decayed_beta(&columns, decays, &[[0.0; 2]], |_| "a".to_owned()));
        assert_eq!(beta(columns, &[0.5, 0.5]), "fine");
        assert_eq!(
            beta(columns, &[0.5, 0.25]),
            "decay of a ranges from 0.25 to 0.5; give all its rows the same number from 0 to 1"
        );
        assert_eq!(
            beta(columns, &[2.0, 2.0]),
            "decay of a ranges from 2.0 to 2.0; give all its rows the same number from 0 to 1"
        );
        assert_eq!(
            beta(Columns { values: &[1.0, -1.0], ..columns }, &[0.5; 2]),
            "successes of a range from -1.0 to 1.0; give rewards from 0 to 1"
        );
        assert_eq!(
            message(ema_mean(&columns, 0.5, &[])),
            "past has 0 values, but groups has 1; give one value of each for every row"
        );
        assert_eq!(message(shrunk_mean(&columns, &[0.0; 2], 0.0, false)), "variance is 0; give a number above 0");
        assert_eq!(
            message(shrunk_mean(&columns, &[0.0, f64::NAN], 1.0, false)),
            "prior[1] is NaN, but must be finite; correct it or mark the row invalid"
        );
    }

    #[test]
    fn who_does_not_vote_changes_nothing() -> Result<()> {
        let columns = Columns { valid: Some(&[false, false]), ..Columns::new("values", &[9.0, f64::NAN], &[0, 0]) };
        assert_eq!(ema_mean(&columns, 0.5, &[[3.0]])?, [[3.0]]);
        assert_eq!(running_moments(&columns, 1, &[[1.0, 2.0, 3.0]])?, [[1.0, 2.0, 3.0]]);
        assert_eq!(decayed_beta(&columns, &[f64::NAN; 2], &[[1.0, 2.0]], |_| String::new())?, [[1.0, 2.0]]);
        assert_eq!(shrunk_mean(&columns, &[f64::NAN; 2], 1.0, false)?, [0.0, 0.0]);
        Ok(())
    }

    /// Row 0: the others have mean 0, k = 1, d2 = (0 - 2)^2 - 1 = 3 and w = 3 / 4: 0.5. Row 1: mean 4, d2 = 3: 3.5.
    #[test]
    fn a_row_can_be_left_out_of_its_own() -> Result<()> {
        let columns = Columns::new("values", &[4.0, 0.0], &[0, 0]);
        assert_eq!(shrunk_mean(&columns, &[2.0, 2.0], 1.0, true)?, [0.5, 3.5]);
        let alone = Columns::new("values", &[4.0], &[0]);
        assert_eq!(shrunk_mean(&alone, &[2.0], 1.0, true)?, [2.0]);
        Ok(())
    }

    proptest! {
        #[test]
        fn as_by_definition((group, valid) in masked_groups(), decay in 0.0_f64..=1.0, out in any::<bool>()) {
            let Group { groups, count, .. } = &group;
            let values: Vec<f64> = (0..groups.len()).map(|row| (row % 5) as f64 / 4.0).collect();
            let columns = Columns { valid: Some(&valid), ..Columns::new("values", &values, groups) };
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + b.abs());
            let ema = ema_mean(&columns, decay, &vec![[0.5]; *count])?;
            let moments = running_moments(&columns, 0, &vec![[2.0, 0.5, 0.25]; *count])?;
            let beta = decayed_beta(&columns, &vec![decay; values.len()], &vec![[2.0, 3.0]; *count], |_| String::new())?;
            let shrunk = shrunk_mean(&columns, &vec![0.3; values.len()], 0.1, out)?;
            for group in 0..*count {
                let rows: Vec<usize> = (0..values.len()).filter(|&row| groups[row] as usize == group && valid[row]).collect();
                let members: Vec<f64> = rows.iter().map(|&row| values[row]).collect();
                let n = members.len() as f64;
                let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
                if members.is_empty() {
                    prop_assert_eq!((ema[group], beta[group]), ([0.5], [2.0, 3.0]));
                    continue;
                }
                let m = mean(&members);
                prop_assert!(near(ema[group][0], decay * 0.5 + (1.0 - decay) * m));
                prop_assert!(near(beta[group][0], decay * 2.0 + m * n) && near(beta[group][1], decay * 3.0 + n - m * n));
                // Three visits: two with mean 0.5 and deviation 0.25, and this one.
                let s2 = members.iter().map(|x| (x - m).powi(2)).sum::<f64>() / n;
                let all = (2.0 * 0.5 + m) / 3.0;
                let variance = (2.0 * (0.25_f64.powi(2) + (0.5 - all).powi(2)) + s2 + (m - all).powi(2)) / 3.0;
                prop_assert!(near(moments[group][1], all) && (moments[group][2].powi(2) - variance).abs() < 1e-9);
                for &row in &rows {
                    let others: Vec<f64> =
                        rows.iter().filter(|&&other| !out || other != row).map(|&row| values[row]).collect();
                    let expected = if others.is_empty() {
                        0.3
                    } else {
                        let (m, noise) = (mean(&others), 0.1 / others.len() as f64);
                        let d2 = ((m - 0.3).powi(2) - noise).max(0.0);
                        let w = d2 / (d2 + noise);
                        w * m + (1.0 - w) * 0.3
                    };
                    prop_assert!(near(shrunk[row], expected), "{} {expected}", shrunk[row]);
                }
            }
        }
    }
}
