//! Factors of tokens, steps and rows, and the scores that selectors read.

use crate::check::{all_finite, column, mask_length, same_length, within};
use crate::group::{Columns, Statistics, statistics};
use crate::{Error, Float, Result, par};

/// `(a - mean(a)) · (b - mean(b))` of each row, means over its group: how much a token drives two columns together. With
/// advantages and log-probabilities, it is what Clip-Cov and KL-Cov read (arXiv:2505.22617). Invalid rows get 0.
///
/// ```
/// use agentrl_compute::weight::covariance;
///
/// let mut found = [0.0_f64; 4];
/// covariance(&[1.0, 1.0, -1.0, -1.0], &[-0.1, -2.0, -0.1, -2.0], &[0; 4], None, &mut found)?;
/// assert!(found.iter().zip([0.95, -0.95, -0.95, 0.95]).all(|(a, b)| (a - b).abs() < 1e-15));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, groups are not dense or a valid number is not finite.
pub fn covariance<T: Float>(
    first: &[T],
    second: &[T],
    groups: &[u32],
    valid: Option<&[bool]>,
    out: &mut [T],
) -> Result<()> {
    same_length("second", second.len(), "first", first.len())?;
    same_length("out", out.len(), "first", first.len())?;
    let means = |name, values| statistics(&Columns { valid, ..Columns::new(name, values, groups) }, 0);
    let (first_means, second_means) = (means("first", first)?, means("second", second)?);
    let from_mean =
        |values: &[T], means: &[Statistics], row: usize| values[row].to_f64() - means[groups[row] as usize].mean;
    by_row(valid, out, |row| from_mean(first, &first_means, row) * from_mean(second, &second_means, row))
}

/// Makes the valid rows of a column; the others get 0.
fn by_row<T: Float>(valid: Option<&[bool]>, out: &mut [T], make: impl Fn(usize) -> f64 + Sync) -> Result<()> {
    par::map(out, |row| if valid.is_none_or(|valid| valid[row]) { make(row) } else { 0.0 })
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
/// let mut found = [0.0_f64];
/// entropy_change(&[1.0], &logprob, &logprob, &[0.5], None, &mut found)?;
/// assert!((found[0] - 0.039_463_9).abs() < 1e-7);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ or a valid number is not finite.
pub fn entropy_change<T: Float>(
    advantages: &[T],
    logprobs: &[T],
    old_logprobs: &[T],
    entropies: &[T],
    valid: Option<&[bool]>,
    out: &mut [T],
) -> Result<()> {
    mask_length(valid, "advantages", advantages.len())?;
    same_length("out", out.len(), "advantages", advantages.len())?;
    let columns =
        [("advantages", advantages), ("logprobs", logprobs), ("old_logprobs", old_logprobs), ("entropies", entropies)];
    for (name, values) in columns {
        column(name, values, "advantages", advantages.len(), valid)?;
    }
    let probability = |logprob: T| logprob.to_f64().exp().clamp(1e-8, 1.0 - 1e-8);
    by_row(valid, out, |row| {
        let p = probability(logprobs[row]);
        let step = advantages[row].to_f64() / probability(old_logprobs[row]) * p * (1.0 - p);
        (step * (p.ln() + entropies[row].to_f64())).abs()
    })
}

/// Weights that fall with a score, from 1 at 0 to `least` at the largest score of the group:
/// `max(exp(-k · x), least)` with `k = -ln(least) / max(largest, floor)` (STEER's exponential map). Invalid rows get 0.
///
/// ```
/// use agentrl_compute::weight::damping;
///
/// let mut found = [0.0_f64; 3];
/// damping(&[0.0, 0.5, 1.0], &[0; 3], None, 0.64, 0.02, &mut found)?;
/// assert!(found.iter().zip([1.0, 0.8, 0.64]).all(|(a, b)| (a - b).abs() < 1e-15));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid score is negative or not finite, `least` is outside (0, 1] or `floor` is not
/// positive.
pub fn damping<T: Float>(
    scores: &[T],
    groups: &[u32],
    valid: Option<&[bool]>,
    least: f64,
    floor: f64,
    out: &mut [T],
) -> Result<()> {
    same_length("out", out.len(), "scores", scores.len())?;
    within("least", least, f64::MIN_POSITIVE, 1.0)?;
    within("floor", floor, f64::MIN_POSITIVE, f64::MAX)?;
    let found = statistics(&Columns { valid, ..Columns::new("scores", scores, groups) }, 0)?;
    if found.iter().any(|group| group.least < 0.0) {
        let counts = |&row: &usize| valid.is_none_or(|valid| valid[row]) && scores[row].to_f64() < 0.0;
        let row = (0..scores.len()).find(counts).unwrap_or_default();
        return Err(Error::invalid(format!("scores[{row}] is {}, but must not be negative", scores[row].to_f64())));
    }
    let slope = least.ln();
    by_row(valid, out, |row| {
        let largest = found[groups[row] as usize].most.max(floor);
        (slope * (scores[row].to_f64() / largest)).exp().max(least)
    })
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
/// let (logprobs, mut found) = ([0.25_f64.ln()], [0.0_f64]);
/// for (shape, expected) in [(Shape::Ratio(0.75), 0.25), (Shape::Complement(2.0), 0.5625), (Shape::Power(0.5), 0.5)] {
///     probability_shape(&logprobs, shape, &mut found)?;
///     assert!((found[0] - expected).abs() < 1e-15);
/// }
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a log-probability is NaN or above 0; minus infinity is probability 0.
pub fn probability_shape<T: Float>(logprobs: &[T], shape: Shape, out: &mut [T]) -> Result<()> {
    same_length("out", out.len(), "logprobs", logprobs.len())?;
    par::fill(out, |start, piece| {
        for (row, factor) in (start..).zip(piece) {
            let logprob = logprobs[row].to_f64();
            if logprob.is_nan() || logprob > 0.0 {
                return Err(Error::invalid(format!(
                    "logprobs[{row}] is {logprob}, but a log-probability is at most 0"
                )));
            }
            *factor = T::from_f64(match shape {
                Shape::Ratio(constant) => logprob.exp() / (logprob.exp() + constant),
                Shape::Complement(power) => (-logprob.exp_m1()).powf(power),
                Shape::Power(power) => logprob.exp().powf(power),
            });
        }
        Ok(())
    })
}

/// The factor of each row by the sign of its advantage: `positive`, `negative`, or 1 where it is 0. A factor is given once for
/// all rows or row by row.
///
/// ```
/// use agentrl_compute::weight::by_sign;
///
/// let mut factors = [0.0; 3];
/// by_sign(&[2.0, -1.0, 0.0], &[0.5], &[3.0, 4.0, 5.0], &mut factors)?;
/// assert_eq!(factors, [0.5, 4.0, 1.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if a factor has neither one value nor one for each row, or a number is not finite.
pub fn by_sign<T: Float>(advantages: &[T], positive: &[f64], negative: &[f64], out: &mut [T]) -> Result<()> {
    same_length("out", out.len(), "advantages", advantages.len())?;
    all_finite("advantages", advantages)?;
    for (name, factor) in [("positive", positive), ("negative", negative)] {
        if factor.len() != 1 {
            same_length(name, factor.len(), "advantages", advantages.len())?;
        }
        all_finite(name, factor)?;
    }
    let at = |factor: &[f64], row: usize| if factor.len() == 1 { factor[0] } else { factor[row] };
    par::map(out, |row| {
        // Both are read, so that signs need not be foreseen.
        let (advantage, positive, negative) = (advantages[row].to_f64(), at(positive, row), at(negative, row));
        let factor = if advantage < 0.0 { negative } else { 1.0 };
        if advantage > 0.0 { positive } else { factor }
    })
}

/// What unlikely successes get on top: where the advantage is positive, `min(max(rate · (1 - exp(s - mean(s))), 0), cap · A)`,
/// elsewhere 0; `s` is the mean log-probability of a row's tokens, its mean is over the group (XRPO, arXiv:2510.06672).
///
/// ```
/// use agentrl_compute::weight::novelty_bonus;
///
/// let mut found = [0.0_f64; 3];
/// novelty_bonus(&[1.0, 1.0, -1.0], &[-3.0, -1.0, -2.0], &[0; 3], None, (0.5, 0.2), &mut found)?;
/// assert!((found[0] - 0.2).abs() < 1e-15);
/// assert_eq!(found[1..], [0.0, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid number is not finite, or `rate` or `cap` is negative.
pub fn novelty_bonus<T: Float>(
    advantages: &[T],
    mean_logprobs: &[T],
    groups: &[u32],
    valid: Option<&[bool]>,
    (rate, cap): (f64, f64),
    out: &mut [T],
) -> Result<()> {
    within("rate", rate, 0.0, f64::MAX)?;
    within("cap", cap, 0.0, f64::MAX)?;
    same_length("out", out.len(), "advantages", advantages.len())?;
    mask_length(valid, "advantages", advantages.len())?;
    column("advantages", advantages, "mean_logprobs", mean_logprobs.len(), valid)?;
    let means = statistics(&Columns { valid, ..Columns::new("mean_logprobs", mean_logprobs, groups) }, 0)?;
    by_row(valid, out, |row| {
        let advantage = advantages[row].to_f64();
        if advantage <= 0.0 {
            return 0.0;
        }
        let novelty = -(mean_logprobs[row].to_f64() - means[groups[row] as usize].mean).exp_m1();
        (rate * novelty).max(0.0).min(cap * advantage)
    })
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
        let (bad, mut found) = ([1.0, f64::NAN, 3.0], [7.0; 3]);
        covariance(&bad, &bad, &[0; 3], Some(&valid), &mut found)?;
        assert_eq!(found.map(f64::to_bits), [1.0, 0.0, 1.0].map(f64::to_bits));
        entropy_change(&bad, &[-1.0; 3], &[-1.0; 3], &[1.0; 3], Some(&valid), &mut found)?;
        assert_eq!(found[1].to_bits(), 0);
        damping(&bad, &[0; 3], Some(&valid), 0.5, 1.0, &mut found)?;
        assert_eq!(found[1].to_bits(), 0);
        novelty_bonus(&bad, &[-1.0; 3], &[0; 3], Some(&valid), (1.0, 1.0), &mut found)?;
        assert_eq!(found.map(f64::to_bits), [0; 3]);
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_named() {
        let out = &mut [0.0];
        assert_eq!(message(damping(&[-1.0], &[0], None, 0.5, 1.0, out)), "scores[0] is -1, but must not be negative");
        assert!(message(damping(&[1.0], &[0], None, 0.0, 1.0, out)).starts_with("least is 0; give a number from"));
        assert!(message(probability_shape(&[0.5], Shape::Power(1.0), out)).starts_with("logprobs[0] is 0.5"));
        assert!(message(Shape::from_name("ratio", 0.0)).starts_with("constant is 0; give"));
        assert!(message(Shape::from_name("root", 1.0)).starts_with("shape is \"root\""));
        assert!(message(by_sign(&[1.0; 3], &[1.0, 2.0], &[1.0], &mut [0.0; 3])).starts_with("positive has 2 values"));
        let change = entropy_change(&[1.0], &[f64::NAN], &[0.0], &[0.0], None, out);
        assert!(message(change).starts_with("logprobs[0] is NaN"));
        assert!(message(by_sign(&[1.0; 2], &[1.0], &[1.0], out)).starts_with("out has 1 values"));
    }

    #[test]
    fn a_token_without_surprise_does_not_change_its_entropy() -> Result<()> {
        let (half, mut found) = ([0.5_f64.ln()], [7.0]);
        entropy_change(&[1.0], &half, &half, &[2.0_f64.ln()], None, &mut found)?;
        assert!(found[0] < 1e-15);
        probability_shape(&[f64::NEG_INFINITY], Shape::Ratio(0.1), &mut found)?;
        assert_eq!(found[0].to_bits(), 0);
        Ok(())
    }
}
