//! A sealed file of rows. A manifest records its rows and the position of its footer; the footer lists its blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::blocks::{self, Block, BlockIndex};
use super::column_union::FileRows;
use super::folders::key_of;
use super::footer::{Bounds, FooterRange};
use super::fs::{Fs, MAX_FILE_BYTES, failed, write_with};
use super::sync_mode::Sync;
use crate::{Error, ErrorKind, Result};

/// Largest number of bytes that are read at once from adjacent blocks.
pub(super) const READ_BYTES: u64 = 4 << 20;

/// A sealed file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub(super) struct Segment {
    /// Number of its first row among all rows of its folder.
    pub(super) first_row: u64,
    /// The commit that wrote it.
    pub(super) commit: u64,
    rows: u64,
    /// Smallest and greatest key.
    keys: (i64, i64),
    /// Bounds of the filter columns besides the key. Manifests of older versions lack them.
    bounds: Arc<Bounds>,
    /// Position and hash of the footer, which comes after the blocks.
    footer: FooterRange,
    /// Blocks of a file of an older version, whose footer does not list them.
    listed: Option<Arc<[Block]>>,
    /// Whether its name lacks the commit number, as in stores of the first version.
    pub(super) is_named_by_row: bool,
    /// The parsed footer, once it was read. Copies of a segment share it.
    index: Arc<OnceLock<BlockIndex>>,
}

impl PartialEq for Segment {
    fn eq(&self, other: &Self) -> bool {
        let known = |segment: &Self| {
            let Self { first_row, commit, rows, keys, footer, is_named_by_row, .. } = segment;
            (*first_row, *commit, *rows, *keys, *footer, *is_named_by_row)
        };
        known(self) == known(other) && self.bounds == other.bounds && self.listed == other.listed
    }
}

/// A segment as it is written in a manifest.
#[derive(Serialize, Deserialize)]
struct Written {
    first_row: u64,
    commit: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<(u64, (i64, i64), FooterRange)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<Block>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    bounds: Bounds,
}

impl From<Segment> for Written {
    fn from(Segment { first_row, commit, rows, keys, bounds, footer, listed, .. }: Segment) -> Self {
        let bounds = Arc::unwrap_or_clone(bounds);
        match listed {
            None => Self { first_row, commit, sealed: Some((rows, keys, footer)), blocks: Vec::new(), bounds },
            Some(listed) => {
                let footer = Block { end: footer.1, rows: 0, keys: (0, 0), hash: footer.2 };
                let blocks = listed.iter().copied().chain([footer]).collect();
                Self { first_row, commit, sealed: None, blocks, bounds }
            }
        }
    }
}

impl TryFrom<Written> for Segment {
    type Error = String;

    fn try_from(written: Written) -> std::result::Result<Self, String> {
        let Written { first_row, commit, sealed, mut blocks, bounds } = written;
        let (index, bounds) = (Arc::default(), Arc::new(bounds));
        let is_named_by_row = false;
        if let Some((rows, keys, footer)) = sealed {
            return Ok(Self { first_row, commit, rows, keys, bounds, footer, listed: None, is_named_by_row, index });
        }
        let last = blocks.pop().filter(|footer| footer.rows == 0).ok_or("a file has no footer")?;
        let begin = blocks.last().map_or(0, |block| block.end);
        blocks::check_order(&blocks, begin)?;
        let rows = blocks.iter().try_fold(0_u64, |rows, block| rows.checked_add(block.rows)).ok_or("too many rows")?;
        let (keys, footer) = (blocks::bounds_of(&blocks), FooterRange(begin, last.end, last.hash));
        let listed = Some(blocks.into());
        Ok(Self { first_row, commit, rows, keys, bounds, footer, listed, is_named_by_row, index })
    }
}

/// Index, row numbers and keys of a record batch in a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRows {
    pub(super) index: usize,
    pub(super) first_row: u64,
    pub(super) end_row: u64,
    pub(super) keys: (i64, i64),
}

impl Segment {
    /// Return a segment that has no rows yet.
    pub(super) fn begun(first_row: u64, commit: u64) -> Self {
        Self {
            first_row,
            commit,
            rows: 0,
            keys: (0, 0),
            bounds: Arc::default(),
            footer: FooterRange(0, 0, 0),
            listed: None,
            is_named_by_row: false,
            index: Arc::default(),
        }
    }

    /// Write rows of a folder to the file of a segment without rows, and return the segment with these rows.
    pub(super) fn seal(self, fs: &dyn Fs, path: &Path, rows: &FileRows, folder: &str, sync: Sync) -> Result<Self> {
        let (blocks, end, hash) = write_with(fs, path, sync, |file| {
            blocks::write(rows, folder, &mut |bytes| file.write_all(bytes).map_err(failed("write", path)))
        })?;
        Ok(Self {
            rows: blocks.iter().map(|block| block.rows).sum(),
            keys: blocks::bounds_of(&blocks),
            bounds: Arc::new(blocks::chosen_between(&rows.1, folder)),
            footer: FooterRange(blocks.last().map_or(0, |block| block.end), end, hash),
            ..self
        })
    }

    /// Return the number of the row after its last one; `None` if its recorded sizes are impossible.
    pub(super) fn checked_end(&self) -> Option<u64> {
        let FooterRange(begin, end, _) = self.footer;
        // No file of a store is as large. The footer must be small enough to be read into memory.
        let sane = begin < end && end - begin <= MAX_FILE_BYTES && end < 1 << 48;
        self.first_row.checked_add(self.rows).filter(|_| sane)
    }

    /// Return the number of the row after its last one.
    pub(super) fn end_row(&self) -> u64 {
        self.first_row + self.rows
    }

    /// Return the size of the file in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.footer.1
    }

    /// Return the smallest and greatest key of its rows.
    pub(super) fn keys(&self) -> (i64, i64) {
        self.keys
    }

    /// Return the known bounds of its key and of its other filter columns.
    pub(super) fn bounds(&self, folder: &str) -> Bounds {
        let mut bounds = Bounds::clone(&self.bounds);
        bounds.extend(key_of(folder).filter(|_| self.rows > 0).map(|key| (key.to_owned(), self.keys)));
        bounds
    }

    /// Return the size in bytes of a record batch; 0 if the footer was not read yet.
    pub(super) fn block_bytes(&self, block: usize) -> u64 {
        self.index.get().map_or(0, |index| index.blocks[block].end - index.begin(block))
    }

    /// Return its record batches.
    pub(super) fn pieces(
        &self,
        fs: &dyn Fs,
        folder: &Path,
    ) -> Result<impl DoubleEndedIterator<Item = BlockRows> + use<>> {
        let blocks = self.found(folder, |path| self.index(fs, path).map(|index| Arc::clone(&index.blocks)))?;
        let mut row = self.first_row;
        let pieces = blocks.iter().enumerate().map(|(index, block)| {
            let first_row = row;
            row += block.rows;
            BlockRows { index, first_row, end_row: row, keys: block.keys }
        });
        Ok(pieces.collect::<Vec<_>>().into_iter())
    }

    /// Return the path of the file after its commit. Apart from files of the first version, no other file ever has this
    /// name, so a later read from this path returns the same bytes or fails.
    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        let Self { first_row, commit, .. } = self;
        folder.join(if self.is_named_by_row {
            format!("{first_row:012}.arrow")
        } else {
            format!("{first_row:012}-{commit:08}.arrow")
        })
    }

    /// Return the path of the file until the manifest of its commit is published.
    pub(super) fn staged(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{:012}.{:08}.tmp", self.first_row, self.commit))
    }

    /// Return the path of the file while it is merged concurrently with commits, which use other names.
    pub(super) fn merged(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{:012}.{:08}.merged.tmp", self.first_row, self.commit))
    }

    /// Read record batches in the given order, each as parts with the columns that they were written with. All bytes
    /// read are compared with their checksums.
    ///
    /// The file has its final name, or its staged name until its commit is over. If the bytes under neither name are
    /// those that were written, the file is damaged or a later manifest lists another file ([`is_other`]).
    pub(super) fn read(&self, fs: &dyn Fs, folder: &Path, wanted: &[usize]) -> Result<Vec<Vec<RecordBatch>>> {
        self.found(folder, |path| self.read_at(fs, path, wanted))
    }

    /// Call `look` with the path of the file, under its final or its staged name.
    pub(super) fn found<T>(&self, folder: &Path, look: impl Fn(&Path) -> Result<T>) -> Result<T> {
        // The file can be renamed between the first attempt and the second, but only once.
        let (path, staged) = (self.path(folder), self.staged(folder));
        let first = look(&path);
        if first.is_ok() {
            return first;
        }
        look(&staged).or_else(|_| look(&path)).or(first)
    }

    fn read_at(&self, fs: &dyn Fs, path: &Path, wanted: &[usize]) -> Result<Vec<Vec<RecordBatch>>> {
        let index = self.index(fs, path)?;
        let (runs, mut rows) = (runs(index, wanted), Vec::with_capacity(wanted.len()));
        let ranges: Vec<_> = runs.iter().map(|run| index.bytes(run)).collect();
        let parts = fs.read_parts(path, &ranges).map_err(unread(path, ranges.last().cloned().unwrap_or_default()))?;
        for (run, bytes) in runs.into_iter().zip(parts) {
            show_run(path, index, run, &bytes, |block, piece| {
                rows.push(index.rows(path, block, piece)?);
                Ok(())
            })?;
        }
        Ok(rows)
    }

    /// Return the footer, which is read only once.
    pub(super) fn index(&self, fs: &dyn Fs, path: &Path) -> Result<&BlockIndex> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let FooterRange(begin, end, hash) = self.footer;
        let bytes = bytes_of(fs, path, begin..end)?;
        check_hash(path, &bytes, begin..end, hash)?;
        let index = BlockIndex::read(path, &bytes, begin, self.rows, self.listed.clone())?;
        Ok(self.index.get_or_init(|| index))
    }
}

/// Group blocks into runs of adjacent blocks that are read at once.
pub(super) fn runs(index: &BlockIndex, wanted: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &block in wanted {
        match runs.last_mut() {
            Some(run) if run.end == block && index.blocks[block].end - index.begin(run.start) <= READ_BYTES => {
                run.end = block + 1;
            }
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

/// Read the blocks of a run, and call `show` with the bytes of each after its checksum was compared.
pub(super) fn read_run(
    fs: &dyn Fs,
    path: &Path,
    index: &BlockIndex,
    run: Range<usize>,
    show: impl FnMut(usize, &Buffer) -> Result<()>,
) -> Result<()> {
    let bytes = bytes_of(fs, path, index.bytes(&run))?;
    show_run(path, index, run, &bytes, show)
}

/// Call `show` with the bytes of each block of a run that was read, after its checksum was compared.
fn show_run(
    path: &Path,
    index: &BlockIndex,
    run: Range<usize>,
    bytes: &Buffer,
    mut show: impl FnMut(usize, &Buffer) -> Result<()>,
) -> Result<()> {
    let begin = index.begin(run.start);
    for block in run {
        let range = index.begin(block)..index.blocks[block].end;
        let piece = bytes.slice_with_length((range.start - begin) as usize, (range.end - range.start) as usize);
        check_hash(path, &piece, range, index.blocks[block].hash)?;
        show(block, &piece)?;
    }
    Ok(())
}

fn bytes_of(fs: &dyn Fs, path: &Path, range: Range<u64>) -> Result<Buffer> {
    fs.read(path, range.clone()).map_err(unread(path, range))
}

/// Return the error of bytes that could not be read.
fn unread(path: &Path, range: Range<u64>) -> impl FnOnce(std::io::Error) -> Error {
    move |error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => damaged(path, range, &error.to_string()),
        _ => failed("read", path)(error),
    }
}

fn check_hash(path: &Path, bytes: &[u8], range: Range<u64>, hash: u64) -> Result<()> {
    if xxh3_64(bytes) == hash { Ok(()) } else { Err(damaged(path, range, "its checksum is not the written one")) }
}

fn damaged(path: &Path, Range { start, end }: Range<u64>, why: &str) -> Error {
    Error::corrupt(format!("{} is damaged in bytes {start} to {end}: {why}; restore it from a copy", path.display()))
}

/// Parse the first row and the commit of a name by [`Segment::path`], [`Segment::staged`] or [`Segment::merged`].
/// Returns `None` for all other names, even for similar ones.
pub(super) fn numbers(name: &str) -> Option<(u64, Option<u64>)> {
    let (stem, ending) = name.rsplit_once('.')?;
    let stem = if ending == "tmp" { stem.strip_suffix(".merged").unwrap_or(stem) } else { stem };
    let (row, commit) = match (stem.split_once(['-', '.']), ending) {
        (Some((row, commit)), "arrow" | "tmp") => (row.parse().ok()?, Some(commit.parse().ok()?)),
        (None, "arrow") => (stem.parse().ok()?, None),
        _ => return None,
    };
    let segment = Segment { is_named_by_row: commit.is_none(), ..Segment::begun(row, commit.unwrap_or(0)) };
    let folder = Path::new("");
    let own = [segment.path(folder), segment.staged(folder), segment.merged(folder)];
    let is_own = own.iter().any(|own| own == Path::new(name));
    is_own.then_some((row, commit))
}

/// Return whether an error means that a file is not the one in the manifest. A later manifest may list another file.
pub(super) fn is_other(error: &Error) -> bool {
    use std::error::Error as _;
    let missing = |error: &(dyn std::error::Error + 'static)| {
        error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    error.kind() == ErrorKind::Corrupt || error.source().is_some_and(missing)
}
