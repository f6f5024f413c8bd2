//! Blocks of a sealed file: each is read as a whole and has its own checksum.
//!
//! A block is one record batch of the file. If rows of a folder are looked up by a key, its blocks are small and are
//! cut where the rows of a trajectory begin, so a trajectory is read without its neighbours. The Arrow footer lists the
//! offsets of the blocks. Its metadata adds the number of rows, the bounds of the keys and the checksum of each block.
//! So the entry of a file in a manifest has the same size for any number of blocks.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, SchemaRef};
use serde::{Deserialize, Serialize};

use super::column_union::{FileRows, Parts};
use super::folders::{CHOSEN_BY, key_of};
use super::footer::Bounds;
use super::fs::MAX_FILE_BYTES;
use crate::batch::i64s;
use crate::ipc::{Footer, Passed, size};
use crate::schema::Table;
use crate::{Error, Result, arrow_bug, fixed_width_lists};

/// Approximate size in bytes of a block in a folder without a key, and largest size of a block with several rows.
const MAX_BLOCK_BYTES: usize = 4 << 20;

/// Approximate size in bytes of a block of `nodes`, and of a block of other folders with a key. Smaller blocks would
/// consist mostly of Arrow's metadata about their columns.
const NODES_BLOCK_BYTES: usize = 32 << 10;
const ROWS_BLOCK_BYTES: usize = 4 << 10;

/// The key of [`BlockEntry`] in the metadata of a footer.
const BLOCKS_KEY: &str = "agentrl_blocks";

/// The key of [`BlockBounds`] in the metadata of a footer.
const BOUNDS_KEY: &str = "agentrl_bounds";

/// The key of [`BlockTexts`] in the metadata of a footer, and the column that it describes.
const TEXTS_KEY: &str = "agentrl_texts";
const NAMED_BY: &str = "task_id";

/// One record batch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, i64, i64, u64)", into = "(u64, u64, i64, i64, u64)")]
pub(super) struct Block {
    /// Offset of its end in the file. A block begins at the end of the previous one.
    pub(super) end: u64,
    pub(super) rows: u64,
    /// Smallest and greatest key.
    pub(super) keys: (i64, i64),
    pub(super) hash: u64,
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

/// Metadata of a block in a footer besides its offset: number of rows, smallest and greatest key, checksum.
type BlockEntry = (u64, i64, i64, u64);

/// Smallest and greatest value of each block, by column.
pub(super) type BlockBounds = BTreeMap<String, Vec<(i64, i64)>>;

/// Distinct texts of a column in a file, and the indices of the texts in each block; by column.
pub(super) type BlockTexts = BTreeMap<String, (Vec<String>, Vec<Vec<u32>>)>;

/// The contents of a file's footer.
#[derive(Debug)]
pub(super) struct BlockIndex {
    pub(super) footer: Footer,
    /// The columns of each part of the rows; `None` if all rows have the same columns.
    parts: Option<Parts>,
    pub(super) blocks: Arc<[Block]>,
    /// Bounds of the filter columns besides the key. Files of older versions lack them.
    pub(super) bounds: BlockBounds,
    pub(super) texts: BlockTexts,
}

impl BlockIndex {
    /// Parse a footer that begins at byte `begin` of a file with `rows` rows. `listed` holds the blocks of a file whose
    /// footer does not list them.
    pub(super) fn read(
        path: &Path,
        bytes: &Buffer,
        begin: u64,
        rows: u64,
        listed: Option<Arc<[Block]>>,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let footer = Footer::read(&name, bytes)?;
        let parts = Parts::of(&name, &footer.schema)?;
        let corrupt = |why: &str| {
            let end = begin + bytes.len() as u64;
            Error::corrupt(format!(
                "{name} has a footer (bytes {begin} to {end}) that contradicts itself: {why}; restore the file from a copy"
            ))
        };
        let blocks = if let Some(listed) = listed {
            listed
        } else {
            let entries =
                footer.metadata.get(BLOCKS_KEY).ok_or_else(|| corrupt("its footer does not list its blocks"))?;
            let entries: Vec<BlockEntry> =
                serde_json::from_str(entries).map_err(|error| corrupt(&error.to_string()))?;
            let block = |(end, (rows, first, last, hash))| Block { end, rows, keys: (first, last), hash };
            footer.ends().zip(entries).map(block).collect()
        };
        check_order(&blocks, begin).map_err(|why| corrupt(&why))?;
        let count = blocks.iter().try_fold(0_u64, |count, block| count.checked_add(block.rows));
        if blocks.len() != footer.ends().count() || count != Some(rows) {
            return Err(corrupt("it has other blocks than rows need"));
        }
        let text_of = |key: &str| footer.metadata.get(key).map_or("{}", String::as_str);
        let bounds: BlockBounds =
            serde_json::from_str(text_of(BOUNDS_KEY)).map_err(|error| corrupt(&error.to_string()))?;
        let texts: BlockTexts =
            serde_json::from_str(text_of(TEXTS_KEY)).map_err(|error| corrupt(&error.to_string()))?;
        let is_one = |(texts, of_blocks): &(Vec<String>, Vec<Vec<u32>>)| {
            of_blocks.len() == blocks.len() && of_blocks.iter().flatten().all(|&text| (text as usize) < texts.len())
        };
        if bounds.values().any(|bounds| bounds.len() != blocks.len()) || !texts.values().all(is_one) {
            return Err(corrupt("its footer lists other blocks"));
        }
        Ok(Self { footer, parts, blocks, bounds, texts })
    }

    /// Return the offset at which a block begins.
    pub(super) fn begin(&self, block: usize) -> u64 {
        block.checked_sub(1).map_or(0, |before| self.blocks[before].end)
    }

    /// Return the byte range of a run of blocks.
    pub(super) fn bytes(&self, run: &Range<usize>) -> Range<u64> {
        self.begin(run.start)..run.end.checked_sub(1).map_or(0, |last| self.blocks[last].end)
    }

    /// Decode the rows of a block from its bytes, as parts with the columns that they were written with.
    pub(super) fn rows(&self, path: &Path, block: usize, bytes: &Buffer) -> Result<Vec<RecordBatch>> {
        let name = path.display().to_string();
        let rows = self.footer.rows(&name, block, bytes, self.begin(block), None)?;
        if rows.num_rows() as u64 != self.blocks[block].rows {
            return Err(Error::corrupt(format!(
                "the rows in block {block} of {name} do not match its footer; restore the file from a copy"
            )));
        }
        match &self.parts {
            None => Ok(vec![rows]),
            Some(parts) => parts.divide(&name, &rows, self.blocks[..block].iter().map(|block| block.rows).sum()),
        }
    }
}

/// Check that the blocks follow one another and end at `end`, where the footer begins. Each must be small enough to be
/// read into memory at once ([`MAX_FILE_BYTES`]).
pub(super) fn check_order(blocks: &[Block], end: u64) -> std::result::Result<(), String> {
    let mut from = 0;
    for block in blocks {
        if block.end <= from || block.end - from > MAX_FILE_BYTES {
            return Err("its blocks are out of order".to_owned());
        }
        from = block.end;
    }
    if from == end || blocks.is_empty() {
        Ok(())
    } else {
        Err("its blocks do not end where its footer begins".to_owned())
    }
}

/// Return the smallest and greatest key of some blocks; zeros if there are none.
pub(super) fn bounds_of(blocks: &[Block]) -> (i64, i64) {
    let known = blocks.iter().map(|block| block.keys);
    known.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))).unwrap_or_default()
}

/// Write rows of a folder as an Arrow file. Returns its blocks, the offset of its end, and the hash of its footer.
pub(super) fn write(
    (schema, parts): &FileRows,
    folder: &str,
    to: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<(Vec<Block>, u64, u64)> {
    let chunks = chunked(schema, parts, folder)?;
    let mut blocks = Vec::with_capacity(chunks.len());
    let mut chosen_by = BlockBounds::new();
    let mut file = Passed::begin(schema, to)?;
    for chunk in &chunks {
        let keys = key_of(folder).map_or(Ok((0, 0)), |key| i64s(chunk, key).map(|keys| bounds(keys.values())))?;
        let (end, hash) = file.write(chunk)?;
        blocks.push(Block { end, rows: chunk.num_rows() as u64, keys, hash });
        for (name, bounds) in chosen_between(slice::from_ref(chunk), folder) {
            chosen_by.entry(name).or_default().push(bounds);
        }
    }
    chosen_by.retain(|_, bounds| bounds.len() == blocks.len());
    let entries: Vec<BlockEntry> =
        blocks.iter().map(|block| (block.rows, block.keys.0, block.keys.1, block.hash)).collect();
    // The bounds of a file with one block are in its manifest.
    let chosen_by = Some(chosen_by).filter(|bounds| blocks.len() > 1 && !bounds.is_empty());
    let mut metadata = vec![(BLOCKS_KEY, to_json(&entries)?)];
    metadata.extend(chosen_by.map(|bounds| to_json(&bounds)).transpose()?.map(|text| (BOUNDS_KEY, text)));
    let texts = texts(&chunks, folder).filter(|_| blocks.len() > 1);
    metadata.extend(texts.map(|texts| to_json(&texts)).transpose()?.map(|text| (TEXTS_KEY, text)));
    let (end, hash) = file.finish(metadata)?;
    Ok((blocks, end, hash))
}

fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::internal("blocks cannot be written as JSON").with_source(error))
}

/// Return the distinct tasks of a file and the tasks of each block. Returns `None` for a folder without a key, for a
/// missing or null `task_id`, and if the texts are larger than 1/16 of the rows.
fn texts(chunks: &[RecordBatch], folder: &str) -> Option<BlockTexts> {
    key_of(folder)?;
    let columns = chunks.iter().map(|chunk| chunk.column_by_name(NAMED_BY)?.as_string_opt::<i32>());
    let columns = columns.collect::<Option<Vec<_>>>()?;
    let (mut places, mut texts, mut blocks) = (HashMap::new(), Vec::new(), Vec::new());
    for column in &columns {
        let mut own: Vec<u32> = Vec::new();
        for text in column.iter().flatten() {
            own.push(*places.entry(text).or_insert_with(|| {
                texts.push(text.to_owned());
                texts.len() as u32 - 1
            }));
        }
        own.sort_unstable();
        own.dedup();
        blocks.push(own);
    }
    let bytes: usize = texts.iter().map(|text| text.len() + 8).sum();
    let known = columns.iter().all(|column| column.null_count() == 0) && !texts.is_empty();
    let is_small = bytes <= chunks.iter().map(size).sum::<usize>() / 16;
    (known && is_small).then(|| BlockTexts::from([(NAMED_BY.to_owned(), (texts, blocks))]))
}

/// Return the smallest and greatest value of the columns in [`CHOSEN_BY`], except the key of the folder. A column with
/// nulls has no bounds, because rows without a value can be selected too.
pub(super) fn chosen_between(parts: &[RecordBatch], folder: &str) -> Bounds {
    let mut found = Bounds::new();
    for &name in CHOSEN_BY.iter().filter(|&&name| key_of(folder) != Some(name)) {
        let columns = parts.iter().map(|part| part.column_by_name(name)?.as_primitive_opt::<Int64Type>());
        let Some(columns) = columns.collect::<Option<Vec<_>>>() else { continue };
        if columns.iter().any(|column| column.null_count() > 0) {
            continue;
        }
        let known = columns.iter().filter(|column| !column.is_empty()).map(|column| bounds(column.values()));
        let known = known.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        found.extend(known.map(|known| (name.to_owned(), known)));
    }
    found
}

fn bounds(keys: &[i64]) -> (i64, i64) {
    keys.iter().fold((i64::MAX, i64::MIN), |(first, last), &key| (first.min(key), last.max(key)))
}

/// Divide the rows of several parts into record batches. Each holds as many units as fit into a block of the folder; a
/// larger unit has a block of its own. A shared unit before a long one (at least a quarter of a block) also has a block
/// of its own, so that it is read without the long one.
fn chunked(schema: &SchemaRef, parts: &[RecordBatch], folder: &str) -> Result<Vec<RecordBatch>> {
    let (most, units) = (block_bytes(folder), units(parts, folder)?);
    let alone =
        |place: usize| units[place].is_shared && units.get(place + 1).is_some_and(|next| next.bytes >= most / 4);
    let (mut chunks, mut open, mut open_bytes) = (Vec::new(), Vec::<RecordBatch>::new(), 0);
    let mut first = 0;
    for end in 1..=units.len() {
        open_bytes += units[end - 1].bytes;
        let next = units.get(end);
        let goes_on = next.is_some_and(|next| open_bytes + next.bytes <= most && !alone(end) && !alone(end - 1));
        // The units of one part are adjacent.
        if !goes_on || next.is_some_and(|next| next.part != units[first].part) {
            let begin = &units[first];
            open.push(parts[begin.part].slice(begin.rows.start, units[end - 1].rows.end - begin.rows.start));
            first = end;
        }
        if !goes_on {
            chunks.push(match open.len() {
                // A single slice is written without a copy.
                1 => open.remove(0),
                _ => fixed_width_lists::concat_batches(schema, open.iter()).map_err(arrow_bug)?,
            });
            open.clear();
            open_bytes = 0;
        }
    }
    Ok(chunks)
}

/// Return the approximate size in bytes of a block of a folder.
fn block_bytes(folder: &str) -> usize {
    match key_of(folder) {
        Some(_) if folder == Table::Nodes.name() => NODES_BLOCK_BYTES,
        Some(_) => ROWS_BLOCK_BYTES,
        None => MAX_BLOCK_BYTES,
    }
}

/// Rows that are read together: the rows of one key, or nodes of which each is the child of the previous one. A node
/// with several children ends a unit.
struct Unit {
    part: usize,
    rows: Range<usize>,
    bytes: usize,
    /// Whether its last row is a node with several children.
    is_shared: bool,
}

fn units(parts: &[RecordBatch], folder: &str) -> Result<Vec<Unit>> {
    let shared = shared(parts, folder)?;
    let mut units: Vec<Unit> = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let mut sizes = vec![0; part.num_rows()];
        part.columns().iter().for_each(|column| add_bytes(column, &mut sizes));
        let keys = key_of(folder).map(|key| i64s(part, key)).transpose()?;
        let parents = if folder == Table::Nodes.name() { Some(i64s(part, "parent_id")?) } else { None };
        let goes_on = |row: usize, last: &Unit| match (keys, parents) {
            _ if row == 0 => false,
            (Some(keys), Some(parents)) => {
                parents.is_valid(row) && parents.value(row) == keys.value(row - 1) && !last.is_shared
            }
            (Some(keys), None) => keys.value(row) == keys.value(row - 1),
            (None, _) => false,
        };
        for (row, &bytes) in sizes.iter().enumerate() {
            let is_shared = keys.is_some_and(|keys| shared.binary_search(&keys.value(row)).is_ok());
            match units.last_mut().filter(|unit| goes_on(row, unit) && unit.bytes + bytes <= MAX_BLOCK_BYTES) {
                Some(unit) => {
                    (unit.rows.end, unit.bytes, unit.is_shared) = (row + 1, unit.bytes + bytes, is_shared);
                }
                None => units.push(Unit { part: number, rows: row..row + 1, bytes, is_shared }),
            }
        }
    }
    Ok(units)
}

/// Return the nodes that have several children, in ascending order; none in folders other than `nodes`.
fn shared(parts: &[RecordBatch], folder: &str) -> Result<Vec<i64>> {
    let mut parents = Vec::new();
    for part in parts.iter().filter(|_| folder == Table::Nodes.name()) {
        parents.extend(i64s(part, "parent_id")?.iter().flatten());
    }
    parents.sort_unstable();
    Ok(parents.chunk_by(|one, next| one == next).filter(|same| same.len() > 1).map(|same| same[0]).collect())
}

/// Add the bytes of a column in each row to `sizes`.
fn add_bytes(column: &ArrayRef, sizes: &mut [usize]) {
    let lengths = |offsets: &[i32], width: usize, sizes: &mut [usize]| {
        for (size, pair) in sizes.iter_mut().zip(offsets.windows(2)) {
            *size += 4 + (pair[1] - pair[0]) as usize * width;
        }
    };
    match column.data_type() {
        DataType::Utf8 => lengths(column.as_string::<i32>().value_offsets(), 1, sizes),
        DataType::List(item) => {
            let width = width(item.data_type());
            lengths(column.as_list::<i32>().value_offsets(), width, sizes);
        }
        DataType::Struct(_) => column.as_struct().columns().iter().for_each(|column| add_bytes(column, sizes)),
        kind => sizes.iter_mut().for_each(|size| *size += width(kind)),
    }
}

/// Return the approximate size in bytes of a value. Types without a fixed width, such as texts in lists, count as 16,
/// because these texts are short and few.
fn width(kind: &DataType) -> usize {
    match kind {
        DataType::FixedSizeBinary(size) => *size as usize,
        DataType::FixedSizeList(item, size) => *size as usize * width(item.data_type()),
        kind => kind.primitive_width().unwrap_or(16),
    }
}
