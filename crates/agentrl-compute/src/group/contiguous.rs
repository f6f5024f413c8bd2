//! Rows whose ids never decrease, processed a few whole groups at a time, so that intermediate results stay in cache.

use std::ops::Range;

use crate::Result;
use crate::keys::Ids;
use crate::thread_pool::{self, PIECE};

/// Rows of the groups that are processed at once: few enough that all their data fits a core's own cache.
const ROWS: usize = 1 << 12;

/// Fill a column by work on neighbouring whole groups. `work` gets the range of their rows, the start of each group and
/// the end of the last (relative to the range), and their part of the column.
///
/// Return `None` if ids decrease, a group has more rows than one thread should process, or the work fails; the column
/// may then hold anything.
pub(super) fn fill<O: Send>(
    ids: &dyn Ids,
    mut out: &mut [O],
    work: impl Fn(Range<usize>, Vec<u32>, &mut [O]) -> Result<()> + Sync,
) -> Option<()> {
    if !ids.ascend(0..ids.rows().min(ROWS)) {
        return None;
    }
    let (mut pieces, mut start) = (Vec::new(), 0);
    while start < ids.rows() {
        let end = end(ids, start + PIECE)?;
        let (piece, rest) = out.split_at_mut(end - start);
        pieces.push((start, piece));
        (start, out) = (end, rest);
    }
    let made = thread_pool::map(pieces, |(start, piece)| Ok(fill_piece(ids, start, piece, &work)));
    made.ok()?.into_iter().collect()
}

/// Do the same for the part of the column that starts at row `start`.
fn fill_piece<O>(
    ids: &dyn Ids,
    mut start: usize,
    mut out: &mut [O],
    work: impl Fn(Range<usize>, Vec<u32>, &mut [O]) -> Result<()>,
) -> Option<()> {
    while !out.is_empty() {
        let rows = start..if out.len() > ROWS { end(ids, start + ROWS)? } else { start + out.len() };
        if !ids.ascend(rows.clone()) {
            return None;
        }
        let (piece, rest) = out.split_at_mut(rows.len());
        work(rows.clone(), ids.starts(rows.clone()), piece).ok()?;
        (start, out) = (rows.end, rest);
    }
    Some(())
}

/// Return the end of the group of row `row - 1`; `None` if it has more rows than one thread should process.
fn end(ids: &dyn Ids, row: usize) -> Option<usize> {
    let rows = ids.rows();
    if row >= rows {
        return Some(rows);
    }
    ids.end_of_run(row..rows.min(row + PIECE)).or((row + PIECE >= rows).then_some(rows))
}
