//! Columns with the votes of each group brought together.

use super::columns::Columns;
use super::moments::{Extent, Moments, Statistics};
use crate::members::Members;
use crate::par::{self, PIECE};
use crate::{Float, Result};

/// The votes of each group.
#[derive(Debug)]
pub(crate) struct Grouped<'a, T> {
    columns: Columns<'a, T>,
    places: Places,
}

/// Where the rows of each group stand.
#[derive(Debug)]
enum Places {
    /// Together already, between these rows, with those that do not vote.
    Runs(Vec<u32>),
    /// Anywhere.
    Spread(Members),
}

impl<'a, T: Float> Columns<'a, T> {
    /// The votes of each group, of checked columns without units.
    pub(crate) fn grouped(self, count: usize, sorted: bool) -> Grouped<'a, T> {
        let places = if sorted {
            let mut starts = vec![0; count + 1];
            let mut group = 0;
            for (row, &id) in self.groups.iter().enumerate() {
                while group < id as usize {
                    group += 1;
                    starts[group] = row as u32;
                }
            }
            // Ranks may have no rows of the last groups.
            starts[group + 1..].fill(self.groups.len() as u32);
            Places::Runs(starts)
        } else {
            let of = |(row, &group): (usize, &u32)| if self.votes(row) { group } else { u32::MAX };
            Places::Spread(Members::new(self.groups.iter().enumerate().map(of), count))
        };
        Grouped { columns: self, places }
    }
}

impl<T: Float> Grouped<'_, T> {
    /// Where the members of each group start, and where the last end.
    fn starts(&self) -> &[u32] {
        match &self.places {
            Places::Runs(starts) => starts,
            Places::Spread(members) => members.offsets(),
        }
    }

    /// Does some work on every group and gives the results in the order of the groups.
    pub(crate) fn each<R: Send>(&self, work: impl Fn(&mut Group<'_, '_, T>) -> Result<R> + Sync) -> Result<Vec<R>> {
        let (starts, mut pieces, mut first) = (self.starts(), Vec::new(), 0);
        while first + 1 < starts.len() {
            let end = u64::from(starts[first]) + PIECE as u64;
            let last = first + starts[first + 1..].partition_point(|&start| u64::from(start) <= end);
            let last = last.max(first + 1);
            pieces.push(first..last);
            first = last;
        }
        let done = par::each(pieces, |groups| {
            let mut group = Group { columns: self, index: 0, votes: Votes::default() };
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
        match &self.places {
            Places::Runs(_) if weights.is_none() && valid.is_none() => {
                votes.values.extend(values[places.clone()].iter().map(|value| value.to_f64()));
                votes.rows.extend(places.start as u32..places.end as u32);
            }
            Places::Runs(_) => {
                votes.rows.extend(places.filter(|&row| self.columns.votes(row)).map(|row| row as u32));
            }
            Places::Spread(members) => votes.rows.extend_from_slice(&members.all()[places]),
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
pub(crate) struct Group<'g, 'a, T> {
    columns: &'g Grouped<'a, T>,
    index: usize,
    votes: Votes,
}

impl<T: Float> Group<'_, '_, T> {
    fn places(&self) -> std::ops::Range<usize> {
        let starts = self.columns.starts();
        starts[self.index] as usize..starts[self.index + 1] as usize
    }

    /// Its id.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Its votes, in row order.
    pub(crate) fn votes(&mut self) -> &mut Votes {
        self.columns.read(self.places(), &mut self.votes);
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
            self.columns.read(piece, &mut votes);
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
