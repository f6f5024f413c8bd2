//! Counter-based random numbers.

use agentrl_compute::rng;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::arrays::slice;

/// Counter-based random numbers.
#[pymodule(submodule, name = "rng", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{structural_seed, uniform};
}

#[pyfunction]
#[pyo3(signature = (*parts))]
fn structural_seed(parts: Vec<i64>) -> u64 {
    rng::structural_seed(&parts.iter().map(|&part| part as u64).collect::<Vec<_>>())
}

#[pyfunction]
fn uniform<'py>(
    py: Python<'py>,
    seeds: PyReadonlyArray1<'py, u64>,
    counter: u64,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let seeds = slice("seeds", &seeds)?;
    Ok(PyArray1::from_vec(py, seeds.iter().map(|&seed| rng::uniform(seed, counter)).collect()))
}
