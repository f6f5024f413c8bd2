//! Batches made of batches: draws selected, ids moved, parts joined; and the computed columns as tables.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float32Array, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch};
use arrow_array::{UInt8Array, UInt32Array};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{Field, Schema};

use super::columns::KEYS;
use super::{Batch, Column, Level, NextIds, Numbers, i32s, i64s};
use crate::schema::Table;
use crate::{Error, ErrorKind, Result, arrow_bug};

impl Batch {
    /// The batch with only some of its draws, in the given order. Nodes, steps and trajectories stay.
    pub fn select_draws(&self, draws: &[i64]) -> Result<Self> {
        self.chosen("indices", draws)?;
        let indices: UInt32Array = draws.iter().map(|&draw| draw as u32).collect();
        let mut tables = self.tables.clone();
        let rows = &mut tables[Table::Draws as usize];
        *rows = arrow_select::take::take_record_batch(rows, &indices).map_err(arrow_bug)?;
        let layout = Self::new(tables.clone())?.layout;
        let columns = self.columns.iter().map(|column| self.selected(column, draws)).collect();
        Ok(Self { tables, columns, layout, ..self.clone() })
    }

    /// A computed column cut to some draws.
    fn selected(&self, column: &Column, draws: &[i64]) -> Column {
        let chosen = || draws.iter().map(|&draw| draw as usize);
        let values = match column.level {
            Level::Draw => Arc::new(column.values.gather(chosen())),
            Level::Step => Arc::new(column.values.gather(chosen().flat_map(|draw| self.layout.steps(draw)))),
            Level::Token => Arc::new(column.values.gather(chosen().flat_map(|draw| self.layout.tokens(draw)))),
            Level::NodeToken => column.values.clone(),
        };
        Column { name: column.name.clone(), level: column.level, values }
    }

    /// The batch with every id moved so that its smallest possible id is `first`; ids of a frozen batch start at zero.
    pub fn rebase(&self, first: NextIds) -> Result<Self> {
        let mut tables = self.tables.clone();
        for rows in &mut tables {
            *rows = moved(rows, first)?;
        }
        Ok(Self { tables, ..self.clone() })
    }

    /// The ids that rows after this batch may take.
    pub fn next_ids(&self) -> Result<NextIds> {
        let after = |table: Table, name: &str| -> Result<i64> {
            Ok(i64s(self.table(table), name)?.values().iter().max().map_or(0, |&last| last + 1))
        };
        Ok(NextIds {
            node: after(Table::Nodes, "node_id")?,
            group: after(Table::Trajectories, "group_id")?,
            trajectory: after(Table::Trajectories, "trajectory_id")?,
            draw: after(Table::Draws, "draw_id")?,
        })
    }

    /// The rows of several batches as one; each part's ids are moved behind those of the parts before it.
    ///
    /// A computed column is kept where every part has it.
    pub fn concat(parts: &[Self]) -> Result<Self> {
        let Some(head) = parts.first() else { return Self::empty() };
        let mut next = NextIds::default();
        let mut position = 0;
        let mut tables: [Vec<RecordBatch>; 5] = Default::default();
        for part in parts {
            let part = part.rebase(next)?;
            next = part.next_ids()?.max(next);
            for (rows, table) in tables.iter_mut().zip(Table::ALL) {
                rows.push(part.table(table).clone());
            }
            let draws = &mut tables[Table::Draws as usize];
            if let Some(last) = draws.last_mut() {
                *last = repositioned(last, position)?;
                position += last.num_rows() as i32;
            }
        }
        let mut joined = Vec::with_capacity(5);
        for (rows, table) in tables.iter().zip(Table::ALL) {
            joined.push(arrow_select::concat::concat_batches(&table.schema(), rows).map_err(arrow_bug)?);
        }
        let tables = joined.try_into().map_err(|_| Error::internal("five tables became another number"))?;
        let mut batch = Self::new(tables)?;
        batch.source.clone_from(&head.source);
        for column in &head.columns {
            let same = |part: &Self| {
                part.columns.iter().find(|other| (&other.name, other.level) == (&column.name, column.level)).cloned()
            };
            if let Some(found) = parts.iter().map(same).collect::<Option<Vec<_>>>() {
                let values = Numbers::join(found.iter().map(|part| part.values.as_ref()))?;
                batch = batch.with_column(&column.name, column.level, values)?;
            }
        }
        Ok(batch)
    }

    /// The batch with another table of task statistics.
    pub fn with_tasks(&self, tasks: RecordBatch) -> Result<Self> {
        let mut batch = self.clone();
        batch.tables[Table::Tasks as usize] = tasks;
        if batch.tasks().schema().fields() != Table::Tasks.schema().fields() {
            return Err(Error::schema("the task statistics do not have the columns of table tasks"));
        }
        Ok(batch)
    }

    /// The computed columns of a level as a table, keyed by ids: `draw_id`, `draw_id` and `step`, or `node_id`.
    /// Token values are lists, one per step or per node. `None` where nothing was computed.
    pub fn computed_table(&self, level: Level) -> Result<Option<RecordBatch>> {
        let layout = &self.layout;
        let wanted = |column: &&Column| match level {
            Level::Draw | Level::NodeToken => column.level == level,
            Level::Step | Level::Token => matches!(column.level, Level::Step | Level::Token),
        };
        let columns: Vec<&Column> = self.columns.iter().filter(wanted).collect();
        if columns.is_empty() {
            return Ok(None);
        }
        let draw_ids = i64s(self.draws(), "draw_id")?;
        let mut fields = Vec::new();
        let mut arrays: Vec<ArrayRef> = Vec::new();
        let mut add = |name: &str, array: ArrayRef| {
            fields.push(Field::new(name, array.data_type().clone(), false));
            arrays.push(array);
        };
        match level {
            Level::Draw => add("draw_id", Arc::new(draw_ids.clone())),
            Level::NodeToken => add("node_id", Arc::new(i64s(self.nodes(), "node_id")?.clone())),
            Level::Step | Level::Token => {
                let Numbers::I64(ids) = Numbers::I64(draw_ids.values().to_vec()).repeat(&layout.step_offsets) else {
                    return Err(Error::internal("draw ids are not integers"));
                };
                add("draw_id", Arc::new(Int64Array::from(ids)));
                let numbers = i32s(self.steps(), "step")?;
                let numbers = layout.step_rows.iter().map(|&row| numbers.value(row));
                add("step", Arc::new(numbers.collect::<Int32Array>()));
            }
        }
        for column in columns {
            let values = column.values.to_array();
            let offsets = match column.level {
                Level::Draw | Level::Step => None,
                Level::Token => Some(&layout.token_offsets),
                Level::NodeToken => Some(&layout.node_offsets),
            };
            add(&column.name, if let Some(offsets) = offsets { list(values, offsets)? } else { values });
        }
        let schema = Arc::new(Schema::new_with_metadata(fields, self.source.clone().into_iter().collect()));
        RecordBatch::try_new(schema, arrays).map(Some).map_err(arrow_bug)
    }

    /// The batch with the columns of a table that [`Batch::computed_table`] made for these very draws and nodes.
    pub(crate) fn with_computed_table(&self, rows: &RecordBatch) -> Result<Self> {
        let mut batch = self.clone();
        batch.source.extend(rows.schema().metadata().clone());
        let by_node = rows.column_by_name("node_id").is_some();
        let by_step = rows.column_by_name("step").is_some();
        for (field, array) in rows.schema().fields().iter().zip(rows.columns()) {
            let name = field.name();
            if KEYS.contains(&name.as_str()) {
                continue;
            }
            let list = array.as_list_opt::<i32>();
            let level = match (by_node, list.is_some(), by_step) {
                (true, _, _) => Level::NodeToken,
                (_, true, _) => Level::Token,
                (_, _, true) => Level::Step,
                _ => Level::Draw,
            };
            let values = list.map_or(array, ListArray::values);
            batch = batch.with_column(name, level, Numbers::from_array(name, values.as_ref())?)?;
        }
        Ok(batch)
    }
}

impl NextIds {
    /// The greater of each id.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            node: self.node.max(other.node),
            group: self.group.max(other.group),
            trajectory: self.trajectory.max(other.trajectory),
            draw: self.draw.max(other.draw),
        }
    }
}

impl Numbers {
    /// The values as an Arrow array.
    fn to_array(&self) -> ArrayRef {
        match self {
            Self::F32(values) => Arc::new(Float32Array::from(values.clone())),
            Self::F64(values) => Arc::new(Float64Array::from(values.clone())),
            Self::I64(values) => Arc::new(Int64Array::from(values.clone())),
            Self::I32(values) => Arc::new(Int32Array::from(values.clone())),
            Self::U32(values) => Arc::new(UInt32Array::from(values.clone())),
            Self::U8(values) => Arc::new(UInt8Array::from(values.clone())),
        }
    }

    fn join<'a>(parts: impl Iterator<Item = &'a Self>) -> Result<Self> {
        let arrays: Vec<ArrayRef> = parts.map(Self::to_array).collect();
        let references: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
        let joined = arrow_select::concat::concat(&references)
            .map_err(|error| Error::invalid("a computed column has different types in the parts").with_source(error))?;
        Self::from_array("computed", joined.as_ref())
    }
}

fn list(values: ArrayRef, offsets: &[i64]) -> Result<ArrayRef> {
    let field = Arc::new(Field::new("item", values.data_type().clone(), false));
    let offsets = offsets.iter().map(|&offset| i32::try_from(offset)).collect::<std::result::Result<Vec<_>, _>>();
    let offsets = offsets.map_err(|_| {
        Error::new(ErrorKind::Overflow, "more tokens in one batch than a list column holds; collect smaller batches")
    })?;
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    Ok(Arc::new(ListArray::try_new(field, offsets, values, None).map_err(arrow_bug)?))
}

/// Which counter an id column belongs to.
fn offset_of(column: &str, first: NextIds) -> Option<i64> {
    match column {
        "node_id" | "parent_id" | "first_node_id" | "leaf_node_id" | "branch_node" | "origin_node_id" => {
            Some(first.node)
        }
        "trajectory_id" | "origin_trajectory_id" | "parent_trajectory" | "episode_id" => Some(first.trajectory),
        "group_id" => Some(first.group),
        "draw_id" => Some(first.draw),
        _ => None,
    }
}

fn moved(rows: &RecordBatch, first: NextIds) -> Result<RecordBatch> {
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns()).map(|(field, column)| {
        match offset_of(field.name(), first).filter(|&offset| offset != 0) {
            Some(offset) => {
                let ids = column.as_primitive::<Int64Type>();
                let moved = ids.try_unary::<_, Int64Type, _>(|id| {
                    id.checked_add(offset).ok_or_else(|| Error::overflow("the store has no more ids"))
                })?;
                Ok(Arc::new(moved) as ArrayRef)
            }
            None => Ok(column.clone()),
        }
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    RecordBatch::try_new(schema.clone(), columns).map_err(arrow_bug)
}

/// Draws whose positions are counted on from `first`.
fn repositioned(draws: &RecordBatch, first: i32) -> Result<RecordBatch> {
    let schema = draws.schema();
    let columns = schema.fields().iter().zip(draws.columns()).map(|(field, column)| -> ArrayRef {
        if field.name() == "position" {
            Arc::new(column.as_primitive::<Int32Type>().unary::<_, Int32Type>(|position| position + first))
        } else {
            column.clone()
        }
    });
    RecordBatch::try_new(schema.clone(), columns.collect()).map_err(arrow_bug)
}
