//! Columns by name and level: facts of the tables, computed columns, and the broadcast from one level to the next.

use std::sync::Arc;

use agentrl_compute::keys;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type, Int64Type, UInt8Type, UInt32Type};
use arrow_array::{Array, ArrayRef, Float32Array, ListArray, RecordBatch, UInt32Array};
use arrow_schema::DataType;

use super::Batch;
use super::arrays::{array, i32s, i64s, lists, u8s};
use super::column::{Column, Level, Numbers};
use crate::schema::{FLAG_UNTRAINED, Kind};
use crate::token_columns::{KNOWN, RowType, RowTypes};
use crate::{Error, ErrorKind, Result, arrow_bug, facts, token_columns};

impl Batch {
    /// Number of rows of a level.
    pub fn level_len(&self, level: Level) -> usize {
        let layout = &self.layout;
        match level {
            Level::Draw => layout.trajectory_rows.len(),
            Level::Step => layout.step_rows.len(),
            Level::Token => layout.actions.len(),
            Level::NodeToken => layout.node_offsets().last().map_or(0, |&last| last as usize),
        }
    }

    /// Number of tokens on the drawn paths, as if no token were shared.
    pub fn path_tokens(&self) -> usize {
        self.layout.path_tokens()
    }

    /// Offsets of the rows of a level within the level above: steps in draws, tokens in steps, tokens in nodes.
    pub fn offsets(&self, level: Level) -> Result<&[i64]> {
        match level {
            Level::Draw => Err(Error::invalid(
                "level is \"draw\", which has no level above it; use \"step\", \"token\" or \"node_token\"",
            )),
            Level::Step => Ok(&self.layout.step_offsets),
            Level::Token => Ok(&self.layout.token_offsets),
            Level::NodeToken => Ok(self.layout.node_offsets()),
        }
    }

    /// Return the batch with one more computed column. It replaces a column of the same name, whatever its level.
    pub fn with_column(&self, name: &str, level: Level, values: Numbers) -> Result<Self> {
        let (found, expected) = (values.len(), self.level_len(level));
        if found != expected {
            return Err(Error::invalid(format!(
                "column {name:?} has {found} values, but level {:?} has {expected} rows; give one value for each row",
                level.name()
            )));
        }
        self.with_values(name, level, None, values)
    }

    /// Return the batch with one more computed column of stored tokens, of `width` values each, row after row.
    pub fn with_wide_column(&self, name: &str, width: usize, values: Numbers) -> Result<Self> {
        let (found, rows) = (values.len(), self.level_len(Level::NodeToken));
        if width == 0 || Some(found) != rows.checked_mul(width) {
            return Err(Error::invalid(format!(
                "column {name:?} has {found} values for rows of {width}; give each of the {rows} stored tokens the same \
                 number of values, at least one"
            )));
        }
        self.with_values(name, Level::NodeToken, Some(width), values)
    }

    fn with_values(&self, name: &str, level: Level, width: Option<usize>, values: Numbers) -> Result<Self> {
        if KEYS.contains(&name) {
            return Err(Error::invalid(format!(
                "column {name:?} is a key of the tables of computed columns; give it another name than {KEYS:?}"
            )));
        }
        let mut batch = self.clone();
        batch.columns.retain(|column| column.name != name);
        batch.columns.push(Column { name: name.to_owned(), level, width, values: Arc::new(values) });
        Ok(batch)
    }

    /// Whether a column exists. The check does not broadcast a computed or recorded column.
    pub fn has(&self, name: &str, level: Level) -> bool {
        let recorded = || {
            let name = name.strip_suffix(KNOWN).unwrap_or(name);
            matches!(level, Level::Token | Level::NodeToken)
                && self.row_types().is_ok_and(|types| types.contains_key(name))
        };
        self.computed(name, level).is_some() || recorded() || self.column(name, level).is_ok()
    }

    /// Types of the token columns of its nodes.
    pub fn row_types(&self) -> Result<RowTypes> {
        token_columns::types_in(&self.nodes().schema())
    }

    /// Return a column by name at a level: a column computed at this level, else one computed at a coarser level and
    /// broadcast, else a fact.
    pub fn column(&self, name: &str, level: Level) -> Result<Numbers> {
        if let Some(numbers) = self.computed_at(name, level)? {
            return Ok(numbers);
        }
        let layout = &self.layout;
        if let Some(column) = name.strip_suffix(KNOWN)
            && let Some((_, _, known)) = self.recorded(column, level)
        {
            let known = Numbers::U8(known);
            return Ok(if level == Level::Token { self.to_tokens(&known, 1) } else { known });
        }
        match (level, name) {
            (Level::NodeToken, _) => self.node_fact(name).ok_or_else(|| self.no_column(name, level))?,
            (Level::Token, "node_token") => {
                let mut stored = Vec::with_capacity(layout.actions.len());
                layout.actions.node_tokens().for_each(|run| stored.extend(run.start as i64..run.end as i64));
                Ok(Numbers::I64(stored))
            }
            (Level::Token, "position") => {
                let mut positions = Vec::with_capacity(layout.actions.len());
                layout.actions.positions().for_each(|run| positions.extend(run));
                Ok(Numbers::I32(positions))
            }
            (Level::Token, "trainable") => self.trainable(),
            (Level::Token, _) => match self.node_fact(name) {
                Some(numbers) => Ok(self.to_tokens(&numbers?, 1)),
                None => Ok(Numbers::from_array(name, self.fact(name, level)?.as_ref())?.repeat(&layout.token_offsets)),
            },
            (Level::Step | Level::Draw, _) => Numbers::from_array(name, self.fact(name, level)?.as_ref()),
        }
    }

    /// Whether each action token may be trained: its node, its step and its draw must all allow it.
    fn trainable(&self) -> Result<Numbers> {
        let of_nodes = self.node_fact("trainable").ok_or_else(|| self.no_column("trainable", Level::Token))??;
        let Numbers::U8(mut mask) = self.to_tokens(&of_nodes, 1) else {
            return Err(Error::internal("the mask of trainable tokens is of another type"));
        };
        let flags = array(self.steps(), "flags")?.as_primitive::<UInt32Type>();
        for (step, &row) in self.layout.step_rows.iter().enumerate() {
            if flags.value(row) & FLAG_UNTRAINED != 0 {
                mask[self.layout.tokens_of(step..step + 1)].fill(0);
            }
        }
        for (draw, &trained) in u8s(self.draws(), "trained")?.values().iter().enumerate() {
            if trained == 0 {
                mask[self.layout.tokens(draw)].fill(0);
            }
        }
        Ok(Numbers::U8(mask))
    }

    /// Return a computed column of this level or a coarser one.
    fn computed(&self, name: &str, level: Level) -> Option<&Column> {
        let reaches = |made| made == level || level == Level::Token || (made, level) == (Level::Draw, Level::Step);
        self.columns.iter().find(|column| column.name == name).filter(|column| reaches(column.level))
    }

    /// Return a computed column at its own level or broadcast to a finer one.
    fn computed_at(&self, name: &str, level: Level) -> Result<Option<Numbers>> {
        let Some(Column { level: made, width, values, .. }) = self.computed(name, level) else { return Ok(None) };
        if let Some(width) = width {
            return Err(Error::invalid(format!(
                "column {name:?} has {width} values for each token; name a column with one value for each token"
            )));
        }
        Ok(Some(match (made, level) {
            (Level::Draw, Level::Step) => values.repeat(&self.layout.step_offsets),
            (Level::Draw, Level::Token) => values.repeat(&self.layout.step_offsets).repeat(&self.layout.token_offsets),
            (Level::Step, Level::Token) => values.repeat(&self.layout.token_offsets),
            (Level::NodeToken, Level::Token) => self.to_tokens(values, 1),
            _ => values.as_ref().clone(),
        }))
    }

    /// Return a column with several values for each token, computed or recorded, at its own level or broadcast to the
    /// tokens of draws: its values, row after row, and the number of values in a row. `None` if the column does not
    /// exist or has one value for each token.
    ///
    /// A token without a recorded row has the largest value of an unsigned type, -1, or NaN. The column whose name ends
    /// with `.known` is 0 there.
    pub fn wide_column(&self, name: &str, level: Level) -> Option<(Numbers, usize)> {
        if let Some(Column { level: made, width, values, .. }) = self.computed(name, level) {
            let width = (*width)?;
            return Some((if level == *made { values.as_ref().clone() } else { self.to_tokens(values, width) }, width));
        }
        let (RowType { width, .. }, values, _) = self.recorded(name, level)?;
        Some((if level == Level::Token { self.to_tokens(&values, width) } else { values }, width))
    }

    /// Return the rows of a token column at level `node_token`, and a mask of the tokens that have one. `None` if the
    /// nodes have no such column.
    fn recorded(&self, name: &str, level: Level) -> Option<(RowType, Numbers, Vec<u8>)> {
        matches!(level, Level::Token | Level::NodeToken)
            .then(|| token_columns::flat(self.nodes(), name, self.layout.node_offsets()))
            .flatten()
    }

    /// Return the values of stored tokens for the action tokens of draws.
    fn to_tokens(&self, values: &Numbers, width: usize) -> Numbers {
        values.joined(self.layout.actions.node_tokens(), self.layout.actions.len(), width)
    }

    /// Return dense ids, in order of first appearance, of a column of ids, keys or texts: a computed column, else one
    /// of the tables.
    pub fn keys(&self, name: &str, level: Level) -> Result<Vec<u32>> {
        if let Some(numbers) = self.computed_at(name, level)? {
            return dense_numbers(name, numbers);
        }
        if let Some((column, rows)) = self.declared_fact(name, level) {
            return facts::dense(name, column, &rows);
        }
        match level {
            Level::NodeToken => Err(Error::invalid(format!(
                "level is {:?}; use \"draw\", \"step\" or \"token\" for keys",
                level.name()
            ))),
            Level::Token => {
                let keys = dense(name, self.fact(name, level)?.as_ref())?;
                let steps = keys.iter().zip(self.layout.token_offsets.windows(2));
                Ok(steps.flat_map(|(&key, pair)| std::iter::repeat_n(key, (pair[1] - pair[0]) as usize)).collect())
            }
            Level::Draw | Level::Step => dense(name, self.fact(name, level)?.as_ref()),
        }
    }

    /// Find a fact of the environment. Return its column, and for each row of a level the row of that column.
    fn declared_fact(&self, name: &str, level: Level) -> Option<(&dyn Array, Vec<usize>)> {
        let layout = &self.layout;
        let (of_steps, of_trajectories) = (facts::find(self.steps(), name), facts::find(self.trajectories(), name));
        let spread = |rows: &[usize], offsets: &[i64]| -> Vec<usize> {
            let counted = rows.iter().zip(offsets.windows(2));
            counted.flat_map(|(&row, pair)| std::iter::repeat_n(row, (pair[1] - pair[0]) as usize)).collect()
        };
        Some(match (level, of_steps, of_trajectories) {
            (Level::NodeToken, ..) | (_, None, None) | (Level::Draw, _, None) => return None,
            (Level::Draw, _, Some(column)) => (column.as_ref(), layout.trajectory_rows.clone()),
            (Level::Step, Some(column), _) => (column.as_ref(), layout.step_rows.clone()),
            (Level::Token, Some(column), _) => (column.as_ref(), spread(&layout.step_rows, &layout.token_offsets)),
            (_, None, Some(column)) => {
                let steps = spread(&layout.trajectory_rows, &layout.step_offsets);
                (column.as_ref(), if level == Level::Step { steps } else { spread(&steps, &layout.token_offsets) })
            }
        })
    }

    /// Return a text column of the tables. Texts identify rows across batches, so they can be keys of a state that
    /// outlives the batch.
    pub fn texts(&self, name: &str, level: Level) -> Result<Vec<String>> {
        if matches!(level, Level::Token | Level::NodeToken) {
            return Err(Error::invalid(format!("level is {:?}; use \"draw\" or \"step\" for texts", level.name())));
        }
        let column = self.fact(name, level)?;
        if column.data_type() != &DataType::Utf8 || column.null_count() > 0 {
            return Err(Error::invalid(format!(
                "column {name:?} has type {} and {} nulls; give the name of a text column without nulls",
                column.data_type(),
                column.null_count()
            )));
        }
        Ok(column.as_string::<i32>().iter().flatten().map(str::to_owned).collect())
    }

    /// Return a column of the tables, with one value for each draw at level `draw`, and for each step of a draw at
    /// finer levels.
    fn fact(&self, name: &str, level: Level) -> Result<ArrayRef> {
        let layout = &self.layout;
        let take = |rows: &RecordBatch, indices: &[usize]| {
            let indices: UInt32Array = indices.iter().map(|&index| index as u32).collect();
            let column = rows.column_by_name(name).or_else(|| facts::find(rows, name))?;
            Some(arrow_select::take::take(column, &indices, None).map_err(arrow_bug))
        };
        let found = match level {
            Level::Step | Level::Token | Level::NodeToken => take(self.steps(), &layout.step_rows).or_else(|| {
                let offsets = layout.step_offsets.windows(2).enumerate();
                let draws: Vec<usize> =
                    offsets.flat_map(|(draw, pair)| std::iter::repeat_n(draw, (pair[1] - pair[0]) as usize)).collect();
                let rows: Vec<usize> = draws.iter().map(|&draw| layout.trajectory_rows[draw]).collect();
                take(self.draws(), &draws).or_else(|| take(self.trajectories(), &rows))
            }),
            Level::Draw => self
                .draws()
                .column_by_name(name)
                .map(|column| Ok(column.clone()))
                .or_else(|| take(self.trajectories(), &layout.trajectory_rows)),
        };
        found.or_else(|| self.reward_component(name, level)).unwrap_or_else(|| Err(self.no_column(name, level)))
    }

    /// Return `reward.<name>`, one of the components in `rewards`: of trajectories at level `draw`, of steps at finer
    /// levels. It is null if a row has none.
    fn reward_component(&self, name: &str, level: Level) -> Option<Result<ArrayRef>> {
        let component = name.strip_prefix("reward.")?;
        let (table, rows) = match level {
            Level::Draw => (self.trajectories(), &self.layout.trajectory_rows),
            Level::Step | Level::Token => (self.steps(), &self.layout.step_rows),
            Level::NodeToken => return None,
        };
        let place = match self.reward_components() {
            Ok(names) => names?.iter().position(|known| known == component)?,
            Err(error) => return Some(Err(error)),
        };
        let component = |rewards: &ListArray| -> ArrayRef {
            let values = rewards.values().as_primitive::<Float32Type>();
            let of_row = |&row: &usize| {
                let value = row_span(rewards, row).nth(place).filter(|_| rewards.is_valid(row))?;
                values.is_valid(value).then(|| values.value(value))
            };
            Arc::new(rows.iter().map(of_row).collect::<Float32Array>())
        };
        Some(lists(table, "rewards").map(component))
    }

    /// Return a fact of the nodes, one value for each stored token.
    fn node_fact(&self, name: &str) -> Option<Result<Numbers>> {
        let fact = || -> Result<Numbers> {
            let nodes = self.nodes();
            let offsets = self.layout.node_offsets();
            let scalars = |values: Numbers| values.repeat(offsets);
            Ok(match name {
                "token" => {
                    let tokens = lists(nodes, "tokens")?;
                    let (from, to) = span(tokens);
                    Numbers::I32(tokens.values().as_primitive::<Int32Type>().values()[from..to].to_vec())
                }
                "behaviour_logprob" => Numbers::F32(spread(lists(nodes, "logprobs")?, offsets)),
                "entropy" => Numbers::F32(spread(lists(nodes, "entropies")?, offsets)),
                "trainable" => {
                    let (mask, kinds) = (lists(nodes, "trainable")?, u8s(nodes, "kind")?);
                    let values = mask.values().as_primitive::<UInt8Type>().values();
                    let mut out = Vec::with_capacity(self.level_len(Level::NodeToken));
                    let starts = i32s(nodes, "start")?;
                    for (row, pair) in offsets.windows(2).enumerate() {
                        let begin = out.len();
                        if mask.is_null(row) {
                            let all = u8::from(kinds.value(row) == Kind::Action as u8);
                            out.extend(std::iter::repeat_n(all, (pair[1] - pair[0]) as usize));
                        } else {
                            out.extend_from_slice(&values[row_span(mask, row)]);
                        }
                        // The first token of a path cannot be predicted, because no token comes before it.
                        if starts.value(row) == 0 && out.len() > begin {
                            out[begin] = 0;
                        }
                    }
                    Numbers::U8(out)
                }
                "inverse_temperature" => {
                    let sampling = array(nodes, "sampling")?.as_struct();
                    let temperatures = sampling.column(0).as_primitive::<Float32Type>();
                    // Without recorded sampling options, or with temperature 0, tokens are scored by the model's own
                    // distribution.
                    let inverse = (0..nodes.num_rows()).map(|row| {
                        let temperature = temperatures.value(row);
                        if sampling.is_null(row) || temperature <= 0.0 { 1.0 } else { 1.0 / temperature }
                    });
                    scalars(Numbers::F32(inverse.collect()))
                }
                _ => {
                    let versions = i64s(nodes, "policy_version")?;
                    scalars(Numbers::I64(versions.iter().map(|version| version.unwrap_or(-1)).collect()))
                }
            })
        };
        TOKEN_FACTS.contains(&name).then(fact)
    }

    fn no_column(&self, name: &str, level: Level) -> Error {
        let mut made: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        made.sort_unstable();
        Error::new(
            ErrorKind::NotFound,
            format!(
                "the batch has no column {name:?} at level {:?} (computed so far: {made:?}); compute it with the recipe's \
                 credit, or add it with with_columns or annotate",
                level.name()
            ),
        )
    }
}

/// Keys of the tables of computed columns.
pub(super) const KEYS: [&str; 3] = ["draw_id", "step", "node_id"];

const TOKEN_FACTS: [&str; 6] =
    ["token", "behaviour_logprob", "entropy", "trainable", "inverse_temperature", "policy_version"];

fn span(list: &ListArray) -> (usize, usize) {
    let offsets = list.value_offsets();
    (offsets[0] as usize, offsets[offsets.len() - 1] as usize)
}

fn row_span(list: &ListArray, row: usize) -> std::ops::Range<usize> {
    list.value_offsets()[row] as usize..list.value_offsets()[row + 1] as usize
}

/// Return one float for each token of each node; NaN if the node has none.
fn spread(list: &ListArray, offsets: &[i64]) -> Vec<f32> {
    let values = list.values().as_primitive::<Float32Type>().values();
    let mut out = Vec::with_capacity(offsets.last().map_or(0, |&last| last as usize));
    for (row, pair) in offsets.windows(2).enumerate() {
        if list.is_null(row) {
            out.extend(std::iter::repeat_n(f32::NAN, (pair[1] - pair[0]) as usize));
        } else {
            out.extend_from_slice(&values[row_span(list, row)]);
        }
    }
    out
}

fn dense(name: &str, array: &dyn Array) -> Result<Vec<u32>> {
    if array.null_count() > 0 {
        return Err(Error::invalid(format!("column {name:?} has nulls, which belong to no group; fill them first")));
    }
    Ok(match array.data_type() {
        DataType::Int64 => keys::dense_integers(array.as_primitive::<Int64Type>().values())?.ids,
        DataType::FixedSizeBinary(_) => keys::dense_bytes(array.as_fixed_size_binary().iter().flatten())?.ids,
        DataType::Utf8 => keys::dense_bytes(array.as_string::<i32>().iter().flatten().map(str::as_bytes))?.ids,
        _ => dense_numbers(name, Numbers::from_array(name, array)?)?,
    })
}

fn dense_numbers(name: &str, numbers: Numbers) -> Result<Vec<u32>> {
    let values: Vec<i64> = match numbers {
        Numbers::I64(values) => values,
        Numbers::I32(values) => values.into_iter().map(i64::from).collect(),
        Numbers::U32(values) => values.into_iter().map(i64::from).collect(),
        Numbers::U16(values) => values.into_iter().map(i64::from).collect(),
        Numbers::U8(values) => values.into_iter().map(i64::from).collect(),
        Numbers::F32(_) | Numbers::F64(_) => {
            return Err(Error::invalid(format!(
                "column {name:?} contains floats, which cannot be keys; convert it to integers"
            )));
        }
    };
    Ok(keys::dense_integers(&values)?.ids)
}
