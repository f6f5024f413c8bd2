//! Task statistics over the whole run: one row per task, appended when it changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use agentrl_compute::error::Result;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;

use crate::arrow_bug;
use crate::batch::{Batch, array, i64s, u8s};
use crate::schema::{Origin, Role, Status, Table};

#[derive(Clone, Debug, Default)]
struct Task {
    domain: Option<String>,
    attempts: i64,
    successes: i64,
    alpha: f64,
    beta: f64,
    last_version: Option<i64>,
    uses: i64,
}

/// Count a batch's trajectories into the task statistics `previous` (of which the latest row of a task counts): the rows that
/// changed, and the whole table after the change, in which those are last and have no earlier rows.
///
/// With `s` of `n` new attempts successful: `attempts += n`, `successes += s`, `alpha += s`, `beta += n − s`,
/// `difficulty = 1 − successes / attempts`, `uses += 1`. Attempts whose success is not known, those that were aborted, failed
/// or pruned, those of baselines and helpers and what the policy did not generate do not count. `alpha` and `beta` are columns
/// of format v1, which were decayed there; what fades is remembered by the trackers of phase select. `domains` has the kind of
/// problem by task; a task that is not in it keeps the one it had.
///
/// Of `previous` the names are looked through once and what stays is copied; no other row is read.
pub fn advance_tasks(
    previous: &RecordBatch,
    batch: &Batch,
    domains: &BTreeMap<String, String>,
) -> Result<(RecordBatch, RecordBatch)> {
    let mut changed = attempts(batch)?;
    if changed.is_empty() {
        return Ok((table(&changed)?, previous.clone()));
    }
    let mut rows: HashMap<&str, Option<usize>> = changed.keys().map(|name| (name.as_str(), None)).collect();
    let names = array(previous, "task_id")?.as_string::<i32>();
    let mut stays = Vec::with_capacity(names.len());
    for row in 0..names.len() {
        let latest = rows.get_mut(names.value(row));
        stays.push(latest.is_none());
        if let Some(latest) = latest {
            *latest = Some(row);
        }
    }
    let rows: BTreeMap<String, usize> =
        rows.into_iter().filter_map(|(name, row)| Some((name.to_owned(), row?))).collect();
    let earlier = Earlier::of(previous)?;
    for (name, new) in &mut changed {
        let task = rows.get(name).map_or_else(Task::default, |&row| earlier.task(row));
        *new = Task {
            domain: domains.get(name).cloned().or(task.domain),
            attempts: task.attempts + new.attempts,
            successes: task.successes + new.successes,
            alpha: task.alpha + new.successes as f64,
            beta: task.beta + (new.attempts - new.successes) as f64,
            last_version: task.last_version.max(new.last_version),
            uses: task.uses + 1,
        };
    }
    let changed = table(&changed)?;
    let kept = filter_record_batch(previous, &BooleanArray::from(stays)).map_err(arrow_bug)?;
    let all = concat_batches(&previous.schema(), [&kept, &changed]).map_err(arrow_bug)?;
    Ok((changed, all))
}

/// Attempts and successes of a batch, by task.
fn attempts(batch: &Batch) -> Result<BTreeMap<String, Task>> {
    // Replayed trajectories were counted when they were new.
    let trajectories = &batch.new_rows(Table::Trajectories)?;
    let names = array(trajectories, "task_id")?.as_string::<i32>();
    let (statuses, roles) = (u8s(trajectories, "status")?, u8s(trajectories, "role")?);
    let origins = u8s(trajectories, "origin")?;
    let successes = u8s(trajectories, "success")?;
    let versions = i64s(trajectories, "max_policy_version")?;
    let mut found: BTreeMap<String, Task> = BTreeMap::new();
    for row in 0..trajectories.num_rows() {
        let counts = [Status::Finished as u8, Status::Truncated as u8].contains(&statuses.value(row));
        let generated = roles.value(row) == Role::Member as u8 && origins.value(row) == Origin::Generated as u8;
        if !counts || !generated || successes.is_null(row) {
            continue;
        }
        let task = found.entry(names.value(row).to_owned()).or_default();
        task.attempts += 1;
        task.successes += i64::from(successes.value(row) != 0);
        task.last_version = task.last_version.max((!versions.is_null(row)).then(|| versions.value(row)));
    }
    Ok(found)
}

fn table(tasks: &BTreeMap<String, Task>) -> Result<RecordBatch> {
    let rows = || tasks.values();
    let difficulty = rows().map(|task| (task.attempts > 0).then(|| 1.0 - task.successes as f64 / task.attempts as f64));
    RecordBatch::try_new(
        Table::Tasks.schema(),
        vec![
            Arc::new(tasks.keys().map(Some).collect::<StringArray>()),
            Arc::new(rows().map(|task| task.domain.as_deref()).collect::<StringArray>()),
            Arc::new(rows().map(|task| task.attempts).collect::<Int64Array>()),
            Arc::new(rows().map(|task| task.successes).collect::<Int64Array>()),
            Arc::new(rows().map(|task| task.alpha).collect::<Float64Array>()),
            Arc::new(rows().map(|task| task.beta).collect::<Float64Array>()),
            Arc::new(rows().map(|task| task.last_version).collect::<Int64Array>()),
            Arc::new(difficulty.collect::<Float64Array>()),
            Arc::new(rows().map(|task| task.uses).collect::<Int64Array>()),
        ],
    )
    .map_err(arrow_bug)
}

/// Columns of the rows that there were.
struct Earlier<'a> {
    domains: &'a StringArray,
    attempts: &'a Int64Array,
    successes: &'a Int64Array,
    alpha: &'a Float64Array,
    beta: &'a Float64Array,
    versions: &'a Int64Array,
    uses: &'a Int64Array,
}

impl<'a> Earlier<'a> {
    fn of(rows: &'a RecordBatch) -> Result<Self> {
        let integers = |name| -> Result<&Int64Array> { Ok(array(rows, name)?.as_primitive::<Int64Type>()) };
        let floats = |name| -> Result<&Float64Array> { Ok(array(rows, name)?.as_primitive::<Float64Type>()) };
        Ok(Self {
            domains: array(rows, "domain")?.as_string::<i32>(),
            attempts: integers("attempts")?,
            successes: integers("successes")?,
            alpha: floats("alpha")?,
            beta: floats("beta")?,
            versions: integers("last_version")?,
            uses: integers("uses")?,
        })
    }

    fn task(&self, row: usize) -> Task {
        Task {
            domain: (!self.domains.is_null(row)).then(|| self.domains.value(row).to_owned()),
            attempts: self.attempts.value(row),
            successes: self.successes.value(row),
            alpha: self.alpha.value(row),
            beta: self.beta.value(row),
            last_version: (!self.versions.is_null(row)).then(|| self.versions.value(row)),
            uses: self.uses.value(row),
        }
    }
}
