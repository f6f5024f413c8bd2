//! The live rollout forest: groups of trajectories that grow turn by turn, fork at any token, and freeze into a Batch.
//!
//! A node is never cut or changed. A fork inside a node is a child that remembers how many of the parent's tokens come
//! before it, so forks cost nothing and frozen nodes can be forked too. Everything is identified by its place (group,
//! member, branch position, ordinal, content), never by the order of arrival: the same rollouts freeze to the same Batch,
//! however many threads made them.

mod adopt;
mod branch;
mod cut;
mod decision;
mod freeze;
mod ingest;
mod key;
mod look;
mod node;
mod order;
mod rows;
mod search;
mod share;
mod steps;
mod trajectory;
mod under;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use agentrl_compute::hash::{hash_bytes, hash_tokens};
use agentrl_compute::rng::structural_seed;
use sha2::{Digest, Sha256};

pub use branch::Fork;
pub use cut::Cut;
pub use decision::Decision;
pub use ingest::{Ingested, Role, Rows, Turns};
pub use node::{BlobHash, NewNode, Sampling};
pub use search::SearchTree;
pub use trajectory::{Finish, Start, StepOutcome};
pub use view::Frontier;

use crate::batch::NextIds;
use crate::facts::Facts;
use crate::schema::{Kind, Status, Table};
use crate::{Error, ErrorKind, Result};
use adopt::Adopted;
use key::GroupKey;
use node::Node;
use steps::OpenStep;
use trajectory::{Trajectory, check_rewards};

/// Handle of a trajectory or a node: the key of its group in the high half, its place in the group in the low half.
pub type Handle = i64;

/// What the handles of a group begin with. No other group has it, in no forest of the process, so that a handle of another
/// forest, or of a group that was frozen, is known for what it is.
type Key = u32;

/// The key of the next group.
static NEXT_KEY: AtomicU32 = AtomicU32::new(0);

fn next_key() -> Result<Key> {
    let next = |key: Key| key.checked_add(1).filter(|&next| i32::try_from(next).is_ok());
    NEXT_KEY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| {
        Error::overflow(format!(
            "the process has made {} groups, and there are no more handles; start another",
            i32::MAX
        ))
    })
}

/// A node of a group and how many of its tokens a path uses.
type Place = (usize, u32);

/// Largest blob that a forest takes, unless it is told otherwise.
const MAX_BLOB_BYTES: usize = 64 << 20;

fn handle(group: Key, index: usize) -> Handle {
    (i64::from(group) << 32) | index as i64
}

fn split(handle: Handle) -> (Key, usize) {
    ((handle >> 32) as u32, (handle & 0xffff_ffff) as usize)
}

#[derive(Clone, Debug, Default)]
struct Group {
    key: Key,
    /// What the caller calls it.
    number: u32,
    /// What its seeds and the order of its rows follow from.
    origin: GroupKey,
    task_id: String,
    nodes: Vec<Node>,
    /// Prompts at the roots of the tree by the hash of their tokens; members that begin alike share one.
    roots: BTreeMap<[u8; 16], Vec<usize>>,
    trajectories: Vec<Trajectory>,
    /// Members and agents that were started.
    started: BTreeSet<(u32, i32)>,
    decisions: Vec<Decision>,
    adopted: Adopted,
    /// The trajectories that changed, in that order: who reads the group again looks at those alone.
    changed: Vec<usize>,
}

/// The live form of the data. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Forest {
    iteration: i64,
    seed: u64,
    groups: BTreeMap<Key, Group>,
    /// The groups by their numbers.
    keys: BTreeMap<u32, Key>,
    /// The groups in the order in which they freeze.
    order: BTreeMap<GroupKey, Key>,
    /// Pairs of groups with a trajectory in one that answers a trajectory in the other: they freeze together.
    links: BTreeSet<(Key, Key)>,
    /// First ids of new rows: those below are of adopted rows and of the store that they come from.
    base: NextIds,
    blobs: BTreeMap<BlobHash, Arc<[u8]>>,
    max_blob_bytes: usize,
    reward_components: Option<Vec<String>>,
    entropies: String,
    facts: Facts,
}

impl Forest {
    /// An empty forest of one iteration; `seed` is the run's seed, from which all others follow.
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
        }
    }

    /// The forest with names for the components of rewards; every list of components then has one value for each.
    #[must_use]
    pub fn with_reward_components(self, names: Vec<String>) -> Self {
        Self { reward_components: Some(names), ..self }
    }

    /// The forest with a word on how entropies are estimated (`exact`, `top_10`, …), which is kept beside them.
    #[must_use]
    pub fn with_entropies(self, estimator: &str) -> Self {
        Self { entropies: estimator.to_owned(), ..self }
    }

    /// The forest with what its environment says beyond the reward, of steps and of trajectories.
    #[must_use]
    pub fn with_facts(self, facts: Facts) -> Self {
        Self { facts, ..self }
    }

    /// The forest with another limit for the size of a blob.
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

    /// Opens group number `group` (chosen by the caller, unique in the iteration) for a task. Its key is the iteration and
    /// the number.
    pub fn add_group(&mut self, group: u32, task_id: &str) -> Result<()> {
        self.add_keyed(group, task_id, GroupKey::of(self.iteration, group))
    }

    /// Opens a group whose seeds and whose place among the frozen rows follow from a key instead of its number: a group that
    /// goes on in a later iteration keeps those of the one in which it began, and one that came of another group does not
    /// depend on how many others did before it.
    pub fn add_group_as(&mut self, group: u32, task_id: &str, key: &[u64]) -> Result<()> {
        self.add_keyed(group, task_id, GroupKey::new(key)?)
    }

    fn add_keyed(&mut self, group: u32, task_id: &str, origin: GroupKey) -> Result<()> {
        if group > i32::MAX as u32 {
            return Err(Error::invalid(format!("group is {group}; it must be at most {}", i32::MAX)));
        }
        if self.keys.contains_key(&group) {
            return Err(Error::invalid(format!("group {group} exists already; give each group its own number")));
        }
        if let Some(other) = self.order.get(&origin).and_then(|key| self.groups.get(key)) {
            return Err(Error::invalid(format!(
                "key {:?} of group {group} is that of group {}; give each group its own",
                origin.words(),
                other.number
            )));
        }
        let key = next_key()?;
        self.keys.insert(group, key);
        self.order.insert(origin.clone(), key);
        self.groups.insert(key, Group { key, number: group, origin, task_id: task_id.to_owned(), ..Group::default() });
        Ok(())
    }

    /// Keeps a blob (an image, a screenshot) and returns its SHA-256, by which nodes refer to it. The same bytes are kept
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

    /// Starts trajectory `member` of a group at an empty path.
    pub fn start(&mut self, group: u32, member: u32) -> Result<Handle> {
        self.start_as(group, &Start { member, ..Start::default() })
    }

    /// Starts a trajectory of a group at an empty path: of one of several agents, of an episode that others are part of,
    /// or as the answer to another trajectory.
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

    /// Appends a node at the end of a trajectory's path and returns its handle. Members of a group that begin with the
    /// same prompt share its node.
    pub fn append(&mut self, trajectory: Handle, new: NewNode) -> Result<Handle> {
        self.check_append(trajectory, &new)?;
        let (key, index) = split(trajectory);
        let node = self.group_mut(trajectory)?.attach(index, new);
        Ok(handle(key, node))
    }

    /// Whether a node may be appended to a trajectory.
    fn check_append(&self, trajectory: Handle, new: &NewNode) -> Result<()> {
        let (_, index) = split(trajectory);
        let group = self.live_group(trajectory)?;
        new.check()?;
        if let Some(origin) = new.origin {
            let (of, node) = split(origin);
            if of != group.key || node >= group.nodes.len() {
                return Err(Error::not_found(format!(
                    "origin is {origin}, which is not a node of group {}",
                    group.number
                )));
            }
        }
        if let Some(hash) = new.blobs.iter().find(|hash| !self.blobs.contains_key(*hash)) {
            let hex = hash.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
            return Err(Error::not_found(format!("blob {hex} is not in the forest; add it with add_blob first")));
        }
        let length = group.position(group.trajectories[index].tip) as usize + new.tokens.len();
        i32::try_from(length).map(drop).map_err(|_| {
            Error::new(ErrorKind::Overflow, format!("trajectory {trajectory} would grow over {} tokens", i32::MAX))
        })
    }

    /// Closes the action just appended and records what the environment paid for it.
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

    /// Ends a trajectory.
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

    /// Marks every trajectory that is still running as aborted, so that its group can freeze (an interrupted run).
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

    /// Seed of the next segment that is sampled for a trajectory: a hash of the run's seed and the segment's place.
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

    /// The group of a trajectory that is about to change.
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

    /// The group of a trajectory that has not ended.
    fn live_group(&self, trajectory: Handle) -> Result<&Group> {
        let (_, index) = split(trajectory);
        let group = self.group(trajectory)?;
        let entry = &group.trajectories[index];
        if entry.is_running() {
            return Ok(group);
        }
        let why = if entry.stored.is_some() { "is stored" } else { "has ended" };
        Err(Error::invalid(format!(
            "trajectory {trajectory} {why} ({:?}); fork it to go on from one of its tokens",
            entry.status
        )))
    }
}

fn unknown(trajectory: Handle, in_live_group: bool) -> Error {
    let why = if in_live_group {
        "it was never started; use a handle that start or fork returned"
    } else {
        "its group was frozen, or it is a handle of another forest; use handles that this forest gave, of groups that are live"
    };
    Error::not_found(format!("trajectory {trajectory} is not in the forest: {why}"))
}

fn no_group(number: u32) -> Error {
    Error::not_found(format!(
        "group {number} is not in the forest (never added, or frozen); add it with add_group first"
    ))
}

impl Trajectory {
    /// Whether the trajectory takes further tokens.
    fn is_running(&self) -> bool {
        self.status == Status::Partial && self.stored.is_none()
    }
}

impl Group {
    /// Notes that a trajectory changes, for those who read the group again later.
    fn changes(&mut self, index: usize) {
        if self.changed.last() != Some(&index) {
            self.changed.push(index);
        }
    }

    /// Nodes of a path from its root, each with the number of its tokens that the path uses.
    fn path(&self, tip: Option<Place>) -> Vec<Place> {
        let mut path: Vec<_> = std::iter::successors(tip, |&(node, _)| self.nodes[node].parent).collect();
        path.reverse();
        path
    }

    /// Number of tokens before the end of a path.
    fn position(&self, tip: Option<Place>) -> u32 {
        tip.map_or(0, |(node, end)| self.nodes[node].start + end)
    }

    /// Key of the state that the next action of a trajectory acts on.
    fn state_key(&self, index: usize) -> [u8; 16] {
        let entry = &self.trajectories[index];
        let of_node = entry.tip.map(|(node, _)| self.nodes[node].state_key);
        entry.state_key.or(of_node).unwrap_or_else(|| hash_bytes(b""))
    }

    /// Appends a node that was checked to a trajectory: what [`Forest::append`] does after its checks.
    fn attach(&mut self, index: usize, new: NewNode) -> usize {
        let tip = self.trajectories[index].tip;
        let start = self.position(tip);
        let state_key = self.state_key(index);
        let node = Node::new(new, tip, start, state_key);
        let (kind, tokens) = (node.content.kind, node.len());
        let entry = &mut self.trajectories[index];
        entry.state_key = None;
        if tip.is_none() && kind == Kind::Prompt {
            let alike = self.roots.entry(hash_tokens(&node.content.tokens)).or_default();
            if let Some(&root) = alike.iter().find(|&&root| self.nodes[root].begins_like(&node)) {
                entry.tip = Some((root, tokens));
                return root;
            }
            alike.push(self.nodes.len());
        }
        let local = self.nodes.len();
        self.nodes.push(node);
        if kind == Kind::Action {
            let last = (local, start + tokens);
            let begun = OpenStep { first_node: local, start, state_key, last, segments: 0 };
            let open = entry.open.get_or_insert(begun);
            *open = OpenStep { last, segments: open.segments + 1, ..*open };
        } else {
            entry.close_step(index, &StepOutcome::default());
        }
        entry.tip = Some((local, tokens));
        local
    }
}

#[cfg(test)]
mod tests;
