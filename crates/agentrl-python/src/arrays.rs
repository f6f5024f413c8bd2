//! NumPy arrays in and out.

use agentrl_data::batch::Numbers;
use numpy::{Element, IntoPyArray as _, PyArray1, PyArrayMethods as _, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::error::invalid;

/// A computed or stored column as an array that Python owns.
pub(crate) fn to_numpy(py: Python<'_>, numbers: Numbers) -> Bound<'_, PyAny> {
    match numbers {
        Numbers::F32(values) => values.into_pyarray(py).into_any(),
        Numbers::F64(values) => values.into_pyarray(py).into_any(),
        Numbers::I64(values) => values.into_pyarray(py).into_any(),
        Numbers::I32(values) => values.into_pyarray(py).into_any(),
        Numbers::U32(values) => values.into_pyarray(py).into_any(),
        Numbers::U8(values) => values.into_pyarray(py).into_any(),
    }
}

/// The values of a one-dimensional array of one of the types that a column may have.
pub(crate) fn to_numbers(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Numbers> {
    fn read<T: Element + Copy>(array: &Bound<'_, PyAny>) -> Option<Vec<T>> {
        array.cast::<PyArray1<T>>().ok().map(|array| array.readonly().as_array().to_vec())
    }
    read(array)
        .map(Numbers::F32)
        .or_else(|| read(array).map(Numbers::F64))
        .or_else(|| read(array).map(Numbers::I64))
        .or_else(|| read(array).map(Numbers::I32))
        .or_else(|| read(array).map(Numbers::U32))
        .or_else(|| read(array).map(Numbers::U8))
        .or_else(|| read(array).map(|values: Vec<bool>| Numbers::U8(values.into_iter().map(u8::from).collect())))
        .ok_or_else(|| unusable(name, array, "a one-dimensional array of floats, integers or bools"))
}

/// Token ids: an int32 or int64 array, or a list of ints.
pub(crate) fn tokens(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<i32>> {
    let wide: Vec<i64> = if let Ok(array) = value.cast::<PyArray1<i32>>() {
        return Ok(array.readonly().as_array().to_vec());
    } else if let Ok(array) = value.cast::<PyArray1<i64>>() {
        array.readonly().as_array().to_vec()
    } else {
        value.extract().map_err(|_| unusable(name, value, "a list of ints or an int32 or int64 array"))?
    };
    let narrow = |(index, &token): (usize, &i64)| {
        i32::try_from(token).map_err(|_| invalid(format!("{name}[{index}] is {token}; token ids fit 32 bits")))
    };
    wide.iter().enumerate().map(narrow).collect()
}

/// Floats for one node: a float32 or float64 array, or a list.
pub(crate) fn floats(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    if let Ok(array) = value.cast::<PyArray1<f32>>() {
        return Ok(array.readonly().as_array().to_vec());
    }
    if let Ok(array) = value.cast::<PyArray1<f64>>() {
        return Ok(array.readonly().as_array().iter().map(|&value| value as f32).collect());
    }
    value.extract().map_err(|_| unusable(name, value, "a list of floats or a float32 or float64 array"))
}

/// A 0/1 mask of one node.
pub(crate) fn mask(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match to_numbers(name, value) {
        Ok(Numbers::U8(values)) => Ok(values),
        _ => value.extract().map_err(|_| unusable(name, value, "a list of 0 and 1 or a bool or uint8 array")),
    }
}

/// A contiguous view of a one-dimensional array.
pub(crate) fn slice<'a, T: Element>(name: &str, array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|_| invalid(format!("{name} is not contiguous; pass numpy.ascontiguousarray({name})")))
}

fn unusable(name: &str, value: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    let kind = value.get_type().qualname().map_or_else(|_| "an unknown type".to_owned(), |name| name.to_string());
    let shape = value.getattr("dtype").map_or(String::new(), |dtype| format!(" of dtype {dtype}"));
    invalid(format!("{name} is {kind}{shape}; give {wanted}"))
}
