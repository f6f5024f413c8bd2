//! The durable form: a directory of sealed Arrow IPC files, and a numbered manifest that lists those that count.
//!
//! ```text
//! run/
//!   nodes/000000000000.arrow  steps/…  trajectories/…  draws/…  tasks/…  decisions/…   facts
//!   draw_columns/…  step_columns/…  node_columns/…                                     what was computed for them
//!   metrics/…                      what was measured in closed iterations
//!   states/…                       what components remember as arrays, and what of it changed
//!   journal/…                      log of writes: one row for each append and closed iteration: its rows, its state
//!   live/3.records                 rollout log of an iteration that is under way, until its batch is committed
//!   blobs/ab/abcd…                 contents of images and the like, by their SHA-256
//!   manifest/00000003.json         the last commit
//!   lock                           held by the one writer
//! ```
//!
//! The rows of a folder are numbered through, and a file is named after its first row. A commit writes its files under
//! temporary names, syncs them, and publishes a manifest that names them: from there on it is durable, and the files get
//! their own names. So stock tools that read `*.arrow` never see a row that is not committed. A file is never changed: a
//! small last file is replaced, at once, by one that begins with the same bytes and goes on with the new rows, so files
//! stay few and every reader finds its rows where they were. The footer of a file tells of its blocks, the record batches
//! that are read and checked at once ([`blocks`]). A crash between manifest and names is made good by the next
//! open.

mod blob_files;
mod blobs;
mod blocks;
mod chosen;
mod columns;
mod commit;
mod compact;
mod folders;
mod footer;
mod fs;
mod maintain;
mod manifest;
mod merge_policy;
mod merged_columns;
mod process;
mod queue;
mod read;
mod recover;
mod rollout_log;
mod rollout_logs;
mod segment;
mod state_arrays;
mod states;
mod sync;
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
use queue::Write;
use rollout_log::RolloutLogs;
use states::StoredArrays;

pub use columns::{Blocks, Texts};
pub use compact::{Enter, compact};
pub use footer::Bounds;
pub use process::check_process;
pub use rollout_log::{Record, RolloutLog};
pub use states::{Arrays, Dtype, StateArray};
pub use sync::Sync;
pub use verify::Finding;

/// A store on disk. One writer at a time; readers see the commits that were there when they opened, until they
/// [`refresh`](Store::refresh).
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    fs: Arc<dyn Fs>,
    /// The rows that are seen.
    head: Head,
    /// The files they lie in: as of the head's commit, or of a later one.
    files: Manifest,
    writer: Option<Writer>,
}

/// The state of the writer.
#[derive(Debug)]
struct Writer {
    /// The process that opened it.
    process: u32,
    sync: Sync,
    /// Writes that are not durable yet, and how many bytes they hold.
    queue: Vec<Write>,
    queued_bytes: usize,
    /// Next ids, sequence number and declared facts after the queue.
    next: NextIds,
    sequence: u64,
    facts: Option<Facts>,
    /// The token columns of nodes after the queue.
    row_types: RowTypes,
    /// The arrays of the state after the queue, once they were looked at.
    states: Option<StoredArrays>,
    /// The first failure; never reset, because a disk that lost one write can claim that the next one succeeded.
    poisoned: Option<String>,
    /// Whether there can be blobs that no node refers to: a writer that was killed, or a drop that was broken off, leaves
    /// some. To find them all nodes are read.
    has_unused_blobs: bool,
    /// Held by a merge of files.
    compacting: Arc<()>,
    /// Ended before the lock is given up.
    rollout_logs: RolloutLogs,
    _lock: Box<dyn Any + Send + std::marker::Sync>,
}

impl Store {
    /// Opens a store for writing, creating it if there is none.
    pub fn open(path: &Path, sync: Sync) -> Result<Self> {
        Self::open_on(Arc::new(Disk), path, sync)
    }

    /// Opens a store for reading: the commits there are now.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        Self::read_on(Arc::new(Disk), path)
    }

    /// Opens a store for reading what another [`Store`] saw when its [`snapshot`](Store::snapshot) was taken.
    pub fn open_snapshot(path: &Path, snapshot: &str) -> Result<Self> {
        let head: Head = serde_json::from_str(snapshot)
            .map_err(|error| Error::invalid(format!("snapshot is not one of Store.snapshot: {error}")))?;
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

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Return the process that may write the store, if it was opened for that.
    pub fn writer_process(&self) -> Option<u32> {
        self.writer.as_ref().map(|writer| writer.process)
    }

    /// A forked child has neither the lock of its parent's writer nor its place in the files.
    fn check_process(&self) -> Result<()> {
        self.writer_process().map_or(Ok(()), check_process)
    }

    /// Return the number of iterations that are closed: a run goes on with the next.
    pub fn iteration(&self) -> i64 {
        self.head.iteration
    }

    /// Number of the last commit.
    pub fn version(&self) -> u64 {
        self.head.version
    }

    /// Number of the last write (append or closed iteration) that is durable.
    pub fn sequence(&self) -> u64 {
        self.head.sequence
    }

    /// Return the state that the last [`Store::close_iteration`] committed, as JSON.
    pub fn state(&self) -> &str {
        &self.head.state
    }

    /// First ids that the next batch may take.
    pub fn next_ids(&self) -> NextIds {
        self.writer.as_ref().map_or(self.head.next, |writer| writer.next)
    }

    /// Return the extent of this store as text: [`Store::open_snapshot`] finds the same rows in any process.
    pub fn snapshot(&self) -> Result<String> {
        serde_json::to_string(&self.head)
            .map_err(|error| Error::internal("the snapshot cannot be written as JSON").with_source(error))
    }

    /// Moves a reader on to the commits that are there now; a writer sees all of its own at all times.
    pub fn refresh(&mut self) -> Result<()> {
        self.check_process()?;
        if self.writer.is_some() {
            return Ok(());
        }
        *self = Self::read_on(self.fs.clone(), &self.path)?;
        Ok(())
    }

    /// Makes what is queued durable and gives the lock back.
    pub fn close(mut self) -> Result<()> {
        if self.writer.as_ref().is_some_and(|writer| !writer.queue.is_empty()) {
            self.flush()?;
        }
        self.writer.as_ref().map_or(Ok(()), |writer| writer.rollout_logs.sync())
    }
}

/// Called by the thread that forks the process, just before: no lock is then half taken. [`after_fork`] follows.
pub fn before_fork() {
    fs::before_fork();
}

/// Called by the thread that forked, in the parent and in the child. The child gives back what it inherited of its
/// parent's locks: they are to go with the parent.
pub fn after_fork(is_child: bool) {
    fs::after_fork(is_child);
}

/// Read the bytes of a manifest, or return what is wrong with them; for the fuzzers.
#[doc(hidden)]
pub fn read_manifest(bytes: &[u8]) -> Result<()> {
    Manifest::parse(Path::new("manifest"), bytes).map(drop)
}

/// Reads the JSON of a manifest as if its checksum were right; for the fuzzers.
#[doc(hidden)]
pub fn read_manifest_body(body: &str) -> Result<()> {
    Manifest::parse(Path::new("manifest"), manifest::with_checksum(body).as_bytes()).map(drop)
}

#[cfg(test)]
mod tests;
