//! Add draws of stored trajectories to a batch, each with its group and, if it replaces one, the draw that it replaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, UInt8Array};
use arrow_select::interleave::interleave_record_batch;

use super::{Batch, Column, Level, Numbers, i64s};
use crate::schema::{OldLogprob, Source, Table};
use crate::{Error, Result, arrow_bug};

/// In [`JoinedDraws::votes_in`]: the stored group of the trajectory, unchanged.
pub const OWN: i64 = -1;

/// In [`JoinedDraws::votes_in`]: a new group, shared by all draws with the same number in `new_group`.
pub const NEW: i64 = -2;

/// Draws that join a batch, as columns with one value per draw.
#[derive(Clone, Copy, Debug)]
pub struct JoinedDraws<'a> {
    /// Trajectory of each draw: an id in the stored batch; or -1 - i: the trajectory of draw i of the batch itself,
    /// drawn again.
    pub trajectory_ids: &'a [i64],
    /// Group in which each draw votes: a group of the batch, [`OWN`] or [`NEW`].
    pub votes_in: &'a [i64],
    /// Number of the new group, with [`NEW`].
    pub new_group: &'a [i32],
    /// Index of the draw of the batch whose place each draw takes; -1: none, the draw comes last.
    pub replaces: &'a [i64],
    /// Whether each draw counts in the statistics of its group.
    pub votes: &'a [bool],
    /// Whether each draw is trained.
    pub trained: &'a [bool],
    /// Codes of `source`.
    pub source: &'a [u8],
    /// Codes of `old_logprob`.
    pub old_logprob: &'a [u8],
    /// Probability of each draw; NaN if unknown.
    pub probability: &'a [f64],
    /// Reason for each draw, as text; empty if there is none.
    pub reason: &'a [String],
    /// Computed columns of the draws.
    pub columns: &'a [(String, Numbers)],
}

impl Batch {
    /// Return the batch with draws of stored trajectories. Rows of the store are appended. A draw that is replaced
    /// goes, its trajectory stays. Columns computed for draws are carried over; a draw that came without a column gets
    /// a missing value there (NaN, -1, or 0 if the type has neither). Columns of other levels are left out.
    ///
    /// # Errors
    /// `InvalidInput` if lengths differ, a group or a draw does not exist, a stored group is in the batch already, two
    /// draws take one place, or a draw with `behaviour` trains tokens that were not sampled.
    pub fn join(&self, stored: &Self, new: &JoinedDraws<'_>) -> Result<Self> {
        let count = new.trajectory_ids.len();
        check_lengths(new)?;
        let all = Self::concat(&[self.clone(), stored.select_draws(&[])?])?;
        // New rows of this batch were moved after all stored rows.
        let moved = |id: i64| if id < self.base.group { id } else { id - self.base.group + all.base.group };
        let own_groups = i64s(self.draws(), "group_id")?.values();
        let known: BTreeSet<i64> =
            i64s(self.trajectories(), "group_id")?.values().iter().chain(own_groups).copied().collect();
        let drawn: BTreeSet<i64> = own_groups.iter().map(|&id| moved(id)).collect();
        let (ids, groups) =
            (i64s(all.trajectories(), "trajectory_id")?.values(), i64s(all.trajectories(), "group_id")?.values());
        let stored_ids = i64s(stored.trajectories(), "trajectory_id")?.values();
        let next = all.next_ids()?;
        let mut fresh: BTreeMap<i32, i64> = BTreeMap::new();
        let mut votes_in = Vec::with_capacity(count);
        let all_drawn = i64s(all.draws(), "trajectory_id")?.values();
        let mut trajectory_ids = Vec::with_capacity(count);
        for (place, &id) in new.trajectory_ids.iter().enumerate() {
            let again = (-1_i64).checked_sub(id).filter(|&draw| draw >= 0);
            if let Some(draw) = again {
                let id = all_drawn.get(draw as usize).ok_or_else(|| {
                    Error::invalid(format!(
                        "trajectory_ids[{place}] is {id}, but the batch has {} draws; give an id, or -1 - i for the \
                         trajectory of draw i",
                        all_drawn.len()
                    ))
                })?;
                trajectory_ids.push(*id);
            } else if stored_ids.binary_search(&id).is_err() {
                return Err(Error::invalid(format!(
                    "trajectory_ids[{place}] is {id}, which is not in stored; give stored=store.trajectory_batch(draws.trajectory_ids)"
                )));
            } else {
                trajectory_ids.push(id);
            }
            votes_in.push(match new.votes_in[place] {
                OWN if again.is_some() => i64s(all.draws(), "group_id")?.value((-1 - id) as usize),
                OWN => {
                    let own = ids.binary_search(&id).map_or(OWN, |row| groups[row]);
                    if drawn.contains(&own) {
                        return Err(Error::invalid(format!(
                            "votes_in[{place}] is Draws.OWN_GROUP, but group {own} of trajectory {id} is in \
                             the batch already; draw from older iterations, or name the group"
                        )));
                    }
                    own
                }
                NEW => {
                    let after = next.group + fresh.len() as i64;
                    *fresh.entry(new.new_group[place]).or_insert(after)
                }
                group if known.contains(&group) => moved(group),
                group => {
                    return Err(Error::invalid(format!(
                        "votes_in[{place}] is {group}, which is not a group of the batch; give one of its groups, \
                         Draws.OWN_GROUP or Draws.NEW_GROUP"
                    )));
                }
            });
        }
        let order = self.places(new.replaces)?;
        let iterations = i64s(self.draws(), "iteration")?.values();
        let iteration = iterations.first().copied().or_else(|| {
            i64s(self.trajectories(), "iteration").ok().and_then(|column| column.values().iter().max().copied())
        });
        let iteration = iteration.unwrap_or_default();
        let rows = RecordBatch::try_new(
            Table::Draws.schema(),
            vec![
                Arc::new((next.draw..next.draw + count as i64).collect::<Int64Array>()) as ArrayRef,
                Arc::new(Int64Array::from(vec![iteration; count])),
                Arc::new(Int32Array::from(vec![0; count])),
                Arc::new(Int64Array::from(trajectory_ids)),
                Arc::new(Int64Array::from(votes_in)),
                Arc::new(UInt8Array::from(new.source.to_vec())),
                Arc::new(
                    new.probability.iter().map(|&value| (!value.is_nan()).then_some(value)).collect::<Float64Array>(),
                ),
                Arc::new(UInt8Array::from(new.old_logprob.to_vec())),
                Arc::new(new.reason.iter().map(|text| (!text.is_empty()).then_some(text)).collect::<StringArray>()),
                Arc::new(new.trained.iter().map(|&flag| u8::from(flag)).collect::<UInt8Array>()),
                Arc::new(new.votes.iter().map(|&flag| u8::from(flag)).collect::<UInt8Array>()),
            ],
        )
        .map_err(arrow_bug)?;
        let mut tables = all.tables.clone();
        let united = interleave_record_batch(&[&tables[Table::Draws as usize], &rows], &order).map_err(arrow_bug)?;
        let schema = united.schema();
        let columns = schema.fields().iter().zip(united.columns()).map(|(field, column)| -> ArrayRef {
            if field.name() != "position" {
                return column.clone();
            }
            Arc::new((0..united.num_rows() as i32).collect::<Int32Array>())
        });
        tables[Table::Draws as usize] =
            RecordBatch::try_new(Table::Draws.schema(), columns.collect()).map_err(arrow_bug)?;
        let mut batch = all.rebuilt(tables)?.with_state(self.state());
        batch.source.clone_from(&self.source);
        batch.columns = self.joined_columns(new.columns, &order)?;
        batch.check_behaviour()?;
        Ok(batch)
    }

    /// Part (0: this batch, 1: the new draws) and row of each draw of the joined batch.
    fn places(&self, replaces: &[i64]) -> Result<Vec<(usize, usize)>> {
        let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
        for (place, &draw) in replaces.iter().enumerate().filter(|&(_, &draw)| draw != -1) {
            let row = usize::try_from(draw).ok().filter(|&row| row < self.num_draws()).ok_or_else(|| {
                Error::invalid(format!(
                    "replaces[{place}] is {draw}, but the batch has {} draws; give the index of one, or -1",
                    self.num_draws()
                ))
            })?;
            if taken.insert(row, place).is_some() {
                return Err(Error::invalid(format!(
                    "replaces[{place}] is {draw}, which another draw replaces too; replace each draw at most once"
                )));
            }
        }
        let kept = (0..self.num_draws()).map(|row| taken.get(&row).map_or((0, row), |&place| (1, place)));
        let behind = (0..replaces.len()).filter(|&place| replaces[place] == -1).map(|place| (1, place));
        Ok(kept.chain(behind).collect())
    }

    /// Join the columns of the draws of both parts.
    fn joined_columns(&self, new: &[(String, Numbers)], order: &[(usize, usize)]) -> Result<Vec<Column>> {
        let own = self.columns.iter().filter(|column| column.level == Level::Draw);
        let mut names: Vec<&str> = own.map(|column| column.name.as_str()).collect();
        names
            .extend(new.iter().map(|(name, _)| name.as_str()).filter(|name| !names.contains(name)).collect::<Vec<_>>());
        let column = |name: &str| {
            let old = self.columns.iter().find(|column| column.level == Level::Draw && column.name == name);
            let new = new.iter().find(|(other, _)| other == name).map(|(_, values)| values);
            let values = together(name, old.map(|column| column.values.as_ref()), new, order)?;
            Ok(Column { name: name.to_owned(), level: Level::Draw, width: None, values: Arc::new(values) })
        };
        names.into_iter().map(column).collect()
    }

    /// Check that no draw with `behaviour` (except fresh ones) trains tokens without a behaviour log-prob.
    fn check_behaviour(&self) -> Result<()> {
        let codes = super::u8s(self.draws(), "old_logprob")?.values();
        let sources = super::u8s(self.draws(), "source")?.values();
        let (Numbers::U8(trainable), Numbers::F32(logprobs)) =
            (self.column("trainable", Level::Token)?, self.column("behaviour_logprob", Level::Token)?)
        else {
            return Err(Error::internal("trainable or behaviour_logprob is of another type"));
        };
        for draw in 0..self.num_draws() {
            if codes[draw] != OldLogprob::Behaviour as u8 || sources[draw] == Source::Fresh as u8 {
                continue;
            }
            if self.layout.tokens(draw).any(|token| trainable[token] != 0 && logprobs[token].is_nan()) {
                let id = i64s(self.draws(), "trajectory_id")?.value(draw);
                return Err(Error::invalid(format!(
                    "trajectory {id} joins with old_logprob \"behaviour\", but has trained tokens that were not sampled; \
                     give \"recomputed\" or \"none\""
                )));
            }
        }
        Ok(())
    }
}

fn check_lengths(new: &JoinedDraws<'_>) -> Result<()> {
    let count = new.trajectory_ids.len();
    let lengths = [
        ("votes_in", new.votes_in.len()),
        ("new_group", new.new_group.len()),
        ("replaces", new.replaces.len()),
        ("votes", new.votes.len()),
        ("trained", new.trained.len()),
        ("source", new.source.len()),
        ("old_logprob", new.old_logprob.len()),
        ("probability", new.probability.len()),
        ("reason", new.reason.len()),
    ];
    let columns = new.columns.iter().map(|(name, values)| (name.as_str(), values.len()));
    if let Some((name, length)) = lengths.into_iter().chain(columns).find(|&(_, length)| length != count) {
        return Err(Error::invalid(format!(
            "{name} has {length} values for {count} trajectory_ids; give one for each"
        )));
    }
    let codes =
        [("source", new.source, Source::NAMES.len()), ("old_logprob", new.old_logprob, OldLogprob::NAMES.len())];
    for (name, values, known) in codes {
        if let Some(place) = values.iter().position(|&code| usize::from(code) >= known) {
            return Err(Error::invalid(format!("{name}[{place}] is {}; give codes below {known}", values[place])));
        }
    }
    Ok(())
}

/// Join the values of both parts in an order. Values of a part without the column are missing.
fn together(name: &str, old: Option<&Numbers>, new: Option<&Numbers>, order: &[(usize, usize)]) -> Result<Numbers> {
    macro_rules! gathered {
        ($kind:ident, $missing:expr) => {{
            let values = |part: Option<&Numbers>| match part {
                None => Ok(None),
                Some(Numbers::$kind(values)) => Ok(Some(values.clone())),
                Some(_) => Err(Error::invalid(format!(
                    "column {name:?} has one type in the batch and another in the draws that join; give it the same"
                ))),
            };
            let parts = [values(old)?, values(new)?];
            let value = |&(part, row): &(usize, usize)| parts[part].as_ref().map_or($missing, |values| values[row]);
            Numbers::$kind(order.iter().map(value).collect())
        }};
    }
    Ok(match old.or(new) {
        Some(Numbers::F32(_)) => gathered!(F32, f32::NAN),
        Some(Numbers::F64(_)) => gathered!(F64, f64::NAN),
        Some(Numbers::I64(_)) => gathered!(I64, -1),
        Some(Numbers::I32(_)) => gathered!(I32, -1),
        Some(Numbers::U32(_)) => gathered!(U32, 0),
        Some(Numbers::U16(_)) => gathered!(U16, 0),
        Some(Numbers::U8(_)) => gathered!(U8, 0),
        None => return Err(Error::internal("a column of no part was asked for")),
    })
}
