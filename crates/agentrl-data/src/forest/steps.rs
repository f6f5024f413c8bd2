//! The steps of trajectories. A step is stored once, in the trajectory that took it, whatever the number of branches
//! that inherit it.

use crate::facts::FactValues;
use crate::schema::Drift;

/// The environment's response to an action.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Reward of the action; `None` if none was paid.
    pub reward: Option<f32>,
    /// Components of the reward.
    pub rewards: Option<Vec<f32>>,
    /// The episode ended in the environment.
    pub terminated: bool,
    /// A limit ended the episode.
    pub truncated: bool,
    /// Flags of the turn (tool error, format error, …), one bit each. [`crate::schema::FLAG_UNTRAINED`] keeps its
    /// tokens out of the gradient.
    pub flags: u32,
    /// Agreement of the turn with the turns before it, if it was ingested.
    pub drift: Option<Drift>,
    /// Position of the first token that differs.
    pub drift_at: Option<u32>,
    /// Declared facts of the environment.
    pub facts: FactValues,
}

/// The trajectory that took a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum StepOrigin {
    /// Index of a trajectory of the group.
    Live(usize),
    /// Id of a stored trajectory.
    Stored(i64),
}

/// A closed step. Positions count tokens from the start of the path.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) first_node: usize,
    pub(super) node: usize,
    pub(super) start: u32,
    pub(super) end: u32,
    /// Number of the trajectory's context in which the step was taken.
    pub(super) context: u32,
    pub(super) origin: StepOrigin,
    pub(super) state_key: [u8; 16],
    pub(super) outcome: StepOutcome,
}

/// An action that is still growing.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenStep {
    pub(super) first_node: usize,
    pub(super) start: u32,
    pub(super) state_key: [u8; 16],
    /// Last node of the action so far, and the position after its last token.
    pub(super) last: (usize, u32),
    /// Number of segments so far.
    pub(super) segments: u32,
}

/// The steps of a trajectory, in order: first those inherited from an earlier trajectory of the group, then its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    /// The earlier trajectory, and the number of inherited steps. At least one of them is its own step.
    pub(super) inherited: Option<(usize, usize)>,
    pub(super) own: Vec<Step>,
}

impl Steps {
    pub(super) fn inherited(&self) -> usize {
        self.inherited.map_or(0, |(_, count)| count)
    }

    pub(super) fn len(&self) -> usize {
        self.inherited() + self.own.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Return the trajectory that took the last inherited step, and the number of inherited steps.
    pub(super) fn inherited_of(&self) -> Option<(usize, usize)> {
        self.inherited
    }

    /// Return the trajectory's own steps.
    pub(super) fn own(&self) -> &[Step] {
        &self.own
    }

    pub(super) fn push(&mut self, step: Step) {
        self.own.push(step);
    }

    /// Remove own steps at the end until `count` steps are left, inherited ones included.
    pub(super) fn truncate(&mut self, count: usize) {
        self.own.truncate(count.saturating_sub(self.inherited()));
    }
}
