//! Advantages computed by a single call.

use agentrl_compute::advantage::{self, GigpoColumns, GigpoOptions, Voter};
use agentrl_compute::group::Scale;
use pyo3::prelude::*;

use super::columns::{Column, Made, made, optional};
use super::keys::labels;
use crate::arrays::{Name, Whole, slice};

/// Advantages computed by a single call.
#[pymodule(submodule, name = "advantage", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::gigpo;
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "all options of Python's function")]
fn gigpo<'py>(
    py: Python<'py>,
    episode_scores: Column<'py, f64>,
    group_ids: &Bound<'py, PyAny>,
    trajectory_ids: &Bound<'py, PyAny>,
    steps: Column<'py, i64>,
    state_keys: &Bound<'py, PyAny>,
    step_rewards: Column<'py, f64>,
    gamma: f64,
    step_weight: f64,
    scale: Name,
    voter: Name,
    ddof: Whole<u32>,
    eps: f64,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, f64>> {
    let (episode_scores, paid) = (slice("rewards", &episode_scores)?, slice("step_rewards", &step_rewards)?);
    let (groups, trajectories) = (labels(py, group_ids, "group_ids")?, labels(py, trajectory_ids, "trajectory_ids")?);
    let (anchors, steps) = (labels(py, state_keys, "state_keys")?, slice("steps", &steps)?);
    let (groups, trajectories) = (groups.slice("group_ids")?, trajectories.slice("trajectory_ids")?);
    let (anchors, valid) = (anchors.slice("state_keys")?, optional("valid", valid.as_ref())?);
    let ddof = ddof.named("ddof")?;
    made(py, episode_scores.len(), || {
        let (scale, voter) = (Scale::from_name(&scale)?, Voter::from_name(&voter)?);
        let step_returns = &advantage::step_returns(paid, trajectories, steps, gamma)?;
        let columns = GigpoColumns { episode_scores, step_returns, groups, trajectories, anchors, valid };
        let mut out = vec![0.0; episode_scores.len()];
        advantage::gigpo(&columns, &GigpoOptions { step_weight, scale, voter, ddof, eps }, &mut out)?;
        Ok(out)
    })
}
