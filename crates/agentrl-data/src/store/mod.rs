//! The durable form: a directory of sealed Arrow IPC files, and numbered manifests that say which of them count.
//!
//! ```text
//! run/
//!   nodes/00000003.arrow  steps/…  trajectories/…  draws/…  tasks/…       facts, one file per table and commit
//!   draw_columns/…  step_columns/…  node_columns/…                        what was computed for them
//!   manifest/00000003.json                                                 the commit: the files that exist since then
//!   lock                                                                   held by the one writer
//! ```
//!
//! Every file is written under a temporary name, synced, and renamed; the manifest comes last. A file is never changed
//! afterwards, so stock tools can read the folders while training runs.

mod fs;
mod manifest;

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use crate::batch::{Batch, Level, NextIds, i64s};
use crate::schema::Table;
use crate::{Error, ErrorKind, Result, arrow_bug, ipc};
use manifest::{Manifest, Segment};

/// Folders of computed columns and the level that each holds.
const COMPUTED: [(&str, Level); 3] =
    [("draw_columns", Level::Draw), ("step_columns", Level::Step), ("node_columns", Level::NodeToken)];

/// A store on disk. One writer at a time; readers see the commits that were there when they opened.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    manifest: Manifest,
    /// Held open by the writer; the lock goes with it.
    lock: Option<File>,
}

impl Store {
    /// Opens a store for writing, creating it if there is none.
    pub fn open(path: &Path) -> Result<Self> {
        fs::create_folder(path)?;
        let lock = fs::lock(&path.join("lock"))?;
        fs::create_folder(&path.join("manifest"))?;
        let latest = Manifest::latest(&path.join("manifest"))?;
        let is_new = latest.is_none();
        let manifest = latest.unwrap_or_default();
        let tables = Table::ALL.iter().map(|table| table.name()).chain(COMPUTED.iter().map(|&(name, _)| name));
        let mut left_behind = unfinished(&path.join("manifest"), manifest.version)?;
        for table in tables {
            fs::create_folder(&path.join(table))?;
            left_behind.extend(unfinished(&path.join(table), manifest.version)?);
        }
        left_behind.iter().try_for_each(|path| fs::remove(path))?;
        if is_new {
            // Readers can open a store before its first commit.
            manifest.publish(&path.join("manifest"))?;
        }
        Ok(Self { path: path.to_owned(), manifest, lock: Some(lock) })
    }

    /// Opens a store for reading: the commits there are now.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        let manifest = Manifest::latest(&path.join("manifest"))?
            .ok_or_else(|| Error::not_found(format!("{} holds no store; check the path of the run", path.display())))?;
        Ok(Self { path: path.to_owned(), manifest, lock: None })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of iterations that are closed: where a run goes on.
    pub fn iteration(&self) -> i64 {
        self.manifest.iteration
    }

    /// Number of the last commit.
    pub fn version(&self) -> u64 {
        self.manifest.version
    }

    /// What the last [`Store::close_iteration`] was told to remember, as JSON.
    pub fn state(&self) -> &serde_json::Value {
        &self.manifest.state
    }

    /// First ids that the next batch may take.
    pub fn next_ids(&self) -> NextIds {
        self.manifest.next
    }

    /// Commits the tables of a batch whose ids were moved behind those of the store ([`Batch::rebase`]).
    /// Returns the commit's number; it is on disk when this returns.
    pub fn append(&mut self, batch: &Batch, iteration: i64) -> Result<u64> {
        self.check_writable()?;
        let first = [
            (first_id(batch, Table::Nodes, "node_id")?, self.manifest.next.node, "node_id"),
            (first_id(batch, Table::Trajectories, "trajectory_id")?, self.manifest.next.trajectory, "trajectory_id"),
            (first_id(batch, Table::Trajectories, "group_id")?, self.manifest.next.group, "group_id"),
            (first_id(batch, Table::Draws, "draw_id")?, self.manifest.next.draw, "draw_id"),
        ];
        for (found, next, name) in first {
            if let Some(found) = found.filter(|&found| found < next) {
                return Err(Error::invalid(format!(
                    "the batch has {name} {found}, but ids below {next} are taken in the store; append store.rebase(batch)"
                )));
            }
        }
        let tables = Table::ALL.into_iter().map(|table| (table.name(), batch.table(table).clone()));
        let mut next = self.manifest.clone();
        next.next = next.next.max(batch.next_ids()?);
        self.commit(next, tables.filter(|(_, rows)| rows.num_rows() > 0), iteration)
    }

    /// Closes an iteration: commits the columns computed for its batch, and the state to go on from.
    pub fn close_iteration(&mut self, batch: &Batch, state: serde_json::Value) -> Result<u64> {
        self.check_writable()?;
        let mut tables = Vec::new();
        for (name, level) in COMPUTED {
            if let Some(rows) = batch.computed_table(level)? {
                tables.push((name, rows));
            }
        }
        let iteration = self.manifest.iteration;
        self.check_trained(batch, iteration)?;
        let mut next = self.manifest.clone();
        next.iteration += 1;
        next.state = state;
        self.commit(next, tables.into_iter(), iteration)
    }

    /// Computed columns belong to draws: those of a batch with other draws could never be read back.
    fn check_trained(&self, batch: &Batch, iteration: i64) -> Result<()> {
        let committed = match self.commit_of(iteration) {
            Some(commit) => self.read(|segment| segment.table == Table::Draws.name() && segment.commit == commit)?,
            None => Vec::new(),
        };
        let committed = joined(&Table::Draws.schema(), &committed)?;
        if i64s(&committed, "draw_id")?.values() == i64s(batch.draws(), "draw_id")?.values() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the batch has {} draws that are not the {} draws committed for iteration {iteration}; close it with the batch \
             that was appended, with all its draws in their order",
            batch.num_draws(),
            committed.num_rows()
        )))
    }

    fn check_writable(&self) -> Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} is open for reading only; open it with Store.open to write",
            self.path.display()
        )))
    }

    fn commit(
        &mut self,
        mut next: Manifest,
        tables: impl Iterator<Item = (&'static str, RecordBatch)>,
        iteration: i64,
    ) -> Result<u64> {
        next.version += 1;
        for (table, rows) in tables {
            let file = format!("{table}/{:08}.arrow", next.version);
            let bytes = ipc::encode(&rows)?;
            fs::publish(&self.path.join(&file), &bytes)?;
            next.segments.push(Segment::new(table, file, next.version, iteration, rows.num_rows(), &bytes));
        }
        next.publish(&self.path.join("manifest"))?;
        self.manifest = next;
        Ok(self.manifest.version)
    }

    /// The committed rows of a table, of all iterations, in the order of commits.
    pub fn table(&self, table: Table) -> Result<Vec<RecordBatch>> {
        self.read(|segment| segment.table == table.name())
    }

    /// The files of a table of facts or of computed columns, in the order of commits, and how many of the rows of each
    /// are committed.
    pub fn files(&self, name: &str) -> Result<Vec<(PathBuf, usize)>> {
        if COMPUTED.iter().all(|&(computed, _)| computed != name) {
            Table::from_name(name)?;
        }
        let segments = self.manifest.segments.iter().filter(|segment| segment.table == name);
        Ok(segments.map(|segment| (self.path.join(&segment.file), segment.rows)).collect())
    }

    /// The committed rows of a table as one; empty where there are none.
    pub fn whole_table(&self, table: Table) -> Result<RecordBatch> {
        joined(&table.schema(), &self.table(table)?)
    }

    /// The batch of an iteration as it was trained, from its draws: tables and computed columns.
    pub fn batch(&self, iteration: i64) -> Result<Batch> {
        let commit = self.commit_of(iteration).ok_or_else(|| {
            Error::not_found(format!(
                "the store has no training batch of iteration {iteration}; {} iterations are closed, from 0 on (one whose \
                 groups were all rejected has no batch)",
                self.manifest.iteration
            ))
        })?;
        let mut tables = Vec::with_capacity(Table::COUNT);
        for table in Table::ALL {
            let rows = self.read(|segment| segment.table == table.name() && segment.commit == commit)?;
            tables.push(joined(&table.schema(), &rows)?);
        }
        let tables = tables.try_into().map_err(|_| Error::internal("the tables became another number"))?;
        let mut batch = Batch::new(tables)?;
        for (name, _) in COMPUTED {
            for rows in self.read(|segment| segment.table == name && segment.iteration == iteration)? {
                batch = batch.with_computed_table(&rows)?;
            }
        }
        Ok(batch)
    }

    /// Whether the batch of an iteration was committed with draws.
    pub fn has_batch(&self, iteration: i64) -> bool {
        self.commit_of(iteration).is_some()
    }

    /// The commit that holds the training batch of an iteration.
    fn commit_of(&self, iteration: i64) -> Option<u64> {
        let drawn = |segment: &&Segment| segment.table == Table::Draws.name() && segment.iteration == iteration;
        self.manifest.segments.iter().rev().find(drawn).map(|segment| segment.commit)
    }

    fn read(&self, wanted: impl Fn(&Segment) -> bool) -> Result<Vec<RecordBatch>> {
        let mut rows = Vec::new();
        for segment in self.manifest.segments.iter().filter(|segment| wanted(segment)) {
            let path = self.path.join(&segment.file);
            let bytes = fs::read(&path)?;
            segment.verify(&path, &bytes)?;
            rows.push(ipc::decode(&path.display().to_string(), &bytes)?);
        }
        Ok(rows)
    }
}

/// What a writer left in a folder that died before its commit; readers of the folder would take it for committed.
fn unfinished(folder: &Path, version: u64) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in fs::list(folder)? {
        let path = folder.join(&name);
        let number = name.strip_suffix(".arrow").and_then(|number| number.parse::<u64>().ok());
        // Only the commit after the last one can be unfinished.
        if name.strip_suffix(".tmp").is_some() || number == Some(version + 1) {
            found.push(path);
        } else if number.is_some_and(|number| number > version) {
            return Err(Error::corrupt(format!(
                "{} belongs to a later commit than the last manifest, {version}; restore the folder manifest from a copy",
                path.display()
            )));
        }
    }
    Ok(found)
}

fn first_id(batch: &Batch, table: Table, name: &str) -> Result<Option<i64>> {
    Ok(i64s(batch.table(table), name)?.values().iter().min().copied())
}

fn joined(schema: &SchemaRef, rows: &[RecordBatch]) -> Result<RecordBatch> {
    for part in rows {
        if part.schema().fields() != schema.fields() {
            return Err(Error::new(ErrorKind::Schema, "a segment has other columns than format v1".to_owned()));
        }
    }
    arrow_select::concat::concat_batches(schema, rows).map_err(arrow_bug)
}

#[cfg(test)]
mod tests;
