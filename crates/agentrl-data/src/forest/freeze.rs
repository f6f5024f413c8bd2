//! From the live form to the frozen one: canonical order, structural ids, Arrow columns.

use std::sync::Arc;

use arrow_array::builder::{
    FixedSizeBinaryBuilder, Float32Builder, Int32Builder, Int64Builder, ListBuilder, PrimitiveBuilder, StringBuilder,
};
use arrow_array::types::ArrowPrimitiveType;
use arrow_array::{
    ArrayRef, Float32Array, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt8Array, UInt32Array,
};
use arrow_array::{StringArray, StructArray, new_null_array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field};

use super::{Forest, Group};
use crate::batch::Batch;
use crate::schema::{OLD_LOGPROB_BEHAVIOUR, SOURCE_FRESH, Status, Table, list_of, sampling_fields};
use crate::{Error, ErrorKind, Result, arrow_bug};

/// A group with its rows put into canonical order: trajectories by fork path, nodes by the first path that holds them.
struct Ordered<'a> {
    group: &'a Group,
    /// Index in the group of each trajectory that has tokens, in canonical order.
    trajectories: Vec<usize>,
    /// Index in the group of each node, in canonical order.
    nodes: Vec<usize>,
    /// Node id of each node of the group.
    node_ids: Vec<i64>,
    /// Trajectory id of each trajectory of the group; -1 where it has no tokens.
    trajectory_ids: Vec<i64>,
    group_id: i64,
}

impl Ordered<'_> {
    fn rows(&self) -> impl Iterator<Item = (usize, &super::Trajectory)> {
        self.trajectories.iter().map(|&index| (index, &self.group.trajectories[index]))
    }
}

impl Forest {
    /// Freezes every group whose trajectories have all ended and takes it out of the forest; the rest stays live.
    ///
    /// Rows are numbered canonically from zero; each finished or truncated trajectory becomes one fresh draw. A trajectory
    /// that ended before its first token leaves no row.
    pub fn freeze(&mut self) -> Result<Batch> {
        let ended = |group: &Group| {
            let running = |entry: &super::Trajectory| entry.status == Status::Partial;
            !group.trajectories.is_empty() && !group.trajectories.iter().any(running)
        };
        let ready: Vec<u32> = self.groups.iter().filter(|(_, group)| ended(group)).map(|(&number, _)| number).collect();
        let (mut next_node, mut next_trajectory) = (0, 0);
        let mut groups = Vec::with_capacity(ready.len());
        for (group_id, number) in (0..).zip(&ready) {
            groups.push(order(&self.groups[number], group_id, &mut next_node, &mut next_trajectory));
        }
        let tables = [
            nodes(&groups)?,
            steps(&groups)?,
            trajectories(&groups, self.iteration)?,
            draws(&groups, self.iteration)?,
            RecordBatch::new_empty(Table::Tasks.schema()),
            RecordBatch::new_empty(Table::Decisions.schema()),
        ];
        let batch = Batch::new(tables)?;
        for number in ready {
            self.groups.remove(&number);
        }
        Ok(batch)
    }
}

fn order<'a>(group: &'a Group, group_id: i64, next_node: &mut i64, next_trajectory: &mut i64) -> Ordered<'a> {
    let mut trajectories: Vec<usize> =
        (0..group.trajectories.len()).filter(|&index| group.trajectories[index].tip.is_some()).collect();
    trajectories.sort_by(|&a, &b| group.trajectories[a].fork_path.cmp(&group.trajectories[b].fork_path));
    let mut nodes = Vec::with_capacity(group.nodes.len());
    let mut node_ids = vec![-1; group.nodes.len()];
    let mut trajectory_ids = vec![-1; group.trajectories.len()];
    for &index in &trajectories {
        trajectory_ids[index] = *next_trajectory;
        *next_trajectory += 1;
        for (node, _) in group.path(group.trajectories[index].tip) {
            if node_ids[node] < 0 {
                node_ids[node] = *next_node;
                *next_node += 1;
                nodes.push(node);
            }
        }
    }
    Ordered { group, trajectories, nodes, node_ids, trajectory_ids, group_id }
}

fn table(table: Table, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    RecordBatch::try_new(table.schema(), columns).map_err(arrow_bug)
}

/// Refuses tables whose lists would not fit 32-bit offsets.
fn check_offsets(tokens: usize) -> Result<()> {
    if i32::try_from(tokens).is_ok() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Overflow,
        format!("{tokens} tokens in one batch are more than a list column holds; freeze fewer groups at a time"),
    ))
}

/// NaN and absent mean the same: not known.
fn known(reward: Option<f32>) -> Option<f32> {
    reward.filter(|reward| !reward.is_nan())
}

/// A list column whose items are never null.
fn lists<'a, T, I>(item: DataType, rows: I) -> ArrayRef
where
    T: ArrowPrimitiveType,
    I: Iterator<Item = Option<&'a [T::Native]>>,
{
    let field = Field::new("item", item, false);
    let mut builder = ListBuilder::new(PrimitiveBuilder::<T>::new()).with_field(field);
    for row in rows {
        match row {
            Some(values) => {
                builder.values().append_slice(values);
                builder.append(true);
            }
            None => builder.append(false),
        }
    }
    Arc::new(builder.finish())
}

fn state_keys<'a>(keys: impl Iterator<Item = Option<&'a [u8; 16]>>) -> Result<ArrayRef> {
    let mut builder = FixedSizeBinaryBuilder::new(16);
    for key in keys {
        match key {
            Some(key) => builder.append_value(key).map_err(arrow_bug)?,
            None => builder.append_null(),
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn nodes(groups: &[Ordered<'_>]) -> Result<RecordBatch> {
    use arrow_array::types::{Float32Type, Int32Type, UInt8Type};
    let rows: Vec<_> = groups
        .iter()
        .flat_map(|entry| entry.nodes.iter().map(move |&node| (entry, node, &entry.group.nodes[node])))
        .collect();
    check_offsets(rows.iter().map(|(_, _, node)| node.tokens.len()).sum())?;
    let parents = rows.iter().map(|(entry, _, node)| {
        node.parent.map(|(parent, end)| {
            let whole = entry.group.nodes[parent].tokens.len() == end as usize;
            (entry.node_ids[parent], (!whole).then_some(end as i32))
        })
    });
    let parents: Vec<_> = parents.collect();
    let sampled = rows.iter().map(|(_, _, node)| node.sampling.is_some()).collect::<NullBuffer>();
    let sampling = rows.iter().map(|(_, _, node)| node.sampling);
    let sampling = StructArray::try_new(
        sampling_fields(),
        vec![
            Arc::new(sampling.clone().map(|s| s.map_or(0.0, |s| s.temperature)).collect::<Float32Array>()),
            Arc::new(sampling.clone().map(|s| s.map_or(0.0, |s| s.top_p)).collect::<Float32Array>()),
            Arc::new(sampling.map(|s| s.map_or(0, |s| s.top_k)).collect::<Int32Array>()),
        ],
        Some(sampled),
    );
    table(
        Table::Nodes,
        vec![
            Arc::new(rows.iter().map(|(entry, index, _)| entry.node_ids[*index]).collect::<Int64Array>()),
            Arc::new(parents.iter().map(|parent| parent.map(|(id, _)| id)).collect::<Int64Array>()),
            Arc::new(parents.iter().map(|parent| parent.and_then(|(_, end)| end)).collect::<Int32Array>()),
            Arc::new(rows.iter().map(|(entry, _, _)| entry.group_id).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|(_, _, node)| node.start as i32).collect::<Int32Array>()),
            Arc::new(rows.iter().map(|(_, _, node)| node.kind as u8).collect::<UInt8Array>()),
            lists::<Int32Type, _>(DataType::Int32, rows.iter().map(|(_, _, node)| Some(node.tokens.as_slice()))),
            lists::<Float32Type, _>(DataType::Float32, rows.iter().map(|(_, _, node)| node.logprobs.as_deref())),
            lists::<Float32Type, _>(DataType::Float32, rows.iter().map(|(_, _, node)| node.entropies.as_deref())),
            lists::<UInt8Type, _>(DataType::UInt8, rows.iter().map(|(_, _, node)| node.trainable.as_deref())),
            Arc::new(rows.iter().map(|(_, _, node)| node.policy).collect::<Int32Array>()),
            Arc::new(rows.iter().map(|(_, _, node)| node.policy_version).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|(_, _, node)| node.seed).collect::<Int64Array>()),
            Arc::new(sampling.map_err(arrow_bug)?),
            Arc::new(rows.iter().map(|(_, _, node)| node.finish_reason as u8).collect::<UInt8Array>()),
            new_null_array(&DataType::Int64, rows.len()),
            new_null_array(&list_of(DataType::FixedSizeBinary(32)), rows.len()),
            Arc::new(TimestampMicrosecondArray::from_iter_values(rows.iter().map(|(_, _, node)| node.created_us))),
        ],
    )
}

fn steps(groups: &[Ordered<'_>]) -> Result<RecordBatch> {
    use arrow_array::types::Float32Type;
    let mut rows = Vec::new();
    for entry in groups {
        for (index, trajectory) in entry.rows() {
            let id = entry.trajectory_ids[index];
            rows.extend((0_i32..).zip(&trajectory.steps).map(|(step, row)| (entry, id, step, row)));
        }
    }
    let outcomes = || rows.iter().map(|(_, _, _, row)| &row.outcome);
    table(
        Table::Steps,
        vec![
            Arc::new(rows.iter().map(|&(_, id, _, _)| id).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|&(_, _, step, _)| step).collect::<Int32Array>()),
            Arc::new(rows.iter().map(|(entry, _, _, row)| entry.node_ids[row.first_node]).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|(entry, _, _, row)| entry.node_ids[row.node]).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|(entry, _, _, row)| entry.trajectory_ids[row.origin]).collect::<Int64Array>()),
            state_keys(rows.iter().map(|(_, _, _, row)| Some(&row.state_key)))?,
            Arc::new(outcomes().map(|outcome| known(outcome.reward)).collect::<Float32Array>()),
            lists::<Float32Type, _>(DataType::Float32, outcomes().map(|outcome| outcome.rewards.as_deref())),
            Arc::new(outcomes().map(|outcome| u8::from(outcome.terminated)).collect::<UInt8Array>()),
            Arc::new(outcomes().map(|outcome| u8::from(outcome.truncated)).collect::<UInt8Array>()),
            Arc::new(outcomes().map(|outcome| outcome.flags).collect::<UInt32Array>()),
            new_null_array(&DataType::UInt8, rows.len()),
            new_null_array(&DataType::Int32, rows.len()),
        ],
    )
}

fn trajectories(groups: &[Ordered<'_>], iteration: i64) -> Result<RecordBatch> {
    let count = groups.iter().map(|entry| entry.trajectories.len()).sum::<usize>();
    let mut ids = Int64Builder::with_capacity(count);
    let mut group_ids = Int64Builder::with_capacity(count);
    let mut task_ids = StringBuilder::new();
    let mut leaves = Int64Builder::with_capacity(count);
    let mut final_states = Vec::with_capacity(count);
    let mut rewards = Float32Builder::with_capacity(count);
    let mut components = Vec::with_capacity(count);
    let mut successes = Vec::with_capacity(count);
    let mut statuses = Vec::with_capacity(count);
    let mut parents = Int64Builder::with_capacity(count);
    let mut branch_nodes = Int64Builder::with_capacity(count);
    let mut branch_ends = Int32Builder::with_capacity(count);
    let mut versions = Vec::with_capacity(count);
    let mut infos = StringBuilder::new();
    for entry in groups {
        for (index, trajectory) in entry.rows() {
            let leaf = trajectory.tip.map(|(node, _)| node);
            ids.append_value(entry.trajectory_ids[index]);
            group_ids.append_value(entry.group_id);
            task_ids.append_value(&entry.group.task_id);
            leaves.append_option(leaf.map(|leaf| entry.node_ids[leaf]));
            final_states.push(leaf.map(|leaf| &entry.group.nodes[leaf].state_key));
            rewards.append_option(known(trajectory.finish.reward));
            components.push(trajectory.finish.rewards.as_deref());
            successes.push(trajectory.finish.success.map(u8::from));
            statuses.push(trajectory.status as u8);
            let parent = trajectory.branch.map(|branch| entry.trajectory_ids[branch.parent]);
            parents.append_option(parent.filter(|&id| id >= 0));
            let branch = trajectory.branch.and_then(|branch| branch.at);
            branch_nodes.append_option(branch.map(|(node, _)| entry.node_ids[node]));
            branch_ends.append_option(branch.map(|(_, end)| end as i32));
            let path = entry.group.path(trajectory.tip);
            let path_versions = path.iter().filter_map(|&(node, _)| entry.group.nodes[node].policy_version);
            versions.push((path_versions.clone().min(), path_versions.max()));
            infos.append_option(trajectory.finish.info.as_deref());
        }
    }
    let ids: ArrayRef = Arc::new(ids.finish());
    table(
        Table::Trajectories,
        vec![
            ids.clone(),
            Arc::new(group_ids.finish()),
            ids,
            Arc::new(Int32Array::from(vec![0; count])),
            Arc::new(task_ids.finish()),
            Arc::new(Int64Array::from(vec![iteration; count])),
            Arc::new(leaves.finish()),
            state_keys(final_states.into_iter())?,
            Arc::new(rewards.finish()),
            lists::<arrow_array::types::Float32Type, _>(DataType::Float32, components.into_iter()),
            Arc::new(UInt8Array::from(successes)),
            Arc::new(UInt8Array::from(statuses)),
            Arc::new(UInt8Array::from(vec![0; count])),
            Arc::new(parents.finish()),
            Arc::new(branch_nodes.finish()),
            Arc::new(branch_ends.finish()),
            Arc::new(versions.iter().map(|&(low, _)| low).collect::<Int64Array>()),
            Arc::new(versions.iter().map(|&(_, high)| high).collect::<Int64Array>()),
            Arc::new(infos.finish()),
        ],
    )
}

fn draws(groups: &[Ordered<'_>], iteration: i64) -> Result<RecordBatch> {
    let drawn = groups.iter().flat_map(|entry| {
        let rows = entry.rows().filter(|(_, trajectory)| trajectory.status.is_drawn());
        rows.map(|(index, _)| (entry.trajectory_ids[index], entry.group_id))
    });
    let drawn: Vec<_> = drawn.collect();
    let count = drawn.len();
    table(
        Table::Draws,
        vec![
            Arc::new(Int64Array::from_iter_values(0..count as i64)),
            Arc::new(Int64Array::from(vec![iteration; count])),
            Arc::new(Int32Array::from_iter_values(0..count as i32)),
            Arc::new(drawn.iter().map(|&(trajectory, _)| trajectory).collect::<Int64Array>()),
            Arc::new(drawn.iter().map(|&(_, group)| group).collect::<Int64Array>()),
            Arc::new(UInt8Array::from(vec![SOURCE_FRESH; count])),
            new_null_array(&DataType::Float64, count),
            Arc::new(UInt8Array::from(vec![OLD_LOGPROB_BEHAVIOUR; count])),
            Arc::new(StringArray::new_null(count)),
        ],
    )
}
