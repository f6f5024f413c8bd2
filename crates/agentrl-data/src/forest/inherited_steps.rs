//! The steps of a trajectory: those that it inherits from earlier trajectories of its group, then its own.

use std::iter::successors;

use super::group::Group;
use super::steps::{Step, Steps};

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
