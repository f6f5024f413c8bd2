//! The state of components as arrays: written whole from time to time, and as changes in between.
//!
//! The arrays are a part of an iteration's state, like the JSON text, and are committed with it. A row of the folder
//! `states` is a piece of one array: a part of all its rows (`base`), or the rows that differ from those of the
//! previous iteration (`delta`). If the deltas together have more than half as many bytes as the arrays, all arrays are
//! written whole again, and reading begins there. So the bytes written are proportional to the changes, and the bytes
//! read to the size of the arrays.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentrl_compute::names;
use arrow_array::builder::{Int64Builder, ListBuilder, UInt8Builder};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, UInt8Type};
use arrow_array::{Array as _, ArrayRef, Int64Array, RecordBatch, StringArray, UInt8Array};
use arrow_schema::{DataType, Field};

use super::folders::{STATES, schema_of};
use crate::batch::{array, i64s, lists, u8s};
use crate::{Error, Result, arrow_bug};

/// Largest nesting depth of a state. All JSON readers support it.
const STATE_DEPTH: usize = 64;

/// Largest size of a piece in bytes, unless a single row is larger.
const PIECE_BYTES: usize = 4 << 20;

names! {
    /// The type of the numbers of an array.
    "dtype" Dtype {
        /// One byte, 0 or 1.
        Bool = "bool",
        /// Signed 8-bit integers.
        I8 = "int8",
        /// Unsigned 8-bit integers.
        U8 = "uint8",
        /// Signed 16-bit integers.
        I16 = "int16",
        /// Unsigned 16-bit integers.
        U16 = "uint16",
        /// Signed 32-bit integers.
        I32 = "int32",
        /// Unsigned 32-bit integers.
        U32 = "uint32",
        /// Signed 64-bit integers.
        I64 = "int64",
        /// Unsigned 64-bit integers.
        U64 = "uint64",
        /// 32-bit floats.
        F32 = "float32",
        /// 64-bit floats.
        F64 = "float64",
    }
}

impl Dtype {
    /// Return the size of a number in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// An array of one or two dimensions, as the bytes of its numbers (little-endian, row by row).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateArray {
    /// The type of the numbers.
    pub dtype: Dtype,
    /// Numbers in a row; `None` for an array of one dimension, which has one number in a row.
    pub width: Option<u64>,
    /// Number of rows.
    pub rows: u64,
    /// The bytes of all numbers.
    pub bytes: Arc<Vec<u8>>,
}

impl StateArray {
    /// Return the size of a row in bytes.
    fn stride(&self) -> usize {
        self.dtype.bytes().saturating_mul(self.width.unwrap_or(1) as usize)
    }

    pub(super) fn check(&self, path: &str) -> Result<()> {
        let expected = self
            .width
            .unwrap_or(1)
            .checked_mul(self.rows)
            .and_then(|count| count.checked_mul(self.dtype.bytes() as u64));
        if expected == Some(self.bytes.len() as u64) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "arrays[{path:?}] has {} bytes, but its shape and dtype need another number; give a contiguous array",
            self.bytes.len()
        )))
    }

    fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.stride()..(row + 1) * self.stride()]
    }
}

/// Arrays by their paths.
pub type Arrays = BTreeMap<String, StateArray>;

/// The arrays after the last write, and the size of their changes since they were last written whole.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredArrays {
    pub(super) arrays: Arrays,
    /// Size of the changes in bytes.
    pub(super) changed: usize,
    /// Whether arrays were ever written.
    pub(super) begun: bool,
}

/// The kind of a row of the folder `states`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// A part of all rows.
    Base = 0,
    /// Rows that changed or were added.
    Delta = 1,
    /// The array was removed.
    Gone = 2,
}

impl StoredArrays {
    /// Apply more rows of the folder to the arrays.
    pub(super) fn fold(&mut self, rows: &RecordBatch) -> Result<()> {
        let (paths, dtypes) = (array(rows, "path")?.as_string::<i32>(), array(rows, "dtype")?.as_string::<i32>());
        let (kinds, widths, lengths) = (u8s(rows, "kind")?, i64s(rows, "width")?, i64s(rows, "rows")?);
        let (firsts, indices, values) = (i64s(rows, "first")?, lists(rows, "indices")?, lists(rows, "values")?);
        for row in 0..rows.num_rows() {
            let path = paths.value(row);
            let wrong =
                |what: &str| Error::corrupt(format!("folder {STATES}, array {path:?}: {what}; restore it from a copy"));
            let dtype = Dtype::from_name(dtypes.value(row)).map_err(|error| wrong(&error.to_string()))?;
            let width = (!widths.is_null(row)).then(|| widths.value(row) as u64);
            let (length, values) = (lengths.value(row) as u64, values.value(row));
            let values = values.as_primitive::<UInt8Type>().values();
            match kinds.value(row) {
                code if code == PieceKind::Base as u8 => {
                    if firsts.value(row) == 0 {
                        let empty = StateArray { dtype, width, rows: 0, bytes: Arc::default() };
                        self.arrays.insert(path.to_owned(), empty);
                    }
                    let array = self.arrays.get_mut(path).ok_or_else(|| wrong("its first piece is missing"))?;
                    if array.bytes.len() as u64 != (firsts.value(row) as u64).saturating_mul(array.stride() as u64) {
                        return Err(wrong("a piece is missing"));
                    }
                    array.rows = length;
                    Arc::make_mut(&mut array.bytes).extend_from_slice(values);
                }
                code if code == PieceKind::Delta as u8 => {
                    let indices = indices.value(row);
                    let indices = indices.as_primitive::<Int64Type>().values();
                    let array = self.arrays.get_mut(path).ok_or_else(|| wrong("it changes, but is not there"))?;
                    let stride = array.stride();
                    let fits = (array.dtype, array.width) == (dtype, width)
                        && array.check(path).is_ok()
                        && length <= array.rows + indices.len() as u64
                        && indices.iter().all(|&index| index >= 0 && (index as u64) < length)
                        && values.len() == indices.len() * stride;
                    if !fits {
                        return Err(wrong("a change does not fit"));
                    }
                    array.rows = length;
                    let bytes = Arc::make_mut(&mut array.bytes);
                    bytes.resize(length as usize * stride, 0);
                    for (place, &index) in indices.iter().enumerate() {
                        let to = index as usize * stride;
                        bytes[to..to + stride].copy_from_slice(&values[place * stride..(place + 1) * stride]);
                    }
                }
                code if code == PieceKind::Gone as u8 => _ = self.arrays.remove(path),
                other => return Err(wrong(&format!("a row has the unknown kind {other}"))),
            }
        }
        Ok(())
    }
}

/// Builder of rows of the folder.
pub(super) struct StateRows {
    paths: Vec<String>,
    kinds: Vec<u8>,
    dtypes: Vec<&'static str>,
    widths: Vec<Option<i64>>,
    lengths: Vec<i64>,
    firsts: Vec<i64>,
    indices: ListBuilder<Int64Builder>,
    values: ListBuilder<UInt8Builder>,
    pub(super) bytes: usize,
}

impl Default for StateRows {
    fn default() -> Self {
        let item = |kind: DataType| Field::new("item", kind, false);
        Self {
            paths: Vec::new(),
            kinds: Vec::new(),
            dtypes: Vec::new(),
            widths: Vec::new(),
            lengths: Vec::new(),
            firsts: Vec::new(),
            indices: ListBuilder::new(Int64Builder::new()).with_field(item(DataType::Int64)),
            values: ListBuilder::new(UInt8Builder::new()).with_field(item(DataType::UInt8)),
            bytes: 0,
        }
    }
}

impl StateRows {
    pub(super) fn push(
        &mut self,
        path: &str,
        array: &StateArray,
        kind: PieceKind,
        first: usize,
        indices: &[i64],
        values: &[u8],
    ) {
        self.paths.push(path.to_owned());
        self.kinds.push(kind as u8);
        self.dtypes.push(array.dtype.name());
        self.widths.push(array.width.map(|width| width as i64));
        self.lengths.push(array.rows as i64);
        self.firsts.push(first as i64);
        self.indices.values().append_slice(indices);
        self.indices.append(true);
        self.values.values().append_slice(values);
        self.values.append(true);
        self.bytes += values.len() + std::mem::size_of_val(indices);
    }

    /// Add all rows of an array, in pieces.
    pub(super) fn base(&mut self, path: &str, array: &StateArray) {
        let stride = array.stride();
        let rows = (PIECE_BYTES / stride.max(1)).max(1);
        let mut first = 0;
        loop {
            let end = (first + rows).min(array.rows as usize);
            self.push(path, array, PieceKind::Base, first, &[], &array.bytes[first * stride..end * stride]);
            first = end;
            if first >= array.rows as usize {
                return;
            }
        }
    }

    /// Add the rows of an array that differ from those of `known`, and the rows after them; add all rows if that is not
    /// more bytes.
    pub(super) fn delta(&mut self, path: &str, known: &StateArray, array: &StateArray) {
        if known == array {
            return;
        }
        let (before, after) = (known.rows as usize, array.rows as usize);
        let differs = |&row: &usize| known.row(row) != array.row(row);
        let changed: Vec<usize> = (0..before.min(after)).filter(differs).chain(before..after).collect();
        if changed.len() * (array.stride() + 8) >= array.bytes.len() {
            return self.base(path, array);
        }
        let pieces: Vec<&[usize]> = if changed.is_empty() {
            vec![&[]]
        } else {
            changed.chunks((PIECE_BYTES / (array.stride() + 8)).max(1)).collect()
        };
        for rows in pieces {
            // A piece extends the array only up to its own last row.
            let reached = rows.last().map_or(0, |last| last + 1).max(before).min(after);
            let values: Vec<u8> = rows.iter().flat_map(|&row| array.row(row)).copied().collect();
            let indices: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
            let piece = StateArray { rows: reached as u64, bytes: Arc::default(), ..array.clone() };
            self.push(path, &piece, PieceKind::Delta, 0, &indices, &values);
        }
    }

    pub(super) fn finish(mut self, iteration: i64) -> Result<RecordBatch> {
        let count = self.paths.len();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![iteration; count])),
            Arc::new(StringArray::from(self.paths)),
            Arc::new(UInt8Array::from(self.kinds)),
            Arc::new(StringArray::from(self.dtypes)),
            Arc::new(Int64Array::from(self.widths)),
            Arc::new(Int64Array::from(self.lengths)),
            Arc::new(Int64Array::from(self.firsts)),
            Arc::new(self.indices.finish()),
            Arc::new(self.values.finish()),
        ];
        let schema = schema_of(STATES).ok_or_else(|| Error::internal("the states have no schema"))?;
        RecordBatch::try_new(schema, columns).map_err(arrow_bug)
    }
}

/// Reject a text that is not JSON or is nested too deep, before anything is written.
pub(super) fn check_state(state: &str) -> Result<()> {
    serde_json::from_str::<&serde_json::value::RawValue>(state)
        .map_err(|error| Error::invalid(format!("state is not JSON ({error}); give a JSON text")))?;
    let (mut depth, mut deepest, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in state.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = !is_text,
            b'[' | b'{' if !is_text => depth += 1,
            b']' | b'}' if !is_text => depth -= 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest <= STATE_DEPTH {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "state is nested {deepest} deep, but at most {STATE_DEPTH} is supported; save deeper parts as a text or a file"
    )))
}
