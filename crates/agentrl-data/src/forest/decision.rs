//! The log of a planner: what it decided about which trajectory, so that a search can be replayed.

use super::handle::Handle;
use crate::schema::Operation;

/// One decision of a planner.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The operation that was decided.
    pub operation: Operation,
    /// The trajectory acted on.
    pub trajectory: Handle,
    /// Round of the search.
    pub round: u32,
    /// Place within the round, if the order matters; decisions without one follow in the order of their trajectories.
    pub ordinal: Option<u32>,
    /// The node acted at.
    pub node: Option<Handle>,
    /// How many of the node's tokens come before the place acted at.
    pub end: Option<u32>,
    /// The trajectory that came of it.
    pub result: Option<Handle>,
    /// The score by which the planner decided.
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
