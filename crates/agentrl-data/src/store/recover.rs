//! Opening for writing: whatever a writer left behind becomes the state before or after its last commit.

use std::path::{Path, PathBuf};

use super::folders::FOLDERS;
use super::fs::{Fs, failed};
use super::manifest::{self, Manifest};
use super::{Sync, segment};
use crate::{Error, Result};

/// A file that is no Arrow file, there while files of a folder take the place of others: stock tools that read the whole
/// folder just then stop with an error, where they would have missed rows.
pub(super) const MARKER: &str = "being-rewritten.arrow";

/// The last manifest of a store, with its files in place and nothing else in its folders.
pub(super) fn recover(fs: &dyn Fs, store: &Path, sync: Sync) -> Result<Manifest> {
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
    if is_new {
        create(fs, store, &manifest, sync)?;
    }
    let folder = store.join(manifest::FOLDER);
    for name in fs.list(&folder).map_err(failed("list", &folder))? {
        if name.strip_suffix(".tmp").is_some() || manifest::number(&name).is_some_and(|at| at < manifest.head.version) {
            let path = folder.join(&name);
            fs.remove(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(manifest)
}

/// What to do in one folder.
struct Plan {
    remove: Vec<PathBuf>,
    rename: Vec<(PathBuf, PathBuf)>,
    marker: Option<PathBuf>,
}

impl Plan {
    /// In the order in which the commit would have done it.
    fn carry_out(&self, fs: &dyn Fs) -> Result<()> {
        for path in &self.remove {
            fs.remove(path).map_err(failed("remove", path))?;
        }
        for (from, to) in &self.rename {
            fs.rename(from, to).map_err(failed("rename", from))?;
        }
        self.marker.iter().try_for_each(|path| fs.remove(path).map_err(failed("remove", path)))
    }
}

/// Compares a folder with the manifest. Nothing is changed before all folders were looked at.
fn plan(fs: &dyn Fs, store: &Path, folder: &str, manifest: &Manifest) -> Result<Plan> {
    let path = store.join(folder);
    let names = fs.list(&path).map_err(failed("list", &path))?;
    let mut plan = Plan { remove: Vec::new(), rename: Vec::new(), marker: None };
    for segment in manifest.of(folder) {
        let (staged, own) = (segment.staged(&path), segment.path(&path));
        if is_in(&names, &staged) {
            plan.rename.push((staged, own));
        } else if !is_in(&names, &own) {
            return Err(Error::corrupt(format!(
                "{} is missing (bytes 0 to {}); restore it from a copy",
                own.display(),
                segment.bytes()
            )));
        }
    }
    for name in &names {
        let first_row = segment::first_row(name);
        if first_row.is_some_and(|row| row >= manifest.head.end(folder)) {
            // Files get their names after the manifest that names them, so that manifest was lost.
            return Err(Error::corrupt(format!(
                "{} belongs to a later commit than the last manifest, {}; restore the folder manifest from a copy",
                path.join(name).display(),
                manifest.head.version
            )));
        }
        let known = |row: u64| manifest.of(folder).iter().any(|segment| segment.first_row == row);
        let found = path.join(name);
        if name == MARKER {
            plan.marker = Some(found);
        } else if first_row.is_some_and(|row| !known(row))
            || (name.strip_suffix(".tmp").is_some() && !plan.rename.iter().any(|(from, _)| *from == found))
        {
            plan.remove.push(found);
        }
    }
    Ok(plan)
}

fn is_in(names: &[String], path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| names.iter().any(|found| found == name))
}

/// Folders and the first manifest: readers can open a store before its first commit.
fn create(fs: &dyn Fs, store: &Path, manifest: &Manifest, sync: Sync) -> Result<()> {
    for folder in FOLDERS.iter().chain([&manifest::FOLDER]) {
        let path = store.join(folder);
        fs.create_folder(&path).map_err(failed("create folder", &path))?;
    }
    if sync != Sync::Never {
        let above = store.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for folder in [above, store] {
            fs.sync_folder(folder).map_err(failed("sync folder", folder))?;
        }
    }
    publish(fs, store, manifest, sync)
}

/// Writes a manifest under its number. When this returns, the commit is durable.
pub(super) fn publish(fs: &dyn Fs, store: &Path, manifest: &Manifest, sync: Sync) -> Result<()> {
    let path = manifest::path(store, manifest.head.version);
    let staged = path.with_extension("tmp");
    write(fs, &staged, &manifest.to_bytes()?, sync)?;
    fs.rename(&staged, &path).map_err(failed("rename", &staged))?;
    if sync != Sync::Never {
        let folder = store.join(manifest::FOLDER);
        fs.sync_folder(&folder).map_err(failed("sync folder", &folder))?;
    }
    Ok(())
}

/// Writes a file whose name is made durable by whoever calls.
pub(super) fn write(fs: &dyn Fs, path: &Path, bytes: &[u8], sync: Sync) -> Result<()> {
    fs.write(path, bytes).map_err(failed("write", path))?;
    if sync != Sync::Never {
        fs.sync(path).map_err(failed("sync", path))?;
    }
    Ok(())
}
