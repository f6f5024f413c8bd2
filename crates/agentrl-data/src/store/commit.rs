//! Writing: appends are checked and queued, and one commit makes all that is queued durable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::blobs::check_blobs;
use super::folders::{COMPUTED, FOLDERS, JOURNAL, key_of};
use super::fs::failed;
use super::journal::{self, Entry, Kind};
use super::manifest::{self, Manifest};
use super::recover::{MARKER, publish, write};
use super::segment::{Segment, size};
use super::{Store, Sync, Writer};
use crate::batch::{Batch, Blobs, NextIds, i64s};
use crate::schema::Table;
use crate::{Error, Result};

/// A last file smaller than this is replaced by one that also holds the new rows.
const SMALL_BYTES: u64 = 4 << 20;

/// A queue that holds this many bytes is committed without being asked.
const QUEUE_BYTES: usize = 256 << 20;

/// A write that waits for the next commit.
#[derive(Debug)]
pub(super) struct Write {
    entry: Entry,
    rows: Vec<(&'static str, RecordBatch)>,
    blobs: Blobs,
}

impl Store {
    /// Checks and queues the new rows of a batch, whose ids were moved behind those of the store ([`Batch::rebase`]):
    /// part of the training batch of an iteration, or (`partial`) rollouts of one that was broken off. Returns the number
    /// of the write; it is durable when [`Store::sequence`] has reached it.
    pub fn append(&mut self, batch: &Batch, iteration: i64, partial: bool) -> Result<u64> {
        let next = self.writable()?.next;
        Self::check_new(batch, next, iteration)?;
        let rows = Table::ALL.into_iter().map(|table| Ok((table.name(), batch.new_rows(table)?)));
        let rows: Vec<_> = rows.collect::<Result<_>>()?;
        check_blobs(batch.blobs())?;
        let kind = if partial { Kind::Partial } else { Kind::Batch };
        let base = batch.base().trajectory;
        let trajectories = i64s(batch.trajectories(), "trajectory_id")?.values();
        let stored = trajectories.iter().copied().filter(|&id| id < base).collect();
        let entry = Entry { iteration, kind, state: None, stored, rows: BTreeMap::new() };
        self.queue(Write { entry, rows, blobs: batch.blobs().clone() }, next.max(batch.next_ids()?))
    }

    /// Closes an iteration: commits the columns computed for its batch, and the state to go on from. Durable when this
    /// returns, with all that was queued before.
    pub fn close_iteration(&mut self, batch: &Batch, state: &serde_json::Value) -> Result<u64> {
        let next = self.writable()?.next;
        let iteration = self.head.iteration;
        self.check_trained(batch, iteration)?;
        let mut rows = Vec::new();
        for (folder, level) in COMPUTED {
            rows.extend(batch.computed_table(level)?.map(|table| (folder, table)));
        }
        let entry = Entry {
            iteration,
            kind: Kind::Close,
            state: Some(state.to_string()),
            stored: Vec::new(),
            rows: BTreeMap::new(),
        };
        let sequence = self.queue(Write { entry, rows, blobs: Blobs::default() }, next)?;
        self.flush()?;
        Ok(sequence)
    }

    /// Makes everything queued durable, in one commit. Returns the number of the last write that is.
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

    /// New ids begin where the store ends, draws are new and of this iteration, and rows that are not new are there.
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
                    "the batch takes rows with {name} below {base} for stored ones, but the store has ids below {next}; \
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

    /// Computed columns belong to draws: those of a batch with other draws could never be read back.
    fn check_trained(&mut self, batch: &Batch, iteration: i64) -> Result<()> {
        let mut appended = Vec::new();
        for entry in self.entries(Some(iteration))?.iter().filter(|entry| entry.kind == Kind::Batch) {
            let range = entry.rows.get(Table::Draws.name()).cloned().unwrap_or_default();
            appended.extend(self.numbered(Table::Draws.name(), range)?);
        }
        for write in self.writable()?.queue.iter().filter(|write| write.entry.kind == Kind::Batch) {
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
            "the batch has {} draws that are not the {} draws appended for iteration {iteration}; close it with the batch \
             that was appended, with all its draws in their order",
            batch.num_draws(),
            expected.len()
        )))
    }

    /// The writer, if this store has one that can still be trusted.
    pub(super) fn writable(&mut self) -> Result<&mut Writer> {
        self.check_process()?;
        let path = self.path.display();
        match self.writer.as_mut() {
            None => Err(Error::invalid(format!("{path} is open for reading only; open it with Store.open to write"))),
            Some(Writer { poisoned: Some(why), .. }) => Err(Error::io(
                format!(
                    "{path} cannot be written any more because a write failed: {why}; what was durable before is safe: \
                     close it and open it again"
                ),
                std::io::ErrorKind::Other.into(),
            )),
            Some(writer) => Ok(writer),
        }
    }

    /// Runs a commit. Where it fails nobody knows what reached the disk, so nothing more is written.
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
        for Write { mut entry, rows, blobs } in queue {
            self.write_blobs(&blobs)?;
            for (&folder, &end) in &ends {
                entry.rows.insert(folder, end..end);
            }
            for (folder, rows) in rows.into_iter().filter(|(_, rows)| rows.num_rows() > 0) {
                let end = ends.entry(folder).or_default();
                entry.rows.insert(folder, *end..*end + rows.num_rows() as u64);
                *end += rows.num_rows() as u64;
                added.entry(folder).or_default().push(rows);
            }
            if let (Kind::Close, Some(state)) = (entry.kind, &entry.state) {
                commit.next.head.iteration += 1;
                commit.next.head.state = serde_json::from_str(state)
                    .map_err(|error| Error::internal(format!("a state is lost: {error}")))?;
            }
            entries.push(entry);
        }
        added.insert(JOURNAL, vec![journal::to_rows(&entries, self.head.sequence + 1)?]);
        // In the order in which rows refer to each other, which is the order in which files get their names: what stock
        // tools see of a commit that is just being named refers to rows that they see as well.
        for &folder in FOLDERS.iter() {
            if let Some(parts) = added.remove(folder) {
                commit.add(self, folder, parts)?;
            }
        }
        commit.next.head.sequence += entries.len() as u64;
        commit.next.head.next = after;
        commit.finish(self)
    }
}

/// A commit in the making: files under temporary names, and the manifest that will name them.
pub(super) struct Commit {
    pub(super) next: Manifest,
    staged: Vec<(&'static str, Segment)>,
    /// Files that other ones take the place of.
    replaced: Vec<(&'static str, PathBuf)>,
}

impl Commit {
    pub(super) fn begin(store: &Store) -> Self {
        let mut next = store.files.clone();
        next.head.version += 1;
        Self { next, staged: Vec::new(), replaced: Vec::new() }
    }

    /// New rows behind those of a folder. A small last file is written anew, with them behind its own.
    fn add(&mut self, store: &Store, folder: &'static str, parts: Vec<RecordBatch>) -> Result<()> {
        let mut row = store.head.end(folder);
        let mut runs = runs(parts);
        let last = store.files.of(folder).last().filter(|last| last.bytes() < SMALL_BYTES);
        if let (Some(last), Some((schema, new))) = (last, runs.first()) {
            let indices: Vec<usize> = last.pieces().map(|piece| piece.index).collect();
            let (found, kept) = last.read(store.fs.as_ref(), &store.path.join(folder), &indices)?;
            let (first_row, commit) = (last.first_row, self.next.head.version);
            if found == *schema {
                let (segment, bytes) = Segment::seal(schema, &kept, new, key_of(folder), first_row, commit)?;
                if segment.extends(last) {
                    self.next.segments.entry(folder.to_owned()).or_default().pop();
                    row = self.stage(store, folder, segment, &bytes)?;
                    runs.remove(0);
                }
            }
        }
        self.seal(store, folder, runs, row)
    }

    /// Rows as files of a folder, one for each run of parts with the same columns.
    pub(super) fn seal(&mut self, store: &Store, folder: &'static str, runs: Vec<Run>, mut row: u64) -> Result<()> {
        for (schema, run) in runs {
            let (segment, bytes) = Segment::seal(&schema, &[], &run, key_of(folder), row, self.next.head.version)?;
            row = self.stage(store, folder, segment, &bytes)?;
        }
        Ok(())
    }

    /// Writes a file under its temporary name. Returns the row after its last one.
    fn stage(&mut self, store: &Store, folder: &'static str, segment: Segment, bytes: &[u8]) -> Result<u64> {
        write(store.fs.as_ref(), &segment.staged(&store.path.join(folder)), bytes, store.sync())?;
        let row = segment.end_row();
        let end = self.next.head.rows.entry(folder.to_owned()).or_default();
        *end = row.max(*end);
        let segments = self.next.segments.entry(folder.to_owned()).or_default();
        let place = segments.partition_point(|other| other.first_row < segment.first_row);
        segments.insert(place, segment.clone());
        self.staged.push((folder, segment));
        Ok(row)
    }

    /// Takes files out of a folder, whose rows are sealed again in others, or dropped.
    pub(super) fn replace(&mut self, store: &Store, folder: &'static str, old: impl Fn(&Segment) -> bool) {
        let segments = self.next.segments.entry(folder.to_owned()).or_default();
        for segment in segments.extract_if(.., |segment| old(segment)) {
            self.replaced.push((folder, segment.path(&store.path.join(folder))));
        }
    }

    /// Publishes the manifest, which makes the commit durable, and gives the files their names.
    pub(super) fn finish(self, store: &mut Store) -> Result<()> {
        let Self { next, staged, mut replaced } = self;
        let (fs, sync) = (store.fs.as_ref(), store.sync());
        let changed: BTreeSet<&str> = staged.iter().map(|&(folder, _)| folder).collect();
        if sync != Sync::Never {
            for folder in changed {
                let folder = store.path.join(folder);
                fs.sync_folder(&folder).map_err(failed("sync folder", &folder))?;
            }
        }
        publish(fs, &store.path, &next, sync)?;
        let own = |(folder, segment): &(&'static str, Segment)| segment.path(&store.path.join(folder));
        replaced.retain(|(_, path)| !staged.iter().any(|staged| own(staged) == *path));
        let markers: BTreeSet<PathBuf> =
            replaced.iter().map(|(folder, _)| store.path.join(folder).join(MARKER)).collect();
        for marker in &markers {
            fs.write(marker, b"").map_err(failed("write", marker))?;
        }
        for (_, path) in &replaced {
            fs.remove(path).map_err(failed("remove", path))?;
        }
        for staged in &staged {
            let (from, to) = (staged.1.staged(&store.path.join(staged.0)), own(staged));
            fs.rename(&from, &to).map_err(failed("rename", &from))?;
        }
        for marker in &markers {
            fs.remove(marker).map_err(failed("remove", marker))?;
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

/// Parts with the same columns, one after the other.
type Run = (SchemaRef, Vec<RecordBatch>);

/// Parts, put together where neighbours have the same columns.
pub(super) fn runs(parts: Vec<RecordBatch>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for part in parts {
        match runs.last_mut().filter(|(schema, _)| *schema == part.schema()) {
            Some((_, run)) => run.push(part),
            None => runs.push((part.schema(), vec![part])),
        }
    }
    runs
}

/// The smallest new id of a column.
fn first_id(rows: &RecordBatch, name: &str, base: i64) -> Result<Option<i64>> {
    Ok(i64s(rows, name)?.values().iter().filter(|&&id| id >= base).min().copied())
}
