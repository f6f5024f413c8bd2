//! Turns of a search, which form a tree, and the states that they lead to, which form a graph.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;

use crate::keys::FixedHasher;
use crate::{Error, Result};

/// The root: parent of the first turn of each path.
pub const NONE: u32 = u32::MAX;

/// The state or the end that a turn leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// A state, by its key.
    State(u128),
    /// The end of the episode, and whether it solved the task.
    End(bool),
}

/// A turn to add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewTurn {
    /// The previous turn on its path; [`NONE`] for a first turn.
    pub parent: u32,
    /// Key of the state in which it was taken.
    pub before: u128,
    /// The state or the end that it leads to.
    pub after: After,
    /// Log-prob of its tokens, in nats.
    pub logprob: f64,
}

/// A turn of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The previous turn on its path; [`NONE`] for a first turn.
    pub parent: u32,
    /// Row of the state in which it was taken.
    pub before: u32,
    /// Row of the state that it leads to.
    pub after: u32,
    /// Log-prob of its tokens.
    pub logprob: f64,
    /// Log-prob of the tokens of all turns on its path, itself included.
    pub path_logprob: f64,
    /// Number of turns before it on its path.
    pub depth: u32,
    /// Number of ended paths through it.
    pub visits: u32,
    /// Sum of the values of these paths.
    pub total: f64,
    /// Largest value of these paths; negative infinity if there are none.
    pub best: f64,
    /// The turns that follow it, in the order in which they were added.
    pub children: Vec<u32>,
}

/// The distance of a state from which no solved end is known.
pub const UNSOLVED: u32 = u32::MAX;

/// The status of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It may still be solved.
    Open = 0,
    /// It is a solved end, or a turn leads from it to a solved state.
    Solved = 1,
    /// It is an unsolved end, or every turn that was tried in it leads to a failed state.
    Failed = 2,
}

/// A state of the search.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// The turn that first reached it; [`NONE`] for a state in which an episode begins.
    pub(super) first: u32,
    /// Whether it is the end of an episode.
    pub(super) ended: bool,
    pub(super) failed: bool,
    pub(super) distance: u32,
    /// Turns that were tried in it.
    pub(super) tried: Vec<u32>,
    /// Turns that lead to it.
    pub(super) reached: Vec<u32>,
    /// Number of tried turns that lead to states that are not failed.
    pub(super) hopes: u32,
}

impl State {
    pub(super) fn new(first: u32, ended: bool) -> Self {
        Self { first, ended, failed: false, distance: UNSOLVED, tried: Vec::new(), reached: Vec::new(), hopes: 0 }
    }
}

/// A state in which no turn was tried yet. The likeliest is the greatest; of equals the earlier one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) logprob: f64,
    pub(super) state: u32,
}

impl Candidate {
    fn new(logprob: f64, state: u32) -> Self {
        Self { logprob, state }
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.logprob.total_cmp(&other.logprob).then(other.state.cmp(&self.state))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// Turns and states of one search.
///
/// ```
/// use agentrl_compute::search::{After, NONE, NewTurn, Search, Status};
///
/// let mut search = Search::default();
/// let turn = |parent, before, after, logprob| NewTurn { parent, before, after, logprob };
/// let first = search.add(turn(NONE, 1, After::State(2), -0.5))?;
/// let other = search.add(turn(NONE, 1, After::State(3), -0.1))?;
/// assert_eq!(search.frontier(2), [other, first], "the likeliest first");
/// let end = search.add(turn(first, 2, After::End(true), -0.5))?;
/// search.back_up(end, 1.0)?;
/// assert_eq!(search.status(search.turn(first)?.before), Status::Solved);
/// assert_eq!(search.solution(), [first, end]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Search {
    pub(super) turns: Vec<Turn>,
    /// Turns without a parent.
    pub(super) roots: Vec<u32>,
    pub(super) states: Vec<State>,
    pub(super) known: HashMap<u128, u32, BuildHasherDefault<FixedHasher>>,
    /// States whose status may have changed.
    pub(super) dirty: Vec<u32>,
    /// States in which no turn was tried, the likeliest first; some may have been tried since they were added.
    pub(super) open: BinaryHeap<Candidate>,
    /// Sum of the values of all ended paths; `visits` is their number.
    pub(super) total: f64,
    pub(super) visits: u32,
}

impl Search {
    /// Add a turn and return its row. The turn may be taken in another state than the one its parent leads to: its path
    /// continues, and the two states stay unrelated.
    ///
    /// # Errors
    /// `InvalidInput` if the parent does not exist or the log-prob is not finite; `Overflow` for 2³² - 1 turns.
    pub fn add(&mut self, new: NewTurn) -> Result<u32> {
        let NewTurn { parent, before, after, logprob } = new;
        let row = u32::try_from(self.turns.len()).ok().filter(|&row| row < NONE);
        let row = row.ok_or_else(|| {
            Error::overflow("the search has 2^32 - 1 turns, the most it can have; start a new search")
        })?;
        if !logprob.is_finite() {
            return Err(Error::invalid(format!("logprob of turn {row} is {logprob}; give a finite number")));
        }
        let (above, depth) = match self.turns.get(parent as usize) {
            _ if parent == NONE => (0.0, 0),
            Some(turn) => (turn.path_logprob, turn.depth + 1),
            None => {
                return Err(Error::invalid(format!(
                    "parent is {parent}, but the search has {} turns; give one of them",
                    self.turns.len()
                )));
            }
        };
        let path_logprob = above + logprob;
        let before = self.state_of(before, NONE);
        let (after, reached) = match after {
            After::State(key) => {
                let count = self.states.len();
                let state = self.state_of(key, row);
                (state, self.states.len() > count)
            }
            After::End(solved) => (self.end_of(solved, row), false),
        };
        if reached {
            self.open.push(Candidate::new(path_logprob, after));
        }
        let children = Vec::new();
        let value = Turn {
            parent,
            before,
            after,
            logprob,
            path_logprob,
            depth,
            visits: 0,
            total: 0.0,
            best: f64::NEG_INFINITY,
            children,
        };
        self.turns.push(value);
        match self.turns.get_mut(parent as usize) {
            Some(above) => above.children.push(row),
            None => self.roots.push(row),
        }
        self.join(row);
        Ok(row)
    }

    /// Record the value of an ended path: every turn on the path gets one more visit, with this value.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such turn, or the value is not finite.
    pub fn back_up(&mut self, last: u32, value: f64) -> Result<()> {
        self.turn(last)?;
        if !value.is_finite() {
            return Err(Error::invalid(format!("the value of turn {last} is {value}; give a finite number")));
        }
        self.visits += 1;
        self.total += value;
        let mut row = last;
        while let Some(turn) = self.turns.get_mut(row as usize) {
            turn.visits += 1;
            turn.total += value;
            turn.best = turn.best.max(value);
            row = turn.parent;
        }
        Ok(())
    }

    /// All turns, in the order in which they were added.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Return a turn.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such turn.
    pub fn turn(&self, row: u32) -> Result<&Turn> {
        self.turns.get(row as usize).ok_or_else(|| {
            Error::invalid(format!("turn is {row}, but the search has {} turns; give one of them", self.turns.len()))
        })
    }

    /// The turns from the first one to a turn, both included.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such turn.
    pub fn path(&self, last: u32) -> Result<Vec<u32>> {
        self.turn(last)?;
        let above = |&row: &u32| self.turns.get(row as usize).map(|turn| turn.parent).filter(|&parent| parent != NONE);
        let mut path: Vec<u32> = std::iter::successors(Some(last), above).collect();
        path.reverse();
        Ok(path)
    }

    /// The leaf with the largest mean value, among leaves with a value; ties go to the first leaf.
    pub fn best_leaf(&self) -> Option<u32> {
        let worth = |row: &u32| self.turns[*row as usize].total / f64::from(self.turns[*row as usize].visits);
        let leaves = (0..self.turns.len() as u32)
            .filter(|&row| self.turns[row as usize].children.is_empty() && self.turns[row as usize].visits > 0);
        leaves.reduce(|best, row| if worth(&row) > worth(&best) { row } else { best })
    }

    /// The turns that follow a turn; for [`NONE`], the first turns of all paths.
    pub fn children(&self, row: u32) -> &[u32] {
        self.turns.get(row as usize).map_or(&self.roots, |turn| &turn.children)
    }
}
