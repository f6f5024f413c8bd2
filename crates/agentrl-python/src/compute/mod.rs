//! Compute functions for Python: columns in, columns out.

pub(crate) mod advantage;
pub(crate) mod baseline;
pub(crate) mod columns;
pub(crate) mod filters;
pub(crate) mod group;
pub(crate) mod keys;
pub(crate) mod replay;
pub(crate) mod returns;
pub(crate) mod reward;
pub(crate) mod rng;
pub(crate) mod rollout;
pub(crate) mod select;
pub(crate) mod stats;
pub(crate) mod tree;
pub(crate) mod weight;

use agentrl_compute::Result;
use numpy::{
    Element, PyArray1, PyArrayDescrMethods as _, PyArrayMethods as _, PyReadonlyArray1, PyUntypedArrayMethods as _,
};
use pyo3::Borrowed;
use pyo3::prelude::*;

use crate::arrays::slice;
use crate::error::{invalid, to_python};

/// A column of either float type; the result has the same type.
pub(crate) enum Floats<'py> {
    Single(PyReadonlyArray1<'py, f32>),
    Double(PyReadonlyArray1<'py, f64>),
}

/// Check the type first: trying one type and then the other would cost several microseconds for the error of the first.
impl<'py> FromPyObject<'_, 'py> for Floats<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match value.cast::<PyArray1<f32>>() {
            Ok(array) => Ok(Self::Single(array.readonly())),
            Err(_) => Ok(Self::Double(value.extract()?)),
        }
    }
}

/// Size in bytes from which clearing a new column costs more than a call of Python.
const LARGE: usize = 1 << 16;

/// Return the column that a function fills: the given one, or a new one.
pub(crate) fn output<'py, T: Element>(
    py: Python<'py>,
    out: Option<&Bound<'py, PyAny>>,
    rows: usize,
) -> PyResult<Bound<'py, PyArray1<T>>> {
    let Some(out) = out else {
        let (dtype, large) = (numpy::dtype::<T>(py), rows * size_of::<T>() >= LARGE);
        // Floats may hold anything before they are written, so reused memory need not be cleared.
        if large && dtype.kind() == b'f' {
            return Ok(py.import("numpy")?.call_method1("empty", (rows, dtype))?.cast_into()?);
        }
        return Ok(PyArray1::zeros(py, rows, false));
    };
    let wanted = || {
        invalid(format!(
            "out is not a contiguous array of {rows} values with the dtype of the input; \
         give one, or leave it out"
        ))
    };
    let array = out.cast::<PyArray1<T>>().map_err(|_| wanted())?;
    if array.len() == rows && array.is_contiguous() { Ok(array.clone()) } else { Err(wanted()) }
}

/// Fill a column.
pub(crate) fn filled<'py, T: Element + Send>(
    py: Python<'py>,
    out: Option<&Bound<'py, PyAny>>,
    rows: usize,
    work: impl FnOnce(&mut [T]) -> Result<()> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let array = output(py, out, rows)?;
    {
        let busy = || invalid("out is read-only, or also an input; give another".to_owned());
        let mut writable = array.try_readwrite().map_err(|_| busy())?;
        let values = writable.as_slice_mut().map_err(|_| busy())?;
        columns::run(py, rows, || work(values))?;
    }
    Ok(array.into_any())
}

/// Evaluate `$make` with float columns of one type: each name is a slice in it, and `$type` is the type.
macro_rules! floats {
    ([$($name:ident),+], $type:ident => $make:expr) => {
        match ($($name,)+) {
            ($($crate::compute::Floats::Single($name),)+) => {
                type $type = f32;
                $(let $name = $crate::arrays::slice(stringify!($name), &$name)?;)+
                $make
            }
            ($($crate::compute::Floats::Double($name),)+) => {
                type $type = f64;
                $(let $name = $crate::arrays::slice(stringify!($name), &$name)?;)+
                $make
            }
            #[expect(clippy::allow_attributes, reason = "only kernels of several columns have a mixed case")]
            #[allow(unreachable_patterns)]
            _ => Err($crate::error::invalid(
                concat!("columns ", $(stringify!($name), " ",)+ "mix float32 and float64; convert them to one type").to_owned(),
            )),
        }
    };
}

/// Run a kernel on float columns of one type. In `$make` each name is a slice, and `$out` is an output of the same
/// length; with `$times` it holds that many columns one after another.
macro_rules! kernel {
    ($py:ident, [$($name:ident),+], |$out:ident| $make:expr) => {
        $crate::compute::kernel!($py, None, 1 * [$($name),+], |$out| $make)
    };
    ($py:ident, $given:expr, $times:literal * [$first:ident $(, $rest:ident)*], |$out:ident| $make:expr) => {
        $crate::compute::floats!([$first $(, $rest)*], Type => {
            $crate::compute::filled::<Type>($py, $given, $times * $first.len(), |$out| $make)
        })
    };
}

/// Run a kernel on float columns of one type whose result is not such a column.
macro_rules! reduced {
    ($py:ident, [$first:ident $(, $rest:ident)*], $make:expr) => {
        $crate::compute::floats!([$first $(, $rest)*], _Type => $crate::compute::columns::run($py, $first.len(), || $make))
    };
}

pub(crate) use {floats, kernel, reduced};

/// Return the slice of an optional mask.
pub(crate) fn flags<'a>(name: &str, mask: Option<&'a PyReadonlyArray1<'_, bool>>) -> PyResult<Option<&'a [bool]>> {
    mask.map(|mask| slice(name, mask)).transpose()
}

/// Return the slice of an optional column.
pub(crate) fn optional<'a, T: Element>(
    name: &str,
    column: Option<&'a PyReadonlyArray1<'_, T>>,
) -> PyResult<Option<&'a [T]>> {
    column.map(|column| slice(name, column)).transpose()
}

/// Return the number of threads that large columns use.
#[pyfunction]
pub(crate) fn num_threads() -> usize {
    agentrl_compute::thread_pool::threads()
}

/// Set the number of threads that large columns use.
#[pyfunction]
pub(crate) fn set_num_threads(count: usize) -> PyResult<()> {
    agentrl_compute::thread_pool::set_threads(count).map_err(to_python)
}

/// Set the number of threads from the text of the environment variable.
pub(crate) fn threads_of_environment(text: &str) -> PyResult<()> {
    let count = text.trim().parse().ok().filter(|&count| count > 0);
    let count = count.ok_or_else(|| {
        invalid(format!("AGENTRL_NUM_THREADS is {text:?}; give a number of threads, 1 or more, or unset it"))
    })?;
    set_num_threads(count)
}
