//! Access to the steps of a trajectory: first those inherited from earlier trajectories of its group, then its own.

use std::iter::successors;

use super::group::Group;
use super::steps::{Step, Steps};

impl Group {
    /// Return the steps of a trajectory, in order.
    pub(super) fn steps(&self, index: usize) -> impl Iterator<Item = &Step> {
        let mut pieces: Vec<_> = self.pieces(index).map(|(_, piece)| piece).collect();
        pieces.reverse();
        pieces.into_iter().flatten()
    }

    /// Return one step of a trajectory.
    pub(super) fn step(&self, index: usize, number: usize) -> Option<&Step> {
        let (first, piece) = self.pieces(index).find(|&(first, _)| first <= number)?;
        piece.get(number - first)
    }

    /// Return the number of steps of a trajectory that end at or before a position of a context.
    pub(super) fn steps_until(&self, index: usize, context: u32, position: u32) -> usize {
        self.leading(index, |step| (step.context, step.end) <= (context, position))
    }

    /// Return the key of the state that an action acted on, if an action begins at a position of a context.
    pub(super) fn state_acted_on(&self, index: usize, context: u32, position: u32) -> Option<[u8; 16]> {
        let place = (context, position);
        let number = self.leading(index, |step| (step.context, step.start) < place);
        let closed = self.step(index, number).filter(|step| (step.context, step.start) == place);
        let entry = &self.trajectories[index];
        let open = entry.open.filter(|open| (entry.context(), open.start) == place);
        closed.map(|step| step.state_key).or(open.map(|open| open.state_key))
    }

    /// Return the first `count` steps of a trajectory as the inherited steps of a fork.
    pub(super) fn inherit(&self, index: usize, count: usize) -> Steps {
        let takers = self.takers(index, count);
        let taker = takers.into_iter().find(|&(index, count)| self.trajectories[index].steps.inherited() < count);
        Steps { inherited: taker, own: Vec::new() }
    }

    /// Return the number of leading steps for which `is_true` holds. Steps are ordered by place, and `is_true` may hold
    /// for leading steps only.
    fn leading(&self, index: usize, is_true: impl Fn(&Step) -> bool) -> usize {
        let begins = self.pieces(index).find(|(_, piece)| piece.first().is_some_and(&is_true));
        begins.map_or(0, |(first, piece)| first + piece.partition_point(is_true))
    }

    /// Return the steps of a trajectory in pieces, one for each trajectory that took them, the last piece first. Each
    /// piece has the number of its first step.
    fn pieces(&self, index: usize) -> impl Iterator<Item = (usize, &[Step])> {
        self.takers(index, self.trajectories[index].steps.len()).map(|(index, count)| {
            let steps = &self.trajectories[index].steps;
            let first = steps.inherited().min(count);
            (first, &steps.own[..count - first])
        })
    }

    /// Return the trajectories that took the first `count` steps of a trajectory, the one of the last steps first. Each
    /// has the number of steps up to the end of its own.
    fn takers(&self, index: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
        successors(Some((index, count)), |&(index, count)| {
            self.trajectories[index].steps.inherited.map(|(parent, before)| (parent, before.min(count)))
        })
    }
}
