//! A sealed file of rows, and its blocks: what is read and checked at once.

use std::path::{Path, PathBuf};

use arrow_array::{Array, RecordBatch};
use arrow_schema::SchemaRef;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::fs::{Fs, MOST_BYTES, failed};
use super::united::{Parts, Rows};
use crate::batch::i64s;
use crate::ipc::{self, Footer};
use crate::{Error, ErrorKind, Result, arrow_bug};

/// Bytes of a block, about: what is read to find one row.
const BLOCK_BYTES: usize = 4 << 20;

/// A piece of a file: one record batch, or the footer (the last one, without rows).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, i64, i64, u64)", into = "(u64, u64, i64, i64, u64)")]
pub(super) struct Block {
    /// Byte of the file where it ends; it begins where the one before it ends.
    end: u64,
    rows: u64,
    /// Smallest and greatest key.
    keys: (i64, i64),
    hash: u64,
}

impl From<(u64, u64, i64, i64, u64)> for Block {
    fn from((end, rows, first, last, hash): (u64, u64, i64, i64, u64)) -> Self {
        Self { end, rows, keys: (first, last), hash }
    }
}

impl From<Block> for (u64, u64, i64, i64, u64) {
    fn from(block: Block) -> Self {
        (block.end, block.rows, block.keys.0, block.keys.1, block.hash)
    }
}

/// A sealed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Segment {
    /// Number of its first row among all rows of its folder.
    pub(super) first_row: u64,
    /// The commit that wrote it.
    pub(super) commit: u64,
    blocks: Vec<Block>,
    /// Whether its name does not tell its commit, as in stores of the first version.
    #[serde(skip)]
    pub(super) is_named_by_row: bool,
}

/// A record batch of a segment: where it is, and which rows and keys it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) index: usize,
    pub(super) first_row: u64,
    pub(super) end_row: u64,
    pub(super) keys: (i64, i64),
}

impl Segment {
    /// Seals rows: the segment, and the bytes of its file.
    pub(super) fn seal(
        (schema, parts): &Rows,
        key: Option<&str>,
        first_row: u64,
        commit: u64,
    ) -> Result<(Self, Vec<u8>)> {
        let chunks = chunked(schema, parts)?;
        let bytes = ipc::encode(schema, &chunks)?;
        let footer = Footer::read("a new segment", &bytes)?;
        let (mut blocks, mut from) = (Vec::with_capacity(chunks.len() + 1), 0);
        let ends = footer.ends().map(|end| end as usize).chain([bytes.len()]);
        for (end, chunk) in ends.zip(chunks.iter().map(Some).chain([None])) {
            let keys = match (chunk, key) {
                (Some(chunk), Some(key)) => bounds(i64s(chunk, key)?.values()),
                _ => (0, 0),
            };
            let rows = chunk.map_or(0, RecordBatch::num_rows) as u64;
            blocks.push(Block { end: end as u64, rows, keys, hash: xxh3_64(&bytes[from..end]) });
            from = end;
        }
        Ok((Self { first_row, commit, blocks, is_named_by_row: false }, bytes))
    }

    /// Number of the row after its last one, where its blocks are in order.
    pub(super) fn checked_end(&self) -> Option<u64> {
        // A block is read at once: none is so large that there is no memory for it.
        let follows = |from: u64, end: u64| from < end && end - from <= MOST_BYTES;
        let ordered = self.blocks.windows(2).all(|pair| follows(pair[0].end, pair[1].end))
            && self.blocks.first().is_some_and(|block| follows(0, block.end));
        let footer = self.blocks.last().is_some_and(|footer| footer.rows == 0 && footer.end > 0);
        // No file of ours comes near: a length that is read into memory must be one that can be.
        let sane = self.bytes() < 1 << 48;
        let end = self.blocks.iter().try_fold(self.first_row, |row, block| row.checked_add(block.rows));
        end.filter(|_| ordered && footer && sane)
    }

    /// Number of the row after its last one.
    pub(super) fn end_row(&self) -> u64 {
        self.first_row + self.blocks.iter().map(|block| block.rows).sum::<u64>()
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.last().map_or(0, |footer| footer.end)
    }

    /// Its record batches.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let mut row = self.first_row;
        self.blocks[..self.blocks.len() - 1].iter().enumerate().map(move |(index, block)| {
            let first_row = row;
            row += block.rows;
            Piece { index, first_row, end_row: row, keys: block.keys }
        })
    }

    /// Where it lies once its commit is over: under a name that no other file ever has, before it or after it. What was
    /// read from the name once can only be read from it again, or not at all.
    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        let Self { first_row, commit, .. } = self;
        folder.join(if self.is_named_by_row {
            format!("{first_row:012}.arrow")
        } else {
            format!("{first_row:012}-{commit:08}.arrow")
        })
    }

    /// Where it lies until its commit has a manifest.
    pub(super) fn staged(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{:012}.{:08}.tmp", self.first_row, self.commit))
    }

    /// Reads some of the record batches, each as parts with the columns that they were written with; every byte read is
    /// compared with its checksum.
    ///
    /// The file lies under its own name, or under its staged one while its commit is not over. Where neither holds what
    /// was written, the error is `Corrupt`, or a later manifest knows better.
    pub(super) fn read(&self, fs: &dyn Fs, folder: &Path, wanted: &[usize]) -> Result<Vec<Vec<RecordBatch>>> {
        // It can be renamed between the first look and the second, but only once.
        let (path, staged) = (self.path(folder), self.staged(folder));
        let first = self.read_at(fs, &path, wanted);
        if first.is_ok() {
            return first;
        }
        self.read_at(fs, &staged, wanted).or_else(|_| self.read_at(fs, &path, wanted)).or(first)
    }

    fn read_at(&self, fs: &dyn Fs, path: &Path, wanted: &[usize]) -> Result<Vec<Vec<RecordBatch>>> {
        let name = path.display().to_string();
        let last = self.blocks.len() - 1;
        let (_, footer) = self.block(fs, path, last)?;
        let footer = Footer::read(&name, &footer)?;
        let parts = Parts::of(&name, &footer.schema)?;
        let rows = wanted.iter().map(|&index| {
            let (from, bytes) = self.block(fs, path, index)?;
            let rows = footer.rows(&name, index, &bytes, from)?;
            match &parts {
                None => Ok(vec![rows]),
                Some(parts) => {
                    let from = self.blocks[..index].iter().map(|block| block.rows).sum();
                    parts.divide(&name, &rows, from)
                }
            }
        });
        rows.collect()
    }

    /// Where a block begins, and its bytes.
    fn block(&self, fs: &dyn Fs, path: &Path, index: usize) -> Result<(u64, arrow_buffer::Buffer)> {
        let block = &self.blocks[index];
        let from = if index == 0 { 0 } else { self.blocks[index - 1].end };
        let corrupt = |why: &str| {
            Error::corrupt(format!(
                "{} is damaged in bytes {from} to {}: {why}; restore it from a copy",
                path.display(),
                block.end
            ))
        };
        let bytes = fs.read(path, from..block.end).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => corrupt(&error.to_string()),
            _ => failed("read", path)(error),
        })?;
        if xxh3_64(&bytes) == block.hash {
            Ok((from, bytes))
        } else {
            Err(corrupt("its checksum is not the written one"))
        }
    }
}

/// The first row and the commit that a name given by [`Segment::path`] or [`Segment::staged`] tells. Other names are not
/// a store's, however much like them they are.
pub(super) fn numbers(name: &str) -> Option<(u64, Option<u64>)> {
    let (stem, ending) = name.rsplit_once('.')?;
    let (row, commit) = match (stem.split_once(['-', '.']), ending) {
        (Some((row, commit)), "arrow" | "tmp") => (row.parse().ok()?, Some(commit.parse().ok()?)),
        (None, "arrow") => (stem.parse().ok()?, None),
        _ => return None,
    };
    let segment =
        Segment { first_row: row, commit: commit.unwrap_or(0), blocks: Vec::new(), is_named_by_row: commit.is_none() };
    let is_own = [segment.path(Path::new("")), segment.staged(Path::new(""))].iter().any(|own| own == Path::new(name));
    is_own.then_some((row, commit))
}

/// The rows of several parts in record batches of about [`BLOCK_BYTES`].
fn chunked(schema: &SchemaRef, parts: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
    let (mut chunks, mut small, mut small_bytes) = (Vec::new(), Vec::new(), 0);
    let mut join = |small: &mut Vec<RecordBatch>| -> Result<()> {
        match small.len() {
            0 => {}
            // What stands alone is written from where it is.
            1 => chunks.append(small),
            _ => {
                chunks.push(arrow_select::concat::concat_batches(schema, small.iter()).map_err(arrow_bug)?);
                small.clear();
            }
        }
        Ok(())
    };
    for part in parts {
        let bytes = size(part);
        let pieces = bytes.div_ceil(BLOCK_BYTES).clamp(1, part.num_rows().max(1));
        let rows = part.num_rows().div_ceil(pieces).max(1);
        for from in (0..part.num_rows()).step_by(rows) {
            let piece = part.slice(from, rows.min(part.num_rows() - from));
            if small_bytes + bytes / pieces > BLOCK_BYTES {
                join(&mut small)?;
                small_bytes = 0;
            }
            small_bytes += bytes / pieces;
            small.push(piece);
        }
    }
    join(&mut small)?;
    Ok(chunks)
}

/// Bytes that the rows take in a file, about.
pub(super) fn size(rows: &RecordBatch) -> usize {
    rows.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or_default()).sum()
}

fn bounds(keys: &[i64]) -> (i64, i64) {
    keys.iter().fold((i64::MAX, i64::MIN), |(first, last), &key| (first.min(key), last.max(key)))
}

/// Whether an error says that a file is not the one that a manifest describes: a later manifest may describe it.
pub(super) fn is_other(error: &Error) -> bool {
    use std::error::Error as _;
    let missing = |error: &(dyn std::error::Error + 'static)| {
        error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    error.kind() == ErrorKind::Corrupt || error.source().is_some_and(missing)
}
