//! Keys of the last states of an agent, at several depths (`HGPO`).

use super::hash_table::Keys;
use super::hashed::pair;
use crate::argument_checks::{room, same_length};
use crate::group::group_count;
use crate::{Error, Result};

/// Ids of steps by the last states of their trajectory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// One id for each step: equal if the group and the last states are equal.
    pub keys: Keys,
    /// Whether the trajectory has enough states up to this step; if not, the id is meaningless.
    pub valid: Vec<bool>,
}

/// Return, for k = 1, 2, ... `levels`, ids of steps that are equal if the group and the last k states are equal. The
/// state in which the step was taken is the last of them.
///
/// `states`, `groups` and `trajectories` are dense ids. The steps of a trajectory are in order; steps of others may lie
/// between them. Levels are nested: steps that share k states share k - 1. The ids are exact, not hashes of hashes.
/// Source: HGPO.
///
/// ```
/// use agentrl_compute::keys::history;
///
/// // Two trajectories meet in state 7, the first coming from 5, the second from 6.
/// let levels = history(&[5, 7, 6, 7], &[0, 0, 1, 1], &[0; 4], 2)?;
/// assert_eq!(levels[0].keys.ids, [0, 1, 2, 1]);
/// assert_eq!(levels[1].valid, [false, true, false, true]);
/// assert_ne!(levels[1].keys.ids[1], levels[1].keys.ids[3]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, trajectory ids are not dense or `levels` is 0 or does not fit in memory.
pub fn history(states: &[u32], trajectories: &[u32], groups: &[u32], levels: usize) -> Result<Vec<History>> {
    same_length("trajectories", trajectories.len(), "states", states.len())?;
    if levels == 0 {
        return Err(Error::invalid("levels is 0; give 1 or more"));
    }
    room("levels", levels, size_of::<History>() + states.len() * (size_of::<u32>() + size_of::<bool>()))?;
    let mut last: Vec<Option<u32>> = vec![None; group_count("trajectories", trajectories)?];
    let step_before = |(row, &trajectory): (u32, &u32)| last[trajectory as usize].replace(row);
    let before: Vec<Option<u32>> = (0..).zip(trajectories).map(step_before).collect();
    let now = pair(groups, states)?;
    let mut made = vec![History { valid: vec![true; states.len()], keys: now.clone() }];
    for _ in 1..levels {
        let shorter = &made[made.len() - 1];
        // Pairs of the id of the step before at the shorter level and the id of the current state. If there is no step
        // before, or it is not valid at that level, the first id is `u32::MAX`.
        let earlier: Vec<Option<u32>> =
            before.iter().map(|&row| row.filter(|&row| shorter.valid[row as usize])).collect();
        let past: Vec<u32> =
            earlier.iter().map(|row| row.map_or(u32::MAX, |row| shorter.keys.ids[row as usize])).collect();
        made.push(History { keys: pair(&past, &now.ids)?, valid: earlier.iter().map(Option::is_some).collect() });
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_input_is_reported() {
        for (trajectories, levels, expected) in [
            (&[0][..], 1, "trajectories has 1 values, but states has 2; give one value of each for every row"),
            (&[0, 0], 0, "levels is 0; give 1 or more"),
        ] {
            let message = history(&[0, 0], trajectories, &[0, 0], levels).map_err(|error| error.to_string());
            assert_eq!(message, Err(expected.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn as_lists_of_states(rows in prop::collection::vec((0_u32..3, 0_u32..3, 0_u32..2), 0..40), levels in 1_usize..5) {
            let states: Vec<u32> = rows.iter().map(|row| row.0).collect();
            let trajectories: Vec<u32> = rows.iter().map(|row| row.1 % rows.len() as u32).collect();
            let groups: Vec<u32> = trajectories.iter().map(|trajectory| trajectory % 2).collect();
            let found = history(&states, &trajectories, &groups, levels)?;
            prop_assert_eq!(found.len(), levels);
            let seen = |row: usize| -> Vec<u32> {
                (0..=row).filter(|&other| trajectories[other] == trajectories[row]).map(|other| states[other]).collect()
            };
            for (level, found) in found.iter().enumerate() {
                for a in 0..rows.len() {
                    let mine = seen(a);
                    prop_assert_eq!(found.valid[a], mine.len() > level);
                    for b in (0..a).filter(|&b| found.valid[a] && found.valid[b]) {
                        let theirs = seen(b);
                        let same = groups[a] == groups[b]
                            && mine[mine.len() - level - 1..] == theirs[theirs.len() - level - 1..];
                        prop_assert_eq!(found.keys.ids[a] == found.keys.ids[b], same);
                    }
                }
            }
        }
    }
}
