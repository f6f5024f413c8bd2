//! Risk measures of scores, and quantiles tracked from batch to batch.

use crate::argument_checks::{all_finite, within};
use crate::group::{Columns, quantile};
use crate::quantile::Interpolation;
use crate::{Error, Result, names};

/// Track quantiles of the scores over batches: `q ← q + step_size · (level - mean 1[x < q])`.
///
/// Return the quantiles for this batch and the next state. The returned quantiles are those before the update, sorted
/// ascending. Without a state, both start from the empirical quantiles of `values`. Source: `RiskPO`, arXiv:2510.00911.
///
/// ```
/// use agentrl_compute::reward::tracked_quantiles;
///
/// let (read, state) = tracked_quantiles(None, &[0.0, 1.0, 2.0], &[0.5], 0.1)?;
/// assert_eq!((read[0], state[0]), (1.0, 1.0 + 0.1 * (0.5 - 1.0 / 3.0)));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if levels do not ascend within [0, 1], a number is not finite, the state has another length than the
/// levels, or there is neither a state nor a value.
pub fn tracked_quantiles(
    state: Option<&[f64]>,
    values: &[f64],
    levels: &[f64],
    step_size: f64,
) -> Result<(Vec<f64>, Vec<f64>)> {
    all_finite("values", values)?;
    within("step_size", step_size, 0.0, f64::MAX)?;
    for (place, &level) in levels.iter().enumerate() {
        within(&format!("levels[{place}]"), level, 0.0, 1.0)?;
    }
    if let Some(place) = levels.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(Error::invalid(format!(
            "levels[{}] is {}, not above the one before, {}; give ascending levels",
            place + 1,
            levels[place + 1],
            levels[place]
        )));
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let tracked = if let Some(state) = state {
        crate::argument_checks::column("state", state, "levels", levels.len(), None)?;
        state.to_vec()
    } else {
        if values.is_empty() {
            return Err(Error::invalid("values is empty and there is no state yet; give the scores of a batch"));
        }
        let one_group = vec![0; values.len()];
        let columns = Columns::new("values", values, &one_group);
        levels.iter().map(|&level| Ok(quantile(&columns, level, Interpolation::Linear)?[0])).collect::<Result<_>>()?
    };
    let next = tracked.iter().zip(levels).map(|(&tracked, level)| {
        if sorted.is_empty() {
            return tracked;
        }
        let below = sorted.partition_point(|&value| value < tracked) as f64 / sorted.len() as f64;
        tracked + step_size * (level - below)
    });
    let next = next.collect();
    let mut read = tracked;
    read.sort_by(f64::total_cmp);
    Ok((read, next))
}

names! {
    /// The tail of the scores that counts in addition to the middle range.
    "tail" Tail {
        /// Scores below the lower quantile (risk-averse).
        Lower = "lower",
        /// Scores above the upper quantile (risk-seeking).
        Upper = "upper",
    }
}

/// Options of [`tail_risk`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailRisk<'a> {
    /// The lower level, whose quantile is `low`.
    pub alpha_low: f64,
    /// The upper level, whose quantile is `high`.
    pub alpha_high: f64,
    /// Weight of the tail relative to the middle range.
    pub omega: f64,
    /// Subtract the width of the middle range from the middle term, so that it is at most 0.
    pub natural_baseline: bool,
    /// The tail.
    pub tail: Tail,
    /// Levels (ascending, at least two) and their quantiles. The mean of each term over this curve is subtracted from
    /// it.
    pub curve: Option<(&'a [f64], &'a [f64])>,
}

/// Mixed tail risk of scores: `(omega · T + RVaR) / (omega + 1)` with
/// `RVaR = [(s - low)⁺ - (s - high)⁺ (+ low - high)] / (alpha_high - alpha_low)`. The tail `T` is
/// `-(low - s)⁺ / alpha_low` (`CVaR`) for the lower tail and `(s - high)⁺ / (1 - alpha_high)` for the upper one. With a
/// `curve` of quantiles, the mean of each numerator over the curve (trapezoids over its levels) is subtracted from it,
/// which cancels the natural baseline. Source: `RiskPO`, arXiv:2510.00911.
///
/// ```
/// use agentrl_compute::reward::{Tail, TailRisk, tail_risk};
///
/// let options = TailRisk {
///     alpha_low: 0.2, alpha_high: 0.8, omega: 1.5, natural_baseline: true, tail: Tail::Lower, curve: None,
/// };
/// let found = tail_risk(&[0.0, 1.0, 5.0], &[1.0; 3], &[4.0; 3], &options)?;
/// assert!(found.iter().zip([-5.0, -2.0, 0.0]).all(|(a, b)| (a - b).abs() < 1e-12));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a number is not finite, levels are not `0 < alpha_low < alpha_high <= 1` (below 1 for
/// the upper tail), `omega` is negative, or the curve's levels do not ascend.
pub fn tail_risk(scores: &[f64], low: &[f64], high: &[f64], options: &TailRisk<'_>) -> Result<Vec<f64>> {
    let &TailRisk { alpha_low, alpha_high, omega, natural_baseline, tail, curve } = options;
    for (name, column) in [("scores", scores), ("low", low), ("high", high)] {
        crate::argument_checks::column(name, column, "scores", scores.len(), None)?;
    }
    within("omega", omega, 0.0, f64::MAX)?;
    if !(0.0 < alpha_low && alpha_low < alpha_high && alpha_high <= 1.0) {
        return Err(Error::invalid(format!(
            "alpha_low is {alpha_low} and alpha_high {alpha_high}; give 0 < alpha_low < alpha_high <= 1"
        )));
    }
    if tail == Tail::Upper && alpha_high >= 1.0 {
        return Err(Error::invalid("alpha_high is 1, but the upper tail lies above it; give a number below 1"));
    }
    if let Some((levels, quantiles)) = curve {
        check_curve(levels, quantiles)?;
    }
    let risk = |row: usize| {
        let (low, high) = (low[row], high[row]);
        let natural = if natural_baseline { low - high } else { 0.0 };
        let middle = |score: f64| (score - low).max(0.0) - (score - high).max(0.0) + natural;
        let (extreme, share): (&dyn Fn(f64) -> f64, f64) = match tail {
            Tail::Lower => (&|score| -(low - score).max(0.0), alpha_low),
            Tail::Upper => (&|score| (score - high).max(0.0), 1.0 - alpha_high),
        };
        let less = |numerator: &dyn Fn(f64) -> f64| {
            numerator(scores[row]) - curve.map_or(0.0, |(levels, quantiles)| mean_over(levels, quantiles, numerator))
        };
        (omega * (less(extreme) / share) + less(&middle) / (alpha_high - alpha_low)) / (omega + 1.0)
    };
    Ok((0..scores.len()).map(risk).collect())
}

fn check_curve(levels: &[f64], quantiles: &[f64]) -> Result<()> {
    all_finite("levels", levels)?;
    crate::argument_checks::column("quantiles", quantiles, "levels", levels.len(), None)?;
    if levels.len() < 2 || levels.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(Error::invalid(format!(
            "the curve has {} levels, or they do not ascend; give at least two, each above the one before",
            levels.len()
        )));
    }
    Ok(())
}

/// Return the mean of `term` over a curve of quantiles (trapezoidal rule).
fn mean_over(levels: &[f64], quantiles: &[f64], term: &dyn Fn(f64) -> f64) -> f64 {
    let strips = levels.windows(2).zip(quantiles.windows(2));
    let area: f64 = strips.map(|(at, of)| (at[1] - at[0]) * (term(of[0]) + term(of[1])) / 2.0).sum();
    area / (levels[levels.len() - 1] - levels[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: TailRisk<'static> = TailRisk {
        alpha_low: 0.2,
        alpha_high: 0.8,
        omega: 1.5,
        natural_baseline: true,
        tail: Tail::Lower,
        curve: None,
    };

    #[test]
    fn the_fixture_of_the_paper() -> Result<()> {
        let scores = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let found = tail_risk(&scores, &[1.0; 6], &[4.0; 6], &PAPER)?;
        let expected = [-5.0, -2.0, -4.0 / 3.0, -2.0 / 3.0, 0.0, 0.0];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        Ok(())
    }

    #[test]
    fn the_upper_tail_and_the_curve_by_hand() -> Result<()> {
        let daring = TailRisk { tail: Tail::Upper, natural_baseline: false, ..PAPER };
        let found = tail_risk(&[0.0, 2.0, 5.0], &[1.0; 3], &[4.0; 3], &daring)?;
        // The largest score: (1.5 · 1 / 0.2 + 3 / 0.6) / 2.5.
        let expected = [0.0, 1.0 / 0.6 / 2.5, (7.5 + 5.0) / 2.5];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");

        // Over the curve 0, 2, 6 at 0, 0.5, 1: the middle term is 0, 1, 3 (mean 1.25), the tail -1, 0, 0 (mean -0.25).
        let (levels, quantiles) = ([0.0, 0.5, 1.0], [0.0, 2.0, 6.0]);
        for natural_baseline in [true, false] {
            let options = TailRisk { curve: Some((&levels, &quantiles)), natural_baseline, ..PAPER };
            let found = tail_risk(&[0.0], &[1.0], &[4.0], &options)?;
            let expected = (1.5 * (-1.0 + 0.25) / 0.2 + (0.0 - 1.25) / 0.6) / 2.5;
            assert!((found[0] - expected).abs() < 1e-12, "{found:?}");
        }
        Ok(())
    }

    #[test]
    fn a_quantile_is_read_before_it_moves_and_always_ascends() -> Result<()> {
        let (read, state) = tracked_quantiles(Some(&[2.0, 1.0]), &[0.0, 3.0], &[0.25, 0.75], 0.4)?;
        assert_eq!((read, state), (vec![1.0, 2.0], vec![2.0 - 0.1, 1.0 + 0.1]));
        let (read, state) = tracked_quantiles(Some(&[2.0]), &[], &[0.25], 0.4)?;
        assert_eq!((read, state), (vec![2.0], vec![2.0]));
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        let message = |state, values: &[f64], levels: &[f64]| {
            tracked_quantiles(state, values, levels, 0.1).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
        };
        assert!(message(None, &[], &[0.5]).starts_with("values is empty and there is no state yet"));
        assert!(message(Some(&[1.0]), &[1.0], &[0.2, 0.8]).starts_with("state has 1 values, but levels has 2"));
        assert_eq!(message(None, &[1.0], &[0.8, 0.2]), "levels[1] is 0.2, not above the one before");
        assert_eq!(message(None, &[1.0], &[1.2]), "levels[0] is 1.2; give a number from 0 to 1");
        for bad in [
            TailRisk { alpha_low: 0.9, ..PAPER },
            TailRisk { alpha_high: 1.0, tail: Tail::Upper, ..PAPER },
            TailRisk { curve: Some((&[0.5], &[0.0])), ..PAPER },
            TailRisk { curve: Some((&[0.5, 0.4], &[0.0, 1.0])), ..PAPER },
            TailRisk { curve: Some((&[0.4, 0.5], &[0.0])), ..PAPER },
        ] {
            assert!(tail_risk(&[1.0], &[0.0], &[1.0], &bad).is_err(), "{bad:?}");
        }
        assert!(Tail::from_name("left").is_err());
    }
}
