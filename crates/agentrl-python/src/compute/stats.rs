//! Statistics of scores over runs, for Python.

use agentrl_compute::stats::{self, Statistic};
use pyo3::prelude::*;

use super::columns::{Column, Made, made, run};
use crate::arrays::{Whole, slice};
use crate::error::to_python;

/// Statistics of scores over runs.
#[pymodule(submodule, name = "stats", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{bootstrap, detectable_effect, improvement, improvements, sign_flip, statistic};
}

fn kind(name: &str) -> PyResult<Statistic> {
    Statistic::from_name(name).map_err(to_python)
}

#[pyfunction]
fn statistic(
    py: Python<'_>,
    scores: Column<'_, f64>,
    tasks: Whole<usize>,
    statistic: &str,
    threshold: f64,
) -> PyResult<f64> {
    let (scores, tasks, kind) = (slice("scores", &scores)?, tasks.named("tasks")?, kind(statistic)?);
    run(py, scores.len(), || stats::statistic(scores, tasks, kind, threshold))
}

#[pyfunction]
fn bootstrap<'py>(
    py: Python<'py>,
    scores: Column<'py, f64>,
    tasks: Whole<usize>,
    statistic: &str,
    threshold: f64,
    resamples: Whole<usize>,
    seed: Whole<u64>,
) -> PyResult<Made<'py, f64>> {
    let (scores, tasks, kind) = (slice("scores", &scores)?, tasks.named("tasks")?, kind(statistic)?);
    let (resamples, seed) = (resamples.named("resamples")?, seed.named("seed")?);
    made(py, resamples.saturating_mul(scores.len()), || {
        stats::bootstrap(scores, tasks, kind, threshold, resamples, seed)
    })
}

#[pyfunction]
fn improvement(py: Python<'_>, first: Column<'_, f64>, second: Column<'_, f64>, tasks: Whole<usize>) -> PyResult<f64> {
    let (first, second, tasks) = (slice("first", &first)?, slice("second", &second)?, tasks.named("tasks")?);
    run(py, first.len().saturating_mul(second.len()), || stats::improvement(first, second, tasks))
}

#[pyfunction]
fn improvements<'py>(
    py: Python<'py>,
    first: Column<'py, f64>,
    second: Column<'py, f64>,
    tasks: Whole<usize>,
    resamples: Whole<usize>,
    seed: Whole<u64>,
) -> PyResult<Made<'py, f64>> {
    let (first, second, tasks) = (slice("first", &first)?, slice("second", &second)?, tasks.named("tasks")?);
    let (resamples, seed) = (resamples.named("resamples")?, seed.named("seed")?);
    made(py, resamples.saturating_mul(first.len()), || stats::improvements(first, second, tasks, resamples, seed))
}

#[pyfunction]
fn sign_flip(py: Python<'_>, differences: Column<'_, f64>, resamples: Whole<usize>, seed: Whole<u64>) -> PyResult<f64> {
    let differences = slice("differences", &differences)?;
    let (resamples, seed) = (resamples.named("resamples")?, seed.named("seed")?);
    run(py, resamples.saturating_mul(differences.len()), || stats::sign_flip(differences, resamples, seed))
}

#[pyfunction]
fn detectable_effect(
    py: Python<'_>,
    pairs: Whole<usize>,
    alpha: f64,
    power: f64,
    simulations: Whole<usize>,
    seed: Whole<u64>,
) -> PyResult<f64> {
    let (pairs, simulations) = (pairs.named("pairs")?, simulations.named("simulations")?);
    let seed = seed.named("seed")?;
    run(py, usize::MAX, || stats::detectable_effect(pairs, alpha, power, simulations, seed))
}
