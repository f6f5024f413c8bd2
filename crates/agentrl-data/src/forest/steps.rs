//! The steps of trajectories. A step is stored once, by whoever took it, however many branches inherit it.

use std::iter::successors;

use super::{Group, StepOutcome};

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
    inherited: Option<(usize, usize)>,
    own: Vec<Step>,
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

    /// Takes back its own steps until there are so many in all.
    pub(super) fn truncate(&mut self, count: usize) {
        self.own.truncate(count.saturating_sub(self.inherited()));
    }
}

impl Group {
    /// The steps of a trajectory, in their order.
    pub(super) fn steps(&self, index: usize) -> impl Iterator<Item = &Step> {
        let mut pieces: Vec<_> = self.pieces(index).map(|(_, piece)| piece).collect();
        pieces.reverse();
        pieces.into_iter().flatten()
    }

    /// One step of a trajectory.
    pub(super) fn step(&self, index: usize, number: usize) -> Option<&Step> {
        let (first, piece) = self.pieces(index).find(|&(first, _)| first <= number)?;
        piece.get(number - first)
    }

    /// How many steps of a trajectory end before a position of a context, or at it.
    pub(super) fn steps_until(&self, index: usize, context: u32, position: u32) -> usize {
        self.leading(index, |step| (step.context, step.end) <= (context, position))
    }

    /// Key of the state that the action which begins at a position of a context acted on, if one does.
    pub(super) fn state_acted_on(&self, index: usize, context: u32, position: u32) -> Option<[u8; 16]> {
        let place = (context, position);
        let number = self.leading(index, |step| (step.context, step.start) < place);
        let closed = self.step(index, number).filter(|step| (step.context, step.start) == place);
        let entry = &self.trajectories[index];
        let open = entry.open.filter(|open| (entry.context(), open.start) == place);
        closed.map(|step| step.state_key).or(open.map(|open| open.state_key))
    }

    /// The first steps of a trajectory, for one that leaves it.
    pub(super) fn inherit(&self, index: usize, count: usize) -> Steps {
        let takers = self.takers(index, count);
        let taker = takers.into_iter().find(|&(index, count)| self.trajectories[index].steps.inherited() < count);
        Steps { inherited: taker, own: Vec::new() }
    }

    /// How many of the steps, which are in the order of their places, something is true of; it is of the first ones alone.
    fn leading(&self, index: usize, is_true: impl Fn(&Step) -> bool) -> usize {
        let begins = self.pieces(index).find(|(_, piece)| piece.first().is_some_and(&is_true));
        begins.map_or(0, |(first, piece)| first + piece.partition_point(is_true))
    }

    /// The steps of a trajectory by those who took them, the last first, each piece with the number of its first step.
    fn pieces(&self, index: usize) -> impl Iterator<Item = (usize, &[Step])> {
        self.takers(index, self.trajectories[index].steps.len()).map(|(index, count)| {
            let steps = &self.trajectories[index].steps;
            let first = steps.inherited().min(count);
            (first, &steps.own[..count - first])
        })
    }

    /// Who took the first steps of a trajectory, the last first, and how many there are up to theirs.
    fn takers(&self, index: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
        successors(Some((index, count)), |&(index, count)| {
            self.trajectories[index].steps.inherited.map(|(parent, before)| (parent, before.min(count)))
        })
    }
}
