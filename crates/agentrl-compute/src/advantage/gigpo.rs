//! Group-in-group advantages (`GiGPO`): each step is compared with its group's episodes and with steps in the same
//! state.

use crate::argument_checks::{column, same_length};
use crate::group::{Columns, Extra, Options, Scale, Singleton, normalise_into};
use crate::keys::pair;
use crate::returns::{Paths, discounted};
use crate::{Error, Float, Result, names, thread_pool};

names! {
    /// Voters in the statistics of a group's episodes.
    "voter" Voter {
        /// Every step votes with its episode's score, so a long episode has more weight (the default of the public
        /// code).
        Step = "step",
        /// Every trajectory votes once in its group.
        Trajectory = "trajectory",
    }
}

/// Options of [`gigpo`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GigpoOptions {
    /// Weight ω of the comparison within a state.
    pub step_weight: f64,
    /// The scale by which both centred scores are divided.
    pub scale: Scale,
    /// Voters in the statistics of a group's episodes.
    pub voter: Voter,
    /// Both variances are sums of squares over `count - ddof`: 1 or 0.
    pub ddof: u32,
    /// Added to both standard deviations.
    pub eps: f64,
}

impl Default for GigpoOptions {
    /// Return the options of the public code: ω = 1, centred but not scaled, every step votes.
    fn default() -> Self {
        Self { step_weight: 1.0, scale: Scale::None, voter: Voter::Step, ddof: 1, eps: 1e-6 }
    }
}

/// Columns of [`gigpo`]: one value for each step, in any order of steps.
#[derive(Clone, Copy, Debug)]
pub struct GigpoColumns<'a, T> {
    /// Score of the whole episode, the same at each of its steps.
    pub episode_scores: &'a [T],
    /// Discounted reward-to-go of the step ([`discounted`](crate::returns::discounted)).
    pub step_returns: &'a [T],
    /// Dense ids of the groups.
    pub groups: &'a [u32],
    /// Dense ids of the trajectories.
    pub trajectories: &'a [u32],
    /// Dense ids of the states in which the steps were taken.
    pub anchors: &'a [u32],
    /// Mask of the valid steps; `None`: all.
    pub valid: Option<&'a [bool]>,
}

/// Compute `A = A_E + ω · A_S` for each step; 0 for invalid steps.
///
/// `A_E` compares the episode's score with its group. `A_S` compares the step's return with the returns of all steps of
/// the group that were taken in the same state, at any time and in any trajectory. Both are `x - mean`, or
/// `(x - mean) / (std + eps)` with [`Scale::Std`]. The only voter of a group has `A_E = x` (over `1 + eps` if scaled);
/// the only step in a state has `A_S = 0`. Source: arXiv:2505.10978, and the rules of verl-agent's public code.
///
/// ```
/// use agentrl_compute::advantage::{GigpoColumns, GigpoOptions, gigpo};
///
/// // Two trajectories start in the same state; the first wins.
/// let columns = GigpoColumns {
///     episode_scores: &[1.0, 1.0, 0.0, 0.0],
///     step_returns: &[0.5, 1.0, 0.0, 0.0],
///     groups: &[0, 0, 0, 0],
///     trajectories: &[0, 0, 1, 1],
///     anchors: &[0, 1, 0, 2],
///     valid: None,
/// };
/// let mut advantages = [0.0; 4];
/// gigpo(&columns, &GigpoOptions::default(), &mut advantages)?;
/// assert_eq!(advantages, [0.75, 0.5, -0.75, -0.5]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, ids are not dense, a valid value is not finite or an option is out of range;
/// `Overflow` as in [`normalise`](crate::group::normalise). `out` is unspecified after an error.
pub fn gigpo<T: Float>(columns: &GigpoColumns<'_, T>, options: &GigpoOptions, out: &mut [T]) -> Result<()> {
    let &GigpoColumns { episode_scores, step_returns, groups, trajectories, anchors, valid } = columns;
    let rows = episode_scores.len();
    for (name, length) in [
        ("step_returns", step_returns.len()),
        ("groups", groups.len()),
        ("trajectories", trajectories.len()),
        ("anchors", anchors.len()),
        ("out", out.len()),
    ] {
        same_length(name, length, "episode_scores", rows)?;
    }
    if !options.step_weight.is_finite() {
        return Err(Error::invalid(format!("step_weight is {}; give a finite number", options.step_weight)));
    }
    let &GigpoOptions { step_weight, scale, voter, ddof, eps } = options;
    let by_group = Options { scale, ddof, eps, singleton: Singleton::Raw, ..Options::default() };
    let episodes = Columns {
        units: (voter == Voter::Trajectory).then_some(trajectories),
        valid,
        ..Columns::new("episode_scores", episode_scores, groups)
    };
    let mut by_episode = vec![0.0_f64; rows];
    normalise_into(&groups, &episodes, &by_group, Extra::default(), &mut by_episode)?;
    let states = pair(groups, anchors)?.ids;
    let steps = Columns { valid, ..Columns::new("step_returns", step_returns, &states) };
    let mut by_state = vec![0.0_f64; rows];
    let by_states = Options { singleton: Singleton::Zero, ..by_group };
    normalise_into(&&states[..], &steps, &by_states, Extra::default(), &mut by_state)?;
    thread_pool::fill(out, |start, piece| {
        for (row, place) in (start..).zip(piece) {
            *place = T::result(row, by_episode[row] + step_weight * by_state[row])?;
        }
        Ok(())
    })
}

/// Return the discounted reward-to-go of steps in any order. `steps` holds the index of each step in its trajectory; on
/// ties, the earlier row comes first.
///
/// ```
/// use agentrl_compute::advantage::step_returns;
///
/// assert_eq!(step_returns(&[4.0, 1.0, 2.0], &[0, 1, 0], &[1, 0, 0], 0.5)?, [4.0, 1.0, 4.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, a reward is not finite or gamma lies outside [0, 1]; `Overflow` if a return is too
/// large.
pub fn step_returns(rewards: &[f64], trajectories: &[u32], steps: &[i64], gamma: f64) -> Result<Vec<f64>> {
    let rows = rewards.len();
    same_length("trajectory_ids", trajectories.len(), "step_rewards", rows)?;
    same_length("steps", steps.len(), "step_rewards", rows)?;
    let place = |row: usize| (trajectories[row], steps[row]);
    let mut returns = vec![0.0; rows];
    let checked = || column("step_rewards", rewards, "step_rewards", rows, None);
    if (1..rows).all(|row| place(row - 1) <= place(row)) {
        let made = of_sorted(rewards, trajectories, gamma, &mut returns);
        return made.map(|()| returns).or_else(|error| checked().and(Err(error)));
    }
    checked()?;
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by_key(|&row| place(row));
    let paid: Vec<f64> = order.iter().map(|&row| rewards[row]).collect();
    let trajectories: Vec<u32> = order.iter().map(|&row| trajectories[row]).collect();
    let mut to_come = vec![0.0; rows];
    of_sorted(&paid, &trajectories, gamma, &mut to_come)?;
    order.iter().zip(to_come).for_each(|(&row, to_come)| returns[row] = to_come);
    Ok(returns)
}

/// Compute the same for steps in order, one trajectory after the other.
fn of_sorted(rewards: &[f64], trajectories: &[u32], gamma: f64, returns: &mut [f64]) -> Result<()> {
    let rows = rewards.len();
    let mut offsets = vec![0];
    offsets.extend((1..rows).filter(|&row| trajectories[row] != trajectories[row - 1]).map(|row| row as i64));
    if rows > 0 {
        offsets.push(rows as i64);
    }
    discounted(rewards, &Paths::new(&offsets), gamma, returns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{at, masked_groups, naive, shuffle};
    use crate::rng::uniform;
    use proptest::prelude::*;

    const EPISODE: [f64; 7] = [1.0, 0.25, -0.5, 0.75, 0.3, 2.0, -1.5];
    const RETURNS: [f64; 12] =
        [0.126, -0.132, 0.640, 0.105, -0.536, 0.362, 1.304, 0.947, -0.704, -1.265, -0.623, 0.041];
    const GROUPS: [u32; 12] = [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 3];
    const TRAJECTORIES: [u32; 12] = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6];
    const ANCHORS: [u32; 12] = [0, 1, 0, 0, 2, 0, 1, 0, 1, 0, 0, 3];

    fn run<T: Float>(columns: &GigpoColumns<'_, T>, options: &GigpoOptions) -> Result<Vec<T>> {
        let mut out = vec![T::from_f64(7.0); columns.episode_scores.len()];
        gigpo(columns, options, &mut out)?;
        Ok(out)
    }

    /// Expected values come from verl-agent's public code for the same input, ω = 0.5.
    #[test]
    fn as_the_public_code() -> Result<()> {
        let scores = TRAJECTORIES.map(|trajectory| EPISODE[trajectory as usize]);
        let columns = GigpoColumns {
            episode_scores: &scores,
            step_returns: &RETURNS,
            groups: &GROUPS,
            trajectories: &TRAJECTORIES,
            anchors: &ANCHORS,
            valid: None,
        };
        for (scale, voter, expected) in [
            (
                Scale::None,
                Voter::Step,
                [
                    0.551_732, 0.283_857, 0.808_732, -0.208_768, -0.107_143, -0.830_268, -0.498_143, 0.703, 0.15,
                    -0.853, 2.0, -1.5,
                ],
            ),
            (
                Scale::None,
                Voter::Trajectory,
                [0.658_875, 0.391, 0.915_875, -0.101_625, 0.0, -0.723_125, -0.391, 0.778, 0.225, -0.778, 2.0, -1.5],
            ),
            (
                Scale::Std,
                Voter::Step,
                [
                    0.588_135, 0.599_107, 1.616_205, -0.565_305, -0.158_777, -1.162_705, -0.916_66, 0.930_901,
                    0.577_348, -1.508_249, 1.999_998, -1.499_999,
                ],
            ),
            (
                Scale::Std,
                Voter::Trajectory,
                [
                    0.635_474, 0.646_446, 1.663_544, -0.406_528, 0.0, -0.892_491, -0.646_446, 1.060_658, 0.707_105,
                    -1.060_658, 1.999_998, -1.499_999,
                ],
            ),
        ] {
            let found = run(&columns, &GigpoOptions { step_weight: 0.5, scale, voter, ..GigpoOptions::default() })?;
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 2e-6, "{scale:?} {voter:?}: {found} {expected}");
            }
        }
        Ok(())
    }

    #[test]
    fn no_rows_and_names() -> Result<()> {
        let none = GigpoColumns::<f32> {
            episode_scores: &[],
            step_returns: &[],
            groups: &[],
            trajectories: &[],
            anchors: &[],
            valid: None,
        };
        assert!(run(&none, &GigpoOptions::default())?.is_empty());
        assert_eq!((Voter::from_name("step")?, Voter::from_name("trajectory")?), (Voter::Step, Voter::Trajectory));
        assert!(Voter::from_name("row").is_err());
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
        let columns = GigpoColumns {
            episode_scores: &[1.0, 2.0],
            step_returns: &[1.0, 1.0],
            groups: &[0, 0],
            trajectories: &[1, 1],
            anchors: &[0, 0],
            valid: None,
        };
        let message = |columns: GigpoColumns<'_, f64>, options: GigpoOptions| {
            run(&columns, &options).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
        };
        let default = GigpoOptions::default();
        assert_eq!(message(columns, default), "fine");
        assert_eq!(
            message(GigpoColumns { anchors: &[0], ..columns }, default),
            "anchors has 1 values, but episode_scores has 2; give one value of each for every row"
        );
        assert_eq!(
            message(GigpoColumns { step_returns: &[1.0, f64::NAN], ..columns }, default),
            "step_returns[1] is NaN, but must be finite; correct it or mark the row invalid"
        );
        assert_eq!(
            message(columns, GigpoOptions { step_weight: f64::NAN, ..default }),
            "step_weight is NaN; give a finite number"
        );
        assert_eq!(
            message(columns, GigpoOptions { ddof: 3, ..default }),
            "ddof is 3; use 1 (unbiased variance) or 0 (population variance)"
        );
    }

    /// Reference implementation: compare `x` with members by the textbook formulas.
    fn compared(x: f64, members: &[f64], single: f64, std: bool) -> f64 {
        let (mean, spread) = if members.len() == 1 { (single, 1.0) } else { naive(members, 1) };
        (x - mean) / if std { spread + 1e-6 } else { 1.0 }
    }

    proptest! {
        /// The return is the step's own reward plus all later ones of its trajectory, discounted by their distance.
        #[test]
        fn returns_of_steps_by_definition(
            rows in prop::collection::vec((0_u32..4, -9_i32..9), 0..30), seed in any::<u64>(),
        ) {
            let trajectories: Vec<u32> = rows.iter().map(|&(trajectory, _)| trajectory).collect();
            let rewards: Vec<f64> = rows.iter().map(|&(_, reward)| f64::from(reward)).collect();
            let steps: Vec<i64> = shuffle(rows.len(), seed).into_iter().map(|step| step as i64).collect();
            let found = step_returns(&rewards, &trajectories, &steps, 0.5)?;
            for (row, &found) in found.iter().enumerate() {
                let mut later: Vec<usize> = (0..rows.len())
                    .filter(|&other| trajectories[other] == trajectories[row] && steps[other] >= steps[row])
                    .collect();
                later.sort_by_key(|&other| steps[other]);
                let expected: f64 = later.iter().enumerate().map(|(far, &other)| rewards[other] * 0.5_f64.powi(far as i32)).sum();
                prop_assert!((found - expected).abs() < 1e-9, "{found} {expected}");
            }
        }

        #[test]
        fn as_the_formula_in_any_order(
            (group, valid) in masked_groups(), seed in any::<u64>(), std in any::<bool>(), once in any::<bool>(),
        ) {
            let rows = group.groups.len();
            let small = |part: u64, row: usize, range: f64| (uniform(seed.wrapping_add(part), row as u64) * range).floor();
            let trajectories: Vec<u32> = (0..rows).map(|row| small(0, row, (rows as f64 / 3.0).ceil()) as u32).collect();
            let anchors: Vec<u32> = (0..rows).map(|row| small(1, row, rows.min(4) as f64) as u32).collect();
            let number = |part: u64, row: usize| if valid[row] { small(part, row, 9.0) / 4.0 - 1.0 } else { f64::NAN };
            let returns: Vec<f64> = (0..rows).map(|row| number(2, row)).collect();
            let scores: Vec<f64> = (0..rows)
                .map(|row| if valid[row] { small(3, trajectories[row] as usize, 9.0) / 4.0 - 1.0 } else { f64::NAN })
                .collect();
            let columns = GigpoColumns {
                episode_scores: &scores,
                step_returns: &returns,
                groups: &group.groups,
                trajectories: &trajectories,
                anchors: &anchors,
                valid: Some(&valid),
            };
            let options = GigpoOptions {
                step_weight: 0.7,
                scale: if std { Scale::Std } else { Scale::None },
                voter: if once { Voter::Trajectory } else { Voter::Step },
                ..GigpoOptions::default()
            };
            let found = run(&columns, &options)?;
            for row in 0..rows {
                if !valid[row] {
                    prop_assert_eq!(found[row].to_bits(), 0);
                    continue;
                }
                let peers: Vec<usize> =
                    (0..rows).filter(|&peer| valid[peer] && group.groups[peer] == group.groups[row]).collect();
                let first = |&&peer: &&usize| {
                    !once || peers.iter().find(|&&other| trajectories[other] == trajectories[peer]) == Some(&peer)
                };
                let episodes: Vec<f64> = peers.iter().filter(first).map(|&peer| scores[peer]).collect();
                let in_state: Vec<f64> =
                    peers.iter().filter(|&&peer| anchors[peer] == anchors[row]).map(|&peer| returns[peer]).collect();
                let expected = compared(scores[row], &episodes, 0.0, std)
                    + 0.7 * compared(returns[row], &in_state, returns[row], std);
                // If all values are equal, the rounding error of the textbook formula is divided by eps.
                prop_assert!((found[row] - expected).abs() < 1e-8, "{} {expected}", found[row]);
            }
            let order = shuffle(rows, seed);
            let shuffled = run(
                &GigpoColumns {
                    episode_scores: &at(&order, &scores),
                    step_returns: &at(&order, &returns),
                    groups: &at(&order, &group.groups),
                    trajectories: &at(&order, &trajectories),
                    anchors: &at(&order, &anchors),
                    valid: Some(&at(&order, &valid)),
                },
                &options,
            )?;
            prop_assert!(order.iter().zip(shuffled).all(|(&row, value)| found[row].to_bits() == value.to_bits()));
        }
    }
}
