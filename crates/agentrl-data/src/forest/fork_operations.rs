//! Operations that derive a trajectory from another one, or prune one. They never delete a token.

use agentrl_compute::hash::hash_bytes;

use super::steps::{OpenStep, Step};
use super::trajectory::{Lineage, Note, Ordinal, Trajectory};
use super::{BlobHash, Forest, Group, GroupHandle, Handle, NewNode, Place, StepOutcome, handle, split};
use crate::schema::{Kind, Status};
use crate::{Error, Result};

/// The end of a prefix of a trajectory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForkPoint {
    /// Number of the trajectory's context.
    context: u32,
    /// Last node of the prefix and the number of its tokens; `None` before the first token.
    place: Option<Place>,
    /// Number of tokens of the prefix.
    position: u32,
}

impl ForkPoint {
    /// Before the first token.
    pub(super) const START: Self = Self { context: 0, place: None, position: 0 };
}

/// The last part of a trajectory, to copy after another prefix.
pub(super) struct Part {
    /// Nodes to append, each with the index of the node that it copies.
    nodes: Vec<(usize, NewNode)>,
    /// Steps that end in these nodes.
    steps: Vec<Step>,
}

/// Options of a fork; see [`Forest::fork_many`].
#[derive(Clone, Copy, Debug)]
pub struct Fork {
    /// Number of forks.
    pub count: u32,
    /// Ordinal of the first fork among the forks that leave the trajectory at the same token; the other forks get the
    /// next ones. Rows of forks without an ordinal are ordered by content.
    pub ordinal: Option<u32>,
    /// Whether inherited steps are trained as steps of the forks too. Their training in other trajectories does not
    /// change.
    pub train_prefix: bool,
    /// A trajectory of the group whose episode the forks join; `None`: each fork begins an episode.
    pub episode: Option<Handle>,
}

impl Default for Fork {
    fn default() -> Self {
        Self { count: 1, ordinal: None, train_prefix: true, episode: None }
    }
}

impl Forest {
    /// Start a trajectory that shares a prefix with `trajectory`: its path up to and including the first `end` tokens
    /// of `node`. If `end` is `None`, all of the node is shared; if both are `None`, the whole path so far. The parent
    /// may have ended, or be stored.
    pub fn fork(&mut self, trajectory: Handle, node: Option<Handle>, end: Option<u32>) -> Result<Handle> {
        Ok(self.fork_many(trajectory, node, end, &Fork::default())?[0])
    }

    /// Start several forks at once; see [`Forest::fork`].
    ///
    /// If `node` lies in several contexts of the trajectory, the fork is in the earliest.
    pub fn fork_many(
        &mut self,
        trajectory: Handle,
        node: Option<Handle>,
        end: Option<u32>,
        fork: &Fork,
    ) -> Result<Vec<Handle>> {
        let Fork { count, ordinal, train_prefix, episode } = *fork;
        let (key, index) = split(trajectory);
        let group = self.group(trajectory)?;
        let point = group.locate(trajectory, node, end)?;
        if count == 0 {
            return Err(Error::invalid("count is 0; fork at least once"));
        }
        let episode = episode.map(|other| self.episode_of(other, key)).transpose()?;
        let parent = &group.trajectories[index];
        let taken = parent.forks.get(&(point.context, point.position));
        if let Some(first) = ordinal {
            let last = first.checked_add(count - 1);
            let last = last.ok_or_else(|| {
                Error::invalid(format!("ordinal is {first}; give a smaller number, so that all ordinals fit 32 bits"))
            })?;
            if let Some(found) = taken.and_then(|taken| taken.given.range(first..=last).next()) {
                return Err(Error::invalid(format!(
                    "ordinal {found} was given to another fork of trajectory {trajectory} at the same token; give each its own"
                )));
            }
        }
        let group = self.group_mut(trajectory)?;
        let fork = |way| {
            let child = group.fork(index, point, ordinal.map(|first| first + way));
            let entry = &mut group.trajectories[child];
            entry.untrained = if train_prefix { 0 } else { entry.steps.len() };
            entry.episode = episode;
            handle(key, child)
        };
        Ok((0..count).map(fork).collect())
    }

    /// Return the first trajectory of a trajectory's episode. The trajectory must be in group `key`.
    fn episode_of(&self, trajectory: Handle, key: GroupHandle) -> Result<Handle> {
        if split(trajectory).0 != key {
            return Err(Error::invalid(format!(
                "episode is {trajectory}, a trajectory of another group; give one of the group of the fork"
            )));
        }
        Ok(self.trajectory(trajectory)?.episode.unwrap_or(trajectory))
    }

    /// Roll a trajectory back to an earlier token: a fork continues from there. The old trajectory is pruned; its
    /// tokens stay in the data. Return the fork.
    pub fn rollback(&mut self, trajectory: Handle, node: Handle, end: Option<u32>) -> Result<Handle> {
        let (_, index) = split(trajectory);
        let entry = self.trajectory(trajectory)?;
        if entry.stored.is_some() {
            return Err(stored(trajectory));
        }
        if entry.status == Status::Pruned {
            return Err(Error::invalid(format!(
                "trajectory {trajectory} is pruned; fork it at one of its tokens to continue"
            )));
        }
        let point = self.group(trajectory)?.locate(trajectory, Some(node), end)?;
        let group = self.group_mut(trajectory)?;
        let back = group.fork(index, point, None);
        group.take_out(index, Note::Pruned("rolled back".to_owned()));
        Ok(handle(split(trajectory).0, back))
    }

    /// Replace a trajectory by `by`, a trajectory of the same group. The old trajectory stays in the data, pruned, and
    /// records which one replaced it.
    pub fn replace(&mut self, trajectory: Handle, by: Handle) -> Result<()> {
        let ((key, index), (other, by_index)) = (split(trajectory), split(by));
        let (old, new) = (self.trajectory(trajectory)?, self.trajectory(by)?);
        if key != other || index == by_index {
            return Err(Error::invalid(format!("by is {by}; give another trajectory of the same group")));
        }
        if old.stored.is_some() {
            return Err(stored(trajectory));
        }
        if new.status == Status::Pruned {
            return Err(Error::invalid(format!("by is {by}, which was pruned; give one that is still in the tree")));
        }
        self.group_mut(trajectory)?.take_out(index, Note::ReplacedBy(by_index));
        Ok(())
    }

    /// Remove a trajectory from training. Its tokens stay in the data with status `pruned` and the reason in `info`
    /// (`{"pruned": reason, "info": …}`). With `gradient_only` the trajectory continues and votes in its group's
    /// statistics, but its steps have [`crate::schema::FLAG_UNTRAINED`].
    pub fn prune(&mut self, trajectory: Handle, reason: &str, gradient_only: bool) -> Result<()> {
        let (_, index) = split(trajectory);
        let entry = self.trajectory(trajectory)?;
        if entry.stored.is_some() {
            return Err(stored(trajectory));
        }
        if gradient_only && entry.status == Status::Pruned {
            return Err(Error::invalid(format!(
                "trajectory {trajectory} is pruned, so it has no gradient; give one that is still in the tree"
            )));
        }
        let group = self.group_mut(trajectory)?;
        if gradient_only {
            group.trajectories[index].note = Some(Note::Untrained(reason.to_owned()));
        } else {
            group.take_out(index, Note::Pruned(reason.to_owned()));
        }
        Ok(())
    }

    /// Join the beginning of one trajectory and the end of another one of the same group: `prefix` up to `end` tokens
    /// of `node`, then the path of `suffix` from token `start` of node `from` on.
    ///
    /// The suffix is copied. Its nodes keep their kinds and name their origin. They have no log-probs, because they
    /// were not sampled after this prefix. Its steps are copied with their outcomes. The new trajectory is running.
    pub fn splice(
        &mut self,
        prefix: Handle,
        (node, end): (Option<Handle>, Option<u32>),
        suffix: Handle,
        (from, start): (Handle, u32),
    ) -> Result<Handle> {
        let ((key, index), (other, suffix_index)) = (split(prefix), split(suffix));
        let group = self.group(prefix)?;
        self.group(suffix)?;
        if key != other {
            return Err(Error::invalid(format!(
                "suffix is {suffix}, a trajectory of another group; give one of the group of prefix"
            )));
        }
        let point = group.locate(prefix, node, end)?;
        let part = group.part(suffix, from, start)?;
        part.check_length(point.position as usize)?;
        let shift = i64::from(point.position) - i64::from(group.nodes[split(from).1].start + start);
        let group = self.group_mut(prefix)?;
        let spliced = group.fork(index, point, None);
        group.copy(part, suffix_index, spliced, shift);
        Ok(handle(key, spliced))
    }

    /// Give a trajectory another context (a memory, a summary, a window, the view of a sub-agent), from which it
    /// continues. Return the number of tokens that the new context shares with the trajectory's own path.
    ///
    /// The context enters the tree at the first token that differs from the trajectory's own path. The remaining tokens
    /// are one node of kind injected, so generated text that the context repeats is not trained again. The next action
    /// acts on `state`; if it is `None`, on the same state as before. `images` are the blobs of the context, each with
    /// the index of its first token. A node with images is shared whole and with the same images, or not at all.
    pub fn rewrite(
        &mut self,
        trajectory: Handle,
        tokens: &[i32],
        images: &[(u32, BlobHash)],
        state: Option<&[u8]>,
    ) -> Result<u32> {
        let (_, index) = split(trajectory);
        let group = self.live_group(trajectory)?;
        let mut all = NewNode::new(Kind::Injected, tokens.to_vec());
        all.blobs = images.iter().map(|&(_, hash)| hash).collect();
        all.check()?;
        self.check_blobs(&all.blobs)?;
        if let Some(&(place, _)) = images.iter().find(|&&(place, _)| place as usize >= tokens.len()) {
            return Err(Error::invalid(format!(
                "an image begins at token {place}, but the context has {} tokens; give the place of its first token",
                tokens.len()
            )));
        }
        if i32::try_from(tokens.len()).is_err() {
            return Err(Error::overflow(format!(
                "tokens has {} values; give at most {}, the longest path",
                tokens.len(),
                i32::MAX
            )));
        }
        let tip = group.trajectories[index].tip;
        let (mut place, mut shared) = (None, 0);
        for (node, used) in group.path(tip) {
            let content = &group.nodes[node].content;
            let own = &content.tokens[..used as usize];
            let mut same = own.iter().zip(&tokens[shared..]).take_while(|(mine, other)| mine == other).count();
            let within = shared..shared + same;
            let shown = images.iter().filter(|(place, _)| within.contains(&(*place as usize))).map(|(_, hash)| hash);
            let is_whole = same == content.tokens.len();
            if !(content.blobs.is_empty() || is_whole) || !shown.eq(&content.blobs) {
                same = 0;
            }
            shared += same;
            if same > 0 {
                place = Some((node, same as u32));
            }
            if same < own.len() {
                break;
            }
        }
        let state_key = state.map_or_else(|| group.state_key(index), hash_bytes);
        let group = self.group_mut(trajectory)?;
        let entry = &mut group.trajectories[index];
        entry.close_step(index, &StepOutcome::default());
        if place != tip {
            entry.contexts.extend(tip);
            entry.tip = place;
        }
        entry.state_key = Some(state_key);
        if shared < tokens.len() {
            let mut rest = NewNode::new(Kind::Injected, tokens[shared..].to_vec());
            let later = images.iter().filter(|(place, _)| *place as usize >= shared);
            rest.blobs = later.map(|&(_, hash)| hash).collect();
            group.attach(index, rest);
        }
        Ok(shared as u32)
    }
}

fn stored(trajectory: Handle) -> Error {
    Error::invalid(format!("trajectory {trajectory} is stored, and stored trajectories never change; fork it instead"))
}

impl Group {
    /// Find the end of the prefix of a trajectory that ends after `end` tokens of `node`.
    fn locate(&self, trajectory: Handle, node: Option<Handle>, end: Option<u32>) -> Result<ForkPoint> {
        let (_, index) = split(trajectory);
        let parent = &self.trajectories[index];
        let point = |context, place| ForkPoint { context, place, position: self.position(place) };
        let Some(node) = node else {
            if end.is_some() {
                return Err(Error::invalid("end is given without node; name the node that the fork cuts"));
            }
            return Ok(point(parent.context(), parent.tip));
        };
        let (of, local) = split(node);
        let mut most = None;
        if of == self.key {
            for (context, tip) in (0..).zip(parent.tips()) {
                // Parents come before their children, so a walk upwards can stop early.
                let above = std::iter::successors(Some(tip), |&(node, _)| self.nodes[node].parent);
                let found = above.take_while(|&(node, _)| node >= local).find(|&(node, _)| node == local);
                let Some((_, used)) = found else { continue };
                let end = end.unwrap_or(used);
                if end <= used {
                    // The place before a node's first token is the place at which the node leaves its parent.
                    return Ok(point(context, if end == 0 { self.nodes[local].parent } else { Some((local, end)) }));
                }
                most = most.max(Some(used));
            }
        }
        Err(match (most, end) {
            (Some(used), Some(end)) => Error::invalid(format!(
                "end is {end}, but trajectory {trajectory} uses {used} tokens of node {node}; use 0 to {used}"
            )),
            _ => Error::not_found(format!(
                "node {node} is not on the path of trajectory {trajectory}; give a node of its path"
            )),
        })
    }

    /// Add a fork of a trajectory. Inherited steps that the parent leaves out of its gradient are left out of the
    /// fork's too.
    pub(super) fn fork(&mut self, index: usize, point: ForkPoint, ordinal: Option<u32>) -> usize {
        let ForkPoint { context, place, position } = point;
        let number = self.trajectories.len();
        let inherited = self.steps_until(index, context, position);
        let acted_on = self.state_acted_on(index, context, position);
        // An action that the fork point divides continues in the child, as the child's own action.
        let divided = self.step(index, inherited).filter(|step| step.context == context);
        let divided = divided.map(|step| (step.first_node, step.start, step.state_key));
        let steps = self.inherit(index, inherited);
        let parent = &mut self.trajectories[index];
        let ordinals = parent.forks.entry((context, position)).or_default();
        let ordinal = if let Some(ordinal) = ordinal {
            ordinals.given.insert(ordinal);
            Ordinal::Given(ordinal)
        } else {
            ordinals.arrived += 1;
            Ordinal::Arrival(ordinals.arrived - 1)
        };
        let mut child = parent.child(index, context, position, ordinal);
        child.contexts = parent.contexts[..context as usize].to_vec();
        child.tip = place;
        child.branch = place;
        child.state_key = parent.state_key.filter(|_| (context, place) == (parent.context(), parent.tip)).or(acted_on);
        child.untrained = parent.untrained.min(inherited);
        child.steps = steps;
        let open = parent.open.filter(|_| context == parent.context());
        let divided = divided.or(open.map(|open| (open.first_node, open.start, open.state_key)));
        if let (Some((first_node, start, state_key)), Some((node, _))) = (divided, place)
            && start < position
        {
            child.open = Some(OpenStep { first_node, start, state_key, last: (node, position), segments: 1 });
        }
        child.parent = Some(handle(self.key, index));
        self.trajectories.push(child);
        number
    }

    /// End a trajectory as pruned, with a note.
    fn take_out(&mut self, index: usize, note: Note) {
        let entry = &mut self.trajectories[index];
        entry.close_step(index, &StepOutcome::default());
        entry.status = Status::Pruned;
        entry.note = Some(note);
    }

    /// Return the part of a trajectory that a splice copies: the nodes of its current context from a token on, each
    /// with its original, and the steps that end in them.
    pub(super) fn part(&self, suffix: Handle, from: Handle, start: u32) -> Result<Part> {
        let (key, index) = split(suffix);
        let entry: &Trajectory = &self.trajectories[index];
        let path = self.path(entry.tip);
        let first = path.iter().position(|&(node, _)| handle(key, node) == from);
        let first = first.ok_or_else(|| {
            Error::not_found(format!("node {from} is not on the path of trajectory {suffix}; give a node of its path"))
        })?;
        let (node, used) = path[first];
        if start >= used {
            return Err(Error::invalid(format!(
                "start is {start}, but trajectory {suffix} uses {used} tokens of node {from}; use 0 to {}",
                used - 1
            )));
        }
        let position = self.nodes[node].start + start;
        let copies = path[first..].iter().enumerate().map(|(place, &(node, used))| {
            let skipped = if place == 0 { start as usize } else { 0 };
            let content = &self.nodes[node].content;
            let part = skipped..used as usize;
            let new = NewNode {
                trainable: content.trainable.as_ref().map(|mask| mask[part.clone()].to_vec()),
                policy: content.policy,
                policy_version: content.policy_version,
                origin: Some(handle(key, node)),
                blobs: content.blobs.clone(),
                ..NewNode::new(content.kind, content.tokens[part].to_vec())
            };
            (node, new)
        });
        let before = self.steps_until(index, entry.context(), position);
        Ok(Part { nodes: copies.collect(), steps: self.steps(index).skip(before).cloned().collect() })
    }

    /// Append a part of trajectory `from` to trajectory `to`, in which its positions are larger by `shift`.
    pub(super) fn copy(&mut self, part: Part, from: usize, to: usize, shift: i64) {
        let mut steps = part.steps.into_iter().peekable();
        for (original, new) in part.nodes {
            let (kind, tokens) = (new.kind, new.tokens.len() as u32);
            let copy = self.attach(to, new);
            let position = i64::from(self.nodes[copy].start + tokens);
            if !matches!(kind, Kind::Action | Kind::Injected) {
                let context = self.trajectories[from].context();
                let acted_on = self.state_acted_on(from, context, (position - shift) as u32);
                self.nodes[copy].state_key = acted_on.unwrap_or(self.nodes[original].state_key);
            }
            if let Some(step) = steps.next_if(|step| i64::from(step.end) + shift <= position) {
                self.trajectories[to].close_step(to, &step.outcome);
            }
        }
    }
}

impl Part {
    /// Check that the trajectory is not too long if the part comes after `before` tokens.
    pub(super) fn check_length(&self, before: usize) -> Result<()> {
        let length: usize = self.nodes.iter().map(|(_, new)| new.tokens.len()).sum();
        if before.checked_add(length).is_some_and(|length| i32::try_from(length).is_ok()) {
            return Ok(());
        }
        Err(Error::overflow(format!("the new trajectory would have more than {} tokens; join shorter parts", i32::MAX)))
    }
}

impl Lineage {
    /// Return the parent, the context and the position of a fork; `None` for roots and stored trajectories.
    pub(super) fn fork_of(self) -> Option<(usize, u32, u32)> {
        match self {
            Self::Fork { parent, context, position, .. } => Some((parent, context, position)),
            Self::Root { .. } | Self::Stored { .. } => None,
        }
    }
}
