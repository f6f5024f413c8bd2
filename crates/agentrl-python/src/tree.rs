//! The token tree and the frontier for Python.

use agentrl_data::batch;
use agentrl_data::forest::Frontier;
use numpy::{IntoPyArray as _, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::Whole;
use crate::enter::held;

type Array<'py, T> = Bound<'py, PyArray1<T>>;

/// Nodes of token trees and the shape that their parents make.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct Tree(pub(crate) batch::Tree);

impl Tree {
    fn answer<'py>(
        &self,
        py: Python<'py>,
        node: Whole<i64>,
        ask: impl FnOnce(&batch::Tree, i64) -> agentrl_data::Result<Vec<i64>>,
    ) -> PyResult<Array<'py, i64>> {
        let node = node.named("node")?;
        Ok(held(|| ask(&self.0, node))?.into_pyarray(py))
    }
}

#[pymethods]
impl Tree {
    #[getter]
    fn node<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        PyArray1::from_slice(py, self.0.nodes())
    }

    #[getter]
    fn parent<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.0.parents().into_pyarray(py)
    }

    #[getter]
    fn depth<'py>(&self, py: Python<'py>) -> Array<'py, u32> {
        PyArray1::from_slice(py, self.0.topology().depths())
    }

    #[getter]
    fn leaf_count<'py>(&self, py: Python<'py>) -> Array<'py, u32> {
        self.0.topology().leaf_counts().into_pyarray(py)
    }

    #[getter]
    fn enter<'py>(&self, py: Python<'py>) -> Array<'py, u32> {
        PyArray1::from_slice(py, self.0.topology().enter())
    }

    #[getter]
    fn exit<'py>(&self, py: Python<'py>) -> Array<'py, u32> {
        PyArray1::from_slice(py, self.0.topology().exit())
    }

    #[getter]
    fn preorder<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.0.preorder().into_pyarray(py)
    }

    #[getter]
    fn leaves<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.0.leaves().into_pyarray(py)
    }

    fn path<'py>(&self, py: Python<'py>, node: Whole<i64>) -> PyResult<Array<'py, i64>> {
        self.answer(py, node, batch::Tree::path)
    }

    fn ancestors<'py>(&self, py: Python<'py>, node: Whole<i64>) -> PyResult<Array<'py, i64>> {
        self.answer(py, node, batch::Tree::ancestors)
    }

    fn children<'py>(&self, py: Python<'py>, node: Whole<i64>) -> PyResult<Array<'py, i64>> {
        self.answer(py, node, batch::Tree::children)
    }

    fn subtree<'py>(&self, py: Python<'py>, node: Whole<i64>) -> PyResult<Array<'py, i64>> {
        self.answer(py, node, batch::Tree::subtree)
    }

    fn lowest_common_ancestor(&self, first: Whole<i64>, second: Whole<i64>) -> PyResult<Option<i64>> {
        let (first, second) = (first.named("first")?, second.named("second")?);
        held(|| self.0.lowest_common_ancestor(first, second))
    }

    fn __len__(&self) -> usize {
        self.0.nodes().len()
    }
}

/// The columns of a frontier by name.
pub(crate) fn frontier_columns(py: Python<'_>, frontier: Frontier) -> PyResult<Bound<'_, PyDict>> {
    let columns = PyDict::new(py);
    columns.set_item("trajectory", frontier.trajectory.into_pyarray(py))?;
    columns.set_item("group", frontier.group.into_pyarray(py))?;
    columns.set_item("node", frontier.node.into_pyarray(py))?;
    columns.set_item("end", frontier.end.into_pyarray(py))?;
    columns.set_item("length", frontier.length.into_pyarray(py))?;
    columns.set_item("steps", frontier.steps.into_pyarray(py))?;
    columns.set_item("context", frontier.context.into_pyarray(py))?;
    Ok(columns)
}
