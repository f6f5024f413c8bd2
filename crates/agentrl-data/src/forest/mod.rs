//! The live rollout forest: groups of trajectories that grow turn by turn, fork at any token, and freeze into a Batch.
//!
//! A node is never split or changed. A fork inside a node is a child that stores the number of the parent's tokens
//! before it. So a fork copies no tokens, and frozen nodes can be forked too. Rows are identified by their place
//! (group, member, branch position, ordinal, content), never by the order of arrival: the same rollouts freeze to the
//! same Batch, whatever the number of threads.

mod adopt;
mod canonical_order;
mod decision;
mod fork_operations;
mod freeze;
mod frontier;
mod frozen_groups;
mod group;
mod group_key;
mod group_snapshot;
mod handle;
mod ingest;
mod inherited_steps;
mod node;
mod prompt_prefixes;
mod replace_prompt;
mod search_tree;
mod steps;
mod tables;
mod trajectory;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agentrl_compute::rng::structural_seed;
use sha2::{Digest, Sha256};

pub use decision::Decision;
pub use fork_operations::Fork;
pub use frontier::Frontier;
pub use frozen_groups::FrozenGroups;
pub use handle::Handle;
pub use ingest::{Ingested, Role, Rows, Turns};
pub use node::{BlobHash, NewNode, Sampling};
pub use search_tree::SearchTree;
pub use steps::StepOutcome;
pub use trajectory::{Finish, Start};

use crate::batch::NextIds;
use crate::facts::Facts;
use crate::schema::{Status, Table};
use crate::token_columns::{self, RowTypes, TokenRows};
use crate::{Error, ErrorKind, Result};
use group::Group;
use group_key::GroupKey;
use handle::{GroupHandle, Place, handle, next_group_handle, split};
use trajectory::{Trajectory, check_rewards};

/// Default size limit of a blob, in bytes.
const MAX_BLOB_BYTES: usize = 64 << 20;

/// The live form of the data. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Forest {
    iteration: i64,
    seed: u64,
    groups: BTreeMap<GroupHandle, Group>,
    /// Handle of each group, by group number.
    keys: BTreeMap<u32, GroupHandle>,
    /// Handle of each group, by group key: the order in which groups freeze.
    order: BTreeMap<GroupKey, GroupHandle>,
    /// Pairs of groups that freeze together, because a trajectory of one answers a trajectory of the other or joins its
    /// episode.
    links: BTreeSet<(GroupHandle, GroupHandle)>,
    /// First ids of new rows. Smaller ids belong to adopted rows and to the store that they come from.
    base: NextIds,
    blobs: BTreeMap<BlobHash, Arc<[u8]>>,
    max_blob_bytes: usize,
    reward_components: Option<Vec<String>>,
    entropies: String,
    facts: Facts,
    /// Types of the token columns of the nodes.
    row_types: RowTypes,
}

impl Forest {
    /// Create an empty forest for one iteration. `seed` is the seed of the run, from which all other seeds are derived.
    pub fn new(iteration: i64, seed: u64) -> Self {
        Self {
            iteration,
            seed,
            groups: BTreeMap::new(),
            keys: BTreeMap::new(),
            order: BTreeMap::new(),
            links: BTreeSet::new(),
            base: NextIds::default(),
            blobs: BTreeMap::new(),
            max_blob_bytes: MAX_BLOB_BYTES,
            reward_components: None,
            entropies: "exact".to_owned(),
            facts: Facts::default(),
            row_types: RowTypes::new(),
        }
    }

    /// Return the forest with names for the components of rewards. Every list of components must then have one value
    /// for each name.
    #[must_use]
    pub fn with_reward_components(self, names: Vec<String>) -> Self {
        Self { reward_components: Some(names), ..self }
    }

    /// Return the forest with the name of its entropy estimator (`exact`, `top_10`, …), which is stored in the metadata
    /// of table `nodes`.
    #[must_use]
    pub fn with_entropies(self, estimator: &str) -> Self {
        Self { entropies: estimator.to_owned(), ..self }
    }

    /// Return the forest with the declared facts of its environment, for steps and for trajectories.
    #[must_use]
    pub fn with_facts(self, facts: Facts) -> Self {
        Self { facts, ..self }
    }

    /// Return the forest with another size limit for blobs, in bytes.
    #[must_use]
    pub fn with_max_blob_bytes(self, max_blob_bytes: usize) -> Self {
        Self { max_blob_bytes, ..self }
    }

    /// The iteration that the forest collects for.
    pub fn iteration(&self) -> i64 {
        self.iteration
    }

    /// Number of groups that are not frozen yet.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether no group is live.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Open group number `group` (chosen by the caller, unique in the iteration) for a task. Its key is the iteration
    /// and the number.
    pub fn add_group(&mut self, group: u32, task_id: &str) -> Result<()> {
        self.add_keyed(group, task_id, GroupKey::of(self.iteration, group))
    }

    /// Open a group with a key of its own. Its seeds and its place among the frozen rows follow from the key, not from
    /// its number. A group that continues in a later iteration keeps the key of its first iteration. The key of a group
    /// derived from another one does not depend on the number of groups derived before it.
    pub fn add_group_as(&mut self, group: u32, task_id: &str, key: &[u64]) -> Result<()> {
        self.add_keyed(group, task_id, GroupKey::new(key)?)
    }

    fn add_keyed(&mut self, group: u32, task_id: &str, origin: GroupKey) -> Result<()> {
        if group > i32::MAX as u32 {
            return Err(Error::invalid(format!("group is {group}; give a number of at most {}", i32::MAX)));
        }
        if self.keys.contains_key(&group) {
            return Err(Error::invalid(format!("group {group} exists already; give each group its own number")));
        }
        if let Some(other) = self.order.get(&origin).and_then(|key| self.groups.get(key)) {
            return Err(Error::invalid(format!(
                "key {:?} of group {group} is already the key of group {}; give each group its own",
                origin.words(),
                other.number
            )));
        }
        let key = next_group_handle()?;
        self.keys.insert(group, key);
        self.order.insert(origin.clone(), key);
        self.groups.insert(key, Group { key, number: group, origin, task_id: task_id.to_owned(), ..Group::default() });
        Ok(())
    }

    /// Store a blob (an image, a screenshot) and return its SHA-256, by which nodes refer to it. Equal bytes are stored
    /// once.
    pub fn add_blob(&mut self, bytes: &[u8]) -> Result<BlobHash> {
        if bytes.len() > self.max_blob_bytes {
            return Err(Error::invalid(format!(
                "the blob has {} bytes, but max_blob_bytes is {}; make it smaller, or raise the limit of the Forest",
                bytes.len(),
                self.max_blob_bytes
            )));
        }
        let hash: BlobHash = Sha256::digest(bytes).into();
        self.blobs.entry(hash).or_insert_with(|| bytes.into());
        Ok(hash)
    }

    /// Start trajectory `member` of a group with an empty path.
    pub fn start(&mut self, group: u32, member: u32) -> Result<Handle> {
        self.start_as(group, &Start { member, ..Start::default() })
    }

    /// Start a trajectory of a group with an empty path and options: its agent, the episode that it joins, the
    /// trajectory that it answers.
    pub fn start_as(&mut self, group: u32, start: &Start) -> Result<Handle> {
        let Start { member, agent, .. } = *start;
        let parent_of_episode = start.episode.map(|other| self.trajectory(other)).transpose()?;
        let episode = parent_of_episode.and_then(|found| found.episode).or(start.episode);
        if let Some(parent) = start.parent {
            self.trajectory(parent)?;
        }
        let entry = self.of_number_mut(group)?;
        if !entry.started.insert((member, agent)) {
            let of_agent = if agent == 0 { String::new() } else { format!(" of agent {agent}") };
            return Err(Error::invalid(format!(
                "member {member}{of_agent} of group {group} was started already; give each root its own member number"
            )));
        }
        entry.trajectories.push(Trajectory { episode, parent: start.parent, ..Trajectory::root(start) });
        let (key, index) = (entry.key, entry.trajectories.len() - 1);
        self.links.extend([episode, start.parent].into_iter().flatten().map(|other| (split(other).0, key)));
        Ok(handle(key, index))
    }

    /// Append a node at the end of a trajectory's path and return its handle. Members of a group that begin with the
    /// same prompt share its node.
    pub fn append(&mut self, trajectory: Handle, new: NewNode) -> Result<Handle> {
        self.append_with(trajectory, new, &BTreeMap::new())
    }

    /// [`Forest::append`] that also records rows of token columns, by column name.
    ///
    /// Rows may begin before the node: rows of earlier tokens of the path are recorded too. A token keeps the first row
    /// that is recorded for it, and all trajectories that share the token share this row. Stored nodes never change.
    pub fn append_with(
        &mut self,
        trajectory: Handle,
        new: NewNode,
        rows: &BTreeMap<String, TokenRows>,
    ) -> Result<Handle> {
        self.check_append(trajectory, &new)?;
        let (key, index) = split(trajectory);
        let group = self.group(trajectory)?;
        let start = group.position(group.trajectories[index].tip) as usize;
        self.declare_rows(start, new.tokens.len(), rows)?;
        let node = handle(key, self.group_mut(trajectory)?.attach(index, new));
        self.record_rows(node, rows)?;
        Ok(node)
    }

    /// Check the rows given with a node of `tokens` tokens that begins at position `start` of its path, and declare
    /// their types.
    fn declare_rows(&mut self, start: usize, tokens: usize, rows: &BTreeMap<String, TokenRows>) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut types = self.row_types.clone();
        for (name, rows) in rows {
            token_columns::check_name(name)?;
            let of = rows.row_type(name)?;
            token_columns::check_type(&types, name, of)?;
            let (count, end) = (rows.len(), start + tokens);
            if rows.begin.is_none() && count != tokens {
                return Err(Error::invalid(format!(
                    "columns[{name:?}] has {count} rows for {tokens} tokens; give one per token, or a pair of the \
                     position of the first and the rows"
                )));
            }
            let begin = rows.begin.unwrap_or(start);
            if begin.checked_add(count).is_none_or(|last| last > end) {
                return Err(Error::invalid(format!(
                    "columns[{name:?}] has {count} rows from position {begin} on, but the path has {end} tokens; give \
                     rows for these tokens only"
                )));
            }
            types.insert(name.clone(), of);
        }
        self.row_types = types;
        Ok(())
    }

    /// Record the rows of a node that `declare_rows` has checked.
    fn record_rows(&mut self, node: Handle, rows: &BTreeMap<String, TokenRows>) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let (key, index) = split(node);
        let group = self.groups.get_mut(&key).ok_or_else(|| Error::internal("the group of a new node is gone"))?;
        for (name, rows) in rows {
            group.record(index, name, self.row_types[name], rows);
        }
        Ok(())
    }

    /// Check that a node may be appended to a trajectory.
    fn check_append(&self, trajectory: Handle, new: &NewNode) -> Result<()> {
        let (_, index) = split(trajectory);
        let group = self.live_group(trajectory)?;
        new.check()?;
        if let Some(origin) = new.origin {
            let (of, node) = split(origin);
            if of != group.key || node >= group.nodes.len() {
                return Err(Error::not_found(format!(
                    "origin is {origin}, which is not a node of group {}; give a node of this group",
                    group.number
                )));
            }
        }
        self.check_blobs(&new.blobs)?;
        let length = group.position(group.trajectories[index].tip) as usize + new.tokens.len();
        i32::try_from(length).map(drop).map_err(|_| {
            Error::new(
                ErrorKind::Overflow,
                format!("trajectory {trajectory} would have more than {} tokens; finish it", i32::MAX),
            )
        })
    }

    /// Check that the forest has all of the blobs.
    fn check_blobs(&self, blobs: &[BlobHash]) -> Result<()> {
        let Some(hash) = blobs.iter().find(|hash| !self.blobs.contains_key(*hash)) else { return Ok(()) };
        let hex = hash.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        Err(Error::not_found(format!("blob {hex} is not in the forest; add it with add_blob first")))
    }

    /// Close the open action of a trajectory as a step, and record its outcome (reward, flags, facts, …).
    pub fn step(&mut self, trajectory: Handle, outcome: &StepOutcome) -> Result<()> {
        check_rewards(outcome.reward, outcome.rewards.as_deref(), self.reward_components.as_deref())?;
        self.facts.check(Table::Steps, &outcome.facts)?;
        let (_, index) = split(trajectory);
        self.live_group(trajectory)?;
        if self.group_mut(trajectory)?.trajectories[index].close_step(index, outcome) {
            Ok(())
        } else {
            Err(Error::invalid(format!(
                "trajectory {trajectory} has no open action to close; append tokens of kind \"action\" first"
            )))
        }
    }

    /// End a trajectory and record its reward, its status and its facts.
    pub fn finish(&mut self, trajectory: Handle, finish: Finish) -> Result<()> {
        check_rewards(finish.reward, finish.rewards.as_deref(), self.reward_components.as_deref())?;
        self.facts.check(Table::Trajectories, &finish.facts)?;
        let (_, index) = split(trajectory);
        let entry = &self.live_group(trajectory)?.trajectories[index];
        if entry.steps.is_empty() && entry.open.is_none() && finish.status.is_drawn() {
            return Err(Error::invalid(format!(
                "trajectory {trajectory} ends without an action; append one, or finish it with status \"aborted\" or \"failed\""
            )));
        }
        let entry = &mut self.group_mut(trajectory)?.trajectories[index];
        entry.close_step(index, &StepOutcome::default());
        entry.status = finish.status;
        entry.finish = finish;
        Ok(())
    }

    /// Append a decision to table `decisions`. The table is a log: the decision is recorded, not carried out.
    ///
    /// The decisions of a group are ordered by round, ordinal, trajectory, operation, place and result.
    pub fn decide(&mut self, decision: Decision) -> Result<()> {
        let group = self.group(decision.trajectory)?;
        for (name, value) in [("in_round", Some(decision.round)), ("ordinal", decision.ordinal), ("end", decision.end)]
        {
            if let Some(value) = value.filter(|&value| i32::try_from(value).is_err()) {
                return Err(Error::invalid(format!("{name} is {value}; give a number of at most {}", i32::MAX)));
            }
        }
        let parts = [("node", decision.node, group.nodes.len()), ("result", decision.result, group.trajectories.len())];
        for (name, found, count) in parts {
            if let Some(found) = found.filter(|&found| split(found).0 != group.key || split(found).1 >= count) {
                return Err(Error::not_found(format!(
                    "{name} is {found}, which is not in group {}; give a handle of this group",
                    group.number
                )));
            }
        }
        self.group_mut(decision.trajectory)?.decisions.push(decision);
        Ok(())
    }

    /// Mark every running trajectory as aborted, so that its group can freeze (after an interrupted run).
    pub fn abort(&mut self) {
        for group in self.groups.values_mut() {
            for (index, entry) in group.trajectories.iter_mut().enumerate().filter(|(_, entry)| entry.is_running()) {
                entry.close_step(index, &StepOutcome::default());
                entry.status = Status::Aborted;
                group.changed.push(index);
            }
        }
    }

    /// The tokens of a trajectory's path.
    pub fn tokens(&self, trajectory: Handle) -> Result<Vec<i32>> {
        let (_, index) = split(trajectory);
        let group = self.group(trajectory)?;
        let path = group.path(group.trajectories[index].tip);
        Ok(path.iter().flat_map(|&(node, used)| &group.nodes[node].content.tokens[..used as usize]).copied().collect())
    }

    /// Return the seed of the next segment to sample for a trajectory: a hash of the run's seed and the segment's
    /// place.
    pub fn segment_seed(&self, trajectory: Handle) -> Result<u64> {
        let [first, second] = self.group(trajectory)?.origin.seeding();
        let entry = self.trajectory(trajectory)?;
        let mut parts = vec![self.seed, first, second];
        parts.extend(entry.place);
        parts.push(entry.steps.len() as u64);
        parts.extend(entry.open.map(|open| u64::from(open.segments)));
        Ok(structural_seed(&parts))
    }

    fn group(&self, trajectory: Handle) -> Result<&Group> {
        let (key, index) = split(trajectory);
        match self.groups.get(&key) {
            Some(group) if index < group.trajectories.len() => Ok(group),
            group => Err(unknown(trajectory, group.is_some())),
        }
    }

    /// Return the group of a trajectory to change it; the trajectory is recorded as changed.
    fn group_mut(&mut self, trajectory: Handle) -> Result<&mut Group> {
        let (key, index) = split(trajectory);
        match self.groups.get_mut(&key) {
            Some(group) if index < group.trajectories.len() => {
                group.changes(index);
                Ok(group)
            }
            group => Err(unknown(trajectory, group.is_some())),
        }
    }

    /// The group with a number.
    fn of_number(&self, number: u32) -> Result<&Group> {
        let group = self.keys.get(&number).and_then(|key| self.groups.get(key));
        group.ok_or_else(|| no_group(number))
    }

    fn of_number_mut(&mut self, number: u32) -> Result<&mut Group> {
        let group = self.keys.get(&number).and_then(|key| self.groups.get_mut(key));
        group.ok_or_else(|| no_group(number))
    }

    fn trajectory(&self, trajectory: Handle) -> Result<&Trajectory> {
        Ok(&self.group(trajectory)?.trajectories[split(trajectory).1])
    }

    /// Return the group of a trajectory that is still running; an error if it is stored or has ended.
    fn live_group(&self, trajectory: Handle) -> Result<&Group> {
        let (_, index) = split(trajectory);
        let group = self.group(trajectory)?;
        let entry = &group.trajectories[index];
        if entry.is_running() {
            return Ok(group);
        }
        let why = if entry.stored.is_some() { "is stored" } else { "has ended" };
        Err(Error::invalid(format!(
            "trajectory {trajectory} {why} ({:?}); fork it at one of its tokens to continue",
            entry.status
        )))
    }
}

fn unknown(trajectory: Handle, in_live_group: bool) -> Error {
    let why = if in_live_group {
        "it was never started; use a handle that start or fork returned"
    } else {
        "its group was frozen, or the handle is of another forest; use a handle that this forest returned for a live group"
    };
    Error::not_found(format!("trajectory {trajectory} is not in the forest: {why}"))
}

fn no_group(number: u32) -> Error {
    Error::not_found(format!(
        "group {number} is not in the forest (never added, or frozen); add it with add_group first"
    ))
}

#[cfg(test)]
mod tests;
