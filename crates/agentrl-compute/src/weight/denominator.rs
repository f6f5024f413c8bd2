//! The denominator of the loss: the divisor of its sum over tokens.

use crate::argument_checks::{finite, mask_length, same_length};
use crate::group::{group_count, sums};
use crate::named_options::choice;
use crate::{Error, Result};

/// Divisor of the sum over tokens. In the formulas, `m` is a token's share (0 if untrained) and K the number of valid
/// draws with any `m > 0`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Denominator {
    /// `m / Σ m`: every token has the same weight.
    TokenMean,
    /// `m / (Σ m of its draw) / K`: every draw has the same weight.
    SequenceMean,
    /// `m / (Σ m of its draw) / constant`, without a mean over draws. With a constant of 1 the weights sum to K (OTM of
    /// DCPO, arXiv:2509.02333). With the size of a minibatch they do not depend on how many rows were filtered (LOOP,
    /// arXiv:2502.01600).
    SequenceMeanSum(f64),
    /// `m / (Σ m of its turn) / (turns of its draw) / K`: draws have equal weights, and so have the turns of a draw.
    TurnMean,
    /// `m / (Σ m of its turn) / turns`: every turn has the same weight, in any draw.
    StepMean,
    /// `m / (Σ m of its episode) / episodes`: every episode has the same weight; its trajectories share it.
    EpisodeMean,
    /// `m / (constant · K)`: a token has the same weight for any length of its draw (Dr.GRPO, arXiv:2503.20783).
    Constant(f64),
}

impl Denominator {
    /// Return the denominator with this name. `constant` is required by `"constant"` and optional for
    /// `"sequence_mean_sum"`.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown name, a constant that is not used, or a missing one.
    pub fn from_name(name: &str, constant: Option<f64>) -> Result<Self> {
        let denominators = [
            ("token_mean", Self::TokenMean),
            ("sequence_mean", Self::SequenceMean),
            ("sequence_mean_sum", Self::SequenceMeanSum(constant.unwrap_or(1.0))),
            ("turn_mean", Self::TurnMean),
            ("step_mean", Self::StepMean),
            ("episode_mean", Self::EpisodeMean),
            ("constant", Self::Constant(constant.unwrap_or(f64::NAN))),
        ];
        let denominator = choice("denominator", name, &denominators)?;
        match (denominator, constant) {
            (Self::Constant(_), None) => {
                Err(Error::invalid("constant is missing, but denominator is \"constant\"; give a number above 0"))
            }
            (Self::Constant(_) | Self::SequenceMeanSum(_), _) | (_, None) => Ok(denominator),
            (_, Some(constant)) => Err(Error::invalid(format!(
                "constant is {constant}, but denominator {name:?} does not use it; leave it out or use \"constant\""
            ))),
        }
    }
}

/// The units of each token, as dense ids.
#[derive(Clone, Copy, Debug)]
pub struct TokenUnits<'a> {
    /// The draw of the token.
    pub draws: &'a [u32],
    /// The turn of the token: one step of one draw.
    pub turns: &'a [u32],
    /// The episode of the token's draw. Several draws can be views of one episode.
    pub episodes: &'a [u32],
}

impl<'a> TokenUnits<'a> {
    /// Create units of draws with one turn each; each draw is an episode of its own.
    pub fn of_draws(draws: &'a [u32]) -> Self {
        Self { draws, turns: draws, episodes: draws }
    }
}

/// Return the loss weight of a token with share 1, for each row of tokens; see [`Denominator`] for the formulas.
///
/// Row `i` is a token, or several tokens of one turn. It belongs to draw `units.draws[i]`, and the shares of its
/// trained tokens sum to `shares[i]` (see [`shares`](super::shares())). `valid` has one value for each draw. Rows
/// without a share and rows of an invalid draw have weight 0. The weight of a token is its own share times the weight of
/// its row; it has the same bits whether a row is a token or a turn.
///
/// ```
/// use agentrl_compute::weight::{Denominator, TokenUnits, token_weights};
///
/// let weights = |draws: &[u32], shares: &[f64]| {
///     token_weights(&TokenUnits::of_draws(draws), shares, &[true, true], Denominator::SequenceMean)
/// };
/// assert_eq!(weights(&[0, 0, 0, 1], &[1.0, 1.0, 0.0, 1.0])?, [0.25, 0.25, 0.0, 0.5]);
/// assert_eq!(weights(&[0, 1], &[2.0, 1.0])?, [0.25, 0.5]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a draw has no value in `valid`, a share is negative or not a number, or the
/// constant is not positive.
pub fn token_weights(
    units: &TokenUnits<'_>,
    shares: &[f64],
    valid: &[bool],
    denominator: Denominator,
) -> Result<Vec<f64>> {
    let TokenUnits { draws, turns, episodes } = *units;
    same_length("shares", shares.len(), "draws", draws.len())?;
    check_draws("draws", draws, valid)?;
    if let Denominator::Constant(constant) | Denominator::SequenceMeanSum(constant) = denominator {
        check_constant(constant)?;
    }
    check_shares("shares", shares)?;
    let counted_share = |(&share, &draw): (&f64, &u32)| if valid[draw as usize] { share } else { 0.0 };
    let shares: Vec<f64> = shares.iter().zip(draws).map(counted_share).collect();
    let means = |units: &[(&[u32], usize)]| divided(ones(&shares), &shares, units);
    let of_draws = (draws, valid.len());
    match denominator {
        Denominator::TokenMean => means(&[]),
        Denominator::SequenceMean => means(&[of_draws]),
        Denominator::SequenceMeanSum(constant) => {
            let of_draw = sums(&shares, draws, valid.len())?;
            let weight =
                |(one, &draw): (f64, &u32)| if one > 0.0 { one / of_draw[draw as usize] / constant } else { 0.0 };
            Ok(ones(&shares).into_iter().zip(draws).map(weight).collect())
        }
        Denominator::TurnMean => means(&[(turns, group_count("turns", turns)?), of_draws]),
        Denominator::StepMean => means(&[(turns, group_count("turns", turns)?)]),
        Denominator::EpisodeMean => means(&[(episodes, group_count("episodes", episodes)?)]),
        Denominator::Constant(constant) => Ok(by_constant(&shares, draws, valid.len(), constant)),
    }
}

/// Return 1 for each row that has a share, 0 for the others.
fn ones(shares: &[f64]) -> Vec<f64> {
    shares.iter().map(|&share| if share > 0.0 { 1.0 } else { 0.0 }).collect()
}

/// Return `1 / constant / units with a share` for each row that has a share, 0 for the others.
fn by_constant(shares: &[f64], units: &[u32], count: usize, constant: f64) -> Vec<f64> {
    let total = constant * active(shares, units, count) as f64;
    shares.iter().map(|&share| if share > 0.0 { 1.0 / total } else { 0.0 }).collect()
}

/// Return token weights that form a mean over units of the mean over smaller units. `units` are the unit ids of each
/// token, for each level, smallest first.
///
/// Without levels, every token has the same weight (by its share). With draws, every draw has the same weight; with the
/// rollouts from which rows were split, every rollout. With turns and then trajectories, every turn of a trajectory and
/// every trajectory have the same weight. A unit without a share has no weight. The weights sum to 1, or are all 0.
///
/// ```
/// use agentrl_compute::weight::mean_of_means;
///
/// let (turns, trajectories) = ([0, 0, 1, 2], [0, 0, 0, 1]);
/// assert_eq!(mean_of_means(&[1.0; 4], &[&turns, &trajectories])?, [0.125, 0.125, 0.25, 0.5]);
/// assert_eq!(mean_of_means(&[1.0; 4], &[])?, [0.25; 4]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, ids are not dense, a share is negative or not a number, or a unit lies in two
/// larger ones.
pub fn mean_of_means(shares: &[f64], units: &[&[u32]]) -> Result<Vec<f64>> {
    check_shares("shares", shares)?;
    divided(shares.to_vec(), shares, &counted(shares, units)?)
}

/// Return the token weights of rows in which every token has share 1, row after row; each weight is computed once for
/// its row. `units` are the unit ids of each row, for each level, smallest first. With a `constant` and one level, a
/// token has the weight `1 / constant / units with tokens`.
///
/// ```
/// use agentrl_compute::weight::weights_of_rows;
///
/// // Two turns of one trajectory, and one of another.
/// assert_eq!(weights_of_rows(&[1, 2, 1], None, &[&[0, 1, 2], &[0, 0, 1]], None)?, [0.25, 0.125, 0.125, 0.5]);
/// assert_eq!(weights_of_rows(&[1, 2], Some(&[true, false]), &[&[0, 1]], Some(10.0))?, [0.1, 0.0, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, ids are not dense, a length is negative, the tokens do not fit in memory, a unit
/// lies in two larger ones, or the constant is not positive.
pub fn weights_of_rows(
    lengths: &[i64],
    valid: Option<&[bool]>,
    units: &[&[u32]],
    constant: Option<f64>,
) -> Result<Vec<f64>> {
    mask_length(valid, "lengths", lengths.len())?;
    if let Some(row) = lengths.iter().position(|&length| length < 0) {
        return Err(Error::invalid(format!(
            "lengths[{row}]={} is negative; give the number of trained tokens of each row",
            lengths[row]
        )));
    }
    let tokens = lengths.iter().fold(0_u64, |sum, &length| sum.saturating_add(length as u64));
    let mut weights = Vec::new();
    if usize::try_from(tokens).is_err() || weights.try_reserve_exact(tokens as usize).is_err() {
        return Err(Error::invalid(format!(
            "lengths add up to {tokens} tokens, too many for the memory; give fewer rows"
        )));
    }
    let counts = |row: usize| valid.is_none_or(|valid| valid[row]);
    let share = |row: usize| if counts(row) { lengths[row] as f64 } else { 0.0 };
    let shares: Vec<f64> = (0..lengths.len()).map(share).collect();
    let units = counted(&shares, units)?;
    let of_rows = match (constant, units.as_slice()) {
        (Some(constant), &[(unit, count)]) => {
            check_constant(constant)?;
            by_constant(&shares, unit, count, constant)
        }
        _ => divided(ones(&shares), &shares, &units)?,
    };
    for (weight, &length) in of_rows.into_iter().zip(lengths) {
        weights.resize(weights.len() + length as usize, weight);
    }
    Ok(weights)
}

/// Check unit ids and return each level with its number of units.
fn counted<'a>(shares: &[f64], units: &[&'a [u32]]) -> Result<Vec<(&'a [u32], usize)>> {
    let count = |(level, &unit): (usize, &&'a [u32])| {
        let name = format!("units[{level}]");
        same_length(&name, unit.len(), "shares", shares.len())?;
        Ok((unit, group_count(&name, unit)?))
    };
    units.iter().enumerate().map(count).collect()
}

fn check_constant(constant: f64) -> Result<()> {
    if constant.is_finite() && constant > 0.0 {
        return Ok(());
    }
    Err(Error::invalid(format!("constant is {constant}; give a finite number above 0")))
}

/// Divide the weights of rows by the shares of their units and by the number of units in each larger unit.
fn divided(mut weights: Vec<f64>, shares: &[f64], units: &[(&[u32], usize)]) -> Result<Vec<f64>> {
    let mut divide = |of_unit: &[f64], unit_of: &dyn Fn(usize) -> usize| {
        for (row, weight) in weights.iter_mut().enumerate().filter(|(_, weight)| **weight > 0.0) {
            *weight /= of_unit[unit_of(row)];
        }
    };
    let mut finer: Option<(&[u32], usize)> = None;
    for (level, &(unit, count)) in units.iter().enumerate() {
        let of_unit = match finer {
            None => sums(shares, unit, count)?,
            Some(finer) => members(shares, finer, unit, count, level)?,
        };
        divide(&of_unit, &|row| unit[row] as usize);
        finer = Some((unit, count));
    }
    let total = match finer {
        None => sums(shares, &vec![0; shares.len()], 1)?[0],
        Some((unit, count)) => active(shares, unit, count) as f64,
    };
    divide(&[total], &|_| 0);
    Ok(weights)
}

/// Return the number of units that have a share. `count` is the number of all units.
fn active(shares: &[f64], units: &[u32], count: usize) -> usize {
    let mut seen = vec![false; count];
    for (&unit, _) in units.iter().zip(shares).filter(|(_, share)| **share > 0.0) {
        seen[unit as usize] = true;
    }
    seen.iter().filter(|&&seen| seen).count()
}

/// Return the number of smaller units with a share in each larger unit.
fn members(shares: &[f64], finer: (&[u32], usize), unit: &[u32], count: usize, level: usize) -> Result<Vec<f64>> {
    let mut inside: Vec<Option<u32>> = vec![None; finer.1];
    let mut members = vec![0.0; count];
    for (row, (&small, &large)) in finer.0.iter().zip(unit).enumerate().filter(|&(row, _)| shares[row] > 0.0) {
        match inside[small as usize].replace(large) {
            None => members[large as usize] += 1.0,
            Some(other) if other == large => {}
            Some(other) => {
                return Err(Error::invalid(format!(
                    "units[{level}][{row}] is {large}, but unit {small} of units[{}] also lies in {other}; put \
                     each unit in one",
                    level - 1
                )));
            }
        }
    }
    Ok(members)
}

fn check_shares(name: &str, shares: &[f64]) -> Result<()> {
    for (row, &share) in shares.iter().enumerate() {
        if finite(name, row, share)? < 0.0 {
            return Err(Error::invalid(format!("{name}[{row}] is {share}; give a number of at least 0")));
        }
    }
    Ok(())
}

pub(super) fn check_draws(name: &str, draws: &[u32], valid: &[bool]) -> Result<()> {
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
        assert_eq!(Denominator::from_name("token_mean", None)?, Denominator::TokenMean);
        assert_eq!(Denominator::from_name("sequence_mean", None)?, Denominator::SequenceMean);
        assert_eq!(Denominator::from_name("constant", Some(8.0))?, Denominator::Constant(8.0));
        assert_eq!(
            message(Denominator::from_name("mean", None)),
            "denominator is \"mean\"; use \"token_mean\", \"sequence_mean\", \"sequence_mean_sum\", \"turn_mean\", \
             \"step_mean\", \"episode_mean\" or \"constant\""
        );
        assert_eq!(
            message(Denominator::from_name("constant", None)),
            "constant is missing, but denominator is \"constant\"; give a number above 0"
        );
        assert_eq!(
            message(Denominator::from_name("token_mean", Some(2.0))),
            "constant is 2, but denominator \"token_mean\" does not use it; leave it out or use \"constant\""
        );
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        let weights = |share, constant| {
            token_weights(&TokenUnits::of_draws(&[0]), &[share], &[true], Denominator::Constant(constant))
        };
        assert_eq!(message(weights(-1.0, 1.0)), "shares[0] is -1; give a number of at least 0");
        assert_eq!(message(weights(1.0, 0.0)), "constant is 0; give a finite number above 0");
        assert_eq!(message(weights(1.0, f64::NAN)), "constant is NaN; give a finite number above 0");
        assert!(message(weights(f64::NAN, 1.0)).starts_with("shares[0] is NaN"));
    }

    /// Return the weights of tokens times their shares.
    fn of_tokens(units: &TokenUnits<'_>, shares: &[f64], valid: &[bool], denominator: Denominator) -> Result<Vec<f64>> {
        let weights = token_weights(units, shares, valid, denominator)?;
        Ok(weights.iter().zip(shares).map(|(weight, share)| weight * share).collect())
    }

    #[test]
    fn by_hand() -> Result<()> {
        // Draw 0 has three trained tokens, draw 1 one, draw 2 none, draw 3 is invalid.
        let draws = [0, 0, 0, 1, 1, 2, 3];
        let shares = [1.0, 1.0, 0.5, 0.5, 0.0, 0.0, 1.0];
        let valid = [true, true, true, false];
        // Draw 0 has two turns; draws 0 and 1 are views of one episode.
        let units = TokenUnits { draws: &draws, turns: &[0, 0, 1, 2, 2, 3, 4], episodes: &[0, 0, 0, 0, 0, 1, 2] };
        let weights = |denominator| of_tokens(&units, &shares, &valid, denominator);
        let third = 1.0 / 3.0;
        assert_eq!(weights(Denominator::TokenMean)?, vec![third, third, third / 2.0, third / 2.0, 0.0, 0.0, 0.0]);
        assert_eq!(weights(Denominator::SequenceMean)?, vec![0.2, 0.2, 0.1, 0.5, 0.0, 0.0, 0.0]);
        assert_eq!(weights(Denominator::SequenceMeanSum(1.0))?, vec![0.4, 0.4, 0.2, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(weights(Denominator::SequenceMeanSum(4.0))?, vec![0.1, 0.1, 0.05, 0.25, 0.0, 0.0, 0.0]);
        assert_eq!(weights(Denominator::TurnMean)?, vec![0.125, 0.125, 0.25, 0.5, 0.0, 0.0, 0.0]);
        assert_eq!(weights(Denominator::EpisodeMean)?, vec![third, third, third / 2.0, third / 2.0, 0.0, 0.0, 0.0]);
        assert_eq!(weights(Denominator::Constant(4.0))?, vec![0.125, 0.125, 0.0625, 0.0625, 0.0, 0.0, 0.0]);
        Ok(())
    }

    #[test]
    fn nothing_trained_weighs_nothing() -> Result<()> {
        let means = [Denominator::TokenMean, Denominator::SequenceMean, Denominator::SequenceMeanSum(2.0)];
        let nested = [Denominator::TurnMean, Denominator::EpisodeMean, Denominator::Constant(2.0)];
        for denominator in means.into_iter().chain(nested) {
            assert_eq!(
                token_weights(&TokenUnits::of_draws(&[0, 0]), &[0.0, 0.0], &[true], denominator)?,
                vec![0.0, 0.0]
            );
            assert_eq!(token_weights(&TokenUnits::of_draws(&[0]), &[1.0], &[false], denominator)?, vec![0.0]);
            assert!(token_weights(&TokenUnits::of_draws(&[]), &[], &[], denominator)?.is_empty());
        }
        Ok(())
    }

    #[test]
    fn invalid_rows_are_reported() {
        let weights = |lengths: &[i64], constant| message(weights_of_rows(lengths, None, &[&[0]], constant));
        assert_eq!(weights(&[3], None), "fine");
        assert_eq!(weights(&[-1], None), "lengths[0]=-1 is negative; give the number of trained tokens of each row");
        assert_eq!(
            weights(&[i64::MAX], None),
            "lengths add up to 9223372036854775807 tokens, too many for the memory; give fewer rows"
        );
        assert_eq!(
            weights(&[1, 1], None),
            "units[0] has 1 values, but shares has 2; give one value of each for every row"
        );
        assert_eq!(weights(&[1], Some(0.0)), "constant is 0; give a finite number above 0");
    }

    #[test]
    fn a_unit_lies_in_one_larger_unit() {
        assert_eq!(
            message(mean_of_means(&[1.0, 1.0], &[&[0, 0], &[0, 1]])),
            "units[1][1] is 1, but unit 0 of units[0] also lies in 0; put each unit in one"
        );
        // A row without a share may conflict with the others.
        assert_eq!(message(mean_of_means(&[1.0, 0.0], &[&[0, 0], &[0, 1]])), "fine");
        assert_eq!(
            message(mean_of_means(&[1.0], &[&[0, 0]])),
            "units[0] has 2 values, but shares has 1; give one value of each for every row"
        );
    }

    proptest! {
        /// Computed once for each row, the weights are those of the tokens to the last bit.
        #[test]
        fn rows_weigh_as_their_tokens_do(
            rows in prop::collection::vec((0_i64..4, 0_u32..3, any::<bool>()), 0..20), constant in 0.5_f64..9.0,
        ) {
            let lengths: Vec<i64> = rows.iter().map(|row| row.0).collect();
            let valid: Vec<bool> = rows.iter().map(|row| row.2).collect();
            let own: Vec<u32> = (0..rows.len() as u32).collect();
            let larger = crate::keys::dense_integers(&rows.iter().map(|row| row.1).collect::<Vec<_>>())?.ids;
            let of_tokens = |column: &[u32]| -> Vec<u32> {
                column.iter().zip(&lengths).flat_map(|(&id, &length)| vec![id; length as usize]).collect()
            };
            let tokens = (of_tokens(&own), of_tokens(&larger));
            let shares: Vec<f64> = tokens.0.iter().map(|&row| f64::from(u8::from(valid[row as usize]))).collect();
            let dense = |ids: &[u32]| crate::keys::dense_integers(ids).map(|keys| keys.ids);
            let (own_of, larger_of) = (dense(&tokens.0)?, dense(&tokens.1)?);
            let found = |units: &[&[u32]], constant| weights_of_rows(&lengths, Some(&valid), units, constant);
            prop_assert_eq!(found(&[], None)?, mean_of_means(&shares, &[])?);
            prop_assert_eq!(found(&[&larger], None)?, mean_of_means(&shares, &[&larger_of])?);
            prop_assert_eq!(found(&[&own, &larger], None)?, mean_of_means(&shares, &[&own_of, &larger_of])?);
            let everyone = vec![true; rows.len()];
            let by_constant = token_weights(
                &TokenUnits::of_draws(&tokens.1), &shares, &everyone, Denominator::Constant(constant),
            );
            prop_assert_eq!(found(&[&larger], Some(constant))?, by_constant?);
        }

        /// The split of a trajectory's tokens into rows does not change the weights, as long as the units are the same.
        #[test]
        fn means_of_means_by_definition(rows in prop::collection::vec((0_u32..6, 0_u32..3), 1..30)) {
            // Turn t lies in trajectory t / 2; every third token has no share.
            let turns: Vec<u32> = rows.iter().map(|row| row.0 % rows.len() as u32).collect();
            let trajectories: Vec<u32> = turns.iter().map(|turn| turn / 2).collect();
            let shares: Vec<f64> = rows.iter().map(|row| f64::from(row.1)).collect();
            let found = mean_of_means(&shares, &[&turns, &trajectories])?;
            let of_turn = |turn: u32| (0..rows.len()).filter(|&row| turns[row] == turn).map(|row| shares[row]).sum::<f64>();
            let turns_of = |trajectory: u32| (0..6).filter(|&turn| turn / 2 == trajectory && of_turn(turn) > 0.0).count() as f64;
            let count = (0..3).filter(|&trajectory| turns_of(trajectory) > 0.0).count() as f64;
            for row in 0..rows.len() {
                let below = of_turn(turns[row]) * turns_of(trajectories[row]) * count;
                let expected = if shares[row] > 0.0 { shares[row] / below } else { 0.0 };
                prop_assert!((found[row] - expected).abs() < 1e-12);
            }
        }

        #[test]
        fn weights_follow_the_formulas(
            rows in prop::collection::vec((0_u32..4, 0.0_f64..1.0, 0_u8..2, 0_u32..2), 0..40),
            valid in prop::collection::vec(any::<bool>(), 4),
            constant in 0.5_f64..100.0,
        ) {
            let draws: Vec<u32> = rows.iter().map(|row| row.0).collect();
            let named: Vec<u32> = rows.iter().map(|row| 2 * row.0 + row.3).collect();
            let dense = |turn: &u32| named.iter().position(|name| name == turn).unwrap_or_default() as u32;
            let turns: Vec<u32> = named.iter().map(dense).collect();
            let units = TokenUnits { draws: &draws, turns: &turns, episodes: &draws };
            let shares: Vec<f64> = rows.iter().map(|row| row.1 * f64::from(row.2)).collect();
            let m: Vec<f64> =
                rows.iter().map(|row| if row.2 == 1 && valid[row.0 as usize] { row.1 } else { 0.0 }).collect();
            let of_draw = |draw: u32| (0..m.len()).filter(|&row| draws[row] == draw).map(|row| m[row]).sum::<f64>();
            let of_turn = |turn: u32| (0..m.len()).filter(|&row| turns[row] == turn).map(|row| m[row]).sum::<f64>();
            let voters = (0..4).filter(|&draw| of_draw(draw) > 0.0).count() as f64;
            let trained_turns = (0..m.len() as u32).filter(|&turn| of_turn(turn) > 0.0).count() as f64;
            let denominators = [
                Denominator::TokenMean,
                Denominator::SequenceMean,
                Denominator::SequenceMeanSum(constant),
                Denominator::StepMean,
                Denominator::Constant(constant),
            ];
            for denominator in denominators {
                let found = of_tokens(&units, &shares, &valid, denominator)?;
                for row in 0..m.len() {
                    let below = match denominator {
                        Denominator::TokenMean => m.iter().sum::<f64>(),
                        Denominator::SequenceMean => of_draw(draws[row]) * voters,
                        Denominator::SequenceMeanSum(constant) => of_draw(draws[row]) * constant,
                        Denominator::StepMean => of_turn(turns[row]) * trained_turns,
                        Denominator::Constant(constant) => constant * voters,
                        Denominator::TurnMean | Denominator::EpisodeMean => unreachable!("not among them"),
                    };
                    let expected = if m[row] > 0.0 { m[row] / below } else { 0.0 };
                    prop_assert!((found[row] - expected).abs() < 1e-12, "{} {expected}", found[row]);
                }
            }
        }
    }
}
