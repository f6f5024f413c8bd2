//! Group-relative advantages (GRPO).

use super::columns::Columns;
use super::options::GroupOptions;
use super::rule::{relative_rules, write};
use crate::{Float, Result};

/// Each score compared with its group: `(x - mean) / (std + eps)`, or `x - mean` with [`Scale::None`](super::Scale).
///
/// `groups` holds dense ids (from [`keys`](crate::keys)). Rows where `valid` is false neither vote nor get a value: their
/// result is 0. A group whose valid scores are all equal gives exactly 0, also with `eps` 0; a single member follows
/// [`Singleton`](super::Singleton): 0, or the score itself (over `1 + eps` if scaled). Source: GRPO, arXiv:2402.03300;
/// without the scale Dr.GRPO, arXiv:2503.20783.
///
/// ```
/// use agentrl_compute::group::{GroupOptions, Scale, group_relative};
///
/// let (scores, groups) = ([1.0, 0.0, 0.0, 0.0, 9.0], [0, 0, 0, 0, 0]);
/// let valid = [true, true, true, true, false];
/// let options = GroupOptions { scale: Scale::None, ..GroupOptions::default() };
/// let mut advantages = [0.0; 5];
/// group_relative(&scores, &groups, &options, Some(&valid), &mut advantages)?;
/// assert_eq!(advantages, [0.75, -0.25, -0.25, -0.25, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, ids are not dense, a valid score is not finite (the message names its row) or an
/// option is out of range; `Overflow` if a difference is too large for its type. `out` is unspecified after an error.
pub fn group_relative<T: Float>(
    scores: &[T],
    groups: &[u32],
    options: &GroupOptions,
    valid: Option<&[bool]>,
    out: &mut [T],
) -> Result<()> {
    let columns = Columns::new("scores", scores, groups, valid)?;
    write(&columns, &relative_rules(&columns, options)?, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, masked_groups, shuffle};
    use crate::group::{Scale, Singleton};
    use proptest::prelude::*;

    fn relative<T: Float>(
        scores: &[T],
        groups: &[u32],
        options: GroupOptions,
        valid: Option<&[bool]>,
    ) -> Result<Vec<T>> {
        let mut out = vec![T::from_f64(7.0); scores.len()];
        group_relative(scores, groups, &options, valid, &mut out)?;
        Ok(out)
    }

    #[test]
    fn by_hand() -> Result<()> {
        let options = GroupOptions { eps: 0.0, ..GroupOptions::default() };
        assert_eq!(
            relative(&[1.0, 2.0, 3.0, 5.0, 5.0], &[0, 0, 0, 1, 1], options, None)?,
            vec![-1.0, 0.0, 1.0, 0.0, 0.0]
        );
        let population = GroupOptions { ddof: 0, eps: 1.0, ..options };
        assert_eq!(relative(&[1.0, 3.0], &[0, 0], population, None)?, vec![-0.5, 0.5]);
        assert!(relative::<f64>(&[], &[], options, None)?.is_empty());
        Ok(())
    }

    #[test]
    fn single_members() -> Result<()> {
        let with = |singleton, scale| GroupOptions { singleton, scale, eps: 1.0, ddof: 1 };
        let (scores, groups, valid) = ([6.0, 1.0, 4.0], [0, 1, 1], [true, true, false]);
        for (options, expected) in [
            (with(Singleton::Zero, Scale::Std), [0.0, 0.0, 0.0]),
            (with(Singleton::Zero, Scale::None), [0.0, 0.0, 0.0]),
            (with(Singleton::Raw, Scale::Std), [3.0, 0.5, 0.0]),
            (with(Singleton::Raw, Scale::None), [6.0, 1.0, 0.0]),
        ] {
            assert_eq!(relative(&scores, &groups, options, Some(&valid))?, expected.to_vec());
        }
        Ok(())
    }

    /// Zero, and not negative zero, whatever rounding does to the mean.
    #[test]
    fn equal_scores_give_exactly_zero() -> Result<()> {
        for eps in [0.0, 1e-6] {
            for scale in [Scale::Std, Scale::None] {
                for score in [0.1_f32, 1.0 / 3.0, -7.3, 1e30, -0.0] {
                    for count in 2..50 {
                        let options = GroupOptions { scale, eps, ..GroupOptions::default() };
                        let found = relative(&vec![score; count], &vec![0; count], options, None)?;
                        assert!(found.iter().all(|value| value.to_bits() == 0));
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn errors_name_the_row() {
        let options = GroupOptions::default();
        let message = relative(&[1.0, f64::NAN], &[0, 0], options, None).map_err(|error| error.to_string());
        assert_eq!(message, Err("scores[1] is NaN, but must be finite; correct it or mark the row invalid".to_owned()));
        let mut short = [0.0];
        let message =
            group_relative(&[1.0, 2.0], &[0, 0], &options, None, &mut short).map_err(|error| error.to_string());
        assert_eq!(message, Err("out has 1 values, but scores has 2; give one value of each for every row".to_owned()));
        let centred = GroupOptions { scale: Scale::None, ..options };
        let message =
            relative(&[f32::MAX, f32::MIN, f32::MIN], &[0; 3], centred, None).map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("the result of row 0 is 4.537097955180385e38, too large for f32; scale the input".to_owned())
        );
    }

    proptest! {
        #[test]
        fn as_the_formula((group, valid) in masked_groups(), std in any::<bool>(), raw in any::<bool>(), ddof in 0_u32..2) {
            let Group { values, groups, .. } = group;
            let scale = if std { Scale::Std } else { Scale::None };
            let singleton = if raw { Singleton::Raw } else { Singleton::Zero };
            let options = GroupOptions { scale, ddof, eps: 1e-6, singleton };
            let found = relative(&values, &groups, options, Some(&valid))?;
            for row in 0..values.len() {
                if !valid[row] {
                    prop_assert_eq!(found[row].to_bits(), 0);
                    continue;
                }
                let rows = (0..values.len()).filter(|&other| groups[other] == groups[row] && valid[other]);
                let members: Vec<f64> = rows.map(|row| values[row]).collect();
                let largest = members.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
                let (mean, spread) = match (members.len(), singleton) {
                    (1, Singleton::Raw) => (0.0, 1.0),
                    (1, Singleton::Zero) => (values[row], 1.0),
                    _ => crate::group::testing::naive(&members, ddof),
                };
                let divisor = if scale == Scale::Std { spread + 1e-6 } else { 1.0 };
                let expected = (values[row] - mean) / divisor;
                // What is rounded off the mean and the deviation, in units of the result.
                let tolerance = 1e-12 * (largest / divisor) * (1.0 + expected.abs().min(10.0));
                prop_assert!((found[row] - expected).abs() <= tolerance, "{} {expected}", found[row]);
            }
        }

        #[test]
        fn any_order_gives_the_same_bits((group, valid) in masked_groups(), seed in any::<u64>()) {
            let Group { values, groups, .. } = group;
            let values: Vec<f32> = values.iter().map(|&value| (value % 1e6) as f32).collect();
            let order = shuffle(values.len(), seed);
            let found = relative(&values, &groups, GroupOptions::default(), Some(&valid))?;
            let shuffled: Vec<f32> = order.iter().map(|&row| values[row]).collect();
            let their_groups: Vec<u32> = order.iter().map(|&row| groups[row]).collect();
            let their_valid: Vec<bool> = order.iter().map(|&row| valid[row]).collect();
            let theirs = relative(&shuffled, &their_groups, GroupOptions::default(), Some(&their_valid))?;
            prop_assert!(order.iter().zip(theirs).all(|(&row, value)| found[row].to_bits() == value.to_bits()));
        }
    }
}
