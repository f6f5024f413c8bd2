//! A file system in memory that loses what a crash can lose: bytes and names that were not synced.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use arrow_buffer::Buffer;

use super::Random;
use crate::store::fs::{Fs, Tail};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    File(usize),
    Folder,
}

#[derive(Clone, Debug)]
enum Change {
    Set(String, Entry),
    Move(String, String),
    Unset(String),
}

#[derive(Clone, Debug, Default)]
struct Folder {
    now: BTreeMap<String, Entry>,
    durable: BTreeMap<String, Entry>,
    /// The changes from `durable` to `now`.
    changes: Vec<Change>,
}

impl Folder {
    fn change(&mut self, change: Change) {
        apply(&mut self.now, &change);
        self.changes.push(change);
    }
}

fn apply(names: &mut BTreeMap<String, Entry>, change: &Change) {
    match change {
        Change::Set(name, entry) => _ = names.insert(name.clone(), *entry),
        Change::Unset(name) => _ = names.remove(name),
        Change::Move(from, to) => {
            if let Some(entry) = names.remove(from) {
                names.insert(to.clone(), entry);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct File {
    now: Arc<[u8]>,
    durable: Arc<[u8]>,
}

/// The contents of a disk at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    files: Vec<File>,
    folders: BTreeMap<PathBuf, Folder>,
}

/// A kind of crash: it determines the loss of data that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    /// The process is killed: nothing is lost.
    Kill,
    /// The machine stops: all data that was not synced is lost.
    LoseAll,
    /// Each name and each file is lost or kept independently; a file can also be torn.
    LoseSome,
}

impl Image {
    /// Return the disk after a crash.
    pub(super) fn after(&self, crash: Crash, random: &mut Random) -> Self {
        let mut image = self.clone();
        for file in &mut image.files {
            // Durable bytes that were not changed since are not torn.
            let kept = file.now.iter().zip(&*file.durable).take_while(|(now, durable)| now == durable).count();
            let torn = kept + random.below(file.now.len() - kept + 1);
            file.now = match (crash, random.below(3)) {
                (Crash::Kill, _) | (Crash::LoseSome, 0) => file.now.clone(),
                (Crash::LoseAll, _) | (Crash::LoseSome, 1) => file.durable.clone(),
                (Crash::LoseSome, _) if file.now != file.durable => file.now[..torn].into(),
                (Crash::LoseSome, _) => file.now.clone(),
            };
            file.durable = file.now.clone();
        }
        for folder in image.folders.values_mut() {
            let mut names = folder.durable.clone();
            for change in &folder.changes {
                if crash == Crash::Kill || crash == Crash::LoseSome && random.below(2) == 0 {
                    apply(&mut names, change);
                }
            }
            *folder = Folder { now: names.clone(), durable: names, changes: Vec::new() };
        }
        // A folder whose name is lost is lost.
        while let Some(lost) = image.folders.keys().find(|path| !image.is_named(path)).cloned() {
            image.folders.remove(&lost);
        }
        image
    }

    fn is_named(&self, path: &Path) -> bool {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return true };
        self.folders.get(above).is_some_and(|folder| folder.now.contains_key(&*name.to_string_lossy()))
    }

    /// Return path and bytes of each file.
    pub(super) fn files(&self) -> BTreeMap<PathBuf, Arc<[u8]>> {
        let entries = self.folders.iter().flat_map(|(path, folder)| folder.now.iter().map(move |entry| (path, entry)));
        let files = entries.filter_map(|(path, (name, entry))| match entry {
            Entry::File(id) => Some((path.join(name), self.files[*id].now.clone())),
            Entry::Folder => None,
        });
        files.collect()
    }

    /// Return the disk with other bytes in a file.
    pub(super) fn with_bytes(&self, path: &Path, bytes: &[u8]) -> Self {
        let mut image = self.clone();
        let id = image.id(path).unwrap();
        image.files[id].now = bytes.into();
        image
    }

    fn id(&self, path: &Path) -> io::Result<usize> {
        let (folder, name) = split(path);
        match self.folders.get(folder).and_then(|folder| folder.now.get(name)) {
            Some(Entry::File(id)) => Ok(*id),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&mut self, path: &Path) -> io::Result<usize> {
        let (folder, name) = split(path);
        let id = self.files.len();
        self.folder(folder)?.change(Change::Set(name.to_owned(), Entry::File(id)));
        self.files.push(File { now: Arc::default(), durable: Arc::default() });
        Ok(id)
    }

    fn folder(&mut self, path: &Path) -> io::Result<&mut Folder> {
        self.folders.get_mut(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn split(path: &Path) -> (&Path, &str) {
    (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap())
}

#[derive(Debug, Default)]
struct State {
    image: Image,
    /// The disk before each operation, if they are recorded.
    history: Option<Vec<Image>>,
    operations: usize,
    /// Bytes written to files.
    written: u64,
    /// Bytes read from files.
    read: u64,
    /// The operation that fails, and its error number.
    fault: Option<(usize, i32)>,
    locked: BTreeSet<PathBuf>,
    lock_error: Option<i32>,
}

/// A disk in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Arc<Mutex<State>>);

impl Memory {
    pub(super) fn new() -> Self {
        Self::from(Image { folders: [("/".into(), Folder::default())].into(), ..Image::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn image(&self) -> Image {
        self.state().image.clone()
    }

    /// Record the disk before each operation from now on.
    pub(super) fn record(&self) {
        self.state().history = Some(Vec::new());
    }

    /// Return the disk before each operation since [`Memory::record`].
    pub(super) fn history(&self) -> Vec<Image> {
        self.state().history.clone().unwrap_or_default()
    }

    pub(super) fn operations(&self) -> usize {
        self.state().operations
    }

    pub(super) fn written(&self) -> u64 {
        self.state().written
    }

    /// Return the number of bytes read from files so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.state().read
    }

    /// Release all locks without notice to their holders.
    pub(super) fn lose_locks(&self) {
        self.state().locked.clear();
    }

    /// Make an operation (counted from the beginning) fail once with an error number.
    pub(super) fn fail(&self, operation: usize, error: i32) {
        self.state().fault = Some((operation, error));
    }

    /// Make locking fail with an error number.
    pub(super) fn without_locks(&self, error: i32) {
        self.state().lock_error = Some(error);
    }

    fn operate<T>(&self, work: impl FnOnce(&mut Image) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state();
        let State { image, history, operations, fault, .. } = &mut *state;
        if let Some(history) = history {
            history.push(image.clone());
        }
        *operations += 1;
        match fault {
            Some((at, error)) if *operations > *at => {
                let error = *error;
                *fault = None;
                Err(io::Error::from_raw_os_error(error))
            }
            _ => work(image),
        }
    }
}

impl From<Image> for Memory {
    fn from(image: Image) -> Self {
        Self(Arc::new(Mutex::new(State { image, ..State::default() })))
    }
}

impl Fs for Memory {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        let missing: Vec<&Path> =
            path.ancestors().filter(|path| !self.state().image.folders.contains_key(*path)).collect();
        for path in missing.into_iter().rev() {
            self.operate(|image| {
                let (above, name) = split(path);
                image.folder(above)?.change(Change::Set(name.to_owned(), Entry::Folder));
                image.folders.insert(path.to_owned(), Folder::default());
                Ok(())
            })?;
        }
        Ok(())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        Ok(self.state().image.folders.get(folder).map_or_else(Vec::new, |folder| folder.now.keys().cloned().collect()))
    }

    fn is_link(&self, _: &Path) -> io::Result<bool> {
        Ok(false)
    }

    fn length(&self, path: &Path) -> io::Result<u64> {
        let state = self.state();
        Ok(state.image.files[state.image.id(path)?].now.len() as u64)
    }

    fn read(&self, path: &Path, range: Range<u64>) -> io::Result<Buffer> {
        let mut state = self.state();
        let id = state.image.id(path)?;
        state.read += range.end.saturating_sub(range.start);
        let bytes = &state.image.files[id].now;
        bytes.get(range.start as usize..range.end as usize).map(Buffer::from).ok_or_else(|| {
            io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file ends at byte {}", bytes.len()))
        })
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn io::Write>> {
        if self.state().image.id(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = self.operate(|image| image.create(path))?;
        Ok(Box::new(MemoryFile(MemoryTail(self.clone(), id))))
    }

    fn tail(&self, path: &Path, length: u64) -> io::Result<Arc<dyn Tail>> {
        let id = self.operate(|image| image.id(path).or_else(|_| image.create(path)))?;
        let change = |image: &mut Image| {
            let file = &mut image.files[id];
            let first = file.now.get(..length as usize).ok_or(io::ErrorKind::InvalidData)?;
            file.now = first.into();
            Ok(())
        };
        self.operate(change)?;
        Ok(Arc::new(MemoryTail(self.clone(), id)))
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.operate(|image| {
            let id = image.id(path)?;
            image.files[id].durable = image.files[id].now.clone();
            Ok(())
        })
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.operate(|image| {
            let folder = image.folder(folder)?;
            folder.durable = folder.now.clone();
            folder.changes.clear();
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(|image| {
            image.id(from)?;
            let ((folder, from), (other, to)) = (split(from), split(to));
            assert_eq!(folder, other, "a rename between folders is two names, each lost by itself");
            if image.folder(folder)?.now.contains_key(to) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            image.folder(folder)?.change(Change::Move(from.to_owned(), to.to_owned()));
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.operate(|image| {
            image.id(path)?;
            let (folder, name) = split(path);
            image.folder(folder)?.change(Change::Unset(name.to_owned()));
            Ok(())
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let mut state = self.state();
        if let Some(error) = state.lock_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        if !state.locked.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(Guard(self.clone(), path.to_owned())))
    }
}

/// An open file to append to. It stays the same file if it is renamed.
#[derive(Debug)]
struct MemoryTail(Memory, usize);

impl Tail for MemoryTail {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        // A kill can come after half of the bytes are written.
        for part in [&bytes[..bytes.len() / 2], &bytes[bytes.len() / 2..]] {
            self.0.operate(|image| {
                let file = &mut image.files[self.1];
                file.now = [&file.now, part].concat().into();
                Ok(())
            })?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.operate(|image| {
            let file = &mut image.files[self.1];
            file.durable = file.now.clone();
            Ok(())
        })
    }
}

/// A file that is being written.
struct MemoryFile(MemoryTail);

impl io::Write for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.0.state().written += bytes.len() as u64;
        self.0.append(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Guard(Memory, PathBuf);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.state().locked.remove(&self.1);
    }
}
