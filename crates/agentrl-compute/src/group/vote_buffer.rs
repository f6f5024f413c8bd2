//! Buffers for the votes of neighbouring groups, and views of the votes of one group.

use super::moments::Statistics;

/// Votes of neighbouring groups, group after group.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Start of each group's votes, and the end of the last.
    pub(super) starts: Vec<u32>,
    pub(super) values: Vec<f64>,
    /// Empty without weights.
    pub(super) weights: Vec<f64>,
    /// The row of each vote; empty if rows count up from `first`.
    pub(super) rows: Vec<u32>,
    pub(super) first: u32,
    pub(super) read: Read,
    /// Statistics of all groups, after those of one were requested.
    pub(super) found: Vec<Statistics>,
}

/// Parts of the votes that a buffer holds.
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
    /// Empty without weights.
    pub(crate) weights: &'b [f64],
    rows: &'b [u32],
    first: u32,
}

impl Votes<'_> {
    /// Return the row of a vote.
    pub(crate) fn row(&self, vote: usize) -> u32 {
        self.rows.get(vote).copied().unwrap_or(self.first + vote as u32)
    }
}

#[cfg(test)]
impl<'b> Votes<'b> {
    /// Create votes without row numbers.
    pub(crate) fn of(values: &'b mut [f64], weights: &'b [f64]) -> Self {
        Self { values, weights, rows: &[], first: 0 }
    }
}
