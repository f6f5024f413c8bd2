//! The log of a planner: what it decided about which trajectory, so that a search can be replayed.

use super::{Forest, Handle, split};
use crate::schema::Operation;
use crate::{Error, Result};

/// One decision of a planner.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What was decided.
    pub operation: Operation,
    /// The trajectory acted on.
    pub trajectory: Handle,
    /// Round of the search.
    pub round: u32,
    /// Place within the round, where the order matters; decisions without one follow in the order of their trajectories.
    pub ordinal: Option<u32>,
    /// The node acted at.
    pub node: Option<Handle>,
    /// How many of the node's tokens come before the place acted at.
    pub end: Option<u32>,
    /// The trajectory that came of it.
    pub result: Option<Handle>,
    /// What the planner decided by.
    pub score: Option<f64>,
    /// Why, in words.
    pub reason: Option<String>,
}

impl Decision {
    /// A decision about a trajectory, with everything optional absent.
    pub fn new(operation: Operation, trajectory: Handle, round: u32) -> Self {
        Self {
            operation,
            trajectory,
            round,
            ordinal: None,
            node: None,
            end: None,
            result: None,
            score: None,
            reason: None,
        }
    }
}

impl Forest {
    /// Writes a decision into the table `decisions`. It is a log: nothing is done.
    ///
    /// In the table, decisions of a group are in the order of their rounds and ordinals, then of what they act on.
    pub fn decide(&mut self, decision: Decision) -> Result<()> {
        let group = self.group(decision.trajectory)?;
        for (name, value) in [("round", Some(decision.round)), ("ordinal", decision.ordinal), ("end", decision.end)] {
            if let Some(value) = value.filter(|&value| i32::try_from(value).is_err()) {
                return Err(Error::invalid(format!("{name} is {value}; it must be at most {}", i32::MAX)));
            }
        }
        let parts = [("node", decision.node, group.nodes.len()), ("result", decision.result, group.trajectories.len())];
        for (name, found, count) in parts {
            if let Some(found) = found.filter(|&found| split(found).0 != group.key || split(found).1 >= count) {
                return Err(Error::not_found(format!("{name} is {found}, which is not in group {}", group.number)));
            }
        }
        self.group_mut(decision.trajectory)?.decisions.push(decision);
        Ok(())
    }
}
