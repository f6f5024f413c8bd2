//! Returns and advantages over time.

use agentrl_compute::returns::{self, Align, Gae, Paths, TokenBaseline, VTrace};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use super::columns::made;
use super::keys::labels;
use super::{Floats, flags, kernel};
use crate::arrays::{Name, Whole, slice};
use crate::error::to_python;

/// Returns and advantages over time.
#[pymodule(submodule, name = "returns", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{discounted, gae, n_step, optimal_token_baseline, v_trace};
}

/// Return sequences with their masks; an empty `bootstrap` means none.
fn paths<'a, T>(
    offsets: &'a [i64],
    mask: Option<&'a [bool]>,
    ends: Option<&'a [bool]>,
    bootstrap: &'a [T],
) -> Paths<'a, T> {
    Paths { offsets, mask, ends, bootstrap: (!bootstrap.is_empty()).then_some(bootstrap) }
}

#[pyfunction]
#[pyo3(signature = (rewards, offsets, bootstrap, gamma, *, mask=None, ends=None, out=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn discounted<'py>(
    py: Python<'py>,
    rewards: Floats<'py>,
    offsets: PyReadonlyArray1<'py, i64>,
    bootstrap: Floats<'py>,
    gamma: f64,
    mask: Option<PyReadonlyArray1<'py, bool>>,
    ends: Option<PyReadonlyArray1<'py, bool>>,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (offsets, mask) = (slice("offsets", &offsets)?, flags("mask", mask.as_ref())?);
    let ends = flags("ends", ends.as_ref())?;
    kernel!(py, out.as_ref(), 1 * [rewards, bootstrap], |out| {
        returns::discounted(rewards, &paths(offsets, mask, ends, bootstrap), gamma, out)
    })
}

#[pyfunction]
#[pyo3(signature = (rewards, values, offsets, bootstrap, gamma, lam, *, whiten=None, mask=None, ends=None, out=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn gae<'py>(
    py: Python<'py>,
    rewards: Floats<'py>,
    values: Floats<'py>,
    offsets: PyReadonlyArray1<'py, i64>,
    bootstrap: Floats<'py>,
    gamma: f64,
    lam: f64,
    whiten: Option<f64>,
    mask: Option<PyReadonlyArray1<'py, bool>>,
    ends: Option<PyReadonlyArray1<'py, bool>>,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (offsets, mask) = (slice("offsets", &offsets)?, flags("mask", mask.as_ref())?);
    let ends = flags("ends", ends.as_ref())?;
    let options = Gae { gamma, lam, whiten };
    kernel!(py, out.as_ref(), 2 * [rewards, values, bootstrap], |out| {
        let (advantages, targets) = out.split_at_mut(rewards.len());
        let paths = paths(offsets, mask, ends, bootstrap);
        returns::gae(rewards, values, &paths, &options, [advantages, targets])
    })
}

#[pyfunction]
#[pyo3(signature = (rewards, values, log_ratios, offsets, bootstrap, gamma, lam, rho_at_most, c_at_most, *, mask=None, ends=None,
    out=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn v_trace<'py>(
    py: Python<'py>,
    rewards: Floats<'py>,
    values: Floats<'py>,
    log_ratios: Floats<'py>,
    offsets: PyReadonlyArray1<'py, i64>,
    bootstrap: Floats<'py>,
    gamma: f64,
    lam: f64,
    rho_at_most: f64,
    c_at_most: f64,
    mask: Option<PyReadonlyArray1<'py, bool>>,
    ends: Option<PyReadonlyArray1<'py, bool>>,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (offsets, mask) = (slice("offsets", &offsets)?, flags("mask", mask.as_ref())?);
    let ends = flags("ends", ends.as_ref())?;
    let options = VTrace { gamma, lam, rho_at_most, c_at_most };
    kernel!(py, out.as_ref(), 2 * [rewards, values, log_ratios, bootstrap], |out| {
        let (advantages, targets) = out.split_at_mut(rewards.len());
        let paths = paths(offsets, mask, ends, bootstrap);
        returns::v_trace(rewards, values, log_ratios, &paths, &options, [advantages, targets])
    })
}

#[pyfunction]
#[pyo3(signature = (rewards, values, offsets, bootstrap, gamma, steps, *, mask=None, ends=None, out=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn n_step<'py>(
    py: Python<'py>,
    rewards: Floats<'py>,
    values: Floats<'py>,
    offsets: PyReadonlyArray1<'py, i64>,
    bootstrap: Floats<'py>,
    gamma: f64,
    steps: Whole<usize>,
    mask: Option<PyReadonlyArray1<'py, bool>>,
    ends: Option<PyReadonlyArray1<'py, bool>>,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (offsets, mask) = (slice("offsets", &offsets)?, flags("mask", mask.as_ref())?);
    let (ends, steps) = (flags("ends", ends.as_ref())?, steps.named("steps")?);
    kernel!(py, out.as_ref(), 1 * [rewards, values, bootstrap], |out| {
        returns::n_step(rewards, values, &paths(offsets, mask, ends, bootstrap), gamma, steps, out)
    })
}

#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "all options of Python's function")]
fn optimal_token_baseline<'py>(
    py: Python<'py>,
    returns: PyReadonlyArray1<'py, f64>,
    energies: PyReadonlyArray1<'py, f64>,
    offsets: PyReadonlyArray1<'py, i64>,
    group_ids: &Bound<'py, PyAny>,
    align: Name,
    eps: f64,
    zero_tail: bool,
    mask: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let (returns, energies) = (slice("returns", &returns)?, slice("energies", &energies)?);
    let (offsets, groups) = (slice("offsets", &offsets)?, labels(py, group_ids, "group_ids")?);
    let groups = groups.slice("group_ids")?;
    let options = TokenBaseline { align: Align::from_name(&align).map_err(to_python)?, eps, zero_tail };
    let paths = paths(offsets, flags("mask", mask.as_ref())?, None, &[]);
    made(py, returns.len(), || returns::optimal_token_baseline(returns, energies, &paths, groups, &options))
}
