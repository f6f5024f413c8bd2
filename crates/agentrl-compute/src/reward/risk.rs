//! Risk measures of scores, and quantiles that are tracked from batch to batch.

use crate::check::{all_finite, within};
use crate::group::{Columns, quantile};
use crate::quantile::Interpolation;
use crate::{Error, Result};

/// Quantiles that follow the scores of the batches: `q ← q + rate · (level - mean 1[x < q])`.
///
/// Without a state, it starts as the empirical quantiles of `values`, which are also what the batch reads. Returns what the
/// batch reads (before the update, ascending, whatever the updates did to the order) and the next state. Source: `RiskPO`,
/// arXiv:2510.00911.
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
    rate: f64,
) -> Result<(Vec<f64>, Vec<f64>)> {
    all_finite("values", values)?;
    within("rate", rate, 0.0, f64::MAX)?;
    for (place, &level) in levels.iter().enumerate() {
        within(&format!("levels[{place}]"), level, 0.0, 1.0)?;
    }
    if let Some(place) = levels.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(Error::invalid(format!("levels[{}] is {}, but levels must ascend", place + 1, levels[place + 1])));
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let tracked = if let Some(state) = state {
        crate::check::column("state", state, "levels", levels.len(), None)?;
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
        tracked + rate * (level - below)
    });
    let next = next.collect();
    let mut read = tracked;
    read.sort_by(f64::total_cmp);
    Ok((read, next))
}

/// Options of [`tail_risk`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailRisk {
    /// The lower level, whose quantile is `low`.
    pub alpha_low: f64,
    /// The upper level, whose quantile is `high`.
    pub alpha_high: f64,
    /// Weight of the lower tail beside the middle range.
    pub omega: f64,
    /// Lower the middle term by the width of its range, so that it is at most 0.
    pub natural_baseline: bool,
}

/// The mixed tail risk of scores: `(omega · CVaR + RVaR) / (omega + 1)` with `CVaR = -(low - s)⁺ / alpha_low` and
/// `RVaR = [(s - low)⁺ - (s - high)⁺ (+ low - high)] / (alpha_high - alpha_low)`. Source: `RiskPO`, arXiv:2510.00911.
///
/// ```
/// use agentrl_compute::reward::{TailRisk, tail_risk};
///
/// let options = TailRisk { alpha_low: 0.2, alpha_high: 0.8, omega: 1.5, natural_baseline: true };
/// let found = tail_risk(&[0.0, 1.0, 5.0], &[1.0; 3], &[4.0; 3], &options)?;
/// assert!(found.iter().zip([-5.0, -2.0, 0.0]).all(|(a, b)| (a - b).abs() < 1e-12));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a number is not finite, levels are not `0 < alpha_low < alpha_high <= 1`, or `omega` is
/// negative.
pub fn tail_risk(scores: &[f64], low: &[f64], high: &[f64], options: &TailRisk) -> Result<Vec<f64>> {
    let &TailRisk { alpha_low, alpha_high, omega, natural_baseline } = options;
    for (name, column) in [("scores", scores), ("low", low), ("high", high)] {
        crate::check::column(name, column, "scores", scores.len(), None)?;
    }
    within("omega", omega, 0.0, f64::MAX)?;
    if !(0.0 < alpha_low && alpha_low < alpha_high && alpha_high <= 1.0) {
        return Err(Error::invalid(format!(
            "alpha_low is {alpha_low} and alpha_high {alpha_high}; give 0 < alpha_low < alpha_high <= 1"
        )));
    }
    let risk = |row: usize| {
        let (score, low, high) = (scores[row], low[row], high[row]);
        let baseline = if natural_baseline { low - high } else { 0.0 };
        let middle = ((score - low).max(0.0) - (score - high).max(0.0) + baseline) / (alpha_high - alpha_low);
        let tail = -(low - score).max(0.0) / alpha_low;
        (omega * tail + middle) / (omega + 1.0)
    };
    Ok((0..scores.len()).map(risk).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixture_of_the_paper() -> Result<()> {
        let scores = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let options = TailRisk { alpha_low: 0.2, alpha_high: 0.8, omega: 1.5, natural_baseline: true };
        let found = tail_risk(&scores, &[1.0; 6], &[4.0; 6], &options)?;
        let expected = [-5.0, -2.0, -4.0 / 3.0, -2.0 / 3.0, 0.0, 0.0];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
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
    fn what_is_wrong_is_named() {
        let message = |state, values: &[f64], levels: &[f64]| {
            tracked_quantiles(state, values, levels, 0.1).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
        };
        assert!(message(None, &[], &[0.5]).starts_with("values is empty and there is no state yet"));
        assert!(message(Some(&[1.0]), &[1.0], &[0.2, 0.8]).starts_with("state has 1 values, but levels has 2"));
        assert_eq!(message(None, &[1.0], &[0.8, 0.2]), "levels[1] is 0.2, but levels must ascend");
        assert_eq!(message(None, &[1.0], &[1.2]), "levels[0] is 1.2; give a number from 0 to 1");
        let bad = TailRisk { alpha_low: 0.9, alpha_high: 0.8, omega: 1.0, natural_baseline: false };
        assert!(tail_risk(&[1.0], &[0.0], &[1.0], &bad).is_err());
    }
}
