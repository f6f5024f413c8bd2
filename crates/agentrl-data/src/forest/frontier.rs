//! Views of a growing forest for planners: its running trajectories, and the token tree of a group.

use super::{Forest, Handle, handle};
use crate::Result;
use crate::batch::Tree;

/// Running trajectories as columns, one row each, ordered by group number and then by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    /// Handle of the trajectory.
    pub trajectory: Vec<Handle>,
    /// Group number.
    pub group: Vec<u32>,
    /// Last node of the path; -1 if the path is empty.
    pub node: Vec<Handle>,
    /// Number of the last node's tokens that the path uses.
    pub end: Vec<u32>,
    /// Number of tokens of the path.
    pub length: Vec<u32>,
    /// Number of closed steps.
    pub steps: Vec<u32>,
    /// Number of rewrites of the context.
    pub context: Vec<u32>,
}

impl Forest {
    /// Return the running trajectories of a group, or of all groups.
    pub fn frontier(&self, group: Option<u32>) -> Result<Frontier> {
        let groups = match group {
            Some(number) => vec![self.of_number(number)?],
            None => self.keys.values().filter_map(|key| self.groups.get(key)).collect(),
        };
        let mut frontier = Frontier::default();
        for entry in groups {
            for (index, row) in entry.trajectories.iter().enumerate().filter(|(_, row)| row.is_running()) {
                frontier.trajectory.push(handle(entry.key, index));
                frontier.group.push(entry.number);
                frontier.node.push(row.tip.map_or(-1, |(node, _)| handle(entry.key, node)));
                frontier.end.push(row.tip.map_or(0, |(_, end)| end));
                frontier.length.push(entry.position(row.tip));
                frontier.steps.push(row.steps.len() as u32);
                frontier.context.push(row.context());
            }
        }
        Ok(frontier)
    }

    /// Return the token tree of a group. Its nodes are identified by their handles.
    pub fn tree(&self, group: u32) -> Result<Tree> {
        let entry = self.of_number(group)?;
        let nodes = (0..entry.nodes.len()).map(|node| handle(entry.key, node)).collect();
        let parents: Vec<i64> =
            entry.nodes.iter().map(|node| node.parent.map_or(-1, |(parent, _)| parent as i64)).collect();
        Tree::new(nodes, &parents)
    }
}
