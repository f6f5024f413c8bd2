//! From the live form to the frozen one: a consistent cut, canonical order, structural ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::share::Rest;
use super::{Forest, Group, Handle, Key, Place, Trajectory, rows, split};
use crate::Result;
use crate::batch::{Batch, NextIds};
use crate::schema::Source;

/// Groups that were taken out of a forest to be frozen. Making the batch of them takes no part of the forest, so that
/// others can go on with the groups that are still live.
#[derive(Debug)]
pub struct Cut {
    pub(super) iteration: i64,
    pub(super) base: NextIds,
    pub(super) groups: Vec<Group>,
    pub(super) reward_components: Option<Vec<String>>,
    pub(super) entropies: String,
    blobs: crate::batch::Blobs,
}

/// A group with its rows put into canonical order: trajectories by place and content, nodes by the first path that holds
/// them, prompts without what earlier ones begin with.
pub(super) struct Ordered<'a> {
    pub(super) group: &'a Group,
    /// Index in the group of each new trajectory that has tokens, in canonical order.
    pub(super) trajectories: Vec<usize>,
    /// Index in the group of each new node that has a row, in canonical order.
    pub(super) nodes: Vec<usize>,
    /// Id of the row that holds the last token of each node of the group; -1 where no trajectory with a row has the node.
    pub(super) node_ids: Vec<i64>,
    /// Which tokens the row of each node holds.
    pub(super) rest: Rest,
    /// Trajectory id of each trajectory of the group; -1 where it has no tokens.
    pub(super) trajectory_ids: Vec<i64>,
    pub(super) group_id: i64,
}

impl Ordered<'_> {
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &Trajectory)> {
        self.trajectories.iter().map(|&index| (index, &self.group.trajectories[index]))
    }

    /// The row that holds the token before a place, and how many of its tokens come before it.
    pub(super) fn row_at(&self, place: Place) -> Place {
        self.rest.resolve(self.group, place)
    }

    /// A place among rows as columns: the row's id, and how many of its tokens, unless all.
    pub(super) fn columns(&self, (row, end): Place) -> (i64, Option<i32>) {
        let whole = self.rest.tokens(self.group, row).len() == end as usize;
        (self.node_ids[row], (!whole).then_some(end as i32))
    }

    /// Trajectories that are drawn, with how they are: adopted ones as their source says, then new ones that came to an end.
    pub(super) fn drawn(&self) -> impl Iterator<Item = (usize, Source)> {
        use crate::schema::Origin;
        let stored = self.group.trajectories.iter().enumerate();
        let stored = stored.filter_map(|(index, entry)| Some((index, entry.stored?.source?)));
        let new = self.rows().filter(|(_, entry)| entry.status.is_drawn()).map(|(index, entry)| {
            let source = match entry.origin {
                Origin::Expert => Source::Expert,
                Origin::Imagined => Source::Imagined,
                Origin::Generated | Origin::Imported => Source::Fresh,
            };
            (index, source)
        });
        let mut stored: Vec<_> = stored.collect();
        stored.sort_by_key(|&(index, _)| self.trajectory_ids[index]);
        stored.into_iter().chain(new)
    }
}

/// Ids of trajectories by handle, over all groups of a cut.
pub(super) struct Ids<'a>(BTreeMap<Key, &'a Ordered<'a>>);

impl Ids<'_> {
    /// The id of a trajectory; `None` where it has no row.
    pub(super) fn of(&self, trajectory: Handle) -> Option<i64> {
        let (key, index) = split(trajectory);
        self.0.get(&key).and_then(|entry| entry.trajectory_ids.get(index)).copied().filter(|&id| id >= 0)
    }
}

impl Forest {
    /// Freezes every group whose trajectories have all ended and takes it out of the forest; the rest stays live. Groups
    /// with trajectories that answer each other freeze together.
    ///
    /// Prompts of a group that begin alike share the tokens with which they do: the later one, in canonical order, is a
    /// child inside the earlier one. Rows are numbered canonically, behind those of adopted batches; each finished or
    /// truncated trajectory becomes one draw. A trajectory that ended before its first token leaves no row.
    pub fn freeze(&mut self) -> Result<Batch> {
        let cut = self.cut(false);
        self.or_restored(cut)
    }

    /// Freezes all groups that have begun: trajectories that are still running are kept as partial, undrawn, so that a
    /// later forest can adopt them and go on.
    pub fn freeze_partial(&mut self) -> Result<Batch> {
        let cut = self.cut(true);
        self.or_restored(cut)
    }

    fn or_restored(&mut self, cut: Cut) -> Result<Batch> {
        let frozen = cut.freeze();
        if frozen.is_err() {
            self.restore(cut);
        }
        frozen
    }

    /// Takes out the groups that [`Forest::freeze`] (or, if `partial`, [`Forest::freeze_partial`]) freezes.
    pub fn cut(&mut self, partial: bool) -> Cut {
        let begun = |group: &Group| !group.trajectories.is_empty();
        let ended = |group: &Group| partial || !group.trajectories.iter().any(Trajectory::is_running);
        let mut open: Vec<Key> =
            self.groups.iter().filter(|(_, group)| !begun(group) || !ended(group)).map(|(&key, _)| key).collect();
        // A group waits for those that it is linked with, and so on.
        let mut waiting: std::collections::BTreeSet<Key> = open.iter().copied().collect();
        let mut linked: BTreeMap<Key, Vec<Key>> = BTreeMap::new();
        for &(one, other) in &self.links {
            linked.entry(one).or_default().push(other);
            linked.entry(other).or_default().push(one);
        }
        while let Some(group) = open.pop() {
            let others = linked.get(&group).into_iter().flatten();
            open.extend(others.filter(|&&other| waiting.insert(other)));
        }
        let mut groups = Vec::new();
        self.keys.retain(|_, key| {
            let ready = if waiting.contains(key) { None } else { self.groups.remove(key) };
            let live = ready.is_none();
            groups.extend(ready);
            live
        });
        let blobs = groups.iter().flat_map(|group| &group.nodes).flat_map(|node| &node.content.blobs);
        let blobs = blobs.filter_map(|hash| Some((*hash, Arc::clone(self.blobs.get(hash)?)))).collect();
        Cut {
            iteration: self.iteration,
            base: self.base,
            groups,
            reward_components: self.reward_components.clone(),
            entropies: self.entropies.clone(),
            blobs: Arc::new(blobs),
        }
    }

    /// Puts the groups of a cut back, whose freezing failed.
    pub fn restore(&mut self, cut: Cut) {
        self.keys.extend(cut.groups.iter().map(|group| (group.number, group.key)));
        self.groups.extend(cut.groups.into_iter().map(|group| (group.key, group)));
    }
}

impl Cut {
    /// The batch of the groups.
    pub fn freeze(&self) -> Result<Batch> {
        let (mut next_node, mut next_trajectory) = (self.base.node, self.base.trajectory);
        let mut groups = Vec::with_capacity(self.groups.len());
        for (group_id, group) in (self.base.group..).zip(&self.groups) {
            groups.push(order(group, group_id, &mut next_node, &mut next_trajectory));
        }
        let ids = Ids(groups.iter().map(|entry| (entry.group.key, entry)).collect());
        let tables = rows::tables(self, &groups, &ids)?;
        Ok(Batch::new(tables)?.with_base(self.base).with_blobs(Arc::clone(&self.blobs)))
    }
}

fn order<'a>(group: &'a Group, group_id: i64, next_node: &mut i64, next_trajectory: &mut i64) -> Ordered<'a> {
    let mut nodes = Vec::with_capacity(group.nodes.len());
    let mut node_ids: Vec<i64> = group.nodes.iter().map(|node| node.stored.unwrap_or(-1)).collect();
    let mut rest = Rest::new(group);
    let stored = |entry: &Trajectory| entry.stored.map_or(-1, |stored| stored.id);
    let mut trajectory_ids: Vec<i64> = group.trajectories.iter().map(stored).collect();
    let mut trajectories = group.canonical();
    trajectories.retain(|&index| group.trajectories[index].tip.is_some() && trajectory_ids[index] < 0);
    for &index in &trajectories {
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
    Ordered { group, trajectories, nodes, node_ids, rest, trajectory_ids, group_id }
}
