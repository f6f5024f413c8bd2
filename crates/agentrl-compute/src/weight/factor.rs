//! Factors of tokens, steps and rows, and the scores that selectors read.

use crate::check::{all_finite, column, finite, mask_length, same_length, within};
use crate::group::{Columns, group_count, statistics};
use crate::members::Members;
use crate::{Error, Result};

/// `(a - mean(a)) · (b - mean(b))` of each row, means over its group: how much a token drives two columns together. With
/// advantages and log-probabilities, it is what Clip-Cov and KL-Cov read (arXiv:2505.22617). Invalid rows get 0.
///
/// ```
/// use agentrl_compute::weight::covariance;
///
/// let found = covariance(&[1.0, 1.0, -1.0, -1.0], &[-0.1, -2.0, -0.1, -2.0], &[0; 4], None)?;
/// assert!(found.iter().zip([0.95, -0.95, -0.95, 0.95]).all(|(a, b)| (a - b).abs() < 1e-15));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, groups are not dense or a valid number is not finite.
pub fn covariance(first: &[f64], second: &[f64], groups: &[u32], valid: Option<&[bool]>) -> Result<Vec<f64>> {
    same_length("second", second.len(), "first", first.len())?;
    let means = |name, values| statistics(&Columns { valid, ..Columns::new(name, values, groups) }, 0);
    let (first_means, second_means) = (means("first", first)?, means("second", second)?);
    let product = |row: usize| {
        let group = groups[row] as usize;
        (first[row] - first_means[group].mean) * (second[row] - second_means[group].mean)
    };
    Ok((0..first.len()).map(|row| if valid.is_none_or(|valid| valid[row]) { product(row) } else { 0.0 }).collect())
}

/// First-order change of a token's entropy by one update:
/// `|A / π_old · π · (1 - π) · (ln π + H)|` (STEER, arXiv:2510.10150). Invalid rows get 0.
///
/// Probabilities are kept within [1e-8, 1 - 1e-8].
///
/// ```
/// use agentrl_compute::weight::entropy_change;
///
/// let logprob = [0.9_f64.ln()];
/// let found = entropy_change(&[1.0], &logprob, &logprob, &[0.5], None)?;
/// assert!((found[0] - 0.039_463_9).abs() < 1e-7);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ or a valid number is not finite.
pub fn entropy_change(
    advantages: &[f64],
    logprobs: &[f64],
    old_logprobs: &[f64],
    entropies: &[f64],
    valid: Option<&[bool]>,
) -> Result<Vec<f64>> {
    mask_length(valid, "advantages", advantages.len())?;
    let columns =
        [("advantages", advantages), ("logprobs", logprobs), ("old_logprobs", old_logprobs), ("entropies", entropies)];
    for (name, values) in columns {
        column(name, values, "advantages", advantages.len(), valid)?;
    }
    let probability = |logprob: f64| logprob.exp().clamp(1e-8, 1.0 - 1e-8);
    let change = |row: usize| {
        let p = probability(logprobs[row]);
        (advantages[row] / probability(old_logprobs[row]) * p * (1.0 - p) * (p.ln() + entropies[row])).abs()
    };
    Ok((0..advantages.len()).map(|row| if valid.is_none_or(|valid| valid[row]) { change(row) } else { 0.0 }).collect())
}

/// Weights that fall with a score, from 1 at 0 to `least` at the largest score of the group:
/// `max(exp(-k · x), least)` with `k = -ln(least) / max(largest, floor)` (STEER's exponential map). Invalid rows get 0.
///
/// ```
/// use agentrl_compute::weight::damping;
///
/// let found = damping(&[0.0, 0.5, 1.0], &[0; 3], None, 0.64, 0.02)?;
/// assert!(found.iter().zip([1.0, 0.8, 0.64]).all(|(a, b)| (a - b).abs() < 1e-15));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid score is negative or not finite, `least` is outside (0, 1] or `floor` is not
/// positive.
pub fn damping(scores: &[f64], groups: &[u32], valid: Option<&[bool]>, least: f64, floor: f64) -> Result<Vec<f64>> {
    same_length("groups", groups.len(), "scores", scores.len())?;
    mask_length(valid, "scores", scores.len())?;
    within("least", least, f64::MIN_POSITIVE, 1.0)?;
    within("floor", floor, f64::MIN_POSITIVE, f64::MAX)?;
    let mut made = vec![0.0; scores.len()];
    for rows in Members::of(groups, group_count("groups", groups)?, valid).iter() {
        let mut largest = floor;
        for &row in rows {
            let score = finite("scores", row as usize, scores[row as usize])?;
            if score < 0.0 {
                return Err(Error::invalid(format!("scores[{row}] is {score}, but must not be negative")));
            }
            largest = largest.max(score);
        }
        for &row in rows {
            made[row as usize] = (least.ln() * (scores[row as usize] / largest)).exp().max(least);
        }
    }
    Ok(made)
}

/// A function of a token's probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// `p / (p + constant)`: bounded for off-policy tokens (LUFFY, arXiv:2504.14945).
    Ratio(f64),
    /// `(1 - p)^constant`: favours what is still unlikely (RL-PLUS, arXiv:2508.00222).
    Complement(f64),
    /// `p^constant`.
    Power(f64),
}

impl Shape {
    /// The shape of a name.
    ///
    /// # Errors
    /// `InvalidInput` for a name other than `ratio`, `complement` and `power`, or a constant that is not positive.
    pub fn from_name(name: &str, constant: f64) -> Result<Self> {
        within("constant", constant, f64::MIN_POSITIVE, f64::MAX)?;
        match name {
            "ratio" => Ok(Self::Ratio(constant)),
            "complement" => Ok(Self::Complement(constant)),
            "power" => Ok(Self::Power(constant)),
            _ => Err(Error::invalid(format!("shape is {name:?}; use \"ratio\", \"complement\" or \"power\""))),
        }
    }
}

/// A factor for each token from its probability `p = exp(logprob)`.
///
/// ```
/// use agentrl_compute::weight::{Shape, probability_shape};
///
/// let logprobs = [0.25_f64.ln()];
/// assert!((probability_shape(&logprobs, Shape::Ratio(0.75))?[0] - 0.25).abs() < 1e-15);
/// assert!((probability_shape(&logprobs, Shape::Complement(2.0))?[0] - 0.5625).abs() < 1e-15);
/// assert!((probability_shape(&logprobs, Shape::Power(0.5))?[0] - 0.5).abs() < 1e-15);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a log-probability is NaN or above 0; minus infinity is probability 0.
pub fn probability_shape(logprobs: &[f64], shape: Shape) -> Result<Vec<f64>> {
    let factor = |(row, &logprob): (usize, &f64)| {
        if logprob.is_nan() || logprob > 0.0 {
            return Err(Error::invalid(format!("logprobs[{row}] is {logprob}, but a log-probability is at most 0")));
        }
        Ok(match shape {
            Shape::Ratio(constant) => logprob.exp() / (logprob.exp() + constant),
            Shape::Complement(power) => (-logprob.exp_m1()).powf(power),
            Shape::Power(power) => logprob.exp().powf(power),
        })
    };
    logprobs.iter().enumerate().map(factor).collect()
}

/// The factor of each row by the sign of its advantage: `positive`, `negative`, or 1 where it is 0. A factor is given once for
/// all rows or row by row.
///
/// ```
/// use agentrl_compute::weight::by_sign;
///
/// assert_eq!(by_sign(&[2.0, -1.0, 0.0], &[0.5], &[3.0, 4.0, 5.0])?, [0.5, 4.0, 1.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a factor has neither one value nor one for each row, or a number is not finite.
pub fn by_sign(advantages: &[f64], positive: &[f64], negative: &[f64]) -> Result<Vec<f64>> {
    all_finite("advantages", advantages)?;
    for (name, factor) in [("positive", positive), ("negative", negative)] {
        if factor.len() != 1 {
            same_length(name, factor.len(), "advantages", advantages.len())?;
        }
        all_finite(name, factor)?;
    }
    let at = |factor: &[f64], row: usize| if factor.len() == 1 { factor[0] } else { factor[row] };
    let factor = |(row, &advantage): (usize, &f64)| {
        if advantage > 0.0 {
            at(positive, row)
        } else if advantage < 0.0 {
            at(negative, row)
        } else {
            1.0
        }
    };
    Ok(advantages.iter().enumerate().map(factor).collect())
}

/// What unlikely successes get on top: where the advantage is positive, `min(max(rate · (1 - exp(s - mean(s))), 0), cap · A)`,
/// elsewhere 0; `s` is the mean log-probability of a row's tokens, its mean is over the group (XRPO, arXiv:2510.06672).
///
/// ```
/// use agentrl_compute::weight::novelty_bonus;
///
/// let found = novelty_bonus(&[1.0, 1.0, -1.0], &[-3.0, -1.0, -2.0], &[0; 3], None, 0.5, 0.2)?;
/// assert!((found[0] - 0.2).abs() < 1e-15);
/// assert_eq!(found[1..], [0.0, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid number is not finite, or `rate` or `cap` is negative.
pub fn novelty_bonus(
    advantages: &[f64],
    mean_logprobs: &[f64],
    groups: &[u32],
    valid: Option<&[bool]>,
    rate: f64,
    cap: f64,
) -> Result<Vec<f64>> {
    within("rate", rate, 0.0, f64::MAX)?;
    within("cap", cap, 0.0, f64::MAX)?;
    mask_length(valid, "advantages", advantages.len())?;
    column("advantages", advantages, "mean_logprobs", mean_logprobs.len(), valid)?;
    let means = statistics(&Columns { valid, ..Columns::new("mean_logprobs", mean_logprobs, groups) }, 0)?;
    let bonus = |row: usize| {
        if advantages[row] <= 0.0 || valid.is_some_and(|valid| !valid[row]) {
            return 0.0;
        }
        let novelty = -(mean_logprobs[row] - means[groups[row] as usize].mean).exp_m1();
        (rate * novelty).max(0.0).min(cap * advantages[row])
    };
    Ok((0..advantages.len()).map(bonus).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T>(result: Result<T>) -> String {
        result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn invalid_rows_get_nothing_and_may_hold_anything() -> Result<()> {
        let valid = [true, false, true];
        let bad = [1.0, f64::NAN, 3.0];
        assert_eq!(covariance(&bad, &bad, &[0; 3], Some(&valid))?, [1.0, 0.0, 1.0]);
        assert_eq!(entropy_change(&bad, &[-1.0; 3], &[-1.0; 3], &[1.0; 3], Some(&valid))?[1].to_bits(), 0);
        assert_eq!(damping(&bad, &[0; 3], Some(&valid), 0.5, 1.0)?[1].to_bits(), 0);
        assert_eq!(novelty_bonus(&bad, &[-1.0; 3], &[0; 3], Some(&valid), 1.0, 1.0)?, [0.0; 3]);
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(message(damping(&[-1.0], &[0], None, 0.5, 1.0)), "scores[0] is -1, but must not be negative");
        assert!(message(damping(&[1.0], &[0], None, 0.0, 1.0)).starts_with("least is 0; give a number from"));
        assert!(message(probability_shape(&[0.5], Shape::Power(1.0))).starts_with("logprobs[0] is 0.5"));
        assert!(message(Shape::from_name("ratio", 0.0)).starts_with("constant is 0; give"));
        assert!(message(Shape::from_name("root", 1.0)).starts_with("shape is \"root\""));
        assert!(message(by_sign(&[1.0, 1.0, 1.0], &[1.0, 2.0], &[1.0])).starts_with("positive has 2 values"));
        assert!(message(entropy_change(&[1.0], &[f64::NAN], &[0.0], &[0.0], None)).starts_with("logprobs[0] is NaN"));
    }

    #[test]
    fn a_token_without_surprise_does_not_change_its_entropy() -> Result<()> {
        let half = [0.5_f64.ln()];
        assert!(entropy_change(&[1.0], &half, &half, &[2.0_f64.ln()], None)?[0] < 1e-15);
        assert_eq!(probability_shape(&[f64::NEG_INFINITY], Shape::Ratio(0.1))?, [0.0]);
        Ok(())
    }
}
