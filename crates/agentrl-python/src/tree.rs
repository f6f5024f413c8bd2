//! The token tree and the frontier for Python.

use agentrl_data::batch;
use agentrl_data::forest::Frontier;
use numpy::{IntoPyArray as _, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::Whole;
use crate::enter::held;

type Array<'py, T> = Bound<'py, PyArray1<T>>;

/// Nodes of token trees, one row per node, and the topology that their parents define.
///
/// Returned by `Forest.tree(group)`, which identifies nodes by handles, and by `Batch.tree()`, which identifies them by
/// ids. Columns are `NumPy` arrays with one value per node. Queries about one node take and return handles or ids.
/// Everything is computed in O(nodes); a lowest common ancestor takes O(log depth).
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
    /// `int64[nodes]`: handle or id of each node.
    #[getter]
    fn node<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        PyArray1::from_slice(py, self.0.nodes())
    }

    /// `int64[nodes]`: handle or id of the parent; -1 for a root.
    #[getter]
    fn parent<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.0.parents().into_pyarray(py)
    }

    /// `uint32[nodes]`: number of edges from the root.
    #[getter]
    fn depth<'py>(&self, py: Python<'py>) -> Array<'py, u32> {
        PyArray1::from_slice(py, self.0.topology().depths())
    }

    /// `uint32[nodes]`: number of leaves in the node's subtree; 1 for a leaf.
    #[getter]
    fn leaf_count<'py>(&self, py: Python<'py>) -> Array<'py, u32> {
        self.0.topology().leaf_counts().into_pyarray(py)
    }

    /// `uint32[nodes]`: position of the node in `preorder`.
    #[getter]
    fn enter<'py>(&self, py: Python<'py>) -> Array<'py, u32> {
        PyArray1::from_slice(py, self.0.topology().enter())
    }

    /// `uint32[nodes]`: first position in `preorder` after the node's subtree.
    #[getter]
    fn exit<'py>(&self, py: Python<'py>) -> Array<'py, u32> {
        PyArray1::from_slice(py, self.0.topology().exit())
    }

    /// `int64[nodes]`: the nodes, each before the subtrees of its children (Euler order with `enter` and `exit`).
    #[getter]
    fn preorder<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.0.preorder().into_pyarray(py)
    }

    /// `int64[leaves]`: the nodes without children, in preorder.
    #[getter]
    fn leaves<'py>(&self, py: Python<'py>) -> Array<'py, i64> {
        self.0.leaves().into_pyarray(py)
    }

    /// Return the nodes from the root to `node`, both included. Raises `NotFoundError` if there is no such node.
    fn path<'py>(&self, py: Python<'py>, node: Whole<i64>) -> PyResult<Array<'py, i64>> {
        self.answer(py, node, batch::Tree::path)
    }

    /// Return the parent of `node`, its parent, and so on up to the root.
    fn ancestors<'py>(&self, py: Python<'py>, node: Whole<i64>) -> PyResult<Array<'py, i64>> {
        self.answer(py, node, batch::Tree::ancestors)
    }

    /// Return the children of `node`.
    fn children<'py>(&self, py: Python<'py>, node: Whole<i64>) -> PyResult<Array<'py, i64>> {
        self.answer(py, node, batch::Tree::children)
    }

    /// Return `node` and all nodes below it, in preorder.
    fn subtree<'py>(&self, py: Python<'py>, node: Whole<i64>) -> PyResult<Array<'py, i64>> {
        self.answer(py, node, batch::Tree::subtree)
    }

    /// Return the deepest node whose subtree contains both nodes; None if they are in different trees.
    fn lowest_common_ancestor(&self, first: Whole<i64>, second: Whole<i64>) -> PyResult<Option<i64>> {
        let (first, second) = (first.named("first")?, second.named("second")?);
        held(|| self.0.lowest_common_ancestor(first, second))
    }

    fn __len__(&self) -> usize {
        self.0.nodes().len()
    }
}

/// Return the columns of a frontier by name.
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
