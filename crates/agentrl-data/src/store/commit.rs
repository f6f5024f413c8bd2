//! Writing: check and queue appends, and make all queued writes durable in one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};

use super::blob_files::check_blobs;
use super::column_union::merge_columns;
use super::folders::{COMPUTED_FOLDERS, FOLDERS, METRICS, STATES, WRITE_LOG, key_of, schema_of};
use super::fs::failed;
use super::manifest::{self, Manifest};
use super::queued_write::Write;
use super::read::joined_table;
use super::recover::{MARKER, mark, publish};
use super::row_selection::taken;
use super::segment::Segment;
use super::state_rows::{Arrays, check_state};
use super::write_log::{self, Entry, WriteKind};
use super::{Store, Sync, Writer, merge_policy};
use crate::batch::{Batch, Blobs, NextIds, i64s};
use crate::facts::Facts;
use crate::ipc::size;
use crate::schema::{FORMAT_VERSION, Table};
use crate::token_columns::RowTypes;
use crate::{Error, Result, arrow_bug, token_columns};

/// Size in bytes above which the queue is committed automatically.
const QUEUE_BYTES: usize = 256 << 20;

impl Store {
    /// Return the batch with the ids of its new rows moved after those of the store ([`Batch::rebase`]). Rows with ids
    /// below [`Batch::base`] keep them, so they must be rows of this store.
    pub fn rebase(&self, batch: &Batch) -> Result<Batch> {
        let next = self.next_ids();
        for (rows, name, base, next) in [
            (batch.nodes(), "node_id", batch.base().node, next.node),
            (batch.trajectories(), "trajectory_id", batch.base().trajectory, next.trajectory),
        ] {
            let foreign = i64s(rows, name)?.values().iter().copied().filter(|&id| id < base && id >= next);
            let foreign: Vec<i64> = foreign.collect();
            if !foreign.is_empty() {
                return Err(not_stored(name, &foreign));
            }
        }
        batch.rebase(next)
    }

    /// Check and queue the new rows of a batch. Their ids must come after those of the store ([`Store::rebase`]). The
    /// rows are a part of the training batch of an iteration, or with `partial` rollouts of an interrupted iteration.
    /// Returns the number of the write, which is durable when [`Store::sequence`] has reached it.
    pub fn append(&mut self, batch: &Batch, iteration: i64, partial: bool) -> Result<u64> {
        let next = self.writable()?.next;
        Self::check_new(batch, next, iteration)?;
        let facts = self.check_facts(batch)?;
        let row_types = self.check_row_types(batch)?;
        self.check_stored(batch, Table::Nodes, batch.base().node)?;
        self.check_stored(batch, Table::Trajectories, batch.base().trajectory)?;
        let rows = Table::ALL.into_iter().map(|table| Ok((table.name(), batch.new_rows(table)?)));
        let rows: Vec<_> = rows.collect::<Result<_>>()?;
        check_blobs(batch.blobs())?;
        let kind = if partial { WriteKind::Partial } else { WriteKind::Batch };
        let writer = self.writable()?;
        (writer.facts, writer.row_types) = (facts, row_types);
        let base = batch.base().trajectory;
        let trajectories = i64s(batch.trajectories(), "trajectory_id")?.values();
        let stored = trajectories.iter().copied().filter(|&id| id < base).collect();
        let components = (!partial && !batch.state().is_empty()).then(|| batch.state().to_owned());
        let entry = Entry { iteration, kind, state: None, components, stored, rows: BTreeMap::new() };
        self.queue(Write { entry, rows, blobs: batch.blobs().clone(), is_base: false }, next.max(batch.next_ids()?))
    }

    /// Close an iteration: commit the columns computed for its batch, the state of the components that computed them,
    /// and `state`, a JSON text from which the run resumes. All of it is durable on return, with all earlier queued
    /// writes.
    pub fn close_iteration(&mut self, batch: &Batch, state: &str) -> Result<u64> {
        self.close_with(batch, state, &Arrays::new(), &[])
    }

    /// [`Store::close_iteration`] that also commits metrics by name, and arrays of the state. The arrays replace those
    /// of the previous iteration.
    pub fn close_with(
        &mut self,
        batch: &Batch,
        state: &str,
        arrays: &Arrays,
        metrics: &[(String, f64)],
    ) -> Result<u64> {
        let next = self.writable()?.next;
        check_state(state)?;
        let iteration = self.head.iteration;
        self.check_trained(batch, iteration)?;
        let mut rows = Vec::new();
        for (folder, level) in COMPUTED_FOLDERS {
            rows.extend(batch.computed_table(level)?.map(|table| (folder, table)));
        }
        rows.push((METRICS, measured(iteration, metrics)?));
        let (states, is_base) = self.state_rows(iteration, arrays)?;
        rows.push((STATES, states));
        let entry = Entry {
            iteration,
            kind: WriteKind::Close,
            state: Some(state.to_owned()),
            components: (!batch.state().is_empty()).then(|| batch.state().to_owned()),
            stored: Vec::new(),
            rows: BTreeMap::new(),
        };
        let sequence = self.queue(Write { entry, rows, blobs: Blobs::default(), is_base }, next)?;
        self.flush()?;
        Ok(sequence)
    }

    /// Make all queued writes durable in one commit. Returns the number of the last durable write.
    pub fn flush(&mut self) -> Result<u64> {
        let writer = self.writable()?;
        if writer.queue.is_empty() {
            return Ok(self.head.sequence);
        }
        let (queue, after) = (std::mem::take(&mut writer.queue), writer.next);
        writer.queued_bytes = 0;
        self.poisoning(|store| store.commit_queue(queue, after))?;
        Ok(self.head.sequence)
    }

    fn queue(&mut self, write: Write, next: NextIds) -> Result<u64> {
        let writer = self.writable()?;
        writer.next = next;
        writer.sequence += 1;
        writer.queued_bytes += write.rows.iter().map(|(_, rows)| size(rows)).sum::<usize>();
        writer.queued_bytes += write.blobs.values().map(|blob| blob.len()).sum::<usize>();
        writer.queue.push(write);
        let (sequence, full) = (writer.sequence, writer.queued_bytes > QUEUE_BYTES || writer.sync == Sync::Always);
        if full {
            self.flush()?;
        }
        Ok(sequence)
    }

    /// Check that new ids come after those of the store, and that draws have distinct ids and are of this iteration.
    fn check_new(batch: &Batch, next: NextIds, iteration: i64) -> Result<()> {
        let (base, trajectories) = (batch.base(), batch.trajectories());
        let draws = batch.new_rows(Table::Draws)?;
        let draw_ids = i64s(&draws, "draw_id")?.values();
        let first = [
            (first_id(batch.nodes(), "node_id", base.node)?, base.node, next.node, "node_id"),
            (
                first_id(trajectories, "trajectory_id", base.trajectory)?,
                base.trajectory,
                next.trajectory,
                "trajectory_id",
            ),
            // New trajectories and draws can belong to groups that are in the store.
            (first_id(trajectories, "group_id", base.group)?, base.group, next.group, "group_id"),
            (first_id(&draws, "group_id", base.group)?, base.group, next.group, "group_id"),
            (first_id(&draws, "draw_id", base.draw)?, base.draw, next.draw, "draw_id"),
        ];
        for (found, base, next, name) in first {
            if let Some(found) = found.filter(|&found| found < next) {
                return Err(Error::invalid(format!(
                    "the batch has {name} {found}, but ids below {next} are taken in the store; append store.rebase(batch)"
                )));
            }
            if base > next {
                return Err(Error::invalid(format!(
                    "the batch expects stored rows with {name} below {base}, but the store only has ids below {next}; \
                     append it to the store that it came from"
                )));
            }
        }
        if draw_ids.iter().collect::<BTreeSet<_>>().len() < draw_ids.len() {
            return Err(Error::invalid("the batch has two draws with the same draw_id; make draws with Batch.draw"));
        }
        let iterations = i64s(&draws, "iteration")?.values();
        match iterations.iter().find(|&&found| found != iteration) {
            None => Ok(()),
            Some(found) => Err(Error::invalid(format!(
                "the batch has draws of iteration {found}, but is appended as iteration {iteration}; give both the same \
                 number (Forest(iteration=…), Batch.draw(iteration=…))"
            ))),
        }
    }

    /// Return the facts of the store after this batch. The first batch with trajectories sets them, and later ones must
    /// declare the same.
    fn check_facts(&mut self, batch: &Batch) -> Result<Option<Facts>> {
        let first = self.writable()?.facts.clone();
        if batch.new_rows(Table::Trajectories)?.num_rows() == 0 {
            return Ok(first);
        }
        let own = batch.facts()?;
        match first {
            Some(first) if first != own => Err(Error::invalid(format!(
                "the batch has facts {}, but the store has {} since its first batch; declare the same in \
                 Forest(facts=…), or write to another store",
                own.words(),
                first.words()
            ))),
            _ => Ok(Some(own)),
        }
    }

    /// Return the token columns of the store after this batch. A column never changes its type.
    fn check_row_types(&mut self, batch: &Batch) -> Result<RowTypes> {
        let known = self.writable()?.row_types.clone();
        token_columns::united(known, &batch.row_types()?).map_err(|error| {
            Error::invalid(format!("the batch does not fit the store: {error}, or write to another store"))
        })
    }

    /// Check that the rows with ids below `base` equal the stored or queued rows with the same ids.
    fn check_stored(&mut self, batch: &Batch, table: Table, base: i64) -> Result<()> {
        let name = key_of(table.name()).ok_or_else(|| Error::internal("a table without keys was searched"))?;
        let rows = batch.table(table);
        let own = places(rows, name, |id| id < base)?;
        if own.is_empty() {
            return Ok(());
        }
        let wanted: Vec<i64> = own.keys().copied().collect();
        let mut stored = vec![self.with_keys(table, &wanted)?];
        let queued = self.writable()?.queue.iter().flat_map(|write| &write.rows);
        stored.extend(queued.filter(|(folder, _)| *folder == table.name()).map(|(_, rows)| rows.clone()));
        let stored = joined_table(table, &stored)?;
        let found = places(&stored, name, |id| own.contains_key(&id))?;
        let missing: Vec<i64> = wanted.iter().copied().filter(|id| !found.contains_key(id)).collect();
        if !missing.is_empty() {
            return Err(not_stored(name, &missing));
        }
        let mut own = taken(rows, own.into_values().collect())?;
        let mut stored = taken(&stored, found.into_values().collect())?;
        if table == Table::Nodes {
            // Token columns that only other rows have are null in these rows.
            let parts = token_columns::aligned(vec![own, stored])?;
            (own, stored) = (parts[0].clone(), parts[1].clone());
        }
        if own.columns() == stored.columns() {
            return Ok(());
        }
        let differs = |row: &usize| own.slice(*row, 1).columns() != stored.slice(*row, 1).columns();
        Err(not_stored(name, &(0..wanted.len()).filter(differs).map(|row| wanted[row]).collect::<Vec<_>>()))
    }

    /// Check that a batch has exactly the draws that were appended for the iteration, in order. Computed columns belong
    /// to draws, so columns of other draws could never be read back.
    fn check_trained(&mut self, batch: &Batch, iteration: i64) -> Result<()> {
        let mut appended = Vec::new();
        for entry in self.entries(Some(iteration))?.iter().filter(|entry| entry.kind == WriteKind::Batch) {
            let range = entry.rows.get(Table::Draws.name()).cloned().unwrap_or_default();
            appended.extend(self.numbered(Table::Draws.name(), range)?);
        }
        for write in self.writable()?.queue.iter().filter(|write| write.entry.kind == WriteKind::Batch) {
            if write.entry.iteration == iteration {
                appended.extend(
                    write.rows.iter().filter(|(folder, _)| *folder == Table::Draws.name()).map(|(_, r)| r.clone()),
                );
            }
        }
        let mut expected = Vec::new();
        for draws in &appended {
            expected.extend_from_slice(i64s(draws, "draw_id")?.values());
        }
        if i64s(batch.draws(), "draw_id")?.values()[..] == expected[..] {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the batch has {} draws that differ from the {} draws appended for iteration {iteration}; close the iteration \
             with the appended batch, with all its draws in their order",
            batch.num_draws(),
            expected.len()
        )))
    }

    /// Return the writer. Errors if the store is open for reading only, or if an earlier write failed.
    pub(super) fn writable(&mut self) -> Result<&mut Writer> {
        self.check_process()?;
        let path = self.path.display();
        match self.writer.as_mut() {
            None => Err(Error::invalid(format!("{path} is open for reading only; open it with Store.open to write"))),
            Some(Writer { poisoned: Some(why), .. }) => Err(Error::io(
                format!(
                    "{path} cannot be written any more because a write failed: {why}; earlier commits are safe: \
                     close it and open it again"
                ),
                std::io::ErrorKind::Other.into(),
            )),
            Some(writer) => Ok(writer),
        }
    }

    /// Run a commit. If it fails, the contents of the disk are unknown, so no later write is allowed.
    pub(super) fn poisoning<T>(&mut self, commit: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let done = commit(self);
        if let (Err(error), Some(writer)) = (&done, &mut self.writer) {
            writer.poisoned = Some(error.to_string());
        }
        done
    }

    fn commit_queue(&mut self, queue: Vec<Write>, after: NextIds) -> Result<()> {
        let mut commit = Commit::begin(self);
        let mut added: BTreeMap<&'static str, Vec<RecordBatch>> = BTreeMap::new();
        let mut ends = FOLDERS.iter().map(|&folder| (folder, self.head.end(folder))).collect::<BTreeMap<_, _>>();
        let mut entries = Vec::with_capacity(queue.len());
        for Write { mut entry, rows, blobs, is_base } in queue {
            self.write_blobs(&blobs)?;
            if is_base {
                commit.next.head.states_from = ends[STATES];
            }
            for (&folder, &end) in &ends {
                entry.rows.insert(folder, end..end);
            }
            for (folder, rows) in rows.into_iter().filter(|(_, rows)| rows.num_rows() > 0) {
                let end = ends.entry(folder).or_default();
                entry.rows.insert(folder, *end..*end + rows.num_rows() as u64);
                *end += rows.num_rows() as u64;
                added.entry(folder).or_default().push(rows);
            }
            if let (WriteKind::Close, Some(state)) = (entry.kind, &entry.state) {
                commit.next.head.iteration += 1;
                commit.next.head.state.clone_from(state);
            }
            entries.push(entry);
        }
        added.insert(WRITE_LOG, vec![write_log::to_rows(&entries, self.head.sequence + 1)?]);
        // Write the folders in the order in which rows refer to each other. Files get their names in the same order, so
        // a tool that reads during the renames also sees the rows that visible rows refer to.
        for &folder in FOLDERS.iter() {
            let parts = added.remove(folder).unwrap_or_default();
            if !parts.is_empty() || self.files.lacks_columns(folder) {
                commit.add(self, folder, parts)?;
            }
        }
        commit.next.format = FORMAT_VERSION;
        commit.next.head.sequence += entries.len() as u64;
        commit.next.head.next = after;
        commit.next.head.row_types = self.writer.as_ref().map(|writer| writer.row_types.clone()).unwrap_or_default();
        commit.next.head.facts = self.writer.as_ref().and_then(|writer| writer.facts.clone());
        commit.finish(self)?;
        self.end_rollout_logs(
            entries.iter().filter(|entry| entry.kind != WriteKind::Partial).map(|entry| entry.iteration),
        )
    }
}

/// A commit in progress: files under temporary names, and the manifest that will list them.
pub(super) struct Commit {
    pub(super) next: Manifest,
    staged: Vec<(&'static str, Segment)>,
    /// Files that new files replace.
    replaced: Vec<(&'static str, PathBuf)>,
}

impl Commit {
    pub(super) fn begin(store: &Store) -> Self {
        Self { next: store.files.next(), staged: Vec::new(), replaced: Vec::new() }
    }

    /// Add new rows to a folder. [`merge_policy`] decides how many of the last files are merged with them. If an older
    /// version wrote the folder with fewer columns, all its files are merged, because stock tools require the same
    /// columns in all files.
    fn add(&mut self, store: &Store, folder: &'static str, parts: Vec<RecordBatch>) -> Result<()> {
        let files = store.files.of(folder);
        let bytes = parts.iter().map(|part| size(part) as u64).sum();
        let count = if store.files.lacks_columns(folder) {
            files.len()
        } else {
            merge_policy::merged_with(files, bytes, store.head.end(folder))
        };
        let merged = &files[files.len() - count..];
        let mut rows = Vec::new();
        for file in merged {
            rows.extend(store.whole_rows(folder, file)?);
        }
        rows.extend(parts);
        let first_row = merged.first().map_or(store.head.end(folder), |file| file.first_row);
        self.replace(store, folder, |file| file.first_row >= first_row);
        self.seal(store, folder, rows, first_row)
    }

    /// Write rows to a folder under temporary names, in as few files as their columns allow.
    pub(super) fn seal(
        &mut self,
        store: &Store,
        folder: &'static str,
        parts: Vec<RecordBatch>,
        mut row: u64,
    ) -> Result<()> {
        for rows in merge_columns(parts)? {
            let segment = Segment::begun(row, self.next.head.version);
            let path = segment.staged(&store.path.join(folder));
            // The commit syncs all its files together.
            let segment = segment.seal(store.fs.as_ref(), &path, &rows, folder, Sync::Never)?;
            row = segment.end_row();
            self.insert(folder, segment);
        }
        Ok(())
    }

    /// Add a merged file to this commit.
    pub(super) fn take(&mut self, store: &Store, folder: &'static str, mut segment: Segment) -> Result<()> {
        let path = store.path.join(folder);
        let merged = segment.merged(&path);
        segment.commit = self.next.head.version;
        store.fs.rename(&merged, &segment.staged(&path)).map_err(failed("rename", &merged))?;
        self.insert(folder, segment);
        Ok(())
    }

    fn insert(&mut self, folder: &'static str, segment: Segment) {
        let end = self.next.head.rows.entry(folder.to_owned()).or_default();
        *end = segment.end_row().max(*end);
        let segments = self.next.segments.entry(folder.to_owned()).or_default();
        let place = segments.partition_point(|other| other.first_row < segment.first_row);
        segments.insert(place, segment.clone());
        self.staged.push((folder, segment));
    }

    /// Remove files from a folder. Their rows are written to other files, or dropped.
    pub(super) fn replace(&mut self, store: &Store, folder: &'static str, old: impl Fn(&Segment) -> bool) {
        let segments = self.next.segments.entry(folder.to_owned()).or_default();
        for segment in segments.extract_if(.., |segment| old(segment)) {
            self.replaced.push((folder, segment.path(&store.path.join(folder))));
        }
    }

    /// Publish the manifest, which makes the commit durable, and then give the files their final names.
    pub(super) fn finish(self, store: &mut Store) -> Result<()> {
        let Self { next, staged, replaced } = self;
        let (fs, sync) = (store.fs.as_ref(), store.sync());
        let files = staged.iter().map(|(folder, segment)| segment.staged(&store.path.join(folder))).collect();
        let folders: BTreeSet<PathBuf> = staged.iter().map(|(folder, _)| store.path.join(folder)).collect();
        publish(fs, &store.path, &next, sync, files, &folders.into_iter().collect::<Vec<_>>())?;
        for &folder in FOLDERS.iter() {
            let path = store.path.join(folder);
            let old: Vec<_> = replaced.iter().filter(|(name, _)| *name == folder).map(|(_, path)| path).collect();
            let marker = path.join(MARKER);
            if !old.is_empty() {
                mark(fs, &marker)?;
            }
            for path in &old {
                fs.remove(path).map_err(failed("remove", path))?;
            }
            for (_, segment) in staged.iter().filter(|(name, _)| *name == folder) {
                let (from, to) = (segment.staged(&path), segment.path(&path));
                fs.rename(&from, &to).map_err(failed("rename", &from))?;
            }
            if !old.is_empty() {
                fs.remove(&marker).map_err(failed("remove", &marker))?;
            }
        }
        let old = manifest::path(&store.path, store.files.head.version);
        store.head = next.head.clone();
        store.files = next;
        store.fs.remove(&old).map_err(failed("remove", &old))
    }
}

impl Store {
    pub(super) fn sync(&self) -> Sync {
        self.writer.as_ref().map_or(Sync::Batch, |writer| writer.sync)
    }
}

/// Return the metrics of an iteration as rows.
fn measured(iteration: i64, metrics: &[(String, f64)]) -> Result<RecordBatch> {
    let schema = schema_of(METRICS).ok_or_else(|| Error::internal("the metrics have no schema"))?;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![iteration; metrics.len()])),
        Arc::new(StringArray::from_iter_values(metrics.iter().map(|(name, _)| name))),
        Arc::new(metrics.iter().map(|&(_, value)| value).collect::<Float64Array>()),
    ];
    RecordBatch::try_new(schema, columns).map_err(arrow_bug)
}

fn not_stored(name: &str, ids: &[i64]) -> Error {
    let some = ids.iter().take(5).map(i64::to_string).collect::<Vec<_>>().join(", ");
    let more = if ids.len() > 5 { format!(" and {} more", ids.len() - 5) } else { String::new() };
    Error::invalid(format!(
        "the batch uses stored rows with {name} {some}{more}, but the rows of this store differ or are missing; append the \
         batch they come from first (store.rebase(batch)), or read them from this store with \
         store.trajectory_batch(ids) or store.batch(iteration)"
    ))
}

/// Map the ids that `chosen` selects to the indices of their rows.
fn places(rows: &RecordBatch, name: &str, chosen: impl Fn(i64) -> bool) -> Result<BTreeMap<i64, u32>> {
    let ids = i64s(rows, name)?.values().iter().copied();
    Ok(ids.zip(0_u32..).filter(|&(id, _)| chosen(id)).collect())
}

/// Return the smallest id of a column that is at least `base`.
fn first_id(rows: &RecordBatch, name: &str, base: i64) -> Result<Option<i64>> {
    Ok(i64s(rows, name)?.values().iter().filter(|&&id| id >= base).min().copied())
}
