//! Leave-one-out advantages (RLOO).

use super::columns::Columns;
use super::options::Singleton;
use super::rule::{Rule, write};
use super::statistics::centres;
use crate::{Float, Result};

/// Each score minus the mean of the others of its group: `x_i - Σ_{j≠i} x_j / (n - 1) = n / (n - 1) · (x_i - mean)`.
///
/// `groups`, `valid`, equal scores and errors are as in [`group_relative`](super::group_relative). A single member gets 0
/// or its own score. Source: RLOO, arXiv:2402.14740; verl 0.9.1 gives a single member its own score in its loop and 0 in
/// its vectorised version.
///
/// ```
/// use agentrl_compute::group::{Singleton, leave_one_out};
///
/// let mut advantages = [0.0; 4];
/// leave_one_out(&[1.0, 2.0, 6.0, 5.0], &[0, 0, 0, 1], Singleton::Raw, None, &mut advantages)?;
/// assert_eq!(advantages, [-3.0, -1.5, 4.5, 5.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// As [`group_relative`](super::group_relative).
pub fn leave_one_out<T: Float>(
    scores: &[T],
    groups: &[u32],
    singleton: Singleton,
    valid: Option<&[bool]>,
    out: &mut [T],
) -> Result<()> {
    let columns = Columns::new("scores", scores, groups, valid)?;
    let centres = centres(&columns)?;
    let rules: Vec<Rule> = centres
        .iter()
        .map(|centre| match (centre.count, singleton) {
            (1, Singleton::Zero) => Rule { centre: centre.mean, divisor: 1.0 },
            (1, Singleton::Raw) => Rule { centre: 0.0, divisor: 1.0 },
            (count, _) => Rule { centre: centre.mean, divisor: (count as f64 - 1.0) / count as f64 },
        })
        .collect();
    write(&columns, &rules, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, masked_groups};
    use proptest::prelude::*;

    #[test]
    fn single_members_and_equal_scores() -> Result<()> {
        let (scores, groups) = ([3.0_f32, 0.1, 0.1, 0.1], [0, 1, 1, 1]);
        let mut out = [7.0; 4];
        leave_one_out(&scores, &groups, Singleton::Zero, None, &mut out)?;
        assert_eq!(out.map(f32::to_bits), [0; 4]);
        leave_one_out(&scores, &groups, Singleton::Raw, None, &mut out)?;
        assert_eq!(out.map(f32::to_bits), [3.0_f32.to_bits(), 0, 0, 0]);
        Ok(())
    }

    #[test]
    fn a_score_that_is_no_number_is_named() {
        let message = leave_one_out(&[f64::INFINITY], &[0], Singleton::Raw, None, &mut [0.0]);
        assert_eq!(
            message.map_err(|error| error.to_string()),
            Err("scores[0] is inf, but must be finite; correct it or mark the row invalid".to_owned())
        );
    }

    proptest! {
        #[test]
        fn as_the_mean_of_the_others((group, valid) in masked_groups(), raw in any::<bool>()) {
            let Group { values, groups, .. } = group;
            let singleton = if raw { Singleton::Raw } else { Singleton::Zero };
            let mut found = vec![7.0; values.len()];
            leave_one_out(&values, &groups, singleton, Some(&valid), &mut found)?;
            for row in 0..values.len() {
                let same = |other: &usize| groups[*other] == groups[row] && valid[*other] && *other != row;
                let others: Vec<f64> = (0..values.len()).filter(same).map(|other| values[other]).collect();
                let largest = others.iter().fold(values[row].abs(), |largest: f64, value| largest.max(value.abs()));
                let expected = match (valid[row], others.len(), singleton) {
                    (false, ..) | (true, 0, Singleton::Zero) => 0.0,
                    (true, 0, Singleton::Raw) => values[row],
                    _ => values[row] - others.iter().map(|value| value / others.len() as f64).sum::<f64>(),
                };
                let tolerance = if valid[row] { 1e-13 * largest } else { 0.0 };
                prop_assert!((found[row] - expected).abs() <= tolerance, "{} {expected}", found[row]);
            }
        }
    }
}
