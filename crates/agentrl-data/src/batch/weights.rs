//! Loss weights of the action tokens of an update: who shares a step, and what is divided by what.

use agentrl_compute::keys;
use agentrl_compute::weight::{self, Denominator, Shared};

use super::{Batch, Level, Numbers, i32s, i64s};
use crate::{Error, Result};

/// What [`Batch::token_weights`] needs to know.
#[derive(Clone, Copy, Debug)]
pub struct TokenWeights<'a> {
    /// The update's draws.
    pub draws: &'a [i64],
    /// What the sum over tokens is divided by.
    pub denominator: Denominator,
    /// How draws that inherited a step count it.
    pub shared: Shared,
    /// Draws that may vote; `None` means all.
    pub valid: Option<&'a [bool]>,
    /// Action tokens that stay in the loss; `None` means all. The others are in no denominator either.
    pub keep: Option<&'a [bool]>,
}

impl Batch {
    /// One weight for each action token, zero where it is not trained in this update. See [`agentrl_compute::weight`].
    pub fn token_weights(&self, options: &TokenWeights<'_>) -> Result<Vec<f64>> {
        let chosen = self.chosen("draws", options.draws)?;
        if let Some(found) = options.valid.map(<[bool]>::len).filter(|&found| found != chosen.len()) {
            return Err(Error::invalid(format!(
                "valid has {found} values for {} draws; give one per draw",
                chosen.len()
            )));
        }
        let valid: Vec<bool> =
            chosen.iter().enumerate().map(|(draw, &chosen)| chosen && options.valid.is_none_or(|v| v[draw])).collect();
        let layout = &self.layout;
        let steps = self.steps();
        let (origins, numbers) = (i64s(steps, "origin_trajectory_id")?, i32s(steps, "step")?);
        let origins: Vec<i64> = layout.step_rows.iter().map(|&row| origins.value(row)).collect();
        let numbers: Vec<i64> = layout.step_rows.iter().map(|&row| i64::from(numbers.value(row))).collect();
        let physical = keys::pair(&keys::dense_integers(&origins)?.ids, &keys::dense_integers(&numbers)?.ids)?.ids;
        let mut draw_of_step = vec![0_u32; layout.step_rows.len()];
        for draw in 0..self.num_draws() {
            draw_of_step[layout.steps(draw)].fill(draw as u32);
        }
        let shares = weight::shares(&physical, &draw_of_step, &valid, options.shared)?;
        let Numbers::U8(mut trainable) = self.column("trainable", Level::Token)? else {
            return Err(Error::invalid("column \"trainable\" is not a mask of 0 and 1".to_owned()));
        };
        if let Some(keep) = options.keep {
            if keep.len() != trainable.len() {
                return Err(Error::invalid(format!(
                    "keep has {} values for {} action tokens; give one per token",
                    keep.len(),
                    trainable.len()
                )));
            }
            trainable.iter_mut().zip(keep).for_each(|(trainable, &keep)| *trainable &= u8::from(keep));
        }
        let mut draw_of_token = Vec::with_capacity(layout.node_tokens.len());
        let mut share_of_token = Vec::with_capacity(layout.node_tokens.len());
        for (step, pair) in layout.token_offsets.windows(2).enumerate() {
            let count = (pair[1] - pair[0]) as usize;
            draw_of_token.extend(std::iter::repeat_n(draw_of_step[step], count));
            share_of_token.extend(std::iter::repeat_n(shares[step], count));
        }
        weight::token_weights(&draw_of_token, &share_of_token, &trainable, &valid, options.denominator)
    }

    /// A mask of draws from their indices, each of which must exist and be given once.
    pub(super) fn chosen(&self, argument: &str, draws: &[i64]) -> Result<Vec<bool>> {
        let mut chosen = vec![false; self.num_draws()];
        for (place, &draw) in draws.iter().enumerate() {
            let entry = usize::try_from(draw).ok().and_then(|draw| chosen.get_mut(draw)).ok_or_else(|| {
                Error::invalid(format!(
                    "{argument}[{place}] is {draw}, but the batch has {} draws; use indices from 0",
                    self.num_draws()
                ))
            })?;
            if std::mem::replace(entry, true) {
                return Err(Error::invalid(format!("{argument}[{place}] is {draw} once more; give each draw once")));
            }
        }
        Ok(chosen)
    }
}
