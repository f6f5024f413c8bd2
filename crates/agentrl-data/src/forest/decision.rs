//! The decision log of a planner, from which a search can be replayed.

use super::handle::Handle;
use crate::schema::Operation;

/// One decision of a planner.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Operation that the planner chose.
    pub operation: Operation,
    /// Trajectory that the operation applies to.
    pub trajectory: Handle,
    /// Round of the search.
    pub round: u32,
    /// Number within the round, if the order matters. Decisions without an ordinal come last, in the order of their
    /// trajectories.
    pub ordinal: Option<u32>,
    /// Node that the operation applies to.
    pub node: Option<Handle>,
    /// Number of the node's tokens before the place that the operation applies to; `None`: all.
    pub end: Option<u32>,
    /// Resulting trajectory.
    pub result: Option<Handle>,
    /// Score that the decision is based on.
    pub score: Option<f64>,
    /// Reason, as text.
    pub reason: Option<String>,
}

impl Decision {
    /// Create a decision about a trajectory, without optional values.
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
