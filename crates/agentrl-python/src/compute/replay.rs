//! Replay for Python: a sum tree, races, ranks and pairs.

use agentrl_compute::replay::{self, Matching, Normalise, Pairing};
use numpy::PyArray1;
use pyo3::prelude::*;

use super::columns::{Column, Made, made, optional, run};
use crate::arrays::{Name, Whole, slice};
use crate::enter::{held, released};
use crate::error::to_python;
use crate::fork_safe_lock::Shared;

/// Sampling of stored rows.
#[pymodule(submodule, name = "replay", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{SumTree, importance, pairs, race, rank_weights};
}

/// Sum tree of the priorities of rows.
#[pyclass(frozen, module = "agentrl_core._core.replay")]
pub(crate) struct SumTree(Shared<replay::SumTree>);

#[pymethods]
impl SumTree {
    #[new]
    #[pyo3(signature = (priorities, *, exponent=1.0))]
    fn new(py: Python<'_>, priorities: Column<'_, f64>, exponent: f64) -> PyResult<Self> {
        let priorities = slice("priorities", &priorities)?;
        let tree = run(py, priorities.len(), || replay::SumTree::new(priorities, exponent))?;
        Ok(Self(Shared::new("SumTree", tree)))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.attached(py).map_err(to_python)?.len())
    }

    #[getter]
    fn total(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.0.attached(py).map_err(to_python)?.total())
    }

    fn update(&self, py: Python<'_>, rows: Column<'_, i64>, priorities: Column<'_, f64>) -> PyResult<()> {
        let (rows, priorities) = (slice("rows", &rows)?, slice("priorities", &priorities)?);
        let mut tree = self.0.attached(py).map_err(to_python)?;
        held(|| tree.update(rows, priorities))
    }

    fn remove(&self, py: Python<'_>, rows: Column<'_, i64>) -> PyResult<()> {
        let rows = slice("rows", &rows)?;
        let mut tree = self.0.attached(py).map_err(to_python)?;
        held(|| tree.remove(rows))
    }

    #[pyo3(signature = (count, key, *, stratified=true))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        count: Whole<usize>,
        key: Whole<u64>,
        stratified: bool,
    ) -> PyResult<Made<'py, i64>> {
        let (count, key) = (count.named("count")?, key.named("key")?);
        let rows = released(py, || self.0.detached()?.sample(count, key, stratified))?;
        Ok(PyArray1::from_vec(py, rows))
    }

    fn probabilities<'py>(&self, py: Python<'py>, rows: Column<'py, i64>) -> PyResult<Made<'py, f64>> {
        let rows = slice("rows", &rows)?;
        let mut tree = self.0.attached(py).map_err(to_python)?;
        Ok(PyArray1::from_vec(py, held(|| tree.probabilities(rows))?))
    }

    fn weights<'py>(
        &self,
        py: Python<'py>,
        rows: Column<'py, i64>,
        beta: f64,
        normalise: Name,
    ) -> PyResult<Made<'py, f64>> {
        let rows = slice("rows", &rows)?;
        let mut tree = self.0.attached(py).map_err(to_python)?;
        let weights = held(|| tree.weights(rows, beta, Normalise::from_name(&normalise)?))?;
        Ok(PyArray1::from_vec(py, weights))
    }
}

#[pyfunction]
fn importance<'py>(
    py: Python<'py>,
    probabilities: Column<'py, f64>,
    rows: Whole<usize>,
    beta: f64,
) -> PyResult<Made<'py, f64>> {
    let (probabilities, rows) = (slice("probabilities", &probabilities)?, rows.named("rows")?);
    made(py, probabilities.len(), || replay::importance(probabilities, rows, beta, Normalise::None, 1.0))
}

#[pyfunction]
#[pyo3(signature = (ids, weights=None, *, key))]
fn race<'py>(
    py: Python<'py>,
    ids: Column<'py, i64>,
    weights: Option<Column<'py, f64>>,
    key: Whole<u64>,
) -> PyResult<Made<'py, f64>> {
    let (ids, weights) = (slice("ids", &ids)?, optional("weights", weights.as_ref())?);
    let key = key.named("key")?;
    made(py, ids.len(), || replay::race(ids, weights, key))
}

#[pyfunction]
fn rank_weights<'py>(py: Python<'py>, priorities: Column<'py, f64>) -> PyResult<Made<'py, f64>> {
    let priorities = slice("priorities", &priorities)?;
    made(py, priorities.len(), || replay::rank_weights(priorities))
}

#[pyfunction]
#[pyo3(signature = (scores, groups, *, matching, margin, at_most=None, lengths=None, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn pairs<'py>(
    py: Python<'py>,
    scores: Column<'py, f64>,
    groups: Column<'py, u32>,
    matching: Name,
    margin: f64,
    at_most: Option<Whole<usize>>,
    lengths: Option<Column<'py, f64>>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<(Made<'py, i64>, Made<'py, i64>)> {
    let (scores, groups) = (slice("scores", &scores)?, slice("groups", &groups)?);
    let (lengths, valid) = (optional("lengths", lengths.as_ref())?, optional("valid", valid.as_ref())?);
    let at_most = at_most.map(|at_most| at_most.named("at_most")).transpose()?;
    let found = run(py, scores.len(), || {
        let options = Pairing { matching: Matching::from_name(&matching)?, margin, at_most };
        replay::pairs(scores, groups, lengths, valid, &options)
    })?;
    let (better, worse): (Vec<i64>, Vec<i64>) = found.into_iter().unzip();
    Ok((PyArray1::from_vec(py, better), PyArray1::from_vec(py, worse)))
}
