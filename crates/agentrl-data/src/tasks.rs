//! Task statistics over the whole run: one row per task, appended when it changes.

use std::collections::{BTreeMap, HashMap};

use agentrl_compute::error::Result;
use arrow_array::cast::AsArray;
use arrow_array::{Array, BooleanArray, RecordBatch};
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;

use crate::arrow_bug;
use crate::batch::task_counts::{Earlier, Task, table};
use crate::batch::{Batch, array, i64s, u8s};
use crate::schema::{Origin, Role, Status, Table};

/// Add a batch's trajectories to the task statistics `previous`, in which the latest row of a task counts. Return the
/// rows that changed, and the whole table after the change. In the whole table the changed rows come last, and earlier
/// rows of their tasks are removed.
///
/// With `s` of `n` new attempts successful: `attempts += n`, `successes += s`, `alpha += s`, `beta += n − s`,
/// `difficulty = 1 − successes / attempts`, `uses += 1`. An attempt does not count if its success is unknown, if it was
/// aborted, failed or pruned, if it is of a baseline or a helper, or if the policy did not generate it. `alpha` and
/// `beta` are columns of format v1, where they decayed; the trackers of phase select now keep statistics that decay.
/// `domains` maps tasks to their domains; a task that is not in it keeps its domain.
///
/// The names in `previous` are scanned once, and rows of unchanged tasks are copied. Of the other rows, only the latest
/// of each task is read.
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

/// Return the attempts and successes of a batch, by task.
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
