//! Weights for Python: denominators, selectors and importance ratios.

use agentrl_compute::group::Columns;
use agentrl_compute::quantile::Interpolation;
use agentrl_compute::ragged::Ragged;
use agentrl_compute::weight::{
    self, AboveQuantile, Action, Aggregate, Amount, Divergence, ImportanceOptions, Level, Quota, Ratios, Shared, Ties,
    Top, TrustRegion,
};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::columns::{Column, Made, made, optional, run};
use super::{Floats, filled, floats, kernel, reduced};
use crate::arrays::{Name, Whole, slice};
use crate::error::to_python;

/// Denominators, selections and importance ratios.
#[pymodule(submodule, name = "weight", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{
        above_quantile, conflict_tokens, importance, importance_diagnostics, max_variance, quota, shares, top,
        trust_region, weights_of_rows,
    };
}

#[pyfunction]
fn shares<'py>(
    py: Python<'py>,
    step_keys: Column<'py, u32>,
    draws: Column<'py, u32>,
    valid: Column<'py, bool>,
    shared: Name,
) -> PyResult<Made<'py, f64>> {
    let (keys, draws) = (slice("step_keys", &step_keys)?, slice("draws", &draws)?);
    let valid = slice("valid", &valid)?;
    made(py, keys.len(), || weight::shares(keys, draws, valid, Shared::from_name(&shared)?))
}

/// Return the weight of each token, row after row, `float64[tokens]`. None among `units` means that each row is a unit.
#[pyfunction]
fn weights_of_rows<'py>(
    py: Python<'py>,
    lengths: Column<'py, i64>,
    units: Vec<Option<Column<'py, u32>>>,
    constant: Option<f64>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, f64>> {
    let (lengths, valid) = (slice("lengths", &lengths)?, optional("valid", valid.as_ref())?);
    let own: Vec<u32> =
        if units.iter().any(Option::is_none) { (0..).take(lengths.len()).collect() } else { Vec::new() };
    let unit = |unit| Ok(optional("units", unit)?.unwrap_or(&own));
    let units: Vec<&[u32]> = units.iter().map(|of_rows| unit(of_rows.as_ref())).collect::<PyResult<_>>()?;
    made(py, lengths.len().saturating_mul(64), || weight::weights_of_rows(lengths, valid, &units, constant))
}

#[pyfunction]
#[pyo3(signature = (scores, groups, *, count, fraction, rounding, at_least, largest, ties, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn top<'py>(
    py: Python<'py>,
    scores: Floats<'py>,
    groups: Option<Column<'py, u32>>,
    count: Option<Whole<usize>>,
    fraction: Option<f64>,
    rounding: Name,
    at_least: Whole<usize>,
    largest: bool,
    ties: Name,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, bool>> {
    let (groups, valid) = (optional("groups", groups.as_ref())?, optional("valid", valid.as_ref())?);
    let amount = amount(count, fraction, rounding, at_least)?;
    let ties = Ties::from_name(&ties).map_err(to_python)?;
    let options = Top { amount, largest, ties };
    let chosen = reduced!(
        py,
        [scores],
        match groups {
            None => weight::best("scores", scores, valid, &options),
            Some(groups) => weight::top(&Columns { valid, ..Columns::new("scores", scores, groups) }, &options),
        }
    )?;
    Ok(PyArray1::from_vec(py, chosen))
}

fn amount(
    count: Option<Whole<usize>>,
    fraction: Option<f64>,
    rounding: Name,
    at_least: Whole<usize>,
) -> PyResult<Amount> {
    let count = count.map(|count| count.named("count")).transpose()?;
    Amount::from_options(count, fraction, &rounding, at_least.named("at_least")?).map_err(to_python)
}

#[pyfunction]
#[pyo3(signature = (scores, groups, *, q, interpolation, strict, valid=None))]
fn above_quantile<'py>(
    py: Python<'py>,
    scores: Floats<'py>,
    groups: Column<'py, u32>,
    q: f64,
    interpolation: Name,
    strict: bool,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, bool>> {
    let (groups, valid) = (slice("groups", &groups)?, optional("valid", valid.as_ref())?);
    let interpolation = Interpolation::from_name(&interpolation).map_err(to_python)?;
    let options = AboveQuantile { q, interpolation, strict };
    let chosen = reduced!(
        py,
        [scores],
        weight::above_quantile(&Columns { valid, ..Columns::new("scores", scores, groups) }, &options)
    )?;
    Ok(PyArray1::from_vec(py, chosen))
}

#[pyfunction]
#[pyo3(signature = (scores, groups, *, count, fraction, rounding, at_least, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn max_variance<'py>(
    py: Python<'py>,
    scores: Column<'py, f64>,
    groups: Column<'py, u32>,
    count: Option<Whole<usize>>,
    fraction: Option<f64>,
    rounding: Name,
    at_least: Whole<usize>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, bool>> {
    let (scores, groups) = (slice("scores", &scores)?, slice("groups", &groups)?);
    let valid = optional("valid", valid.as_ref())?;
    let amount = amount(count, fraction, rounding, at_least)?;
    let columns = Columns { valid, ..Columns::new("scores", scores, groups) };
    made(py, scores.len(), || weight::max_variance_subset(&columns, amount))
}

#[pyfunction]
#[pyo3(signature = (penalties, success, groups, ids, *, target, at_least, seed, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn quota<'py>(
    py: Python<'py>,
    penalties: Column<'py, f64>,
    success: Column<'py, bool>,
    groups: Column<'py, u32>,
    ids: Column<'py, i64>,
    target: Whole<usize>,
    at_least: Whole<usize>,
    seed: Option<Whole<u64>>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, bool>> {
    let (penalties, success) = (slice("penalties", &penalties)?, slice("success", &success)?);
    let (groups, ids) = (slice("groups", &groups)?, slice("ids", &ids)?);
    let valid = optional("valid", valid.as_ref())?;
    let least = at_least.named("at_least")?;
    let options = Quota {
        target: target.named("target")?,
        at_least: (least, least),
        seed: seed.map(|seed| seed.named("seed")).transpose()?,
    };
    let columns = Columns { valid, ..Columns::new("scores", penalties, groups) };
    made(py, penalties.len(), || weight::quota(&columns, success, ids, &options))
}

#[pyfunction]
fn conflict_tokens<'py>(
    py: Python<'py>,
    tokens: Column<'py, i32>,
    offsets: Column<'py, i64>,
    groups: Column<'py, u32>,
    advantages: Column<'py, f64>,
) -> PyResult<(Made<'py, bool>, Made<'py, bool>)> {
    let (tokens, offsets) = (slice("tokens", &tokens)?, slice("offsets", &offsets)?);
    let (groups, advantages) = (slice("groups", &groups)?, slice("advantages", &advantages)?);
    let found = run(py, tokens.len(), || weight::conflict_tokens(Ragged::new(tokens, offsets)?, groups, advantages))?;
    Ok((PyArray1::from_vec(py, found.prefix), PyArray1::from_vec(py, found.suffix)))
}

#[pyfunction]
#[pyo3(signature = (log_ratios, offsets, *, level, at_least, at_most, kind, steps=None, mask=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn importance<'py>(
    py: Python<'py>,
    log_ratios: Floats<'py>,
    offsets: Column<'py, i64>,
    level: Name,
    at_least: Option<f64>,
    at_most: Option<f64>,
    kind: Name,
    steps: Option<Column<'py, i64>>,
    mask: Option<Column<'py, bool>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (offsets, mask) = (slice("offsets", &offsets)?, optional("mask", mask.as_ref())?);
    let steps = optional("steps", steps.as_ref())?;
    let level = Level::from_name(&level).map_err(to_python)?;
    let action = Action::from_name(&kind).map_err(to_python)?;
    let options = ImportanceOptions { level, steps, at_least, at_most, action };
    kernel!(py, [log_ratios], |out| {
        weight::importance_weights(&Ratios { log_ratios, offsets, mask }, &options, out)
    })
}

#[pyfunction]
#[pyo3(signature = (log_ratios, offsets, *, kind, aggregate, at_least, at_most, mask=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn trust_region<'py>(
    py: Python<'py>,
    log_ratios: Floats<'py>,
    offsets: Column<'py, i64>,
    kind: Name,
    aggregate: Name,
    at_least: Option<f64>,
    at_most: f64,
    mask: Option<Column<'py, bool>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (offsets, mask) = (slice("offsets", &offsets)?, optional("mask", mask.as_ref())?);
    let divergence = Divergence::from_name(&kind).map_err(to_python)?;
    let aggregate = Aggregate::from_name(&aggregate).map_err(to_python)?;
    let region = TrustRegion { divergence, aggregate, at_least, at_most };
    floats!([log_ratios], _Type => filled(py, None, log_ratios.len(), |out| {
        weight::trust_region(&Ratios { log_ratios, offsets, mask }, &region, out)
    }))
}

#[pyfunction]
#[pyo3(signature = (log_ratios, offsets, *, mask=None))]
fn importance_diagnostics<'py>(
    py: Python<'py>,
    log_ratios: Floats<'py>,
    offsets: Column<'py, i64>,
    mask: Option<Column<'py, bool>>,
) -> PyResult<Bound<'py, PyDict>> {
    let (offsets, mask) = (slice("offsets", &offsets)?, optional("mask", mask.as_ref())?);
    let found = reduced!(py, [log_ratios], weight::importance_diagnostics(&Ratios { log_ratios, offsets, mask }))?;
    let numbers = PyDict::new(py);
    for (name, value) in [
        ("effective_sample_size", found.effective_sample_size),
        ("effective_fraction", found.effective_fraction),
        ("k1", found.k1),
        ("k2", found.k2),
        ("k3", found.k3),
        ("chi_squared_token", found.chi_squared_token),
        ("chi_squared_sequence", found.chi_squared_sequence),
        ("ratio_max", found.ratio_max),
        ("ratio_min", found.ratio_min),
    ] {
        numbers.set_item(name, value)?;
    }
    numbers.set_item("rows", found.rows)?;
    numbers.set_item("tokens", found.tokens)?;
    Ok(numbers)
}
