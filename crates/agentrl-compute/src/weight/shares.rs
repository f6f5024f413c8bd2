//! Shares of a step in the draws that contain it.

use super::denominator::check_draws;
use crate::argument_checks::same_length;
use crate::group::group_count;
use crate::{Error, Result, names};

names! {
    /// Distribution of a step over the draws that contain it (a branch inherits the steps before it).
    "shared" Shared {
        /// Every draw gets share 1.
        Each = "each",
        /// All draws with the step get equal shares.
        Split = "split",
        /// The first draw with the step gets share 1, the others 0.
        Owner = "owner",
    }
}

/// Return the share of each step of each draw: 1, 1/(draws that contain the same step), or 1 in the first of these
/// draws and 0 in the others.
///
/// `step_keys[i]` is the dense id of the physical step in row `i` (equal if branches share it). `draw_of_step[i]` is
/// its draw, in ascending order. `valid` has one value for each draw; steps of invalid draws have share 0.
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
/// `InvalidInput` if lengths differ, draws are not in ascending order or have no value in `valid`, or keys are not
/// dense.
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
    // For each physical step: the number of draws with it, the first of them, and the last one visited so far.
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
        assert_eq!(message(Shared::from_name("all")), "shared is \"all\"; use \"each\", \"split\" or \"owner\"");
        Ok(())
    }

    #[test]
    fn invalid_input_is_reported() {
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
    }

    #[test]
    fn a_draw_that_returns_to_a_step_contains_it_once() -> Result<()> {
        assert_eq!(shares(&[0, 1, 0, 0], &[0, 0, 0, 1], &[true, true], Shared::Split)?, vec![0.5, 1.0, 0.5, 0.5]);
        Ok(())
    }

    proptest! {
        /// The shares of a physical step sum to 1 with split and owner, and to its number of draws with each.
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
    }
}
