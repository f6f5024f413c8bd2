//! Trees for Python: construction, and credit assignment along them.

use agentrl_compute::group::Singleton;
use agentrl_compute::ragged::Ragged;
use agentrl_compute::tree::{self, AncestorOptions, Fusion, Peers, Radius, Rows, Topology, Weighting};
use numpy::PyArray1;
use pyo3::prelude::*;

use super::columns::{Column, Made, made, optional, run};
use super::keys;
use crate::arrays::{Name, slice};

/// Trees as columns, and credit assignment along them.
#[pymodule(submodule, name = "tree", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{ancestor_relative, build, fuse, isotonic, peers};
}

#[pyfunction]
fn build<'py>(
    py: Python<'py>,
    elements: Column<'py, i64>,
    offsets: Column<'py, i64>,
) -> PyResult<(Made<'py, i64>, Made<'py, u32>)> {
    let (elements, offsets) = (slice("elements", &elements)?, slice("offsets", &offsets)?);
    let built = run(py, elements.len(), || tree::build(Ragged::new(elements, offsets)?))?;
    Ok((PyArray1::from_vec(py, built.parents), PyArray1::from_vec(py, built.nodes)))
}

#[pyfunction]
#[pyo3(signature = (parents, nodes, values, *, kind, alpha, expectile, edge_logprobs=None, weights=None, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn fuse<'py>(
    py: Python<'py>,
    parents: Column<'py, i64>,
    nodes: &Bound<'py, PyAny>,
    values: Column<'py, f64>,
    kind: Name,
    alpha: f64,
    expectile: f64,
    edge_logprobs: Option<Column<'py, f64>>,
    weights: Option<Column<'py, f64>>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<(Made<'py, f64>, Made<'py, f64>)> {
    let parents = slice("parents", &parents)?;
    let nodes = keys::rows(nodes, "nodes")?;
    let rows = rows(nodes.slice("nodes")?, &values, weights.as_ref(), valid.as_ref())?;
    let logprobs = optional("edge_logprobs", edge_logprobs.as_ref())?;
    let fused = run(py, parents.len().max(rows.nodes.len()), || {
        tree::fuse(&Topology::new(parents)?, &rows, Fusion::from_name(&kind, alpha, expectile)?, logprobs)
    })?;
    Ok((PyArray1::from_vec(py, fused.values), PyArray1::from_vec(py, fused.masses)))
}

fn rows<'a>(
    nodes: &'a [u32],
    values: &'a Column<'_, f64>,
    weights: Option<&'a Column<'_, f64>>,
    valid: Option<&'a Column<'_, bool>>,
) -> PyResult<Rows<'a>> {
    Ok(Rows {
        nodes,
        values: slice("values", values)?,
        weights: optional("weights", weights)?,
        valid: optional("valid", valid)?,
    })
}

#[pyfunction]
#[pyo3(signature = (parents, nodes, values, *, weighting, drop_constant, singleton, weights=None, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
fn ancestor_relative<'py>(
    py: Python<'py>,
    parents: Column<'py, i64>,
    nodes: &Bound<'py, PyAny>,
    values: Column<'py, f64>,
    weighting: Name,
    drop_constant: bool,
    singleton: Name,
    weights: Option<Column<'py, f64>>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, f64>> {
    let parents = slice("parents", &parents)?;
    let nodes = keys::rows(nodes, "nodes")?;
    let rows = rows(nodes.slice("nodes")?, &values, weights.as_ref(), valid.as_ref())?;
    made(py, parents.len().max(rows.nodes.len()), || {
        let (weighting, singleton) = (Weighting::from_name(&weighting)?, Singleton::from_name(&singleton)?);
        let options = AncestorOptions { weighting, drop_constant, singleton };
        tree::ancestor_relative(&Topology::new(parents)?, &rows, &options)
    })
}

#[pyfunction]
fn peers<'py>(py: Python<'py>, parents: Column<'py, i64>, kind: Name) -> PyResult<Made<'py, u32>> {
    let parents = slice("parents", &parents)?;
    made(py, parents.len(), || tree::peers(&Topology::new(parents)?, Peers::from_name(&kind)?))
}

#[pyfunction]
#[pyo3(signature = (parents, values, *, margin, radius, weights=None, valid=None))]
fn isotonic<'py>(
    py: Python<'py>,
    parents: Column<'py, i64>,
    values: Column<'py, f64>,
    margin: f64,
    radius: Name,
    weights: Option<Column<'py, f64>>,
    valid: Option<Column<'py, bool>>,
) -> PyResult<Made<'py, f64>> {
    let (parents, values) = (slice("parents", &parents)?, slice("values", &values)?);
    let (weights, valid) = (optional("weights", weights.as_ref())?, optional("valid", valid.as_ref())?);
    made(py, parents.len(), || {
        tree::isotonic(&Topology::new(parents)?, values, weights, valid, margin, Radius::from_name(&radius)?)
    })
}
