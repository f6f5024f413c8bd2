//! `Store` for Python.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::MutexGuard;

use agentrl_data::schema;
use agentrl_data::store::{self, Sync};
use agentrl_data::{Error, Result};
use numpy::{IntoPyArray as _, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arrays::{Name, Whole, blob_hash, slice};
use crate::batch::Batch;
use crate::enter::{held, interruptible, released};
use crate::error::to_python;
use crate::fork_safe_lock::Shared;
use crate::table::Table;

/// Rollout data on disk; the inner store is `None` after it is closed.
///
/// Every call releases the interpreter lock. Long calls take it back to check for Ctrl-C, while they hold the store's
/// lock.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct Store {
    /// The process that may write the store; `None` for readers, which also work in forked children.
    writer: Option<u32>,
    store: Shared<Option<store::Store>>,
}

impl Store {
    fn new(store: store::Store) -> Self {
        Self { writer: store.writer_process(), store: Shared::new("Store", Some(store)) }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<store::Store>>> {
        self.writer.map_or(Ok(()), store::check_process)?;
        self.store.detached()
    }

    fn with<T>(&self, work: impl FnOnce(&mut store::Store) -> Result<T>) -> Result<T> {
        let closed = || Error::invalid("the store is closed; open it again with Store.open");
        work(self.lock()?.as_mut().ok_or_else(closed)?)
    }
}

/// An array of a state: path, dtype, rows, width, and the bytes of its numbers.
type GivenArray<'py> = (String, String, u64, Option<u64>, PyReadonlyArray1<'py, u8>);

/// Like [`GivenArray`], as it is returned.
type FoundArray<'py> = (String, &'static str, u64, Option<u64>, Bound<'py, PyArray1<u8>>);

/// An int64 array.
type Found<'py> = Bound<'py, PyArray1<i64>>;

/// Ends of blocks; minima and maxima of columns per block; and for each string column its strings, and pairs of block
/// and string.
type FoundBlocks<'py> =
    (Found<'py>, BTreeMap<String, (Found<'py>, Found<'py>)>, BTreeMap<String, (Vec<String>, Found<'py>, Found<'py>)>);

#[pymethods]
impl Store {
    #[staticmethod]
    #[pyo3(signature = (path, *, read_only=false, sync="batch".into()))]
    fn open(py: Python<'_>, path: PathBuf, read_only: bool, sync: Name) -> PyResult<Self> {
        let open = || {
            let sync = Sync::from_name(&sync)?;
            if read_only { store::Store::open_read_only(&path) } else { store::Store::open(&path, sync) }
        };
        released(py, open).map(Self::new)
    }

    #[staticmethod]
    fn open_snapshot(py: Python<'_>, path: PathBuf, snapshot: &str) -> PyResult<Self> {
        released(py, || store::Store::open_snapshot(&path, snapshot)).map(Self::new)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || {
            let store = self.lock()?.take();
            store.map_or(Ok(()), store::Store::close)
        })
    }

    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<PathBuf> {
        released(py, || self.with(|store| Ok(store.path().to_owned())))
    }

    #[getter]
    fn iteration(&self, py: Python<'_>) -> PyResult<i64> {
        released(py, || self.with(|store| Ok(store.iteration())))
    }

    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        released(py, || self.with(|store| Ok(store.version())))
    }

    #[getter]
    fn sequence(&self, py: Python<'_>) -> PyResult<u64> {
        released(py, || self.with(|store| Ok(store.sequence())))
    }

    #[getter]
    fn snapshot(&self, py: Python<'_>) -> PyResult<String> {
        released(py, || self.with(|store| store.snapshot()))
    }

    /// JSON text of the state that the last closed iteration stored.
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        released(py, || self.with(|store| Ok(store.state().to_owned())))
    }

    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || self.with(store::Store::refresh))
    }

    fn table(&self, py: Python<'_>, name: &str) -> PyResult<Table> {
        released(py, || {
            let table = schema::Table::from_name(name)?;
            let rows = self.with(|store| store.table(table))?;
            Ok(Table::new(table.schema_of(&rows), rows))
        })
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<Table> {
        released(py, || self.with(store::Store::metrics)).map(Table::from)
    }

    fn writes(&self, py: Python<'_>) -> PyResult<Table> {
        released(py, || self.with(store::Store::writes)).map(Table::from)
    }

    fn rollout_log(&self, py: Python<'_>, iteration: Whole<i64>) -> PyResult<RolloutLog> {
        let iteration = iteration.named("iteration")?;
        released(py, || self.with(|store| store.rollout_log(iteration))).map(RolloutLog)
    }

    fn files(&self, py: Python<'_>, name: &str) -> PyResult<Vec<(PathBuf, u64, store::Bounds)>> {
        released(py, || self.with(|store| store.files(name)))
    }

    /// Return the first row, the number of rows and the bounds of each file of a table.
    fn ranges(&self, py: Python<'_>, name: &str) -> PyResult<Vec<(u64, u64, store::Bounds)>> {
        let ranges = released(py, || self.with(|store| store.ranges(name)))?;
        Ok(ranges.into_iter().map(|(rows, bounds)| (rows.start, rows.end - rows.start, bounds)).collect())
    }

    /// Return the blocks that contain some rows: their ends, the bounds of their columns, and their strings.
    fn blocks<'py>(&self, py: Python<'py>, name: &str, first: u64, count: u64) -> PyResult<FoundBlocks<'py>> {
        let blocks = released(py, || self.with(|store| store.blocks_of(name, &(first..first.saturating_add(count)))))?;
        let bounds = blocks.bounds.into_iter();
        let bounds = bounds.map(|(column, (first, last))| (column, (first.into_pyarray(py), last.into_pyarray(py))));
        let texts = blocks
            .texts
            .into_iter()
            .map(|(column, (texts, block, text))| (column, (texts, block.into_pyarray(py), text.into_pyarray(py))));
        Ok((blocks.ends.into_pyarray(py), bounds.collect(), texts.collect()))
    }

    /// Return columns of the rows in ascending ranges, one table per file.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 makes the list for this call")]
    fn columns(
        &self,
        py: Python<'_>,
        name: &str,
        firsts: PyReadonlyArray1<'_, i64>,
        ends: PyReadonlyArray1<'_, i64>,
        columns: Vec<String>,
    ) -> PyResult<Vec<Table>> {
        let pairs = slice("firsts", &firsts)?.iter().zip(slice("ends", &ends)?);
        let rows: Vec<_> = pairs.map(|(&first, &end)| first as u64..end as u64).collect();
        let found = released(py, || self.with(|store| store.columns(name, &rows, &columns)))?;
        Ok(found.into_iter().filter_map(|parts| Some(Table::new(parts.first()?.schema(), parts))).collect())
    }

    fn rebase(&self, py: Python<'_>, batch: PyRef<'_, Batch>) -> PyResult<Batch> {
        let batch = &batch.0;
        released(py, || self.with(|store| store.rebase(batch))).map(Batch)
    }

    #[pyo3(signature = (batch, iteration, *, partial=false))]
    fn append(&self, py: Python<'_>, batch: PyRef<'_, Batch>, iteration: Whole<i64>, partial: bool) -> PyResult<u64> {
        let iteration = iteration.named("iteration")?;
        let batch = &batch.0;
        released(py, || self.with(|store| store.append(batch, iteration, partial)))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<u64> {
        released(py, || self.with(store::Store::flush))
    }

    #[expect(clippy::needless_pass_by_value, reason = "PyO3 makes the list for this call")]
    fn close_iteration(
        &self,
        py: Python<'_>,
        batch: PyRef<'_, Batch>,
        state: &str,
        arrays: Vec<GivenArray<'_>>,
        metrics: Vec<(String, f64)>,
    ) -> PyResult<u64> {
        let batch = &batch.0;
        let mut given = store::Arrays::new();
        for (path, dtype, rows, width, bytes) in arrays {
            let dtype = store::Dtype::from_name(&dtype).map_err(to_python)?;
            let bytes = slice("bytes", &bytes)?.to_vec().into();
            given.insert(path, store::StateArray { dtype, width, rows, bytes });
        }
        released(py, || self.with(|store| store.close_with(batch, state, &given, &metrics)))
    }

    /// Return path, dtype, rows, width and bytes of each array of the state.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Vec<FoundArray<'py>>> {
        let arrays = released(py, || self.with(store::Store::arrays))?;
        let found = arrays.into_iter().map(|(path, array)| {
            let bytes = PyArray1::from_slice(py, &array.bytes);
            (path, array.dtype.name(), array.rows, array.width, bytes)
        });
        Ok(found.collect())
    }

    fn has_batch(&self, py: Python<'_>, iteration: Whole<i64>) -> PyResult<bool> {
        let iteration = iteration.named("iteration")?;
        released(py, || self.with(|store| store.has_batch(iteration)))
    }

    fn batch(&self, py: Python<'_>, iteration: Whole<i64>) -> PyResult<Batch> {
        let iteration = iteration.named("iteration")?;
        released(py, || self.with(|store| store.batch(iteration))).map(Batch)
    }

    fn batch_of(&self, py: Python<'_>, trajectory_ids: PyReadonlyArray1<'_, i64>) -> PyResult<Batch> {
        let ids = slice("ids", &trajectory_ids)?;
        released(py, || self.with(|store| store.trajectories(ids))).map(Batch)
    }

    fn blob<'py>(&self, py: Python<'py>, sha256: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let content = released(py, || {
            let hash = blob_hash(sha256)?;
            self.with(|store| store.blob(&hash))
        })?;
        Ok(PyBytes::new(py, &content))
    }

    fn compact(&self, py: Python<'_>) -> PyResult<usize> {
        interruptible(py, |check| store::compact(&mut |work| self.with(work), check))
    }

    #[pyo3(signature = (iteration, *, rewrite=false))]
    fn drop_before(&self, py: Python<'_>, iteration: Whole<i64>, rewrite: bool) -> PyResult<()> {
        let iteration = iteration.named("iteration")?;
        interruptible(py, |check| self.with(|store| store.drop_before(iteration, rewrite, check)))
    }

    /// Check the store; return folder, kind, id and message of each finding.
    #[expect(clippy::type_complexity, reason = "a row of four columns, made for this one call")]
    fn verify(&self, py: Python<'_>) -> PyResult<Vec<(String, &'static str, Option<i64>, String)>> {
        let findings = interruptible(py, |check| self.with(|store| store.verify(check)))?;
        Ok(findings.into_iter().map(|found| (found.folder, found.kind, found.id, found.message)).collect())
    }

    /// Return an empty batch with the task statistics of the whole run; the latest row of a task comes last.
    fn tasks(&self, py: Python<'_>) -> PyResult<Batch> {
        released(py, || {
            let tasks = self.with(|store| store.whole_table(schema::Table::Tasks))?;
            agentrl_data::batch::Batch::empty()?.with_tasks(tasks)
        })
        .map(Batch)
    }
}

/// Rollout log of an iteration in progress.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct RolloutLog(store::RolloutLog);

#[pymethods]
impl RolloutLog {
    #[getter]
    fn iteration(&self) -> i64 {
        self.0.iteration()
    }

    fn append(&self, py: Python<'_>, name: &[u8], payload: &[u8]) -> PyResult<()> {
        // Release the interpreter lock only to wait for the disk.
        if held(|| self.0.append(name, payload))? { self.sync(py) } else { Ok(()) }
    }

    fn records<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let records = released(py, || self.0.records())?;
        Ok(records.into_iter().map(|(name, payload)| (PyBytes::new(py, &name), PyBytes::new(py, &payload))).collect())
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || self.0.sync())
    }
}

/// Call before a fork, so that no lock is half taken.
#[pyfunction]
pub(crate) fn before_fork() {
    store::before_fork();
}

/// Call in the parent after a fork.
#[pyfunction]
pub(crate) fn after_fork_in_parent() {
    store::after_fork(false);
}

/// Call in the child after a fork: locks of the parent stay with the parent.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    store::after_fork(true);
}
