//! A table that any Arrow library can read.

use std::sync::Arc;

use agentrl_data::Error;
use arrow_array::cast::AsArray as _;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, StructArray};
use arrow_schema::{ArrowError, DataType, Field, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use pyo3_arrow::ffi::{ArrayIterator, to_schema_pycapsule, to_stream_pycapsule};

use crate::arrays::to_numpy;
use crate::columns::numbers;
use crate::enter::released;
use crate::error::to_python;

/// Rows in Arrow memory. Every call of `__arrow_c_stream__` returns a new stream.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct Table {
    schema: SchemaRef,
    parts: Vec<RecordBatch>,
}

impl Table {
    pub(crate) fn new(schema: SchemaRef, parts: Vec<RecordBatch>) -> Self {
        Self { schema, parts }
    }

    fn field(&self) -> Field {
        Field::new_struct("", self.schema.fields().clone(), false).with_metadata(self.schema.metadata().clone())
    }
}

impl From<RecordBatch> for Table {
    fn from(rows: RecordBatch) -> Self {
        Self { schema: rows.schema(), parts: vec![rows] }
    }
}

/// Result of `__reduce__`: a function, and the Arrow files that it takes.
type Pickled<'py> = (Bound<'py, PyAny>, (Vec<Vec<u8>>,));

fn arrow_error(error: impl std::fmt::Display) -> PyErr {
    to_python(Error::internal(format!("the table cannot be exported: {error}")))
}

#[pymethods]
impl Table {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        to_schema_pycapsule(py, self.schema.as_ref()).map_err(PyErr::from)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let arrays = self.parts.clone().into_iter().map(|rows| Ok(Arc::new(StructArray::from(rows)) as ArrayRef));
        let arrays: Vec<Result<ArrayRef, ArrowError>> = arrays.collect();
        let reader = ArrayIterator::new(arrays, Arc::new(self.field()));
        to_stream_pycapsule(py, Box::new(reader), requested_schema).map_err(PyErr::from)
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Return a column: numbers as a `NumPy` array (null becomes NaN), strings as a list (null becomes None).
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let Ok(place) = self.schema.index_of(name) else {
            let known = self.column_names().join(", ");
            return Err(to_python(Error::not_found(format!("column {name:?} does not exist; use one of: {known}"))));
        };
        let parts: Vec<ArrayRef> = self.parts.iter().map(|rows| rows.column(place).clone()).collect();
        if self.schema.field(place).data_type() == &DataType::Utf8 {
            let texts: Vec<Option<&str>> = parts.iter().flat_map(|part| part.as_string::<i32>().iter()).collect();
            return Ok(PyList::new(py, texts)?.into_any());
        }
        let values = released(py, || numbers(name, &parts))?;
        Ok(to_numpy(py, values))
    }

    /// Return the same rows with other strings in a string column: one per row.
    fn with_texts(&self, name: &str, texts: Vec<String>) -> PyResult<Self> {
        let place = self.schema.index_of(name).map_err(arrow_error)?;
        let mut rest = texts.as_slice();
        let replaced = |rows: &RecordBatch| {
            let (own, later) = rest.split_at_checked(rows.num_rows()).unwrap_or((rest, &[]));
            rest = later;
            let mut columns = rows.columns().to_vec();
            columns[place] = Arc::new(StringArray::from_iter_values(own));
            RecordBatch::try_new(self.schema.clone(), columns)
        };
        let parts = self.parts.iter().map(replaced).collect::<Result<_, _>>().map_err(arrow_error)?;
        Ok(Self { schema: self.schema.clone(), parts })
    }

    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.parts.iter().map(RecordBatch::num_rows).sum()
    }

    /// Size of the columns in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.parts.iter().flat_map(RecordBatch::columns).map(Array::get_buffer_memory_size).sum()
    }

    fn __len__(&self) -> usize {
        self.num_rows()
    }

    fn __repr__(&self) -> String {
        format!("Table({} rows: {})", self.num_rows(), self.column_names().join(", "))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Pickled<'py>> {
        let Self { schema, parts } = slf.get();
        // The schema travels with the rows, so pickle at least one part.
        let none = [RecordBatch::new_empty(schema.clone())];
        let parts = if parts.is_empty() { &none } else { parts.as_slice() };
        let encode = |rows: &RecordBatch| agentrl_data::ipc::encode(&rows.schema(), std::slice::from_ref(rows));
        let parts = parts.iter().map(encode).collect::<Result<Vec<_>, _>>();
        Ok((slf.get_type().getattr("_from_bytes")?, (parts.map_err(to_python)?,)))
    }

    #[staticmethod]
    fn _from_bytes(parts: Vec<Vec<u8>>) -> PyResult<Self> {
        let decode = |part: Vec<u8>| agentrl_data::ipc::decode("a pickled table", &part.into());
        let parts = parts.into_iter().map(decode).collect::<Result<Vec<_>, _>>();
        let parts = parts.map_err(to_python)?;
        let schema = parts.first().map(RecordBatch::schema).ok_or_else(|| arrow_error("it has no parts"))?;
        Ok(Self { schema, parts })
    }
}
