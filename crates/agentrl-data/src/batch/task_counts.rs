//! The counts of tasks as rows of table `tasks`, and their join over several batches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, Float64Array, Int64Array, RecordBatch, StringArray};

use super::{Batch, array, i64s};
use crate::schema::Table;
use crate::{Error, Result, arrow_bug};

/// The counts of a task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Task {
    pub(crate) domain: Option<String>,
    pub(crate) attempts: i64,
    pub(crate) successes: i64,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) last_version: Option<i64>,
    pub(crate) uses: i64,
}

impl Task {
    /// Return the counts of this task, with those of another collector added.
    fn and(&self, other: Self) -> Self {
        Self {
            domain: other.domain.or_else(|| self.domain.clone()),
            attempts: self.attempts + other.attempts,
            successes: self.successes + other.successes,
            alpha: self.alpha + other.alpha,
            beta: self.beta + other.beta,
            last_version: self.last_version.max(other.last_version),
            uses: self.uses + other.uses,
        }
    }
}

/// Return the rows of `tasks` for batches that are joined, one table per batch.
///
/// Batches of one iteration come from independent collectors. In iteration 0 no collector has counted anything before,
/// so the counts of a later part are added to those of earlier parts. After that each collector has its own history,
/// and its rows are totals of that history: they cannot be added, and are an error. Rows of different iterations
/// continue each other, and stay as they are.
pub(crate) fn joined(parts: &[Batch]) -> Result<Vec<RecordBatch>> {
    let (mut iterations, mut latest) = (BTreeSet::new(), BTreeMap::<String, Task>::new());
    let mut found = Vec::with_capacity(parts.len());
    for part in parts {
        let rows = part.new_rows(Table::Tasks)?;
        let iteration = i64s(part.draws(), "iteration")?.iter().next_back().flatten();
        let Some(iteration) = iteration.filter(|_| rows.num_rows() > 0) else {
            found.push(rows);
            continue;
        };
        let is_other = !iterations.insert(iteration);
        if is_other && iteration > 0 {
            return Err(Error::invalid(format!(
                "two of the parts have task statistics of iteration {iteration}: they come from independent collectors, \
                 whose counts cannot be added after iteration 0; use one Collector(rollout_workers=[other.roll_out, ...])"
            )));
        }
        let (names, earlier) = (array(&rows, "task_id")?.as_string::<i32>(), Earlier::of(&rows)?);
        let mut own = BTreeMap::new();
        for row in 0..rows.num_rows() {
            let name = names.value(row).to_owned();
            let before = latest.get(&name).filter(|_| is_other);
            own.insert(name, before.map_or_else(|| earlier.task(row), |before| before.and(earlier.task(row))));
        }
        found.push(if is_other { table(&own)? } else { rows });
        latest.extend(own);
    }
    Ok(found)
}

/// Return the rows of tasks, in the order of their names.
pub(crate) fn table(tasks: &BTreeMap<String, Task>) -> Result<RecordBatch> {
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

/// Columns of existing rows of `tasks`.
pub(crate) struct Earlier<'a> {
    domains: &'a StringArray,
    attempts: &'a Int64Array,
    successes: &'a Int64Array,
    alpha: &'a Float64Array,
    beta: &'a Float64Array,
    versions: &'a Int64Array,
    uses: &'a Int64Array,
}

impl<'a> Earlier<'a> {
    /// Return the columns of a table.
    pub(crate) fn of(rows: &'a RecordBatch) -> Result<Self> {
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

    /// Return the counts of a row.
    pub(crate) fn task(&self, row: usize) -> Task {
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
