//! The journal of an iteration that is under way: what a run has to know again if it is killed before the iteration's batch
//! is there. Small records in a file of their own, `live/{iteration}.records`, which goes when the batch is committed.
//!
//! The file begins with [`HEAD`]. A record is a checksum of all that follows of it, the lengths of name and payload, and the
//! two. It is one write, so a killed process leaves whole records; behind the last one whose checksum is right nothing
//! counts, and the next append cuts it off.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::fs::{Fs, MOST_BYTES, Tail, failed, refuse_link};
use super::verify::Finding;
use super::{Store, Sync, check_process};
use crate::{Error, ErrorKind, Result};

/// The folder of journals.
pub(super) const FOLDER: &str = "live";

/// What a file of records begins with: what it is, and in which format.
const HEAD: &[u8; 16] = b"agentrl records1";

/// Bytes of a record before its name: checksum and two lengths.
const FRAME: usize = 16;

/// Bytes that a record can have. What claims more is no record.
const MOST_RECORD: usize = 256 << 20;

/// Bytes that are read at once, unless a record has more.
const CHUNK: u64 = 1 << 20;

/// How old the oldest record may become that only the operating system knows of.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Name and payload of a record.
pub type Record = (Vec<u8>, Vec<u8>);

/// The journal of one iteration; see [`Store::journal`]. It belongs to the process that opened the store.
#[derive(Clone, Debug)]
pub struct Journal {
    iteration: i64,
    process: u32,
    live: Arc<Mutex<Live>>,
}

/// The file of a journal.
#[derive(Debug)]
struct Live {
    fs: Arc<dyn Fs>,
    store: PathBuf,
    path: PathBuf,
    sync: Sync,
    /// Bytes of the file that count.
    end: u64,
    /// Where records are put; `None` before the first, and where a write failed.
    tail: Option<Arc<dyn Tail>>,
    /// Whether there are records that were not synced, and when they were last.
    is_dirty: bool,
    synced: Instant,
    /// Why nothing more can be written.
    over: Option<String>,
    /// The record that is being written.
    record: Vec<u8>,
}

/// The journals that a writer has open.
#[derive(Debug, Default)]
pub(super) struct Journals(BTreeMap<i64, Journal>);

impl Store {
    /// The journal of an iteration whose batch is not committed yet, as it was left, or empty. The commit of the batch, or
    /// of the end of the iteration, removes it.
    pub fn journal(&mut self, iteration: i64) -> Result<Journal> {
        self.writable()?;
        if iteration < self.head.iteration || self.has_batch(iteration)? {
            return Err(Error::invalid(format!(
                "iteration is {iteration}, whose batch is in the store, so that its journal is over; {} is the one to go \
                 on with",
                self.head.iteration
            )));
        }
        if let Some(journal) = self.writable()?.journals.0.get(&iteration) {
            return Ok(journal.clone());
        }
        let path = path(&self.path, iteration);
        refuse_link(self.fs.as_ref(), &path)?;
        let end = match self.fs.length(&path) {
            Ok(length) => scan(self.fs.as_ref(), &path, length, |_, _| {})?.end,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let live = Live {
            fs: self.fs.clone(),
            store: self.path.clone(),
            path,
            sync: self.sync(),
            end,
            tail: None,
            // Nobody knows whether the process before synced them.
            is_dirty: end > 0,
            synced: Instant::now(),
            over: None,
            record: Vec::new(),
        };
        let journal = Journal { iteration, process: std::process::id(), live: Arc::new(Mutex::new(live)) };
        self.writable()?.journals.0.insert(iteration, journal.clone());
        Ok(journal)
    }

    /// Removes the journals of some iterations, whose batches were just committed.
    pub(super) fn end_journals(&mut self, iterations: impl Iterator<Item = i64>) -> Result<()> {
        let ended: BTreeSet<i64> = iterations.collect();
        for iteration in &ended {
            if let Some(journal) = self.writer.as_mut().and_then(|writer| writer.journals.0.remove(iteration)) {
                journal.end(&format!("the batch of iteration {iteration} is committed"));
            }
        }
        let fs = self.fs.as_ref();
        let left = self::iterations(fs, &self.path)?.into_iter().filter(|iteration| ended.contains(iteration));
        left.map(|iteration| path(&self.path, iteration))
            .try_for_each(|path| fs.remove(&path).map_err(failed("remove", &path)))
    }

    /// Removes what a writer that was killed in a commit has left of its journal.
    pub(super) fn remove_ended_journals(&mut self) -> Result<()> {
        for iteration in iterations(self.fs.as_ref(), &self.path)? {
            // Where the store cannot tell, whoever asks for the journal is told why.
            if iteration < self.head.iteration || self.has_batch(iteration).unwrap_or_default() {
                let path = path(&self.path, iteration);
                self.fs.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    /// What is wrong with the journals. An end that was cut off is not: that is what a kill leaves.
    pub(super) fn verify_journals(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for iteration in iterations(self.fs.as_ref(), &self.path)? {
            let path = path(&self.path, iteration);
            let found = match self.fs.length(&path) {
                // The commit of its batch removed it just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                length => length
                    .map_err(failed("read", &path))
                    .and_then(|length| Ok((length, scan(self.fs.as_ref(), &path, length, |_, _| {})?))),
            };
            let message = match found {
                Ok((length, Scanned { end, is_damaged: true })) => {
                    format!("{} is damaged in bytes {end} to {length}: what is there is left out", path.display())
                }
                Ok(_) => continue,
                Err(error) => error.to_string(),
            };
            findings.push(Finding { folder: FOLDER.to_owned(), kind: "damage", id: Some(iteration), message });
        }
        Ok(findings)
    }
}

impl Journals {
    /// Makes what was appended durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.0.values().try_for_each(Journal::sync)
    }
}

impl Drop for Journals {
    /// Without its store a journal may be another writer's.
    fn drop(&mut self) {
        for journal in self.0.values() {
            journal.end("the store is closed");
        }
    }
}

impl Journal {
    /// The iteration.
    pub fn iteration(&self) -> i64 {
        self.iteration
    }

    /// Puts a record behind the others. The operating system has it when this returns: a kill does not lose it. Says whether
    /// the time has come to [`Journal::sync`].
    pub fn append(&self, name: &[u8], payload: &[u8]) -> Result<bool> {
        let mut live = self.lock()?;
        live.append(name, payload)?;
        Ok(match live.sync {
            Sync::Never => false,
            Sync::Always => true,
            Sync::Batch => live.synced.elapsed() >= SYNC_EVERY,
        })
    }

    /// Makes what was appended durable.
    pub fn sync(&self) -> Result<()> {
        let mut live = self.lock()?;
        live.synced = Instant::now();
        if !live.is_dirty || live.sync == Sync::Never {
            return Ok(());
        }
        let Some(tail) = live.tail.clone() else { return live.begin().map(drop) };
        live.is_dirty = false;
        drop(live);
        // Others append meanwhile.
        tail.sync().map_err(|error| {
            let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            live.lost(error)
        })
    }

    /// All records, in the order in which they were appended.
    pub fn records(&self) -> Result<Vec<Record>> {
        let live = self.lock()?;
        let (fs, path, end) = (live.fs.clone(), live.path.clone(), live.end);
        drop(live);
        let mut records = Vec::new();
        if end > 0 {
            scan(fs.as_ref(), &path, end, |name, payload| records.push((name.to_vec(), payload.to_vec())))?;
        }
        Ok(records)
    }

    fn lock(&self) -> Result<MutexGuard<'_, Live>> {
        check_process(self.process)?;
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        match &live.over {
            None => Ok(live),
            Some(why) => Err(Error::invalid(format!("the journal of iteration {} is over: {why}", self.iteration))),
        }
    }

    fn end(&self, why: &str) {
        // The lock of a forked child can be taken for good; a journal is its parent's.
        if check_process(self.process).is_ok() {
            let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            live.over.get_or_insert_with(|| why.to_owned());
            live.tail = None;
        }
    }
}

impl Live {
    fn append(&mut self, name: &[u8], payload: &[u8]) -> Result<()> {
        let length = name.len().saturating_add(payload.len());
        if length > MOST_RECORD {
            return Err(Error::invalid(format!(
                "name and payload have {length} bytes, but a record can have {MOST_RECORD}; divide it"
            )));
        }
        if self.end + (HEAD.len() + FRAME + length) as u64 > MOST_BYTES {
            return Err(Error::invalid(format!(
                "{} has {} bytes and can have {MOST_BYTES}; commit the iteration's batch, which empties it",
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
        // What is half there is cut off by the next append.
        written.map_err(|error| {
            self.tail = None;
            failed("write", &self.path)(error)
        })?;
        self.end += bytes;
        self.is_dirty = true;
        Ok(())
    }

    /// Opens the file behind what counts of it; makes it where there is none.
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
            // What was cut off must not come back behind other records.
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

    /// Ends the journal with the error of a sync: a disk that lost one write can claim that the next one succeeded.
    fn lost(&mut self, error: io::Error) -> Error {
        let error = failed("sync", &self.path)(error);
        self.over = Some(format!("a sync failed: {error}; open the store again"));
        error
    }
}

/// What there is of a file of records.
struct Scanned {
    /// Where its last whole record ends; 0 where it does not even begin as one.
    end: u64,
    /// Whether what comes then is wrong, and not only cut off.
    is_damaged: bool,
}

/// Reads the records among the first `length` bytes of a file, a piece at a time, as far as they are whole.
fn scan(fs: &dyn Fs, path: &Path, length: u64, mut each: impl FnMut(&[u8], &[u8])) -> Result<Scanned> {
    if length > MOST_BYTES {
        return Err(Error::corrupt(format!(
            "{} claims {length} bytes, where no more than {MOST_BYTES} can be; remove it",
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
                format!("{} has another format than this version knows; install a newer agentrl_core", path.display()),
            ));
        }
        return Ok(Scanned { end: 0, is_damaged });
    }
    // Where the next record begins, and where the piece does.
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

fn path(store: &Path, iteration: i64) -> PathBuf {
    store.join(FOLDER).join(file_name(iteration))
}

fn file_name(iteration: i64) -> String {
    format!("{iteration}.records")
}

/// The iterations that have a journal. Files of other names are not ours.
fn iterations(fs: &dyn Fs, store: &Path) -> Result<Vec<i64>> {
    let folder = store.join(FOLDER);
    let names = fs.list(&folder).map_err(failed("list", &folder))?;
    let number = |name: &String| {
        let iteration = name.strip_suffix(".records")?.parse().ok()?;
        (file_name(iteration) == *name).then_some(iteration)
    };
    Ok(names.iter().filter_map(number).collect())
}
