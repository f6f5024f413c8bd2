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

    /// Whether a name stands for another place. What a store writes and removes lies in its own folders.
    fn is_link(&self, path: &Path) -> io::Result<bool>;

    /// Bytes that a file has.
    fn length(&self, path: &Path) -> io::Result<u64>;

    /// Bytes of a file in aligned memory of our own: a map would die with the file.
    fn read(&self, path: &Path, range: Range<u64>) -> io::Result<Buffer>;

    /// Makes a file and writes it. `AlreadyExists`: something has the name, be it a link to nothing.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's bytes durable.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Gives a file another name in its folder, at once. `AlreadyExists`: something has that name, and keeps it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Takes a file away.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Takes the lock that a file stands for until the guard is dropped or the process ends, whatever else the process
    /// does with the file. `WouldBlock`: it is taken.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>>;
}

/// An error that says what was tried with which path.
pub(crate) fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io(format!("cannot {what} {}: {error}", path.display()), error)
}

/// The error of a file that a manifest names and nobody has.
pub(crate) fn missing(path: &Path) -> Error {
    failed("find", path)(io::ErrorKind::NotFound.into())
}

/// Bytes that are never read at once: a file can claim any length without taking room on the disk.
pub(crate) const MOST_BYTES: u64 = 4 << 30;

/// All bytes of a file that has no more than some.
pub(crate) fn read_whole(fs: &dyn Fs, path: &Path, most: u64) -> io::Result<Buffer> {
    let length = fs.length(path)?;
    if length > most {
        return Err(too_long(length, most));
    }
    fs.read(path, 0..length)
}

fn too_long(length: u64, most: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it claims {length} bytes, where no more than {most} can be"))
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

pub(crate) use disk::release_locks;

#[expect(clippy::disallowed_methods, reason = "this is the module that the ban sends everyone to")]
mod disk {
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

    use arrow_buffer::MutableBuffer;
    use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
    use rustix::io::Errno;

    use super::{Any, Buffer, Disk, Fs, MOST_BYTES, Path, Range, io, too_long};

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

        fn is_link(&self, path: &Path) -> io::Result<bool> {
            match std::fs::symlink_metadata(path) {
                Ok(data) => Ok(data.is_symlink()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            }
        }

        fn length(&self, path: &Path) -> io::Result<u64> {
            Ok(open(OpenOptions::new().read(true), path)?.1)
        }

        fn read(&self, path: &Path, range: Range<u64>) -> io::Result<Buffer> {
            let (file, length) = open(OpenOptions::new().read(true), path)?;
            if range.end > length {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file ends at byte {length}")));
            }
            let bytes = range.end.saturating_sub(range.start);
            if bytes > MOST_BYTES {
                return Err(too_long(bytes, MOST_BYTES));
            }
            // Whether there is so much memory: the buffer itself would end the process if not.
            Vec::<u8>::new().try_reserve_exact(bytes as usize).map_err(|_| io::ErrorKind::OutOfMemory)?;
            let mut bytes = MutableBuffer::from_len_zeroed(bytes as usize);
            file.read_exact_at(&mut bytes, range.start)?;
            Ok(bytes.into())
        }

        fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            // What is made new is no link that somebody else put there.
            OpenOptions::new().write(true).create_new(true).open(path)?.write_all(bytes)
        }

        fn sync(&self, path: &Path) -> io::Result<()> {
            // A descriptor opened later still gets the errors of earlier writes that nobody was told about.
            File::open(path)?.sync_all()
        }

        fn sync_folder(&self, folder: &Path) -> io::Result<()> {
            File::open(folder)?.sync_all()
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                // A file system that cannot look and rename at once can link at once.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    std::fs::hard_link(from, to)?;
                    std::fs::remove_file(from)
                }
                done => done.map_err(Into::into),
            }
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            std::fs::remove_file(path)
        }

        fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
            let mut held = held()?;
            let (file, _) = open(OpenOptions::new().create(true).truncate(false).write(true), path)?;
            // Of the open file, not of the process: that one would lose a record lock by closing any other descriptor of
            // the file, as copying the folder does.
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error @ (Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, io::Error::from(error)));
                }
                Err(error) => return Err(error.into()),
            }
            let lock = Arc::new(Mutex::new(Some(file)));
            if let Some(held) = &mut held {
                held.retain(|lock| lock.strong_count() > 0);
                held.push(Arc::downgrade(&lock));
            }
            Ok(Box::new(Held { lock, process: std::process::id() }))
        }
    }

    /// Opens a regular file, and tells how long it is. Of a pipe or a device it is not waited for what comes out.
    fn open(options: &mut OpenOptions, path: &Path) -> io::Result<(File, u64)> {
        let file = options.custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
        let data = file.metadata()?;
        if !data.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        Ok((file, data.len()))
    }

    /// The locks of this process.
    static HELD: Mutex<Vec<Weak<Lock>>> = Mutex::new(Vec::new());

    type Lock = Mutex<Option<File>>;

    /// A lock for as long as it lives.
    struct Held {
        lock: Arc<Lock>,
        process: u32,
    }

    impl Drop for Held {
        /// Gives the lock up, also where a child that was forked just now still has the file open. A child gives up
        /// nothing: the lock is its parent's.
        fn drop(&mut self) {
            if self.process == std::process::id()
                && let Ok(file) = self.lock.try_lock()
                && let Some(file) = file.as_ref()
            {
                // Closing the file, which follows, gives it up too.
                let _ = flock(file, FlockOperation::Unlock);
            }
        }
    }

    /// The process that took `HELD` last; 0 before.
    static OWNER: AtomicU32 = AtomicU32::new(0);

    /// Held for as long as an open takes. A child that was forked just then finds it taken for good: it goes on without,
    /// and a child of its own will hold on to its locks.
    fn held() -> io::Result<Option<MutexGuard<'static, Vec<Weak<Lock>>>>> {
        let process = std::process::id();
        for _ in 0..1000 {
            let held = match HELD.try_lock() {
                Ok(held) => held,
                Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
                Err(TryLockError::WouldBlock) if ![0, process].contains(&OWNER.load(Ordering::SeqCst)) => {
                    return Ok(None);
                }
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    continue;
                }
            };
            OWNER.store(process, Ordering::SeqCst);
            return Ok(Some(held));
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Closes the files by which a forked child holds on to its parent's locks: those are the parent's alone, and go with
    /// it.
    pub(crate) fn release_locks() {
        let Ok(mut held) = HELD.try_lock() else { return };
        for lock in held.drain(..).filter_map(|lock| lock.upgrade()) {
            if let Ok(mut file) = lock.try_lock() {
                drop(file.take());
            }
        }
    }
}
