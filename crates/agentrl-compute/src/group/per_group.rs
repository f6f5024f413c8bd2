//! Work on the votes of each group, with contiguous or scattered rows.

use std::mem::take;
use std::ops::Range;

use super::buckets::{Buckets, GroupIds};
use super::columns::Columns;
use super::extent::Extent;
use super::lanes::{self, Sink};
use super::moments::{Moments, Statistics};
use super::vote_buffer::{Buffer, Read, Votes};
use crate::thread_pool::{self, PIECE};
use crate::{Error, Float, Result, simd};

/// Rows of a large group that are read at a time.
const ROWS_AT_ONCE: usize = 1 << 12;

/// Work on groups, with a result for each.
pub(super) trait Work<T, R>: Sync {
    /// Return the result of a group.
    fn on_group(&self, group: &mut Group<'_, '_, T>) -> Result<R>;

    /// Return the results of several groups at once; `None` if they must be computed one by one.
    fn on_piece(&self, _: &Grouped<'_, T>, _: &Range<usize>, _: &mut Buffer) -> Result<Option<Vec<R>>> {
        Ok(None)
    }
}

impl<T, R, F: Fn(&mut Group<'_, '_, T>) -> Result<R> + Sync> Work<T, R> for F {
    #[inline(always)]
    fn on_group(&self, group: &mut Group<'_, '_, T>) -> Result<R> {
        self(group)
    }
}

/// The votes of each group.
#[derive(Debug)]
pub(crate) struct Grouped<'a, T> {
    columns: Columns<'a, T>,
    rows: GroupedRows<'a, T>,
}

/// Row order, with the votes of scattered rows in buckets.
#[derive(Debug)]
enum GroupedRows<'a, T> {
    /// Group after group: the first row of each group and the end of the last. Includes rows that do not vote.
    Runs(Vec<u32>),
    /// In any order.
    Scattered(Buckets<'a, T>),
}

/// Row order of groups.
pub(super) enum RowOrder<'a> {
    /// Group after group: the first row of each group and the end of the last.
    Runs(Vec<u32>),
    /// In any order: the group of each row, and the number of groups.
    Anywhere(GroupIds<'a>, usize),
}

impl<'a, T: Float> Columns<'a, T> {
    /// Return the row order of `count` groups. Ids must be checked before.
    pub(super) fn row_order(&self, count: usize, sorted: bool) -> Result<RowOrder<'a>> {
        if sorted {
            starts(self, count).map(RowOrder::Runs)
        } else {
            Ok(RowOrder::Anywhere(GroupIds::Column(self.groups), count))
        }
    }

    /// Return the votes of each group, for columns without units. Ids must be checked before; values and weights are
    /// checked here.
    pub(crate) fn grouped(self, count: usize, sorted: bool) -> Result<Grouped<'a, T>> {
        self.votes_of(self.row_order(count, sorted)?, true, None)
    }

    fn votes_of(self, row_order: RowOrder<'_>, with_rows: bool, room: Option<&'a mut [T]>) -> Result<Grouped<'a, T>> {
        let rows = match row_order {
            RowOrder::Runs(starts) => GroupedRows::Runs(starts),
            RowOrder::Anywhere(groups, count) => {
                GroupedRows::Scattered(Buckets::new(&self, groups, count, with_rows, room)?)
            }
        };
        Ok(Grouped { columns: self, rows })
    }

    /// Fill a column, one value for each row, from the result of each row's group. `work` must not read the rows of its
    /// votes. `fill` gets the first row of its part of the column, the part, and the group result of each of its rows.
    /// `made` is the buffer for the results of all groups.
    pub(super) fn fill<R: Copy + Default + Send + Sync, O: Float>(
        &self,
        row_order: RowOrder<'_>,
        out: &mut [O],
        made: &mut Vec<R>,
        work: &impl Work<T, R>,
        fill: impl Fn(usize, &mut [O], &[R]) -> Result<()> + Sync,
    ) -> Result<()> {
        let (groups, count) = match row_order {
            RowOrder::Runs(_) => return self.votes_of(row_order, false, None)?.fill(out, work, fill),
            RowOrder::Anywhere(groups, count) => (groups, count),
        };
        made.clear();
        made.resize(count, R::default());
        // Until it is filled, the column of results holds the sorted values.
        let grouped = self.votes_of(row_order, self.weights.is_some(), T::own(out))?;
        let mut rest = &mut made[..];
        let own = |groups: Range<usize>| {
            let own = rest.split_off_mut(..groups.len()).unwrap_or_default();
            (groups, own)
        };
        let pieces = grouped.pieces().into_iter().map(own).collect();
        grouped.share(pieces, work, |_, own, made| {
            own.copy_from_slice(&made);
            Ok(())
        })?;
        fill_by_group(groups, out, made, fill)
    }
}

/// Return the first row of each group, and the number of rows; ids never decrease. Values and weights are checked.
fn starts<T: Float>(columns: &Columns<'_, T>, count: usize) -> Result<Vec<u32>> {
    let groups = columns.groups;
    let found = thread_pool::map(thread_pool::pieces(groups.len()), |piece| {
        columns.check_piece(piece.clone())?;
        // Covers the groups after the group of the row before. Rows are visited backwards, so a group's first row is
        // kept.
        let next = if piece.start == 0 { 0 } else { groups[piece.start - 1] + 1 };
        let mut starts = vec![u32::MAX; (groups[piece.end - 1] + 1 - next) as usize];
        for (row, &id) in (piece.start as u32..piece.end as u32).zip(&groups[piece.clone()]).rev() {
            if let Some(start) = starts.get_mut(id.wrapping_sub(next) as usize) {
                *start = row;
            }
        }
        // Other ranks can have groups without rows here: these start at the start of the next group.
        let mut after = piece.end as u32;
        for start in starts.iter_mut().rev() {
            after = after.min(*start);
            *start = after;
        }
        Ok(starts)
    })?;
    let mut starts = found.concat();
    starts.resize(count + 1, groups.len() as u32);
    Ok(starts)
}

/// Fill a column from the result of each row's group.
pub(super) fn fill_by_group<R: Copy + Sync, O: Send>(
    groups: GroupIds<'_>,
    out: &mut [O],
    made: &[R],
    fill: impl Fn(usize, &mut [O], &[R]) -> Result<()> + Sync,
) -> Result<()> {
    thread_pool::fill(out, |start, piece| {
        let mut labels = Vec::new();
        in_blocks(start, piece, |start, piece, of_rows| {
            let groups = groups.read(start..start + piece.len(), &mut labels);
            of_rows.extend(groups.iter().map(move |&group| made[group as usize]));
            fill(start, piece, of_rows)
        })
    })
}

/// Process a column block by block; `work` gets the first row of a block, the block, and an empty buffer.
fn in_blocks<R, O>(
    start: usize,
    out: &mut [O],
    mut work: impl FnMut(usize, &mut [O], &mut Vec<R>) -> Result<()>,
) -> Result<()> {
    let mut buffer = Vec::with_capacity(simd::BLOCK);
    for (start, block) in (start..).step_by(simd::BLOCK).zip(out.chunks_mut(simd::BLOCK)) {
        buffer.clear();
        work(start, block, &mut buffer)?;
    }
    Ok(())
}

impl<T: Float> Grouped<'_, T> {
    /// Apply `work` to every group and return the results in group order.
    pub(crate) fn each<R: Send>(&self, work: impl Fn(&mut Group<'_, '_, T>) -> Result<R> + Sync) -> Result<Vec<R>> {
        let pieces = self.pieces().into_iter().map(|groups| (groups, ())).collect();
        let mut made = self.share(pieces, &work, |_, (), made| Ok(made))?;
        if made.len() == 1 {
            return Ok(made.remove(0));
        }
        let mut results = Vec::with_capacity(made.iter().map(Vec::len).sum());
        for piece in made {
            results.extend(piece);
        }
        Ok(results)
    }

    /// Fill a column from the result of each group, if the rows of each group are contiguous.
    fn fill<R: Copy + Send + Sync, O: Send>(
        &self,
        mut out: &mut [O],
        work: &impl Work<T, R>,
        fill: impl Fn(usize, &mut [O], &[R]) -> Result<()> + Sync,
    ) -> Result<()> {
        let GroupedRows::Runs(starts) = &self.rows else { return Err(Error::internal("groups are scattered")) };
        let mut pieces = Vec::new();
        for groups in self.pieces() {
            let (piece, rest) = out.split_at_mut((starts[groups.end] - starts[groups.start]) as usize);
            pieces.push((groups, piece));
            out = rest;
        }
        self.share(pieces, work, |groups, out, made| {
            let (row, starts) = (starts[groups.start] as usize, &starts[groups.start + 1..]);
            thread_pool::fill(out, |start, piece| {
                let mut run = starts.partition_point(|&end| end as usize <= row + start);
                in_blocks(row + start, piece, |start, piece, of_rows: &mut Vec<R>| {
                    while of_rows.len() < piece.len() {
                        let end = (starts[run] as usize).min(start + piece.len()) - start;
                        of_rows.resize(end, made[run]);
                        run += usize::from(starts[run] as usize == start + end);
                    }
                    fill(start, piece, of_rows)
                })
            })
        })
        .map(drop)
    }

    /// Return pieces of neighbouring groups with about [`PIECE`] rows each.
    fn pieces(&self) -> Vec<Range<usize>> {
        let starts = match &self.rows {
            GroupedRows::Runs(starts) => starts,
            GroupedRows::Scattered(scattered) => return scattered.buckets(),
        };
        let (mut pieces, mut first) = (Vec::new(), 0);
        while first + 1 < starts.len() {
            let end = u64::from(starts[first]) + PIECE as u64;
            let last = first + starts[first + 1..].partition_point(|&start| u64::from(start) <= end);
            pieces.push(first..last.max(first + 1));
            first = last.max(first + 1);
        }
        pieces
    }

    /// Process the groups of each piece, at once if possible. Then call `end` with the piece, its item and the results.
    fn share<R, E: Send, S: Send>(
        &self,
        pieces: Vec<(Range<usize>, E)>,
        work: &impl Work<T, R>,
        end: impl Fn(Range<usize>, E, Vec<R>) -> Result<S> + Sync,
    ) -> Result<Vec<S>> {
        let each = |(groups, own): (Range<usize>, E)| {
            let (mut buffer, large) = (Buffer::default(), self.is_large(&groups));
            if !large && let Some(made) = work.on_piece(self, &groups, &mut buffer)? {
                return end(groups, own, made);
            }
            let mut made = Vec::with_capacity(groups.len());
            for index in groups.clone() {
                made.push(work.on_group(&mut Group {
                    grouped: self,
                    piece: &groups,
                    index,
                    large,
                    buffer: &mut buffer,
                })?);
            }
            end(groups, own, made)
        };
        let (mut done, mut small) = (Vec::new(), Vec::new());
        for piece in pieces {
            if self.is_large(&piece.0) {
                done.extend(thread_pool::map(take(&mut small), each)?);
                // A large piece is split over the threads itself, so the piece is processed by this thread.
                done.push(each(piece)?);
            } else {
                small.push(piece);
            }
        }
        done.extend(thread_pool::map(small, each)?);
        Ok(done)
    }

    /// Return whether a piece is one group that is too large for its votes to be copied together for its statistics.
    fn is_large(&self, groups: &Range<usize>) -> bool {
        match &self.rows {
            GroupedRows::Runs(starts) => (starts[groups.end] - starts[groups.start]) as usize > PIECE,
            GroupedRows::Scattered(_) => false,
        }
    }

    /// Return the starts of contiguous groups if all rows vote, without weights: the column itself then holds the
    /// votes.
    fn as_they_stand(&self) -> Option<&[u32]> {
        match &self.rows {
            GroupedRows::Runs(starts) if self.columns.weights.is_none() && self.columns.valid.is_none() => Some(starts),
            _ => None,
        }
    }

    /// Read the votes of a range of groups into `buffer`, at least the parts `wanted`.
    fn read(&self, groups: &Range<usize>, wanted: Read, buffer: &mut Buffer) {
        if buffer.read >= wanted {
            return;
        }
        buffer.clear();
        match &self.rows {
            GroupedRows::Scattered(scattered) => {
                let with_rows = wanted == Read::Rows || self.columns.weights.is_some();
                scattered.read(groups, &self.columns, with_rows, buffer);
            }
            GroupedRows::Runs(starts) => self.read_runs(&starts[groups.start..=groups.end], wanted, buffer),
        }
        buffer.read = wanted;
    }

    /// Compute the statistics of a range of groups, none of which is large.
    #[inline(never)]
    pub(super) fn statistics(&self, groups: &Range<usize>, ddof: u32, buffer: &mut Buffer, sink: &mut impl Sink) {
        if let Some(starts) = self.as_they_stand() {
            let starts = &starts[groups.start..=groups.end];
            let (first, last) = (starts[0] as usize, starts[starts.len() - 1] as usize);
            let values = T::doubles(&self.columns.values[first..last], &mut buffer.values);
            return of_groups(starts, values, &[], ddof, sink);
        }
        if let GroupedRows::Scattered(scattered) = &self.rows
            && self.columns.weights.is_none()
            && buffer.read == Read::Nothing
            && scattered.statistics(groups, &self.columns, ddof, sink)
        {
            return;
        }
        self.read(groups, Read::Values, buffer);
        of_groups(&buffer.starts, &buffer.values, &buffer.weights, ddof, sink);
    }

    /// Read the votes of neighbouring groups with these starts.
    fn read_runs(&self, starts: &[u32], wanted: Read, buffer: &mut Buffer) {
        let Columns { values, weights, .. } = self.columns;
        let (Some(&first), Some(&last)) = (starts.first(), starts.last()) else { return };
        if self.as_they_stand().is_some() {
            buffer.first = first;
            buffer.starts.extend(starts.iter().map(|start| start - first));
            buffer.values.extend(values[first as usize..last as usize].iter().map(|value| value.to_f64()));
            return;
        }
        let (rows, with_rows) = ((last - first) as usize, wanted == Read::Rows || weights.is_some());
        buffer.values.resize(rows, 0.0);
        buffer.rows.resize(if with_rows { rows } else { 0 }, 0);
        buffer.starts.push(0);
        let mut votes = 0;
        for group in starts.windows(2) {
            for row in group[0]..group[1] {
                // Branchless: every row is written, and the next row overwrites it if it does not vote.
                buffer.values[votes] = values[row as usize].to_f64();
                if with_rows {
                    buffer.rows[votes] = row;
                }
                votes += usize::from(self.columns.votes(row as usize));
            }
            buffer.starts.push(votes as u32);
        }
        buffer.values.truncate(votes);
        buffer.rows.truncate(votes);
        if let Some(weights) = weights {
            buffer.weights.extend(buffer.rows.iter().map(|&row| weights[row as usize]));
        }
    }
}

/// Compute the statistics of contiguous groups. `starts[0]` is the start of `values`.
fn of_groups(starts: &[u32], values: &[f64], weights: &[f64], ddof: u32, sink: &mut impl Sink) {
    if weights.is_empty() {
        return lanes::statistics_of_runs(starts, values, ddof, sink);
    }
    let first = starts[0];
    for ends in starts.windows(2) {
        let votes = (ends[0] - first) as usize..(ends[1] - first) as usize;
        sink.push(Statistics::of(&values[votes.clone()], &weights[votes], ddof));
    }
}

/// One group.
#[derive(Debug)]
pub(crate) struct Group<'g, 'a, T> {
    grouped: &'g Grouped<'a, T>,
    /// The range of groups that are processed together with it.
    piece: &'g Range<usize>,
    index: usize,
    large: bool,
    buffer: &'g mut Buffer,
}

impl<T: Float> Group<'_, '_, T> {
    /// Return the id of the group.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Return the votes of the group.
    #[inline]
    pub(crate) fn votes(&mut self) -> Votes<'_> {
        self.grouped.read(self.piece, Read::Rows, self.buffer);
        self.buffer.votes(self.index - self.piece.start)
    }

    /// Return the statistics of the group.
    #[inline]
    pub(crate) fn statistics(&mut self, ddof: u32) -> Result<&Statistics> {
        if self.buffer.found.is_empty() {
            self.find(ddof)?;
        }
        Ok(&self.buffer.found[self.index - self.piece.start])
    }

    #[inline(never)]
    fn find(&mut self, ddof: u32) -> Result<()> {
        if self.large {
            self.buffer.found.push(self.statistics_in_pieces(ddof)?);
        } else {
            let mut found = take(&mut self.buffer.found);
            found.reserve(self.piece.len());
            self.grouped.statistics(self.piece, ddof, self.buffer, &mut found);
            self.buffer.found = found;
        }
        Ok(())
    }

    /// Compute the statistics of a large group. Rows are read block by block, twice: the votes are never all in memory.
    fn statistics_in_pieces(&self, ddof: u32) -> Result<Statistics> {
        let rows = match &self.grouped.rows {
            GroupedRows::Runs(starts) => starts[self.index]..starts[self.index + 1],
            GroupedRows::Scattered(_) => 0..0,
        };
        let extents = self.in_pieces(rows.clone(), Extent::EMPTY, |found, values, weights| {
            found.merge(Extent::of(values, weights))
        })?;
        let extent = extents.into_iter().fold(Extent::EMPTY, Extent::merge);
        let none = Moments::default();
        let moments =
            self.in_pieces(rows, none, |found, values, weights| found.merge(Moments::of(extent, values, weights)))?;
        Ok(Statistics::finish(extent, moments.into_iter().fold(none, Moments::merge), ddof))
    }

    /// Fold the votes of a range of rows and return one result for each piece.
    fn in_pieces<S: Copy + Send + Sync>(
        &self,
        rows: Range<u32>,
        none: S,
        add: impl Fn(S, &[f64], &[f64]) -> S + Sync,
    ) -> Result<Vec<S>> {
        let parts = |rows: Range<u32>, size: usize| {
            let end = rows.end;
            rows.step_by(size).map(move |start| start..end.min(start + size as u32))
        };
        thread_pool::map(parts(rows, PIECE).collect(), |piece| {
            let mut buffer = Buffer::default();
            Ok(parts(piece, ROWS_AT_ONCE).fold(none, |found, block| {
                buffer.clear();
                self.grouped.read_runs(&[block.start, block.end], Read::Values, &mut buffer);
                add(found, &buffer.values, &buffer.weights)
            }))
        })
    }
}
