//! Columns of lists (ragged rows), from Arrow arrays of any library or from flat values and offsets.

use agentrl_compute::ragged::Ragged;
use agentrl_data::{Error, Result};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Float64Type, Int32Type, Int64Type, UInt8Type, UInt32Type};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait};
use arrow_buffer::{ArrowNativeType, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyList;
use pyo3_arrow::input::AnyArray;

use crate::arrays::slice;
use crate::error::{invalid, to_python};

/// Ragged rows. If the memory from Python has the right type, it is read in place.
pub(crate) struct Lists<'py, T: Item> {
    values: Values<'py, T>,
    offsets: Vec<i64>,
}

enum Values<'py, T: Item> {
    Numpy(PyReadonlyArray1<'py, T>),
    Arrow(ScalarBuffer<T>),
    Made(Vec<T>),
}

impl<'py, T: Item> Lists<'py, T> {
    /// Read flat values and offsets (two `NumPy` arrays), or an Arrow array of lists.
    pub(crate) fn read(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok((values, offsets)) = value.extract::<(PyReadonlyArray1<'py, T>, PyReadonlyArray1<'py, i64>)>() {
            let offsets = slice("offsets", &offsets)?.to_vec();
            return Ok(Self { values: Values::Numpy(values), offsets });
        }
        let array = value.extract::<AnyArray>().map_err(|_| {
            invalid(format!(
                "{name} is not a column of lists; give an Arrow list array, or flat values and their \
                 offsets"
            ))
        })?;
        let chunks = array.into_chunked_array().map_err(PyErr::from)?;
        let chunks = chunks.chunks().iter().map(|chunk| from_arrow(name, chunk)).collect::<Result<Vec<_>>>();
        Ok(Self::joined(chunks.map_err(to_python)?))
    }

    /// Concatenate the rows of several chunks.
    fn joined(mut chunks: Vec<(ScalarBuffer<T>, Vec<i64>)>) -> Self {
        if chunks.len() == 1
            && let Some((values, offsets)) = chunks.pop()
        {
            return Self { values: Values::Arrow(values), offsets };
        }
        let mut made = (Vec::new(), vec![0]);
        for (values, offsets) in chunks {
            for row in offsets.windows(2) {
                made.0.extend_from_slice(&values[row[0] as usize..row[1] as usize]);
                made.1.push(made.0.len() as i64);
            }
        }
        Self { values: Values::Made(made.0), offsets: made.1 }
    }

    /// Return the rows, after a check of the offsets.
    pub(crate) fn rows(&self, name: &str) -> PyResult<Ragged<'_, T>> {
        let values = match &self.values {
            Values::Numpy(values) => slice(name, values)?,
            Values::Arrow(values) => values,
            Values::Made(values) => values,
        };
        let rows = Ragged::new(values, &self.offsets);
        rows.map_err(|error| to_python(Error::new(error.kind(), format!("{name}: {error}"))))
    }
}

/// Concatenate Python lists of numbers to an array of `dtype`: `int32`, `float32` (None becomes NaN) or `uint8`. This
/// is faster than in Python.
#[pyfunction]
pub(crate) fn flat_lists<'py>(
    py: Python<'py>,
    rows: Vec<Bound<'py, PyList>>,
    name: &str,
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    match dtype {
        "int32" => joined::<i32>(py, &rows, name, dtype),
        "float32" => joined::<f32>(py, &rows, name, dtype),
        "uint8" => joined::<u8>(py, &rows, name, dtype),
        _ => Err(invalid(format!("{name} has no dtype {dtype:?}"))),
    }
}

fn joined<'py, T>(py: Python<'py>, rows: &[Bound<'py, PyList>], name: &str, dtype: &str) -> PyResult<Bound<'py, PyAny>>
where
    T: Item + for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let mut made: Vec<T> = Vec::with_capacity(rows.iter().map(PyListMethods::len).sum());
    for (index, row) in rows.iter().enumerate() {
        for value in row.iter() {
            if let (true, Some(missing)) = (value.is_none(), T::MISSING) {
                made.push(missing);
                continue;
            }
            let number: PyResult<T> = value.extract();
            let wrong = |error: PyErr| {
                invalid(format!("{name}[{index}] contains a wrong value ({}); give a list of {dtype}", error.value(py)))
            };
            made.push(number.map_err(wrong)?);
        }
    }
    Ok(PyArray1::from_vec(py, made).into_any())
}

/// Return flat values and offsets of an Arrow array of lists, strings or bytes.
fn from_arrow<T: Item>(name: &str, array: &ArrayRef) -> Result<(ScalarBuffer<T>, Vec<i64>)> {
    fn wide<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> Vec<i64> {
        offsets.iter().map(|offset| offset.as_usize() as i64).collect()
    }
    let (values, offsets) = match array.data_type() {
        DataType::List(_) => (array.as_list::<i32>().values(), wide(array.as_list::<i32>().offsets())),
        DataType::LargeList(_) => (array.as_list::<i64>().values(), wide(array.as_list::<i64>().offsets())),
        DataType::FixedSizeList(_, size) => {
            let size = i64::from(*size);
            (array.as_fixed_size_list().values(), (0..=array.len() as i64).map(|row| row * size).collect())
        }
        other => {
            let (bytes, offsets) = match other {
                DataType::Utf8 => (array.as_string::<i32>().values(), wide(array.as_string::<i32>().offsets())),
                DataType::LargeUtf8 => (array.as_string::<i64>().values(), wide(array.as_string::<i64>().offsets())),
                DataType::Binary => (array.as_binary::<i32>().values(), wide(array.as_binary::<i32>().offsets())),
                DataType::LargeBinary => (array.as_binary::<i64>().values(), wide(array.as_binary::<i64>().offsets())),
                _ => return Err(unusable::<T>(name, other)),
            };
            let bytes = T::from_bytes(ScalarBuffer::from(bytes.clone())).ok_or_else(|| unusable::<T>(name, other))?;
            return Ok(without_nulls(bytes, offsets, array.nulls()));
        }
    };
    if values.null_count() > 0 && T::MISSING.is_none() {
        return Err(Error::invalid(format!(
            "{name} has {} missing values inside its rows; only a whole row may be missing",
            values.null_count()
        )));
    }
    let values = T::from_values(name, values).unwrap_or_else(|| Err(unusable::<T>(name, array.data_type())))?;
    Ok(without_nulls(values, offsets, array.nulls()))
}

fn unusable<T: Item>(name: &str, found: &DataType) -> Error {
    Error::invalid(format!("{name} has Arrow type {found}; give {}", T::WANTED))
}

/// Replace null rows by empty ones.
fn without_nulls<T: Item>(
    values: ScalarBuffer<T>,
    offsets: Vec<i64>,
    nulls: Option<&NullBuffer>,
) -> (ScalarBuffer<T>, Vec<i64>) {
    let Some(nulls) = nulls.filter(|nulls| {
        let hidden = |(row, pair): (usize, &[i64])| nulls.is_null(row) && pair[0] != pair[1];
        offsets.windows(2).enumerate().any(hidden)
    }) else {
        return (values, offsets);
    };
    let mut kept = (Vec::new(), vec![0]);
    for (row, pair) in offsets.windows(2).enumerate() {
        if nulls.is_valid(row) {
            kept.0.extend_from_slice(&values[pair[0] as usize..pair[1] as usize]);
        }
        kept.1.push(kept.0.len() as i64);
    }
    (kept.0.into(), kept.1)
}

/// Type of the values of lists.
pub(crate) trait Item: Element + ArrowNativeType {
    /// Description of an accepted argument, for messages.
    const WANTED: &str;

    /// Replacement for a missing value inside a row; `None` rejects missing values.
    const MISSING: Option<Self> = None;

    /// Convert an Arrow array that has this type, or one that converts without loss of meaning; `None` for other types.
    fn from_values(name: &str, values: &ArrayRef) -> Option<Result<ScalarBuffer<Self>>>;

    /// Convert bytes, if this is their type.
    fn from_bytes(_bytes: ScalarBuffer<u8>) -> Option<ScalarBuffer<Self>> {
        None
    }
}

fn whole<T: ArrowPrimitiveType>(name: &str, values: &ArrayRef) -> Result<ScalarBuffer<i32>>
where
    T::Native: Copy + std::fmt::Display,
    i32: TryFrom<T::Native>,
{
    let narrow = |(index, &value): (usize, &T::Native)| {
        let narrow = i32::try_from(value);
        narrow.map_err(|_| {
            Error::invalid(format!("value {index} of {name} is {value}; give token ids from 0 to 2^31 - 1"))
        })
    };
    values.as_primitive::<T>().values().iter().enumerate().map(narrow).collect::<Result<Vec<i32>>>().map(Into::into)
}

impl Item for i32 {
    const WANTED: &str = "lists of int32 or int64";

    fn from_values(name: &str, values: &ArrayRef) -> Option<Result<ScalarBuffer<Self>>> {
        match values.data_type() {
            DataType::Int32 => Some(Ok(values.as_primitive::<Int32Type>().values().clone())),
            DataType::Int64 => Some(whole::<Int64Type>(name, values)),
            DataType::UInt32 => Some(whole::<UInt32Type>(name, values)),
            DataType::Null => Some(Ok(ScalarBuffer::from(Vec::new()))),
            _ => None,
        }
    }
}

impl Item for f32 {
    const WANTED: &str = "lists of float32 or float64";

    const MISSING: Option<Self> = Some(Self::NAN);

    fn from_values(_name: &str, values: &ArrayRef) -> Option<Result<ScalarBuffer<Self>>> {
        let known = |value: Option<Self>| value.unwrap_or(Self::NAN);
        match values.data_type() {
            DataType::Float32 if values.null_count() == 0 => {
                Some(Ok(values.as_primitive::<Float32Type>().values().clone()))
            }
            DataType::Float32 => Some(Ok(values.as_primitive::<Float32Type>().iter().map(known).collect())),
            DataType::Float64 => {
                let values = values.as_primitive::<Float64Type>();
                Some(Ok(values.iter().map(|value| known(value.map(|value| value as Self))).collect()))
            }
            DataType::Null => Some(Ok(ScalarBuffer::from(Vec::new()))),
            _ => None,
        }
    }
}

impl Item for u8 {
    const WANTED: &str = "lists of bool or uint8, or binary";

    fn from_values(_name: &str, values: &ArrayRef) -> Option<Result<ScalarBuffer<Self>>> {
        match values.data_type() {
            DataType::UInt8 => Some(Ok(values.as_primitive::<UInt8Type>().values().clone())),
            DataType::Boolean => Some(Ok(values.as_boolean().values().iter().map(u8::from).collect())),
            DataType::Null => Some(Ok(ScalarBuffer::from(Vec::new()))),
            _ => None,
        }
    }

    fn from_bytes(bytes: ScalarBuffer<u8>) -> Option<ScalarBuffer<Self>> {
        Some(bytes)
    }
}
