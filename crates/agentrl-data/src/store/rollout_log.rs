//! The rollout log of an iteration under way: small records in the file `live/{iteration}.records`. A run that is
//! killed before the iteration's batch is committed reads the log and continues. The commit of the batch removes the
//! file.
//!
//! The file begins with [`HEAD`]. A record is a checksum of its other bytes, the lengths of name and payload, the name,
//! and the payload. It is appended in one write, so a killed process leaves whole records. Bytes after the last record
//! with a valid checksum are ignored, and the next append cuts them off.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

#[cfg(doc)]
use super::Store;
use super::fork_check::check_process;
use super::fs::{Fs, MAX_FILE_BYTES, Tail, failed, refuse_link};
use super::sync_mode::Sync;
use crate::{Error, ErrorKind, Result};

/// The folder of rollout logs.
pub(super) const FOLDER: &str = "live";

/// The first bytes of a record file: its type and its format.
const HEAD: &[u8; 16] = b"agentrl records1";

/// Bytes of a record before its name: the checksum and two lengths.
const FRAME: usize = 16;

/// Largest size of name and payload together, in bytes. Greater lengths in a file are damage.
const MOST_RECORD: usize = 256 << 20;

/// Bytes that are read at once, unless a record is larger.
const CHUNK: u64 = 1 << 20;

/// Time since the last sync after which [`RolloutLog::append`] reports that a sync is due.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Name and payload of a record.
pub type Record = (Vec<u8>, Vec<u8>);

/// The rollout log of one iteration; see [`Store::rollout_log`]. It belongs to the process that opened the store.
#[derive(Clone, Debug)]
pub struct RolloutLog {
    iteration: i64,
    process: u32,
    file: Arc<Mutex<RecordFile>>,
}

/// The file of a rollout log.
#[derive(Debug)]
struct RecordFile {
    fs: Arc<dyn Fs>,
    store: PathBuf,
    path: PathBuf,
    sync: Sync,
    /// Offset of the end of the last whole record.
    end: u64,
    /// The file, open for appending; `None` before the first record and after a failed write.
    tail: Option<Arc<dyn Tail>>,
    /// Whether there are records that were not synced, and the time of the last sync.
    is_dirty: bool,
    synced: Instant,
    /// Reason why nothing more can be written; `None` while the log is open.
    over: Option<String>,
    /// Buffer for the record that is being written.
    record: Vec<u8>,
}

/// The open rollout logs of a writer, by iteration.
#[derive(Debug, Default)]
pub(super) struct RolloutLogs(pub(super) BTreeMap<i64, RolloutLog>);

impl RolloutLogs {
    /// Make the appended records of all logs durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.0.values().try_for_each(RolloutLog::sync)
    }
}

impl Drop for RolloutLogs {
    /// End the logs. After its store is closed, a log may belong to another writer.
    fn drop(&mut self) {
        for log in self.0.values() {
            log.end("the store is closed; open it again");
        }
    }
}

impl RolloutLog {
    /// Open the log of an iteration with the records it has, or empty if there is no file.
    pub(super) fn open(fs: Arc<dyn Fs>, store: &Path, iteration: i64, sync: Sync) -> Result<Self> {
        let path = path(store, iteration);
        refuse_link(fs.as_ref(), &path)?;
        let end = match fs.length(&path) {
            Ok(length) => scan(fs.as_ref(), &path, length, |_, _| {})?.end,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let file = RecordFile {
            fs,
            store: store.to_owned(),
            path,
            sync,
            end,
            tail: None,
            // The previous process may not have synced them.
            is_dirty: end > 0,
            synced: Instant::now(),
            over: None,
            record: Vec::new(),
        };
        Ok(Self { iteration, process: std::process::id(), file: Arc::new(Mutex::new(file)) })
    }

    /// Return the iteration of the log.
    pub fn iteration(&self) -> i64 {
        self.iteration
    }

    /// Append a record. On return the operating system has it, so a kill does not lose it. Returns whether a
    /// [`RolloutLog::sync`] is due.
    pub fn append(&self, name: &[u8], payload: &[u8]) -> Result<bool> {
        let mut file = self.lock()?;
        file.append(name, payload)?;
        Ok(match file.sync {
            Sync::Never => false,
            Sync::Always => true,
            Sync::Batch => file.synced.elapsed() >= SYNC_EVERY,
        })
    }

    /// Make the appended records durable. With [`Sync::Never`] nothing is synced.
    pub fn sync(&self) -> Result<()> {
        let mut file = self.lock()?;
        file.synced = Instant::now();
        if !file.is_dirty || file.sync == Sync::Never {
            return Ok(());
        }
        let Some(tail) = file.tail.clone() else { return file.begin().map(drop) };
        file.is_dirty = false;
        drop(file);
        // The mutex is released, so that other threads can append meanwhile.
        tail.sync().map_err(|error| {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.lost(error)
        })
    }

    /// Return all records in append order.
    pub fn records(&self) -> Result<Vec<Record>> {
        let file = self.lock()?;
        let (fs, path, end) = (file.fs.clone(), file.path.clone(), file.end);
        drop(file);
        let mut records = Vec::new();
        if end > 0 {
            scan(fs.as_ref(), &path, end, |name, payload| records.push((name.to_vec(), payload.to_vec())))?;
        }
        Ok(records)
    }

    fn lock(&self) -> Result<MutexGuard<'_, RecordFile>> {
        check_process(self.process)?;
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        match &file.over {
            None => Ok(file),
            Some(why) => {
                Err(Error::invalid(format!("the rollout log of iteration {} is closed: {why}", self.iteration)))
            }
        }
    }

    pub(super) fn end(&self, why: &str) {
        // In a forked child the mutex can be locked forever, and a log belongs to the parent.
        if check_process(self.process).is_ok() {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.over.get_or_insert_with(|| why.to_owned());
            file.tail = None;
        }
    }
}

impl RecordFile {
    fn append(&mut self, name: &[u8], payload: &[u8]) -> Result<()> {
        let length = name.len().saturating_add(payload.len());
        if length > MOST_RECORD {
            return Err(Error::invalid(format!(
                "name and payload have {length} bytes; divide the record into ones of at most {MOST_RECORD} bytes"
            )));
        }
        if self.end + (HEAD.len() + FRAME + length) as u64 > MAX_FILE_BYTES {
            return Err(Error::invalid(format!(
                "{} has {} bytes of at most {MAX_FILE_BYTES}; commit the iteration's batch, which empties it",
                self.path.display(),
                self.end
            )));
        }
        let tail = match &self.tail {
            Some(tail) => tail.clone(),
            None => self.begin()?,
        };
        self.record.clear();
        self.record.extend([0; 8]);
        self.record.extend((name.len() as u32).to_le_bytes());
        self.record.extend((payload.len() as u32).to_le_bytes());
        self.record.extend(name);
        self.record.extend(payload);
        let checksum = xxh3_64(&self.record[8..]);
        self.record[..8].copy_from_slice(&checksum.to_le_bytes());
        let written = tail.append(&self.record);
        let bytes = self.record.len() as u64;
        self.record.shrink_to(CHUNK as usize);
        // After a failed write, the next append cuts off a partial record.
        written.map_err(|error| {
            self.tail = None;
            failed("write", &self.path)(error)
        })?;
        self.end += bytes;
        self.is_dirty = true;
        Ok(())
    }

    /// Open the file after its last whole record, and create it if there is none.
    fn begin(&mut self) -> Result<Arc<dyn Tail>> {
        let folder = self.store.join(FOLDER);
        refuse_link(self.fs.as_ref(), &folder)?;
        refuse_link(self.fs.as_ref(), &self.path)?;
        self.fs.create_folder(&folder).map_err(failed("create folder", &folder))?;
        let tail = self.fs.tail(&self.path, self.end).map_err(failed("open", &self.path))?;
        if self.end == 0 {
            tail.append(HEAD).map_err(failed("write", &self.path))?;
        }
        if self.sync != Sync::Never {
            // Make the cut durable, so that the removed bytes cannot reappear after new records.
            tail.sync().map_err(|error| self.lost(error))?;
            for folder in [&folder, &self.store] {
                self.fs.sync_folder(folder).map_err(failed("sync folder", folder))?;
            }
        }
        self.end = self.end.max(HEAD.len() as u64);
        (self.is_dirty, self.synced) = (false, Instant::now());
        self.tail = Some(tail.clone());
        Ok(tail)
    }

    /// End the log with the error of a sync. A disk that lost one write can report success for the next one.
    fn lost(&mut self, error: io::Error) -> Error {
        let error = failed("sync", &self.path)(error);
        self.over = Some(format!("a sync failed: {error}; open the store again"));
        error
    }
}

/// The extent of the whole records in a file of records.
pub(super) struct Scanned {
    /// Offset of the end of the last whole record; 0 if the file does not begin with [`HEAD`].
    pub(super) end: u64,
    /// Whether the bytes after it are damaged, rather than cut off by a kill.
    pub(super) is_damaged: bool,
}

/// Read the whole records in the first `length` bytes of a file, in pieces. Stops at the first record that is damaged
/// or cut off.
pub(super) fn scan(fs: &dyn Fs, path: &Path, length: u64, mut each: impl FnMut(&[u8], &[u8])) -> Result<Scanned> {
    if length > MAX_FILE_BYTES {
        return Err(Error::corrupt(format!(
            "{} has {length} bytes, more than the {MAX_FILE_BYTES} supported; remove it",
            path.display()
        )));
    }
    let read = |at: u64, bytes: u64| {
        let end = at.saturating_add(bytes.max(CHUNK)).min(length);
        fs.read(path, at..end).map_err(failed("read", path))
    };
    let mut piece = read(0, 0)?;
    if !piece.starts_with(HEAD) {
        let is_damaged = !HEAD.starts_with(&piece[..piece.len().min(HEAD.len())]);
        if piece.len() >= HEAD.len() && piece.starts_with(&HEAD[..HEAD.len() - 1]) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} has a format that this version does not support; install a newer agentrl_core",
                    path.display()
                ),
            ));
        }
        return Ok(Scanned { end: 0, is_damaged });
    }
    // Offsets of the next record and of the piece.
    let (mut at, mut begin) = (HEAD.len() as u64, 0);
    loop {
        let rest = length - at;
        if rest < FRAME as u64 {
            return Ok(Scanned { end: at, is_damaged: false });
        }
        let mut here = (at - begin) as usize;
        if piece.len() < here + FRAME {
            (piece, begin, here) = (read(at, 0)?, at, 0);
        }
        let word = |from: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| piece[here + from + byte])) as usize;
        let (name, payload) = (word(8), word(12));
        let bytes = FRAME + name + payload;
        if bytes > FRAME + MOST_RECORD {
            return Ok(Scanned { end: at, is_damaged: true });
        }
        if bytes as u64 > rest {
            return Ok(Scanned { end: at, is_damaged: false });
        }
        if piece.len() < here + bytes {
            (piece, begin, here) = (read(at, bytes as u64)?, at, 0);
        }
        let record = &piece[here..here + bytes];
        if xxh3_64(&record[8..]).to_le_bytes() != record[..8] {
            return Ok(Scanned { end: at, is_damaged: true });
        }
        each(&record[FRAME..FRAME + name], &record[FRAME + name..]);
        at += bytes as u64;
    }
}

pub(super) fn path(store: &Path, iteration: i64) -> PathBuf {
    store.join(FOLDER).join(file_name(iteration))
}

fn file_name(iteration: i64) -> String {
    format!("{iteration}.records")
}

/// Return the iterations that have a log. Files with other names are not the store's.
pub(super) fn iterations(fs: &dyn Fs, store: &Path) -> Result<Vec<i64>> {
    let folder = store.join(FOLDER);
    let names = fs.list(&folder).map_err(failed("list", &folder))?;
    let number = |name: &String| {
        let iteration = name.strip_suffix(".records")?.parse().ok()?;
        (file_name(iteration) == *name).then_some(iteration)
    };
    Ok(names.iter().filter_map(number).collect())
}
