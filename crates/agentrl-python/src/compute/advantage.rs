//! Advantages that one call makes.

use agentrl_compute::advantage::{self, GigpoColumns, GigpoOptions, Voter};
use agentrl_compute::group::Scale;
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use super::{Floats, flags, kernel};
use crate::arrays::{Whole, slice};
use crate::error::to_python;

/// Advantages that one call makes.
#[pymodule(submodule, name = "advantage", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::gigpo;
}

#[pyfunction]
#[pyo3(signature = (episode_scores, step_returns, groups, trajectories, anchors, *, step_weight=1.0, scale="none",
    voter="step", ddof, eps=1e-6, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn gigpo<'py>(
    py: Python<'py>,
    episode_scores: Floats<'py>,
    step_returns: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    trajectories: PyReadonlyArray1<'py, u32>,
    anchors: PyReadonlyArray1<'py, u32>,
    step_weight: f64,
    scale: &str,
    voter: &str,
    ddof: Whole<u32>,
    eps: f64,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyAny>> {
    let groups = slice("groups", &groups)?;
    let trajectories = slice("trajectories", &trajectories)?;
    let anchors = slice("anchors", &anchors)?;
    let (valid, ddof) = (flags("valid", valid.as_ref())?, ddof.named("ddof")?);
    let options = || {
        Ok(GigpoOptions { step_weight, scale: Scale::from_name(scale)?, voter: Voter::from_name(voter)?, ddof, eps })
    };
    let options = options().map_err(to_python)?;
    kernel!(py, [episode_scores, step_returns], |out| {
        let columns = GigpoColumns { episode_scores, step_returns, groups, trajectories, anchors, valid };
        advantage::gigpo(&columns, &options, out)
    })
}
