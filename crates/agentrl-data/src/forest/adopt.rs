//! Adopt stored trajectories into a live tree, so that they can be forked, continued and spliced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type, Int64Type, TimestampMicrosecondType, UInt8Type, UInt32Type};
use arrow_array::{Array, FixedSizeBinaryArray, ListArray, RecordBatch, UInt64Array};

use super::node::{BlobHash, Node};
use super::steps::{OpenStep, Step, StepOrigin};
use super::trajectory::Trajectory;
use super::{Finish, Forest, Group, Handle, NewNode, Place, Sampling, StepOutcome, handle};
use crate::batch::draw_index::{Context, Index};
use crate::batch::node_tree::PathNode;
use crate::batch::{Batch, array, i32s, i64s, lists, u8s};
use crate::schema::{Drift, FinishReason, Kind, Origin, Role, Source, Status, Table};
use crate::{Error, Result, arrow_bug, facts, fixed_width_lists, token_columns};

impl Forest {
    /// Adopt a trajectory of a stored batch into the tree of a live group: its row, its steps, and the nodes of its
    /// paths, with their ids. No tokens can be appended to an adopted trajectory. It can be forked at any token and
    /// spliced. To continue a partial trajectory, fork its whole path: the fork inherits its steps.
    ///
    /// With a `source`, the trajectory is drawn into the batch as a member of the group. New rows are numbered after
    /// all rows of the batch, and after those of the store that it comes from.
    pub fn adopt(&mut self, group: u32, batch: &Batch, trajectory: i64, source: Option<Source>) -> Result<Handle> {
        if source == Some(Source::Fresh) {
            return Err(Error::invalid(
                "source is \"fresh\", but the trajectory is stored; use \"replay\" or another source",
            ));
        }
        let facts = batch.facts()?;
        if facts != self.facts {
            return Err(Error::invalid(format!(
                "the batch has facts {}, but the forest declares {}; give Forest(facts=…) those of the batch",
                facts.words(),
                self.facts.words()
            )));
        }
        let row_types = token_columns::united(self.row_types.clone(), &batch.row_types()?)?;
        let base = self.base.max(batch.base()).max(batch.next_ids()?);
        let entry = self.of_number_mut(group)?;
        if entry.adopted.trajectories.contains_key(&trajectory) {
            return Err(Error::invalid(format!(
                "trajectory {trajectory} was adopted by group {group} already; use the handle that adopt returned"
            )));
        }
        let adopted = entry.adopt(batch, trajectory, source)?;
        let paths = entry.trajectories[adopted].tips().flat_map(|tip| entry.path(Some(tip)));
        let needed = paths.map(|(node, _)| &entry.nodes[node]).flat_map(|node| &node.content.blobs);
        let held: Vec<_> =
            needed.filter_map(|hash| Some((*hash, Arc::from(batch.blob(hash).ok()?.as_ref())))).collect();
        let adopted = handle(entry.key, adopted);
        self.base = base;
        self.row_types = row_types;
        self.blobs.extend(held);
        Ok(adopted)
    }
}

impl Group {
    fn adopt(&mut self, batch: &Batch, id: i64, source: Option<Source>) -> Result<usize> {
        let index = Index::new(batch.tables())?;
        let row = index.row(id).ok_or_else(|| {
            Error::not_found(format!(
                "trajectory {id} is not in the batch; give an id of column trajectory_id of batch.trajectories"
            ))
        })?;
        let contexts = index.contexts(row)?;
        let nodes: BTreeSet<usize> = contexts.iter().flat_map(|context| &context.path).map(|node| node.row).collect();
        let steps = contexts.first().map_or(0, |context| context.steps.start)
            ..contexts.last().map_or(0, |context| context.steps.end);
        let reader = Reader::new(batch)?;
        let keys = reader.state_keys(row, &contexts, &index)?;
        let mut local = BTreeMap::new();
        for &node in &nodes {
            let stored = reader.ids.value(node);
            let found = match self.adopted.nodes.get(&stored) {
                Some(&found) => found,
                None => self.adopt_node(&reader, node, &local, &index, keys.get(&node))?,
            };
            local.insert(node, found);
        }
        let mut entry = Trajectory::stored(id, source);
        let place = |node: &PathNode| (local[&node.row], node.used as u32);
        let mut tips: Vec<Place> = contexts.iter().filter_map(|context| context.path.last().map(place)).collect();
        entry.tip = tips.pop();
        entry.contexts = tips;
        for (number, context) in (0..).zip(&contexts) {
            for step in context.steps.clone() {
                entry.steps.push(reader.step(step, number, context, &index, &local, &self.nodes)?);
            }
        }
        reader.trajectory(row, &mut entry)?;
        let final_keys = array(batch.trajectories(), "final_state_key")?.as_fixed_size_binary();
        entry.state_key = key(final_keys, row);
        if entry.status == Status::Partial {
            entry.open = self.open_action(&entry);
        }
        self.adopted.rows.push([
            take(batch.nodes(), nodes.iter().copied())?,
            take(batch.steps(), steps)?,
            take(batch.trajectories(), [row])?,
        ]);
        self.trajectories.push(entry);
        self.adopted.trajectories.insert(id, self.trajectories.len() - 1);
        Ok(self.trajectories.len() - 1)
    }

    fn adopt_node(
        &mut self,
        reader: &Reader<'_>,
        row: usize,
        local: &BTreeMap<usize, usize>,
        index: &Index<'_>,
        key: Option<&[u8; 16]>,
    ) -> Result<usize> {
        let parent = (!reader.parents.is_null(row)).then(|| index.node_row(reader.parents.value(row))).flatten();
        let parent = parent.map(|parent| {
            let node = local[&parent];
            let all = self.nodes[node].len();
            (node, if reader.parent_ends.is_null(row) { all } else { reader.parent_ends.value(row) as u32 })
        });
        let inherited =
            parent.map_or_else(|| agentrl_compute::hash::hash_bytes(b""), |(node, _)| self.nodes[node].state_key);
        let mut node = Node::new(reader.node(row)?, parent, reader.starts.value(row) as u32, inherited);
        node.stored = Some(reader.ids.value(row));
        node.created_us = reader.created.value(row);
        if let Some(key) = key {
            node.state_key = *key;
        }
        self.nodes.push(node);
        self.adopted.nodes.insert(reader.ids.value(row), self.nodes.len() - 1);
        Ok(self.nodes.len() - 1)
    }

    /// Return the unfinished action of a partial trajectory: the action nodes at the end of its path that belong to no
    /// step.
    fn open_action(&self, entry: &Trajectory) -> Option<OpenStep> {
        let closed = entry.steps.own().last().filter(|step| step.context == entry.context()).map_or(0, |step| step.end);
        let path = self.path(entry.tip);
        let growing = path.iter().rev().take_while(|&&(node, _)| {
            let node = &self.nodes[node];
            node.content.kind == Kind::Action && node.start >= closed
        });
        let (segments, first) = growing.fold((0, None), |(count, _), &(node, _)| (count + 1, Some(node)));
        let (node, first) = (entry.tip?.0, first?);
        // An action inherits the key of the state that it acts on.
        let state_key = entry.state_key.unwrap_or(self.nodes[first].state_key);
        let start = self.nodes[first].start;
        Some(OpenStep { first_node: first, start, state_key, last: (node, self.position(entry.tip)), segments })
    }
}

/// Columns of a stored batch.
struct Reader<'a> {
    batch: &'a Batch,
    ids: &'a arrow_array::Int64Array,
    parents: &'a arrow_array::Int64Array,
    parent_ends: &'a arrow_array::Int32Array,
    starts: &'a arrow_array::Int32Array,
    created: &'a arrow_array::TimestampMicrosecondArray,
}

fn corrupt(what: &str, code: u8) -> Error {
    Error::corrupt(format!("{what} {code} is unknown to this version; install a newer agentrl_core"))
}

fn optional<T: Copy>(array: &dyn Array, row: usize, value: impl Fn(usize) -> T) -> Option<T> {
    (!array.is_null(row)).then(|| value(row))
}

fn floats(list: &ListArray, row: usize) -> Option<Vec<f32>> {
    (!list.is_null(row)).then(|| list.value(row).as_primitive::<Float32Type>().values().to_vec())
}

fn key(array: &FixedSizeBinaryArray, row: usize) -> Option<[u8; 16]> {
    if array.is_null(row) { None } else { array.value(row).try_into().ok() }
}

impl<'a> Reader<'a> {
    fn new(batch: &'a Batch) -> Result<Self> {
        let nodes = batch.nodes();
        Ok(Self {
            batch,
            ids: i64s(nodes, "node_id")?,
            parents: i64s(nodes, "parent_id")?,
            parent_ends: i32s(nodes, "parent_end")?,
            starts: i32s(nodes, "start")?,
            created: array(nodes, "created_us")?.as_primitive::<TimestampMicrosecondType>(),
        })
    }

    fn node(&self, row: usize) -> Result<NewNode> {
        let nodes = self.batch.nodes();
        let code = u8s(nodes, "kind")?.value(row);
        let kind = Kind::from_code(code).ok_or_else(|| corrupt("kind", code))?;
        let tokens = lists(nodes, "tokens")?.value(row).as_primitive::<Int32Type>().values().to_vec();
        let mask = lists(nodes, "trainable")?;
        let sampling = array(nodes, "sampling")?.as_struct();
        let part = |column: usize| sampling.column(column).as_primitive::<Float32Type>().value(row);
        let code = u8s(nodes, "finish_reason")?.value(row);
        let blobs = lists(nodes, "blobs")?;
        let hashes = (!blobs.is_null(row)).then(|| blobs.value(row));
        let hashes = hashes.iter().flat_map(|hashes| hashes.as_fixed_size_binary().iter().flatten());
        Ok(NewNode {
            logprobs: floats(lists(nodes, "logprobs")?, row),
            entropies: floats(lists(nodes, "entropies")?, row),
            trainable: (!mask.is_null(row)).then(|| mask.value(row).as_primitive::<UInt8Type>().values().to_vec()),
            policy: i32s(nodes, "policy")?.value(row),
            policy_version: optional(array(nodes, "policy_version")?, row, |row| self.i64("policy_version", row)),
            seed: optional(array(nodes, "seed")?, row, |row| self.i64("seed", row)),
            sampling: (!sampling.is_null(row)).then(|| Sampling {
                temperature: part(0),
                top_p: part(1),
                top_k: sampling.column(2).as_primitive::<Int32Type>().value(row),
            }),
            finish_reason: FinishReason::from_code(code).ok_or_else(|| corrupt("finish_reason", code))?,
            blobs: hashes.filter_map(|hash| BlobHash::try_from(hash).ok()).collect(),
            ..NewNode::new(kind, tokens)
        })
    }

    fn i64(&self, name: &str, row: usize) -> i64 {
        self.batch.nodes()[name].as_primitive::<Int64Type>().value(row)
    }

    /// Map nodes to the key of the state after them, for nodes whose key a step or the end of the trajectory records.
    fn state_keys(&self, row: usize, contexts: &[Context], index: &Index<'_>) -> Result<BTreeMap<usize, [u8; 16]>> {
        let mut found = BTreeMap::new();
        let final_keys = array(self.batch.trajectories(), "final_state_key")?.as_fixed_size_binary();
        if let (Some(leaf), Some(key)) = (contexts.last().and_then(|last| last.path.last()), key(final_keys, row)) {
            found.insert(leaf.row, key);
        }
        let keys = array(self.batch.steps(), "state_key")?.as_fixed_size_binary();
        let first_nodes = i64s(self.batch.steps(), "first_node_id")?;
        for step in contexts.iter().flat_map(|context| context.steps.clone()) {
            let first = index.node_row(first_nodes.value(step)).filter(|&first| !self.parents.is_null(first));
            let before = first.and_then(|first| index.node_row(self.parents.value(first)));
            if let (Some(before), Some(key)) = (before, key(keys, step)) {
                found.insert(before, key);
            }
        }
        Ok(found)
    }

    fn step(
        &self,
        row: usize,
        number: u32,
        context: &Context,
        index: &Index<'_>,
        local: &BTreeMap<usize, usize>,
        nodes: &[Node],
    ) -> Result<Step> {
        let steps = self.batch.steps();
        let on_path = |id: i64| {
            // Parents come before their children, so the rows of a path ascend.
            let row = index.node_row(id);
            let place = row.and_then(|row| context.path.binary_search_by_key(&row, |node| node.row).ok());
            place.map(|place| context.path[place]).map(|node| (local[&node.row], node.used as u32)).ok_or_else(|| {
                Error::corrupt(format!(
                    "a step names node {id}, which is not on the path of its trajectory; restore the batch from a copy"
                ))
            })
        };
        let (first_node, _) = on_path(i64s(steps, "first_node_id")?.value(row))?;
        let (node, used) = on_path(i64s(steps, "node_id")?.value(row))?;
        let end = optional(array(steps, "end")?, row, |row| steps["end"].as_primitive::<Int32Type>().value(row) as u32);
        let drift = optional(array(steps, "drift")?, row, |row| steps["drift"].as_primitive::<UInt8Type>().value(row));
        let rewards = array(steps, "reward")?.as_primitive::<Float32Type>();
        let drift_at = i32s(steps, "drift_at")?;
        Ok(Step {
            first_node,
            node,
            start: nodes[first_node].start,
            end: nodes[node].start + end.unwrap_or(used),
            context: number,
            origin: StepOrigin::Stored(i64s(steps, "origin_trajectory_id")?.value(row)),
            state_key: key(array(steps, "state_key")?.as_fixed_size_binary(), row).unwrap_or_default(),
            outcome: StepOutcome {
                reward: optional(rewards, row, |row| rewards.value(row)),
                rewards: floats(lists(steps, "rewards")?, row),
                terminated: u8s(steps, "terminated")?.value(row) != 0,
                truncated: u8s(steps, "truncated")?.value(row) != 0,
                flags: array(steps, "flags")?.as_primitive::<UInt32Type>().value(row),
                drift: drift.map(|code| Drift::from_code(code).ok_or_else(|| corrupt("drift", code))).transpose()?,
                drift_at: optional(drift_at, row, |row| drift_at.value(row) as u32),
                facts: facts::facts_of_row(steps, row),
            },
        })
    }

    fn trajectory(&self, row: usize, entry: &mut Trajectory) -> Result<()> {
        let rows = self.batch.trajectories();
        let code = |name: &str| -> Result<u8> { Ok(u8s(rows, name)?.value(row)) };
        let status = code("status")?;
        entry.status = Status::from_code(status).ok_or_else(|| corrupt("status", status))?;
        let origin = code("origin")?;
        entry.origin = Origin::from_code(origin).ok_or_else(|| corrupt("origin", origin))?;
        let role = code("role")?;
        entry.role = Role::from_code(role).ok_or_else(|| corrupt("role", role))?;
        entry.agent = i32s(rows, "agent")?.value(row);
        let (rewards, successes) = (array(rows, "reward")?.as_primitive::<Float32Type>(), u8s(rows, "success")?);
        let info = array(rows, "info")?.as_string::<i32>();
        entry.finish = Finish {
            reward: optional(rewards, row, |row| rewards.value(row)),
            rewards: floats(lists(rows, "rewards")?, row),
            success: optional(successes, row, |row| successes.value(row) != 0),
            info: (!info.is_null(row)).then(|| info.value(row).to_owned()),
            status: entry.status,
            facts: facts::facts_of_row(rows, row),
        };
        Ok(())
    }
}

/// Return the rows of a table at some indices.
fn take(rows: &RecordBatch, indices: impl IntoIterator<Item = usize>) -> Result<RecordBatch> {
    let indices: UInt64Array = indices.into_iter().map(|index| index as u64).collect();
    arrow_select::take::take_record_batch(rows, &indices).map_err(arrow_bug)
}

/// Join the rows that several groups adopted: each row once, in the order of the key columns.
pub(super) fn merged(table: Table, parts: Vec<RecordBatch>, keys: &[&str]) -> Result<RecordBatch> {
    let parts = if table == Table::Nodes { token_columns::aligned(parts)? } else { parts };
    let schema = table.schema_of(&parts);
    let all = fixed_width_lists::concat_batches(&schema, &parts).map_err(arrow_bug)?;
    let column = |name: &&str| -> Result<Vec<i64>> {
        let values = array(&all, name)?;
        Ok(match values.as_primitive_opt::<Int32Type>() {
            Some(values) => values.values().iter().map(|&value| i64::from(value)).collect(),
            None => values.as_primitive::<Int64Type>().values().to_vec(),
        })
    };
    let keys = keys.iter().map(column).collect::<Result<Vec<_>>>()?;
    let first: BTreeMap<Vec<i64>, usize> =
        (0..all.num_rows()).rev().map(|row| (keys.iter().map(|key| key[row]).collect(), row)).collect();
    let rows = take(&all, first.into_values())?;
    RecordBatch::try_new(schema, rows.columns().to_vec()).map_err(arrow_bug)
}
