//! The files of blobs: their names, what a killed writer left of them, and the check of contents.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::fs::{Fs, MAX_FILE_BYTES, failed, refuse_link};
use crate::batch::{Blobs, hex};
use crate::{Error, Result};

/// The folder of blobs.
pub(super) const FOLDER: &str = "blobs";

/// Suffix of the name of a blob that is being written.
pub(super) const STAGED: &str = ".tmp";

/// Path and name of each file in the folders of blobs that has a name as a store gives it.
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

/// Removes what a writer that was killed has left unfinished.
pub(super) fn remove_unfinished(fs: &dyn Fs, store: &Path) -> Result<()> {
    for (path, name) in blob_files(fs, store)? {
        if name.ends_with(STAGED) {
            fs.remove(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}

/// Refuse contents that do not match their hash.
pub(super) fn check_blobs(blobs: &Blobs) -> Result<()> {
    if let Some((hash, content)) = blobs.iter().find(|(_, content)| content.len() as u64 > MAX_FILE_BYTES) {
        let bytes = content.len();
        return Err(Error::invalid(format!("blob {} has {bytes} bytes, but can have {MAX_FILE_BYTES}", hex(hash))));
    }
    match blobs.iter().find(|(hash, content)| Sha256::digest(content)[..] != hash[..]) {
        None => Ok(()),
        Some((hash, _)) => Err(Error::invalid(format!("the content of blob {} has another SHA-256", hex(hash)))),
    }
}
