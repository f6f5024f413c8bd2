//! Log-ratios of the trained policy and the behaviour policy, in ragged rows.

use std::ops::Range;

use crate::argument_checks::{column, finite_piece, same_length};
use crate::ragged::Ragged;
use crate::simd::{BLOCK, SUMMARIES, Summaries, Summary, add, keep};
use crate::{Error, Float, Result};

/// Log-ratios are clamped to ± this before they are exponentiated, as in verl.
pub(super) const MOST_LOG_RATIO: f64 = 20.0;

/// `log π(token) - log μ(token)` of ragged rows.
#[derive(Clone, Copy, Debug)]
pub struct Ratios<'a, T> {
    /// One log-ratio for each token.
    pub log_ratios: &'a [T],
    /// Offsets of the rows (sequences); they cover all tokens.
    pub offsets: &'a [i64],
    /// Mask of the tokens that the policy sampled. The others (tool output, prompts) are excluded and get 0. `None`:
    /// all.
    pub mask: Option<&'a [bool]>,
}

impl<T: Float> Ratios<'_, T> {
    pub(super) fn check(&self) -> Result<()> {
        self.check_lengths()?;
        column("log_ratios", self.log_ratios, "log_ratios", self.log_ratios.len(), self.mask)
    }

    pub(super) fn check_lengths(&self) -> Result<()> {
        if let Some(mask) = self.mask {
            same_length("mask", mask.len(), "log_ratios", self.log_ratios.len())?;
        }
        cover("offsets", self.offsets, self.log_ratios.len())
    }

    /// Check that the log-ratios of tokens in the mask are finite.
    pub(super) fn check_tokens(&self, tokens: Range<usize>) -> Result<()> {
        finite_piece("log_ratios", self.log_ratios, self.mask, tokens)
    }

    pub(super) fn acted(&self, token: usize) -> bool {
        self.mask.is_none_or(|mask| mask[token])
    }

    pub(super) fn row(&self, row: usize) -> Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// Iterate over the log-ratios of the tokens of a range that are in the mask.
    pub(super) fn of(&self, tokens: Range<usize>) -> impl Iterator<Item = f64> + Clone {
        tokens.filter(|&token| self.acted(token)).map(|token| self.log_ratios[token].to_f64())
    }

    /// Read the log-ratios of a range of tokens; NaN for tokens outside the mask.
    pub(super) fn read(&self, tokens: Range<usize>, numbers: &mut [f64]) {
        T::read(&self.log_ratios[tokens.clone()], numbers);
        if let Some(mask) = self.mask {
            keep(numbers, &mask[tokens]);
        }
    }

    /// Return sum and number of the log-ratios of a range, for tokens in the mask.
    pub(super) fn total(&self, tokens: Range<usize>) -> (f64, u64) {
        if self.mask.is_some() {
            let found = self.sum(tokens);
            return (found.total, found.count);
        }
        let (mut numbers, mut sums, count) = ([0.0; BLOCK], [0.0; SUMMARIES], tokens.len() as u64);
        for few in self.log_ratios[tokens].chunks(BLOCK) {
            T::read(few, &mut numbers[..few.len()]);
            add(&numbers[..few.len()], &mut sums);
        }
        (sums.iter().sum(), count)
    }

    /// Return sum, count and range of the log-ratios of a range of tokens, for tokens in the mask.
    pub(super) fn sum(&self, tokens: Range<usize>) -> Summary {
        let mut numbers = [0.0; BLOCK];
        let mut lanes = Summaries::EMPTY;
        for start in tokens.clone().step_by(BLOCK) {
            let tokens = start..tokens.end.min(start + BLOCK);
            let numbers = &mut numbers[..tokens.len()];
            self.read(tokens, numbers);
            lanes.add(numbers);
        }
        lanes.sum()
    }
}

/// Check that offsets start at 0 and end at the number of tokens.
pub(super) fn cover(name: &str, offsets: &[i64], count: usize) -> Result<()> {
    Ragged::new(&vec![(); count], offsets)?;
    if offsets[0] != 0 || offsets[offsets.len() - 1] as usize != count {
        return Err(Error::invalid(format!(
            "{name} go from {} to {}, but there are {count} tokens; give offsets from 0 to {count}",
            offsets[0],
            offsets[offsets.len() - 1]
        )));
    }
    Ok(())
}

/// Clamp a log-ratio to its allowed range.
#[inline(always)]
pub(super) fn kept(log_ratio: f64) -> f64 {
    log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
}
