//! Filters for Python: masks of rows and groups.

use agentrl_compute::filters::{self, GroupBand};
use pyo3::prelude::*;

use super::columns::{Column, Made, made, optional};
use crate::arrays::{Whole, slice};

/// Masks of the rows and groups that stay.
#[pymodule(submodule, name = "filters", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{group_band, round_rows, top_groups};
}

#[pyfunction]
#[pyo3(signature = (scores, groups, *, std_above, ddof, at_least, at_most, members_at_least, accept_single, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn group_band<'py>(
    py: Python<'py>,
    scores: Column<'py, f64>,
    groups: Column<'py, u32>,
    std_above: Option<f64>,
    ddof: Whole<u32>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    members_at_least: Whole<u64>,
    accept_single: bool,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, bool>> {
    let (scores, groups) = (slice("scores", &scores)?, slice("groups", &groups)?);
    let valid = optional("valid", valid.as_ref())?;
    let (ddof, members_at_least) = (ddof.named("ddof")?, members_at_least.named("members_at_least")?);
    let band = GroupBand { std_above, ddof, at_least, at_most, members_at_least, accept_single };
    made(py, scores.len(), || filters::group_band(scores, groups, valid, &band))
}

#[pyfunction]
#[pyo3(signature = (scores, groups, *, fraction, ddof, valid=None))]
fn top_groups<'py>(
    py: Python<'py>,
    scores: Column<'py, f64>,
    groups: Column<'py, u32>,
    fraction: f64,
    ddof: Whole<u32>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, bool>> {
    let (scores, groups) = (slice("scores", &scores)?, slice("groups", &groups)?);
    let (valid, ddof) = (optional("valid", valid.as_ref())?, ddof.named("ddof")?);
    made(py, scores.len(), || filters::top_groups(scores, groups, valid, ddof, fraction))
}

#[pyfunction]
#[pyo3(signature = (keep, scores, *, multiple, up, valid=None))]
fn round_rows<'py>(
    py: Python<'py>,
    keep: Column<'py, bool>,
    scores: Column<'py, f64>,
    multiple: Whole<usize>,
    up: bool,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, bool>> {
    let (keep, scores) = (slice("keep", &keep)?, slice("scores", &scores)?);
    let (valid, multiple) = (optional("valid", valid.as_ref())?, multiple.named("multiple")?);
    made(py, keep.len(), || filters::round_rows(keep, scores, valid, multiple, up))
}
