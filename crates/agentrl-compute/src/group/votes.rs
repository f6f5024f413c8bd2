//! Votes, brought together: what is read of neighbouring groups, and of one of them.

use super::moments::Statistics;

/// The votes of neighbouring groups, group after group.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Where the votes of each group start, and where the last end.
    pub(super) starts: Vec<u32>,
    pub(super) values: Vec<f64>,
    /// None if all weigh the same.
    pub(super) weights: Vec<f64>,
    /// The row of each vote; none if they count up from `first`.
    pub(super) rows: Vec<u32>,
    pub(super) first: u32,
    pub(super) read: Read,
    /// Statistics of all groups, once those of one were asked for.
    pub(super) found: Vec<Statistics>,
}

/// The parts of its votes that a buffer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) enum Read {
    #[default]
    Nothing,
    Values,
    Rows,
}

impl Buffer {
    pub(super) fn clear(&mut self) {
        self.starts.clear();
        self.values.clear();
        self.weights.clear();
        self.rows.clear();
    }

    #[inline]
    pub(super) fn votes(&mut self, place: usize) -> Votes<'_> {
        let votes = self.starts[place] as usize..self.starts[place + 1] as usize;
        Votes {
            weights: self.weights.get(votes.clone()).unwrap_or(&[]),
            rows: self.rows.get(votes.clone()).unwrap_or(&[]),
            first: self.first + votes.start as u32,
            values: &mut self.values[votes],
        }
    }
}

/// The votes of one group, in row order.
#[derive(Debug)]
pub(crate) struct Votes<'b> {
    pub(crate) values: &'b mut [f64],
    /// None if all weigh the same.
    pub(crate) weights: &'b [f64],
    rows: &'b [u32],
    first: u32,
}

impl Votes<'_> {
    /// The row of a vote.
    pub(crate) fn row(&self, vote: usize) -> u32 {
        self.rows.get(vote).copied().unwrap_or(self.first + vote as u32)
    }
}

#[cfg(test)]
impl<'b> Votes<'b> {
    /// Votes of no rows in particular.
    pub(crate) fn of(values: &'b mut [f64], weights: &'b [f64]) -> Self {
        Self { values, weights, rows: &[], first: 0 }
    }
}
