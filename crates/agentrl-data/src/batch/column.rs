//! A computed column: its level, its name and its numbers.

use std::sync::Arc;

use agentrl_compute::names;
use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type};
use arrow_schema::DataType;

use crate::{Error, Result};

names! {
    /// The unit that one value of a column belongs to.
    "level" Level {
        /// A use of a trajectory in the batch.
        Draw = "draw",
        /// A step of a draw.
        Step = "step",
        /// An action token of a step of a draw.
        Token = "token",
        /// A stored token, shared by all draws that contain it.
        NodeToken = "node_token",
    }
}

/// Values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// 32-bit floats; NaN if unknown.
    F32(Vec<f32>),
    /// 64-bit floats; NaN if unknown.
    F64(Vec<f64>),
    /// 64-bit integers.
    I64(Vec<i64>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// Unsigned 32-bit integers.
    U32(Vec<u32>),
    /// Unsigned 16-bit integers.
    U16(Vec<u16>),
    /// Unsigned 8-bit integers: codes and flags.
    U8(Vec<u8>),
}

/// Apply one expression to the vector of any variant of [`Numbers`].
macro_rules! each {
    ($numbers:expr, $values:ident => $body:expr) => {
        match $numbers {
            Numbers::F32($values) => Numbers::F32($body),
            Numbers::F64($values) => Numbers::F64($body),
            Numbers::I64($values) => Numbers::I64($body),
            Numbers::I32($values) => Numbers::I32($body),
            Numbers::U32($values) => Numbers::U32($body),
            Numbers::U16($values) => Numbers::U16($body),
            Numbers::U8($values) => Numbers::U8($body),
        }
    };
}

impl Numbers {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::U8(values) => values.len(),
        }
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Return the values at some indices.
    pub(crate) fn gather(&self, indices: impl Iterator<Item = usize>) -> Self {
        each!(self, values => indices.map(|index| values[index]).collect())
    }

    /// Repeat each value for every element of its row.
    pub(super) fn repeat(&self, offsets: &[i64]) -> Self {
        each!(self, values => {
            let mut repeated = Vec::with_capacity(offsets.last().map_or(0, |&last| last as usize));
            for (&value, pair) in values.iter().zip(offsets.windows(2)) {
                repeated.extend(std::iter::repeat_n(value, (pair[1] - pair[0]) as usize));
            }
            repeated
        })
    }

    /// Join ranges of rows of `width` values, `count` rows in all.
    pub(super) fn joined(
        &self,
        ranges: impl Iterator<Item = std::ops::Range<usize>>,
        count: usize,
        width: usize,
    ) -> Self {
        each!(self, values => {
            let mut joined = Vec::with_capacity(count * width);
            ranges.for_each(|range| joined.extend_from_slice(&values[range.start * width..range.end * width]));
            joined
        })
    }

    /// Copy row `row` of `from` to row `to` of these values. Both have the same type and `width` values per row.
    pub(crate) fn copy_row(&mut self, to: usize, from: &Self, row: usize, width: usize) {
        macro_rules! copied {
            ($($kind:ident),+) => {
                match (self, from) {
                    $((Self::$kind(own), Self::$kind(other)) => {
                        own[to * width..(to + 1) * width].copy_from_slice(&other[row * width..(row + 1) * width]);
                    })+
                    _ => {}
                }
            };
        }
        copied!(F32, F64, I64, I32, U32, U16, U8);
    }

    /// Join ranges of parts, which have the type of `empty`.
    pub(crate) fn of_ranges<'a>(empty: Self, parts: impl Iterator<Item = (&'a Self, std::ops::Range<usize>)>) -> Self {
        let mut made = empty;
        macro_rules! extended {
            ($part:expr, $range:expr, $($kind:ident),+) => {
                match (&mut made, $part) {
                    $((Self::$kind(made), Self::$kind(part)) => made.extend_from_slice(&part[$range]),)+
                    _ => {}
                }
            };
        }
        for (part, range) in parts {
            extended!(part, range, F32, F64, I64, I32, U32, U16, U8);
        }
        made
    }

    /// Append the values as little-endian bytes.
    pub(crate) fn write_bytes(&self, to: &mut Vec<u8>) {
        macro_rules! written {
            ($($kind:ident),+) => {
                match self {
                    $(Self::$kind(values) => to.extend(values.iter().flat_map(|value| value.to_le_bytes())),)+
                }
            };
        }
        written!(F32, F64, I64, I32, U32, U16, U8);
    }

    /// Read the values of an array. A `uint8` array with nulls becomes floats, NaN for null. Other integers with nulls
    /// are an error.
    pub(crate) fn from_array(name: &str, array: &dyn Array) -> Result<Self> {
        let nulls = array.null_count();
        Ok(match array.data_type() {
            DataType::Float32 => {
                Self::F32(array.as_primitive::<Float32Type>().iter().map(|value| value.unwrap_or(f32::NAN)).collect())
            }
            DataType::Float64 => {
                Self::F64(array.as_primitive::<Float64Type>().iter().map(|value| value.unwrap_or(f64::NAN)).collect())
            }
            DataType::UInt8 if nulls > 0 => Self::F32(
                array.as_primitive::<UInt8Type>().iter().map(|value| value.map_or(f32::NAN, f32::from)).collect(),
            ),
            DataType::Int64 | DataType::Int32 | DataType::UInt32 | DataType::UInt16 if nulls > 0 => {
                let rows = array.len();
                return Err(Error::invalid(format!(
                    "column {name:?} is unknown (null) in {nulls} of {rows} rows; read its table in Polars instead"
                )));
            }
            DataType::Int64 => Self::I64(array.as_primitive::<Int64Type>().values().to_vec()),
            DataType::Int32 => Self::I32(array.as_primitive::<Int32Type>().values().to_vec()),
            DataType::UInt32 => Self::U32(array.as_primitive::<UInt32Type>().values().to_vec()),
            DataType::UInt16 => Self::U16(array.as_primitive::<UInt16Type>().values().to_vec()),
            DataType::UInt8 => Self::U8(array.as_primitive::<UInt8Type>().values().to_vec()),
            other => {
                return Err(Error::invalid(format!(
                    "column {name:?} contains {other}, not numbers; use keys({name:?}, …), or read its table"
                )));
            }
        })
    }
}

/// A column computed for a batch.
#[derive(Clone, Debug)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Level of its values.
    pub level: Level,
    /// Number of values of each row, as a list; `None`: one plain value.
    pub width: Option<usize>,
    /// Values of all rows of the level, row after row.
    pub values: Arc<Numbers>,
}
