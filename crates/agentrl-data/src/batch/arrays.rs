//! The arrays of a table by the names of their columns.

use arrow_array::cast::AsArray;
use arrow_array::{Array, Int32Array, Int64Array, ListArray, RecordBatch, UInt8Array};

use crate::{Error, ErrorKind, Result};

pub(crate) fn array<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a dyn Array> {
    let missing = || Error::new(ErrorKind::NotFound, format!("the table has no column {name:?}"));
    rows.column_by_name(name).map(AsRef::as_ref).ok_or_else(missing)
}

pub(crate) fn i64s<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a Int64Array> {
    Ok(array(rows, name)?.as_primitive())
}

pub(crate) fn i32s<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a Int32Array> {
    Ok(array(rows, name)?.as_primitive())
}

pub(crate) fn u8s<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a UInt8Array> {
    Ok(array(rows, name)?.as_primitive())
}

pub(crate) fn lists<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a ListArray> {
    Ok(array(rows, name)?.as_list())
}
