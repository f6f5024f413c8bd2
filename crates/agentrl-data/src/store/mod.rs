//! The durable form: a directory of sealed Arrow IPC files, and a numbered manifest that lists the committed ones.
//!
//! ```text
//! run/
//!   nodes/000000000000-00000001.arrow  steps/…  trajectories/…  draws/…  tasks/…  decisions/…   facts
//!   draw_columns/…  step_columns/…  node_columns/…      columns computed from them
//!   metrics/…                      metrics of closed iterations
//!   states/…                       state of components as arrays, and changes of it
//!   journal/…                      write log: one row for each append and closed iteration, with its rows and state
//!   live/3.records                 rollout log of an iteration under way, until its batch is committed
//!   blobs/ab/abcd…                 contents of images and other blobs, by their SHA-256
//!   manifest/00000003.json         the last commit
//!   lock                           locked by the only writer
//! ```
//!
//! The rows of a folder are numbered consecutively, and a file is named after its first row and its commit. A commit
//! writes its files under temporary names, syncs them, and publishes a manifest that lists them. From then on the
//! commit is durable, and its files are renamed to their final names. So stock tools that read `*.arrow` never see a
//! row that is not committed. If a writer is killed after it publishes the manifest and before it renames all files,
//! the next open for writing completes the renames.
//!
//! A file never changes. A commit can replace small files at the end of a folder by a new file, which holds their rows
//! and then the new ones, so files stay few. Rows keep their numbers, so a reader finds them in the new file. The
//! footer of a file lists its blocks, the record batches that are read and checked as a whole ([`blocks`]).

mod blob_files;
mod blocks;
mod column_scan;
mod column_union;
mod commit;
mod compact;
mod drop_iterations;
mod folders;
mod footer;
mod fork_check;
mod fs;
mod manifest;
mod merge_policy;
mod queued_write;
mod read;
mod recover;
mod rollout_log;
mod row_selection;
mod segment;
mod state_rows;
mod store_blobs;
mod store_rollout_logs;
mod store_state;
mod sync_mode;
mod verify;
mod write_log;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::batch::NextIds;
use crate::facts::Facts;
use crate::token_columns::RowTypes;
use crate::{Error, Result};
use fs::{Disk, Fs, failed, writer_lock};
use manifest::{Head, Manifest};
use queued_write::Write;
use rollout_log::RolloutLogs;
use state_rows::StoredArrays;

pub use column_scan::{Blocks, Texts};
pub use compact::{Enter, compact};
pub use footer::Bounds;
pub use fork_check::check_process;
pub use rollout_log::{Record, RolloutLog};
pub use state_rows::{Arrays, Dtype, StateArray};
pub use sync_mode::Sync;
pub use verify::Finding;

/// A store on disk, with one writer at a time. A reader sees the commits that existed when it was opened, until it
/// calls [`refresh`](Store::refresh).
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    fs: Arc<dyn Fs>,
    /// The visible rows.
    head: Head,
    /// The files with these rows, as of the head's commit or a later one.
    files: Manifest,
    writer: Option<Writer>,
}

/// The state of the writer.
#[derive(Debug)]
struct Writer {
    /// The process that opened the store.
    process: u32,
    sync: Sync,
    /// Writes that are not durable yet, and their size in bytes.
    queue: Vec<Write>,
    queued_bytes: usize,
    /// Next ids, sequence number and declared facts, including those of the queue.
    next: NextIds,
    sequence: u64,
    facts: Option<Facts>,
    /// The token columns of nodes, including those of the queue.
    row_types: RowTypes,
    /// The arrays of the state, including those of the queue; `None` until they are first needed.
    states: Option<StoredArrays>,
    /// The first failure. It is never reset, because a disk that lost one write can report success for the next one.
    poisoned: Option<String>,
    /// Whether there can be blobs that no node refers to: a killed writer or an interrupted drop leaves some. A search
    /// for them reads all nodes.
    has_unused_blobs: bool,
    /// Cloned by a compaction for as long as it runs.
    compacting: Arc<()>,
    /// The open rollout logs. They are ended before the lock is released.
    rollout_logs: RolloutLogs,
    _lock: Box<dyn Any + Send + std::marker::Sync>,
}

impl Store {
    /// Open a store for writing, and create it if it does not exist.
    pub fn open(path: &Path, sync: Sync) -> Result<Self> {
        Self::open_on(Arc::new(Disk), path, sync)
    }

    /// Open a store for reading, as of its last commit.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        Self::read_on(Arc::new(Disk), path)
    }

    /// Open a store for reading the rows that another [`Store`] saw when its [`snapshot`](Store::snapshot) was taken.
    pub fn open_snapshot(path: &Path, snapshot: &str) -> Result<Self> {
        let head: Head = serde_json::from_str(snapshot).map_err(|error| {
            Error::invalid(format!("snapshot is not a text that Store.snapshot returned ({error}); give such a text"))
        })?;
        let store = Self::open_read_only(path)?;
        if store.head.version < head.version {
            return Err(Error::not_found(format!(
                "{} ends with commit {}, the snapshot is of commit {}; check the path of the run",
                path.display(),
                store.head.version,
                head.version
            )));
        }
        Ok(Self { head, ..store })
    }

    fn open_on(fs: Arc<dyn Fs>, path: &Path, sync: Sync) -> Result<Self> {
        fs.create_folder(path).map_err(failed("create folder", path))?;
        let lock = writer_lock(fs.as_ref(), &path.join("lock"))?;
        let files = recover::recover(fs.as_ref(), path, sync)?;
        let writer = Writer {
            process: std::process::id(),
            sync,
            queue: Vec::new(),
            queued_bytes: 0,
            next: files.head.next,
            sequence: files.head.sequence,
            facts: files.head.declared(),
            row_types: files.head.row_types.clone(),
            states: None,
            poisoned: None,
            has_unused_blobs: true,
            compacting: Arc::default(),
            rollout_logs: RolloutLogs::default(),
            _lock: lock,
        };
        let mut store = Self::new(fs, path, files, Some(writer));
        store.remove_ended_rollout_logs()?;
        Ok(store)
    }

    fn read_on(fs: Arc<dyn Fs>, path: &Path) -> Result<Self> {
        let files = Manifest::latest(fs.as_ref(), path)?
            .ok_or_else(|| Error::not_found(format!("{} is not a store; check the path of the run", path.display())))?;
        Ok(Self::new(fs, path, files, None))
    }

    fn new(fs: Arc<dyn Fs>, path: &Path, files: Manifest, writer: Option<Writer>) -> Self {
        let (path, head) = (path.to_owned(), files.head.clone());
        Self { path, fs, head, files, writer }
    }

    /// Return the directory of the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Return the id of the process that opened the store for writing; `None` if it is open for reading only.
    pub fn writer_process(&self) -> Option<u32> {
        self.writer.as_ref().map(|writer| writer.process)
    }

    /// Reject use in a forked child, which has neither the parent's lock nor its position in the files.
    fn check_process(&self) -> Result<()> {
        self.writer_process().map_or(Ok(()), check_process)
    }

    /// Return the number of closed iterations, which is also the iteration that a run continues with.
    pub fn iteration(&self) -> i64 {
        self.head.iteration
    }

    /// Return the number of the last commit.
    pub fn version(&self) -> u64 {
        self.head.version
    }

    /// Return the number of the last durable write (append or closed iteration).
    pub fn sequence(&self) -> u64 {
        self.head.sequence
    }

    /// Return the state that the last [`Store::close_iteration`] committed, as JSON.
    pub fn state(&self) -> &str {
        &self.head.state
    }

    /// Return the first ids that the next batch may use.
    pub fn next_ids(&self) -> NextIds {
        self.writer.as_ref().map_or(self.head.next, |writer| writer.next)
    }

    /// Return the extent of this store as text. [`Store::open_snapshot`] opens the same rows in any process.
    pub fn snapshot(&self) -> Result<String> {
        serde_json::to_string(&self.head)
            .map_err(|error| Error::internal("the snapshot cannot be written as JSON").with_source(error))
    }

    /// Move a reader to the last commit. A writer always sees all its commits, so this changes nothing for it.
    pub fn refresh(&mut self) -> Result<()> {
        self.check_process()?;
        if self.writer.is_some() {
            return Ok(());
        }
        *self = Self::read_on(self.fs.clone(), &self.path)?;
        Ok(())
    }

    /// Make queued writes durable, and release the lock.
    pub fn close(mut self) -> Result<()> {
        if self.writer.as_ref().is_some_and(|writer| !writer.queue.is_empty()) {
            self.flush()?;
        }
        self.writer.as_ref().map_or(Ok(()), |writer| writer.rollout_logs.sync())
    }
}

/// Prepare for a fork. The forking thread calls it just before, so that no other thread is in the middle of taking a
/// lock. [`after_fork`] must follow.
pub fn before_fork() {
    fs::before_fork();
}

/// Continue after a fork. The forking thread calls it in the parent and in the child. The child closes the lock files
/// that it inherited, so that the parent's locks end with the parent.
pub fn after_fork(is_child: bool) {
    fs::after_fork(is_child);
}

/// Parse the bytes of a manifest; for the fuzzers.
#[doc(hidden)]
pub fn read_manifest(bytes: &[u8]) -> Result<()> {
    Manifest::parse(Path::new("manifest"), bytes).map(drop)
}

/// Parse the JSON of a manifest with a valid checksum added; for the fuzzers.
#[doc(hidden)]
pub fn read_manifest_body(body: &str) -> Result<()> {
    Manifest::parse(Path::new("manifest"), manifest::with_checksum(body).as_bytes()).map(drop)
}

#[cfg(test)]
mod tests;
