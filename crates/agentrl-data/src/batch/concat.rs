//! Rows across iterations: new rows of a batch, moved ids, joined batches, and trajectories that are drawn again.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch};
use arrow_array::{StringArray, UInt8Array};
use arrow_select::interleave::interleave_record_batch;

use super::{Batch, Column, Level, NextIds, Numbers, i32s, i64s, task_counts, u8s};
use crate::fixed_width_lists::concat_batches;
use crate::schema::{OldLogprob, REWARD_COMPONENTS, Role, Source, Table};
use crate::{Check, Error, Result, arrow_bug, facts, token_columns};

/// Options of [`Batch::draw`].
#[derive(Clone, Copy, Debug)]
pub struct NewDraws<'a> {
    /// Trajectory of each draw. The batch must have it; one trajectory can be drawn into several groups.
    pub trajectory_ids: &'a [i64],
    /// Group in which each draw votes; `None`: the group of its trajectory.
    pub group_ids: Option<&'a [i64]>,
    /// `fresh`, `replay`, `expert`, `failed` or `imagined`.
    pub source: &'a str,
    /// Probability of each draw, if it is known.
    pub probability: Option<&'a [f64]>,
    /// Denominator of the ratio: `behaviour`, `recomputed` or `none`.
    pub old_logprob: &'a str,
    /// Reason for the draws, as text.
    pub reason: Option<&'a str>,
    /// Iteration that trains on the draws; `None`: the iteration of the batch's last draw.
    pub iteration: Option<i64>,
}

impl Batch {
    /// Return the rows of a table that are new in this batch: their ids are not below [`Batch::base`]. If all
    /// trajectories of a batch are stored, it has no new task statistics and decisions either.
    pub fn new_rows(&self, table: Table) -> Result<RecordBatch> {
        let (rows, base) = (self.table(table), self.base);
        let Some((key, first)) = key_of(table, base) else {
            let trajectories = i64s(self.trajectories(), "trajectory_id")?.values();
            let stored = !trajectories.is_empty() && trajectories.iter().all(|&id| id < base.trajectory);
            return Ok(if stored { rows.slice(0, 0) } else { rows.clone() });
        };
        let keys = i64s(rows, key)?.values();
        if keys.iter().all(|&key| key >= first) {
            return Ok(rows.clone());
        }
        let mask = keys.iter().map(|&key| Some(key >= first)).collect::<BooleanArray>();
        arrow_select::filter::filter_record_batch(rows, &mask).map_err(arrow_bug)
    }

    /// Return the batch with the ids of its new rows moved: [`Batch::base`] becomes `first`. Smaller ids belong to
    /// stored rows and stay.
    pub fn rebase(&self, first: NextIds) -> Result<Self> {
        let mut tables = self.tables.clone();
        for rows in &mut tables {
            *rows = moved(rows, self.base, first)?;
        }
        Ok(Self { tables, base: first, ..self.clone() })
    }

    /// Return the first free ids after the rows of this batch.
    pub fn next_ids(&self) -> Result<NextIds> {
        let after = |table: Table, name: &str| -> Result<i64> {
            Ok(i64s(self.table(table), name)?.values().iter().max().map_or(0, |&last| last + 1))
        };
        let next = NextIds {
            node: after(Table::Nodes, "node_id")?,
            group: after(Table::Trajectories, "group_id")?.max(after(Table::Draws, "group_id")?),
            trajectory: after(Table::Trajectories, "trajectory_id")?,
            draw: after(Table::Draws, "draw_id")?,
        };
        Ok(next.max(self.base))
    }

    /// Join the rows of several batches. Ids of each part's new rows are moved after those of the parts before it. Rows
    /// that are in a store already keep their ids, come first, and are kept once, even if several parts have them.
    /// Draws stay in the order of the parts.
    ///
    /// A computed column is kept if every part has it.
    pub fn concat(parts: &[Self]) -> Result<Self> {
        Self::concat_with(parts, &mut || Ok(()))
    }

    /// [`Batch::concat`] that calls `check` between its steps and stops if it returns an error.
    pub fn concat_with(parts: &[Self], check: Check<'_>) -> Result<Self> {
        let base = parts.iter().fold(NextIds::default(), |base, part| base.max(part.base));
        let mut next = base;
        let mut rebased = Vec::with_capacity(parts.len());
        for part in parts {
            check()?;
            // New rows of a part come after everything that any part takes for stored.
            let part = part.rebase(next)?.with_base(part.base);
            next = next.max(part.next_ids()?);
            rebased.push(part);
        }
        let mut orders = Vec::with_capacity(Table::COUNT);
        let mut tables = Vec::with_capacity(Table::COUNT);
        for table in Table::ALL {
            check()?;
            let order = order(table, &rebased)?;
            tables.push(arranged(table, &rebased, order.as_deref())?);
            orders.push(order);
        }
        let tables: [RecordBatch; Table::COUNT] =
            tables.try_into().map_err(|_| Error::internal("the tables became another number"))?;
        let mut blobs = BTreeMap::new();
        for part in parts {
            blobs.extend(part.blobs.iter().map(|(hash, content)| (*hash, content.clone())));
        }
        let mut batch = Self::new_with(tables, check)?.with_base(base).with_blobs(Arc::new(blobs));
        batch.stored_blobs = parts.iter().flat_map(|part| part.stored_blobs.iter().cloned()).collect();
        let Some(head) = parts.first() else { return Ok(batch) };
        batch.source.clone_from(&head.source);
        for column in &head.columns {
            let same = |part: &Self| {
                part.columns.iter().find(|other| (&other.name, other.level) == (&column.name, column.level)).cloned()
            };
            if let Some(found) = parts.iter().map(same).collect::<Option<Vec<_>>>() {
                let nodes = orders[Table::Nodes as usize].as_deref().filter(|_| column.level == Level::NodeToken);
                if let Some(other) = found.iter().find(|other| other.width != column.width) {
                    return Err(Error::invalid(format!(
                        "column {:?} has {} values for each token in one part and {} in another; give all parts the same width",
                        column.name,
                        column.width.unwrap_or(1),
                        other.width.unwrap_or(1)
                    )));
                }
                let values = joined(parts, &found, nodes)?;
                batch = match column.width {
                    Some(width) => batch.with_wide_column(&column.name, width, values)?,
                    None => batch.with_column(&column.name, column.level, values)?,
                };
            }
        }
        Ok(batch)
    }

    /// Return the batch with more draws of its trajectories, after the draws it has. A trajectory can be drawn into
    /// several groups and iterations. Columns computed for draws, steps and tokens are left out, because they do not
    /// cover the new draws. Draws of a trajectory with role baseline vote, but are not trained.
    pub fn draw(&self, new: &NewDraws<'_>) -> Result<Self> {
        let count = new.trajectory_ids.len();
        let source = Source::from_name(new.source)? as u8;
        let old_logprob = OldLogprob::from_name(new.old_logprob)? as u8;
        let lengths =
            [("group_ids", new.group_ids.map(<[i64]>::len)), ("probability", new.probability.map(<[f64]>::len))];
        for (argument, length) in lengths {
            if let Some(length) = length.filter(|&length| length != count) {
                return Err(Error::invalid(format!(
                    "{argument} has {length} values for {count} trajectory_ids; give one for each"
                )));
            }
        }
        let present = i64s(self.trajectories(), "trajectory_id")?.values();
        let groups = i64s(self.trajectories(), "group_id")?.values();
        let roles = u8s(self.trajectories(), "role")?.values();
        let (mut own_groups, mut trained) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (place, id) in new.trajectory_ids.iter().enumerate() {
            let row = present.binary_search(id).map_err(|_| {
                Error::invalid(format!(
                    "trajectory_ids[{place}] is {id}, which is not in the batch; join it first: \
                     Batch.concat([batch, store.trajectory_batch(ids)])"
                ))
            })?;
            own_groups.push(groups[row]);
            trained.push(roles[row] != Role::Baseline as u8);
        }
        let iterations = i64s(self.draws(), "iteration")?.values();
        let iteration = new.iteration.or_else(|| iterations.last().copied()).ok_or_else(|| {
            Error::invalid("the batch has no draws, so its iteration is unknown; pass with_draws(…, iteration=…)")
        })?;
        let first = self.next_ids()?.draw;
        let position = i32s(self.draws(), "position")?.values().iter().max().map_or(0, |&last| last + 1);
        let draws = RecordBatch::try_new(
            Table::Draws.schema(),
            vec![
                Arc::new((first..first + count as i64).collect::<Int64Array>()) as ArrayRef,
                Arc::new(Int64Array::from(vec![iteration; count])),
                Arc::new((position..position + count as i32).collect::<Int32Array>()),
                Arc::new(Int64Array::from(new.trajectory_ids.to_vec())),
                Arc::new(Int64Array::from(new.group_ids.map_or(own_groups, <[i64]>::to_vec))),
                Arc::new(UInt8Array::from(vec![source; count])),
                Arc::new((0..count).map(|row| new.probability.map(|values| values[row])).collect::<Float64Array>()),
                Arc::new(UInt8Array::from(vec![old_logprob; count])),
                Arc::new(StringArray::from(vec![new.reason; count])),
                Arc::new(trained.into_iter().map(u8::from).collect::<UInt8Array>()),
                Arc::new(UInt8Array::from(vec![1; count])),
            ],
        );
        let mut tables = self.tables.clone();
        let rows = &mut tables[Table::Draws as usize];
        *rows = concat_batches(&Table::Draws.schema(), [&*rows, &draws.map_err(arrow_bug)?]).map_err(arrow_bug)?;
        let mut batch = self.rebuilt(tables)?;
        batch.columns = self.columns.iter().filter(|column| column.level == Level::NodeToken).cloned().collect();
        Ok(batch)
    }

    /// Return a batch with other tables. Everything else stays, except computed columns, which are left out.
    pub(super) fn rebuilt(&self, tables: [RecordBatch; Table::COUNT]) -> Result<Self> {
        let layout = Self::new(tables.clone())?.layout;
        Ok(Self { tables, layout, columns: Vec::new(), ..self.clone() })
    }
}

impl NextIds {
    /// Return the larger of each id.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            node: self.node.max(other.node),
            group: self.group.max(other.group),
            trajectory: self.trajectory.max(other.trajectory),
            draw: self.draw.max(other.draw),
        }
    }
}

/// Return the column whose values separate new rows of a table from stored ones, and its first new value.
fn key_of(table: Table, base: NextIds) -> Option<(&'static str, i64)> {
    match table {
        Table::Nodes => Some(("node_id", base.node)),
        Table::Steps | Table::Trajectories => Some(("trajectory_id", base.trajectory)),
        Table::Draws => Some(("draw_id", base.draw)),
        Table::Tasks | Table::Decisions => None,
    }
}

/// Return the counter of an id column; `None` for other columns.
fn counter(column: &str, ids: NextIds) -> Option<i64> {
    match column {
        "node_id" | "parent_id" | "first_node_id" | "leaf_node_id" | "branch_node" | "origin_node_id" => Some(ids.node),
        "trajectory_id" | "origin_trajectory_id" | "result_trajectory_id" | "parent_trajectory" | "episode_id" => {
            Some(ids.trajectory)
        }
        "group_id" => Some(ids.group),
        "draw_id" => Some(ids.draw),
        _ => None,
    }
}

fn moved(rows: &RecordBatch, base: NextIds, first: NextIds) -> Result<RecordBatch> {
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns()).map(|(field, column)| {
        let ids = counter(field.name(), base).zip(counter(field.name(), first)).filter(|(base, first)| base != first);
        let Some((base, first)) = ids else { return Ok(column.clone()) };
        let moved = column.as_primitive::<Int64Type>().try_unary::<_, Int64Type, _>(|id| {
            let to = if id < base { Some(id) } else { id.checked_sub(base).and_then(|id| id.checked_add(first)) };
            to.ok_or_else(|| Error::overflow("the store has used all ids; write to a new store"))
        })?;
        Ok(Arc::new(moved) as ArrayRef)
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    RecordBatch::try_new(schema.clone(), columns).map_err(arrow_bug)
}

/// Return the part and row of each row of the joined table; `None` if the parts' new rows simply follow each other.
fn order(table: Table, parts: &[Batch]) -> Result<Option<Vec<(usize, usize)>>> {
    let Some((key, _)) = key_of(table, NextIds::default()) else { return Ok(None) };
    let (mut stored, mut new) = (Vec::new(), Vec::new());
    // The first part with a stored id provides all rows of that id.
    let mut giver: BTreeMap<i64, usize> = BTreeMap::new();
    for (index, part) in parts.iter().enumerate() {
        let first = key_of(table, part.base).map_or(0, |(_, first)| first);
        for (row, &id) in i64s(part.table(table), key)?.values().iter().enumerate() {
            if id >= first {
                new.push((index, row));
            } else if *giver.entry(id).or_insert(index) == index {
                stored.push((id, index, row));
            } else if table == Table::Draws {
                return Err(Error::invalid(format!(
                    "draw {id} is in two of the parts; draw its trajectory again with Batch.draw"
                )));
            }
        }
    }
    // Draws stay in the order of the parts, which is the order of their computed columns.
    if stored.is_empty() || table == Table::Draws {
        return Ok(None);
    }
    stored.sort_unstable();
    Ok(Some(stored.into_iter().map(|(_, index, row)| (index, row)).chain(new).collect()))
}

/// Join the rows of a table of all parts, in an order or one part after the other.
fn arranged(table: Table, parts: &[Batch], order: Option<&[(usize, usize)]>) -> Result<RecordBatch> {
    let rows = match table {
        Table::Tasks => task_counts::joined(parts)?,
        // Decisions of stored trajectories are stored as well.
        Table::Decisions => parts.iter().map(|part| part.new_rows(table)).collect::<Result<_>>()?,
        _ => parts.iter().map(|part| part.table(table).clone()).collect(),
    };
    let rows = if table == Table::Nodes { token_columns::aligned(rows)? } else { facts::aligned(table, rows)? };
    let schema = table.schema_of(&rows);
    let names = |rows: &RecordBatch| rows.schema().metadata().get(REWARD_COMPONENTS).cloned();
    if let Some(other) = rows.iter().filter(|rows| table.is_described(rows)).find(|&rows| {
        names(rows).is_some_and(|names| schema.metadata().get(REWARD_COMPONENTS).is_some_and(|first| *first != names))
    }) {
        let (first, other) = (schema.metadata().get(REWARD_COMPONENTS), names(other));
        return Err(Error::invalid(format!(
            "the parts have rewards of different components, {} and {}; make all with the same Forest(reward_components=…)",
            first.map_or("", String::as_str),
            other.unwrap_or_default()
        )));
    }
    let too_many =
        |error| Error::overflow(format!("the parts do not fit one table {} ({error}); join fewer parts", table.name()));
    let joined = match order {
        None => concat_batches(&schema, &rows).map_err(too_many)?,
        Some(order) => {
            let joined = interleave_record_batch(&rows.iter().collect::<Vec<_>>(), order).map_err(too_many)?;
            RecordBatch::try_new(schema.clone(), joined.columns().to_vec()).map_err(arrow_bug)?
        }
    };
    if table != Table::Draws || parts.len() < 2 {
        return Ok(joined);
    }
    let columns = schema.fields().iter().zip(joined.columns()).map(|(field, column)| -> ArrayRef {
        if field.name() == "position" {
            Arc::new((0..joined.num_rows() as i32).collect::<Int32Array>())
        } else {
            column.clone()
        }
    });
    RecordBatch::try_new(schema.clone(), columns.collect()).map_err(arrow_bug)
}

/// Join a computed column of all parts: one after the other, or, for node tokens, in the order of the joined nodes.
fn joined(parts: &[Batch], columns: &[Column], nodes: Option<&[(usize, usize)]>) -> Result<Numbers> {
    let values = Numbers::join(
        columns.first().map_or("", |column| &column.name),
        columns.iter().map(|column| column.values.as_ref()),
    )?;
    let width = columns.first().and_then(|column| column.width).unwrap_or(1);
    let Some(nodes) = nodes else { return Ok(values) };
    let mut begins = Vec::with_capacity(parts.len());
    let mut begin = 0;
    for part in parts {
        begins.push(begin);
        begin += part.level_len(Level::NodeToken);
    }
    let tokens = nodes.iter().flat_map(|&(part, row)| {
        let offsets = parts[part].layout.node_offsets();
        begins[part] + offsets[row] as usize..begins[part] + offsets[row + 1] as usize
    });
    Ok(values.gather(tokens.flat_map(|token| token * width..(token + 1) * width)))
}

#[cfg(test)]
mod tests;
