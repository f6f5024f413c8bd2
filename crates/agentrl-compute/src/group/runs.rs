//! Rows whose ids never decrease, some whole groups at a time: what is made of them on the way to their results is still at
//! hand when it is needed, and a column of megabytes is read once.

use std::ops::Range;

use crate::Result;
use crate::keys::Ids;
use crate::thread_pool::{self, PIECE};

/// Rows of the groups that are worked on at once: all that is known of them fits a core's own memory.
const ROWS: usize = 1 << 12;

/// Fill a column by some work on neighbouring whole groups, which gets their rows, where each group starts and the last ends
/// among them, and their part of the column.
///
/// `None` where ids decrease, a group has more rows than one thread should work on, or the work fails: then the column may
/// hold anything.
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

/// The same for the part of the column that starts at some row.
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

/// Where the group of the row before this one ends; `None` if it has more rows than one thread should work on.
fn end(ids: &dyn Ids, row: usize) -> Option<usize> {
    let rows = ids.rows();
    if row >= rows {
        return Some(rows);
    }
    ids.end_of_run(row..rows.min(row + PIECE)).or((row + PIECE >= rows).then_some(rows))
}
