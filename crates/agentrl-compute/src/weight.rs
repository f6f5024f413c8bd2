//! How much each token counts in the loss: which branch trains a shared step, and what the sum is divided by.
//!
//! The loss is a plain sum over tokens of `weight · something`, so every denominator is here. Draws that are not valid
//! count nowhere: not in a share, not in a denominator.

use crate::check::{finite, same_length};
use crate::group::{group_count, sums};
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
    let steps = group_count("step_keys", step_keys)?;
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
    let of_draw = sums(&weights, draw_of_token, valid.len())?;
    let draws = of_draw.iter().filter(|&&sum| sum > 0.0).count() as f64;
    let total = match denominator {
        Denominator::TokenMean => sums(&weights, &vec![0; weights.len()], 1)?[0],
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message<T>(result: Result<T>) -> String {
        result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
    }

    #[test]
    fn names() -> Result<()> {
        assert_eq!(Shared::from_name("each")?, Shared::Each);
        assert_eq!(Shared::from_name("split")?, Shared::Split);
        assert_eq!(Shared::from_name("owner")?, Shared::Owner);
        assert_eq!(Denominator::from_name("token_mean", None)?, Denominator::TokenMean);
        assert_eq!(Denominator::from_name("sequence_mean", None)?, Denominator::SequenceMean);
        assert_eq!(Denominator::from_name("constant", Some(8.0))?, Denominator::Constant(8.0));
        assert_eq!(message(Shared::from_name("all")), "shared is \"all\"; use \"each\", \"split\" or \"owner\"");
        assert_eq!(
            message(Denominator::from_name("mean", None)),
            "denominator is \"mean\"; use \"token_mean\", \"sequence_mean\" or \"constant\""
        );
        assert_eq!(
            message(Denominator::from_name("constant", None)),
            "constant is missing; denominator \"constant\" needs it"
        );
        assert_eq!(
            message(Denominator::from_name("token_mean", Some(2.0))),
            "constant is 2, but denominator \"token_mean\" uses none; leave it out or use \"constant\""
        );
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(
            message(shares(&[0], &[], &[true], Shared::Each)),
            "step_keys has 1 values, but draw_of_step has 0; give one value of each for every row"
        );
        assert_eq!(
            message(shares(&[0, 1], &[1, 0], &[true; 2], Shared::Each)),
            "draw_of_step[1] is 0, less than 1 before it; give the steps draw by draw"
        );
        assert_eq!(
            message(shares(&[0], &[1], &[true], Shared::Each)),
            "draw_of_step[0] is 1, but valid has 1 values; give one for each draw"
        );
        assert_eq!(
            message(shares(&[3], &[0], &[true], Shared::Each)),
            "step_keys[0] is 3, but dense ids lie below the number of rows, 1; make them with keys"
        );
        let weights = |share, constant| token_weights(&[0], &[share], &[1], &[true], Denominator::Constant(constant));
        assert_eq!(message(weights(-1.0, 1.0)), "share_of_token[0] is -1, but must not be negative");
        assert_eq!(message(weights(1.0, 0.0)), "constant is 0, but must be a positive number");
        assert_eq!(message(weights(1.0, f64::NAN)), "constant is NaN, but must be a positive number");
        assert!(message(weights(f64::NAN, 1.0)).starts_with("share_of_token[0] is NaN"));
    }

    #[test]
    fn a_draw_that_returns_to_a_step_contains_it_once() -> Result<()> {
        assert_eq!(shares(&[0, 1, 0, 0], &[0, 0, 0, 1], &[true, true], Shared::Split)?, vec![0.5, 1.0, 0.5, 0.5]);
        Ok(())
    }

    #[test]
    fn by_hand() -> Result<()> {
        // Draw 0 has three trained tokens, draw 1 one, draw 2 none, draw 3 is invalid.
        let draws = [0, 0, 0, 1, 1, 2, 3];
        let (shares, trainable) = ([1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 1.0], [1, 1, 1, 1, 0, 0, 1]);
        let valid = [true, true, true, false];
        let weights = |denominator| token_weights(&draws, &shares, &trainable, &valid, denominator);
        let third = 1.0 / 3.0;
        assert_eq!(weights(Denominator::TokenMean)?, vec![third, third, third / 2.0, third / 2.0, 0.0, 0.0, 0.0]);
        assert_eq!(weights(Denominator::SequenceMean)?, vec![0.2, 0.2, 0.1, 0.5, 0.0, 0.0, 0.0]);
        assert_eq!(weights(Denominator::Constant(4.0))?, vec![0.125, 0.125, 0.0625, 0.0625, 0.0, 0.0, 0.0]);
        Ok(())
    }

    #[test]
    fn nothing_trained_weighs_nothing() -> Result<()> {
        for denominator in [Denominator::TokenMean, Denominator::SequenceMean, Denominator::Constant(2.0)] {
            assert_eq!(token_weights(&[0, 0], &[1.0, 1.0], &[0, 0], &[true], denominator)?, vec![0.0, 0.0]);
            assert_eq!(token_weights(&[0], &[1.0], &[1], &[false], denominator)?, vec![0.0]);
            assert!(token_weights(&[], &[], &[], &[], denominator)?.is_empty());
        }
        Ok(())
    }

    proptest! {
        /// Each physical step counts once in all under split and owner, and as often as it is drawn under each.
        #[test]
        fn shares_of_a_step_sum_to_one(rows in prop::collection::btree_set((0_usize..5, 0_u32..8), 0..30), seed in any::<u64>()) {
            let valid: Vec<bool> = (0..5).map(|draw| crate::rng::uniform(seed, draw) < 0.7).collect();
            let steps: Vec<u32> = rows.iter().map(|&(_, step)| step).collect();
            let keys = crate::keys::pair(&steps, &vec![0; steps.len()])?.ids;
            let draws: Vec<u32> = rows.iter().map(|&(draw, _)| draw as u32).collect();
            for shared in [Shared::Each, Shared::Split, Shared::Owner] {
                let found = shares(&keys, &draws, &valid, shared)?;
                for key in &keys {
                    let of_key: Vec<usize> = (0..keys.len()).filter(|&row| keys[row] == *key).collect();
                    let voters = of_key.iter().filter(|&&row| valid[draws[row] as usize]).count();
                    let expected = match shared {
                        Shared::Each => voters as f64,
                        Shared::Split | Shared::Owner => f64::from(u8::from(voters > 0)),
                    };
                    let sum: f64 = of_key.iter().map(|&row| found[row]).sum();
                    prop_assert!((sum - expected).abs() < 1e-12);
                }
                prop_assert!((0..keys.len()).all(|row| valid[draws[row] as usize] || found[row] == 0.0));
            }
        }

        #[test]
        fn weights_follow_the_formulas(
            rows in prop::collection::vec((0_u32..4, 0.0_f64..1.0, 0_u8..2), 0..40),
            valid in prop::collection::vec(any::<bool>(), 4),
            constant in 0.5_f64..100.0,
        ) {
            let draws: Vec<u32> = rows.iter().map(|row| row.0).collect();
            let shares: Vec<f64> = rows.iter().map(|row| row.1).collect();
            let trainable: Vec<u8> = rows.iter().map(|row| row.2).collect();
            let m: Vec<f64> =
                rows.iter().map(|row| if row.2 == 1 && valid[row.0 as usize] { row.1 } else { 0.0 }).collect();
            let of_draw = |draw: u32| (0..m.len()).filter(|&row| draws[row] == draw).map(|row| m[row]).sum::<f64>();
            let voters = (0..4).filter(|&draw| of_draw(draw) > 0.0).count() as f64;
            for denominator in [Denominator::TokenMean, Denominator::SequenceMean, Denominator::Constant(constant)] {
                let found = token_weights(&draws, &shares, &trainable, &valid, denominator)?;
                for row in 0..m.len() {
                    let below = match denominator {
                        Denominator::TokenMean => m.iter().sum::<f64>(),
                        Denominator::SequenceMean => of_draw(draws[row]) * voters,
                        Denominator::Constant(constant) => constant * voters,
                    };
                    let expected = if m[row] > 0.0 { m[row] / below } else { 0.0 };
                    prop_assert!((found[row] - expected).abs() < 1e-12, "{} {expected}", found[row]);
                }
            }
        }
    }
}
