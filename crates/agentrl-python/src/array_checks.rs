//! Fast checks of `NumPy` arrays; every function on columns begins with one per column.

use agentrl_compute::Float;
use numpy::{Element, PyArrayDyn, PyArrayMethods as _, PyUntypedArray, PyUntypedArrayMethods as _};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Return whether `values` is a `NumPy` array (not of a subclass) that the core can read in place: aligned,
/// C-contiguous, with a dtype among `kinds` (`NumPy`'s letters), `length` rows, and a number of dimensions among
/// `dimensions` (default: 1).
#[pyfunction]
#[pyo3(signature = (values, kinds, length=None, dimensions=None))]
pub(crate) fn is_plain(
    values: &Bound<'_, PyAny>,
    kinds: &str,
    length: Option<usize>,
    dimensions: Option<&Bound<'_, PyTuple>>,
) -> PyResult<bool> {
    if !values.is_exact_instance_of::<PyUntypedArray>() {
        return Ok(false);
    }
    let array = values.cast::<PyUntypedArray>()?;
    let is_wanted = match dimensions {
        None => array.ndim() == 1,
        Some(some) => some.iter().any(|number| number.extract().is_ok_and(|number: usize| number == array.ndim())),
    };
    Ok(is_wanted
        && length.is_none_or(|length| array.shape().first() == Some(&length))
        && array.is_c_contiguous()
        && kinds.bytes().any(|kind| match kind {
            b'd' => is_aligned::<f64>(values),
            b'f' => is_aligned::<f32>(values),
            b'q' => is_aligned::<i64>(values),
            b'i' => is_aligned::<i32>(values),
            b'I' => is_aligned::<u32>(values),
            b'?' => is_aligned::<bool>(values),
            _ => false,
        }))
}

/// Whether an array has elements of type `T` and is aligned for them.
fn is_aligned<T: Element>(values: &Bound<'_, PyAny>) -> bool {
    values.cast::<PyArrayDyn<T>>().is_ok_and(|array| array.data().is_aligned())
}

/// Return whether all values of a contiguous float32 or float64 array are finite.
#[pyfunction]
pub(crate) fn is_finite(values: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(match values.cast::<PyArrayDyn<f64>>() {
        Ok(array) => f64::all_finite(array.try_readonly()?.as_slice()?),
        Err(_) => f32::all_finite(values.cast::<PyArrayDyn<f32>>()?.try_readonly()?.as_slice()?),
    })
}
