//! Importance ratios between the trained policy and the behaviour policy, as weights.

use std::ops::Range;

use super::ratios::{MOST_LOG_RATIO, Ratios, cover};
use crate::argument_checks::same_length;
use crate::simd::{BLOCK, exp, wide};
use crate::{Error, Float, Result, names, thread_pool};

names! {
    /// Tokens that share one importance weight.
    "level" Level {
        /// Each token: `ρ_t`.
        Token = "token",
        /// Each step (turn, chunk): `Π ρ` over its tokens.
        Step = "step",
        /// Each step: the geometric mean of `ρ` over its tokens.
        StepGeometric = "step_geometric",
        /// Each row: `Π ρ`.
        Sequence = "sequence",
        /// Each row: the geometric mean of `ρ` (GSPO, arXiv:2507.18071).
        Geometric = "geometric",
        /// Each token: `Π ρ` up to it.
        Prefix = "prefix",
        /// Each token: `ρ_t` times the smallest `ρ` before it in its row, 1 for the first (`MinPRO`, arXiv:2601.22718).
        PrefixMin = "prefix_min",
    }
}

names! {
    /// Treatment of weights beyond the bounds.
    "kind" Action {
        /// Set them to the bound (TIS).
        Truncate = "truncate",
        /// Set them to 0 (`IcePop`, masked importance sampling).
        Mask = "mask",
        /// Set them to 0, and all others to 1: the ratio selects tokens but does not weight them.
        Filter = "filter",
        /// Set all weights of their row to 0.
        Veto = "veto",
    }
}

/// Options of [`importance_weights`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImportanceOptions<'a> {
    /// Tokens that share one weight.
    pub level: Level,
    /// Offsets of the steps, for the levels with steps; steps must not cross rows.
    pub steps: Option<&'a [i64]>,
    /// Lower bound of a weight, above 0.
    pub at_least: Option<f64>,
    /// Upper bound of a weight.
    pub at_most: Option<f64>,
    /// Treatment of weights beyond the bounds.
    pub action: Action,
}

/// Compute the importance weights of tokens, by which the loss is multiplied. Log-ratios (summed over the tokens that
/// share a weight) are clamped to ± 20.
///
/// Truncation at token level is TIS, masking is `IcePop`. The results are those of verl's `rollout_corr_helper`.
///
/// ```
/// use agentrl_compute::weight::{Action, ImportanceOptions, Level, Ratios, importance_weights};
///
/// let ratios = Ratios { log_ratios: &[0.0, 1.0, -1.0], offsets: &[0, 3], mask: None };
/// let options =
///     ImportanceOptions { level: Level::Token, steps: None, at_least: None, at_most: Some(2.0), action: Action::Truncate };
/// let mut weights = [0.0; 3];
/// importance_weights(&ratios, &options, &mut weights)?;
/// assert_eq!(weights, [1.0, 2.0, (-1.0_f64).exp()]);
/// importance_weights(&ratios, &ImportanceOptions { level: Level::Sequence, ..options }, &mut weights)?;
/// assert_eq!(weights, [1.0; 3]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, offsets do not cover the tokens, the log-ratio of a token in the mask is not
/// finite, bounds are not `0 < at_least <= at_most`, or steps are missing, given but not used, or cross rows.
pub fn importance_weights<T: Float>(
    ratios: &Ratios<'_, T>,
    options: &ImportanceOptions<'_>,
    out: &mut [T],
) -> Result<()> {
    ratios.check_lengths()?;
    same_length("out", out.len(), "log_ratios", ratios.log_ratios.len())?;
    let (least, most) = (options.at_least.unwrap_or(0.0), options.at_most.unwrap_or(f64::INFINITY));
    if options.at_least.is_some_and(|least| least.is_nan() || least <= 0.0) || most.is_nan() || least > most {
        return Err(Error::invalid(format!("at_least is {least} and at_most {most}; give 0 < at_least <= at_most")));
    }
    check_steps(ratios, options)?;
    let bounds = Bounds { least, most, action: options.action };
    thread_pool::fill_rows(ratios.offsets, out, |rows, out| {
        let from = ratios.row(rows.start).start;
        ratios.check_tokens(from..from + out.len())?;
        for row in rows {
            let tokens = ratios.row(row);
            let weights = &mut out[tokens.start - from..tokens.end - from];
            let mut outside = false;
            for unit in units(&tokens, options.steps).windows(2) {
                let unit = unit[0] as usize..unit[1] as usize;
                let weights = &mut weights[unit.start - tokens.start..unit.end - tokens.start];
                outside |= fill_unit(ratios, unit, options.level, &bounds, weights);
            }
            if outside && options.action == Action::Veto {
                weights.fill(T::from_f64(0.0));
            }
        }
        Ok(())
    })
}

/// Bounds of weights, and the treatment of weights beyond them.
#[derive(Debug)]
struct Bounds {
    least: f64,
    most: f64,
    action: Action,
}

impl Bounds {
    /// Bring weights within the bounds and set those of tokens outside the mask to 0. Return whether a weight in the
    /// mask was out of bounds.
    fn apply(&self, weights: &mut [f64], mask: Option<&[bool]>) -> bool {
        let &Self { least, most, action } = self;
        let (below, above) = if action == Action::Truncate { (least, most) } else { (0.0, 0.0) };
        let filter = action == Action::Filter;
        // Moved into the closure: numbers that it only borrows are selected by address and then gathered.
        wide(
            #[inline(always)]
            move || {
                if let Some(mask) = mask {
                    // NaN is never out of bounds.
                    let tokens = weights.iter_mut().zip(mask);
                    tokens.for_each(|(weight, &acted)| *weight = if acted { *weight } else { f64::NAN });
                }
                let mut outside = false;
                for weight in weights {
                    let (low, high) = (*weight < least, *weight > most);
                    outside |= low | high;
                    let kept = if filter { 1.0 } else { *weight };
                    let kept = if high { above } else { kept };
                    let kept = if low { below } else { kept };
                    *weight = if weight.is_nan() { 0.0 } else { kept };
                }
                outside
            },
        )
    }
}

/// Write the weights of a unit's tokens. Return whether a token in the mask was out of bounds.
fn fill_unit<T: Float>(
    ratios: &Ratios<'_, T>,
    unit: Range<usize>,
    level: Level,
    bounds: &Bounds,
    out: &mut [T],
) -> bool {
    // The weight that all tokens of the unit share, if there is one.
    let shared = match level {
        Level::Step | Level::Sequence => Some(ratios.total(unit.clone()).0),
        Level::StepGeometric | Level::Geometric => {
            let (total, count) = ratios.total(unit.clone());
            Some(total / count.max(1) as f64)
        }
        Level::Token | Level::Prefix | Level::PrefixMin => None,
    };
    let mut numbers = [0.0; BLOCK];
    let shared = shared.map(|mut log_weight| {
        exp(std::slice::from_mut(&mut log_weight), MOST_LOG_RATIO);
        log_weight
    });
    if let (Some(weight), None) = (shared, ratios.mask) {
        numbers.fill(weight);
        let outside = bounds.apply(&mut numbers, None);
        out.chunks_mut(BLOCK).for_each(|out| T::write(&numbers[..out.len()], out));
        return outside && !out.is_empty();
    }
    let (mut so_far, mut least) = (0.0, None);
    let mut outside = false;
    for (start, out) in unit.step_by(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let (tokens, numbers) = (start..start + out.len(), &mut numbers[..out.len()]);
        if let Some(weight) = shared {
            numbers.fill(weight);
        } else {
            ratios.read(tokens.clone(), numbers);
            match level {
                Level::Prefix => numbers.iter_mut().filter(|number| !number.is_nan()).for_each(|number| {
                    so_far += *number;
                    *number = so_far;
                }),
                Level::PrefixMin => numbers.iter_mut().filter(|number| !number.is_nan()).for_each(|number| {
                    let own = *number;
                    *number += least.unwrap_or(0.0);
                    least = Some(least.map_or(own, |least: f64| least.min(own)));
                }),
                _ => {}
            }
            exp(numbers, MOST_LOG_RATIO);
        }
        outside |= bounds.apply(numbers, ratios.mask.map(|mask| &mask[tokens]));
        T::write(numbers, out);
    }
    outside
}

/// Return the offsets of the units that share weights within a row: its steps, or the row itself.
fn units(row: &Range<usize>, steps: Option<&[i64]>) -> Vec<i64> {
    let Some(bounds) = steps else { return vec![row.start as i64, row.end as i64] };
    let first = bounds.partition_point(|&bound| (bound as usize) < row.start);
    let last = bounds.partition_point(|&bound| bound as usize <= row.end);
    bounds[first..last].to_vec()
}

/// Check that steps are given if the level needs them, and cross no row.
fn check_steps<T: Float>(ratios: &Ratios<'_, T>, options: &ImportanceOptions<'_>) -> Result<()> {
    match (matches!(options.level, Level::Step | Level::StepGeometric), options.steps) {
        (false, None) => Ok(()),
        (false, Some(_)) => {
            Err(Error::invalid("steps is given, but only levels \"step\" and \"step_geometric\" use it; leave it out"))
        }
        (true, None) => Err(Error::invalid(
            "steps is missing, but levels \"step\" and \"step_geometric\" need it; give the offsets of the steps",
        )),
        (true, Some(bounds)) => {
            cover("steps", bounds, ratios.log_ratios.len())?;
            match ratios.offsets.iter().find(|end| bounds.binary_search(end).is_err()) {
                None => Ok(()),
                Some(end) => Err(Error::invalid(format!(
                    "steps has a step across token {end}, the end of a row; give steps that each lie in one row"
                ))),
            }
        }
    }
}
