//! Token columns: rows of a fixed width that are recorded for the tokens of nodes, such as the experts that a router chose.
//!
//! In table `nodes` each is a column after all others, in the order of the names: a list with a row for each token of the
//! node. A token without a row has null, and so has a node without any. Parts of a table may have different columns.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use agentrl_compute::names;
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Int32Type, UInt8Type, UInt16Type};
use arrow_array::{Array, ArrayRef, FixedSizeListArray, ListArray, PrimitiveArray, RecordBatch, new_null_array};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::batch::Numbers;
use crate::facts;
use crate::schema::Table;
use crate::{Error, Result, arrow_bug};

/// Ends the name under which a batch has the mask of the tokens with a row.
pub(crate) const KNOWN: &str = ".known";

names! {
    /// The type of the values of a token column.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    "dtype" RowDtype {
        /// Unsigned 8-bit integers.
        Uint8 = "uint8",
        /// Unsigned 16-bit integers.
        Uint16 = "uint16",
        /// 32-bit integers.
        Int32 = "int32",
        /// 32-bit floats.
        Float32 = "float32",
    }
}

/// The type of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowType {
    /// Of its values.
    pub dtype: RowDtype,
    /// Number of values.
    pub width: usize,
}

/// Types of rows by the names of the columns.
pub type RowTypes = BTreeMap<String, RowType>;

/// Rows for consecutive tokens of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRows {
    /// Position of the first token; `None`: the first one of the node that they are given with, all of whose tokens have one.
    pub begin: Option<usize>,
    /// Number of values of each row.
    pub width: usize,
    /// Row after row.
    pub values: Numbers,
}

/// Rows of a node's tokens.
#[derive(Clone, Debug)]
pub(crate) struct NodeRows {
    pub(crate) of: RowType,
    /// A row for each token, whatever it is if the token has none.
    values: Numbers,
    known: Vec<bool>,
}

impl RowType {
    /// The type in words.
    fn words(self) -> String {
        format!("{} of width {}", self.dtype.name(), self.width)
    }

    fn item(self) -> DataType {
        match self.dtype {
            RowDtype::Uint8 => DataType::UInt8,
            RowDtype::Uint16 => DataType::UInt16,
            RowDtype::Int32 => DataType::Int32,
            RowDtype::Float32 => DataType::Float32,
        }
    }

    fn row_field(self) -> Result<Arc<Field>> {
        let width = i32::try_from(self.width).ok().filter(|&width| width > 0);
        let width =
            width.ok_or_else(|| Error::invalid(format!("rows of {} values are no token column", self.width)))?;
        let rows = DataType::FixedSizeList(Arc::new(Field::new("item", self.item(), false)), width);
        Ok(Arc::new(Field::new("item", rows, true)))
    }

    fn field(self, name: &str) -> Result<Field> {
        Ok(Field::new(name, DataType::List(self.row_field()?), true))
    }

    /// The type of a column; `None`: it is no token column.
    fn of(kind: &DataType) -> Option<Self> {
        let DataType::List(rows) = kind else { return None };
        let DataType::FixedSizeList(item, width) = rows.data_type() else { return None };
        let dtype = match item.data_type() {
            DataType::UInt8 => RowDtype::Uint8,
            DataType::UInt16 => RowDtype::Uint16,
            DataType::Int32 => RowDtype::Int32,
            DataType::Float32 => RowDtype::Float32,
            _ => return None,
        };
        let found = Self { dtype, width: usize::try_from(*width).ok()? };
        (found.field("item").ok()?.data_type() == kind).then_some(found)
    }

    /// Values that stand where a token has no row.
    fn missing(self, count: usize) -> Numbers {
        match self.dtype {
            RowDtype::Uint8 => Numbers::U8(vec![u8::MAX; count]),
            RowDtype::Uint16 => Numbers::U16(vec![u16::MAX; count]),
            RowDtype::Int32 => Numbers::I32(vec![-1; count]),
            RowDtype::Float32 => Numbers::F32(vec![f32::NAN; count]),
        }
    }
}

impl TokenRows {
    /// The type of the rows.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the values are of a type that token columns do not have, or are no whole rows.
    pub(crate) fn row_type(&self, name: &str) -> Result<RowType> {
        let dtype = match &self.values {
            Numbers::U8(_) => RowDtype::Uint8,
            Numbers::U16(_) => RowDtype::Uint16,
            Numbers::I32(_) => RowDtype::Int32,
            Numbers::F32(_) => RowDtype::Float32,
            Numbers::F64(_) | Numbers::I64(_) | Numbers::U32(_) => {
                return Err(Error::invalid(format!(
                    "columns[{name:?}] has another dtype than token columns; give uint8, uint16, int32 or float32"
                )));
            }
        };
        let found = RowType { dtype, width: self.width };
        if self.width == 0 || !self.values.len().is_multiple_of(self.width) || found.row_field().is_err() {
            return Err(Error::invalid(format!(
                "columns[{name:?}] has {} values in rows of {}; give an array [tokens, width] with a width of at least 1",
                self.values.len(),
                self.width
            )));
        }
        Ok(found)
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or_default()
    }
}

impl NodeRows {
    /// No row for any of some tokens.
    pub(crate) fn new(of: RowType, tokens: usize) -> Self {
        Self { of, values: of.missing(tokens * of.width), known: vec![false; tokens] }
    }

    /// Take the rows from `first` on for some tokens that have none yet.
    pub(crate) fn fill(&mut self, tokens: Range<usize>, given: &TokenRows, first: usize) {
        let width = self.of.width;
        for (place, token) in tokens.enumerate() {
            if !std::mem::replace(&mut self.known[token], true) {
                self.values.copy_row(token, &given.values, first + place, width);
            }
        }
    }

    /// Whether a token from some place on has a row.
    fn has_rows(&self, from: usize) -> bool {
        self.known.iter().skip(from).any(|&known| known)
    }

    /// The rows as bytes, so that different rows are different bytes.
    pub(crate) fn write_bytes(&self, to: &mut Vec<u8>) {
        to.extend(self.known.iter().map(|&known| u8::from(known)));
        self.values.write_bytes(to);
    }
}

/// Refuse a name that stands for something else.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let why =
        facts::taken(name).or(name.contains('.').then_some("has a dot, which parts a name from what it is about"));
    why.map_or(Ok(()), |why| {
        Err(Error::invalid(format!("columns has {name:?}, which {why}; give the column another name")))
    })
}

/// The token columns of table `nodes` behind its own.
///
/// # Errors
///
/// `Schema` if they are none that a forest records.
pub(crate) fn types_in(schema: &Schema) -> Result<RowTypes> {
    let own = Table::Nodes.schema().fields().len();
    let mut found = RowTypes::new();
    for field in schema.fields().iter().skip(own) {
        let name = field.name();
        let wrong = |why: &str| Error::schema(format!("column {name:?} of table nodes {why}"));
        let of = RowType::of(field.data_type()).filter(|_| field.is_nullable());
        let of = of.ok_or_else(|| wrong(&format!("is {}, which is no token column", field.data_type())))?;
        check_name(name).map_err(|error| wrong(&format!("has no name of a token column: {error}")))?;
        if found.last_key_value().is_some_and(|(last, _)| last >= name) {
            return Err(wrong("is not in the order of the names"));
        }
        found.insert(name.clone(), of);
    }
    Ok(found)
}

/// Leave out token columns without any row: those of other rows that lay in one file with these.
pub(crate) fn drop_empty(nodes: &mut RecordBatch) -> Result<()> {
    let own = Table::Nodes.schema().fields().len();
    let is_kept = |&index: &usize| index < own || nodes.column(index).null_count() < nodes.num_rows();
    let kept: Vec<usize> = (0..nodes.num_columns()).filter(is_kept).collect();
    if kept.len() < nodes.num_columns() {
        *nodes = nodes.project(&kept).map_err(arrow_bug)?;
    }
    Ok(())
}

/// Table `nodes` with token columns.
pub(crate) fn schema(types: &RowTypes) -> Result<SchemaRef> {
    let known = Table::Nodes.schema();
    if types.is_empty() {
        return Ok(known);
    }
    let more = types.iter().map(|(name, of)| of.field(name).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    let fields = known.fields().iter().cloned().chain(more).collect::<Fields>();
    Ok(Arc::new(Schema::new_with_metadata(fields, known.metadata().clone())))
}

/// The token columns of both.
///
/// # Errors
///
/// `InvalidInput` if one of them is of two types.
pub(crate) fn united(mut types: RowTypes, more: &RowTypes) -> Result<RowTypes> {
    for (name, &of) in more {
        let known = *types.entry(name.clone()).or_insert(of);
        if known != of {
            return Err(Error::invalid(format!(
                "column {name:?} is {} in one part and {} in another; record rows of one type under one name",
                known.words(),
                of.words()
            )));
        }
    }
    Ok(types)
}

/// Refuse a type that differs from the one that a column has.
pub(crate) fn check_type(types: &RowTypes, name: &str, of: RowType) -> Result<()> {
    match types.get(name).filter(|&&known| known != of) {
        None => Ok(()),
        Some(known) => Err(Error::invalid(format!(
            "columns[{name:?}] is {}, but earlier rows are {}; give all rows of a column the same dtype and width",
            of.words(),
            known.words()
        ))),
    }
}

/// Parts of table `nodes` with the token columns of all of them.
pub(crate) fn aligned(parts: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
    let own = Table::Nodes.schema().fields().len();
    if parts.iter().all(|part| part.num_columns() == own) {
        return Ok(parts);
    }
    let types = parts.iter().try_fold(RowTypes::new(), |types, part| united(types, &types_in(&part.schema())?))?;
    let wanted = schema(&types)?;
    let with = |part: RecordBatch| {
        if part.num_columns() == wanted.fields().len() {
            return Ok(part);
        }
        let fields = wanted.fields().iter().enumerate();
        let column = |(place, field): (usize, &Arc<Field>)| {
            let found = if place < own { Some(part.column(place)) } else { part.column_by_name(field.name()) };
            found.cloned().unwrap_or_else(|| new_null_array(field.data_type(), part.num_rows()))
        };
        let schema = wanted.as_ref().clone().with_metadata(part.schema().metadata().clone());
        RecordBatch::try_new(Arc::new(schema), fields.map(column).collect()).map_err(arrow_bug)
    };
    parts.into_iter().map(with).collect()
}

/// A token column of rows of table `nodes`. Of each node there are its rows, if it has any, the first token of which the
/// row has, and their number.
pub(crate) fn column<'a>(
    of: RowType,
    nodes: impl Iterator<Item = (Option<&'a NodeRows>, usize, usize)> + Clone,
) -> Result<ArrayRef> {
    let mut offsets = vec![0_i32];
    let (mut validity, mut known) = (Vec::new(), Vec::new());
    for (rows, from, count) in nodes.clone() {
        let rows = rows.filter(|rows| rows.has_rows(from));
        validity.push(rows.is_some());
        known.extend(rows.iter().flat_map(|rows| &rows.known[from..]));
        let length = if rows.is_some() { count } else { 0 };
        offsets.push(offsets.last().map_or(0, |&last| last) + length as i32);
    }
    let parts = nodes.filter_map(|(rows, from, _)| Some((rows.filter(|rows| rows.has_rows(from))?, from)));
    let parts = parts.map(|(rows, from)| (&rows.values, from * of.width..rows.values.len()));
    let values = Numbers::of_ranges(of.missing(0), parts).to_array();
    let row_field = of.row_field()?;
    let DataType::FixedSizeList(item, width) = row_field.data_type() else {
        return Err(Error::internal("a row is no list of fixed size"));
    };
    let known = known.contains(&false).then(|| NullBuffer::from(known));
    let rows = FixedSizeListArray::try_new(item.clone(), *width, values, known).map_err(arrow_bug)?;
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    let validity = NullBuffer::from(validity);
    Ok(Arc::new(ListArray::try_new(row_field, offsets, Arc::new(rows), Some(validity)).map_err(arrow_bug)?))
}

/// A token column of a table: a row for each of the tokens that the offsets count, and whether the token has one.
pub(crate) fn flat(nodes: &RecordBatch, name: &str, offsets: &[i64]) -> Option<(RowType, Numbers, Vec<u8>)> {
    let own = Table::Nodes.schema().fields().len();
    let place = nodes.schema().fields().iter().skip(own).position(|field| field.name() == name)? + own;
    let column = nodes.column(place);
    let of = RowType::of(column.data_type())?;
    let (list, width) = (column.as_list::<i32>(), of.width);
    let (values, known) = match of.dtype {
        RowDtype::Uint8 => {
            let (values, known) = flat_rows::<UInt8Type>(list, offsets, width, u8::MAX);
            (Numbers::U8(values), known)
        }
        RowDtype::Uint16 => {
            let (values, known) = flat_rows::<UInt16Type>(list, offsets, width, u16::MAX);
            (Numbers::U16(values), known)
        }
        RowDtype::Int32 => {
            let (values, known) = flat_rows::<Int32Type>(list, offsets, width, -1);
            (Numbers::I32(values), known)
        }
        RowDtype::Float32 => {
            let (values, known) = flat_rows::<Float32Type>(list, offsets, width, f32::NAN);
            (Numbers::F32(values), known)
        }
    };
    Some((of, values, known))
}

fn flat_rows<T: ArrowPrimitiveType>(
    list: &ListArray,
    offsets: &[i64],
    width: usize,
    missing: T::Native,
) -> (Vec<T::Native>, Vec<u8>) {
    let rows = list.values().as_fixed_size_list();
    let items: &PrimitiveArray<T> = rows.values().as_primitive();
    let items = items.values();
    let tokens = offsets.last().map_or(0, |&last| last as usize);
    let (mut values, mut known) = (Vec::with_capacity(tokens * width), Vec::with_capacity(tokens));
    for (node, pair) in offsets.windows(2).enumerate() {
        let count = (pair[1] - pair[0]) as usize;
        let begin = list.value_offsets()[node] as usize;
        if list.is_null(node) {
            values.extend(std::iter::repeat_n(missing, count * width));
            known.extend(std::iter::repeat_n(0, count));
        } else if rows.null_count() == 0 {
            values.extend_from_slice(&items[begin * width..(begin + count) * width]);
            known.extend(std::iter::repeat_n(1, count));
        } else {
            for row in begin..begin + count {
                if rows.is_valid(row) {
                    values.extend_from_slice(&items[row * width..(row + 1) * width]);
                } else {
                    values.extend(std::iter::repeat_n(missing, width));
                }
                known.push(u8::from(rows.is_valid(row)));
            }
        }
    }
    (values, known)
}
