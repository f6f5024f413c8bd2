//! Importance ratios between the policy that is trained and the one that acted: weights, masks, and how far they are apart.

use std::ops::Range;

use crate::check::{column, same_length};
use crate::group::total;
use crate::ragged::Ragged;
use crate::{Error, Float, Result, names, par};

/// Log-ratios are kept within ± this before they are exponentiated, as verl does.
const MOST_LOG_RATIO: f64 = 20.0;

/// `log π(token) - log μ(token)` of ragged rows.
#[derive(Clone, Copy, Debug)]
pub struct Ratios<'a, T> {
    /// One for each token.
    pub log_ratios: &'a [T],
    /// Where the rows (sequences) begin and end; they cover all tokens.
    pub offsets: &'a [i64],
    /// Which tokens were acted; the others (tool output, prompts) take no part and get 0. `None` means all.
    pub mask: Option<&'a [bool]>,
}

impl<T: Float> Ratios<'_, T> {
    fn check(&self) -> Result<()> {
        if let Some(mask) = self.mask {
            same_length("mask", mask.len(), "log_ratios", self.log_ratios.len())?;
        }
        column("log_ratios", self.log_ratios, "log_ratios", self.log_ratios.len(), self.mask)?;
        cover("offsets", self.offsets, self.log_ratios.len())
    }

    fn acted(&self, token: usize) -> bool {
        self.mask.is_none_or(|mask| mask[token])
    }

    fn row(&self, row: usize) -> Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// Those of a range that take part.
    fn of(&self, tokens: Range<usize>) -> impl Iterator<Item = f64> + Clone {
        tokens.filter(|&token| self.acted(token)).map(|token| self.log_ratios[token].to_f64())
    }

    /// The sum of a range, and how many of it take part.
    fn sum(&self, tokens: Range<usize>) -> (f64, usize) {
        self.of(tokens).fold((0.0, 0), |(sum, count), log_ratio| (sum + log_ratio, count + 1))
    }
}

/// Offsets must go from the first to the last of some tokens.
fn cover(name: &str, offsets: &[i64], count: usize) -> Result<()> {
    Ragged::new(&vec![(); count], offsets)?;
    if offsets[0] != 0 || offsets[offsets.len() - 1] as usize != count {
        return Err(Error::invalid(format!(
            "{name} go from {} to {}, but there are {count} tokens; cover them all",
            offsets[0],
            offsets[offsets.len() - 1]
        )));
    }
    Ok(())
}

names! {
    /// What shares one importance weight.
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
    /// What happens to weights beyond the bounds.
    "kind" Action {
        /// They become the bound (TIS).
        Truncate = "truncate",
        /// They become 0 (`IcePop`, masked importance sampling).
        Mask = "mask",
        /// They become 0, and all others 1: the ratio chooses and does not weigh.
        Filter = "filter",
        /// All weights of their row become 0.
        Veto = "veto",
    }
}

/// Options of [`importance_weights`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImportanceOptions<'a> {
    /// What shares one weight.
    pub level: Level,
    /// Where steps begin and end, for the levels that have them; they must not cross rows.
    pub steps: Option<&'a [i64]>,
    /// The least weight within bounds, above 0.
    pub at_least: Option<f64>,
    /// The largest weight within bounds.
    pub at_most: Option<f64>,
    /// What happens beyond them.
    pub action: Action,
}

/// Importance weights of tokens, to multiply the loss with. Log-ratios (summed over what shares a weight) are kept within ± 20.
///
/// Truncated at token level: TIS; masked there: `IcePop`. As verl's `rollout_corr_helper`.
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
/// `InvalidInput` if lengths differ, offsets do not cover the tokens, a log-ratio is not finite where it takes part, bounds
/// are not `0 < at_least <= at_most`, or steps are missing, given without need, or cross rows.
pub fn importance_weights<T: Float>(
    ratios: &Ratios<'_, T>,
    options: &ImportanceOptions<'_>,
    out: &mut [T],
) -> Result<()> {
    ratios.check()?;
    same_length("out", out.len(), "log_ratios", ratios.log_ratios.len())?;
    let (least, most) = (options.at_least.unwrap_or(0.0), options.at_most.unwrap_or(f64::INFINITY));
    if options.at_least.is_some_and(|least| least.is_nan() || least <= 0.0) || most.is_nan() || least > most {
        return Err(Error::invalid(format!("at_least is {least} and at_most {most}; give 0 < at_least <= at_most")));
    }
    check_steps(ratios, options)?;
    let outside = |weight: f64| weight < least || weight > most;
    let bounded = |weight: f64| match options.action {
        Action::Truncate => weight.clamp(least, most),
        Action::Mask | Action::Filter if outside(weight) => 0.0,
        Action::Filter => 1.0,
        Action::Mask | Action::Veto => weight,
    };
    par::fill_rows(ratios.offsets, out, |rows, out| {
        let from = ratios.row(rows.start).start;
        for row in rows {
            let tokens = ratios.row(row);
            let weights = &mut out[tokens.start - from..tokens.end - from];
            let mut vetoed = false;
            for unit in units(&tokens, options.steps).windows(2) {
                unit_weights(ratios, unit[0] as usize..unit[1] as usize, options.level, |token, weight| {
                    vetoed |= outside(weight);
                    weights[token - tokens.start] = T::from_f64(bounded(weight));
                });
            }
            for (token, weight) in tokens.zip(weights) {
                if !ratios.acted(token) || vetoed && options.action == Action::Veto {
                    *weight = T::from_f64(0.0);
                }
            }
        }
        Ok(())
    })
}

/// Gives the weights of the tokens of a unit that take part, before any bound.
fn unit_weights<T: Float>(ratios: &Ratios<'_, T>, unit: Range<usize>, level: Level, mut give: impl FnMut(usize, f64)) {
    let exp = |log_ratio: f64| log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp();
    let acted =
        unit.clone().filter(|&token| ratios.acted(token)).map(|token| (token, ratios.log_ratios[token].to_f64()));
    match level {
        Level::Token => acted.for_each(|(token, own)| give(token, exp(own))),
        Level::Step | Level::Sequence => {
            let weight = exp(ratios.sum(unit).0);
            acted.for_each(|(token, _)| give(token, weight));
        }
        Level::StepGeometric | Level::Geometric => {
            let (sum, count) = ratios.sum(unit);
            let weight = exp(sum / count.max(1) as f64);
            acted.for_each(|(token, _)| give(token, weight));
        }
        Level::Prefix => {
            let mut so_far = 0.0;
            acted.for_each(|(token, own)| {
                so_far += own;
                give(token, exp(so_far));
            });
        }
        Level::PrefixMin => {
            let mut least = None;
            acted.for_each(|(token, own)| {
                give(token, exp(own + least.unwrap_or(0.0)));
                least = Some(least.map_or(own, |least: f64| least.min(own)));
            });
        }
    }
}

/// The bounds of what shares weights within a row: its steps, or the row itself.
fn units(row: &Range<usize>, steps: Option<&[i64]>) -> Vec<i64> {
    let Some(bounds) = steps else { return vec![row.start as i64, row.end as i64] };
    let first = bounds.partition_point(|&bound| (bound as usize) < row.start);
    let last = bounds.partition_point(|&bound| bound as usize <= row.end);
    bounds[first..last].to_vec()
}

/// Steps must be given for the levels that have them, and cross no row.
fn check_steps<T: Float>(ratios: &Ratios<'_, T>, options: &ImportanceOptions<'_>) -> Result<()> {
    match (matches!(options.level, Level::Step | Level::StepGeometric), options.steps) {
        (false, None) => Ok(()),
        (false, Some(_)) => {
            Err(Error::invalid("steps is given, but only levels \"step\" and \"step_geometric\" use it"))
        }
        (true, None) => Err(Error::invalid("steps is missing; its level shares weights within steps")),
        (true, Some(bounds)) => {
            cover("steps", bounds, ratios.log_ratios.len())?;
            match ratios.offsets.iter().find(|end| bounds.binary_search(end).is_err()) {
                None => Ok(()),
                Some(end) => Err(Error::invalid(format!(
                    "a step crosses token {end}, where a row ends; no step may lie in two rows"
                ))),
            }
        }
    }
}

names! {
    /// An estimate of the divergence of two policies at a token, of its log-ratio `d = log π - log μ`.
    "kind" Divergence {
        /// `-d`: unbiased for KL(μ ‖ π), of either sign.
        K1 = "k1",
        /// `d² / 2`.
        K2 = "k2",
        /// `exp(d) - 1 - d`: unbiased and never negative.
        K3 = "k3",
    }
}

impl Divergence {
    fn of(self, log_ratio: f64) -> f64 {
        let d = log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO);
        match self {
            Self::K1 => -d,
            Self::K2 => 0.5 * d * d,
            Self::K3 => d.exp_m1() - d,
        }
    }
}

names! {
    /// Over what a divergence is compared with its bounds.
    "aggregate" Aggregate {
        /// Each token by itself.
        Token = "token",
        /// The sum over a row.
        Sum = "sum",
        /// The mean over a row.
        Mean = "mean",
        /// The largest of a row.
        Max = "max",
    }
}

/// What a token or row must not exceed to be trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrustRegion {
    /// What is measured.
    pub divergence: Divergence,
    /// Over what.
    pub aggregate: Aggregate,
    /// The least divergence that is kept; `None`: any.
    pub at_least: Option<f64>,
    /// The largest divergence that is kept.
    pub at_most: f64,
}

/// Which tokens are kept: those that take part and lie, alone or with their row, within the bounds. verl's `rollout_rs` modes
/// are `token_k1` … `seq_max_k3`; its bounds of `k1` are ratios, here their logarithms.
///
/// ```
/// use agentrl_compute::weight::{Aggregate, Divergence, Ratios, TrustRegion, trust_region};
///
/// let ratios = Ratios { log_ratios: &[0.0, 2.0, 0.1], offsets: &[0, 2, 3], mask: None };
/// let region = TrustRegion { divergence: Divergence::K2, aggregate: Aggregate::Max, at_least: None, at_most: 0.5 };
/// let mut keep = [true; 3];
/// trust_region(&ratios, &region, &mut keep)?;
/// assert_eq!(keep, [false, false, true]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, offsets do not cover the tokens, a log-ratio is not finite where it takes part, or
/// `at_least` is above `at_most`.
pub fn trust_region<T: Float>(ratios: &Ratios<'_, T>, region: &TrustRegion, out: &mut [bool]) -> Result<()> {
    let (least, most) = (region.at_least.unwrap_or(f64::NEG_INFINITY), region.at_most);
    if least > most || least.is_nan() || most.is_nan() {
        return Err(Error::invalid(format!("at_least is {least} and at_most {most}; give at_least <= at_most")));
    }
    ratios.check()?;
    same_length("out", out.len(), "log_ratios", ratios.log_ratios.len())?;
    let inside = |value: f64| least <= value && value <= most;
    par::fill_rows(ratios.offsets, out, |rows, out| {
        let from = ratios.row(rows.start).start;
        for row in rows {
            let tokens = ratios.row(row);
            let values = ratios.of(tokens.clone()).map(|log_ratio| region.divergence.of(log_ratio));
            let whole = match region.aggregate {
                Aggregate::Token => true,
                Aggregate::Sum => inside(values.sum()),
                Aggregate::Mean => inside(values.clone().sum::<f64>() / values.count().max(1) as f64),
                Aggregate::Max => inside(values.fold(f64::NEG_INFINITY, f64::max)),
            };
            for token in tokens {
                let alone = || inside(region.divergence.of(ratios.log_ratios[token].to_f64()));
                let own = region.aggregate != Aggregate::Token || alone();
                out[token - from] = ratios.acted(token) && whole && own;
            }
        }
        Ok(())
    })
}

/// How far two policies are apart on the tokens that were drawn from one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diagnostics {
    /// `(Σ w)² / Σ w²` over rows, `w = Π ρ`: how many rows of the trained policy they are worth.
    pub effective_sample_size: f64,
    /// The same as a part of the rows that have tokens.
    pub effective_fraction: f64,
    /// Means of the estimates over tokens.
    pub k1: f64,
    /// See `k1`.
    pub k2: f64,
    /// See `k1`.
    pub k3: f64,
    /// `mean(ρ²) - 1` over tokens.
    pub chi_squared_token: f64,
    /// `mean((Π ρ)²) - 1` over rows.
    pub chi_squared_sequence: f64,
    /// The largest `ρ` of a token.
    pub ratio_max: f64,
    /// The smallest `ρ` of a token.
    pub ratio_min: f64,
    /// Rows with a token that takes part.
    pub rows: u64,
    /// Tokens that take part.
    pub tokens: u64,
}

/// Measures how far off-policy some rows are.
///
/// ```
/// use agentrl_compute::weight::{Ratios, importance_diagnostics};
///
/// let on_policy = Ratios { log_ratios: &[0.0; 4], offsets: &[0, 1, 4], mask: None };
/// let found = importance_diagnostics(&on_policy)?;
/// assert_eq!((found.effective_sample_size, found.k3, found.chi_squared_sequence), (2.0, 0.0, 0.0));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, offsets do not cover the tokens, a log-ratio is not finite where it takes part, or no
/// token takes part.
pub fn importance_diagnostics<T: Float>(ratios: &Ratios<'_, T>) -> Result<Diagnostics> {
    ratios.check()?;
    let rows = (1..ratios.offsets.len()).map(|row| ratios.sum(ratios.row(row - 1)));
    let (sums, counts): (Vec<f64>, Vec<usize>) = rows.filter(|&(_, count)| count > 0).unzip();
    if sums.is_empty() {
        return Err(Error::invalid("mask has no token that takes part; give at least one"));
    }
    let kept = |log_ratio: f64| log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO);
    let count = counts.iter().sum::<usize>();
    let mut terms = vec![0.0; ratios.log_ratios.len()];
    let mut mean_of_tokens = |of: &(dyn Fn(f64) -> f64 + Sync)| {
        // What takes no part adds nothing.
        par::map(&mut terms, |token| if ratios.acted(token) { of(ratios.log_ratios[token].to_f64()) } else { 0.0 })?;
        total(terms.len(), |token| terms[token]).map(|sum| sum / count as f64)
    };
    let sum_of_rows = |of: &(dyn Fn(f64) -> f64 + Sync)| total(sums.len(), |row| of(sums[row]));
    // Relative to the largest weight, so that no product leaves the range of a float.
    let most = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let effective = sum_of_rows(&|sum| (sum - most).exp())?.powi(2) / sum_of_rows(&|sum| (2.0 * (sum - most)).exp())?;
    let found = sums.len() as f64;
    let ends =
        ratios.of(0..ratios.log_ratios.len()).fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), log_ratio| {
            (least.min(log_ratio), most.max(log_ratio))
        });
    Ok(Diagnostics {
        effective_sample_size: effective,
        effective_fraction: effective / found,
        k1: mean_of_tokens(&|log_ratio| Divergence::K1.of(log_ratio))?,
        k2: mean_of_tokens(&|log_ratio| Divergence::K2.of(log_ratio))?,
        k3: mean_of_tokens(&|log_ratio| Divergence::K3.of(log_ratio))?,
        chi_squared_token: mean_of_tokens(&|log_ratio| (2.0 * kept(log_ratio)).exp_m1())?,
        chi_squared_sequence: sum_of_rows(&|sum| (2.0 * kept(sum)).exp_m1())? / found,
        ratio_max: kept(ends.1).exp(),
        ratio_min: kept(ends.0).exp(),
        rows: sums.len() as u64,
        tokens: count as u64,
    })
}
