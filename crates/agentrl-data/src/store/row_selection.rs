//! Row selection in record batches: nodes on paths, and rows by index or range.

use std::collections::BTreeSet;
use std::ops::Range;

use arrow_array::{Array, RecordBatch, UInt32Array};

use crate::batch::i64s;
use crate::{Result, arrow_bug};

/// Select the rows of a block whose ids are in `needed`, and replace these ids in `needed` by those of their parents.
/// Returns the indices of the rows in descending order.
pub(super) fn on_paths(rows: &RecordBatch, needed: &mut BTreeSet<i64>) -> Result<Vec<usize>> {
    let (ids, parents) = (i64s(rows, "node_id")?.values(), i64s(rows, "parent_id")?);
    let (Some(&first), Some(&last)) = (ids.iter().min(), ids.iter().max()) else { return Ok(Vec::new()) };
    let (is_sorted, mut end, mut chosen) = (ids.is_sorted(), last, Vec::new());
    // A parent has a smaller id than its children, so the ids added here are visited later.
    while let Some(id) = needed.range(first..=end).next_back().copied() {
        let row = if is_sorted { ids.binary_search(&id).ok() } else { ids.iter().position(|&own| own == id) };
        if let Some(row) = row {
            needed.remove(&id);
            needed.extend((!parents.is_null(row)).then(|| parents.value(row)));
            chosen.push(row);
        }
        if id == first {
            break;
        }
        end = id - 1;
    }
    if !is_sorted {
        chosen.sort_unstable_by(|one, other| other.cmp(one));
    }
    Ok(chosen)
}

/// Append the rows at ascending indices to `to`, with one slice for each run of adjacent rows.
pub(super) fn slices(rows: &RecordBatch, chosen: impl Iterator<Item = usize>, to: &mut Vec<RecordBatch>) {
    let mut run = 0..0;
    for row in chosen {
        if row != run.end {
            to.extend((!run.is_empty()).then(|| rows.slice(run.start, run.len())));
            run.start = row;
        }
        run.end = row + 1;
    }
    to.extend((!run.is_empty()).then(|| rows.slice(run.start, run.len())));
}

/// Return the rows of a range from consecutive parts. The range counts the rows of all parts.
pub(super) fn cut(parts: Vec<RecordBatch>, range: Range<u64>) -> impl Iterator<Item = RecordBatch> {
    let mut end = 0;
    parts.into_iter().filter_map(move |part| {
        let first = end;
        end += part.num_rows() as u64;
        let (from, to) = (range.start.max(first), range.end.min(end));
        (from < to).then(|| part.slice((from - first) as usize, (to - from) as usize))
    })
}

/// Return the rows at the given indices.
pub(super) fn taken(rows: &RecordBatch, chosen: Vec<u32>) -> Result<RecordBatch> {
    if chosen.len() == rows.num_rows() {
        return Ok(rows.clone());
    }
    arrow_select::take::take_record_batch(rows, &UInt32Array::from(chosen)).map_err(arrow_bug)
}
