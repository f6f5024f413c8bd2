//! Rewards from checklists: items that the steps of a turn satisfy, with dependencies between items.

use crate::argument_checks::within;
use crate::ragged::Ragged;
use crate::{Error, Result};

/// The judge's verdicts on the checklist items of each turn.
#[derive(Clone, Copy, Debug)]
pub struct Checklist<'a> {
    /// `[steps × items]`, row-major: whether the item is satisfied after the step.
    pub satisfied: &'a [bool],
    /// Number of items. If turns have different numbers, give the largest: an item that is never satisfied is never
    /// earned.
    pub items: usize,
    /// `[items × items]` for all turns or `[turns × items × items]`, row-major: whether the row's item can only be
    /// earned after the column's item is satisfied.
    pub dependencies: &'a [bool],
    /// Offsets of the turns: turn `i` has the steps `offsets[i]..offsets[i + 1]`.
    pub offsets: &'a [i64],
    /// Factor on an item's reward for each earlier step at which the item was eligible and not earned.
    pub delay: f64,
}

/// Rewards and eligibility of items, each `[steps × items]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChecklistRewards {
    /// `delay^n` at the step that earns the item, after `n` eligible steps that did not; 0 elsewhere. An item is earned
    /// at most once in a turn.
    pub earned: Vec<f64>,
    /// At steps where the item is eligible: the largest `earned` of this and all later steps of the turn. 0 elsewhere.
    pub backfilled: Vec<f64>,
    /// Whether the step could earn the item: its dependencies were satisfied before the step, and the item was not.
    pub eligible: Vec<bool>,
}

/// Credit the items of checklists to steps. An item is eligible at a step if all its dependencies were satisfied before
/// the step and the item was not. It is earned by the first step after which it is satisfied, if it is eligible at that
/// step. Source: CM2, arXiv:2602.12268.
///
/// ```
/// use agentrl_compute::reward::{Checklist, checklist};
///
/// // Two items; the second depends on the first. Both are satisfied after step 1, so the second is never eligible.
/// let satisfied = [false, false, true, true, true, true];
/// let dependencies = [false, false, true, false];
/// let columns =
///     Checklist { satisfied: &satisfied, items: 2, dependencies: &dependencies, offsets: &[0, 3], delay: 1.0 };
/// let made = checklist(&columns)?;
/// assert_eq!(made.earned, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
/// assert_eq!(made.backfilled, [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if there is no item, sizes do not fit, an item depends on itself, offsets do not cover the steps, or
/// `delay` is outside [0, 1].
pub fn checklist(columns: &Checklist<'_>) -> Result<ChecklistRewards> {
    let &Checklist { satisfied, items, dependencies, offsets, delay } = columns;
    within("delay", delay, 0.0, 1.0)?;
    if items == 0 || !satisfied.len().is_multiple_of(items) {
        return Err(Error::invalid(format!(
            "satisfied has {} values for {items} items; give one for every item of every step, and at least one item",
            satisfied.len()
        )));
    }
    let steps: Vec<u32> = (0..(satisfied.len() / items) as u32).collect();
    let turns = Ragged::new(&steps, offsets)?;
    if offsets[0] != 0 || offsets[offsets.len() - 1] as usize != steps.len() {
        return Err(Error::invalid(format!(
            "offsets go from {} to {}, but there are {count} steps; give offsets from 0 to {count}",
            offsets[0],
            offsets[offsets.len() - 1],
            count = steps.len()
        )));
    }
    let square = items * items;
    if dependencies.len() != square && dependencies.len() != square * turns.len() {
        return Err(Error::invalid(format!(
            "dependencies has {} values for {items} items and {} turns; give {square} (items × items) once, or for each turn",
            dependencies.len(),
            turns.len()
        )));
    }
    for (index, item) in (0..dependencies.len() / items).map(|row| (row / items, row % items)) {
        if dependencies[index * square + item * items + item] {
            return Err(Error::invalid(format!(
                "dependencies[{index}][{item}][{item}] is true: an item cannot depend on itself; make it false"
            )));
        }
    }
    let mut made = ChecklistRewards {
        earned: vec![0.0; satisfied.len()],
        backfilled: vec![0.0; satisfied.len()],
        eligible: vec![false; satisfied.len()],
    };
    for (index, turn) in turns.iter().enumerate() {
        let needs_of_turn = if dependencies.len() == square { dependencies } else { &dependencies[index * square..] };
        // A satisfied item stays satisfied: it changes at most once in a turn.
        let mut before = vec![false; items];
        let mut waited = vec![0_i32; items];
        for &step in turn {
            let first = step as usize * items;
            let mut after = before.clone();
            for item in 0..items {
                let place = first + item;
                let needs = &needs_of_turn[item * items..(item + 1) * items];
                let ready = needs.iter().zip(&before).all(|(&needed, &done)| done || !needed);
                after[item] |= satisfied[place];
                made.eligible[place] = ready && !before[item];
                if made.eligible[place] {
                    made.earned[place] = if satisfied[place] { delay.powi(waited[item]) } else { 0.0 };
                    waited[item] += 1;
                }
            }
            before = after;
        }
        let mut earned_later = vec![0.0_f64; items];
        for &step in turn.iter().rev() {
            for (item, later) in earned_later.iter_mut().enumerate() {
                let place = step as usize * items + item;
                *later = later.max(made.earned[place]);
                made.backfilled[place] = if made.eligible[place] { *later } else { 0.0 };
            }
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_input_is_reported() {
        let message = |satisfied: &[bool], items, dependencies: &[bool], offsets: &[i64]| {
            let columns = Checklist { satisfied, items, dependencies, offsets, delay: 1.0 };
            checklist(&columns).map_or_else(|error| error.to_string(), |_| "fine".to_owned())
        };
        assert!(message(&[], 0, &[], &[0]).starts_with("satisfied has 0 values for 0 items"));
        assert!(message(&[true; 3], 2, &[false; 4], &[0, 1]).starts_with("satisfied has 3 values for 2 items"));
        assert!(
            message(&[true], 1, &[false; 3], &[0, 1]).starts_with("dependencies has 3 values for 1 items and 1 turns")
        );
        assert!(message(&[true], 1, &[true], &[0, 1]).starts_with("dependencies[0][0][0] is true"));
        assert!(
            message(&[true, true], 1, &[false], &[0, 1]).starts_with("offsets go from 0 to 1, but there are 2 steps")
        );
    }

    #[test]
    fn every_turn_can_have_its_own_dependencies() -> Result<()> {
        let dependencies = [false, false, true, false, false, false, false, false];
        let columns = Checklist {
            satisfied: &[true, true, true, true],
            items: 2,
            dependencies: &dependencies,
            offsets: &[0, 1, 2],
            delay: 1.0,
        };
        assert_eq!(checklist(&columns)?.earned, [1.0, 0.0, 1.0, 1.0]);
        Ok(())
    }

    proptest! {
        #[test]
        fn as_defined(verdicts in prop::collection::vec(any::<bool>(), 0..24), graph in any::<u8>(), cut in any::<u32>()) {
            // Three items; an item may depend on earlier ones.
            let steps = verdicts.len() / 3;
            let satisfied = &verdicts[..steps * 3];
            let depends = |item: usize, on: usize| on < item && graph >> (item * 2 + on) & 1 == 1;
            let dependencies: Vec<bool> = (0..9).map(|place| depends(place / 3, place % 3)).collect();
            let middle = cut as usize % (steps + 1);
            let offsets = [0, middle as i64, steps as i64];
            let made = checklist(&Checklist { satisfied, items: 3, dependencies: &dependencies, offsets: &offsets, delay: 0.5 })?;
            for step in 0..steps {
                let start = if step < middle { 0 } else { middle };
                let end = if step < middle { middle } else { steps };
                let done = |item: usize, by: usize| (start..by).any(|step| satisfied[step * 3 + item]);
                for item in 0..3 {
                    let ready = |step: usize| (0..3).all(|on| !depends(item, on) || done(on, step));
                    let eligible = ready(step) && !done(item, step);
                    let earned = eligible && satisfied[step * 3 + item];
                    let waited = (start..step).filter(|&earlier| ready(earlier) && !done(item, earlier)).count();
                    let place = step * 3 + item;
                    prop_assert_eq!(made.eligible[place], eligible);
                    let expected = if earned { 0.5_f64.powi(waited as i32) } else { 0.0 };
                    prop_assert!((made.earned[place] - expected).abs() < 1e-15);
                    prop_assert_eq!(made.backfilled[place] > 0.0, eligible && done(item, end));
                }
            }
        }
    }
}
