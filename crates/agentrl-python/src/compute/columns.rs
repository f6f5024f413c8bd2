//! Helpers of the column bindings: optional columns in, new arrays out.

use agentrl_compute::Result;
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::arrays::slice;
use crate::enter::{held, released};

/// An input column.
pub(crate) type Column<'py, T> = PyReadonlyArray1<'py, T>;

/// An output column.
pub(crate) type Made<'py, T> = Bound<'py, PyArray1<T>>;

/// Number of rows from which kernels release the interpreter lock, because they can take long.
const MANY: usize = 1 << 15;

/// Return the slice of an optional column.
pub(crate) fn optional<'a, T: Element>(name: &str, column: Option<&'a Column<'_, T>>) -> PyResult<Option<&'a [T]>> {
    column.map(|column| slice(name, column)).transpose()
}

/// Run a kernel on `rows` rows; if there are many, the interpreter lock is released.
pub(crate) fn run<T: Send>(py: Python<'_>, rows: usize, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    if rows < MANY { held(work) } else { released(py, work) }
}

/// Run a kernel that returns one column.
pub(crate) fn made<T: Element + Send>(
    py: Python<'_>,
    rows: usize,
    work: impl FnOnce() -> Result<Vec<T>> + Send,
) -> PyResult<Made<'_, T>> {
    Ok(PyArray1::from_vec(py, run(py, rows, work)?))
}
