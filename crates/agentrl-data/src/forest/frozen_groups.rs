//! Groups that are frozen together, with their rows in canonical order.

use std::collections::BTreeMap;

use super::prompt_prefixes::Rest;
use super::{Group, GroupHandle, Handle, Place, Trajectory, split};
use crate::batch::{Blobs, NextIds};
use crate::facts::Facts;
use crate::schema::{FinishReason, Kind, Origin, Role, Source, Status};

/// Groups that were taken out of a forest to be frozen. Making their batch needs no access to the forest, so other
/// threads can continue with the live groups.
#[derive(Debug)]
pub struct FrozenGroups {
    pub(super) iteration: i64,
    pub(super) base: NextIds,
    pub(super) groups: Vec<Group>,
    pub(super) reward_components: Option<Vec<String>>,
    pub(super) entropies: String,
    pub(super) facts: Facts,
    pub(super) blobs: Blobs,
}

/// A group with its rows in canonical order: trajectories by place and content, nodes by the first path that contains
/// them, prompts without the beginning that earlier prompts hold.
pub(super) struct Ordered<'a> {
    pub(super) group: &'a Group,
    /// Index in the group of each new trajectory that has tokens, in canonical order.
    pub(super) trajectories: Vec<usize>,
    /// Index in the group of each new node that has a row, in canonical order.
    pub(super) nodes: Vec<usize>,
    /// Id of the row that holds the last token of each node of the group; -1 if no trajectory with a row has the node.
    pub(super) node_ids: Vec<i64>,
    /// Tokens that the row of each node holds.
    pub(super) rest: Rest,
    /// Id of each trajectory of the group; -1 if it has no tokens.
    pub(super) trajectory_ids: Vec<i64>,
    pub(super) group_id: i64,
    /// Summary of the path up to each node of the group.
    pub(super) paths: Vec<OnPath>,
}

/// Summary of a path: its policy versions, and whether all of its trainable actions were sampled.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnPath {
    /// Lowest and highest policy version, if any is known.
    pub(super) versions: Option<(i64, i64)>,
    /// Whether every action that can be trained was sampled.
    pub(super) sampled: bool,
}

impl OnPath {
    /// Summary of a path without tokens.
    const EMPTY: Self = Self { versions: None, sampled: true };

    /// Return the summary of the path up to each node of a group. Parents come before their children.
    pub(super) fn of_nodes(group: &Group) -> Vec<Self> {
        let mut paths: Vec<Self> = Vec::with_capacity(group.nodes.len());
        for node in &group.nodes {
            let content = &node.content;
            let trained = content.trainable.as_ref().is_none_or(|mask| mask.contains(&1));
            let own = Self {
                versions: content.policy_version.map(|version| (version, version)),
                sampled: content.kind != Kind::Action || content.logprobs.is_some() || !trained,
            };
            paths.push(node.parent.map_or(own, |(parent, _)| paths[parent].and(own)));
        }
        paths
    }

    fn and(self, other: Self) -> Self {
        let both = self.versions.zip(other.versions);
        let versions = both.map(|(one, other)| (one.0.min(other.0), one.1.max(other.1)));
        Self { versions: versions.or(self.versions).or(other.versions), sampled: self.sampled && other.sampled }
    }
}

impl Ordered<'_> {
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &Trajectory)> {
        self.trajectories.iter().map(|&index| (index, &self.group.trajectories[index]))
    }

    /// Return the joint summary of all paths of a trajectory.
    pub(super) fn on_paths(&self, trajectory: &Trajectory) -> OnPath {
        trajectory.tips().fold(OnPath::EMPTY, |found, (node, _)| found.and(self.paths[node]))
    }

    /// Whether a limit ended a trajectory. Its status is truncated; or it is finished, a limit cut its last step or the
    /// tokens of its last action, and the environment did not end the episode.
    pub(super) fn is_truncated(&self, index: usize) -> bool {
        let entry = &self.group.trajectories[index];
        if entry.status != Status::Finished {
            return entry.status == Status::Truncated;
        }
        let last = entry.steps.len().checked_sub(1).and_then(|last| self.group.step(index, last));
        last.is_some_and(|step| {
            let node = &self.group.nodes[step.node];
            let cut = node.content.finish_reason == FinishReason::Length && step.end == node.start + node.len();
            !step.outcome.terminated && (step.outcome.truncated || cut)
        })
    }

    /// Return the status of a trajectory; truncated if a limit ended it.
    pub(super) fn status(&self, index: usize) -> Status {
        if self.is_truncated(index) { Status::Truncated } else { self.group.trajectories[index].status }
    }

    /// Return the row that holds the token before a place, and the number of its tokens before the place.
    pub(super) fn row_at(&self, place: Place) -> Place {
        self.rest.resolve(self.group, place)
    }

    /// Return a place among rows as column values: the row's id, and the number of its tokens, `None` if all.
    pub(super) fn columns(&self, (row, end): Place) -> (i64, Option<i32>) {
        let whole = self.rest.tokens(self.group, row).len() == end as usize;
        (self.node_ids[row], (!whole).then_some(end as i32))
    }

    /// Return the drawn trajectories with the source of each draw: first adopted ones that have a source, by id, then
    /// new ones that finished or were truncated and are not helpers.
    pub(super) fn drawn(&self) -> impl Iterator<Item = (usize, Source)> {
        let stored = self.group.trajectories.iter().enumerate();
        let stored = stored.filter_map(|(index, entry)| Some((index, entry.stored?.source?)));
        let new = self.rows().filter(|(_, entry)| entry.status.is_drawn() && entry.role != Role::Helper).map(
            |(index, entry)| {
                let source = match entry.origin {
                    Origin::Expert => Source::Expert,
                    Origin::Imagined => Source::Imagined,
                    Origin::Generated | Origin::Imported => Source::Fresh,
                };
                (index, source)
            },
        );
        let mut stored: Vec<_> = stored.collect();
        stored.sort_by_key(|&(index, _)| self.trajectory_ids[index]);
        stored.into_iter().chain(new)
    }
}

/// Ids of trajectories by handle, over all groups that are frozen together.
pub(super) struct Ids<'a>(pub(super) BTreeMap<GroupHandle, &'a Ordered<'a>>);

impl Ids<'_> {
    /// Return the id of a trajectory; `None` if it has no row.
    pub(super) fn of(&self, trajectory: Handle) -> Option<i64> {
        let (key, index) = split(trajectory);
        self.0.get(&key).and_then(|entry| entry.trajectory_ids.get(index)).copied().filter(|&id| id >= 0)
    }
}
