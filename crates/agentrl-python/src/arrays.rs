//! Conversions of `NumPy` arrays, numbers and strings between Python and the core.

use std::fmt::Display;
use std::ops::Deref;

use agentrl_data::Error;
use agentrl_data::batch::Numbers;
use agentrl_data::token_columns::TokenRows;
use numpy::{Element, IntoPyArray as _, PyArray1, PyArrayMethods as _, PyReadonlyArray1};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use pyo3::{Borrowed, FromPyObject};

use crate::error::invalid;

/// Return a computed or stored column as an array that Python owns.
pub(crate) fn to_numpy(py: Python<'_>, numbers: Numbers) -> Bound<'_, PyAny> {
    match numbers {
        Numbers::F32(values) => values.into_pyarray(py).into_any(),
        Numbers::F64(values) => values.into_pyarray(py).into_any(),
        Numbers::I64(values) => values.into_pyarray(py).into_any(),
        Numbers::I32(values) => values.into_pyarray(py).into_any(),
        Numbers::U32(values) => values.into_pyarray(py).into_any(),
        Numbers::U16(values) => values.into_pyarray(py).into_any(),
        Numbers::U8(values) => values.into_pyarray(py).into_any(),
    }
}

/// Copy the values of a one-dimensional array with a dtype that a column may have.
pub(crate) fn to_numbers(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Numbers> {
    values(array)
        .map(Numbers::F32)
        .or_else(|| values(array).map(Numbers::F64))
        .or_else(|| values(array).map(Numbers::I64))
        .or_else(|| values(array).map(Numbers::I32))
        .or_else(|| values(array).map(Numbers::U32))
        .or_else(|| values(array).map(Numbers::U16))
        .or_else(|| values(array).map(Numbers::U8))
        .or_else(|| values(array).map(|values: Vec<bool>| Numbers::U8(values.into_iter().map(u8::from).collect())))
        .ok_or_else(|| {
            unusable(
                name,
                array,
                "a one-dimensional array of float32, float64, int32, int64, uint32, uint16, uint8 or bool",
            )
        })
}

/// Copy the values of an array if it is one-dimensional and has this type.
fn values<T: Element + Copy>(array: &Bound<'_, PyAny>) -> Option<Vec<T>> {
    let read = |array: &Bound<'_, PyAny>| {
        let array = array.cast::<PyArray1<T>>().ok()?.readonly();
        Some(array.as_slice().ok()?.to_vec())
    };
    // Rust must not read memory with strides or out of alignment: let NumPy make a plain copy.
    read(array).or_else(|| {
        array.cast::<PyArray1<T>>().ok()?;
        read(&array.call_method0("copy").ok()?)
    })
}

/// Convert the SHA-256 hash that identifies a blob.
pub(crate) fn blob_hash(sha256: &[u8]) -> agentrl_data::Result<[u8; 32]> {
    let found = sha256.len();
    sha256.try_into().map_err(|_| Error::invalid(format!("sha256 has {found} bytes; give the 32 bytes of a SHA-256")))
}

/// Read token ids: an int32 or int64 array, or a list of ints.
pub(crate) fn tokens(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<i32>> {
    if let Some(tokens) = values(value) {
        return Ok(tokens);
    }
    let wide: Option<Vec<i64>> = values(value).or_else(|| value.extract().ok());
    let wanted = "a list of ints or a one-dimensional int32 or int64 array";
    let wide = wide.ok_or_else(|| unusable_item::<i64>(name, value, wanted))?;
    let narrow = |(index, &token): (usize, &i64)| {
        i32::try_from(token)
            .map_err(|_| invalid(format!("{name}[{index}] is {token}; give token ids from 0 to 2^31 - 1")))
    };
    wide.iter().enumerate().map(narrow).collect()
}

/// Read rows of a token column: an array `[tokens, width]`, or a pair of the position of the first token and such an
/// array. Messages contain `name`, for example `columns["routes"]`.
pub(crate) fn token_rows(name: &str, value: &Bound<'_, PyAny>) -> PyResult<TokenRows> {
    let pair: Option<(Whole<usize>, Bound<'_, PyAny>)> = value.extract().ok();
    let (begin, array) = match pair {
        Some((begin, array)) => (Some(begin.named(&format!("the position of {name}"))?), array),
        None => (None, value.clone()),
    };
    let shape: Option<Vec<usize>> = array.getattr("shape").and_then(|shape| shape.extract()).ok();
    let Some(&[_, width]) = shape.as_deref() else {
        let wanted =
            "an array of shape [tokens, width], or a pair of the position of the first token and such an array";
        return Err(unusable(name, &array, wanted));
    };
    let flat = array.call_method1("reshape", ((-1,),))?;
    Ok(TokenRows { begin, width, values: to_numbers(name, &flat)? })
}

/// Read floats of one node: a float32 or float64 array, or a list in which None becomes NaN.
pub(crate) fn floats(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    let wide = || values(value).map(|wide: Vec<f64>| wide.into_iter().map(|value| value as f32).collect());
    let known = |value: Option<f32>| value.unwrap_or(f32::NAN);
    let listed = || value.extract().ok().map(|listed: Vec<Option<f32>>| listed.into_iter().map(known).collect());
    let found = values(value).or_else(wide).or_else(listed);
    let wanted = "a list of floats or a one-dimensional float32 or float64 array";
    found.ok_or_else(|| unusable_item::<Option<f32>>(name, value, wanted))
}

/// Read a 0/1 mask of one node.
pub(crate) fn mask(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(Numbers::U8(values)) = to_numbers(name, value) {
        return Ok(values);
    }
    let wanted = "a list of 0 and 1 or a bool or uint8 array";
    value.extract().map_err(|_| unusable_item::<u8>(name, value, wanted))
}

/// A whole number from Python that may not fit its type. The error is made later, when the argument's name is known.
pub(crate) struct Whole<T>(Result<T, String>);

impl<T: Bounded> Whole<T> {
    /// Return the number, or an error that names the argument.
    pub(crate) fn named(self, name: &str) -> PyResult<T> {
        self.0.map_err(|value| {
            invalid(format!("{name} is {value}; give a whole number from {} to {}", T::LEAST, T::MOST))
        })
    }
}

impl<T> From<T> for Whole<T> {
    fn from(value: T) -> Self {
        Self(Ok(value))
    }
}

impl<'a, 'py, T: FromPyObject<'a, 'py>> FromPyObject<'a, 'py> for Whole<T> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let shown = || value.repr().map_or_else(|_| "not a number".to_owned(), |text| text.to_string());
        Ok(Self(value.extract().map_err(|_| shown())))
    }
}

/// A number from Python. An integer that is too large for a float is infinite, so that checks for infinity reject it.
pub(crate) struct Number(f64);

impl Number {
    /// Return the number as f32, for columns of 32-bit floats.
    pub(crate) fn narrow(self) -> f32 {
        self.0 as f32
    }

    /// Return the number as f64.
    pub(crate) fn wide(self) -> f64 {
        self.0
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Number {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        value.extract().map(Self).or_else(|error: PyErr| {
            if !error.is_instance_of::<PyOverflowError>(value.py()) {
                return Err(error);
            }
            Ok(Self(if value.lt(0)? { f64::NEG_INFINITY } else { f64::INFINITY }))
        })
    }
}

/// A string from Python that may contain a lone surrogate, which no file can store. The error is made later, when the
/// argument's name is known.
pub(crate) struct Text(Result<String, String>);

impl Text {
    /// Return the string, or an error that names the argument.
    pub(crate) fn named(self, name: &str) -> PyResult<String> {
        self.0.map_err(|text| {
            invalid(format!(
                "{name} is {text}, which is not Unicode (a lone surrogate); give text.encode(\"utf-8\", \
                 \"replace\").decode()"
            ))
        })
    }
}

impl From<&str> for Text {
    fn from(value: &str) -> Self {
        Self(Ok(value.to_owned()))
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Text {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match value.extract::<String>() {
            Ok(text) => Ok(Self(Ok(text))),
            Err(_) if value.is_instance_of::<PyString>() => Ok(Self(Err(value.repr()?.to_string()))),
            Err(other) => Err(other),
        }
    }
}

/// Name of a choice from Python. A lone surrogate becomes a replacement character, so that the name is rejected with a
/// list of the valid names.
#[derive(Debug)]
pub(crate) struct Name(String);

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Name {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Name {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        value
            .cast::<PyString>()
            .map_or_else(|_| value.extract::<String>().map(Self), |text| Ok(Self(text.to_string_lossy().into_owned())))
    }
}

/// Smallest and largest number of a type.
pub(crate) trait Bounded: Display {
    const LEAST: Self;
    const MOST: Self;
}

macro_rules! bounded {
    ($($type:ty),+) => {
        $(impl Bounded for $type {
            const LEAST: Self = Self::MIN;
            const MOST: Self = Self::MAX;
        })+
    };
}

bounded!(i32, i64, u32, u64, usize);

/// Return a contiguous view of a one-dimensional array.
pub(crate) fn slice<'a, T: Element>(name: &str, array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|_| invalid(format!("{name} is not contiguous or not aligned; pass {name}.copy()")))
}

/// Return the error for a value of a wrong type, with its type, its dtype and its shape.
pub(crate) fn unusable(name: &str, value: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    let kind = value.get_type().qualname().map_or_else(|_| "an unknown type".to_owned(), |name| name.to_string());
    let dtype = value.getattr("dtype").map_or(String::new(), |dtype| format!(" of dtype {dtype}"));
    let shape = value.getattr("shape").map_or(String::new(), |shape| format!(" and shape {shape}"));
    invalid(format!("{name} is {kind}{dtype}{shape}; give {wanted}"))
}

/// Return the error for a list, which names its first item of a wrong type; for other values as in [`unusable`].
fn unusable_item<'py, T: FromPyObjectOwned<'py>>(name: &str, value: &Bound<'py, PyAny>, wanted: &str) -> PyErr {
    let first = value.cast::<PyList>().ok().and_then(|list| {
        let item = list.iter().enumerate().find(|(_, item)| item.extract::<T>().is_err());
        item.and_then(|(index, item)| Some((index, item.repr().ok()?.to_string())))
    });
    match first {
        Some((index, shown)) if shown.len() <= 40 => invalid(format!("{name}[{index}] is {shown}; give {wanted}")),
        _ => unusable(name, value, wanted),
    }
}
