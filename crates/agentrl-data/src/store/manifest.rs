//! The numbered manifest: what a commit consists of, as JSON with a checksum line.

use std::path::Path;

use agentrl_compute::hash::hash_bytes;
use serde::{Deserialize, Serialize};

use super::fs;
use crate::batch::NextIds;
use crate::schema::FORMAT_VERSION;
use crate::{Error, Result};

/// One file of one table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Segment {
    pub(super) table: String,
    pub(super) file: String,
    pub(super) commit: u64,
    pub(super) iteration: i64,
    pub(super) rows: usize,
    bytes: usize,
    hash: String,
}

impl Segment {
    pub(super) fn new(table: &str, file: String, commit: u64, iteration: i64, rows: usize, bytes: &[u8]) -> Self {
        Self { table: table.to_owned(), file, commit, iteration, rows, bytes: bytes.len(), hash: hex(bytes) }
    }

    /// Compares a file's bytes with what was written.
    pub(super) fn verify(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.bytes {
            return Err(Error::corrupt(format!(
                "{} has {} bytes, {} were written; restore it from a copy",
                path.display(),
                bytes.len(),
                self.bytes
            )));
        }
        if hex(bytes) != self.hash {
            return Err(Error::corrupt(format!(
                "{} is damaged: its checksum is not the written one; restore it from a copy",
                path.display()
            )));
        }
        Ok(())
    }
}

/// The state of a store after a commit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    /// Features that a reader must know; none in v1.
    reader_flags: Vec<String>,
    pub(super) version: u64,
    pub(super) iteration: i64,
    pub(super) next: NextIds,
    pub(super) segments: Vec<Segment>,
    pub(super) state: serde_json::Value,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            format: FORMAT_VERSION,
            reader_flags: Vec::new(),
            version: 0,
            iteration: 0,
            next: NextIds::default(),
            segments: Vec::new(),
            state: serde_json::Value::Null,
        }
    }
}

impl Manifest {
    /// The last manifest of a folder, or none.
    pub(super) fn latest(folder: &Path) -> Result<Option<Self>> {
        let names = fs::list(folder)?;
        let versions = names.iter().filter_map(|name| name.strip_suffix(".json")?.parse::<u64>().ok());
        let Some(version) = versions.max() else { return Ok(None) };
        let path = folder.join(Self::name(version));
        let bytes = fs::read(&path)?;
        let corrupt = |what: &str| Error::corrupt(format!("{} {what}; restore it from a copy", path.display()));
        let text = std::str::from_utf8(&bytes).map_err(|_| corrupt("is not text"))?;
        let (body, checksum) = text.trim_end().rsplit_once('\n').ok_or_else(|| corrupt("has no checksum line"))?;
        if hex(body.as_bytes()) != checksum {
            return Err(corrupt("is damaged: its checksum is not the written one"));
        }
        let manifest: Self =
            serde_json::from_str(body).map_err(|error| corrupt(&format!("cannot be read: {error}")))?;
        if manifest.format != FORMAT_VERSION || !manifest.reader_flags.is_empty() {
            return Err(Error::unsupported(format!(
                "{} has format {} and needs {:?}; this version reads format {FORMAT_VERSION}: install a newer agentrl_core",
                path.display(),
                manifest.format,
                manifest.reader_flags
            )));
        }
        Ok(Some(manifest))
    }

    /// Writes the manifest under its number.
    pub(super) fn publish(&self, folder: &Path) -> Result<()> {
        let body = serde_json::to_string(self)
            .map_err(|error| Error::internal("the manifest cannot be written as JSON").with_source(error))?;
        let text = format!("{body}\n{}\n", hex(body.as_bytes()));
        fs::publish(&folder.join(Self::name(self.version)), text.as_bytes())
    }

    fn name(version: u64) -> String {
        format!("{version:08}.json")
    }
}

fn hex(bytes: &[u8]) -> String {
    format!("{:032x}", u128::from_be_bytes(hash_bytes(bytes)))
}
