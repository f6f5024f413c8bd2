//! The steps of trajectories. A step is stored once, by the trajectory that took it, however many branches inherit it.

use crate::facts::FactValues;
use crate::schema::Drift;

/// What the environment returned to an action.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Reward paid for the action; `None` if none was.
    pub reward: Option<f32>,
    /// Components of the reward.
    pub rewards: Option<Vec<f32>>,
    /// The episode ended in the environment.
    pub terminated: bool,
    /// A limit ended the episode.
    pub truncated: bool,
    /// Facts about the turn (tool error, format error, …), a bit each; [`crate::schema::FLAG_UNTRAINED`] keeps its tokens
    /// out of the gradient.
    pub flags: u32,
    /// If the turn was ingested: how it agrees with the turns before it.
    pub drift: Option<Drift>,
    /// Position of the first token that differs.
    pub drift_at: Option<u32>,
    /// Facts of the environment that the forest declares.
    pub facts: FactValues,
}

/// Whose action a step is.
#[derive(Clone, Copy, Debug)]
pub(super) enum StepOrigin {
    /// A trajectory of the group.
    Live(usize),
    /// A stored trajectory.
    Stored(i64),
}

/// A closed step. Positions count tokens from the start of the path.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) first_node: usize,
    pub(super) node: usize,
    pub(super) start: u32,
    pub(super) end: u32,
    /// Number of the trajectory's context that the step was taken in.
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

/// The steps of a trajectory in their order: the first ones of an earlier trajectory of the group, then its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    /// The earlier trajectory, and how many of its steps these are. It has at least one of them itself.
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

    /// Who took the last one that is inherited, and how many are.
    pub(super) fn inherited_of(&self) -> Option<(usize, usize)> {
        self.inherited
    }

    /// Those that the trajectory took itself.
    pub(super) fn own(&self) -> &[Step] {
        &self.own
    }

    pub(super) fn push(&mut self, step: Step) {
        self.own.push(step);
    }

    /// Remove its own steps until there are `count` in all.
    pub(super) fn truncate(&mut self, count: usize) {
        self.own.truncate(count.saturating_sub(self.inherited()));
    }
}
