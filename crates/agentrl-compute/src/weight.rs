//! How much each token counts in the loss: which branch trains a shared step, and what the sum is divided by.
//!
//! The loss is a plain sum over tokens of `weight · something`, so every denominator is here. Draws that are not valid
//! count nowhere: not in a share, not in a denominator.

use crate::check::{finite, same_length};
use crate::group::sums_of;
use crate::{Error, Result};

/// How draws that contain the same step (a branch inherits the steps before it) count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// Every draw counts it fully.
    Each,
    /// The draws that contain it share it evenly.
    Split,
    /// The first draw that contains it counts it, the others do not.
    Owner,
}

impl Shared {
    /// The rule of a name.
    ///
    /// # Errors
    /// `InvalidInput` for a name other than `each`, `split` and `owner`.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "each" => Ok(Self::Each),
            "split" => Ok(Self::Split),
            "owner" => Ok(Self::Owner),
            _ => Err(Error::invalid(format!("shared is {name:?}; use \"each\", \"split\" or \"owner\""))),
        }
    }
}

/// What the sum over tokens is divided by, where `m` is a token's share (0 if untrained) and K the number of valid draws
/// with any `m > 0`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Denominator {
    /// `m / Σ m`: every token counts the same.
    TokenMean,
    /// `m / (Σ m of its draw) / K`: every draw counts the same.
    SequenceMean,
    /// `m / (constant · K)`: a token counts the same however long its draw is (Dr.GRPO, arXiv:2503.20783).
    Constant(f64),
}

impl Denominator {
    /// The denominator of a name; `constant` belongs to `"constant"` alone.
    ///
    /// # Errors
    /// `InvalidInput` for another name than `token_mean`, `sequence_mean` and `constant`, a constant where none is used, or
    /// a missing one.
    pub fn from_name(name: &str, constant: Option<f64>) -> Result<Self> {
        match (name, constant) {
            ("token_mean", None) => Ok(Self::TokenMean),
            ("sequence_mean", None) => Ok(Self::SequenceMean),
            ("constant", Some(constant)) => Ok(Self::Constant(constant)),
            ("constant", None) => Err(Error::invalid("constant is missing; denominator \"constant\" needs it")),
            ("token_mean" | "sequence_mean", Some(constant)) => Err(Error::invalid(format!(
                "constant is {constant}, but denominator {name:?} uses none; leave it out or use \"constant\""
            ))),
            _ => Err(Error::invalid(format!(
                "denominator is {name:?}; use \"token_mean\", \"sequence_mean\" or \"constant\""
            ))),
        }
    }
}

/// The share of each step of each draw: 1, 1/(draws that contain the same step), or 1 in the first of them and else 0.
///
/// `step_keys[i]` is the dense id of the physical step in row `i` (equal where branches share it), `draw_of_step[i]` its
/// draw, in ascending order; `valid` has one value for each draw, and steps of invalid draws have share 0.
///
/// ```
/// use agentrl_compute::weight::{Shared, shares};
///
/// // Two branches share their first step.
/// let (steps, draws) = ([0, 1, 0, 2], [0, 0, 1, 1]);
/// assert_eq!(shares(&steps, &draws, &[true, true], Shared::Split)?, [0.5, 1.0, 0.5, 1.0]);
/// assert_eq!(shares(&steps, &draws, &[true, true], Shared::Owner)?, [1.0, 1.0, 0.0, 1.0]);
/// assert_eq!(shares(&steps, &draws, &[false, true], Shared::Owner)?, [0.0, 0.0, 1.0, 1.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, draws are not in ascending order or have no value in `valid`, or keys are not dense.
pub fn shares(step_keys: &[u32], draw_of_step: &[u32], valid: &[bool], shared: Shared) -> Result<Vec<f64>> {
    same_length("step_keys", step_keys.len(), "draw_of_step", draw_of_step.len())?;
    check_draws("draw_of_step", draw_of_step, valid)?;
    if let Some(row) = draw_of_step.windows(2).position(|pair| pair[0] > pair[1]) {
        return Err(Error::invalid(format!(
            "draw_of_step[{}] is {}, less than {} before it; give the steps draw by draw",
            row + 1,
            draw_of_step[row + 1],
            draw_of_step[row]
        )));
    }
    let steps = crate::group::group_count("step_keys", step_keys)?;
    // Of each physical step: in how many draws it is, the first of them, and the last seen so far.
    let mut found: Vec<Option<(u32, u32, u32)>> = vec![None; steps];
    for (&key, &draw) in step_keys.iter().zip(draw_of_step).filter(|&(_, &draw)| valid[draw as usize]) {
        let entry = found[key as usize].get_or_insert((0, draw, u32::MAX));
        if entry.2 != draw {
            *entry = (entry.0 + 1, entry.1, draw);
        }
    }
    let share = |(&key, &draw): (&u32, &u32)| match found[key as usize].filter(|_| valid[draw as usize]) {
        None => 0.0,
        Some((draws, first, _)) => match shared {
            Shared::Each => 1.0,
            Shared::Split => 1.0 / f64::from(draws),
            Shared::Owner => f64::from(u8::from(draw == first)),
        },
    };
    Ok(step_keys.iter().zip(draw_of_step).map(share).collect())
}

/// The weight of each token in the loss; see [`Denominator`] for the formulas.
///
/// Token `i` belongs to draw `draw_of_token[i]`, its step counts `share_of_token[i]` (from [`shares`]), and it is trained
/// where `trainable[i]` is not 0; `valid` has one value for each draw. Tokens that are untrained or of an invalid draw
/// have weight 0. If no token is trained, all weights are 0.
///
/// ```
/// use agentrl_compute::weight::{Denominator, token_weights};
///
/// let (draws, shares, trainable) = ([0, 0, 0, 1], [1.0; 4], [1, 1, 0, 1]);
/// let weights = token_weights(&draws, &shares, &trainable, &[true, true], Denominator::SequenceMean)?;
/// assert_eq!(weights, [0.25, 0.25, 0.0, 0.5]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a draw has no value in `valid`, a share is negative or not a number, or the constant
/// is not positive.
pub fn token_weights(
    draw_of_token: &[u32],
    share_of_token: &[f64],
    trainable: &[u8],
    valid: &[bool],
    denominator: Denominator,
) -> Result<Vec<f64>> {
    same_length("share_of_token", share_of_token.len(), "draw_of_token", draw_of_token.len())?;
    same_length("trainable", trainable.len(), "draw_of_token", draw_of_token.len())?;
    check_draws("draw_of_token", draw_of_token, valid)?;
    if let Denominator::Constant(constant) = denominator
        && !(constant.is_finite() && constant > 0.0)
    {
        return Err(Error::invalid(format!("constant is {constant}, but must be a positive number")));
    }
    let mut weights = Vec::with_capacity(draw_of_token.len());
    for (row, &share) in share_of_token.iter().enumerate() {
        if finite("share_of_token", row, share)? < 0.0 {
            return Err(Error::invalid(format!("share_of_token[{row}] is {share}, but must not be negative")));
        }
        let counts = trainable[row] != 0 && valid[draw_of_token[row] as usize];
        weights.push(if counts { share } else { 0.0 });
    }
    let of_draw = sums_of("share_of_token", &weights, draw_of_token, valid.len())?;
    let draws = of_draw.iter().filter(|&&sum| sum > 0.0).count() as f64;
    let total = match denominator {
        Denominator::TokenMean => sums_of("share_of_token", &weights, &vec![0; weights.len()], 1)?[0],
        Denominator::SequenceMean => draws,
        Denominator::Constant(constant) => constant * draws,
    };
    for (weight, &draw) in weights.iter_mut().zip(draw_of_token).filter(|(weight, _)| **weight > 0.0) {
        let own = if denominator == Denominator::SequenceMean { of_draw[draw as usize] } else { 1.0 };
        *weight = *weight / own / total;
    }
    Ok(weights)
}

fn check_draws(name: &str, draws: &[u32], valid: &[bool]) -> Result<()> {
    draws.iter().position(|&draw| draw as usize >= valid.len()).map_or(Ok(()), |row| {
        Err(Error::invalid(format!(
            "{name}[{row}] is {}, but valid has {} values; give one for each draw",
            draws[row],
            valid.len()
        )))
    })
}
