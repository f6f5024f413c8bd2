//! The token tree as columns, with queries for planners and credit.

use agentrl_compute::tree::Topology;
use arrow_array::Array;

use super::draw_index::row_of;
use super::{Batch, i64s};
use crate::{Error, Result};

/// Nodes of one or more token trees, and their topology. The topology is computed once in O(nodes); a query about one
/// node takes time in proportion to the size of its answer.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<i64>,
    topology: Topology,
}

impl Tree {
    /// Create the tree of nodes with ascending ids. Each node has the row of its parent, or -1.
    pub(crate) fn new(nodes: Vec<i64>, parents: &[i64]) -> Result<Self> {
        Ok(Self { nodes, topology: Topology::new(parents)? })
    }

    /// Ids of the nodes, one row each.
    pub fn nodes(&self) -> &[i64] {
        &self.nodes
    }

    /// Depths, leaves and orders of the rows.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Return the row of a node.
    pub fn row(&self, node: i64) -> Result<u32> {
        let row = row_of(&self.nodes, node).map(|row| row as u32);
        row.ok_or_else(|| {
            Error::not_found(format!("node {node} is not in the tree; give an id of column node_id of batch.nodes"))
        })
    }

    /// Id of the parent of each node; -1 for a root.
    pub fn parents(&self) -> Vec<i64> {
        self.rows().map(|row| self.topology.parent(row).map_or(-1, |parent| self.nodes[parent as usize])).collect()
    }

    /// Ids of the nodes without children, in preorder.
    pub fn leaves(&self) -> Vec<i64> {
        self.ids(self.topology.leaves())
    }

    /// Ids of the nodes in preorder: a node, then the subtrees of its children in the order of their rows.
    pub fn preorder(&self) -> Vec<i64> {
        self.ids(self.topology.preorder().iter().copied())
    }

    /// Return the nodes from the root to a node, both included.
    pub fn path(&self, node: i64) -> Result<Vec<i64>> {
        Ok(self.ids(self.topology.path(self.row(node)?).into_iter()))
    }

    /// Return the parent of a node, its parent, and so on up to the root.
    pub fn ancestors(&self, node: i64) -> Result<Vec<i64>> {
        Ok(self.ids(self.topology.ancestors(self.row(node)?).skip(1)))
    }

    /// Return the children of a node, in the order of their rows.
    pub fn children(&self, node: i64) -> Result<Vec<i64>> {
        Ok(self.ids(self.topology.children(self.row(node)?).iter().copied()))
    }

    /// Return a node and all nodes below it, in preorder.
    pub fn subtree(&self, node: i64) -> Result<Vec<i64>> {
        let row = self.row(node)? as usize;
        let (enter, exit) = (self.topology.enter()[row] as usize, self.topology.exit()[row] as usize);
        Ok(self.ids(self.topology.preorder()[enter..exit].iter().copied()))
    }

    /// Return the deepest node whose subtree contains both nodes; `None` if they are in different trees.
    pub fn lowest_common_ancestor(&self, first: i64, second: i64) -> Result<Option<i64>> {
        let found = self.topology.lowest_common_ancestor(self.row(first)?, self.row(second)?);
        Ok(found.map(|row| self.nodes[row as usize]))
    }

    fn rows(&self) -> impl Iterator<Item = u32> {
        0..self.nodes.len() as u32
    }

    fn ids(&self, rows: impl Iterator<Item = u32>) -> Vec<i64> {
        rows.map(|row| self.nodes[row as usize]).collect()
    }
}

impl Batch {
    /// Return the token trees of the batch. Nodes are identified by their ids.
    pub fn tree(&self) -> Result<Tree> {
        let (ids, parents) = (i64s(self.nodes(), "node_id")?, i64s(self.nodes(), "parent_id")?);
        let row = |node: usize| -> Result<i64> {
            if parents.is_null(node) {
                return Ok(-1);
            }
            let parent = parents.value(node);
            let found = row_of(ids.values(), parent).map(|row| row as i64);
            found.ok_or_else(|| {
                Error::corrupt(format!(
                    "node {}: its parent, node {parent}, is not in the batch; restore the batch from a copy",
                    ids.value(node)
                ))
            })
        };
        let parents = (0..ids.len()).map(row).collect::<Result<Vec<_>>>()?;
        Tree::new(ids.values().to_vec(), &parents)
    }
}
