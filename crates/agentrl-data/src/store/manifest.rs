//! The numbered manifest: which rows there are and in which files, as JSON with a checksum line.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use agentrl_compute::hash::hash_bytes;
use serde::{Deserialize, Serialize};

use super::folders::FOLDERS;
use super::fs::{Fs, failed};
use super::segment::Segment;
use crate::batch::NextIds;
use crate::schema::FORMAT_VERSION;
use crate::{Error, Result};

/// The folder of manifests.
pub(super) const FOLDER: &str = "manifest";

/// A feature of the format that not every version knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Flag {
    pub(super) name: String,
    /// The first version of this library that knows it.
    pub(super) since: String,
}

/// What a reader sees of a store: enough to find the same rows again, however their files are merged meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Number of the commit.
    pub(super) version: u64,
    /// Number of writes (appends and closed iterations) so far.
    pub(super) sequence: u64,
    /// Number of closed iterations.
    pub(super) iteration: i64,
    /// Iterations below this one were dropped.
    pub(super) dropped: i64,
    pub(super) next: NextIds,
    /// Rows ever written to each folder. Rows are numbered through and keep their numbers.
    pub(super) rows: BTreeMap<String, u64>,
    pub(super) state: serde_json::Value,
}

/// The state of a store after a commit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Manifest {
    format: u32,
    /// Features that one must know to read.
    pub(super) reader_flags: Vec<Flag>,
    /// Features that one must know to write.
    pub(super) writer_flags: Vec<Flag>,
    #[serde(flatten)]
    pub(super) head: Head,
    /// The files of each folder, in the order of their rows.
    pub(super) segments: BTreeMap<String, Vec<Segment>>,
}

impl Default for Manifest {
    fn default() -> Self {
        let head = Head {
            version: 0,
            sequence: 0,
            iteration: 0,
            dropped: 0,
            next: NextIds::default(),
            rows: FOLDERS.iter().map(|&folder| (folder.to_owned(), 0)).collect(),
            state: serde_json::Value::Null,
        };
        let segments = FOLDERS.iter().map(|&folder| (folder.to_owned(), Vec::new())).collect();
        Self { format: FORMAT_VERSION, reader_flags: Vec::new(), writer_flags: Vec::new(), head, segments }
    }
}

impl Head {
    /// Rows ever written to a folder.
    pub(super) fn end(&self, folder: &str) -> u64 {
        self.rows.get(folder).copied().unwrap_or_default()
    }
}

impl Manifest {
    /// The files of a folder.
    pub(super) fn of(&self, folder: &str) -> &[Segment] {
        self.segments.get(folder).map_or(&[], Vec::as_slice)
    }

    /// The last manifest of a store, or none.
    pub(super) fn latest(fs: &dyn Fs, store: &Path) -> Result<Option<Self>> {
        let folder = store.join(FOLDER);
        loop {
            let names = fs.list(&folder).map_err(failed("list", &folder))?;
            let Some(version) = names.iter().filter_map(|name| number(name)).max() else { return Ok(None) };
            let path = path(store, version);
            match fs.read(&path, None) {
                Ok(bytes) => return Self::parse(&path, &bytes).map(Some),
                // Another one took its place since the folder was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("read", &path)(error)),
            }
        }
    }

    /// A manifest from the bytes of its file.
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let corrupt = |what: &str| {
            let length = bytes.len();
            Error::corrupt(format!("{} {what} (bytes 0 to {length}); restore it from a copy", path.display()))
        };
        let text = std::str::from_utf8(bytes).map_err(|_| corrupt("is not text"))?;
        let (body, checksum) = text
            .strip_suffix('\n')
            .and_then(|text| text.rsplit_once('\n'))
            .ok_or_else(|| corrupt("has no checksum line"))?;
        if checksum_of(body) != checksum {
            return Err(corrupt("is damaged: its checksum is not the written one"));
        }
        let unknown = |error: serde_json::Error| corrupt(&format!("cannot be read: {error}"));
        // What another format says about its flags can be told even where the rest of it cannot be read.
        let flags: Flags = serde_json::from_str(body).map_err(unknown)?;
        if let Some(flag) = flags.reader_flags.first() {
            return Err(Error::unsupported(format!(
                "{} needs feature {:?}, which agentrl_core {} or newer can read; install that version",
                path.display(),
                flag.name,
                flag.since
            )));
        }
        if flags.format != FORMAT_VERSION {
            return Err(Error::unsupported(format!(
                "{} has format {}; this version reads format {FORMAT_VERSION}: install a newer agentrl_core",
                path.display(),
                flags.format
            )));
        }
        // Numbers of any precision do not go through a flattened field, so head and files are read one after the other.
        let head: Head = serde_json::from_str(body).map_err(unknown)?;
        let Files { writer_flags, segments } = serde_json::from_str(body).map_err(unknown)?;
        let Flags { format, reader_flags } = flags;
        let manifest = Self { format, reader_flags, writer_flags, head, segments };
        manifest.check().map_err(|why| corrupt(&format!("contradicts itself: {why}")))?;
        Ok(manifest)
    }

    /// The rules that everything else relies on.
    fn check(&self) -> std::result::Result<(), String> {
        for (folder, segments) in &self.segments {
            if !FOLDERS.contains(&folder.as_str()) {
                return Err(format!("folder {folder:?} is not known"));
            }
            let mut row = 0;
            for segment in segments {
                if segment.first_row < row || segment.commit > self.head.version {
                    return Err(format!("a file of {folder} does not come after the one before it"));
                }
                row = segment
                    .checked_end()
                    .ok_or_else(|| format!("the blocks of a file of {folder} are out of order"))?;
            }
            if row > self.head.end(folder) {
                return Err(format!("{folder} has more rows than were written"));
            }
        }
        Ok(())
    }

    /// Whether this version may write the store.
    pub(super) fn check_writable(&self, store: &Path) -> Result<()> {
        match self.writer_flags.first() {
            None => Ok(()),
            Some(flag) => Err(Error::unsupported(format!(
                "{} uses feature {:?}, which only agentrl_core {} or newer can write; open it read-only, or install that \
                 version",
                store.display(),
                flag.name,
                flag.since
            ))),
        }
    }

    /// The manifest as the bytes of its file.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let body = serde_json::to_string(self)
            .map_err(|error| Error::internal("the manifest cannot be written as JSON").with_source(error))?;
        Ok(with_checksum(&body).into_bytes())
    }
}

#[derive(Deserialize)]
struct Flags {
    format: u32,
    reader_flags: Vec<Flag>,
}

#[derive(Deserialize)]
struct Files {
    writer_flags: Vec<Flag>,
    segments: BTreeMap<String, Vec<Segment>>,
}

/// Where the manifest of a commit lies.
pub(super) fn path(store: &Path, version: u64) -> PathBuf {
    store.join(FOLDER).join(format!("{version:08}.json"))
}

/// The commit whose manifest has a name.
pub(super) fn number(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.parse().ok()
}

/// The text of a manifest: its JSON, and a line that tells whether that is whole.
pub(super) fn with_checksum(body: &str) -> String {
    format!("{body}\n{}\n", checksum_of(body))
}

fn checksum_of(body: &str) -> String {
    format!("{:032x}", u128::from_be_bytes(hash_bytes(body.as_bytes())))
}
