//! Parse responses of inference servers.

use agentrl_data::vllm_response::candidates;
use numpy::{PyArray1, PyArray2, PyArrayMethods as _};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::enter::released;

/// Candidates `[tokens, k]`, their log-probabilities `[tokens, k]`, and the JSON of the other fields.
type Columns<'py> = (Bound<'py, PyArray2<i32>>, Bound<'py, PyArray2<f32>>, String);

/// Parse the candidates at each token from the JSON of a vLLM server: ids `int32[tokens, k]`, log-probabilities
/// `float32[tokens, k]`, and the JSON text of all other fields.
#[pyfunction]
pub(crate) fn vllm_candidates(py: Python<'_>, body: PyBackedBytes) -> PyResult<Columns<'_>> {
    let found = released(py, || candidates(&body))?;
    let shape = [found.count, found.ids.len().checked_div(found.count).unwrap_or(0)];
    let ids = PyArray1::from_vec(py, found.ids).reshape(shape)?;
    let logprobs = PyArray1::from_vec(py, found.logprobs).reshape(shape)?;
    Ok((ids, logprobs, found.rest))
}
