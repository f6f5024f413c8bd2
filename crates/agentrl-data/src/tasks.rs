//! Task statistics over the whole run: one row per task, appended when it changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentrl_compute::error::Result;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, Float64Array, Int64Array, RecordBatch, StringArray};

use crate::arrow_bug;
use crate::batch::{Batch, array, i64s, u8s};
use crate::schema::{Role, Status, Table};

/// How much an earlier attempt counts against the next one in the decayed Beta counts `alpha` and `beta`.
const DECAY: f64 = 0.9;

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

/// Counts a batch's trajectories into the task statistics `previous` (where the latest row of a task wins): the rows that
/// changed, and the whole table after the change.
///
/// With `s` of `n` new attempts successful: `attempts += n`, `successes += s`, `alpha = 0.9·alpha + s`,
/// `beta = 0.9·beta + (n − s)`, `difficulty = 1 − successes / attempts`, `uses += 1`. Attempts whose success is not known,
/// those that were aborted, failed or pruned, and those of baselines and helpers do not count. `domains` has the kind of problem by task; a task that is
/// not in it keeps the one it had.
pub fn advance_tasks(
    previous: &RecordBatch,
    batch: &Batch,
    domains: &BTreeMap<String, String>,
) -> Result<(RecordBatch, RecordBatch)> {
    let mut tasks = latest(previous)?;
    let mut changed = BTreeMap::new();
    for (name, new) in attempts(batch)? {
        let task = tasks.entry(name.clone()).or_default();
        task.attempts += new.attempts;
        task.successes += new.successes;
        task.alpha = DECAY * task.alpha + new.successes as f64;
        task.beta = DECAY * task.beta + (new.attempts - new.successes) as f64;
        task.last_version = task.last_version.max(new.last_version);
        task.uses += 1;
        task.domain = domains.get(&name).cloned().or_else(|| task.domain.take());
        changed.insert(name, task.clone());
    }
    Ok((table(&changed)?, table(&tasks)?))
}

/// Attempts and successes of a batch, by task.
fn attempts(batch: &Batch) -> Result<BTreeMap<String, Task>> {
    // Replayed trajectories were counted when they were new.
    let trajectories = &batch.new_rows(Table::Trajectories)?;
    let names = array(trajectories, "task_id")?.as_string::<i32>();
    let (statuses, roles) = (u8s(trajectories, "status")?, u8s(trajectories, "role")?);
    let successes = u8s(trajectories, "success")?;
    let versions = i64s(trajectories, "max_policy_version")?;
    let mut found: BTreeMap<String, Task> = BTreeMap::new();
    for row in 0..trajectories.num_rows() {
        let counts = [Status::Finished as u8, Status::Truncated as u8].contains(&statuses.value(row));
        if !counts || roles.value(row) != Role::Member as u8 || successes.is_null(row) {
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

fn latest(rows: &RecordBatch) -> Result<BTreeMap<String, Task>> {
    let names = array(rows, "task_id")?.as_string::<i32>();
    let domains = array(rows, "domain")?.as_string::<i32>();
    let integers = |name| -> Result<&Int64Array> { Ok(array(rows, name)?.as_primitive::<Int64Type>()) };
    let floats = |name| -> Result<&Float64Array> { Ok(array(rows, name)?.as_primitive::<Float64Type>()) };
    let (attempts, successes, uses) = (integers("attempts")?, integers("successes")?, integers("uses")?);
    let (alpha, beta) = (floats("alpha")?, floats("beta")?);
    let versions = integers("last_version")?;
    let task = |row: usize| Task {
        domain: (!domains.is_null(row)).then(|| domains.value(row).to_owned()),
        attempts: attempts.value(row),
        successes: successes.value(row),
        alpha: alpha.value(row),
        beta: beta.value(row),
        last_version: (!versions.is_null(row)).then(|| versions.value(row)),
        uses: uses.value(row),
    };
    Ok((0..rows.num_rows()).map(|row| (names.value(row).to_owned(), task(row))).collect())
}
