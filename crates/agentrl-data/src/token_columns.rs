//! Token columns: rows of a fixed width, recorded for the tokens of nodes, such as the experts that a router chose.
//!
//! In table `nodes`, token columns come after all other columns, in the order of their names. Each is a list with one
//! row per token of the node. A token without a row is null, and so is a node without any. Parts of a table may have
//! different token columns.

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

/// Suffix of the name of the mask column: `name.known` is 1 at tokens that have a row.
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

/// Type of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowType {
    /// Type of its values.
    pub dtype: RowDtype,
    /// Number of values in a row.
    pub width: usize,
}

/// Types of rows, by column name.
pub type RowTypes = BTreeMap<String, RowType>;

/// Rows for consecutive tokens of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRows {
    /// Position of the first token; `None`: the rows cover all tokens of the node that they are given with.
    pub begin: Option<usize>,
    /// Number of values of each row.
    pub width: usize,
    /// Values, row after row.
    pub values: Numbers,
}

/// Rows of a node's tokens.
#[derive(Clone, Debug)]
pub(crate) struct NodeRows {
    pub(crate) of: RowType,
    /// One row per token, with fill values if the token has none.
    values: Numbers,
    known: Vec<bool>,
}

impl RowType {
    /// Return the type as text, for messages.
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
        let width = width.ok_or_else(|| {
            Error::invalid(format!(
                "a row has {} values, more than a token column supports; give narrower rows",
                self.width
            ))
        })?;
        let rows = DataType::FixedSizeList(Arc::new(Field::new("item", self.item(), false)), width);
        Ok(Arc::new(Field::new("item", rows, true)))
    }

    fn field(self, name: &str) -> Result<Field> {
        Ok(Field::new(name, DataType::List(self.row_field()?), true))
    }

    /// Return the type of a column; `None` if it is not a token column.
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

    /// Return `count` fill values for tokens without a row.
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
    /// Return the type of the rows.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if token columns do not support the type of the values, or the values are not whole rows.
    pub(crate) fn row_type(&self, name: &str) -> Result<RowType> {
        let wrong =
            |dtype: &str| Error::invalid(format!("columns[{name:?}] is {dtype}; give uint8, uint16, int32 or float32"));
        let dtype = match &self.values {
            Numbers::U8(_) => RowDtype::Uint8,
            Numbers::U16(_) => RowDtype::Uint16,
            Numbers::I32(_) => RowDtype::Int32,
            Numbers::F32(_) => RowDtype::Float32,
            Numbers::F64(_) => return Err(wrong("float64")),
            Numbers::I64(_) => return Err(wrong("int64")),
            Numbers::U32(_) => return Err(wrong("uint32")),
        };
        let found = RowType { dtype, width: self.width };
        if self.width == 0 || !self.values.len().is_multiple_of(self.width) || found.row_field().is_err() {
            return Err(Error::invalid(format!(
                "columns[{name:?}] has {} values in rows of width {}; give an array [tokens, width] with a width of at least 1",
                self.values.len(),
                self.width
            )));
        }
        Ok(found)
    }

    /// Return the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or_default()
    }
}

impl NodeRows {
    /// Create the rows of `tokens` tokens, none of which has a row yet.
    pub(crate) fn new(of: RowType, tokens: usize) -> Self {
        Self { of, values: of.missing(tokens * of.width), known: vec![false; tokens] }
    }

    /// Copy the given rows, from row `first` on, to a range of tokens. A token that has a row keeps it.
    pub(crate) fn fill(&mut self, tokens: Range<usize>, given: &TokenRows, first: usize) {
        let width = self.of.width;
        for (place, token) in tokens.enumerate() {
            if !std::mem::replace(&mut self.known[token], true) {
                self.values.copy_row(token, &given.values, first + place, width);
            }
        }
    }

    /// Whether any token from index `from` on has a row.
    fn has_rows(&self, from: usize) -> bool {
        self.known.iter().skip(from).any(|&known| known)
    }

    /// Append the rows as bytes; different rows give different bytes.
    pub(crate) fn write_bytes(&self, to: &mut Vec<u8>) {
        to.extend(self.known.iter().map(|&known| u8::from(known)));
        self.values.write_bytes(to);
    }
}

/// Check that a name has no other meaning.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let why = facts::taken(name).or(name.contains('.').then_some("contains a dot"));
    why.map_or(Ok(()), |why| {
        Err(Error::invalid(format!("columns has {name:?}, which {why}; give the column another name")))
    })
}

/// Return the types of the token columns of table `nodes`, which come after the table's own columns.
///
/// # Errors
///
/// `Schema` if a column is not one that a forest records.
pub(crate) fn types_in(schema: &Schema) -> Result<RowTypes> {
    let own = Table::Nodes.schema().fields().len();
    let mut found = RowTypes::new();
    for field in schema.fields().iter().skip(own) {
        let name = field.name();
        let wrong = |why: &str| Error::schema(format!("column {name:?} of table nodes {why}"));
        let of = RowType::of(field.data_type()).filter(|_| field.is_nullable());
        let of = of.ok_or_else(|| {
            wrong(&format!(
                "is {}, not a type of token columns; give lists of rows of uint8, uint16, int32 or float32",
                field.data_type()
            ))
        })?;
        check_name(name).map_err(|error| wrong(&format!("cannot have this name: {error}")))?;
        if found.last_key_value().is_some_and(|(last, _)| last >= name) {
            return Err(wrong("comes after a column with a greater name; sort token columns by name"));
        }
        found.insert(name.clone(), of);
    }
    Ok(found)
}

/// Remove token columns without any row. They belong to other rows of the same file.
pub(crate) fn drop_empty(nodes: &mut RecordBatch) -> Result<()> {
    let own = Table::Nodes.schema().fields().len();
    let is_kept = |&index: &usize| index < own || nodes.column(index).null_count() < nodes.num_rows();
    let kept: Vec<usize> = (0..nodes.num_columns()).filter(is_kept).collect();
    if kept.len() < nodes.num_columns() {
        *nodes = nodes.project(&kept).map_err(arrow_bug)?;
    }
    Ok(())
}

/// Return the schema of table `nodes` with token columns.
pub(crate) fn schema(types: &RowTypes) -> Result<SchemaRef> {
    let known = Table::Nodes.schema();
    if types.is_empty() {
        return Ok(known);
    }
    let more = types.iter().map(|(name, of)| of.field(name).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    let fields = known.fields().iter().cloned().chain(more).collect::<Fields>();
    Ok(Arc::new(Schema::new_with_metadata(fields, known.metadata().clone())))
}

/// Return the union of two sets of token columns.
///
/// # Errors
///
/// `InvalidInput` if a column has two types.
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

/// Check that the rows of a column keep their type.
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

/// Return parts of table `nodes`, each with the token columns of all parts.
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

/// Make a token column of table `nodes`. Each node is given by its rows, if it has any, the first of its tokens that
/// the table row holds, and the number of tokens in the table row.
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

/// Return a token column of a table as a row for each of the tokens that the offsets count, and a mask of the tokens
/// that have one.
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
