//! Kernels for rollout planning.

use agentrl_compute::ragged::Ragged;
use agentrl_compute::rollout::{self, BranchColumns, BranchOptions, Reduce};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::arrays::{Name, slice};
use crate::enter::held;

/// Kernels for rollout planning: entropies, branches, similarity.
#[pymodule(submodule, name = "rollout", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{entropy_branches, segment_entropy};
    #[pymodule_export]
    use crate::search::likeness;
}

#[pyfunction]
#[pyo3(signature = (groups, entropy, initial_entropy, uniform, existing, *, budget, beam, probability, entropy_weight))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn entropy_branches<'py>(
    py: Python<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    entropy: PyReadonlyArray1<'py, f64>,
    initial_entropy: PyReadonlyArray1<'py, f64>,
    uniform: PyReadonlyArray1<'py, f64>,
    existing: PyReadonlyArray1<'py, u32>,
    budget: u32,
    beam: u32,
    probability: f64,
    entropy_weight: f64,
) -> PyResult<Bound<'py, PyArray1<u32>>> {
    let columns = BranchColumns {
        groups: slice("groups", &groups)?,
        entropy: slice("entropy", &entropy)?,
        initial_entropy: slice("initial_entropy", &initial_entropy)?,
        uniform: slice("uniform", &uniform)?,
        existing: slice("existing", &existing)?,
    };
    let options = BranchOptions { budget, beam, probability, entropy_weight };
    held(|| rollout::entropy_branches(&columns, &options)).map(|copies| PyArray1::from_vec(py, copies))
}

#[pyfunction]
#[pyo3(signature = (entropies, offsets, limit, vocabulary, reduce="sum".into()))]
fn segment_entropy<'py>(
    py: Python<'py>,
    entropies: PyReadonlyArray1<'py, f32>,
    offsets: PyReadonlyArray1<'py, i64>,
    limit: usize,
    vocabulary: u64,
    reduce: Name,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let (entropies, offsets) = (slice("entropies", &entropies)?, slice("offsets", &offsets)?);
    let made = held(|| {
        rollout::segment_entropy(Ragged::new(entropies, offsets)?, limit, vocabulary, Reduce::from_name(&reduce)?)
    })?;
    Ok(PyArray1::from_vec(py, made))
}
