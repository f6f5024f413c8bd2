//! The one door to files: what a store asks of a file system, and the real one.

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::Path;

use arrow_buffer::Buffer;

use crate::{Error, Result};

/// What a store asks of a file system. Nothing that was written is durable before it is synced, and no name before its
/// folder is. Tests put one in its place that loses whatever a crash may lose.
pub(crate) trait Fs: Debug + Send + Sync {
    /// Makes a folder and the folders above it.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Names in a folder, sorted; none where there is no folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Bytes of a file (all of them without a range) in aligned memory of our own: a map would die with the file.
    fn read(&self, path: &Path, range: Option<Range<u64>>) -> io::Result<Buffer>;

    /// Makes a file, or empties the one there is, and writes it.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's bytes durable.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Gives a file another name in its folder, at once; a file of that name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Takes a file away.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Takes the lock that a file stands for until the guard is dropped or the process ends. `WouldBlock`: it is taken.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>>;
}

/// An error that says what was tried with which path.
pub(crate) fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io(format!("cannot {what} {}: {error}", path.display()), error)
}

/// The writer's lock, with an answer for every way in which it cannot be had.
pub(crate) fn writer_lock(fs: &dyn Fs, path: &Path) -> Result<Box<dyn Any + Send + Sync>> {
    fs.lock(path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::busy(format!(
            "{} is locked: another process writes this store, or this one has it open already; close that store, or open \
             this one read-only",
            path.display()
        )),
        io::ErrorKind::Unsupported => Error::new(
            crate::ErrorKind::Unsupported,
            format!(
                "the file system of {} has no locks ({error}), so two writers could not be told apart; write the run to a \
                 local disk, or mount the network disk with locking",
                path.display()
            ),
        ),
        _ => failed("lock", path)(error),
    })
}

/// The files of this machine.
#[derive(Debug)]
pub(crate) struct Disk;

#[expect(clippy::disallowed_methods, reason = "this is the module that the ban sends everyone to")]
mod disk {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};
    use std::process;
    use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

    use arrow_buffer::MutableBuffer;
    use rustix::fs::{FlockOperation, fcntl_lock};
    use rustix::io::Errno;

    use super::{Any, Buffer, Disk, Fs, Path, Range, io};

    impl Fs for Disk {
        fn create_folder(&self, path: &Path) -> io::Result<()> {
            std::fs::create_dir_all(path)
        }

        fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
            let entries = match std::fs::read_dir(folder) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(error),
            };
            let mut names = Vec::new();
            for entry in entries {
                names.extend(entry?.file_name().into_string().ok());
            }
            names.sort_unstable();
            Ok(names)
        }

        fn read(&self, path: &Path, range: Option<Range<u64>>) -> io::Result<Buffer> {
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            let range = range.unwrap_or(0..length);
            if range.end > length {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file ends at byte {length}")));
            }
            let mut bytes = MutableBuffer::from_len_zeroed((range.end - range.start) as usize);
            file.read_exact_at(&mut bytes, range.start)?;
            Ok(bytes.into())
        }

        fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            std::fs::write(path, bytes)
        }

        fn sync(&self, path: &Path) -> io::Result<()> {
            // A descriptor opened later still gets the errors of earlier writes that nobody was told about.
            File::open(path)?.sync_all()
        }

        fn sync_folder(&self, folder: &Path) -> io::Result<()> {
            File::open(folder)?.sync_all()
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            std::fs::rename(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            std::fs::remove_file(path)
        }

        fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
            let mut held = held()?;
            // A record lock does not exclude its own process, and closing any descriptor of the file gives it up:
            // the file is looked at, not opened, before it is known that no store of this process holds it.
            if let Ok(data) = std::fs::metadata(path)
                && held.contains(&(process::id(), data.dev(), data.ino()))
            {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
            match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::ACCESS) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error @ (Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, io::Error::from(error)));
                }
                Err(error) => return Err(error.into()),
            }
            let data = file.metadata()?;
            let key = (process::id(), data.dev(), data.ino());
            held.push(key);
            Ok(Box::new(Lock { key, _file: file }))
        }
    }

    /// Process, device and file of each lock that this process holds. A forked child finds its parent's in here, under
    /// the parent's number: it holds none of them.
    static HELD: Mutex<Vec<(u32, u64, u64)>> = Mutex::new(Vec::new());

    /// Held for as long as an open takes. A child that was forked just then finds it taken for good, and must not wait.
    fn held() -> io::Result<MutexGuard<'static, Vec<(u32, u64, u64)>>> {
        for _ in 0..1000 {
            match HELD.try_lock() {
                Ok(held) => return Ok(held),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(PoisonError::into_inner(poisoned)),
                Err(TryLockError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    struct Lock {
        key: (u32, u64, u64),
        _file: File,
    }

    impl Drop for Lock {
        fn drop(&mut self) {
            if let Ok(mut held) = held() {
                held.retain(|key| *key != self.key);
            }
        }
    }
}
