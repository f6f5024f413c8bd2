//! Recovery when a store is opened for writing: files of a killed writer become the state before or after its last
//! commit.

use std::io;
use std::path::{Path, PathBuf};

use super::folders::FOLDERS;
use super::fs::{Fs, failed, other_writer, refuse_link, write};
use super::manifest::{self, Manifest};
use super::sync_mode::Sync;
use super::{blob_files, rollout_log, segment};
use crate::{Error, Result};

/// Name of a marker that exists while files of a folder replace others. It is not an Arrow file, so stock tools that
/// read the whole folder at that moment fail instead of missing rows. Its name sorts first in the folder. It is not
/// empty, because Polars skips empty files.
pub(super) const MARKER: &str = "0-being-rewritten.arrow";

/// Temporary name of the marker: a writer can be killed, or the folder read, after the file is created and before its
/// bytes are written.
const STAGED_MARKER: &str = "0-being-rewritten.tmp";

/// The text of the marker.
pub(super) const MARKED: &[u8] = b"Files of this folder are just taking the place of others. Read it again.\n";

/// Name of the marker in the first version.
const OLD_MARKER: &str = "being-rewritten.arrow";

/// Repair the folders of a store and return its last manifest. Afterwards all listed files have their names, and other
/// files of the store are removed. Files with names that a store does not use are left alone.
pub(super) fn recover(fs: &dyn Fs, store: &Path, sync: Sync) -> Result<Manifest> {
    for folder in FOLDERS.iter().chain([&manifest::FOLDER, &blob_files::FOLDER, &rollout_log::FOLDER]) {
        refuse_link(fs, &store.join(folder))?;
    }
    let latest = Manifest::latest(fs, store)?;
    if let Some(manifest) = &latest {
        manifest.check_writable(store)?;
    }
    let is_new = latest.is_none();
    let manifest = latest.unwrap_or_default();
    let plans = FOLDERS.iter().map(|folder| plan(fs, store, folder, &manifest)).collect::<Result<Vec<_>>>()?;
    for plan in plans {
        plan.carry_out(fs)?;
    }
    remove_old(fs, store, &manifest, sync)?;
    blob_files::remove_unfinished(fs, store)?;
    // A store of an older version lacks the folders of later versions.
    if FOLDERS.iter().any(|&folder| is_new || !manifest.segments.contains_key(folder)) {
        let changed = create_folders(fs, store)?;
        if is_new {
            publish(fs, store, &manifest, sync, Vec::new(), &changed)?;
        } else if sync != Sync::Never {
            fs.sync_all(&[], &changed)?;
        }
    }
    Ok(manifest)
}

/// Remove the manifests before the last one, and the unfinished next manifest of a killed writer.
fn remove_old(fs: &dyn Fs, store: &Path, manifest: &Manifest, sync: Sync) -> Result<()> {
    let folder = store.join(manifest::FOLDER);
    let names = fs.list(&folder).map_err(failed("list", &folder))?;
    let is_old = |name: &&String| {
        manifest::is_staged(name) || manifest::number(name).is_some_and(|number| number < manifest.head.version)
    };
    let old: Vec<_> = names.iter().filter(is_old).map(|name| folder.join(name)).collect();
    for path in &old {
        fs.remove(path).map_err(failed("remove", path))?;
    }
    if sync != Sync::Never && !old.is_empty() {
        // The next manifest is written under a name that may be one of the removed ones.
        fs.sync_folder(&folder).map_err(failed("sync folder", &folder))?;
    }
    Ok(())
}

/// The repair of one folder: files to remove and files to rename.
struct FolderRepair {
    /// A marker that still has its temporary name.
    unfinished: Option<PathBuf>,
    /// The marker that the killed writer had not created yet.
    lacks: Option<PathBuf>,
    remove: Vec<PathBuf>,
    rename: Vec<(PathBuf, PathBuf)>,
    markers: Vec<PathBuf>,
}

impl FolderRepair {
    /// Carry out the repair, in the order in which the commit would have done it.
    fn carry_out(&self, fs: &dyn Fs) -> Result<()> {
        if let Some(path) = &self.unfinished {
            fs.remove(path).map_err(failed("remove", path))?;
        }
        if let Some(marker) = &self.lacks {
            mark(fs, marker)?;
        }
        for path in &self.remove {
            fs.remove(path).map_err(failed("remove", path))?;
        }
        for (from, to) in &self.rename {
            fs.rename(from, to).map_err(failed("rename", from))?;
        }
        self.markers.iter().chain(&self.lacks).try_for_each(|path| fs.remove(path).map_err(failed("remove", path)))
    }
}

/// Compare a folder with the manifest and plan its repair. No folder is changed before all folders are planned.
fn plan(fs: &dyn Fs, store: &Path, folder: &str, manifest: &Manifest) -> Result<FolderRepair> {
    let path = store.join(folder);
    let names = fs.list(&path).map_err(failed("list", &path))?;
    let mut plan =
        FolderRepair { unfinished: None, lacks: None, remove: Vec::new(), rename: Vec::new(), markers: Vec::new() };
    for segment in manifest.of(folder) {
        let (staged, own) = (segment.staged(&path), segment.path(&path));
        match (is_in(&names, &staged), is_in(&names, &own)) {
            (true, false) => plan.rename.push((staged, own)),
            // The first version gave a file the name of the file that it replaced.
            (true, true) if segment.is_named_by_row => {
                plan.remove.push(own.clone());
                plan.rename.push((staged, own));
            }
            (_, true) => {}
            (false, false) => {
                return Err(Error::corrupt(format!(
                    "{} is missing (bytes 0 to {}); restore it from a copy",
                    own.display(),
                    segment.bytes()
                )));
            }
        }
    }
    for name in &names {
        let found = path.join(name);
        match name.as_str() {
            MARKER | OLD_MARKER => {
                plan.markers.push(found);
                continue;
            }
            STAGED_MARKER => {
                plan.unfinished = Some(found);
                continue;
            }
            _ => {}
        }
        let Some((row, commit)) = segment::numbers(name) else { continue };
        let is_sealed = found.extension().is_some_and(|ending| ending == "arrow");
        let is_later = commit.map_or(row >= manifest.head.end(folder), |commit| commit > manifest.head.version);
        if is_sealed && is_later {
            // Files get their final names after their manifest is published, so that manifest was lost.
            return Err(Error::corrupt(format!(
                "{} belongs to a later commit than the last manifest, {}; restore the folder manifest from a copy",
                found.display(),
                manifest.head.version
            )));
        }
        let is_named = manifest.of(folder).iter().any(|segment| segment.path(&path) == found);
        if !is_named && !plan.rename.iter().any(|(from, _)| *from == found) {
            plan.remove.push(found);
        }
    }
    let is_read = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "arrow");
    if plan.markers.is_empty() && plan.remove.iter().any(is_read) {
        plan.lacks = Some(path.join(MARKER));
    }
    Ok(plan)
}

fn is_in(names: &[String], path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| names.iter().any(|found| found == name))
}

/// Put the marker into a folder. It is complete from the moment at which it has its name.
pub(super) fn mark(fs: &dyn Fs, marker: &Path) -> Result<()> {
    let staged = marker.with_file_name(STAGED_MARKER);
    fs.write(&staged, MARKED).map_err(failed("write", &staged))?;
    fs.rename(&staged, marker).map_err(failed("rename", &staged))
}

/// Create the folders that do not exist. With the first manifest, readers can open a store before its first commit.
/// Returns the folders in which names may be new: the parent of the store, and the store.
fn create_folders(fs: &dyn Fs, store: &Path) -> Result<[PathBuf; 2]> {
    for folder in FOLDERS.iter().chain([&manifest::FOLDER]) {
        let path = store.join(folder);
        fs.create_folder(&path).map_err(failed("create folder", &path))?;
    }
    let above = store.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok([above.to_owned(), store.to_owned()])
}

/// Publish a manifest under its number, after a sync of the manifest, of the files of its commit and of the names in
/// their folders. On return, the commit is durable and no other writer can replace it. With [`Sync::Never`] nothing is
/// synced.
pub(super) fn publish(
    fs: &dyn Fs,
    store: &Path,
    manifest: &Manifest,
    sync: Sync,
    mut files: Vec<PathBuf>,
    folders: &[PathBuf],
) -> Result<()> {
    let path = manifest::path(store, manifest.head.version);
    let staged = path.with_extension("tmp");
    write(fs, &staged, &manifest.to_bytes()?, Sync::Never)?;
    if sync != Sync::Never {
        files.push(staged.clone());
        fs.sync_all(&files, folders)?;
    }
    fs.rename(&staged, &path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => other_writer(&path),
        _ => failed("rename", &staged)(error),
    })?;
    // If another writer is two commits ahead, this number is free again; that writer continues from its own commits.
    if Manifest::last_number(fs, store)?.is_some_and(|last| last > manifest.head.version) {
        return Err(other_writer(&path));
    }
    if sync != Sync::Never {
        let folder = store.join(manifest::FOLDER);
        fs.sync_folder(&folder).map_err(failed("sync folder", &folder))?;
    }
    Ok(())
}
