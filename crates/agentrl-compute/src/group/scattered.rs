//! Votes brought together from rows that stand anywhere.
//!
//! A row's group is far from its neighbour's, so what is known of a group would be fetched from slow memory for each row.
//! Hence two steps, both of which read and write along: pieces of rows are sorted into buckets of neighbouring groups, and
//! later each bucket, which is small enough for a core's own memory, into its groups, or straight to their lanes.

use std::ops::Range;

use super::columns::Columns;
use super::lanes::{self, Sink};
use super::votes::Buffer;
use crate::keys::{Ids, LabelRange};
use crate::{Float, Result, thread_pool};

/// Votes of a bucket.
const BUCKET: usize = 1 << 13;

/// Number of buckets that a piece can write to at once without losing time.
const BUCKETS: usize = 1 << 8;

/// Bits that a group's place in its bucket and a row's in its piece have at most.
const BITS: u32 = u16::BITS;

const _: () = assert!(thread_pool::PIECE <= 1 << BITS);

/// Rows that are few enough to be sorted into their groups at once, by one thread: several would be woken for each of several
/// passes over little more than a piece.
pub(super) const FEW: usize = 2 * thread_pool::PIECE;

/// The group of each row.
#[derive(Clone, Copy)]
pub(super) enum Groups<'a> {
    Given(&'a [u32]),
    /// Made of ids that are close together, as they are read.
    Labels(&'a dyn Ids, &'a LabelRange),
}

impl Groups<'_> {
    /// Those of neighbouring rows: as they stand, or read into a buffer.
    pub(super) fn read<'b>(&'b self, rows: Range<usize>, buffer: &'b mut Vec<u32>) -> &'b [u32] {
        match self {
            Self::Given(groups) => &groups[rows],
            Self::Labels(ids, range) => {
                buffer.clear();
                ids.read(rows, range, buffer);
                buffer
            }
        }
    }
}

/// The votes in buckets of neighbouring groups.
#[derive(Debug)]
pub(super) struct Scattered<'a, T> {
    /// A group's bucket is its id without these last bits.
    bits: u32,
    groups: usize,
    /// None where there is one bucket, which is read from the columns.
    pieces: Vec<Piece<'a, T>>,
}

/// The votes of some neighbouring rows, bucket after bucket, in row order within each.
#[derive(Debug)]
struct Piece<'a, T> {
    first_row: u32,
    /// The last bits of each vote's group.
    groups: Vec<u16>,
    values: Room<'a, T>,
    /// How far each vote's row is from the first; none where nobody asks for rows.
    rows: Vec<u16>,
    /// Where each bucket starts, and where the last ends.
    starts: Vec<u32>,
}

/// Where values are brought to.
#[derive(Debug)]
enum Room<'a, T> {
    Own(Vec<T>),
    Lent(&'a mut [T]),
}

impl<T> Room<'_, T> {
    fn values(&self) -> &[T] {
        match self {
            Self::Own(values) => values,
            Self::Lent(values) => values,
        }
    }

    fn values_mut(&mut self) -> &mut [T] {
        match self {
            Self::Own(values) => values,
            Self::Lent(values) => values,
        }
    }
}

impl<'a, T: Float> Scattered<'a, T> {
    /// The votes of columns of so many groups, of which only values and weights are yet to be checked; with their rows or
    /// without, and with a column of as many rows whose room may be used.
    pub(super) fn new(
        columns: &Columns<'_, T>,
        ids: Groups<'_>,
        groups: usize,
        with_rows: bool,
        room: Option<&'a mut [T]>,
    ) -> Result<Self> {
        let rows = columns.values.len();
        if rows <= FEW {
            columns.check_piece(0..rows)?;
            return Ok(Self { bits: groups.next_power_of_two().trailing_zeros(), groups, pieces: Vec::new() });
        }
        let buckets = rows.div_ceil(BUCKET).clamp(1, BUCKETS);
        let bits = groups.div_ceil(buckets).next_power_of_two().trailing_zeros().min(BITS);
        let buckets = groups.div_ceil(1 << bits);
        let mut room = room.map(|room| room.chunks_mut(thread_pool::PIECE));
        let lent = |rows: Range<usize>| (rows, room.as_mut().and_then(Iterator::next));
        let pieces = thread_pool::map(thread_pool::pieces(rows).into_iter().map(lent).collect(), |(rows, lent)| {
            columns.check_piece(rows.clone())?;
            let own = || Room::Own(vec![T::from_f64(0.0); rows.len()]);
            let piece = Piece {
                first_row: rows.start as u32,
                groups: vec![0; rows.len()],
                values: lent.map_or_else(own, Room::Lent),
                rows: vec![0; if with_rows { rows.len() } else { 0 }],
                starts: vec![0; buckets + 1],
            };
            let mut labels = Vec::new();
            Ok(piece.filled(columns, ids.read(rows.clone(), &mut labels), rows, bits))
        })?;
        Ok(Self { bits, groups, pieces })
    }

    /// The groups of each bucket.
    pub(super) fn buckets(&self) -> Vec<Range<usize>> {
        let size = 1 << self.bits;
        (0..self.groups).step_by(size).map(|first| first..self.groups.min(first + size)).collect()
    }

    /// Makes the statistics of a bucket's groups, of votes without weights; none, and false, where some have far more votes than
    /// others.
    pub(super) fn statistics(
        &self,
        groups: &Range<usize>,
        columns: &Columns<'_, T>,
        ddof: u32,
        sink: &mut impl Sink,
    ) -> bool {
        let usual = |votes: usize| votes.div_ceil(groups.len());
        if !self.pieces.is_empty() {
            let bucket = groups.start >> self.bits;
            let size = self.pieces.iter().map(|piece| piece.bucket(bucket).len()).sum();
            let votes = self.pieces.iter().flat_map(|piece| piece.votes(bucket));
            return lanes::of_votes(&votes, groups.len(), usual(size), ddof, sink);
        }
        let votes = columns.groups.iter().zip(columns.values).map(|(&group, value)| (group, value.to_f64()));
        let usual = usual(columns.values.len());
        let Some(valid) = columns.valid else { return lanes::of_votes(&votes, groups.len(), usual, ddof, sink) };
        let valid = votes.zip(valid).filter_map(|(vote, &valid)| valid.then_some(vote));
        lanes::of_votes(&valid, groups.len(), usual, ddof, sink)
    }

    /// Reads the votes of a bucket's groups, their weights, and if asked to their rows, which are only known of a few votes or
    /// where all were brought together with them.
    pub(super) fn read(&self, groups: &Range<usize>, columns: &Columns<'_, T>, with_rows: bool, buffer: &mut Buffer) {
        let bucket = groups.start >> self.bits;
        let Buffer { starts, values, weights, rows, .. } = buffer;
        starts.resize(groups.len() + 1, 0);
        if self.pieces.is_empty() {
            return read_few(columns, with_rows, buffer);
        }
        let with_rows = with_rows && self.pieces.iter().any(|piece| !piece.rows.is_empty());
        // First brought together as they stand: copies wait for many pieces of slow memory at once, what works on each vote for
        // one after the other.
        let (mut own, mut unsorted) = (Vec::with_capacity(2 * BUCKET), Vec::with_capacity(2 * BUCKET));
        for piece in &self.pieces {
            let votes = piece.bucket(bucket);
            own.extend_from_slice(&piece.groups[votes.clone()]);
            unsorted.extend_from_slice(&piece.values.values()[votes]);
        }
        for &group in &own {
            starts[usize::from(group)] += 1;
        }
        let sum = ends(starts);
        values.resize(sum, 0.0);
        for (&group, value) in own.iter().zip(&unsorted).rev() {
            let place = &mut starts[usize::from(group)];
            *place -= 1;
            values[*place as usize] = value.to_f64();
        }
        if with_rows {
            rows.resize(sum, 0);
            let mut places = starts.clone();
            for (&group, row) in own.iter().zip(self.pieces.iter().flat_map(|piece| piece.rows_of(bucket))) {
                let place = &mut places[usize::from(group)];
                rows[*place as usize] = row;
                *place += 1;
            }
        }
        if let Some(column) = columns.weights {
            weights.extend(rows.iter().map(|&row| column[row as usize]));
        }
    }
}

/// Reads the votes of all groups of a few rows.
fn read_few<T: Float>(columns: &Columns<'_, T>, with_rows: bool, buffer: &mut Buffer) {
    let Buffer { starts, values, weights, rows, .. } = buffer;
    let votes = (0..columns.values.len()).filter(|&row| columns.votes(row));
    votes.clone().for_each(|row| starts[columns.groups[row] as usize] += 1);
    let count = ends(starts);
    values.resize(count, 0.0);
    rows.resize(if with_rows { count } else { 0 }, 0);
    for row in votes.rev() {
        let place = &mut starts[columns.groups[row] as usize];
        *place -= 1;
        values[*place as usize] = columns.values[row].to_f64();
        if with_rows {
            rows[*place as usize] = row as u32;
        }
    }
    if let Some(column) = columns.weights {
        weights.extend(rows.iter().map(|&row| column[row as usize]));
    }
}

/// Where each run ends, of the lengths of all; their sum.
fn ends(lengths: &mut [u32]) -> usize {
    let mut sum = 0;
    for length in lengths {
        sum += *length;
        *length = sum;
    }
    sum as usize
}

impl<T: Float> Piece<'_, T> {
    fn filled(mut self, columns: &Columns<'_, T>, groups: &[u32], rows: Range<usize>, bits: u32) -> Self {
        if columns.weights.is_none() && columns.valid.is_none() {
            self.fill(columns, groups, rows, bits, |_| true);
        } else {
            self.fill(columns, groups, rows, bits, |row| columns.votes(row));
        }
        self
    }

    #[inline(always)]
    fn fill(
        &mut self,
        columns: &Columns<'_, T>,
        groups: &[u32],
        rows: Range<usize>,
        bits: u32,
        votes: impl Fn(usize) -> bool,
    ) {
        let starts = &mut self.starts[..];
        for (row, &group) in rows.clone().zip(groups) {
            starts[(group >> bits) as usize] += u32::from(votes(row));
        }
        ends(starts);
        let (labels, values, places) = (&mut self.groups[..], self.values.values_mut(), &mut self.rows[..]);
        // What is written here and there is first fetched from slow memory, along.
        values.fill(T::from_f64(0.0));
        let mask = (1 << bits) - 1;
        for (place, (&value, &group)) in columns.values[rows.clone()].iter().zip(groups).enumerate().rev() {
            if votes(rows.start + place) {
                let start = &mut starts[(group >> bits) as usize];
                let next = *start - 1;
                *start = next;
                labels[next as usize] = (group & mask) as u16;
                values[next as usize] = value;
                if let Some(row) = places.get_mut(next as usize) {
                    *row = place as u16;
                }
            }
        }
    }

    fn bucket(&self, bucket: usize) -> Range<usize> {
        self.starts[bucket] as usize..self.starts[bucket + 1] as usize
    }

    /// The rows of a bucket's votes.
    fn rows_of(&self, bucket: usize) -> impl Iterator<Item = u32> {
        self.rows[self.bucket(bucket)].iter().map(|&row| self.first_row + u32::from(row))
    }

    /// The votes of a bucket, each with the place of its group among those of the bucket.
    fn votes(&self, bucket: usize) -> impl Iterator<Item = (u32, f64)> + Clone {
        let votes = self.bucket(bucket);
        let groups = self.groups[votes.clone()].iter();
        groups.zip(&self.values.values()[votes]).map(|(&group, value)| (group.into(), value.to_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::arg_extreme;
    use crate::rng::uniform;

    /// Rows of many pieces and buckets find their way back: the first row of each group that has its largest value.
    #[test]
    fn votes_keep_their_rows() -> Result<()> {
        let rows = 3 * thread_pool::PIECE + 5;
        let draw = |seed: u64, row: usize| uniform(seed, row as u64);
        let groups: Vec<u32> = (0..rows).map(|row| (draw(1, row) * 20_000.0) as u32).collect();
        // Few values, so that several rows have the largest.
        let values: Vec<f64> = (0..rows).map(|row| (draw(2, row) * 4.0).floor()).collect();
        let valid: Vec<bool> = (0..rows).map(|row| draw(3, row) < 0.7).collect();
        let mut expected: Vec<Option<u32>> = vec![None; groups.iter().max().map_or(0, |&group| group as usize + 1)];
        for row in (0..rows).filter(|&row| valid[row]) {
            let best = &mut expected[groups[row] as usize];
            if best.is_none_or(|best| values[row] > values[best as usize]) {
                *best = Some(row as u32);
            }
        }
        let columns = Columns { valid: Some(&valid), ..Columns::new("values", &values, &groups) };
        for threads in [1, 4] {
            thread_pool::set_threads(threads)?;
            assert!(arg_extreme(&columns, true)? == expected, "{threads}");
        }
        Ok(())
    }
}
