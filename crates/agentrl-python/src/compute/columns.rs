//! What the bindings of columns share: optional columns in, new arrays out.

use agentrl_compute::Result;
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::arrays::slice;
use crate::enter::{held, released};

/// A column in.
pub(crate) type Column<'py, T> = PyReadonlyArray1<'py, T>;

/// A column out.
pub(crate) type Made<'py, T> = Bound<'py, PyArray1<T>>;

/// Rows from which a kernel can take so long that other threads should run meanwhile.
const MANY: usize = 1 << 15;

/// The values of a column that may be missing.
pub(crate) fn optional<'a, T: Element>(name: &str, column: Option<&'a Column<'_, T>>) -> PyResult<Option<&'a [T]>> {
    column.map(|column| slice(name, column)).transpose()
}

/// Runs a kernel on so many rows.
pub(crate) fn run<T: Send>(py: Python<'_>, rows: usize, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    if rows < MANY { held(work) } else { released(py, work) }
}

/// Runs a kernel that makes one column.
pub(crate) fn made<T: Element + Send>(
    py: Python<'_>,
    rows: usize,
    work: impl FnOnce() -> Result<Vec<T>> + Send,
) -> PyResult<Made<'_, T>> {
    Ok(PyArray1::from_vec(py, run(py, rows, work)?))
}
