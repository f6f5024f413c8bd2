//! Blobs, such as the contents of images: each is stored once, under its SHA-256.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::blob_files::{FOLDER, STAGED, StoredBlobs, blob_files, blob_path, read_blob};
use super::fs::{failed, write};
use super::{Store, Sync};
use crate::batch::{Batch, Blobs, hex};
use crate::{Error, Result};

impl Store {
    /// Read a blob that nodes refer to, and check its SHA-256.
    pub fn blob(&mut self, hash: &[u8; 32]) -> Result<Vec<u8>> {
        self.settle()?;
        read_blob(self.fs.as_ref(), &self.path, hash)?.ok_or_else(|| {
            Error::not_found(format!("the store has no blob {}; give a hash of column blobs of store.nodes", hex(hash)))
        })
    }

    /// Return a batch that reads its blobs from the files of this store on request.
    pub(super) fn with_blobs(&self, batch: &Batch) -> Batch {
        batch.with_stored_blobs(Arc::new(StoredBlobs { fs: Arc::clone(&self.fs), store: self.path.clone() }))
    }

    /// Write the blobs that the store does not have yet. They are durable on return (except with [`Sync::Never`]),
    /// before the commit that refers to them.
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

    /// Remove the blobs whose hashes are not in `kept`.
    pub(super) fn remove_blobs_except(&self, kept: &BTreeSet<[u8; 32]>) -> Result<()> {
        let kept: BTreeSet<String> = kept.iter().map(hex).collect();
        for (path, name) in self.blob_files()? {
            if !kept.contains(&name) {
                self.fs.remove(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Return path and name of each complete blob file.
    pub(super) fn blob_files(&self) -> Result<Vec<(PathBuf, String)>> {
        Ok(blob_files(self.fs.as_ref(), &self.path)?.into_iter().filter(|(_, name)| !name.ends_with(STAGED)).collect())
    }

    fn blob_path(&self, hash: &[u8; 32]) -> PathBuf {
        blob_path(&self.path, hash)
    }
}
