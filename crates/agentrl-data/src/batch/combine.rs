//! Batches derived from a batch (draws selected, task statistics set), and computed columns as tables.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float32Array, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch,
};
use arrow_array::{UInt8Array, UInt16Array, UInt32Array};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{Field, Schema};

use super::columns::KEYS;
use super::{Batch, Column, Level, Numbers, columns_differ, i32s, i64s};
use crate::schema::{OldLogprob, Table};
use crate::{Error, ErrorKind, Result, arrow_bug};

impl Batch {
    /// Return the batch with some of its draws, in the given order. Nodes, steps and trajectories stay.
    pub fn select_draws(&self, draws: &[i64]) -> Result<Self> {
        self.chosen("indices", draws)?;
        let indices: UInt32Array = draws.iter().map(|&draw| draw as u32).collect();
        let mut tables = self.tables.clone();
        let rows = &mut tables[Table::Draws as usize];
        *rows = arrow_select::take::take_record_batch(rows, &indices).map_err(arrow_bug)?;
        let mut batch = self.rebuilt(tables)?;
        batch.columns = self.columns.iter().map(|column| self.selected(column, draws)).collect();
        Ok(batch)
    }

    /// Return the values of a computed column for some draws.
    fn selected(&self, column: &Column, draws: &[i64]) -> Column {
        let chosen = || draws.iter().map(|&draw| draw as usize);
        let values = match column.level {
            Level::Draw => Arc::new(column.values.gather(chosen())),
            Level::Step => Arc::new(column.values.gather(chosen().flat_map(|draw| self.layout.steps(draw)))),
            Level::Token => Arc::new(column.values.gather(chosen().flat_map(|draw| self.layout.tokens(draw)))),
            Level::NodeToken => column.values.clone(),
        };
        Column { name: column.name.clone(), level: column.level, width: column.width, values }
    }

    /// Return the batch with other codes of `old_logprob`, one for each draw.
    pub fn with_old_logprobs(&self, codes: &[u8]) -> Result<Self> {
        let draws = self.draws();
        let known = OldLogprob::NAMES.len();
        if codes.len() != draws.num_rows() {
            return Err(Error::invalid(format!(
                "codes has {} values for {} draws; give one code for each draw",
                codes.len(),
                draws.num_rows()
            )));
        }
        if let Some(place) = codes.iter().position(|&code| usize::from(code) >= known) {
            return Err(Error::invalid(format!("codes[{place}] is {}; give codes below {known}", codes[place])));
        }
        let place = draws.schema().index_of("old_logprob").map_err(arrow_bug)?;
        let mut columns = draws.columns().to_vec();
        columns[place] = Arc::new(UInt8Array::from(codes.to_vec()));
        let mut batch = self.clone();
        batch.tables[Table::Draws as usize] = RecordBatch::try_new(draws.schema(), columns).map_err(arrow_bug)?;
        Ok(batch)
    }

    /// Return the batch with another table of task statistics.
    pub fn with_tasks(&self, tasks: RecordBatch) -> Result<Self> {
        let mut batch = self.clone();
        batch.tables[Table::Tasks as usize] = tasks;
        if batch.tasks().schema().fields() != Table::Tasks.schema().fields() {
            return Err(Error::schema(format!(
                "table tasks {}",
                columns_differ(&batch.tasks().schema(), &Table::Tasks.schema())
            )));
        }
        Ok(batch)
    }

    /// Return the computed columns of a level as a table, keyed by ids: `draw_id`, `draw_id` and `step`, or `node_id`.
    /// Steps and tokens have one table, in which token values are lists, one per step. Values of stored tokens are
    /// lists, one per node. `None` if no column was computed.
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
            let mut values = column.values.to_array();
            if let Some(width) = column.width {
                values = wide(values, width)?;
            }
            let offsets = match column.level {
                Level::Draw | Level::Step => None,
                Level::Token => Some(layout.token_offsets.as_slice()),
                Level::NodeToken => Some(layout.node_offsets()),
            };
            add(&column.name, if let Some(offsets) = offsets { list(values, offsets)? } else { values });
        }
        let schema = Arc::new(Schema::new_with_metadata(fields, self.source.clone().into_iter().collect()));
        RecordBatch::try_new(schema, arrays).map(Some).map_err(arrow_bug)
    }

    /// Return the batch with the columns of a table that [`Batch::computed_table`] made for the same draws and nodes.
    pub(crate) fn with_computed_table(&self, rows: &RecordBatch) -> Result<Self> {
        let mut batch = self.clone();
        let keys = [("node_id", self.nodes()), ("draw_id", self.draws())];
        for (key, facts) in keys {
            if let Some(found) = rows.column_by_name(key) {
                let found = found.as_primitive_opt::<Int64Type>().map(|ids| ids.values().to_vec()).unwrap_or_default();
                let mut expected = i64s(facts, key)?.values().to_vec();
                if rows.column_by_name("step").is_some() {
                    let offsets = self.layout.step_offsets.windows(2);
                    let repeated = expected
                        .iter()
                        .zip(offsets)
                        .flat_map(|(&id, pair)| std::iter::repeat_n(id, (pair[1] - pair[0]) as usize));
                    expected = repeated.collect();
                }
                if found != expected {
                    return Err(Error::corrupt(format!(
                        "the {key}s of a table of computed columns differ from those of the batch; restore them \
                         from a copy"
                    )));
                }
            }
        }
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
            // A slice shares the values of the whole table, so cut them.
            let values = list.map_or_else(
                || array.clone(),
                |list| {
                    let (from, to) = (list.value_offsets()[0], list.value_offsets()[list.len()]);
                    list.values().slice(from as usize, (to - from) as usize)
                },
            );
            batch = match values.as_fixed_size_list_opt() {
                Some(rows) if level == Level::NodeToken && rows.null_count() == 0 => {
                    let numbers = Numbers::from_array(name, rows.values().as_ref())?;
                    batch.with_wide_column(name, rows.value_length() as usize, numbers)?
                }
                _ => batch.with_column(name, level, Numbers::from_array(name, values.as_ref())?)?,
            };
        }
        Ok(batch)
    }
}

impl Numbers {
    /// Return the values as an Arrow array.
    pub(crate) fn to_array(&self) -> ArrayRef {
        match self {
            Self::F32(values) => Arc::new(Float32Array::from(values.clone())),
            Self::F64(values) => Arc::new(Float64Array::from(values.clone())),
            Self::I64(values) => Arc::new(Int64Array::from(values.clone())),
            Self::I32(values) => Arc::new(Int32Array::from(values.clone())),
            Self::U32(values) => Arc::new(UInt32Array::from(values.clone())),
            Self::U16(values) => Arc::new(UInt16Array::from(values.clone())),
            Self::U8(values) => Arc::new(UInt8Array::from(values.clone())),
        }
    }

    /// Join the values of column `name` of several parts.
    pub(super) fn join<'a>(name: &str, parts: impl Iterator<Item = &'a Self>) -> Result<Self> {
        let arrays: Vec<ArrayRef> = parts.map(Self::to_array).collect();
        let references: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
        let joined = arrow_select::concat::concat(&references).map_err(|error| {
            let types: BTreeSet<String> = arrays.iter().map(|array| array.data_type().to_string()).collect();
            let types = types.into_iter().collect::<Vec<_>>().join(", ");
            Error::invalid(format!(
                "column {name:?} has types {types} in the parts; give it the same type in all parts"
            ))
            .with_source(error)
        })?;
        Self::from_array(name, joined.as_ref())
    }
}

/// Return rows of `width` values each as lists of fixed size.
fn wide(values: ArrayRef, width: usize) -> Result<ArrayRef> {
    let width = i32::try_from(width).map_err(|_| {
        Error::overflow(format!("a row has {width} values, more than the {} supported; give narrower rows", i32::MAX))
    })?;
    let field = Arc::new(Field::new("item", values.data_type().clone(), false));
    Ok(Arc::new(FixedSizeListArray::try_new(field, width, values, None).map_err(arrow_bug)?))
}

fn list(values: ArrayRef, offsets: &[i64]) -> Result<ArrayRef> {
    let field = Arc::new(Field::new("item", values.data_type().clone(), false));
    let offsets = offsets.iter().map(|&offset| i32::try_from(offset)).collect::<std::result::Result<Vec<_>, _>>();
    let offsets = offsets.map_err(|_| {
        Error::new(
            ErrorKind::Overflow,
            "the batch has more tokens than a list column can store; collect smaller \
             batches",
        )
    })?;
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    Ok(Arc::new(ListArray::try_new(field, offsets, values, None).map_err(arrow_bug)?))
}
