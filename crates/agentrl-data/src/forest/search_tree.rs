//! The search tree of a live or frozen group: its turns as a tree, its states as a graph.

use std::collections::HashMap;

use agentrl_compute::hash::hash_bytes;
use agentrl_compute::search::{After, NONE, NewTurn, Search};
use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;

use super::steps::{Step, StepOrigin};
use super::{Forest, Group, GroupHandle, Handle, handle, split};
use crate::batch::draw_index::{Context, Index};
use crate::batch::{Batch, array, i32s, i64s, lists, u8s};
use crate::schema::Status;
use crate::{Error, Result};

/// Turns and states of one group. [`Forest::follow`] updates the tree of a live group. A turn is a closed step; a step
/// that several branches share is one turn.
#[derive(Clone, Debug, Default)]
pub struct SearchTree {
    /// The turns and states.
    pub search: Search,
    /// For each turn, the trajectory that took it and the number of the step.
    taken: Vec<(i64, u32)>,
    /// Row of each turn that was read from a table, by the trajectory that first took it and the number of the step.
    stored: HashMap<(i64, u32), u32>,
    /// Seed of the first node of each first turn that was read from a table, by the row of the turn; only known ones.
    seeds: HashMap<u32, i64>,
    /// The live group that the tree follows.
    key: Option<GroupHandle>,
    /// Rows of each trajectory's own steps.
    rows: Vec<Vec<u32>>,
    /// Whether each trajectory was read to its end.
    over: Vec<bool>,
    /// Number of the group's changes that were read.
    changes: usize,
    /// Grafted trajectories that were not read yet.
    grafted: Vec<usize>,
}

/// The end of a path.
struct End {
    last: u32,
    reward: Option<f32>,
    status: Status,
    success: bool,
}

fn key(state: [u8; 16]) -> u128 {
    u128::from_le_bytes(state)
}

/// Return a key for a state without a key. It is unique, so no other turn leads to the state.
fn nameless(trajectory: i64, step: u32) -> u128 {
    let name = [&trajectory.to_le_bytes()[..], &step.to_le_bytes(), b"nobody named this state"].concat();
    key(hash_bytes(&name))
}

/// Return the sum of the finite log-probs. Masked tokens may have other log-probs; they do not count.
fn total(logprobs: &[f32]) -> f64 {
    logprobs.iter().map(|&value| f64::from(value)).filter(|value| value.is_finite()).sum()
}

impl SearchTree {
    /// Return, for each turn, the trajectory that took it and the number of the step.
    pub fn taken(&self) -> &[(i64, u32)] {
        &self.taken
    }

    /// Return the seed of the node with which the first step of a turn's episode begins, for a turn that was read from
    /// a table. `None` if that node has no seed, for example because it was not sampled.
    pub fn seed(&self, turn: u32) -> Result<Option<i64>> {
        Ok(self.search.path(turn)?.first().and_then(|first| self.seeds.get(first)).copied())
    }

    fn add(&mut self, taken: (i64, u32), turn: NewTurn) -> Result<u32> {
        let row = self.search.add(turn)?;
        self.taken.push(taken);
        Ok(row)
    }

    fn ended(&mut self, end: &End) -> Result<()> {
        if end.last == NONE || !end.status.is_drawn() {
            return Ok(());
        }
        let after = self.search.turn(end.last)?.after;
        if end.success && !self.search.ended(after) {
            self.search.solve(after);
        }
        match end.reward.filter(|reward| reward.is_finite()) {
            Some(reward) => Ok(self.search.back_up(end.last, f64::from(reward))?),
            None => Ok(()),
        }
    }

    /// Build the tree of one group of a frozen batch. Trajectories are identified by their ids.
    pub fn of(batch: &Batch, group: i64) -> Result<Self> {
        let (rows, steps) = (batch.trajectories(), batch.steps());
        let index = Index::new(batch.tables())?;
        let (groups, ids) = (i64s(rows, "group_id")?, i64s(rows, "trajectory_id")?);
        let (first_nodes, seeds) = (i64s(steps, "first_node_id")?, i64s(batch.nodes(), "seed")?);
        let (origins, last_nodes) = (i64s(steps, "origin_trajectory_id")?, i64s(steps, "node_id")?);
        let (leaves, endings, rewards) = (i64s(rows, "leaf_node_id")?, u8s(rows, "status")?, array(rows, "reward")?);
        let successes = u8s(rows, "success")?;
        let entered = array(steps, "state_key")?.as_fixed_size_binary();
        let finals = array(rows, "final_state_key")?.as_fixed_size_binary();
        let (terminated, truncated) = (u8s(steps, "terminated")?, u8s(steps, "truncated")?);
        let state = |bytes: &[u8]| {
            bytes.try_into().map(key).map_err(|_| {
                let found = bytes.len();
                Error::corrupt(format!("a state key has {found} bytes, needs 16; restore the batch from a copy"))
            })
        };
        let mut tree = Self::default();
        for row in (0..rows.num_rows()).filter(|&row| groups.value(row) == group) {
            let code = endings.value(row);
            let status = Status::from_code(code);
            let status = status.ok_or_else(|| {
                Error::corrupt(format!("status {code} is unknown to this version; install a newer agentrl_core"))
            })?;
            let success = !successes.is_null(row) && successes.value(row) != 0;
            let contexts = index.contexts(row)?;
            let all: Vec<usize> = contexts.iter().flat_map(|context| context.steps.clone()).collect();
            let (mut parent, mut number) = (NONE, 0);
            for context in &contexts {
                for step in context.steps.clone() {
                    let name = (origins.value(step), number);
                    if let Some(&known) = tree.stored.get(&name) {
                        (parent, number) = (known, number + 1);
                        continue;
                    }
                    let next = all.get(number as usize + 1);
                    let after = match next {
                        Some(&next) => After::State(state(entered.value(next))?),
                        None if terminated.value(step) != 0 || truncated.value(step) != 0 => After::End(success),
                        None if status == Status::Failed => After::End(false),
                        None if leaves.value(row) != last_nodes.value(step) && !finals.is_null(row) => {
                            After::State(state(finals.value(row))?)
                        }
                        None => After::State(nameless(ids.value(row), number)),
                    };
                    let logprob = stored_logprob(batch, &index, context, step)?;
                    let turn = NewTurn { parent, before: state(entered.value(step))?, after, logprob };
                    parent = tree.add((ids.value(row), number), turn)?;
                    tree.stored.insert(name, parent);
                    let first =
                        index.node_row(first_nodes.value(step)).filter(|&row| number == 0 && !seeds.is_null(row));
                    if let Some(row) = first {
                        tree.seeds.insert(parent, seeds.value(row));
                    }
                    number += 1;
                }
            }
            let reward = (!rewards.is_null(row)).then(|| rewards.as_primitive::<Float32Type>().value(row));
            tree.ended(&End { last: parent, reward, status, success })?;
        }
        tree.search.settle();
        Ok(tree)
    }

    /// Read the changes of a live group since the last read.
    fn read(&mut self, group: &Group) -> Result<()> {
        if *self.key.get_or_insert(group.key) != group.key {
            return Err(Error::invalid("the search tree follows another group; use one search tree for each group"));
        }
        let mut waiting = std::mem::take(&mut self.grafted);
        waiting.extend(self.rows.len()..group.trajectories.len());
        waiting.extend(&group.changed[self.changes..]);
        waiting.sort_unstable();
        waiting.dedup();
        // Consecutive changes of one trajectory are recorded once. So the last entry may get more changes: read it
        // again next time.
        self.changes = group.changed.len().saturating_sub(1);
        self.grow(group.trajectories.len());
        for index in waiting {
            if !self.over[index] {
                self.over[index] = self.read_trajectory(group, index)?;
            }
        }
        self.search.settle();
        Ok(())
    }

    /// Extend the columns to `count` trajectories.
    fn grow(&mut self, count: usize) {
        self.rows.resize(count, Vec::new());
        self.over.resize(count, false);
    }

    /// Read the new steps of one trajectory; return whether the trajectory was read to its end.
    fn read_trajectory(&mut self, group: &Group, index: usize) -> Result<bool> {
        let entry = &group.trajectories[index];
        let (own, first) = (entry.steps.own(), entry.steps.inherited());
        for (number, step) in own.iter().enumerate().skip(self.rows[index].len()) {
            let taken = (handle(group.key, index), (first + number) as u32);
            let origin = match step.origin {
                StepOrigin::Stored(origin) => Some((origin, taken.1)),
                StepOrigin::Live(_) => None,
            };
            let row = if let Some(&row) = origin.and_then(|origin| self.stored.get(&origin)) {
                row
            } else {
                let Some(after) = group.after(index, number, taken) else { return Ok(false) };
                let parent = self.before(entry.steps.inherited_of(), index, number, group);
                let turn = NewTurn { parent, before: key(step.state_key), after, logprob: group.logprob(step) };
                self.add(taken, turn)?
            };
            origin.map(|origin| self.stored.insert(origin, row));
            self.rows[index].push(row);
        }
        if entry.is_running() {
            return Ok(false);
        }
        let last = self.before(entry.steps.inherited_of(), index, own.len(), group);
        let finish = &entry.finish;
        let success = finish.success.unwrap_or(false);
        self.ended(&End { last, reward: finish.reward, status: entry.status, success })?;
        Ok(true)
    }

    /// Return the row of the turn before a trajectory's own step `number`; `NONE` for a first turn.
    fn before(&self, inherited: Option<(usize, usize)>, index: usize, number: usize, group: &Group) -> u32 {
        let (taker, place) = match (number, inherited) {
            (0, None) => return NONE,
            (0, Some((taker, count))) => (taker, count - 1 - group.trajectories[taker].steps.inherited()),
            _ => (index, number - 1),
        };
        self.rows[taker].get(place).copied().unwrap_or(NONE)
    }
}

impl Group {
    /// Return the state or end that a step leads to; `None` if that is not known yet.
    fn after(&self, index: usize, number: usize, taken: (i64, u32)) -> Option<After> {
        let entry = &self.trajectories[index];
        let own = entry.steps.own();
        let step = &own[number];
        if let Some(next) = own.get(number + 1) {
            return Some(After::State(key(next.state_key)));
        }
        let gone_on = entry.context() != step.context || self.position(entry.tip) > step.end;
        if gone_on {
            return Some(After::State(key(self.state_key(index))));
        }
        if entry.is_running() {
            return None;
        }
        let over = step.outcome.terminated || step.outcome.truncated;
        Some(match entry.status {
            Status::Failed => After::End(false),
            _ if over => After::End(entry.finish.success.unwrap_or(false)),
            _ => After::State(nameless(taken.0, taken.1)),
        })
    }

    /// Return the log-prob of a step: the sum over its tokens.
    fn logprob(&self, step: &Step) -> f64 {
        let mut place = Some((step.node, step.end.saturating_sub(self.nodes[step.node].start)));
        let mut sum = 0.0;
        while let Some((node, used)) = place {
            let of = &self.nodes[node];
            sum += of.content.logprobs.as_ref().map_or(0.0, |logprobs| total(&logprobs[..used as usize]));
            place = if node == step.first_node { None } else { of.parent };
        }
        sum
    }
}

/// Return the log-prob of a stored step: the sum over its tokens.
fn stored_logprob(batch: &Batch, index: &Index<'_>, context: &Context, step: usize) -> Result<f64> {
    let (steps, logprobs) = (batch.steps(), lists(batch.nodes(), "logprobs")?);
    let ends = i32s(steps, "end")?;
    let row = |name: &str| -> Result<Option<usize>> { Ok(index.node_row(i64s(steps, name)?.value(step))) };
    let (first, last) = (row("first_node_id")?, row("node_id")?);
    let from = context.path.iter().position(|node| Some(node.row) == first);
    let mut sum = 0.0;
    for node in &context.path[from.unwrap_or(context.path.len())..] {
        let used = if Some(node.row) == last && !ends.is_null(step) { ends.value(step) as usize } else { node.used };
        if !logprobs.is_null(node.row) {
            sum += total(&logprobs.value(node.row).as_primitive::<Float32Type>().values()[..used]);
        }
        if Some(node.row) == last {
            break;
        }
    }
    Ok(sum)
}

impl Forest {
    /// Record that the first steps of a new trajectory are the turns on the path to `turn`. Use it for a trajectory
    /// that continues a stored search: these turns are not added again. The tree must have no turn of the trajectory
    /// yet.
    pub fn graft(&self, trajectory: Handle, tree: &mut SearchTree, turn: u32) -> Result<()> {
        let (key, index) = split(trajectory);
        let group = self.group(trajectory)?;
        tree.key.get_or_insert(group.key);
        let known = tree.rows.len();
        if tree.key != Some(key) || tree.rows.get(index).is_some_and(|rows| !rows.is_empty()) {
            return Err(Error::invalid(format!(
                "trajectory {trajectory} already has turns in the tree; graft it before its first turn"
            )));
        }
        let path = tree.search.path(turn)?;
        tree.grow(known.max(index + 1));
        tree.grafted.extend(known..tree.rows.len());
        tree.rows[index] = path;
        Ok(())
    }

    /// Update the tree of a group with the changes since the last call. The last step of a running trajectory appears
    /// as soon as the forest has a token after it, because only then its next state is known.
    pub fn follow(&self, group: u32, tree: &mut SearchTree) -> Result<()> {
        tree.read(self.of_number(group)?)
    }
}
