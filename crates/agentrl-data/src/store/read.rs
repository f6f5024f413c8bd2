//! Reading: rows by number and by key, whole batches, and trajectories of any age.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::SchemaRef;

use super::Store;
use super::column_scan::check_folder;
use super::folders::{COMPUTED_FOLDERS, METRICS, WRITE_LOG, key_of, schema_of};
use super::footer::Bounds;
use super::fs::{failed, missing};
use super::manifest::{Head, Manifest};
use super::row_selection::{cut, on_paths, slices};
use super::segment::{BlockRows, READ_BYTES, Segment, is_other};
use super::write_log::{self, Entry, WriteKind};
use crate::batch::{Batch, i64s};
use crate::facts::Facts;
use crate::schema::{Table, facts_of};
use crate::{Check, Error, ErrorKind, Result, arrow_bug, facts, fixed_width_lists, token_columns};

/// Number of attempts of a reader to find rows in files that the writer replaces repeatedly.
const ATTEMPTS: usize = 100;

impl Store {
    /// Return the rows of a table from all iterations, in append order.
    pub fn table(&mut self, table: Table) -> Result<Vec<RecordBatch>> {
        self.settle()?;
        self.all_rows(table.name())
    }

    /// Return the rows of a table as one record batch; empty if there are none.
    pub fn whole_table(&mut self, table: Table) -> Result<RecordBatch> {
        let rows = self.table(table)?;
        joined_table(table, &rows)
    }

    /// Return the metrics of the closed iterations.
    pub fn metrics(&mut self) -> Result<RecordBatch> {
        self.settle()?;
        let rows = self.all_rows(METRICS)?;
        joined(&known_schema(METRICS)?, &rows)
    }

    /// Return the write log: one row for each write, with the numbers of the rows it added, and the state that closed
    /// an iteration.
    pub fn writes(&mut self) -> Result<RecordBatch> {
        self.settle()?;
        let rows = self.all_rows(WRITE_LOG)?;
        joined(&known_schema(WRITE_LOG)?, &rows)
    }

    /// Return the files of a folder (a table, or a level of computed columns) in row order. Each has its path, the
    /// number of its rows that this store sees, and the bounds of its filter columns.
    pub fn files(&mut self, name: &str) -> Result<Vec<(PathBuf, u64, Bounds)>> {
        check_folder(name)?;
        self.settle()?;
        let (folder, end) = (self.path.join(name), self.head.end(name));
        self.located(|store| {
            let names = store.fs.list(&folder).map_err(failed("list", &folder))?;
            let is_there =
                |path: &PathBuf| path.file_name().is_some_and(|name| names.iter().any(|own| name == own.as_str()));
            let segments = store.files.of(name).iter().filter(|segment| segment.first_row < end);
            let found = segments.map(|segment| {
                // A commit renames its files after its manifest is published.
                let path = [segment.path(&folder), segment.staged(&folder)].into_iter().find(is_there);
                let path = path.ok_or_else(|| missing(&segment.path(&folder)))?;
                Ok((path, segment.end_row().min(end) - segment.first_row, segment.bounds(name)))
            });
            found.collect()
        })
    }

    /// Return whether the training batch of an iteration is stored. It can be a batch without draws.
    pub fn has_batch(&mut self, iteration: i64) -> Result<bool> {
        self.settle()?;
        self.surviving(|store| {
            let entries = store.entries(Some(iteration))?;
            Ok(iteration >= store.head.dropped && entries.iter().any(|entry| entry.kind == WriteKind::Batch))
        })
    }

    /// Return the batch of an iteration as it was trained: its rows, the older rows that its draws use, and computed
    /// columns.
    pub fn batch(&mut self, iteration: i64) -> Result<Batch> {
        self.settle()?;
        self.surviving(|store| store.trained_batch(iteration))
    }

    fn trained_batch(&mut self, iteration: i64) -> Result<Batch> {
        let entries = self.entries(Some(iteration))?;
        let of = |kind: WriteKind| entries.iter().filter(move |entry| entry.kind == kind);
        if iteration < self.head.dropped || of(WriteKind::Batch).next().is_none() {
            return Err(Error::not_found(format!(
                "the store has no training batch of iteration {iteration}; {} iterations are closed, those from {} on are \
                 kept: give one of these",
                self.head.iteration, self.head.dropped
            )));
        }
        let mut tables = Vec::with_capacity(Table::COUNT);
        for table in Table::ALL {
            let mut rows = Vec::new();
            for entry in of(WriteKind::Batch) {
                rows.extend(self.entry_rows(entry, table.name())?);
            }
            tables.push(rows);
        }
        let mut stored: BTreeSet<i64> = of(WriteKind::Batch).flat_map(|entry| entry.stored.iter().copied()).collect();
        // A trajectory that is drawn again can come from an earlier append of the same iteration.
        for rows in &tables[Table::Trajectories as usize] {
            i64s(rows, "trajectory_id")?.values().iter().for_each(|id| _ = stored.remove(id));
        }
        let stored: Vec<i64> = stored.into_iter().collect();
        let older = self.with_keys(Table::Trajectories, &stored)?;
        let older_steps = self.with_keys(Table::Steps, &stored)?;
        let mut needed = outside(&tables[Table::Nodes as usize], "node_id", "parent_id")?;
        for trajectories in tables[Table::Trajectories as usize].iter().chain([&older]) {
            needed.extend(i64s(trajectories, "leaf_node_id")?.values());
        }
        // A step whose context was rewritten later is not on the path to the leaf.
        for steps in tables[Table::Steps as usize].iter().chain([&older_steps]) {
            needed.extend(i64s(steps, "node_id")?.values());
        }
        for nodes in &tables[Table::Nodes as usize] {
            i64s(nodes, "node_id")?.values().iter().for_each(|id| _ = needed.remove(id));
        }
        tables[Table::Nodes as usize].insert(0, self.paths(&needed)?);
        tables[Table::Steps as usize].insert(0, older_steps);
        tables[Table::Trajectories as usize].insert(0, older);
        let mut batch = to_batch(&tables, &self.head.declared().unwrap_or_default())?;
        for (folder, _) in COMPUTED_FOLDERS {
            for entry in of(WriteKind::Close) {
                let rows = self.entry_rows(entry, folder)?;
                if let Some(first) = rows.first() {
                    batch = batch.with_computed_table(&joined(&first.schema(), &rows)?)?;
                }
            }
        }
        let last = of(WriteKind::Close).next_back().or_else(|| of(WriteKind::Batch).next_back());
        if let Some(components) = last.and_then(|entry| entry.components.as_deref()) {
            batch = batch.with_state(components);
        }
        Ok(self.with_blobs(&batch.with_base(self.head.next)))
    }

    /// Return stored trajectories as a batch of their own, with their steps and the nodes of their paths, without
    /// draws. All its rows are stored, so an append of this batch adds only draws that were made from it.
    pub fn trajectories(&mut self, ids: &[i64]) -> Result<Batch> {
        self.settle()?;
        self.surviving(|store| store.stored_trajectories(ids))
    }

    fn stored_trajectories(&mut self, ids: &[i64]) -> Result<Batch> {
        let wanted: Vec<i64> = ids.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let trajectories = self.with_keys(Table::Trajectories, &wanted)?;
        let found = i64s(&trajectories, "trajectory_id")?.values();
        if let Some(missing) = wanted.iter().find(|id| found.binary_search(id).is_err()) {
            return Err(Error::not_found(format!(
                "the store has no trajectory {missing}; give ids of column trajectory_id of table trajectories; \
                 those of iterations below {} were dropped",
                self.head.dropped
            )));
        }
        let steps = self.with_keys(Table::Steps, &wanted)?;
        let (leaves, actions) = (i64s(&trajectories, "leaf_node_id")?, i64s(&steps, "node_id")?);
        let ends = leaves.values().iter().chain(actions.values()).copied().collect();
        let mut tables: Vec<Vec<RecordBatch>> = vec![Vec::new(); Table::COUNT];
        tables[Table::Nodes as usize].push(self.paths(&ends)?);
        tables[Table::Steps as usize].push(steps);
        tables[Table::Trajectories as usize].push(trajectories);
        let batch = to_batch(&tables, &self.head.declared().unwrap_or_default())?.with_base(self.head.next);
        Ok(self.with_blobs(&batch))
    }

    /// Flush queued writes before a read, so that only durable rows are read.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.check_process()?;
        let writer = self.writer.as_ref();
        if writer.is_some_and(|writer| !writer.queue.is_empty() && writer.poisoned.is_none()) {
            self.flush()?;
        }
        Ok(())
    }

    pub(super) fn entries(&mut self, iteration: Option<i64>) -> Result<Vec<Entry>> {
        let rows = self.located(|store| {
            let near = |segment: &Segment, (first, last): (i64, i64)| {
                // The first version wrote its write log without keys.
                segment.is_named_by_row || iteration.is_none_or(|wanted| (first..=last).contains(&wanted))
            };
            let mut found = Vec::new();
            for segment in
                store.files.of(WRITE_LOG).iter().filter(|segment| segment.first_row < store.head.end(WRITE_LOG))
            {
                if !near(segment, segment.keys()) {
                    continue;
                }
                let pieces: Vec<_> =
                    store.blocks(WRITE_LOG, segment)?.filter(|piece| near(segment, piece.keys)).collect();
                let indices: Vec<usize> = pieces.iter().map(|piece| piece.index).collect();
                for (piece, rows) in pieces.iter().zip(store.pieces(WRITE_LOG, segment, &indices)?) {
                    let seen = store.head.end(WRITE_LOG).saturating_sub(piece.first_row);
                    found.extend(cut(rows, 0..seen));
                }
            }
            Ok(found)
        })?;
        write_log::from_rows(&joined(&known_schema(WRITE_LOG)?, &rows)?, iteration)
    }

    pub(super) fn all_rows(&mut self, folder: &str) -> Result<Vec<RecordBatch>> {
        self.numbered(folder, 0..self.head.end(folder))
    }

    fn entry_rows(&mut self, entry: &Entry, folder: &str) -> Result<Vec<RecordBatch>> {
        self.numbered(folder, entry.rows.get(folder).cloned().unwrap_or_default())
    }

    /// Return the rows with the given numbers.
    pub(super) fn numbered(&mut self, folder: &str, range: Range<u64>) -> Result<Vec<RecordBatch>> {
        self.located(|store| {
            let mut found = Vec::new();
            for segment in store.files.of(folder) {
                if segment.first_row >= range.end || segment.end_row() <= range.start {
                    continue;
                }
                let within = |piece: &BlockRows| piece.first_row < range.end && piece.end_row > range.start;
                let pieces: Vec<_> = store.blocks(folder, segment)?.filter(within).collect();
                let indices: Vec<usize> = pieces.iter().map(|piece| piece.index).collect();
                for (piece, rows) in pieces.iter().zip(store.pieces(folder, segment, &indices)?) {
                    let from = range.start.max(piece.first_row) - piece.first_row;
                    let to = range.end.min(piece.end_row) - piece.first_row;
                    found.extend(cut(rows, from..to));
                }
            }
            Ok(found)
        })
    }

    /// Visit the rows with the given numbers file by file, so that at most one file is in memory.
    pub(super) fn walk(
        &mut self,
        folder: &str,
        range: Range<u64>,
        check: Check<'_>,
        mut visit: impl FnMut(&RecordBatch) -> Result<()>,
    ) -> Result<()> {
        let files =
            self.files.of(folder).iter().map(|file| file.first_row.max(range.start)..file.end_row().min(range.end));
        for rows in files.filter(|rows| !rows.is_empty()).collect::<Vec<_>>() {
            check()?;
            self.numbered(folder, rows)?.iter().try_for_each(&mut visit)?;
        }
        Ok(())
    }

    /// Return the rows whose key is in `keys`, in row order. `keys` must be sorted.
    pub(super) fn with_keys(&mut self, table: Table, keys: &[i64]) -> Result<RecordBatch> {
        let folder = table.name();
        let key = key_of(folder).ok_or_else(|| Error::internal("a folder without keys was searched"))?;
        let found = self.located(|store| {
            let mut found = Vec::new();
            for segment in store.files.of(folder) {
                let near = |(first, last): (i64, i64)| {
                    keys.get(keys.partition_point(|&key| key < first)).is_some_and(|&key| key <= last)
                };
                if !near(segment.keys()) {
                    continue;
                }
                let near = store.blocks(folder, segment)?.filter(|piece| near(piece.keys));
                let indices: Vec<usize> = near.map(|piece| piece.index).collect();
                let mut chosen = Vec::new();
                for rows in store.pieces(folder, segment, &indices)?.into_iter().flatten() {
                    let own = i64s(&rows, key)?.values().iter().enumerate();
                    slices(
                        &rows,
                        own.filter(|(_, key)| keys.binary_search(key).is_ok()).map(|(row, _)| row),
                        &mut chosen,
                    );
                }
                // Copy the selected rows, so that the blocks can be freed.
                found.push(joined_table(table, &chosen)?);
            }
            Ok(found)
        })?;
        joined_table(table, &found)
    }

    /// Return nodes and all their ancestors.
    pub(super) fn paths(&mut self, leaves: &BTreeSet<i64>) -> Result<RecordBatch> {
        let nodes = Table::Nodes.name();
        let found = self.located(|store| {
            let mut needed = leaves.clone();
            let (mut found, mut open, mut open_bytes) = (Vec::new(), Vec::new(), 0);
            // Parents have smaller ids than their children, so one pass from the last rows to the first finds all.
            for segment in store.files.of(nodes).iter().rev() {
                let (first, last) = segment.keys();
                if needed.range(first..).next().is_none_or(|&id| id > last) {
                    continue;
                }
                let pieces: Vec<BlockRows> = store.blocks(nodes, segment)?.collect();
                let mut before = pieces.len();
                // Find the last piece that can hold the last needed node, then continue with earlier pieces.
                while let Some(id) =
                    before.checked_sub(1).and_then(|last| needed.range(..=pieces[last].keys.1).next_back().copied())
                {
                    before = pieces[..before].partition_point(|piece| piece.keys.0 <= id);
                    let Some(piece) = before.checked_sub(1).map(|last| pieces[last]) else { break };
                    if piece.keys.1 < id {
                        continue;
                    }
                    before -= 1;
                    for rows in store.pieces(nodes, segment, &[piece.index])?.into_iter().flatten().rev() {
                        let chosen = on_paths(&rows, &mut needed)?;
                        let from = open.len();
                        slices(&rows, chosen.into_iter().rev(), &mut open);
                        open[from..].reverse();
                    }
                    open_bytes += segment.block_bytes(piece.index);
                    // Copy the selected rows, so that most blocks can be freed.
                    if open_bytes > READ_BYTES {
                        open.reverse();
                        found.push(joined_table(Table::Nodes, &open)?);
                        (open, open_bytes) = (Vec::new(), 0);
                    }
                }
            }
            open.reverse();
            found.push(joined_table(Table::Nodes, &open)?);
            found.reverse();
            match needed.first() {
                None => Ok(found),
                Some(id) => {
                    Err(Error::corrupt(format!("node {id} is on a path, but not in the store; run store.verify()")))
                }
            }
        })?;
        joined_table(Table::Nodes, &found)
    }

    /// Return all rows of a file, with the columns of the current version.
    pub(super) fn whole_rows(&self, folder: &str, segment: &Segment) -> Result<Vec<RecordBatch>> {
        let all: Vec<usize> = self.blocks(folder, segment)?.map(|piece| piece.index).collect();
        Ok(self.pieces(folder, segment, &all)?.into_iter().flatten().collect())
    }

    /// Return the record batches of a file.
    fn blocks(&self, folder: &str, segment: &Segment) -> Result<impl Iterator<Item = BlockRows> + use<>> {
        segment.pieces(self.fs.as_ref(), &self.path.join(folder))
    }

    /// Read record batches of a file by index, each as parts with the columns that they were written with. Tables also
    /// get the columns that later versions added.
    fn pieces(&self, folder: &str, segment: &Segment, indices: &[usize]) -> Result<Vec<Vec<RecordBatch>>> {
        if indices.is_empty() {
            return Ok(Vec::new());
        }
        let pieces = segment.read(self.fs.as_ref(), &self.path.join(folder), indices)?;
        let Some(known) = schema_of(folder) else { return Ok(pieces) };
        let path = segment.path(&self.path.join(folder));
        let whole = |rows: RecordBatch| with_later_columns(&path, &known, rows);
        pieces.into_iter().map(|parts| parts.into_iter().map(whole).collect()).collect()
    }

    /// Read from a snapshot. If the read fails and the writer has dropped iterations since, read again from the
    /// iterations that are left.
    fn surviving<T>(&mut self, read: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        let found = read(self);
        if found.is_ok() || self.files.head.dropped <= self.head.dropped {
            return found;
        }
        let mut rest = Self::new(self.fs.clone(), &self.path, self.files.clone(), None);
        rest.head = Head { dropped: self.files.head.dropped, ..self.head.clone() };
        read(&mut rest)
    }

    /// Read from the files. If the writer has merged the files meanwhile, a reader finds the rows in the new files.
    pub(super) fn located<T>(&mut self, read: impl Fn(&Self) -> Result<T>) -> Result<T> {
        for _ in 0..ATTEMPTS {
            let found = read(self);
            if found.as_ref().err().is_some_and(is_other) && self.writer.is_none() {
                let latest = Manifest::latest(self.fs.as_ref(), &self.path)?.unwrap_or_default();
                if latest.head.version > self.files.head.version {
                    self.files = latest;
                    continue;
                }
            }
            if self.files.head.dropped > self.head.dropped {
                return Err(Error::not_found(format!(
                    "iterations below {} were dropped since this store was opened; call refresh(), or open it again",
                    self.files.head.dropped
                )));
            }
            return found;
        }
        Err(Error::busy(format!("{} changes faster than it can be read; try again", self.path.display())))
    }
}

/// Return the values of `column` that are not a value of `key` in any row.
fn outside(parts: &[RecordBatch], key: &str, column: &str) -> Result<BTreeSet<i64>> {
    let mut named = BTreeSet::new();
    for rows in parts {
        named.extend(i64s(rows, column)?.iter().flatten());
    }
    for rows in parts {
        i64s(rows, key)?.values().iter().for_each(|id| _ = named.remove(id));
    }
    Ok(named)
}

/// Return rows with default values for the columns that were added after they were written. These are the last of the
/// known columns. Facts and token columns come after all others, and rows that have them also have all known columns.
fn with_later_columns(path: &Path, known: &SchemaRef, rows: RecordBatch) -> Result<RecordBatch> {
    let schema = rows.schema();
    if schema.fields() == known.fields() {
        return Ok(rows);
    }
    if facts_of(&schema).is_some() && schema.fields()[..schema.fields().len() - 1] == known.fields()[..] {
        return Ok(rows);
    }
    if known == &Table::Nodes.schema() && schema.fields().starts_with(known.fields()) {
        return token_columns::types_in(&schema).map(|_| rows);
    }
    let count = schema.fields().len();
    let later = known.fields().starts_with(schema.fields()).then(|| known.fields()[count..].iter());
    let later = later.into_iter().flatten().map(|field| Table::later_column(field, rows.num_rows()));
    let later = later.collect::<Option<Vec<_>>>().filter(|later| !later.is_empty());
    let Some(later) = later else {
        let what = format!("{} has other columns than formats v1 to v4; install a newer agentrl_core", path.display());
        return Err(Error::new(ErrorKind::Schema, what));
    };
    let whole = Arc::new(known.as_ref().clone().with_metadata(schema.metadata().clone()));
    RecordBatch::try_new(whole, rows.columns().iter().cloned().chain(later).collect()).map_err(arrow_bug)
}

fn to_batch(tables: &[Vec<RecordBatch>], declared: &Facts) -> Result<Batch> {
    let tables = tables.iter().zip(Table::ALL).map(|(rows, table)| {
        let rows = joined_table(table, rows)?;
        if rows.num_rows() == 0 {
            return Ok(RecordBatch::new_empty(facts::schema(table, declared.of(table))));
        }
        let key = match table {
            Table::Nodes => "node_id",
            Table::Steps | Table::Trajectories => "trajectory_id",
            Table::Draws | Table::Tasks | Table::Decisions => return Ok(rows),
        };
        sorted(&rows, key)
    });
    let tables = tables.collect::<Result<Vec<_>>>()?;
    Batch::new(tables.try_into().map_err(|_| Error::internal("the tables became another number"))?)
}

/// Sort rows by id. Older rows that a batch needs can lie between its own.
fn sorted(rows: &RecordBatch, key: &str) -> Result<RecordBatch> {
    let ids = i64s(rows, key)?.values();
    if ids.is_sorted() {
        return Ok(rows.clone());
    }
    let mut order: Vec<u32> = (0..rows.num_rows() as u32).collect();
    order.sort_by_key(|&row| ids[row as usize]);
    arrow_select::take::take_record_batch(rows, &UInt32Array::from(order)).map_err(arrow_bug)
}

fn known_schema(folder: &str) -> Result<SchemaRef> {
    schema_of(folder).ok_or_else(|| Error::internal(format!("folder {folder:?} has no schema of its own")))
}

/// Combine rows of a table into one record batch, with the token columns of all parts.
pub(super) fn joined_table(table: Table, rows: &[RecordBatch]) -> Result<RecordBatch> {
    if table != Table::Nodes {
        return joined(&table.schema_of(rows), rows);
    }
    let rows = token_columns::aligned(rows.to_vec())?;
    joined(&table.schema_of(&rows), &rows)
}

/// Combine rows into one record batch. Errors if its lists have more values than 32-bit offsets allow.
pub(super) fn joined(schema: &SchemaRef, rows: &[RecordBatch]) -> Result<RecordBatch> {
    // Skip parts without rows, because they may lack the column of facts.
    fixed_width_lists::concat_batches(schema, rows.iter().filter(|rows| rows.num_rows() > 0))
        .map_err(|error| Error::overflow(format!("the rows do not fit one table; read fewer at once: {error}")))
}
