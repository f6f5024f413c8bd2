//! Task selection for Python.

use agentrl_compute::select::{self, Greedy, Value};
use pyo3::prelude::*;

use super::columns::{Column, Made, made, optional, run};
use crate::arrays::{Name, Whole, slice};
use crate::error::to_python;

/// Task selection and rollout allocation.
#[pymodule(submodule, name = "select", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{
        attended, best_arms, beta_draws, drawn, greedy, independent, log_total, permuted, places, shares, successive,
        top,
    };
}

#[pyfunction]
fn places<'py>(py: Python<'py>, known: Column<'py, i64>, wanted: Column<'py, i64>) -> PyResult<Made<'py, i64>> {
    let (known, wanted) = (slice("known", &known)?, slice("wanted", &wanted)?);
    made(py, known.len(), || select::places(known, wanted))
}

#[pyfunction]
fn permuted<'py>(
    py: Python<'py>,
    total: Whole<usize>,
    count: Whole<usize>,
    key: Whole<u64>,
    taken: Column<'py, i64>,
) -> PyResult<Made<'py, i64>> {
    let (total, count, key) = (total.named("total")?, count.named("count")?, key.named("key")?);
    let taken = slice("taken", &taken)?;
    made(py, total, || select::permuted(total, count, key, taken))
}

#[pyfunction]
fn drawn<'py>(
    py: Python<'py>,
    total: Whole<usize>,
    count: Whole<usize>,
    key: Whole<u64>,
    taken: Column<'py, i64>,
) -> PyResult<Made<'py, i64>> {
    let (total, count, key) = (total.named("total")?, count.named("count")?, key.named("key")?);
    let taken = slice("taken", &taken)?;
    made(py, count, || select::drawn(total, count, key, taken))
}

#[pyfunction]
fn top<'py>(
    py: Python<'py>,
    scores: Column<'py, f64>,
    rows: Column<'py, i64>,
    count: Whole<usize>,
    key: Whole<u64>,
) -> PyResult<Made<'py, i64>> {
    let (scores, rows) = (slice("scores", &scores)?, slice("rows", &rows)?);
    let (count, key) = (count.named("count")?, key.named("key")?);
    made(py, scores.len(), || select::top(scores, rows, count, key))
}

#[pyfunction]
fn successive<'py>(
    py: Python<'py>,
    logits: Column<'py, f64>,
    rows: Column<'py, i64>,
    count: Whole<usize>,
    key: Whole<u64>,
) -> PyResult<Made<'py, i64>> {
    let (logits, rows) = (slice("logits", &logits)?, slice("rows", &rows)?);
    let (count, key) = (count.named("count")?, key.named("key")?);
    made(py, logits.len(), || select::successive(logits, rows, count, key))
}

#[pyfunction]
fn log_total<'py>(py: Python<'py>, logits: Column<'py, f64>) -> PyResult<f64> {
    let logits = slice("logits", &logits)?;
    run(py, logits.len(), || select::log_total(logits))
}

#[pyfunction]
fn independent<'py>(
    py: Python<'py>,
    weights: Column<'py, f64>,
    count: Whole<usize>,
    key: Whole<u64>,
) -> PyResult<Made<'py, i64>> {
    let weights = slice("weights", &weights)?;
    let (count, key) = (count.named("count")?, key.named("key")?);
    made(py, weights.len(), || select::independent(weights, count, key))
}

#[pyfunction]
fn beta_draws<'py>(
    py: Python<'py>,
    alpha: Column<'py, f64>,
    beta: Column<'py, f64>,
    rows: Column<'py, i64>,
    key: Whole<u64>,
) -> PyResult<Made<'py, f64>> {
    let (alpha, beta, rows) = (slice("alpha", &alpha)?, slice("beta", &beta)?, slice("rows", &rows)?);
    let key = key.named("key")?;
    // One draw takes as long as many rows of other kernels.
    made(py, alpha.len().saturating_mul(32), || select::beta_draws(alpha, beta, rows, key))
}

#[pyfunction]
fn attended<'py>(
    py: Python<'py>,
    queries: Column<'py, f64>,
    references: Column<'py, f64>,
    labels: Column<'py, f64>,
    width: Whole<usize>,
    scale: f64,
) -> PyResult<Made<'py, f64>> {
    let (queries, references, labels) =
        (slice("queries", &queries)?, slice("references", &references)?, slice("labels", &labels)?);
    let width = width.named("width")?;
    made(py, queries.len().saturating_mul(labels.len()), || select::attended(queries, references, labels, width, scale))
}

#[pyfunction]
#[pyo3(signature = (probabilities, weights, *, value, total, low, high, gain_above, rest=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn greedy<'py>(
    py: Python<'py>,
    probabilities: Column<'py, f64>,
    weights: Column<'py, f64>,
    value: Name,
    total: Whole<u64>,
    low: Whole<u32>,
    high: Whole<u32>,
    gain_above: f64,
    rest: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, u32>> {
    let (probabilities, weights) = (slice("probabilities", &probabilities)?, slice("weights", &weights)?);
    let rest = optional("rest", rest.as_ref())?;
    let value = Value::from_name(&value).map_err(to_python)?;
    let options =
        Greedy { value, total: total.named("total")?, low: low.named("low")?, high: high.named("high")?, gain_above };
    made(py, probabilities.len(), || select::greedy(probabilities, weights, rest, &options))
}

#[pyfunction]
#[pyo3(signature = (weights, *, total, low, high))]
fn shares<'py>(
    py: Python<'py>,
    weights: Column<'py, f64>,
    total: Whole<u64>,
    low: Whole<u32>,
    high: Whole<u32>,
) -> PyResult<Made<'py, u32>> {
    let weights = slice("weights", &weights)?;
    let (total, low, high) = (total.named("total")?, low.named("low")?, high.named("high")?);
    made(py, weights.len(), || select::shares(weights, total, low, high))
}

#[pyfunction]
#[pyo3(signature = (values, sizes, arms, *, total))]
fn best_arms<'py>(
    py: Python<'py>,
    values: Column<'py, f64>,
    sizes: Column<'py, u32>,
    arms: Column<'py, u32>,
    total: Whole<u64>,
) -> PyResult<Made<'py, u32>> {
    let (values, sizes, arms) = (slice("values", &values)?, slice("sizes", &sizes)?, slice("arms", &arms)?);
    let total = total.named("total")?;
    made(py, usize::MAX, || select::best_arms(values, sizes, arms, total))
}
