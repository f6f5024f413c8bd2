//! Manifests: numbered JSON files with a checksum line, which list the committed rows and their files.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use agentrl_compute::hash::hash_bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::folders::FOLDERS;
use super::fs::{Fs, failed, read_whole};
use super::segment::Segment;
use crate::batch::NextIds;
use crate::facts::Facts;
use crate::schema::{FORMAT_VERSION, Table};
use crate::token_columns::RowTypes;
use crate::{Error, Result};

/// The folder of manifests.
pub(super) const FOLDER: &str = "manifest";

/// Largest size of a manifest in bytes. A manifest of a store with many terabytes is far smaller.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// Features that a reader of this format must support, with the first version that supports each.
const READER_FLAGS: [(&str, &str); 6] = [
    ("names_with_commits", "0.2.0"),
    ("united_columns", "0.2.0"),
    ("facts_and_roles", "0.2.0"),
    ("states", "0.2.0"),
    ("blocks_in_footers", "0.2.0"),
    ("token_columns", "0.2.0"),
];

/// A feature of the format that some versions do not support.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Flag {
    pub(super) name: String,
    /// The first version of this library that supports it.
    pub(super) since: String,
}

/// The extent of a store for a reader. It identifies the same rows even after their files were merged.
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
    /// Number of rows ever written to each folder. Rows are numbered consecutively and keep their numbers.
    pub(super) rows: BTreeMap<String, u64>,
    /// Facts of all batches, set by the first one with trajectories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) facts: Option<Facts>,
    /// Token columns of all batches by name.
    #[serde(default, skip_serializing_if = "RowTypes::is_empty")]
    pub(super) row_types: RowTypes,
    /// The row of folder `states` at which reading the arrays of the state begins.
    #[serde(default)]
    pub(super) states_from: u64,
    /// JSON exactly as it was given: it is not parsed, so numbers keep all digits and any nesting depth is read.
    #[serde(with = "as_json")]
    pub(super) state: String,
}

/// JSON text as an unparsed part of other JSON.
mod as_json {
    use super::{Deserialize as _, RawValue, Serialize as _};

    pub(super) fn serialize<S: serde::Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(text).map_err(serde::ser::Error::custom)?.serialize(to)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        Box::<RawValue>::deserialize(from).map(|json| Box::<str>::from(json).into())
    }
}

/// The state of a store after a commit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Manifest {
    /// The format version of all its files.
    pub(super) format: u32,
    /// Features that a reader must support.
    pub(super) reader_flags: Vec<Flag>,
    /// Features that a writer must support.
    pub(super) writer_flags: Vec<Flag>,
    #[serde(flatten)]
    pub(super) head: Head,
    /// The first commit whose files have its number in their names.
    named_from: u64,
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
            facts: None,
            row_types: RowTypes::new(),
            states_from: 0,
            state: "null".to_owned(),
        };
        let segments = FOLDERS.iter().map(|&folder| (folder.to_owned(), Vec::new())).collect();
        let mut manifest = Self {
            format: FORMAT_VERSION,
            reader_flags: Vec::new(),
            writer_flags: Vec::new(),
            head,
            named_from: 0,
            segments,
        };
        manifest.set_flags();
        manifest
    }
}

impl Head {
    /// Return the facts that every further batch must declare; `None` if the next batch with trajectories sets them. A
    /// store whose trajectories were written without facts has an empty set of facts.
    pub(super) fn declared(&self) -> Option<Facts> {
        let begun = self.end(Table::Trajectories.name()) > 0;
        self.facts.clone().or_else(|| begun.then(Facts::default))
    }

    /// Return the number of rows ever written to a folder.
    pub(super) fn end(&self, folder: &str) -> u64 {
        self.rows.get(folder).copied().unwrap_or_default()
    }
}

impl Manifest {
    /// Return the files of a folder.
    pub(super) fn of(&self, folder: &str) -> &[Segment] {
        self.segments.get(folder).map_or(&[], Vec::as_slice)
    }

    /// Return whether an older version wrote the files of a folder, with fewer columns than today.
    pub(super) fn lacks_columns(&self, folder: &str) -> bool {
        let came_later = [Table::Trajectories, Table::Draws].iter().any(|table| table.name() == folder);
        came_later && self.format < FORMAT_VERSION && !self.of(folder).is_empty()
    }

    /// Return the manifest of the next commit, before its own files are added.
    pub(super) fn next(&self) -> Self {
        let mut next = self.clone();
        next.head.version += 1;
        next.named_from = next.named_from.min(next.head.version);
        next.set_flags();
        next
    }

    fn set_flags(&mut self) {
        let flag = |(name, since): (&str, &str)| Flag { name: name.to_owned(), since: since.to_owned() };
        self.reader_flags = READER_FLAGS.into_iter().map(flag).collect();
    }

    /// Read the last manifest of a store; `None` if there is none.
    pub(super) fn latest(fs: &dyn Fs, store: &Path) -> Result<Option<Self>> {
        let mut tried = None;
        loop {
            let Some(version) = Self::last_number(fs, store)? else { return Ok(None) };
            let path = path(store, version);
            match read_whole(fs, &path, MAX_MANIFEST_BYTES) {
                Ok(bytes) => {
                    let manifest = Self::parse(&path, &bytes)?;
                    if manifest.head.version == version {
                        return Ok(Some(manifest));
                    }
                    return Err(Error::corrupt(format!(
                        "{} contains the manifest of commit {}; restore it from a copy",
                        path.display(),
                        manifest.head.version
                    )));
                }
                // A later manifest has replaced this one since the folder was listed, unless the same one is listed
                // again.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tried != Some(version) => {
                    tried = Some(version);
                }
                Err(error) => return Err(failed("read", &path)(error)),
            }
        }
    }

    /// Return the number of the last manifest.
    pub(super) fn last_number(fs: &dyn Fs, store: &Path) -> Result<Option<u64>> {
        let folder = store.join(FOLDER);
        let names = fs.list(&folder).map_err(failed("list", &folder))?;
        Ok(names.iter().filter_map(|name| number(name)).max())
    }

    /// Parse a manifest from the bytes of its file, and check it.
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
        // Read the flags first: this is possible even if the rest of another format cannot be read.
        let flags: Flags = serde_json::from_str(body).map_err(unknown)?;
        let known = |flag: &&Flag| READER_FLAGS.iter().any(|(name, _)| *name == flag.name);
        if let Some(flag) = flags.reader_flags.iter().find(|flag| !known(flag)) {
            return Err(Error::unsupported(format!(
                "{} needs feature {:?}, which agentrl_core {} or newer can read; install that version",
                path.display(),
                flag.name,
                flag.since
            )));
        }
        if !(1..=FORMAT_VERSION).contains(&flags.format) {
            return Err(Error::unsupported(format!(
                "{} has format {}; this version reads formats 1 to {FORMAT_VERSION}: install a newer agentrl_core",
                path.display(),
                flags.format
            )));
        }
        // The raw JSON of the state cannot be read through a flattened field, so head and files are read separately.
        let head: Head = serde_json::from_str(body).map_err(unknown)?;
        let Files { writer_flags, named_from, mut segments } = serde_json::from_str(body).map_err(unknown)?;
        for segment in segments.values_mut().flatten() {
            segment.is_named_by_row = segment.commit < named_from;
        }
        let Flags { format, reader_flags } = flags;
        let manifest = Self { format, reader_flags, writer_flags, head, named_from, segments };
        manifest.check().map_err(|why| corrupt(&format!("contradicts itself: {why}")))?;
        Ok(manifest)
    }

    /// Check the rules that all other code relies on.
    fn check(&self) -> std::result::Result<(), String> {
        if self.head.version >= 1 << 48 || self.head.sequence >= 1 << 48 {
            return Err("the number of commits is impossible".to_owned());
        }
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
                    .ok_or_else(|| format!("a file of {folder} has more rows or bytes than can be"))?;
            }
            if row > self.head.end(folder) {
                return Err(format!("{folder} has more rows than were written"));
            }
        }
        Ok(())
    }

    /// Check that this version may write the store.
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

    /// Return the bytes of the manifest's file.
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
    /// The first version named files by their first row only.
    #[serde(default = "never")]
    named_from: u64,
    segments: BTreeMap<String, Vec<Segment>>,
}

fn never() -> u64 {
    u64::MAX
}

/// Return the path of a commit's manifest.
pub(super) fn path(store: &Path, version: u64) -> PathBuf {
    store.join(FOLDER).join(file_name(version))
}

/// Parse the number of a commit from the name of its manifest. A name that spells the number differently is not the
/// store's.
pub(super) fn number(name: &str) -> Option<u64> {
    let version = name.strip_suffix(".json")?.parse().ok()?;
    (file_name(version) == name).then_some(version)
}

/// Return whether a name is the name of a manifest that is being written.
pub(super) fn is_staged(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|stem| number(&format!("{stem}.json")).is_some())
}

fn file_name(version: u64) -> String {
    format!("{version:08}.json")
}

/// Return the text of a manifest: its JSON, and a line with its checksum.
pub(super) fn with_checksum(body: &str) -> String {
    format!("{body}\n{}\n", checksum_of(body))
}

fn checksum_of(body: &str) -> String {
    format!("{:032x}", u128::from_be_bytes(hash_bytes(body.as_bytes())))
}
