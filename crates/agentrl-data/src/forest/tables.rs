//! Arrow tables of frozen groups, with their rows in canonical order.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{FixedSizeBinaryBuilder, ListBuilder, PrimitiveBuilder};
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Int32Type, UInt8Type};
use arrow_array::{
    ArrayRef, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray, UInt8Array, UInt32Array, new_null_array,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field};

use super::frozen_groups::{FrozenGroups, Ids, Ordered};
use super::steps::{Step, StepOrigin};
use super::trajectory::Note;
use super::{Trajectory, adopt, split};
use crate::facts::{self, Declared};
use crate::schema::{ENTROPIES, FLAG_UNTRAINED, OldLogprob, REWARD_COMPONENTS, Role, Table, sampling_fields};
use crate::token_columns::RowTypes;
use crate::{Check, Error, ErrorKind, Result, arrow_bug, fixed_width_lists, token_columns};

pub(super) fn tables(
    frozen: &FrozenGroups,
    groups: &[Ordered<'_>],
    ids: &Ids<'_>,
    check: Check<'_>,
) -> Result<[RecordBatch; Table::COUNT]> {
    let names = frozen.reward_components.as_ref().map(|names| serde_json::Value::from(names.clone()).to_string());
    let rewards = names.map(|names| (REWARD_COMPONENTS, names));
    let entropies = Some((ENTROPIES, frozen.entropies.clone()));
    let adopted = |part: usize| {
        frozen.groups.iter().flat_map(move |group| group.adopted.rows.iter().map(move |rows| &rows[part]))
    };
    let whole = |table: Table, part: usize, keys: &[&str], new: RecordBatch, metadata: Option<(&str, String)>| {
        let stored: Vec<RecordBatch> = adopted(part).cloned().collect();
        if stored.is_empty() {
            return described(&new, metadata);
        }
        let stored = adopt::merged(table, stored, keys)?;
        let parts = vec![stored, new];
        let parts = if table == Table::Nodes { token_columns::aligned(parts)? } else { parts };
        let rows = fixed_width_lists::concat_batches(&parts[1].schema(), &parts).map_err(arrow_bug)?;
        described(&rows, metadata)
    };
    Ok([
        whole(Table::Nodes, 0, &["node_id"], nodes(groups, check)?, entropies)?,
        whole(Table::Steps, 1, &["trajectory_id", "step"], steps(groups, &frozen.facts.step, check)?, rewards.clone())?,
        whole(Table::Trajectories, 2, &["trajectory_id"], trajectories(groups, ids, frozen, check)?, rewards)?,
        draws(groups, frozen, check)?,
        RecordBatch::new_empty(Table::Tasks.schema()),
        decisions(groups, ids, frozen.iteration, check)?,
    ])
}

/// Return a table with one more entry in the metadata of its schema.
fn described(rows: &RecordBatch, metadata: Option<(&str, String)>) -> Result<RecordBatch> {
    let schema = rows.schema();
    let known: HashMap<String, String> = schema.metadata().clone();
    let all = known.into_iter().chain(metadata.map(|(key, value)| (key.to_owned(), value))).collect();
    let schema = Arc::new(schema.as_ref().clone().with_metadata(all));
    RecordBatch::try_new(schema, rows.columns().to_vec()).map_err(arrow_bug)
}

fn table(table: Table, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    RecordBatch::try_new(table.schema(), columns).map_err(arrow_bug)
}

/// Return a table with its declared facts as the last column.
fn table_with(
    table: Table,
    (declared, facts): (&Declared, Option<ArrayRef>),
    mut columns: Vec<ArrayRef>,
) -> Result<RecordBatch> {
    columns.extend(facts);
    RecordBatch::try_new(facts::schema(table, declared), columns).map_err(arrow_bug)
}

/// Check that the lists of a table fit 32-bit offsets.
fn check_offsets(tokens: usize) -> Result<()> {
    if i32::try_from(tokens).is_ok() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Overflow,
        format!("{tokens} tokens in one batch are more than a list column can store; freeze fewer groups at a time"),
    ))
}

/// Return a reward if it is known: NaN and `None` both mean unknown.
fn known(reward: Option<f32>) -> Option<f32> {
    reward.filter(|reward| !reward.is_nan())
}

/// Make a column with one value of each row. `check` is called first, so that Ctrl-C can stop the work.
macro_rules! column {
    ($check:ident, $kind:ident, $rows:expr, $value:expr) => {{
        $check()?;
        Arc::new($rows.iter().map($value).collect::<$kind>()) as ArrayRef
    }};
}

/// Make a list column whose items are never null.
fn lists<'a, T, I>(item: DataType, rows: I) -> ArrayRef
where
    T: ArrowPrimitiveType,
    I: Iterator<Item = Option<&'a [T::Native]>> + Clone,
{
    let field = Field::new("item", item, false);
    // Reserve the whole length: a growing buffer is copied again and again.
    let values = rows.clone().flatten().map(<[_]>::len).sum();
    let values = PrimitiveBuilder::<T>::with_capacity(values);
    let mut builder = ListBuilder::with_capacity(values, rows.clone().count()).with_field(field);
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

fn binaries<K: AsRef<[u8]>>(width: i32, keys: impl Iterator<Item = K>) -> Result<ArrayRef> {
    let mut builder = FixedSizeBinaryBuilder::new(width);
    for key in keys {
        builder.append_value(key).map_err(arrow_bug)?;
    }
    Ok(Arc::new(builder.finish()))
}

fn nodes(groups: &[Ordered<'_>], check: Check<'_>) -> Result<RecordBatch> {
    check()?;
    let rows: Vec<_> = groups
        .iter()
        .flat_map(|entry| entry.nodes.iter().map(move |&node| (entry, node, &entry.group.nodes[node])))
        .collect();
    let tokens = rows.iter().map(|(entry, index, _)| entry.rest.tokens(entry.group, *index));
    check_offsets(tokens.clone().map(<[_]>::len).sum())?;
    let parents: Vec<_> =
        rows.iter().map(|(entry, index, _)| entry.rest.parent(*index).map(|at| entry.columns(at))).collect();
    let contents: Vec<_> = rows.iter().map(|(_, _, node)| &node.content).collect();
    let sampled = contents.iter().map(|content| content.sampling.is_some()).collect::<NullBuffer>();
    let sampling = StructArray::try_new(
        sampling_fields(),
        vec![
            column!(check, Float32Array, contents, |content| content.sampling.map_or(0.0, |s| s.temperature)),
            column!(check, Float32Array, contents, |content| content.sampling.map_or(0.0, |s| s.top_p)),
            column!(check, Int32Array, contents, |content| content.sampling.map_or(0, |s| s.top_k)),
        ],
        Some(sampled),
    );
    let origins = rows.iter().map(|(entry, _, node)| node.content.origin.map(|origin| entry.node_ids[split(origin).1]));
    let mut blobs = ListBuilder::new(FixedSizeBinaryBuilder::new(32)).with_field(Field::new(
        "item",
        DataType::FixedSizeBinary(32),
        false,
    ));
    for content in &contents {
        for hash in &content.blobs {
            blobs.values().append_value(hash).map_err(arrow_bug)?;
        }
        blobs.append(!content.blobs.is_empty());
    }
    let mut types = RowTypes::new();
    for (_, _, node) in &rows {
        types.extend(node.rows.iter().map(|(name, rows)| (name.clone(), rows.of)));
    }
    let recorded = types.iter().map(|(name, &of)| {
        let nodes = rows.iter().map(|(entry, index, node)| {
            let count = entry.rest.tokens(entry.group, *index).len();
            (node.rows.get(name), node.content.tokens.len() - count, count)
        });
        check()?;
        token_columns::column(of, nodes)
    });
    let recorded = recorded.collect::<Result<Vec<_>>>()?;
    let columns: Vec<ArrayRef> = vec![
        column!(check, Int64Array, rows, |(entry, index, _)| entry.node_ids[*index]),
        column!(check, Int64Array, parents, |parent| parent.map(|(id, _)| id)),
        column!(check, Int32Array, parents, |parent| parent.and_then(|(_, end)| end)),
        column!(check, Int64Array, rows, |(entry, _, _)| entry.group_id),
        column!(check, Int32Array, rows, |(entry, index, _)| entry.rest.start(entry.group, *index) as i32),
        column!(check, UInt8Array, contents, |content| content.kind as u8),
        lists::<Int32Type, _>(DataType::Int32, tokens.map(Some)),
        lists::<Float32Type, _>(DataType::Float32, contents.iter().map(|content| content.logprobs.as_deref())),
        lists::<Float32Type, _>(DataType::Float32, contents.iter().map(|content| content.entropies.as_deref())),
        lists::<UInt8Type, _>(DataType::UInt8, contents.iter().map(|content| content.trainable.as_deref())),
        column!(check, Int32Array, contents, |content| content.policy),
        column!(check, Int64Array, contents, |content| content.policy_version),
        column!(check, Int64Array, contents, |content| content.seed),
        Arc::new(sampling.map_err(arrow_bug)?),
        column!(check, UInt8Array, contents, |content| content.finish_reason as u8),
        Arc::new(origins.collect::<Int64Array>()),
        Arc::new(blobs.finish()),
        Arc::new(TimestampMicrosecondArray::from_iter_values(rows.iter().map(|(_, _, node)| node.created_us))),
    ];
    let columns = columns.into_iter().chain(recorded).collect();
    RecordBatch::try_new(token_columns::schema(&types)?, columns).map_err(arrow_bug)
}

fn steps(groups: &[Ordered<'_>], declared: &Declared, check: Check<'_>) -> Result<RecordBatch> {
    check()?;
    let mut rows: Vec<(&Ordered<'_>, usize, i32, &Step)> = Vec::new();
    for entry in groups {
        for &index in &entry.trajectories {
            rows.extend((0_i32..).zip(entry.group.steps(index)).map(|(step, row)| (entry, index, step, row)));
        }
    }
    let outcomes: Vec<_> = rows.iter().map(|(_, _, _, row)| &row.outcome).collect();
    let ends = |(entry, _, _, row): &(&Ordered<'_>, usize, i32, &Step)| {
        entry.columns(entry.row_at((row.node, row.end - entry.group.nodes[row.node].start))).1
    };
    let flags = |(entry, index, step, row): &(&Ordered<'_>, usize, i32, &Step)| {
        let trajectory = &entry.group.trajectories[*index];
        let untrained = matches!(trajectory.note, Some(Note::Untrained(_))) || (*step as usize) < trajectory.untrained;
        row.outcome.flags | if untrained { FLAG_UNTRAINED } else { 0 }
    };
    // The last step of a trajectory that a limit ended has the flag, however the limit was reported.
    let truncated = |(entry, index, step, row): &(&Ordered<'_>, usize, i32, &Step)| {
        let last = *step as usize + 1 == entry.group.trajectories[*index].steps.len();
        u8::from(row.outcome.truncated || (last && entry.is_truncated(*index)))
    };
    let facts = facts::column(declared, &outcomes.iter().map(|outcome| &outcome.facts))?;
    table_with(
        Table::Steps,
        (declared, facts),
        vec![
            column!(check, Int64Array, rows, |(entry, index, _, _)| entry.trajectory_ids[*index]),
            column!(check, Int32Array, rows, |&(_, _, step, _)| step),
            column!(check, Int64Array, rows, |(entry, _, _, row)| entry.node_ids[row.first_node]),
            column!(check, Int64Array, rows, |(entry, _, _, row)| entry.node_ids[row.node]),
            column!(check, Int32Array, rows, ends),
            column!(check, Int64Array, rows, |(entry, _, _, row)| match row.origin {
                StepOrigin::Live(index) => entry.trajectory_ids[index],
                StepOrigin::Stored(id) => id,
            }),
            binaries(16, rows.iter().map(|(_, _, _, row)| row.state_key))?,
            column!(check, Float32Array, outcomes, |outcome| known(outcome.reward)),
            lists::<Float32Type, _>(DataType::Float32, outcomes.iter().map(|outcome| outcome.rewards.as_deref())),
            column!(check, UInt8Array, outcomes, |outcome| u8::from(outcome.terminated)),
            column!(check, UInt8Array, rows, truncated),
            column!(check, UInt32Array, rows, flags),
            column!(check, UInt8Array, outcomes, |outcome| outcome.drift.map(|drift| drift as u8)),
            column!(check, Int32Array, outcomes, |outcome| outcome.drift_at.map(|at| at as i32)),
        ],
    )
}

fn trajectories(groups: &[Ordered<'_>], ids: &Ids<'_>, frozen: &FrozenGroups, check: Check<'_>) -> Result<RecordBatch> {
    let rows: Vec<(&Ordered<'_>, usize, &Trajectory)> =
        groups.iter().flat_map(|entry| entry.rows().map(move |(index, row)| (entry, index, row))).collect();
    let id = |entry: &Ordered<'_>, index: usize| entry.trajectory_ids[index];
    let leaves: Vec<_> =
        rows.iter().map(|(entry, _, row)| row.tip.map(|tip| entry.columns(entry.row_at(tip)))).collect();
    let branches: Vec<_> = rows.iter().map(|(entry, _, row)| row.branch.map(|at| (*entry, entry.row_at(at)))).collect();
    let versions: Vec<_> = rows.iter().map(|(entry, _, row)| entry.on_paths(row).versions).collect();
    let infos = rows.iter().map(|(entry, _, row)| row.info(|other| id(entry, other)));
    let declared = &frozen.facts.trajectory;
    let facts = facts::column(declared, &rows.iter().map(|(_, _, row)| &row.finish.facts))?;
    table_with(
        Table::Trajectories,
        (declared, facts),
        vec![
            column!(check, Int64Array, rows, |(entry, index, _)| id(entry, *index)),
            column!(check, Int64Array, rows, |(entry, _, _)| entry.group_id),
            column!(check, Int64Array, rows, |(entry, index, row)| {
                row.episode.and_then(|first| ids.of(first)).unwrap_or(id(entry, *index))
            }),
            column!(check, Int32Array, rows, |(_, _, row)| row.agent),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|(entry, _, _)| &entry.group.task_id))),
            Arc::new(Int64Array::from(vec![frozen.iteration; rows.len()])),
            column!(check, Int64Array, leaves, |leaf| leaf.map(|(id, _)| id)),
            column!(check, Int32Array, leaves, |leaf| leaf.and_then(|(_, end)| end)),
            binaries(16, rows.iter().map(|(entry, index, _)| entry.group.state_key(*index)))?,
            column!(check, Float32Array, rows, |(_, _, row)| known(row.finish.reward)),
            lists::<Float32Type, _>(DataType::Float32, rows.iter().map(|(_, _, row)| row.finish.rewards.as_deref())),
            column!(check, UInt8Array, rows, |(_, _, row)| row.finish.success.map(u8::from)),
            column!(check, UInt8Array, rows, |(entry, index, _)| entry.status(*index) as u8),
            column!(check, UInt8Array, rows, |(_, _, row)| row.origin as u8),
            column!(check, Int64Array, rows, |(_, _, row)| row.parent.and_then(|parent| ids.of(parent))),
            column!(check, Int64Array, branches, |branch| branch.map(|(entry, (row, _))| entry.node_ids[row])),
            column!(check, Int32Array, branches, |branch| branch.map(|(_, (_, end))| end as i32)),
            column!(check, Int64Array, versions, |&versions| versions.map(|(low, _)| low)),
            column!(check, Int64Array, versions, |&versions| versions.map(|(_, high)| high)),
            Arc::new(infos.collect::<StringArray>()),
            column!(check, UInt8Array, rows, |(_, _, row)| row.role as u8),
        ],
    )
}

fn draws(groups: &[Ordered<'_>], frozen: &FrozenGroups, check: Check<'_>) -> Result<RecordBatch> {
    let drawn = groups.iter().flat_map(|entry| entry.drawn().map(move |(index, source)| (entry, index, source)));
    let drawn: Vec<_> = drawn.collect();
    let count = drawn.len();
    let first = frozen.base.draw;
    table(
        Table::Draws,
        vec![
            Arc::new(Int64Array::from_iter_values(first..first + count as i64)),
            Arc::new(Int64Array::from(vec![frozen.iteration; count])),
            Arc::new(Int32Array::from_iter_values(0..count as i32)),
            column!(check, Int64Array, drawn, |&(entry, index, _)| entry.trajectory_ids[index]),
            column!(check, Int64Array, drawn, |(entry, _, _)| entry.group_id),
            column!(check, UInt8Array, drawn, |&(_, _, source)| source as u8),
            new_null_array(&DataType::Float64, count),
            column!(check, UInt8Array, drawn, |&(entry, index, _)| {
                let behaviour = entry.on_paths(&entry.group.trajectories[index]).sampled;
                (if behaviour { OldLogprob::Behaviour } else { OldLogprob::None }) as u8
            }),
            Arc::new(StringArray::new_null(count)),
            column!(check, UInt8Array, drawn, |&(entry, index, _)| {
                u8::from(entry.group.trajectories[index].role != Role::Baseline)
            }),
            Arc::new(UInt8Array::from(vec![1; count])),
        ],
    )
}

/// A decision with the ids of its group, its trajectory, the place that it applies to, and the resulting trajectory.
type Decided<'a> = (i64, i64, (Option<i64>, Option<i32>), Option<i64>, &'a super::Decision);

/// Make the table of decisions, in an order that does not depend on arrival, numbered within each group and round.
fn decisions(groups: &[Ordered<'_>], ids: &Ids<'_>, iteration: i64, check: Check<'_>) -> Result<RecordBatch> {
    let mut rows: Vec<Decided<'_>> = Vec::new();
    for entry in groups {
        let found = entry.group.decisions.iter().filter_map(|decision| {
            let at = decision.node.map(|node| {
                let node = split(node).1;
                entry.row_at((node, decision.end.unwrap_or(entry.group.nodes[node].len())))
            });
            let node = at.map(|(row, _)| entry.node_ids[row]).filter(|&node| node >= 0);
            let end = match (decision.end, at) {
                (None, at) => at.and_then(|at| entry.columns(at).1),
                (Some(end), at) => Some(at.map_or(end, |(_, end)| end) as i32),
            };
            let result = decision.result.and_then(|result| ids.of(result));
            Some((entry.group_id, ids.of(decision.trajectory)?, (node, end), result, decision))
        });
        let begin = rows.len();
        rows.extend(found);
        rows[begin..].sort_by(|a, b| {
            let key = |&(_, trajectory, at, result, decision): &Decided<'_>| {
                let ordinal = decision.ordinal.unwrap_or(u32::MAX);
                (decision.round, ordinal, trajectory, decision.operation, at, result)
            };
            let rest = |decision: &super::Decision| (decision.score.map(f64::to_bits), decision.reason.clone());
            key(a).cmp(&key(b)).then_with(|| rest(a.4).cmp(&rest(b.4)))
        });
    }
    let mut ordinals = Vec::with_capacity(rows.len());
    for (index, row) in rows.iter().enumerate() {
        let before = index.checked_sub(1).map(|index| &rows[index]);
        let same = before.is_some_and(|before| (before.0, before.4.round) == (row.0, row.4.round));
        ordinals.push(if same { ordinals[index - 1] + 1 } else { 0 });
    }
    table(
        Table::Decisions,
        vec![
            Arc::new(Int64Array::from(vec![iteration; rows.len()])),
            column!(check, Int64Array, rows, |row| row.0),
            column!(check, Int32Array, rows, |row| row.4.round as i32),
            Arc::new(Int32Array::from(ordinals)),
            column!(check, UInt8Array, rows, |row| row.4.operation as u8),
            column!(check, Int64Array, rows, |row| row.1),
            column!(check, Int64Array, rows, |row| row.2.0),
            column!(check, Int32Array, rows, |row| row.2.1),
            column!(check, Int64Array, rows, |row| row.3),
            column!(check, Float64Array, rows, |row| row.4.score),
            Arc::new(rows.iter().map(|row| row.4.reason.as_deref()).collect::<StringArray>()),
        ],
    )
}
