//! Contents of images and the like: each once, under its SHA-256.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::fs::{Fs, MOST_BYTES, failed, read_whole, refuse_link, write};
use super::{Store, Sync};
use crate::batch::{Blobs, hex};
use crate::{Error, Result};

/// The folder of blobs.
pub(super) const FOLDER: &str = "blobs";

/// Behind the name of a blob that is being written.
const STAGED: &str = ".tmp";

impl Store {
    /// The content of a blob that nodes refer to, compared with its hash.
    pub fn blob(&mut self, hash: &[u8; 32]) -> Result<Vec<u8>> {
        self.settle()?;
        let path = self.blob_path(hash);
        let content = read_whole(self.fs.as_ref(), &path, MOST_BYTES).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::not_found(format!(
                "the store has no blob {}; hashes are in column blobs of store.nodes",
                hex(hash)
            )),
            _ => failed("read", &path)(error),
        })?;
        if Sha256::digest(&content)[..] == hash[..] {
            return Ok(content.to_vec());
        }
        Err(Error::corrupt(format!(
            "{} is damaged in bytes 0 to {}: its SHA-256 is not its name; restore it from a copy",
            path.display(),
            content.len()
        )))
    }

    /// Writes blobs that are not there yet. They are durable when this returns, before the commit that refers to them.
    pub(super) fn write_blobs(&self, blobs: &Blobs) -> Result<()> {
        self.check_process()?;
        let (fs, sync) = (self.fs.as_ref(), self.sync());
        let mut changed = BTreeSet::new();
        for (hash, content) in blobs.iter() {
            let path = self.blob_path(hash);
            let folder = path.parent().unwrap_or(&self.path).to_owned();
            fs.create_folder(&folder).map_err(failed("create folder", &folder))?;
            let names = fs.list(&folder).map_err(failed("list", &folder))?;
            if names.contains(&hex(hash)) {
                continue;
            }
            let staged = path.with_extension("tmp");
            write(fs, &staged, content, sync)?;
            fs.rename(&staged, &path).map_err(failed("rename", &staged))?;
            changed.insert(folder);
        }
        if sync != Sync::Never && !changed.is_empty() {
            changed.extend([self.path.join(FOLDER), self.path.clone()]);
            for folder in changed {
                fs.sync_folder(&folder).map_err(failed("sync folder", &folder))?;
            }
        }
        Ok(())
    }

    /// Takes away what no node refers to any more.
    pub(super) fn remove_blobs_except(&self, kept: &BTreeSet<[u8; 32]>) -> Result<()> {
        let kept: BTreeSet<String> = kept.iter().map(hex).collect();
        for (path, name) in self.blob_files()? {
            if !kept.contains(&name) {
                self.fs.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Path and name of each blob.
    pub(super) fn blob_files(&self) -> Result<Vec<(PathBuf, String)>> {
        Ok(blob_files(self.fs.as_ref(), &self.path)?.into_iter().filter(|(_, name)| !name.ends_with(STAGED)).collect())
    }

    fn blob_path(&self, hash: &[u8; 32]) -> PathBuf {
        let name = hex(hash);
        self.path.join(FOLDER).join(&name[..2]).join(name)
    }
}

/// Path and name of each file in the folders of blobs that has a name as a store gives it.
fn blob_files(fs: &dyn Fs, store: &Path) -> Result<Vec<(PathBuf, String)>> {
    let top = store.join(FOLDER);
    let mut files = Vec::new();
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    for start in fs.list(&top).map_err(failed("list", &top))? {
        if start.len() != 2 || !is_hex(&start) {
            continue;
        }
        let folder = top.join(&start);
        refuse_link(fs, &folder)?;
        let names = fs.list(&folder).map_err(failed("list", &folder))?;
        let own = names.into_iter().filter(|name| {
            let hash = name.strip_suffix(STAGED).unwrap_or(name);
            hash.len() == 64 && hash.starts_with(&start) && is_hex(hash)
        });
        files.extend(own.map(|name| (folder.join(&name), name)));
    }
    Ok(files)
}

/// Removes what a writer that was killed has left unfinished.
pub(super) fn remove_unfinished(fs: &dyn Fs, store: &Path) -> Result<()> {
    for (path, name) in blob_files(fs, store)? {
        if name.ends_with(STAGED) {
            fs.remove(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}

/// Refuses contents that are not what their hash says.
pub(super) fn check_blobs(blobs: &Blobs) -> Result<()> {
    if let Some((hash, content)) = blobs.iter().find(|(_, content)| content.len() as u64 > MOST_BYTES) {
        let bytes = content.len();
        return Err(Error::invalid(format!("blob {} has {bytes} bytes, but can have {MOST_BYTES}", hex(hash))));
    }
    match blobs.iter().find(|(hash, content)| Sha256::digest(content)[..] != hash[..]) {
        None => Ok(()),
        Some((hash, _)) => Err(Error::invalid(format!("the content of blob {} has another SHA-256", hex(hash)))),
    }
}
