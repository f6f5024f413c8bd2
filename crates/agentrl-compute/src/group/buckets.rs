//! Votes of groups with scattered rows, sorted into buckets of neighbouring groups.
//!
//! If neighbouring rows have distant groups, row-wise accumulation fetches a group's state from slow memory for each
//! row. Two passes avoid this; both read and write in order. The first sorts each piece of rows into buckets
//! ([`Buckets::new`]). The second sorts each bucket, which fits a core's cache, into its groups ([`Buckets::read`]) or
//! directly into their lanes ([`Buckets::statistics`]). A group's bucket is its id without the lowest `bits` bits;
//! those bits are its index in the bucket.

use std::ops::Range;

use super::columns::Columns;
use super::lanes::{self, Sink};
use super::vote_buffer::Buffer;
use crate::keys::{Ids, LabelRange};
use crate::{Float, Result, thread_pool};

/// Average number of votes of a bucket, unless there would be too many buckets.
const VOTES_PER_BUCKET: usize = 1 << 13;

/// Largest number of buckets: a piece can write to this many at once without losing time.
const MAX_BUCKETS: usize = 1 << 8;

/// Most bits of a group's index in its bucket, and of a row's index in its piece.
const MAX_BITS: u32 = u16::BITS;

const _: () = assert!(thread_pool::PIECE <= 1 << MAX_BITS);

/// Largest number of rows that one thread sorts into their groups as a single bucket. For little more than a piece,
/// waking several threads for each pass costs more.
pub(super) const SINGLE_BUCKET_ROWS: usize = 2 * thread_pool::PIECE;

/// The source of each row's group id.
#[derive(Clone, Copy)]
pub(super) enum GroupIds<'a> {
    /// A column of dense ids.
    Column(&'a [u32]),
    /// Labels of ids that are close together, computed on reading.
    Labels(&'a dyn Ids, &'a LabelRange),
}

impl GroupIds<'_> {
    /// Return the ids of a range of rows: a slice of the column, or labels that are read into a buffer.
    pub(super) fn read<'b>(&'b self, rows: Range<usize>, buffer: &'b mut Vec<u32>) -> &'b [u32] {
        match self {
            Self::Column(groups) => &groups[rows],
            Self::Labels(ids, range) => {
                buffer.clear();
                ids.read(rows, range, buffer);
                buffer
            }
        }
    }
}

/// Votes in buckets of neighbouring groups.
#[derive(Debug)]
pub(super) struct Buckets<'a, T> {
    /// Number of lowest bits that are removed from a group's id to get its bucket.
    bits: u32,
    groups: usize,
    /// Empty if there is a single bucket, which is read from the columns.
    pieces: Vec<BucketedPiece<'a, T>>,
}

/// Votes of a piece of rows, bucket after bucket, in row order within each bucket.
#[derive(Debug)]
struct BucketedPiece<'a, T> {
    first_row: u32,
    /// The lowest bits of each vote's group: its index in the bucket.
    groups: Vec<u16>,
    values: ValueBuffer<'a, T>,
    /// Offset of each vote's row from `first_row`; empty if rows are not needed.
    rows: Vec<u16>,
    /// Start of each bucket, and the end of the last.
    starts: Vec<u32>,
}

/// Memory for the sorted values: owned, or a column of the caller that may be overwritten.
#[derive(Debug)]
enum ValueBuffer<'a, T> {
    Owned(Vec<T>),
    Borrowed(&'a mut [T]),
}

impl<T> ValueBuffer<'_, T> {
    fn values(&self) -> &[T] {
        match self {
            Self::Owned(values) => values,
            Self::Borrowed(values) => values,
        }
    }

    fn values_mut(&mut self) -> &mut [T] {
        match self {
            Self::Owned(values) => values,
            Self::Borrowed(values) => values,
        }
    }
}

impl<'a, T: Float> Buckets<'a, T> {
    /// Sort the votes of columns into buckets, with or without their rows. Ids must be checked before; values and
    /// weights are checked here. `spare` is a column with as many rows that may be overwritten.
    pub(super) fn new(
        columns: &Columns<'_, T>,
        ids: GroupIds<'_>,
        groups: usize,
        with_rows: bool,
        spare: Option<&'a mut [T]>,
    ) -> Result<Self> {
        let rows = columns.values.len();
        if rows <= SINGLE_BUCKET_ROWS {
            columns.check_piece(0..rows)?;
            return Ok(Self { bits: groups.next_power_of_two().trailing_zeros(), groups, pieces: Vec::new() });
        }
        let buckets = rows.div_ceil(VOTES_PER_BUCKET).clamp(1, MAX_BUCKETS);
        let bits = groups.div_ceil(buckets).next_power_of_two().trailing_zeros().min(MAX_BITS);
        let buckets = groups.div_ceil(1 << bits);
        let mut spare = spare.map(|spare| spare.chunks_mut(thread_pool::PIECE));
        let with_spare = |rows: Range<usize>| (rows, spare.as_mut().and_then(Iterator::next));
        let pieces =
            thread_pool::map(thread_pool::pieces(rows).into_iter().map(with_spare).collect(), |(rows, borrowed)| {
                columns.check_piece(rows.clone())?;
                let owned = || ValueBuffer::Owned(vec![T::from_f64(0.0); rows.len()]);
                let piece = BucketedPiece {
                    first_row: rows.start as u32,
                    groups: vec![0; rows.len()],
                    values: borrowed.map_or_else(owned, ValueBuffer::Borrowed),
                    rows: vec![0; if with_rows { rows.len() } else { 0 }],
                    starts: vec![0; buckets + 1],
                };
                let mut labels = Vec::new();
                Ok(piece.filled(columns, ids.read(rows.clone(), &mut labels), rows, bits))
            })?;
        Ok(Self { bits, groups, pieces })
    }

    /// Return the range of groups of each bucket.
    pub(super) fn buckets(&self) -> Vec<Range<usize>> {
        let size = 1 << self.bits;
        (0..self.groups).step_by(size).map(|first| first..self.groups.min(first + size)).collect()
    }

    /// Compute the statistics of a bucket's groups from votes without weights. Return false without computing any if
    /// there are few groups, or if some groups have far more votes than others.
    pub(super) fn statistics(
        &self,
        groups: &Range<usize>,
        columns: &Columns<'_, T>,
        ddof: u32,
        sink: &mut impl Sink,
    ) -> bool {
        let votes_per_group = |votes: usize| votes.div_ceil(groups.len());
        if !self.pieces.is_empty() {
            let bucket = groups.start >> self.bits;
            let size = self.pieces.iter().map(|piece| piece.bucket(bucket).len()).sum();
            let votes = self.pieces.iter().flat_map(|piece| piece.votes(bucket));
            return lanes::statistics_of_votes(&votes, groups.len(), votes_per_group(size), ddof, sink);
        }
        let votes = columns.groups.iter().zip(columns.values).map(|(&group, value)| (group, value.to_f64()));
        let votes_per_group = votes_per_group(columns.values.len());
        let Some(valid) = columns.valid else {
            return lanes::statistics_of_votes(&votes, groups.len(), votes_per_group, ddof, sink);
        };
        let valid = votes.zip(valid).filter_map(|(vote, &valid)| valid.then_some(vote));
        lanes::statistics_of_votes(&valid, groups.len(), votes_per_group, ddof, sink)
    }

    /// Read the votes of a bucket's groups, their weights, and, with `with_rows`, their rows. Rows are available for a
    /// single bucket, or if the buckets were created with rows.
    pub(super) fn read(&self, groups: &Range<usize>, columns: &Columns<'_, T>, with_rows: bool, buffer: &mut Buffer) {
        let bucket = groups.start >> self.bits;
        let Buffer { starts, values, weights, rows, .. } = buffer;
        starts.resize(groups.len() + 1, 0);
        if self.pieces.is_empty() {
            return read_single_bucket(columns, with_rows, buffer);
        }
        let with_rows = with_rows && self.pieces.iter().any(|piece| !piece.rows.is_empty());
        // Copy first: a copy fetches many cache lines of slow memory at once; work on each vote would fetch them one by
        // one.
        let (mut of_bucket, mut unsorted) =
            (Vec::with_capacity(2 * VOTES_PER_BUCKET), Vec::with_capacity(2 * VOTES_PER_BUCKET));
        for piece in &self.pieces {
            let votes = piece.bucket(bucket);
            of_bucket.extend_from_slice(&piece.groups[votes.clone()]);
            unsorted.extend_from_slice(&piece.values.values()[votes]);
        }
        for &group in &of_bucket {
            starts[usize::from(group)] += 1;
        }
        let sum = prefix_sums(starts);
        values.resize(sum, 0.0);
        for (&group, value) in of_bucket.iter().zip(&unsorted).rev() {
            let place = &mut starts[usize::from(group)];
            *place -= 1;
            values[*place as usize] = value.to_f64();
        }
        if with_rows {
            rows.resize(sum, 0);
            let mut places = starts.clone();
            for (&group, row) in of_bucket.iter().zip(self.pieces.iter().flat_map(|piece| piece.rows_of(bucket))) {
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

/// Read the votes of all groups, if the rows are few enough for a single bucket.
fn read_single_bucket<T: Float>(columns: &Columns<'_, T>, with_rows: bool, buffer: &mut Buffer) {
    let Buffer { starts, values, weights, rows, .. } = buffer;
    let votes = (0..columns.values.len()).filter(|&row| columns.votes(row));
    votes.clone().for_each(|row| starts[columns.groups[row] as usize] += 1);
    let count = prefix_sums(starts);
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

/// Replace lengths by their inclusive prefix sums, in place; return the total.
fn prefix_sums(lengths: &mut [u32]) -> usize {
    let mut sum = 0;
    for length in lengths {
        sum += *length;
        *length = sum;
    }
    sum as usize
}

impl<T: Float> BucketedPiece<'_, T> {
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
        prefix_sums(starts);
        let (labels, values, places) = (&mut self.groups[..], self.values.values_mut(), &mut self.rows[..]);
        // Scattered writes need their cache lines: fetch them in order first.
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

    /// Return the rows of a bucket's votes.
    fn rows_of(&self, bucket: usize) -> impl Iterator<Item = u32> {
        self.rows[self.bucket(bucket)].iter().map(|&row| self.first_row + u32::from(row))
    }

    /// Return the votes of a bucket, each with the index of its group in the bucket.
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

    /// Rows are preserved over many pieces and buckets: find the first row with the largest value of each group.
    #[test]
    fn votes_keep_their_rows() -> Result<()> {
        let rows = 3 * thread_pool::PIECE + 5;
        let draw = |seed: u64, row: usize| uniform(seed, row as u64);
        let groups: Vec<u32> = (0..rows).map(|row| (draw(1, row) * 20_000.0) as u32).collect();
        // Few different values, so that several rows have the largest.
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
