//! Blob files: names, hash checks, and removal of unfinished files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::fs::{Fs, MAX_FILE_BYTES, failed, read_whole, refuse_link};
use crate::batch::{BlobFiles, Blobs, hex};
use crate::{Error, Result};

/// The folder of blobs.
pub(super) const FOLDER: &str = "blobs";

/// Suffix of the name of a blob that is being written.
pub(super) const STAGED: &str = ".tmp";

/// Reader of blob files for the batches of a store, also after later commits. The content of a hash never changes.
#[derive(Debug)]
pub(super) struct StoredBlobs {
    pub(super) fs: Arc<dyn Fs>,
    pub(super) store: PathBuf,
}

impl BlobFiles for StoredBlobs {
    fn read(&self, hash: &[u8; 32]) -> Result<Option<Vec<u8>>> {
        read_blob(self.fs.as_ref(), &self.store, hash)
    }
}

/// Return the path of a blob's file.
pub(super) fn blob_path(store: &Path, hash: &[u8; 32]) -> PathBuf {
    let name = hex(hash);
    store.join(FOLDER).join(&name[..2]).join(name)
}

/// Read a blob and check its SHA-256; `None` if the store has no file for it.
pub(super) fn read_blob(fs: &dyn Fs, store: &Path, hash: &[u8; 32]) -> Result<Option<Vec<u8>>> {
    let path = blob_path(store, hash);
    let content = match read_whole(fs, &path, MAX_FILE_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(failed("read", &path))?,
    };
    if Sha256::digest(&content)[..] == hash[..] {
        return Ok(Some(content.to_vec()));
    }
    Err(Error::corrupt(format!(
        "{} is damaged in bytes 0 to {}: its SHA-256 is not its name; restore it from a copy",
        path.display(),
        content.len()
    )))
}

/// Return path and name of each file in the blob folders whose name is a SHA-256 in hex, with or without [`STAGED`].
pub(super) fn blob_files(fs: &dyn Fs, store: &Path) -> Result<Vec<(PathBuf, String)>> {
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

/// Remove the unfinished blob files of a killed writer.
pub(super) fn remove_unfinished(fs: &dyn Fs, store: &Path) -> Result<()> {
    for (path, name) in blob_files(fs, store)? {
        if name.ends_with(STAGED) {
            fs.remove(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}

/// Reject contents that are larger than [`MAX_FILE_BYTES`] or do not match their SHA-256.
pub(super) fn check_blobs(blobs: &Blobs) -> Result<()> {
    if let Some((hash, content)) = blobs.iter().find(|(_, content)| content.len() as u64 > MAX_FILE_BYTES) {
        let bytes = content.len();
        return Err(Error::invalid(format!(
            "blob {} has {bytes} bytes; divide it into blobs of at most {MAX_FILE_BYTES}",
            hex(hash)
        )));
    }
    match blobs.iter().find(|(hash, content)| Sha256::digest(content)[..] != hash[..]) {
        None => Ok(()),
        Some((hash, _)) => Err(Error::invalid(format!(
            "the content of blob {} has another SHA-256; add it again with add_blob",
            hex(hash)
        ))),
    }
}
