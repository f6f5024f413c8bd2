//! The live rollout forest: groups of trajectories that grow turn by turn, fork at any token, and freeze into a Batch.
//!
//! A node is never cut or changed. A fork inside a node is a child that remembers how many of the parent's tokens come
//! before it, so forks cost nothing and frozen nodes can be forked too. Everything is identified by its place (group,
//! member, fork path, step), never by the order of arrival: the same operations in any interleaving over trajectories
//! freeze to the same Batch.

mod freeze;
mod node;
mod trajectory;

use std::collections::BTreeMap;

use agentrl_compute::hash::hash_bytes;
use agentrl_compute::rng::structural_seed;

pub use node::{NewNode, Sampling};
pub use trajectory::{Finish, StepOutcome};

use crate::schema::{Kind, Status};
use crate::{Error, ErrorKind, Result};
use node::Node;
use trajectory::{Branch, OpenStep, Trajectory};

/// Handle of a trajectory or a node: its group in the high half, its place in the group in the low half.
pub type Handle = i64;

fn handle(group: u32, index: usize) -> Handle {
    (i64::from(group) << 32) | index as i64
}

fn split(handle: Handle) -> (u32, usize) {
    ((handle >> 32) as u32, (handle & 0xffff_ffff) as usize)
}

#[derive(Clone, Debug, Default)]
struct Group {
    task_id: String,
    nodes: Vec<Node>,
    /// Prompts at the roots of the tree; members that begin alike share one.
    roots: Vec<usize>,
    trajectories: Vec<Trajectory>,
}

/// The live form of the data. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Forest {
    iteration: i64,
    seed: u64,
    groups: BTreeMap<u32, Group>,
}

impl Forest {
    /// An empty forest of one iteration; `seed` is the run's seed, from which all others follow.
    pub fn new(iteration: i64, seed: u64) -> Self {
        Self { iteration, seed, groups: BTreeMap::new() }
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

    /// Opens group number `group` (chosen by the caller, unique in the iteration) for a task.
    pub fn add_group(&mut self, group: u32, task_id: &str) -> Result<()> {
        if group > i32::MAX as u32 {
            return Err(Error::invalid(format!("group is {group}; it must be at most {}", i32::MAX)));
        }
        if self.groups.contains_key(&group) {
            return Err(Error::invalid(format!("group {group} exists already; give each group its own number")));
        }
        self.groups.insert(group, Group { task_id: task_id.to_owned(), ..Group::default() });
        Ok(())
    }

    /// Starts trajectory `member` of a group at an empty path.
    pub fn start(&mut self, group: u32, member: u32) -> Result<Handle> {
        let entry = self.groups.get_mut(&group).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("group {group} is not in the forest; add it with add_group first"))
        })?;
        if entry.trajectories.iter().any(|other| other.fork_path == [member]) {
            return Err(Error::invalid(format!(
                "member {member} of group {group} was started already; give each root its own member number"
            )));
        }
        entry.trajectories.push(Trajectory::root(member));
        Ok(handle(group, entry.trajectories.len() - 1))
    }

    /// Appends a node at the end of a trajectory's path and returns its handle. Members of a group that begin with the
    /// same prompt share its node.
    pub fn append(&mut self, trajectory: Handle, new: NewNode) -> Result<Handle> {
        let (number, index) = split(trajectory);
        let group = self.live_group(trajectory)?;
        new.check()?;
        let tip = group.trajectories[index].tip;
        let start = match tip {
            Some((node, end)) => group.nodes[node].start + end,
            None => 0,
        };
        start.checked_add(new.tokens.len() as u32).filter(|&end| i32::try_from(end).is_ok()).ok_or_else(|| {
            Error::new(ErrorKind::Overflow, format!("trajectory {trajectory} would grow over {} tokens", i32::MAX))
        })?;
        let state_key = match tip {
            Some((node, _)) => group.nodes[node].state_key,
            None => hash_bytes(b""),
        };
        let local = group.nodes.len();
        let node = Node::new(new, tip, start, state_key);
        let (kind, tokens) = (node.kind, node.tokens.len() as u32);
        if tip.is_none() && kind == Kind::Prompt {
            let same = |&&root: &&usize| group.nodes[root].begins_like(&node);
            if let Some(&root) = group.roots.iter().find(same) {
                group.trajectories[index].tip = Some((root, tokens));
                return Ok(handle(number, root));
            }
            group.roots.push(local);
        }
        group.nodes.push(node);
        let entry = &mut group.trajectories[index];
        if kind == Kind::Action {
            let last = (local, start + tokens);
            entry.open.get_or_insert(OpenStep { first_node: local, start, state_key, last }).last = last;
        } else {
            entry.close_step(trajectory, &StepOutcome::default());
        }
        entry.tip = Some((local, tokens));
        Ok(handle(number, local))
    }

    /// Closes the action just appended and records what the environment paid for it.
    pub fn step(&mut self, trajectory: Handle, outcome: &StepOutcome) -> Result<()> {
        outcome.check()?;
        let (_, index) = split(trajectory);
        let entry = &mut self.live_group(trajectory)?.trajectories[index];
        if entry.close_step(trajectory, outcome) {
            Ok(())
        } else {
            Err(Error::invalid(format!(
                "trajectory {trajectory} has no open action to close; append tokens of kind \"action\" first"
            )))
        }
    }

    /// Starts a trajectory that shares a prefix with `trajectory`: its path up to and including the first `end` tokens
    /// of `node` (`None`: all of the node; both `None`: the whole path so far). The parent may be finished.
    pub fn fork(&mut self, trajectory: Handle, node: Option<Handle>, end: Option<u32>) -> Result<Handle> {
        let (number, index) = split(trajectory);
        let group = self.group(trajectory)?;
        let parent = &group.trajectories[index];
        if parent.status == Status::Pruned {
            return Err(Error::invalid(format!(
                "trajectory {trajectory} was pruned; fork one that is still in the tree"
            )));
        }
        let path = group.path(parent.tip);
        let at = match node {
            None if end.is_none() => parent.tip,
            None => {
                return Err(Error::invalid("end is given without node; name the node that the fork cuts".to_owned()));
            }
            Some(node) => {
                let local = path.iter().find(|&&(local, _)| handle(number, local) == node);
                let &(local, used) = local.ok_or_else(|| {
                    Error::new(
                        ErrorKind::NotFound,
                        format!("node {node} is not on the path of trajectory {trajectory}"),
                    )
                })?;
                let end = end.unwrap_or(used);
                if end > used {
                    return Err(Error::invalid(format!(
                        "end is {end}, but trajectory {trajectory} uses {used} tokens of node {node}; use 0 to {used}"
                    )));
                }
                // Before a node's first token means after all that its own parent contributes.
                if end == 0 { group.nodes[local].parent } else { Some((local, end)) }
            }
        };
        let position = at.map_or(0, |(node, end)| group.nodes[node].start + end);
        let mut child = Trajectory::root(0);
        child.fork_path.clone_from(&parent.fork_path);
        child.fork_path.push(parent.forks);
        child.tip = at;
        child.branch = Some(Branch { parent: index, at });
        child.steps = parent.steps.iter().take_while(|step| step.end <= position).cloned().collect();
        // The action that the cut runs through goes on in the child, as the child's own.
        let cut = parent.steps.get(child.steps.len()).map(|step| (step.first_node, step.start, step.state_key));
        let cut = cut.or(parent.open.as_ref().map(|open| (open.first_node, open.start, open.state_key)));
        if let (Some((first_node, start, state_key)), Some((node, _))) = (cut, at)
            && start < position
        {
            child.open = Some(OpenStep { first_node, start, state_key, last: (node, position) });
        }
        let group = self.group_mut(trajectory)?;
        group.trajectories[index].forks += 1;
        group.trajectories.push(child);
        Ok(handle(number, group.trajectories.len() - 1))
    }

    /// Ends a trajectory.
    pub fn finish(&mut self, trajectory: Handle, finish: Finish) -> Result<()> {
        finish.check()?;
        let (_, index) = split(trajectory);
        let entry = &mut self.live_group(trajectory)?.trajectories[index];
        if entry.steps.is_empty() && entry.open.is_none() && finish.status.is_drawn() {
            return Err(Error::invalid(format!(
                "trajectory {trajectory} ends without an action; append one, or finish it with status \"aborted\" or \"failed\""
            )));
        }
        entry.close_step(trajectory, &StepOutcome::default());
        entry.status = finish.status;
        entry.finish = finish;
        Ok(())
    }

    /// Removes a trajectory from training; its tokens stay in the files with status `pruned` and the reason in `info`
    /// (`{"pruned": reason, "info": …}`).
    pub fn prune(&mut self, trajectory: Handle, reason: &str) -> Result<()> {
        let (_, index) = split(trajectory);
        let entry = &mut self.group_mut(trajectory)?.trajectories[index];
        entry.close_step(trajectory, &StepOutcome::default());
        entry.status = Status::Pruned;
        let info = entry.finish.info.take().unwrap_or_else(|| "null".to_owned());
        entry.finish.info = Some(format!("{{\"pruned\":{},\"info\":{info}}}", serde_json::Value::from(reason)));
        Ok(())
    }

    /// Marks every trajectory that is still running as aborted, so that its group can freeze (an interrupted run).
    pub fn abort(&mut self) {
        for (&number, group) in &mut self.groups {
            for (index, entry) in group.trajectories.iter_mut().enumerate() {
                if entry.status == Status::Partial {
                    entry.close_step(handle(number, index), &StepOutcome::default());
                    entry.status = Status::Aborted;
                }
            }
        }
    }

    /// The tokens of a trajectory's path.
    pub fn tokens(&self, trajectory: Handle) -> Result<Vec<i32>> {
        let (_, index) = split(trajectory);
        let group = self.group(trajectory)?;
        let path = group.path(group.trajectories[index].tip);
        Ok(path.iter().flat_map(|&(node, used)| &group.nodes[node].tokens[..used as usize]).copied().collect())
    }

    /// Seed of the next segment that is sampled for a trajectory: a hash of the run's seed and the segment's place.
    pub fn segment_seed(&self, trajectory: Handle) -> Result<u64> {
        let (number, index) = split(trajectory);
        let entry = &self.group(trajectory)?.trajectories[index];
        let mut parts = vec![self.seed, self.iteration as u64, u64::from(number)];
        parts.extend(entry.fork_path.iter().map(|&part| u64::from(part)));
        // A length in front of the step keeps (fork path, step) apart from a longer fork path.
        parts.extend([entry.fork_path.len() as u64, entry.steps.len() as u64]);
        Ok(structural_seed(&parts))
    }

    fn group(&self, trajectory: Handle) -> Result<&Group> {
        let (number, index) = split(trajectory);
        let group = self.groups.get(&number).filter(|group| index < group.trajectories.len());
        group.ok_or_else(|| unknown(trajectory))
    }

    fn group_mut(&mut self, trajectory: Handle) -> Result<&mut Group> {
        let (number, index) = split(trajectory);
        let group = self.groups.get_mut(&number).filter(|group| index < group.trajectories.len());
        group.ok_or_else(|| unknown(trajectory))
    }

    /// The group of a trajectory that has not ended.
    fn live_group(&mut self, trajectory: Handle) -> Result<&mut Group> {
        let (_, index) = split(trajectory);
        let group = self.group_mut(trajectory)?;
        match group.trajectories[index].status {
            Status::Partial => Ok(group),
            status => Err(Error::invalid(format!(
                "trajectory {trajectory} has ended ({status:?}); fork it to go on from one of its tokens"
            ))),
        }
    }
}

fn unknown(trajectory: Handle) -> Error {
    Error::new(ErrorKind::NotFound, format!("trajectory {trajectory} is not in the forest (never started, or frozen)"))
}

impl Group {
    /// Nodes of a path from its root, each with the number of its tokens that the path uses.
    fn path(&self, tip: Option<(usize, u32)>) -> Vec<(usize, u32)> {
        let mut path: Vec<_> = std::iter::successors(tip, |&(node, _)| self.nodes[node].parent).collect();
        path.reverse();
        path
    }
}

#[cfg(test)]
mod tests;
