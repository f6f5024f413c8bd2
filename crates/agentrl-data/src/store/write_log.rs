//! The write log, in the folder `journal`: one row for each append and each closed iteration, with the numbers of the
//! rows that it added to the other folders.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, UInt8Array};
use arrow_schema::{DataType, Field};

use super::folders::{FOLDERS, METRICS, STATES, WRITE_LOG, in_first_version, schema_of};
use crate::batch::{array, i64s, lists, u8s};
use crate::{Error, Result, arrow_bug};

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteKind {
    /// Rows of the training batch of an iteration.
    Batch = 0,
    /// Rollouts of an interrupted iteration.
    Partial = 1,
    /// Computed columns and state that close an iteration.
    Close = 2,
}

/// One row of the write log.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) iteration: i64,
    pub(super) kind: WriteKind,
    /// JSON state that the iteration was closed with.
    pub(super) state: Option<String>,
    /// JSON state of the components that computed the columns of its batch.
    pub(super) components: Option<String>,
    /// Trajectories of the batch that were already stored.
    pub(super) stored: Vec<i64>,
    /// The numbers of the new rows in each folder.
    pub(super) rows: BTreeMap<&'static str, Range<u64>>,
}

/// Return entries as rows of the write log, numbered from `sequence`.
pub(super) fn to_rows(entries: &[Entry], sequence: u64) -> Result<RecordBatch> {
    let mut stored = ListBuilder::new(Int64Builder::new()).with_field(Field::new("item", DataType::Int64, false));
    for entry in entries {
        stored.values().append_slice(&entry.stored);
        stored.append(true);
    }
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new((0..entries.len() as i64).map(|row| sequence as i64 + row).collect::<Int64Array>()),
        Arc::new(entries.iter().map(|entry| entry.iteration).collect::<Int64Array>()),
        Arc::new(entries.iter().map(|entry| entry.kind as u8).collect::<UInt8Array>()),
        Arc::new(entries.iter().map(|entry| entry.state.as_deref()).collect::<StringArray>()),
        Arc::new(stored.finish()),
    ];
    let bounds = |folder: &str| {
        [|rows: &Range<u64>| rows.start, |rows: &Range<u64>| rows.end].map(|bound| -> ArrayRef {
            let bounds = entries.iter().map(|entry| entry.rows.get(folder).map_or(0, bound) as i64);
            Arc::new(bounds.collect::<Int64Array>())
        })
    };
    for folder in in_first_version() {
        columns.extend(bounds(folder));
    }
    columns.push(Arc::new(entries.iter().map(|entry| entry.components.as_deref()).collect::<StringArray>()));
    columns.extend([METRICS, STATES].into_iter().flat_map(bounds));
    let schema = schema_of(WRITE_LOG).ok_or_else(|| Error::internal("the write log has no schema"))?;
    RecordBatch::try_new(schema, columns).map_err(arrow_bug)
}

/// Parse the entries of an iteration, or all entries.
pub(super) fn from_rows(rows: &RecordBatch, iteration: Option<i64>) -> Result<Vec<Entry>> {
    let (iterations, kinds, stored) =
        (i64s(rows, "iteration")?, u8s(rows, "kind")?, lists(rows, "stored_trajectories")?);
    let states = array(rows, "state")?.as_string::<i32>();
    let components = array(rows, "components")?.as_string::<i32>();
    let wanted = (0..rows.num_rows()).filter(|&row| iteration.is_none_or(|wanted| iterations.value(row) == wanted));
    let entry = |row: usize| {
        let kind = match kinds.value(row) {
            0 => WriteKind::Batch,
            1 => WriteKind::Partial,
            2 => WriteKind::Close,
            other => {
                return Err(Error::corrupt(format!(
                    "folder {WRITE_LOG}: row {row} has the unknown kind {other}; restore the folder from a copy"
                )));
            }
        };
        let mut ranges = BTreeMap::new();
        for &folder in FOLDERS.iter().filter(|&&folder| folder != WRITE_LOG) {
            let bound =
                |bound: &str| -> Result<u64> { Ok(i64s(rows, &format!("{folder}_{bound}"))?.value(row) as u64) };
            ranges.insert(folder, bound("first")?..bound("end")?);
        }
        Ok(Entry {
            iteration: iterations.value(row),
            kind,
            state: (!states.is_null(row)).then(|| states.value(row).to_owned()),
            components: (!components.is_null(row)).then(|| components.value(row).to_owned()),
            stored: stored.value(row).as_primitive::<Int64Type>().values().to_vec(),
            rows: ranges,
        })
    };
    wanted.map(entry).collect()
}
