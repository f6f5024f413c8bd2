//! File system access of a store: the trait [`Fs`], and its implementation for real disks, [`Disk`].

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_buffer::Buffer;

use super::sync_mode::Sync as When;
use crate::{Error, Result};

/// The file system of a store. Written bytes are durable only after a sync, and names only after a sync of their
/// folder. Tests use an implementation that loses everything a crash may lose.
pub(crate) trait Fs: Debug + Send + Sync {
    /// Create a folder and its parents.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Return the names in a folder, sorted; none if the folder does not exist.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Return whether a path is a symbolic link. A store writes and removes files only in its own folders.
    fn is_link(&self, path: &Path) -> io::Result<bool>;

    /// Return the length of a file in bytes.
    fn length(&self, path: &Path) -> io::Result<u64>;

    /// Read bytes of a file into aligned memory that the store owns. A memory map would become invalid with the file.
    fn read(&self, path: &Path, range: Range<u64>) -> io::Result<Buffer>;

    /// [`Fs::read`] of several ranges of a file. An implementation can open the file once.
    fn read_parts(&self, path: &Path, ranges: &[Range<u64>]) -> io::Result<Vec<Buffer>> {
        ranges.iter().map(|range| self.read(path, range.clone())).collect()
    }

    /// Create a file to be written in pieces. A file for other readers gets its name by `rename` when it is complete.
    /// Fails with `AlreadyExists` if the name is taken, even by a dangling link.
    fn create(&self, path: &Path) -> io::Result<Box<dyn io::Write>>;

    /// Create a file with the given bytes.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.create(path)?.write_all(bytes)
    }

    /// Open a file to append to it, and create it if it does not exist. Keeps its first `length` bytes and cuts off the
    /// rest. Fails with `InvalidData` if it is shorter.
    fn tail(&self, path: &Path, length: u64) -> io::Result<Arc<dyn Tail>>;

    /// Make a file's bytes durable.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Make the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// [`Fs::sync`] of files and [`Fs::sync_folder`] of folders, in any order or in parallel.
    fn sync_all(&self, files: &[PathBuf], folders: &[PathBuf]) -> Result<()> {
        files.iter().try_for_each(|path| self.sync(path).map_err(failed("sync", path)))?;
        folders.iter().try_for_each(|path| self.sync_folder(path).map_err(failed("sync folder", path)))
    }

    /// Give a file another name in its folder; the name appears atomically. Fails with `AlreadyExists` if the name is
    /// taken, and never replaces the file of that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Remove a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Take the lock of a file until the guard is dropped or the process ends, even if the process opens and closes the
    /// file elsewhere. Fails with `WouldBlock` if the lock is taken.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>>;
}

/// An open file to append to.
pub(crate) trait Tail: Debug + Send + Sync {
    /// Append bytes in one write, which a kill does not divide.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Make the appended bytes durable.
    fn sync(&self) -> io::Result<()>;
}

/// Return an error that names the operation and the path.
pub(crate) fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io(format!("cannot {what} {}: {error}", path.display()), error)
}

/// Return the error of a file that a manifest lists and that does not exist.
pub(crate) fn missing(path: &Path) -> Error {
    let error = io::ErrorKind::NotFound.into();
    Error::io(format!("{} is missing, but the manifest lists it; restore it from a copy", path.display()), error)
}

/// Largest number of bytes to read at once. A limit is needed, because a sparse file can have any length.
pub(crate) const MAX_FILE_BYTES: u64 = 4 << 30;

/// Read a whole file of at most `most` bytes.
pub(crate) fn read_whole(fs: &dyn Fs, path: &Path, most: u64) -> io::Result<Buffer> {
    let length = fs.length(path)?;
    if length > most {
        return Err(too_long(length, most));
    }
    fs.read(path, 0..length)
}

fn too_long(length: u64, most: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {length} bytes, more than the {most} supported"))
}

/// Reject a folder that is a link: the store must not replace or remove files in the folder that it points to.
pub(crate) fn refuse_link(fs: &dyn Fs, folder: &Path) -> Result<()> {
    if fs.is_link(folder).map_err(failed("look at", folder))? {
        return Err(Error::invalid(format!(
            "{} is a link to another folder, and a writer must not change that folder; replace the link by the \
             folder, or open the store read-only",
            folder.display()
        )));
    }
    Ok(())
}

/// Return the error of a writer that is not the only one.
pub(crate) fn other_writer(path: &Path) -> Error {
    Error::busy(format!(
        "{} exists already: another process has written this store since it was opened here, despite the file lock. This \
         commit is discarded; close the store, and open it again when the other process has closed it",
        path.display()
    ))
}

/// Write a file. The caller makes its name durable.
pub(crate) fn write(fs: &dyn Fs, path: &Path, bytes: &[u8], sync: When) -> Result<()> {
    write_with(fs, path, sync, |file| file.write_all(bytes).map_err(failed("write", path)))
}

/// [`write`] for a file that is written in pieces.
pub(crate) fn write_with<T>(
    fs: &dyn Fs,
    path: &Path,
    sync: When,
    work: impl FnOnce(&mut dyn io::Write) -> Result<T>,
) -> Result<T> {
    let mut file = fs.create(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => other_writer(path),
        _ => failed("write", path)(error),
    })?;
    let done = work(file.as_mut())?;
    if sync != When::Never {
        fs.sync(path).map_err(failed("sync", path))?;
    }
    Ok(done)
}

/// Take the writer's lock, with an error message for each reason why this can fail.
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
                "the file system of {} has no locks ({error}), so a second writer would not be noticed; write the run \
                 to a local disk, or mount the network disk with locking",
                path.display()
            ),
        ),
        _ => failed("lock", path)(error),
    })
}

/// The file system of this machine.
#[derive(Debug)]
pub(crate) struct Disk;

pub(crate) use disk::{after_fork, before_fork};

#[expect(clippy::disallowed_methods, reason = "this is the module that the ban sends everyone to")]
mod disk {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::num::NonZeroU64;
    use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use arrow_buffer::MutableBuffer;
    use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
    use rustix::io::Errno;

    use super::{Any, Arc, Buffer, Disk, Fs, MAX_FILE_BYTES, Path, PathBuf, Range, Result, Tail, failed, io, too_long};

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
            part(&file, length, &range)
        }

        fn read_parts(&self, path: &Path, ranges: &[Range<u64>]) -> io::Result<Vec<Buffer>> {
            let (file, length) = open(OpenOptions::new().read(true), path)?;
            ranges.iter().map(|range| part(&file, length, range)).collect()
        }

        fn create(&self, path: &Path) -> io::Result<Box<dyn io::Write>> {
            // A new file cannot be a link that another program put there.
            let file = OpenOptions::new().write(true).create_new(true).open(path)?;
            Ok(Box::new(New { file, length: 0, begun: 0 }))
        }

        fn tail(&self, path: &Path, length: u64) -> io::Result<Arc<dyn Tail>> {
            let (file, before) = open(OpenOptions::new().create(true).append(true), path)?;
            if before < length {
                let what = format!("the file had {length} bytes and now has {before}: another program changed it");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            file.set_len(length)?;
            Ok(Arc::new(file))
        }

        fn sync(&self, path: &Path) -> io::Result<()> {
            // A descriptor that is opened later still reports errors of earlier writes that were not reported yet.
            File::open(path)?.sync_all()
        }

        fn sync_folder(&self, folder: &Path) -> io::Result<()> {
            File::open(folder)?.sync_all()
        }

        /// Sync everything in parallel: the disk waits once for all, instead of once for each file.
        fn sync_all(&self, files: &[PathBuf], folders: &[PathBuf]) -> Result<()> {
            let sync = |(path, what): (&PathBuf, &str)| {
                File::open(path).and_then(|file| file.sync_all()).map_err(failed(what, path))
            };
            std::thread::scope(|scope| {
                let all = files.iter().map(|path| (path, "sync"));
                let all = all.chain(folders.iter().map(|path| (path, "sync folder")));
                let begun = all.map(|one| (one, std::thread::Builder::new().spawn_scoped(scope, move || sync(one))));
                let begun: Vec<_> = begun.collect();
                begun.into_iter().try_for_each(|(one, thread)| match thread {
                    Ok(thread) => {
                        thread.join().unwrap_or_else(|_| Err(failed(one.1, one.0)(io::ErrorKind::Other.into())))
                    }
                    // No more threads can be started: sync in this one.
                    Err(_) => sync(one),
                })
            })
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                // Without support for NOREPLACE: a hard link never replaces a file either.
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
            for _ in 0..ATTEMPTS {
                if let Some(lock) = with_locks(|locks| locks.take(path))? {
                    return Ok(Box::new(lock));
                }
                std::thread::sleep(PAUSE);
            }
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    /// A file that is being written.
    struct New {
        file: File,
        length: u64,
        /// Bytes whose transfer to the disk was started.
        begun: u64,
    }

    /// Bytes of a new file after which their transfer to the disk is started.
    const SENT_BYTES: u64 = 16 << 20;

    impl io::Write for New {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = self.file.write(bytes)?;
            self.length += written as u64;
            if let Some(bytes) = NonZeroU64::new(self.length - self.begun).filter(|bytes| bytes.get() >= SENT_BYTES) {
                start_writing(&self.file, self.begun, bytes);
                self.begun = self.length;
            }
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Start to write a part of a file to the disk while the rest is produced. The sync at the end reports errors.
    #[cfg(not(target_vendor = "apple"))]
    fn start_writing(file: &File, begun: u64, bytes: NonZeroU64) {
        let _ = rustix::fs::fadvise(file, begun, Some(bytes), rustix::fs::Advice::DontNeed);
    }

    /// Apple's systems have no such call, so the sync at the end writes everything.
    #[cfg(target_vendor = "apple")]
    fn start_writing(_file: &File, _begun: u64, _bytes: NonZeroU64) {}

    impl Tail for File {
        fn append(&self, bytes: &[u8]) -> io::Result<()> {
            (&mut &*self).write_all(bytes)
        }

        fn sync(&self) -> io::Result<()> {
            self.sync_data()
        }
    }

    /// Largest number of bytes that are read without a check for available memory.
    const FEW_BYTES: u64 = 1 << 20;

    /// Read a range of an open file with `length` bytes.
    fn part(file: &File, length: u64, range: &Range<u64>) -> io::Result<Buffer> {
        if range.end > length {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file ends at byte {length}")));
        }
        let bytes = range.end.saturating_sub(range.start);
        if bytes > MAX_FILE_BYTES {
            return Err(too_long(bytes, MAX_FILE_BYTES));
        }
        if bytes > FEW_BYTES {
            // Check that enough memory is available: otherwise the allocation of the buffer would end the process.
            Vec::<u8>::new().try_reserve_exact(bytes as usize).map_err(|_| io::ErrorKind::OutOfMemory)?;
        }
        let mut bytes = MutableBuffer::from_len_zeroed(bytes as usize);
        file.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes.into())
    }

    /// Open a regular file and return its length. Reject a pipe or a device without reading from it.
    fn open(options: &mut OpenOptions, path: &Path) -> io::Result<(File, u64)> {
        let file = options.custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
        let data = file.metadata()?;
        if !data.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        Ok((file, data.len()))
    }

    /// Number of attempts to take a lock, which last about a second in all. A forked child of a writer that has ended
    /// releases the inherited lock as its first action, but has to be scheduled for that.
    const ATTEMPTS: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(10);

    /// The locks of this process. The mutex is held while a lock file is opened or closed, and during a fork.
    static LOCKS: Mutex<Locks> = Mutex::new(Locks { files: BTreeMap::new(), next: 0 });

    thread_local! {
        /// The guard of [`LOCKS`] while this thread forks the process.
        static FORKING: RefCell<Option<MutexGuard<'static, Locks>>> = const { RefCell::new(None) };
    }

    struct Locks {
        /// The open file of each lock, by the number of the lock.
        files: BTreeMap<u64, File>,
        /// The number of the next lock. No other lock gets it, not even in a forked child.
        next: u64,
    }

    impl Locks {
        /// Take the lock of a file; `None` if it is taken.
        fn take(&mut self, path: &Path) -> io::Result<Option<Held>> {
            let (file, _) = open(OpenOptions::new().create(true).truncate(false).write(true), path)?;
            // Lock the open file, not the process: a process would lose a record lock by closing any other descriptor
            // of the file, which happens when the folder is copied.
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error @ (Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, io::Error::from(error)));
                }
                Err(error) => return Err(error.into()),
            }
            let number = self.next;
            self.next += 1;
            self.files.insert(number, file);
            Ok(Some(Held(number)))
        }
    }

    /// A lock that is held until the value is dropped. In a forked child, the guard of a parent's lock holds nothing.
    struct Held(u64);

    impl Drop for Held {
        /// Release the lock, even if a child that was just forked still has the file open.
        fn drop(&mut self) {
            with_locks(|locks| {
                if let Some(file) = locks.files.remove(&self.0) {
                    // Closing the file, which follows, releases it too.
                    let _ = flock(&file, FlockOperation::Unlock);
                }
            });
        }
    }

    /// Call a function with the locks. A thread that forks already holds the mutex, and can open and close stores
    /// during the fork.
    fn with_locks<T>(work: impl FnOnce(&mut Locks) -> T) -> T {
        FORKING.with_borrow_mut(|forking| match forking {
            Some(locks) => work(locks),
            None => work(&mut locked()),
        })
    }

    fn locked() -> MutexGuard<'static, Locks> {
        LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait until no thread opens or closes a lock file, and block such operations until [`after_fork`]. So a child is
    /// never forked in the middle of one.
    pub(crate) fn before_fork() {
        FORKING.with_borrow_mut(|forking| *forking = Some(locked()));
    }

    /// Continue after a fork. A child closes the lock files of its parent, which would otherwise stay locked after the
    /// parent has ended.
    pub(crate) fn after_fork(is_child: bool) {
        let locks = FORKING.take();
        if let Some(mut locks) = locks.filter(|_| is_child) {
            locks.files.clear();
        }
    }
}
