//! Loss weights of the action tokens of an update: division of shared tokens among branches, and
//! denominators.

use agentrl_compute::keys;
use agentrl_compute::weight::{self, Denominator, Shared, TokenUnits};

use super::{Batch, Level, Numbers};
use crate::{Error, Result};

/// Options of [`Batch::token_weights`].
#[derive(Clone, Copy, Debug)]
pub struct TokenWeights<'a> {
    /// The update's draws.
    pub draws: &'a [i64],
    /// The denominator of the loss.
    pub denominator: Denominator,
    /// How draws that share a stored token count it.
    pub shared: Shared,
    /// Draws that may vote; `None` means all.
    pub valid: Option<&'a [bool]>,
    /// Action tokens that stay in the loss; `None` means all. The others are in no denominator either.
    pub keep: Option<&'a [bool]>,
}

impl Batch {
    /// Return one weight for each action token, zero if it is not trained in this update. See
    /// [`agentrl_compute::weight`].
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
        let Numbers::U8(mut trainable) = self.column("trainable", Level::Token)? else {
            return Err(Error::invalid(
                "column \"trainable\" is not of type uint8; give a mask of 0 and 1 as uint8 or bool".to_owned(),
            ));
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
        let layout = &self.layout;
        let shares =
            if options.shared == Shared::Each { None } else { Some(self.shares(&trainable, &valid, options)?) };
        // All tokens of a turn have the same denominator, so weights are computed by turn. A turn without a share needs
        // none.
        let share = |token: usize| {
            let share = shares.as_ref().map_or(1.0, |shares| shares[token]);
            if trainable[token] == 0 { 0.0 } else { share }
        };
        let turns = || layout.token_offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
        let of_turns: Vec<f64> = turns().map(|tokens| tokens.map(share).sum()).collect();
        let draws: Vec<u32> =
            (0..self.num_draws()).flat_map(|draw| layout.steps(draw).map(move |_| draw as u32)).collect();
        let numbers: Vec<u32> = (0..of_turns.len() as u32).collect();
        let episodes = self.keys("episode_id", Level::Step)?;
        let units = TokenUnits { draws: &draws, turns: &numbers, episodes: &episodes };
        let weights = weight::token_weights(&units, &of_turns, &valid, options.denominator)?;
        let mut of_tokens = Vec::with_capacity(trainable.len());
        for (tokens, weight) in turns().zip(weights) {
            of_tokens.extend(tokens.map(|token| share(token) * weight));
        }
        Ok(of_tokens)
    }

    /// Return the share of each action token. Tokens are shared by where they are stored, because branches may share
    /// only a part of an action.
    fn shares(&self, trainable: &[u8], valid: &[bool], options: &TokenWeights<'_>) -> Result<Vec<f64>> {
        let layout = &self.layout;
        let trained: Vec<usize> = (0..trainable.len()).filter(|&token| trainable[token] != 0).collect();
        let all = layout.actions.of(0..layout.actions.len());
        let stored: Vec<i64> = all.filter(|at| trainable[at.token] != 0).map(|at| at.node_token).collect();
        let mut draws = Vec::with_capacity(trained.len());
        for draw in 0..self.num_draws() {
            draws.extend(layout.tokens(draw).filter(|&token| trainable[token] != 0).map(|_| draw as u32));
        }
        let mut shares = vec![0.0; trainable.len()];
        let found = weight::shares(&keys::dense_integers(&stored)?.ids, &draws, valid, options.shared)?;
        for (token, share) in trained.into_iter().zip(found) {
            shares[token] = share;
        }
        Ok(shares)
    }

    /// Return a mask of draws from their indices. Each index must exist and be given once.
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
                return Err(Error::invalid(format!(
                    "{argument}[{place}] is {draw}, which is given twice; give each draw once"
                )));
            }
        }
        Ok(chosen)
    }
}
