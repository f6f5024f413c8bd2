//! Searches by hand, and compared with plain lists.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::Result;

fn turn(parent: u32, before: u128, after: After, logprob: f64) -> NewTurn {
    NewTurn { parent, before, after, logprob }
}

fn message<T>(result: Result<T>) -> String {
    result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
}

/// Two paths to state 4, 1 -> 2 -> 4 and 1 -> 3 -> 4, and two dead ends.
fn diamond() -> Result<Search> {
    let mut search = Search::default();
    let rows = [
        turn(NONE, 1, After::State(2), -1.0),
        turn(NONE, 1, After::State(3), -2.0),
        turn(NONE, 1, After::End(false), -0.5),
        turn(0, 2, After::State(4), -1.0),
        turn(1, 3, After::State(4), -0.25),
        turn(0, 2, After::End(false), -0.125),
    ];
    for row in rows {
        search.add(row)?;
    }
    Ok(search)
}

#[test]
fn states_are_one_however_they_are_reached() -> Result<()> {
    let mut search = diamond()?;
    // State rows in order of appearance: 1, 2, 3, an end, 4, an end.
    assert_eq!(search.states(), 6);
    assert_eq!((search.turns()[3].after, search.turns()[4].after, search.first(4)), (4, 4, 3));
    // Path of turn 3: -1 - 1. Only state 4 is open and untried: turns were tried in states 2 and 3.
    assert!((search.turns()[3].path_logprob + 2.0).abs() < f64::EPSILON);
    assert_eq!(search.frontier(9), [3]);
    search.settle();
    assert_eq!((0..6).map(|state| search.status(state)).collect::<Vec<_>>(), {
        use Status::{Failed, Open};
        [Open, Open, Open, Failed, Open, Failed]
    });
    assert!(search.solution().is_empty() && search.pairs().is_empty());
    search.add(turn(3, 4, After::End(true), -1.0))?;
    search.settle();
    // One turn from state 4, two from 2 and 3, three from 1.
    assert_eq!((0..5).map(|state| search.distance(state)).collect::<Vec<_>>(), [3, 2, 2, UNSOLVED, 1]);
    assert_eq!(search.solution(), [0, 3, 6]);
    assert_eq!(search.pairs(), [(0, 2), (3, 5)]);
    assert!(search.frontier(9).is_empty(), "what is solved is not tried again");
    Ok(())
}

#[test]
fn a_state_fails_with_the_last_of_its_turns_and_hopes_again_with_another() -> Result<()> {
    let mut search = Search::default();
    search.add(turn(NONE, 1, After::State(2), -1.0))?;
    search.add(turn(0, 2, After::End(false), -1.0))?;
    search.settle();
    assert_eq!((search.status(0), search.status(1)), (Status::Failed, Status::Failed));
    search.add(turn(0, 2, After::State(3), -1.0))?;
    search.settle();
    assert_eq!((search.status(0), search.status(1)), (Status::Open, Status::Open));
    assert_eq!(search.frontier(1), [2]);
    search.solve(3);
    search.settle();
    assert_eq!((search.status(0), search.distance(0)), (Status::Solved, 2));
    Ok(())
}

#[test]
fn no_state_fails_because_of_itself() -> Result<()> {
    // In state 1 one turn fails and another leads back to it, directly or through state 2.
    for loop_of in [&[(1, 1)][..], &[(1, 2), (2, 1)]] {
        for fails_first in [true, false] {
            let mut search = Search::default();
            let fail =
                |search: &mut Search| search.add(turn(NONE, 1, After::End(false), -0.5)).map(|_| search.settle());
            if fails_first {
                fail(&mut search)?;
            }
            for &(before, after) in loop_of {
                search.add(turn(NONE, before, After::State(after), -0.5))?;
                search.settle();
            }
            if !fails_first {
                fail(&mut search)?;
            }
            assert_eq!(search.status(0), Status::Open, "{loop_of:?}, the failure first: {fails_first}");
        }
    }
    Ok(())
}

#[test]
fn walks_by_upper_confidence_bounds() -> Result<()> {
    let mut search = Search::default();
    let descent = Descent { width: 2, depth: 3, exploration: 0.25 };
    assert_eq!(search.descend(3, &descent)?, [NONE], "the beginning grows first, and once");
    for (key, value) in [(2, 1.0), (3, 0.5)] {
        let row = search.add(turn(NONE, 1, After::State(key), -1.0))?;
        search.back_up(row, value)?;
    }
    // Q + 0.25 sqrt(ln 2 / 1): 1.208 for turn 0, 0.708 for turn 1. In the second walk, turn 0 has a virtual loss: 0.5 +
    // 0.25 sqrt(ln 3 / 2) = 0.685 against 0.5 + 0.25 sqrt(ln 3) = 0.762; and turn 0 is already chosen.
    assert_eq!(search.descend(1, &descent)?, [0]);
    assert_eq!(search.descend(5, &descent)?, [0, 1]);
    for key in [4, 5] {
        search.add(turn(0, 2, After::State(key), -1.0))?;
    }
    search.back_up(2, 0.0)?;
    // Turn 0: (1 + 0) / 2 + 0.25 sqrt(ln 3 / 2) = 0.685; turn 1: 0.762.
    assert_eq!(search.descend(1, &descent)?, [1]);
    // Then turn 0, and after it turn 3 first, which has no value.
    assert_eq!(search.descend(2, &descent)?, [1, 3]);
    assert_eq!(search.descend(9, &descent)?, [1, 3, 2]);
    assert_eq!(search.descend(9, &Descent { depth: 2, ..descent })?, [1], "no turn beyond the depth");
    assert_eq!(search.best_leaf(), Some(1));
    Ok(())
}

#[test]
fn walks_to_where_too_little_was_tried() -> Result<()> {
    let mut search = Search::default();
    assert_eq!(search.under_sampled(2), [NONE, NONE]);
    // The two turns have probabilities 0.7 and 0.3; each was visited once, so their shares are 1/2.
    search.add(turn(NONE, 1, After::State(2), 0.7_f64.ln()))?;
    search.add(turn(NONE, 1, After::State(3), 0.3_f64.ln()))?;
    search.back_up(0, 1.0)?;
    search.back_up(1, 1.0)?;
    // 1/2 - 0.7 < 1/2 - 0.3; 2/3 - 0.7 < 1/3 - 0.3; 3/4 - 0.7 > 1/4 - 0.3; 3/5 - 0.7 < 2/5 - 0.3.
    assert_eq!(search.under_sampled(4), [0, 0, 1, 0]);
    search.add(turn(0, 2, After::End(true), -0.5))?;
    assert_eq!(search.under_sampled(1), [0], "one that ends is grown before");
    Ok(())
}

#[test]
fn invalid_input_is_reported() -> Result<()> {
    let mut search = Search::default();
    assert_eq!(
        message(search.add(turn(0, 1, After::End(true), 0.0))),
        "parent is 0, but the search has 0 turns; give one of them"
    );
    assert_eq!(
        message(search.add(turn(NONE, 1, After::End(true), f64::NAN))),
        "logprob of turn 0 is NaN; give a finite number"
    );
    search.add(turn(NONE, 1, After::State(2), 0.0))?;
    assert_eq!(message(search.back_up(1, 0.0)), "turn is 1, but the search has 1 turns; give one of them");
    assert_eq!(message(search.back_up(0, f64::INFINITY)), "the value of turn 0 is inf; give a finite number");
    let descent = Descent { width: 0, depth: 1, exploration: 0.0 };
    assert_eq!(message(search.descend(1, &descent)), "width is 0 and depth 1; give at least 1 for each");
    assert!(message(search.descend(1, &Descent { width: 1, exploration: -1.0, ..descent })).contains("exploration"));
    Ok(())
}

/// Turns of a search over seven states: a number that picks the parent, the outcome, the log-prob, and the value.
fn searches() -> impl Strategy<Value = Vec<(u32, u8, f64, f64)>> {
    prop::collection::vec((any::<u32>(), 0..10_u8, -3.0..0.0_f64, -1.0..1.0_f64), 0..40)
}

proptest! {
    #[test]
    fn as_plain_lists_say(plan in searches()) {
        let mut search = Search::default();
        // Each turn: its parent, the state before it and its outcome.
        let mut rows: Vec<(u32, u128, After)> = Vec::new();
        let mut values: Vec<(usize, f64)> = Vec::new();
        for (pick, after, logprob, value) in plan {
            let behind = |&&row: &&u32| matches!(rows[row as usize].2, After::State(_));
            let open: Vec<u32> = (0..rows.len() as u32).collect();
            let open: Vec<u32> = open.iter().filter(behind).copied().collect();
            let parent = if pick % 4 == 0 || open.is_empty() { NONE } else { open[pick as usize % open.len()] };
            let before = match rows.get(parent as usize) {
                Some((_, _, After::State(key))) => *key,
                _ => 0,
            };
            let after = match after { 7 => After::End(true), 8 | 9 => After::End(false), key => After::State(u128::from(key)) };
            let row = search.add(turn(parent, before, after, logprob))?;
            rows.push((parent, before, after));
            if value > 0.0 {
                search.back_up(row, value)?;
                values.push((row as usize, value));
            }
        }
        search.settle();
        // Visits: the number of ended paths through each turn.
        let path = |mut row: u32| { let mut path = vec![]; while row != NONE { path.push(row); row = rows[row as usize].0; } path.reverse(); path };
        for row in 0..rows.len() as u32 {
            let through: Vec<f64> = values.iter().filter(|(last, _)| path(*last as u32).contains(&row)).map(|&(_, value)| value).collect();
            let found = search.turn(row)?;
            prop_assert_eq!(found.visits as usize, through.len());
            prop_assert!((found.total - through.iter().sum::<f64>()).abs() < 1e-12);
            let best = through.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert_eq!(found.best.to_bits(), best.to_bits());
            prop_assert_eq!(search.path(row)?, path(row));
            prop_assert_eq!(found.depth as usize, path(row).len() - 1);
        }
        // Distances: relax over all turns repeatedly.
        let keys: BTreeSet<u128> = rows.iter().flat_map(|&(_, before, after)| match after { After::State(key) => vec![before, key], After::End(_) => vec![before] }).collect();
        let mut away: BTreeMap<u128, u32> = BTreeMap::new();
        for _ in 0..=rows.len() {
            for &(_, before, after) in &rows {
                let one = match after { After::End(true) => Some(0), After::End(false) => None, After::State(key) => away.get(&key).copied() };
                if let Some(one) = one {
                    let known = away.entry(before).or_insert(u32::MAX);
                    *known = (*known).min(one + 1);
                }
            }
        }
        // Failures: repeat until no further state fails.
        let mut failed: BTreeSet<u128> = BTreeSet::new();
        for _ in 0..=rows.len() {
            for &key in &keys {
                let mut tried = rows.iter().filter(|row| row.1 == key).peekable();
                let lost = |after: &After| match after { After::End(solved) => !solved, After::State(key) => failed.contains(key) };
                if tried.peek().is_some() && tried.all(|row| lost(&row.2)) {
                    failed.insert(key);
                }
            }
        }
        for (row, &(_, before, after)) in rows.iter().enumerate() {
            let status = |key: &u128| if away.contains_key(key) { Status::Solved } else if failed.contains(key) { Status::Failed } else { Status::Open };
            let found = search.turn(row as u32)?;
            prop_assert_eq!(search.status(found.before), status(&before));
            prop_assert_eq!(search.distance(found.before), away.get(&before).copied().unwrap_or(UNSOLVED));
            match after {
                After::State(key) => prop_assert_eq!(search.status(found.after), status(&key)),
                After::End(solved) => prop_assert_eq!(search.status(found.after), if solved { Status::Solved } else { Status::Failed }),
            }
        }
        // The solution has the right length, and its turns follow each other.
        let way = search.solution();
        let first = rows.iter().filter(|row| row.0 == NONE && away.contains_key(&row.1));
        let shortest = if rows.iter().any(|row| row.0 == NONE) && away.contains_key(&0) { away[&0] as usize } else { 0 };
        prop_assert_eq!(way.len(), if first.count() > 0 { shortest } else { 0 });
        for pair in way.windows(2) {
            prop_assert_eq!(search.turn(pair[0])?.after, search.turn(pair[1])?.before);
        }
        for (won, lost) in search.pairs() {
            prop_assert!(way.contains(&won) && rows[won as usize].1 == rows[lost as usize].1);
            prop_assert_eq!(rows[lost as usize].2, After::End(false));
        }
        // The frontier: states in which no turn was tried, the likeliest first.
        let mut waiting: Vec<(f64, u32)> = vec![];
        for &key in keys.iter().filter(|&&key| rows.iter().all(|row| row.1 != key)) {
            let first = rows.iter().position(|row| row.2 == After::State(key)).map(|row| row as u32);
            let first = first.ok_or_else(|| TestCaseError::fail("a state that nobody reached"))?;
            waiting.push((search.turn(first)?.path_logprob, first));
        }
        waiting.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        let expected: Vec<u32> = waiting.into_iter().map(|(_, row)| row).collect();
        prop_assert_eq!(search.frontier(usize::MAX), expected.clone());
        prop_assert_eq!(search.frontier(2), expected[..expected.len().min(2)].to_vec(), "to ask changes nothing");
        let descent = Descent { width: 2, depth: 4, exploration: 0.5 };
        let grown = search.descend(100, &descent)?;
        let distinct: BTreeSet<u32> = grown.iter().copied().collect();
        prop_assert_eq!(distinct.len(), grown.len());
        for row in &grown {
            let after = rows.iter().filter(|turn| turn.0 == *row).count();
            prop_assert!(after < 2 && (*row == NONE || (path(*row).len() < 4 && !matches!(rows[*row as usize].2, After::End(_)))));
        }
    }

    #[test]
    fn likeness_as_by_recursion(first in prop::collection::vec(0..3, 0..7), second in prop::collection::vec(0..3, 0..7)) {
        fn edits(one: &[i32], other: &[i32]) -> usize {
            match (one.split_last(), other.split_last()) {
                (None, _) => other.len(),
                (_, None) => one.len(),
                (Some((a, left)), Some((b, right))) => {
                    let changed = edits(left, right) + usize::from(a != b);
                    changed.min(edits(left, other) + 1).min(edits(one, right) + 1)
                }
            }
        }
        fn common(one: &[i32], other: &[i32]) -> usize {
            match (one.split_last(), other.split_last()) {
                (Some((a, left)), Some((b, right))) if a == b => common(left, right) + 1,
                (Some((_, left)), Some((_, right))) => common(left, other).max(common(one, right)),
                _ => 0,
            }
        }
        prop_assert_eq!(edit_distance(&first, &second), edits(&first, &second));
        prop_assert_eq!(common_subsequence(&first, &second), common(&first, &second));
        let suffix = (0..=first.len().min(second.len())).rev().find(|&n| first[first.len() - n..] == second[second.len() - n..]);
        prop_assert_eq!(Some(common_suffix(&first, &second)), suffix);
    }
}
