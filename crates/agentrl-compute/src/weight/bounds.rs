//! Clip bounds that follow from the batch.

use crate::check::{column, mask_length, within};
use crate::group::total;
use crate::{Error, Float, Result};

/// A search sums up all tokens at every step.
const MOST_STEPS: f64 = 10_000.0;

/// How the weight of positive advantages is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// `P / (P + N)`: their part of all (the paper).
    Share,
    /// `P / N` (the public code); `odds = share / (1 - share)`.
    Odds,
}

impl Measure {
    /// The measure of a name.
    ///
    /// # Errors
    /// `InvalidInput` for a name other than `share` and `odds`.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "share" => Ok(Self::Share),
            "odds" => Ok(Self::Odds),
            _ => Err(Error::invalid(format!("measure is {name:?}; use \"share\" or \"odds\""))),
        }
    }
}

/// Options of [`balanced_bounds`]; of each pair, the first is for the lower bound and the second for the upper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BalancedBounds {
    /// Where the bounds start.
    pub start: (f64, f64),
    /// How far they may rise.
    pub limit: (f64, f64),
    /// How far they rise at a time.
    pub step: (f64, f64),
    /// What the measure is to reach.
    pub target: f64,
    /// Of what.
    pub measure: Measure,
}

/// Clip bounds, and what tokens of either sign contribute within them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The lower bound of the ratio.
    pub low: f64,
    /// The upper bound of the ratio.
    pub high: f64,
    /// `P = Σ min(r, high) · A` over A > 0.
    pub positive: f64,
    /// `N = Σ max(r, low) · |A|` over A < 0.
    pub negative: f64,
}

/// Raises the lower, then the upper clip bound step by step until positive advantages contribute their target part (BAPO,
/// arXiv:2510.18927). No negative contribution at all: the bounds stay where they start.
///
/// ```
/// use agentrl_compute::weight::{BalancedBounds, Measure, balanced_bounds};
///
/// let options = BalancedBounds {
///     start: (0.5, 1.2), limit: (0.9, 3.0), step: (0.2, 0.9), target: 0.5, measure: Measure::Share,
/// };
/// let found = balanced_bounds(&[2.0, 0.6, 1.0], &[1.0, -1.0, -1.0], None, &options)?;
/// assert_eq!((found.low, found.high), (0.9, 2.1));
/// assert_eq!((found.positive, found.negative), (2.0, 1.9));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid number is not finite, a step is not positive or far too small, a limit lies below its
/// start, or the target is negative or not finite.
pub fn balanced_bounds<T: Float>(
    ratios: &[T],
    advantages: &[T],
    valid: Option<&[bool]>,
    options: &BalancedBounds,
) -> Result<Bounds> {
    check(ratios, "ratios", advantages, valid)?;
    for (name, step) in [("the first step", options.step.0), ("the second step", options.step.1)] {
        within(name, step, f64::MIN_POSITIVE, f64::MAX)?;
    }
    within("target", options.target, 0.0, f64::MAX)?;
    let ((low, high), limit) = (options.start, options.limit);
    if !(limit.0 >= low && limit.1 >= high && limit.0.is_finite() && limit.1.is_finite()) {
        return Err(Error::invalid(format!("limit is {limit:?}, but must not lie below start, {:?}", options.start)));
    }
    for (name, start, limit, step) in
        [("the first step", low, limit.0, options.step.0), ("the second step", high, limit.1, options.step.1)]
    {
        if (limit - start) / step > MOST_STEPS {
            return Err(Error::invalid(format!(
                "{name} is {step}, over {MOST_STEPS} steps from {start} to {limit}; give a larger one"
            )));
        }
    }
    // Ratios and advantages of the tokens of either sign.
    let counted = (0..ratios.len()).filter(|&row| valid.is_none_or(|valid| valid[row]));
    let tokens = counted.map(|row| (ratios[row].to_f64(), advantages[row].to_f64()));
    let (negative, positive): (Vec<_>, Vec<_>) = tokens.partition(|&(_, advantage)| advantage < 0.0);
    let pull = |low: f64| total(negative.len(), |place| (negative[place].0.max(low) * negative[place].1).abs());
    let push = |high: f64| total(positive.len(), |place| (positive[place].0.min(high) * positive[place].1).abs());
    let mut found = Bounds { low, high, positive: push(high)?, negative: pull(low)? };
    let short = |found: &Bounds| {
        let whole = if options.measure == Measure::Share { found.positive + found.negative } else { found.negative };
        found.negative > 0.0 && found.positive < options.target * whole
    };
    while short(&found) && found.low < limit.0 {
        found.low = (found.low + options.step.0).min(limit.0);
        found.negative = pull(found.low)?;
    }
    while short(&found) && found.high < limit.1 {
        found.high = (found.high + options.step.1).min(limit.1);
        found.positive = push(found.high)?;
    }
    Ok(found)
}

/// The largest `κ` such that the squared log-ratios of harmful tokens, each cut at `κ²`, have a mean of at most `budget`
/// (M2PO, arXiv:2510.01161); infinite if they have it uncut. Harmful are tokens whose ratio has already moved the way of their
/// advantage. The clip bounds are `exp(-κ)` and `exp(κ)`.
///
/// ```
/// use agentrl_compute::weight::second_moment_bound;
///
/// assert_eq!(second_moment_bound(&[0.1, 0.2, 1.0], &[1.0, -1.0, 1.0], None, 0.025)?, 0.2);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a valid number is not finite or the budget is negative.
pub fn second_moment_bound<T: Float>(
    log_ratios: &[T],
    advantages: &[T],
    valid: Option<&[bool]>,
    budget: f64,
) -> Result<f64> {
    check(log_ratios, "log_ratios", advantages, valid)?;
    within("budget", budget, 0.0, f64::MAX)?;
    let harmful = |&row: &usize| {
        valid.is_none_or(|valid| valid[row]) && log_ratios[row].to_f64() * advantages[row].to_f64() > 0.0
    };
    let rows = (0..log_ratios.len()).filter(harmful);
    let mut squares: Vec<f64> = rows.map(|row| log_ratios[row].to_f64().powi(2)).collect();
    squares.sort_unstable_by(f64::total_cmp);
    let count = squares.len() as f64;
    let mut below = 0.0;
    for (place, square) in squares.iter().enumerate() {
        // Cut here, this one and all above count as much as this one.
        let above = count - place as f64;
        if below + above * square > budget * count {
            return Ok(((budget * count - below) / above).max(0.0).sqrt());
        }
        below += square;
    }
    Ok(f64::INFINITY)
}

fn check<T: Float>(values: &[T], name: &str, advantages: &[T], valid: Option<&[bool]>) -> Result<()> {
    mask_length(valid, name, values.len())?;
    column(name, values, name, values.len(), valid)?;
    column("advantages", advantages, name, values.len(), valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPTIONS: BalancedBounds =
        BalancedBounds { start: (0.6, 1.2), limit: (0.9, 3.0), step: (0.1, 0.2), target: 0.5, measure: Measure::Share };

    #[test]
    fn one_sign_alone() -> Result<()> {
        let found = balanced_bounds(&[1.0, 2.0], &[1.0, 1.0], None, &OPTIONS)?;
        assert_eq!((found.low, found.high, found.positive), (0.6, 1.2, 2.2));
        let found = balanced_bounds(&[1.0, 2.0], &[-1.0, -1.0], None, &OPTIONS)?;
        assert_eq!((found.low, found.high), (0.9, 3.0));
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_named() {
        let message = |options: &BalancedBounds| {
            balanced_bounds(&[1.0], &[1.0], None, options).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
        };
        assert!(
            message(&BalancedBounds { step: (0.0, 0.1), ..OPTIONS }).starts_with("the first step is 0; give a number")
        );
        assert!(
            message(&BalancedBounds { limit: (0.5, 3.0), ..OPTIONS }).starts_with("limit is (0.5, 3.0), but must not")
        );
        assert!(second_moment_bound(&[1.0], &[1.0], None, -1.0).is_err());
        assert!(Measure::from_name("ratio").is_err());
    }

    proptest! {
        #[test]
        fn the_budget_is_used_up(rows in prop::collection::vec((-2.0_f64..2.0, -1.0_f64..1.0), 0..12), budget in 0.0_f64..1.0) {
            let (d, a): (Vec<f64>, Vec<f64>) = rows.into_iter().unzip();
            let bound = second_moment_bound(&d, &a, None, budget)?;
            let harmful: Vec<f64> = (0..d.len()).filter(|&row| d[row] * a[row] > 0.0).map(|row| d[row] * d[row]).collect();
            let cut = |bound: f64| harmful.iter().map(|square| square.min(bound * bound)).sum::<f64>();
            let whole = budget * harmful.len() as f64;
            prop_assert!(cut(bound) <= whole + 1e-9);
            prop_assert!(bound.is_infinite() || (cut(bound) - whole).abs() < 1e-9);
        }
    }
}
