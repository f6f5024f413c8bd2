//! The votes of each group, brought together.

use super::columns::Columns;
use super::moments::{Extent, Moments, Statistics};
use crate::par::{self, PIECE};
use crate::{Float, Result};

/// The rows of each group that vote.
#[derive(Debug)]
pub(crate) struct Members<'a, T> {
    columns: Columns<'a, T>,
    /// Where the members of each group start, and where the last end.
    starts: Vec<u32>,
    /// Rows by group, in row order; `None` where they stand that way already, then with those that do not vote.
    order: Option<Vec<u32>>,
}

impl<'a, T: Float> Columns<'a, T> {
    /// The votes of each group, of checked columns without units.
    pub(crate) fn members(self, count: usize, sorted: bool) -> Members<'a, T> {
        let mut starts = vec![0; count + 1];
        if sorted {
            let mut group = 0;
            for (row, &id) in self.groups.iter().enumerate() {
                while group < id as usize {
                    group += 1;
                    starts[group] = row as u32;
                }
            }
            starts[count] = self.groups.len() as u32;
            return Members { columns: self, starts, order: None };
        }
        for (row, &id) in self.groups.iter().enumerate() {
            starts[id as usize + 1] += u32::from(self.votes(row));
        }
        let mut total = 0;
        for start in &mut starts {
            total += *start;
            *start = total;
        }
        let mut next = starts.clone();
        let mut order = vec![0; total as usize];
        for (row, &id) in self.groups.iter().enumerate() {
            if self.votes(row) {
                let place = &mut next[id as usize];
                order[*place as usize] = row as u32;
                *place += 1;
            }
        }
        Members { columns: self, starts, order: Some(order) }
    }
}

impl<T: Float> Members<'_, T> {
    /// Number of groups.
    pub(crate) fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Does some work on every group and gives the results in the order of the groups.
    pub(crate) fn each<R: Send>(&self, work: impl Fn(&mut Group<'_, '_, T>) -> Result<R> + Sync) -> Result<Vec<R>> {
        let mut pieces = Vec::new();
        let mut first = 0;
        while first < self.count() {
            let end = u64::from(self.starts[first]) + PIECE as u64;
            let last = first + self.starts[first + 1..].partition_point(|&start| u64::from(start) <= end);
            let last = last.max(first + 1).min(self.count());
            pieces.push(first..last);
            first = last;
        }
        let done = par::each(pieces, |groups| {
            let mut group = Group { members: self, index: 0, votes: Votes::default() };
            let work = groups.map(|index| {
                group.index = index;
                work(&mut group)
            });
            work.collect::<Result<Vec<R>>>()
        })?;
        Ok(done.into_iter().flatten().collect())
    }

    /// Reads the votes of some places.
    fn read(&self, places: std::ops::Range<usize>, votes: &mut Votes) {
        votes.values.clear();
        votes.weights.clear();
        votes.rows.clear();
        let Columns { values, weights, valid, .. } = self.columns;
        match (&self.order, weights, valid) {
            (None, None, None) => {
                votes.values.extend(values[places.clone()].iter().map(|value| value.to_f64()));
                votes.rows.extend(places.start as u32..places.end as u32);
            }
            (None, ..) => votes.rows.extend(places.filter(|&row| self.columns.votes(row)).map(|row| row as u32)),
            (Some(order), ..) => votes.rows.extend_from_slice(&order[places]),
        }
        if votes.values.len() < votes.rows.len() {
            votes.values.extend(votes.rows.iter().map(|&row| values[row as usize].to_f64()));
        }
        if let Some(weights) = weights {
            votes.weights.extend(votes.rows.iter().map(|&row| weights[row as usize]));
        }
    }
}

/// Values and weights of some votes, and the rows that they come from; no weights where all weigh the same.
#[derive(Debug, Default)]
pub(crate) struct Votes {
    pub(crate) values: Vec<f64>,
    pub(crate) weights: Vec<f64>,
    pub(crate) rows: Vec<u32>,
}

/// One group.
#[derive(Debug)]
pub(crate) struct Group<'m, 'a, T> {
    members: &'m Members<'a, T>,
    index: usize,
    votes: Votes,
}

impl<T: Float> Group<'_, '_, T> {
    fn places(&self) -> std::ops::Range<usize> {
        self.members.starts[self.index] as usize..self.members.starts[self.index + 1] as usize
    }

    /// Its votes, in row order.
    pub(crate) fn votes(&mut self) -> &mut Votes {
        self.members.read(self.places(), &mut self.votes);
        &mut self.votes
    }

    /// Its statistics.
    pub(crate) fn statistics(&mut self, ddof: u32) -> Result<Statistics> {
        let places = self.places();
        if places.len() <= PIECE {
            let Votes { values, weights, .. } = self.votes();
            let extent = Extent::of(values, weights);
            return Ok(Statistics::finish(extent, Moments::of(extent, values, weights), ddof));
        }
        // Large groups are read in pieces, twice: their votes are never all in memory.
        let pieces = || places.clone().step_by(PIECE).map(|start| start..places.end.min(start + PIECE)).collect();
        let read = |piece| {
            let mut votes = Votes::default();
            self.members.read(piece, &mut votes);
            votes
        };
        let extents = par::each(pieces(), |piece| {
            let Votes { values, weights, .. } = read(piece);
            Ok(Extent::of(&values, &weights))
        })?;
        let extent = extents.into_iter().fold(Extent::EMPTY, Extent::merge);
        let moments = par::each(pieces(), |piece| {
            let Votes { values, weights, .. } = read(piece);
            Ok(Moments::of(extent, &values, &weights))
        })?;
        Ok(Statistics::finish(extent, moments.into_iter().fold(Moments::default(), Moments::merge), ddof))
    }
}
