//! The only place that touches files: whole files, published by rename.
#![expect(clippy::disallowed_methods, reason = "this is the module that the ban sends everyone to")]

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::Path;

use crate::{Error, Result};

pub(super) fn create_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path)
        .map_err(|error| Error::io(format!("cannot create folder {}: {error}", path.display()), error))
}

/// Takes the writer's lock; it is released when the file is closed, however the process ends.
pub(super) fn lock(path: &Path) -> Result<File> {
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = open.map_err(|error| Error::io(format!("cannot open {}: {error}", path.display()), error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::busy(format!(
            "{} is locked: another process writes this store; stop it, or open the store read-only",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(Error::io(format!("cannot lock {}: {error}", path.display()), error)),
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::io(format!("cannot read {}: {error}", path.display()), error))
}

/// Names of the files in a folder; none where there is no folder.
pub(super) fn list(folder: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::io(format!("cannot list {}: {error}", folder.display()), error);
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

pub(super) fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(|error| Error::io(format!("cannot remove {}: {error}", path.display()), error))
}

/// Makes a file appear whole or not at all: temporary name, sync, rename, sync of the folder.
pub(super) fn publish(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |error: std::io::Error| Error::io(format!("cannot write {}: {error}", path.display()), error);
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    drop(file);
    std::fs::rename(&temporary, path).map_err(failed)?;
    if let Some(folder) = path.parent() {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    }
    Ok(())
}
