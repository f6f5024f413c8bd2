//! Freeze a forest: take groups out of it, put their rows into canonical order, and number the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::frozen_groups::{FrozenGroups, Ids, OnPath, Ordered};
use super::prompt_prefixes::Rest;
use super::{Forest, Group, GroupHandle, Trajectory, tables};
use crate::batch::Batch;
use crate::{Check, Result};

impl Forest {
    /// Freeze every group whose trajectories have all ended, and take it out of the forest; other groups stay live.
    /// Groups freeze together if a trajectory of one answers a trajectory of the other or joins its episode.
    ///
    /// Prompts of a group share equal beginnings: the later prompt, in canonical order, is a child inside the earlier
    /// one. Rows are numbered canonically, after those of adopted batches. Each finished or truncated trajectory
    /// becomes one draw, unless it is a helper. A trajectory that ended before its first token has no row.
    pub fn freeze(&mut self) -> Result<Batch> {
        let groups = self.take_groups(false);
        self.freeze_or_restore(groups)
    }

    /// Freeze all groups that have begun. Running trajectories are kept as partial and are not drawn, so that a later
    /// forest can adopt and continue them.
    pub fn freeze_partial(&mut self) -> Result<Batch> {
        let groups = self.take_groups(true);
        self.freeze_or_restore(groups)
    }

    fn freeze_or_restore(&mut self, groups: FrozenGroups) -> Result<Batch> {
        let frozen = groups.freeze(&mut || Ok(()));
        if frozen.is_err() {
            self.restore(groups);
        }
        frozen
    }

    /// Take out the groups that [`Forest::freeze`] freezes, or, if `partial`, those that [`Forest::freeze_partial`]
    /// freezes.
    pub fn take_groups(&mut self, partial: bool) -> FrozenGroups {
        let begun = |group: &Group| !group.trajectories.is_empty();
        let ended = |group: &Group| partial || !group.trajectories.iter().any(Trajectory::is_running);
        let mut open: Vec<GroupHandle> =
            self.groups.iter().filter(|(_, group)| !begun(group) || !ended(group)).map(|(&key, _)| key).collect();
        // A group waits for all groups that it is linked with, directly or through other groups.
        let mut waiting: BTreeSet<GroupHandle> = open.iter().copied().collect();
        let mut linked: BTreeMap<GroupHandle, Vec<GroupHandle>> = BTreeMap::new();
        for &(one, other) in &self.links {
            linked.entry(one).or_default().push(other);
            linked.entry(other).or_default().push(one);
        }
        while let Some(group) = open.pop() {
            let others = linked.get(&group).into_iter().flatten();
            open.extend(others.filter(|&&other| waiting.insert(other)));
        }
        let mut groups = Vec::new();
        self.order.retain(|_, key| {
            let ready = if waiting.contains(key) { None } else { self.groups.remove(key) };
            let live = ready.is_none();
            groups.extend(ready);
            live
        });
        self.keys.retain(|_, key| self.groups.contains_key(key));
        self.frozen_groups(groups)
    }

    /// Return groups together with everything that is needed to freeze them.
    pub(super) fn frozen_groups(&self, groups: Vec<Group>) -> FrozenGroups {
        let blobs = groups.iter().flat_map(|group| &group.nodes).flat_map(|node| &node.content.blobs);
        let blobs = blobs.filter_map(|hash| Some((*hash, Arc::clone(self.blobs.get(hash)?)))).collect();
        FrozenGroups {
            iteration: self.iteration,
            base: self.base,
            groups,
            reward_components: self.reward_components.clone(),
            entropies: self.entropies.clone(),
            facts: self.facts.clone(),
            blobs: Arc::new(blobs),
        }
    }

    /// Put groups back into the forest after their freezing failed.
    pub fn restore(&mut self, taken: FrozenGroups) {
        self.keys.extend(taken.groups.iter().map(|group| (group.number, group.key)));
        self.order.extend(taken.groups.iter().map(|group| (group.origin.clone(), group.key)));
        self.groups.extend(taken.groups.into_iter().map(|group| (group.key, group)));
    }
}

impl FrozenGroups {
    /// Return the batch of the groups. `check` is called between the steps; its error stops the work. The groups stay
    /// unchanged.
    pub fn freeze(&self, check: Check<'_>) -> Result<Batch> {
        let groups = self.ordered(check)?;
        self.batch(&groups, check)
    }

    /// Return the groups with their rows in canonical order.
    pub(super) fn ordered(&self, check: Check<'_>) -> Result<Vec<Ordered<'_>>> {
        let (mut next_node, mut next_trajectory) = (self.base.node, self.base.trajectory);
        let mut groups = Vec::with_capacity(self.groups.len());
        for (group_id, group) in (self.base.group..).zip(&self.groups) {
            groups.push(order(group, group_id, &mut next_node, &mut next_trajectory, check)?);
        }
        Ok(groups)
    }

    pub(super) fn batch(&self, groups: &[Ordered<'_>], check: Check<'_>) -> Result<Batch> {
        let ids = Ids(groups.iter().map(|entry| (entry.group.key, entry)).collect());
        let tables = tables::tables(self, groups, &ids, check)?;
        Ok(Batch::new_with(tables, check)?.with_base(self.base).with_blobs(Arc::clone(&self.blobs)))
    }
}

fn order<'a>(
    group: &'a Group,
    group_id: i64,
    next_node: &mut i64,
    next_trajectory: &mut i64,
    check: Check<'_>,
) -> Result<Ordered<'a>> {
    let mut nodes = Vec::with_capacity(group.nodes.len());
    let mut node_ids: Vec<i64> = group.nodes.iter().map(|node| node.stored.unwrap_or(-1)).collect();
    let mut rest = Rest::new(group);
    let stored = |entry: &Trajectory| entry.stored.map_or(-1, |stored| stored.id);
    let mut trajectory_ids: Vec<i64> = group.trajectories.iter().map(stored).collect();
    let mut trajectories = group.canonical(check)?;
    trajectories.retain(|&index| group.trajectories[index].tip.is_some() && trajectory_ids[index] < 0);
    for &index in &trajectories {
        check()?;
        trajectory_ids[index] = *next_trajectory;
        *next_trajectory += 1;
        for tip in group.trajectories[index].tips() {
            let above = std::iter::successors(Some(tip), |&(node, _)| group.nodes[node].parent);
            let new: Vec<usize> = above.map(|(node, _)| node).take_while(|&node| node_ids[node] < 0).collect();
            for &node in new.iter().rev() {
                if rest.place(group, node) {
                    node_ids[node] = *next_node;
                    *next_node += 1;
                    nodes.push(node);
                } else {
                    let (row, _) = rest.resolve(group, (node, group.nodes[node].len()));
                    node_ids[node] = node_ids[row];
                }
            }
        }
    }
    let paths = OnPath::of_nodes(group);
    Ok(Ordered { group, trajectories, nodes, node_ids, rest, trajectory_ids, group_id, paths })
}
