//! `Store` for Python.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use agentrl_data::schema;
use agentrl_data::store;
use agentrl_data::{Error, Result};
use pyo3::prelude::*;

use crate::arrays::Whole;
use crate::batch::Batch;
use crate::enter::{held, released};
use crate::table::Table;

/// The durable form of the data; `None` once it is closed.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct Store(Mutex<Option<store::Store>>);

fn closed() -> Error {
    Error::invalid("the store is closed; open it again with Store.open")
}

impl Store {
    fn lock(&self) -> Result<MutexGuard<'_, Option<store::Store>>> {
        self.0
            .lock()
            .map_err(|_| Error::internal("an earlier call on this Store failed inside the core; open it again"))
    }

    fn with<T>(&self, work: impl FnOnce(&mut store::Store) -> Result<T>) -> Result<T> {
        work(self.lock()?.as_mut().ok_or_else(closed)?)
    }
}

#[pymethods]
impl Store {
    #[staticmethod]
    #[pyo3(signature = (path, *, read_only=false))]
    fn open(py: Python<'_>, path: PathBuf, read_only: bool) -> PyResult<Self> {
        let store =
            released(py, || if read_only { store::Store::open_read_only(&path) } else { store::Store::open(&path) })?;
        Ok(Self(Mutex::new(Some(store))))
    }

    fn close(&self) -> PyResult<()> {
        held(|| {
            self.lock()?.take();
            Ok(())
        })
    }

    #[getter]
    fn path(&self) -> PyResult<PathBuf> {
        held(|| self.with(|store| Ok(store.path().to_owned())))
    }

    #[getter]
    fn iteration(&self) -> PyResult<i64> {
        held(|| self.with(|store| Ok(store.iteration())))
    }

    #[getter]
    fn version(&self) -> PyResult<u64> {
        held(|| self.with(|store| Ok(store.version())))
    }

    /// JSON text of what the last closed iteration left to go on from.
    #[getter]
    fn state(&self) -> PyResult<String> {
        held(|| self.with(|store| Ok(store.state().to_string())))
    }

    fn table(&self, py: Python<'_>, name: &str) -> PyResult<Table> {
        released(py, || {
            let table = schema::Table::from_name(name)?;
            self.with(|store| Ok(Table::new(table.schema(), store.table(table)?)))
        })
    }

    fn files(&self, name: &str) -> PyResult<Vec<(PathBuf, usize)>> {
        held(|| self.with(|store| store.files(name)))
    }

    fn rebase(&self, batch: PyRef<'_, Batch>) -> PyResult<Batch> {
        held(|| self.with(|store| batch.0.rebase(store.next_ids()))).map(Batch)
    }

    fn append(&self, py: Python<'_>, batch: PyRef<'_, Batch>, iteration: Whole<i64>) -> PyResult<u64> {
        let iteration = iteration.named("iteration")?;
        let batch = &batch.0;
        released(py, || self.with(|store| store.append(batch, iteration)))
    }

    fn close_iteration(&self, py: Python<'_>, batch: PyRef<'_, Batch>, state: &str) -> PyResult<u64> {
        let batch = &batch.0;
        released(py, || {
            let state =
                serde_json::from_str(state).map_err(|error| Error::invalid(format!("state is not JSON: {error}")))?;
            self.with(|store| store.close_iteration(batch, state))
        })
    }

    fn has_batch(&self, iteration: Whole<i64>) -> PyResult<bool> {
        let iteration = iteration.named("iteration")?;
        held(|| self.with(|store| Ok(store.has_batch(iteration))))
    }

    fn batch(&self, py: Python<'_>, iteration: Whole<i64>) -> PyResult<Batch> {
        let iteration = iteration.named("iteration")?;
        released(py, || self.with(|store| store.batch(iteration))).map(Batch)
    }

    /// An empty batch with the task statistics of the whole run, the latest row of a task last.
    fn tasks(&self, py: Python<'_>) -> PyResult<Batch> {
        released(py, || {
            let tasks = self.with(|store| store.whole_table(schema::Table::Tasks))?;
            agentrl_data::batch::Batch::empty()?.with_tasks(tasks)
        })
        .map(Batch)
    }
}
