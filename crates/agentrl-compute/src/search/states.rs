//! States of a search: which are solved or failed, and their distance to a solved end.

use std::collections::VecDeque;

#[cfg(doc)]
use super::graph::NONE;
use super::graph::{Search, State, Status, UNSOLVED};

impl Search {
    /// Number of states.
    pub fn states(&self) -> usize {
        self.states.len()
    }

    /// Return the status of a state. It depends on the turns, but not on their order:
    ///
    /// ```text
    /// Solved: a solved end, or a turn that was tried in it leads to a solved state
    /// Failed: an unsolved end, or turns were tried in it and all lead to failed states that do not fail because of it
    /// ```
    pub fn status(&self, state: u32) -> Status {
        let state = &self.states[state as usize];
        match (state.distance, state.failed) {
            (UNSOLVED, true) => Status::Failed,
            (UNSOLVED, false) => Status::Open,
            _ => Status::Solved,
        }
    }

    /// The fewest turns from a state to a solved end; [`UNSOLVED`] if no path is known.
    pub fn distance(&self, state: u32) -> u32 {
        self.states[state as usize].distance
    }

    /// The turn that first reached a state; [`NONE`] for a state in which an episode begins.
    pub fn first(&self, state: u32) -> u32 {
        self.states[state as usize].first
    }

    /// Whether a state is the end of an episode.
    pub fn ended(&self, state: u32) -> bool {
        self.states[state as usize].ended
    }

    /// The turns that were tried in a state.
    pub fn tried(&self, state: u32) -> &[u32] {
        &self.states[state as usize].tried
    }

    /// Mark a state as solved although no turn ended there.
    pub fn solve(&mut self, state: u32) {
        self.near(state, 0);
    }

    /// Update the status of all states that may have changed.
    pub fn settle(&mut self) {
        while let Some(row) = self.dirty.pop() {
            let state = &self.states[row as usize];
            let failed = state.distance == UNSOLVED && !state.ended && !state.tried.is_empty() && state.hopes == 0;
            if state.ended || failed == state.failed {
                continue;
            }
            self.states[row as usize].failed = failed;
            for place in 0..self.states[row as usize].reached.len() {
                let before = self.turns[self.states[row as usize].reached[place] as usize].before;
                let hopes = &mut self.states[before as usize].hopes;
                *hopes = if failed { *hopes - 1 } else { *hopes + 1 };
                self.dirty.push(before);
            }
        }
    }

    /// The turns of a shortest path from an initial state of episodes to a solved end; empty if no path is known.
    pub fn solution(&self) -> Vec<u32> {
        let nearest = |rows: &[u32]| {
            let away = |&&row: &&u32| self.distance(self.turns[row as usize].after);
            rows.iter().min_by_key(away).copied().filter(|row| away(&row) != UNSOLVED)
        };
        let mut way = Vec::new();
        let begins = self.roots.iter().map(|&row| self.turns[row as usize].before);
        let begin = begins.min_by_key(|&state| self.distance(state)).filter(|&state| self.distance(state) != 0);
        let mut next = begin.and_then(|state| nearest(self.tried(state)));
        while let Some(row) = next {
            way.push(row);
            let after = self.turns[row as usize].after;
            next = if self.distance(after) == 0 { None } else { nearest(self.tried(after)) };
        }
        way
    }

    /// Pairs for preference learning: each turn of the [`Search::solution`] with each turn that was tried in the same
    /// state and ended the episode unsolved.
    pub fn pairs(&self) -> Vec<(u32, u32)> {
        let lost = |&other: &u32| {
            let after = self.turns[other as usize].after;
            self.ended(after) && self.distance(after) == UNSOLVED
        };
        let of = |row: u32| {
            self.tried(self.turns[row as usize].before).iter().copied().filter(lost).map(move |other| (row, other))
        };
        self.solution().into_iter().flat_map(of).collect()
    }

    /// Return the row of the state with a key; a new state stores `first` as the turn that reached it.
    pub(super) fn state_of(&mut self, key: u128, first: u32) -> u32 {
        let next = self.states.len() as u32;
        let row = *self.known.entry(key).or_insert(next);
        if row == next {
            self.states.push(State::new(first, false));
        }
        row
    }

    /// Add an end and return its row.
    pub(super) fn end_of(&mut self, solved: bool, first: u32) -> u32 {
        let state = State { failed: !solved, distance: if solved { 0 } else { UNSOLVED }, ..State::new(first, true) };
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    /// Add a new turn to the states before and after it.
    pub(super) fn join(&mut self, row: u32) {
        let (before, after) = (self.turns[row as usize].before, self.turns[row as usize].after);
        self.doubt(before);
        self.states[after as usize].reached.push(row);
        self.states[before as usize].tried.push(row);
        self.states[before as usize].hopes += u32::from(!self.states[after as usize].failed);
        self.dirty.push(before);
        if let Some(distance) = self.distance(after).checked_add(1) {
            self.near(before, distance);
        }
    }

    /// Revoke the failure of a state, and all failures that follow from it, before another turn is tried in it. The
    /// turn may lead back to the state, and no state fails because of itself.
    fn doubt(&mut self, state: u32) {
        let mut doubtful = vec![state];
        while let Some(row) = doubtful.pop() {
            if self.states[row as usize].ended || !std::mem::take(&mut self.states[row as usize].failed) {
                continue;
            }
            self.dirty.push(row);
            for place in 0..self.states[row as usize].reached.len() {
                let before = self.turns[self.states[row as usize].reached[place] as usize].before;
                self.states[before as usize].hopes += 1;
                doubtful.push(before);
            }
        }
    }

    /// Lower the distance of a state to a solved end, and propagate it: the states before it are one turn further away.
    fn near(&mut self, state: u32, distance: u32) {
        let mut queue = VecDeque::from([(state, distance)]);
        while let Some((row, distance)) = queue.pop_front() {
            if distance >= self.states[row as usize].distance {
                continue;
            }
            self.states[row as usize].distance = distance;
            self.dirty.push(row);
            let turns = &self.turns;
            queue.extend(
                self.states[row as usize].reached.iter().map(|&turn| (turns[turn as usize].before, distance + 1)),
            );
        }
    }
}
