//! Divergence between the trained policy and the behaviour policy: diagnostics and trust regions.

use super::ratios::{Ratios, kept};
use crate::argument_checks::same_length;
use crate::group::{Extent, Grid, total};
use crate::simd::{BLOCK, Summary, exp_m1, wide};
use crate::{Error, Float, Result, names, thread_pool};

names! {
    /// Estimate of the divergence of two policies at a token, from its log-ratio `d = log π - log μ`.
    "kind" Divergence {
        /// `-d`: unbiased for KL(μ ‖ π); positive or negative.
        K1 = "k1",
        /// `d² / 2`.
        K2 = "k2",
        /// `exp(d) - 1 - d`: unbiased and never negative.
        K3 = "k3",
    }
}

impl Divergence {
    fn of(self, log_ratio: f64) -> f64 {
        let d = kept(log_ratio);
        match self {
            Self::K1 => -d,
            Self::K2 => 0.5 * d * d,
            Self::K3 => d.exp_m1() - d,
        }
    }
}

names! {
    /// Aggregation of a divergence before it is compared with its bounds.
    "aggregate" Aggregate {
        /// Each token by itself.
        Token = "token",
        /// The sum over a row.
        Sum = "sum",
        /// The mean over a row.
        Mean = "mean",
        /// The maximum over a row.
        Max = "max",
    }
}

/// Bounds on the divergence of a token or row; beyond them it is not trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrustRegion {
    /// The estimate of the divergence.
    pub divergence: Divergence,
    /// The aggregation of the estimate.
    pub aggregate: Aggregate,
    /// The smallest divergence that is kept; `None`: no lower bound.
    pub at_least: Option<f64>,
    /// The largest divergence that is kept.
    pub at_most: f64,
}

/// Mark the tokens that are kept: those in the mask that lie within the bounds, by themselves or with their row. verl's
/// `rollout_rs` modes are `token_k1` … `seq_max_k3`; its bounds of `k1` are ratios, here they are logarithms of ratios.
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
/// `InvalidInput` if lengths differ, offsets do not cover the tokens, the log-ratio of a token in the mask is not
/// finite, or `at_least` is above `at_most`.
pub fn trust_region<T: Float>(ratios: &Ratios<'_, T>, region: &TrustRegion, out: &mut [bool]) -> Result<()> {
    let (least, most) = (region.at_least.unwrap_or(f64::NEG_INFINITY), region.at_most);
    if least > most || least.is_nan() || most.is_nan() {
        return Err(Error::invalid(format!("at_least is {least} and at_most {most}; give at_least <= at_most")));
    }
    ratios.check()?;
    same_length("out", out.len(), "log_ratios", ratios.log_ratios.len())?;
    let inside = |value: f64| least <= value && value <= most;
    thread_pool::fill_rows(ratios.offsets, out, |rows, out| {
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

/// Divergence of two policies on the tokens that were sampled from one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diagnostics {
    /// `(Σ w)² / Σ w²` over rows, `w = Π ρ`: the equivalent number of rows sampled from the trained policy.
    pub effective_sample_size: f64,
    /// The effective sample size as a fraction of the rows with tokens in the mask.
    pub effective_fraction: f64,
    /// Mean of the estimate [`Divergence::K1`] over tokens.
    pub k1: f64,
    /// Mean of the estimate [`Divergence::K2`] over tokens.
    pub k2: f64,
    /// Mean of the estimate [`Divergence::K3`] over tokens.
    pub k3: f64,
    /// `mean(ρ²) - 1` over tokens.
    pub chi_squared_token: f64,
    /// `mean((Π ρ)²) - 1` over rows.
    pub chi_squared_sequence: f64,
    /// The largest `ρ` of a token.
    pub ratio_max: f64,
    /// The smallest `ρ` of a token.
    pub ratio_min: f64,
    /// Number of rows with a token in the mask.
    pub rows: u64,
    /// Number of tokens in the mask.
    pub tokens: u64,
}

/// Measure how far off-policy rows are.
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
/// `InvalidInput` if lengths differ, offsets do not cover the tokens, the log-ratio of a token in the mask is not
/// finite, or the mask excludes all tokens.
pub fn importance_diagnostics<T: Float>(ratios: &Ratios<'_, T>) -> Result<Diagnostics> {
    ratios.check()?;
    let rows = thread_pool::row_pieces(ratios.offsets.len() - 1, |row| ratios.offsets[row] as usize);
    let rows = thread_pool::map(rows, |rows| Ok(rows.map(|row| ratios.sum(ratios.row(row))).collect::<Vec<_>>()))?;
    let rows: Vec<Summary> = rows.into_iter().flatten().filter(|row| row.count > 0).collect();
    if rows.is_empty() {
        return Err(Error::invalid("mask excludes all tokens; include at least one"));
    }
    let count = rows.iter().map(|row| row.count).sum::<u64>();
    let least = rows.iter().map(|row| row.least).fold(f64::INFINITY, f64::min);
    let most = rows.iter().map(|row| row.most).fold(f64::NEG_INFINITY, f64::max);
    let [k1, k2, k3, chi_squared_token] = means_of_tokens(ratios, count, kept(least), kept(most))?;
    let sum_of_rows = |of: &(dyn Fn(f64) -> f64 + Sync)| total(rows.len(), |row| of(rows[row].total));
    // Relative to the largest weight, so that no product overflows a float.
    let largest = rows.iter().map(|row| row.total).fold(f64::NEG_INFINITY, f64::max);
    let effective =
        sum_of_rows(&|sum| (sum - largest).exp())?.powi(2) / sum_of_rows(&|sum| (2.0 * (sum - largest)).exp())?;
    let found = rows.len() as f64;
    Ok(Diagnostics {
        effective_sample_size: effective,
        effective_fraction: effective / found,
        k1,
        k2,
        k3,
        chi_squared_token,
        chi_squared_sequence: sum_of_rows(&|sum| (2.0 * kept(sum)).exp_m1())? / found,
        ratio_max: kept(most).exp(),
        ratio_min: kept(least).exp(),
        rows: rows.len() as u64,
        tokens: count,
    })
}

/// Return the four terms of [`means_of_tokens`] from a log-ratio `d` and `e^d - 1`.
#[inline(always)]
fn terms(d: f64, power: f64) -> [f64; 4] {
    [-d, 0.5 * d * d, power - d, power * (power + 2.0)]
}

/// Return the means of `-d`, `d² / 2`, `e^d - 1 - d` and `e^2d - 1` over the tokens in the mask. `least` and `most` are
/// the extreme `d` of these tokens; they fix the grid on which integers are summed, so the order of the rows does not
/// matter.
fn means_of_tokens<T: Float>(ratios: &Ratios<'_, T>, count: u64, least: f64, most: f64) -> Result<[f64; 4]> {
    let mut powers = [least, most];
    exp_m1(&mut powers);
    let ends = [terms(least, powers[0]), terms(most, powers[1])];
    let grids: [Grid; 4] = std::array::from_fn(|term| {
        // A token outside the mask has terms of 0, so the ranges include 0.
        let (least, most) = (ends[0][term].min(ends[1][term]).min(0.0), ends[0][term].max(ends[1][term]).max(0.0));
        Grid::of(Extent { count, least, most, heaviest: 1.0 })
    });
    let sums = thread_pool::map(thread_pool::pieces(ratios.log_ratios.len()), |piece| {
        let (mut numbers, mut powers) = ([0.0; BLOCK], [0.0; BLOCK]);
        let mut sums = [0_i128; 4];
        for start in piece.clone().step_by(BLOCK) {
            let tokens = start..piece.end.min(start + BLOCK);
            let (numbers, powers) = (&mut numbers[..tokens.len()], &mut powers[..tokens.len()]);
            ratios.read(tokens, numbers);
            let few = add_terms(&grids, numbers, powers);
            (0..4).for_each(|term| sums[term] += i128::from(few[term]));
        }
        Ok(sums)
    })?;
    Ok(std::array::from_fn(|term| grids[term].mean(count, sums.iter().map(|sums| sums[term]).sum())))
}

/// Return the sums of the terms of a block of log-ratios, in integers of the grids. The block is small enough for 64
/// bits.
fn add_terms(grids: &[Grid; 4], numbers: &mut [f64], powers: &mut [f64]) -> [i64; 4] {
    wide(
        #[inline(always)]
        || {
            for (number, power) in numbers.iter_mut().zip(&mut *powers) {
                *number = if number.is_nan() { 0.0 } else { kept(*number) };
                *power = *number;
            }
        },
    );
    exp_m1(powers);
    wide(
        #[inline(always)]
        || {
            let mut sums = [0; 4];
            for (&number, &power) in numbers.iter().zip(&*powers) {
                let terms = terms(number, power);
                for term in 0..4 {
                    sums[term] += grids[term].round(terms[term]);
                }
            }
            sums
        },
    )
}
