//! What is still to come: returns of steps.

use crate::check::{finite, same_length};
use crate::{Error, Float, Result};

/// Discounted reward-to-go of each step: `R_t = r_t + gamma · R_{t+1}` within its trajectory.
///
/// The steps of a trajectory stand together, in order; where the id changes, a trajectory ends. Ids are dense, below the
/// number of rows. Where the same trajectory is drawn twice, give the ids of the draws.
///
/// ```
/// use agentrl_compute::returns::discounted;
///
/// let mut returns = [0.0; 4];
/// discounted(&[0.0, 0.0, 1.0, 5.0], &[0, 0, 0, 1], 0.5, &mut returns)?;
/// assert_eq!(returns, [0.25, 0.5, 1.0, 5.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, `gamma` is outside [0, 1], a reward is not finite (give 0 where nothing was paid), or
/// a trajectory comes back after another; `Overflow` if a return is too large for its type.
pub fn discounted<T: Float>(rewards: &[T], trajectories: &[u32], gamma: f64, out: &mut [T]) -> Result<()> {
    same_length("trajectories", trajectories.len(), "rewards", rewards.len())?;
    same_length("out", out.len(), "rewards", rewards.len())?;
    if !(0.0..=1.0).contains(&gamma) {
        return Err(Error::invalid(format!("gamma is {gamma}, but must lie in [0, 1]")));
    }
    let mut seen = vec![false; crate::group::group_count("trajectories", trajectories)?];
    let mut to_come = 0.0;
    for row in (0..rewards.len()).rev() {
        let trajectory = trajectories[row];
        if trajectories.get(row + 1) != Some(&trajectory) {
            if std::mem::replace(&mut seen[trajectory as usize], true) {
                return Err(Error::invalid(format!(
                    "trajectories[{row}] is {trajectory}, which comes again after another; keep the steps of a trajectory \
                     together, in order"
                )));
            }
            to_come = 0.0;
        }
        to_come = finite("rewards", row, rewards[row].to_f64())? + gamma * to_come;
        out[row] = T::result(row, to_come)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(rewards: &[f64], trajectories: &[u32], gamma: f64) -> String {
        let mut out = vec![0.0; rewards.len()];
        discounted(rewards, trajectories, gamma, &mut out)
            .map_or_else(|error| error.to_string(), |()| "fine".to_owned())
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(message(&[], &[], 1.0), "fine");
        assert_eq!(
            message(&[1.0], &[], 1.0),
            "trajectories has 0 values, but rewards has 1; give one value of each for every row"
        );
        assert_eq!(message(&[1.0], &[0], 1.5), "gamma is 1.5, but must lie in [0, 1]");
        assert_eq!(message(&[1.0], &[0], f64::NAN), "gamma is NaN, but must lie in [0, 1]");
        assert_eq!(
            message(&[1.0, f64::NAN], &[0, 0], 1.0),
            "rewards[1] is NaN, but must be finite; correct it or mark the row invalid"
        );
        assert_eq!(
            message(&[1.0; 3], &[0, 1, 0], 1.0),
            "trajectories[0] is 0, which comes again after another; keep the steps of a trajectory together, in order"
        );
        assert_eq!(
            message(&[1.0; 2], &[0, 5], 1.0),
            "trajectories[1] is 5, but dense ids lie below the number of rows, 2; make them with keys"
        );
        assert!(message(&[f64::MAX; 2], &[0, 0], 1.0).starts_with("the result of row 0 is inf"));
    }

    proptest! {
        #[test]
        fn as_the_sum(
            lengths in prop::collection::vec(1_usize..6, 0..6),
            gamma in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0],
            seed in any::<u64>(),
        ) {
            let trajectories: Vec<u32> =
                lengths.iter().enumerate().flat_map(|(id, &length)| vec![(lengths.len() - 1 - id) as u32; length]).collect();
            let rewards: Vec<f64> =
                (0..trajectories.len() as u64).map(|row| crate::rng::uniform(seed, row) * 20.0 - 10.0).collect();
            let mut found = vec![0.0; rewards.len()];
            discounted(&rewards, &trajectories, gamma, &mut found)?;
            for row in 0..rewards.len() {
                let later = (row..rewards.len()).take_while(|&later| trajectories[later] == trajectories[row]);
                let expected: f64 = later.map(|later| gamma.powi((later - row) as i32) * rewards[later]).sum();
                prop_assert!((found[row] - expected).abs() < 1e-12, "{} {expected}", found[row]);
            }
        }
    }
}
