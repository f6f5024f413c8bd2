//! Columns from any Arrow library: numbers, and lists of numbers.

use agentrl_compute::{Error, Result};
use agentrl_data::batch::Numbers;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Float32Type, Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, LargeListArray};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyArray;

use crate::arrays::to_numpy;
use crate::enter::released;
use crate::error::to_python;

/// Flat values of Python or Arrow columns.
#[pymodule(submodule, name = "columns", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{arrow_lists, arrow_numbers};
    #[pymodule_export]
    use crate::array_checks::{is_finite, is_plain};
    #[pymodule_export]
    use crate::lists::flat_lists;
    #[pymodule_export]
    use crate::vllm_response::vllm_candidates;
}

/// Return the chunks of an Arrow array or stream. A table of one column is read as that column, a dictionary as its
/// values.
pub(crate) fn parts(name: &str, values: AnyArray) -> PyResult<Vec<ArrayRef>> {
    let (parts, _) = values.into_chunked_array().map_err(PyErr::from)?.into_inner();
    parts.into_iter().map(|part| plain(name, part)).collect::<Result<_>>().map_err(to_python)
}

fn plain(name: &str, part: ArrayRef) -> Result<ArrayRef> {
    match part.data_type() {
        DataType::Struct(fields) if fields.len() == 1 && part.null_count() == 0 => {
            plain(name, part.as_struct().column(0).clone())
        }
        DataType::Struct(fields) => {
            let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
            Err(Error::invalid(format!("{name} has the columns {}; select one of them", names.join(", "))))
        }
        DataType::Dictionary(_, kind) => cast(name, &part, kind),
        _ => Ok(part),
    }
}

/// Cast to another type; a value that does not fit is an error.
fn cast(name: &str, part: &ArrayRef, kind: &DataType) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(part, kind, &options).map_err(|error| {
        Error::invalid(format!("{name} has Arrow type {} ({error}); cast it to {kind}", part.data_type()))
    })
}

/// Return the numbers of an Arrow column as a `NumPy` array: float32, float64, int64, or bool.
///
/// Nulls become NaN; integers with nulls become float64.
#[pyfunction]
fn arrow_numbers<'py>(py: Python<'py>, values: AnyArray, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let parts = parts(name, values)?;
    if parts.iter().all(|part| part.data_type() == &DataType::Boolean) && !parts.is_empty() {
        let made = released(py, || truths(name, &parts))?;
        return Ok(PyArray1::from_vec(py, made).into_any());
    }
    let made = released(py, || numbers(name, &parts))?;
    Ok(to_numpy(py, made))
}

/// Values of all lists concatenated, and the length of each list.
type Lists<'py> = (Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>);

/// Return the concatenated values of an Arrow column of lists, and the length of each list (int64; -1 for a null).
///
/// Returns None if the column does not hold lists.
#[pyfunction]
fn arrow_lists<'py>(py: Python<'py>, values: AnyArray, name: &str) -> PyResult<Option<Lists<'py>>> {
    let parts = parts(name, values)?;
    let list = |part: &ArrayRef| {
        matches!(
            part.data_type(),
            DataType::List(_)
                | DataType::LargeList(_)
                | DataType::FixedSizeList(..)
                | DataType::ListView(_)
                | DataType::LargeListView(_)
        )
    };
    if parts.is_empty() || !parts.iter().all(list) {
        return Ok(None);
    }
    let (values, lengths) = released(py, || {
        let mut items = Vec::with_capacity(parts.len());
        let mut lengths = Vec::new();
        for part in &parts {
            let lists = large_lists(name, part)?;
            let offsets = lists.value_offsets();
            let length = |row: usize| if lists.is_null(row) { -1 } else { offsets[row + 1] - offsets[row] };
            lengths.extend((0..lists.len()).map(length));
            if lists.null_count() == 0 {
                items.push(sliced(&lists, offsets[0], offsets[lists.len()]));
            } else {
                // Values below a null list belong to no list.
                let rows = (0..lists.len()).filter(|&row| lists.is_valid(row));
                items.extend(rows.map(|row| sliced(&lists, offsets[row], offsets[row + 1])));
            }
        }
        Ok((numbers(name, &items)?, lengths))
    })?;
    Ok(Some((to_numpy(py, values), PyArray1::from_vec(py, lengths))))
}

fn sliced(lists: &LargeListArray, begin: i64, end: i64) -> ArrayRef {
    lists.values().slice(begin as usize, (end - begin) as usize)
}

fn large_lists(name: &str, part: &ArrayRef) -> Result<LargeListArray> {
    let (DataType::List(item)
    | DataType::LargeList(item)
    | DataType::FixedSizeList(item, _)
    | DataType::ListView(item)
    | DataType::LargeListView(item)) = part.data_type()
    else {
        return Err(Error::internal("a column of lists became another"));
    };
    let item = Field::new("item", item.data_type().clone(), true);
    Ok(cast(name, part, &DataType::LargeList(item.into()))?.as_list::<i64>().clone())
}

fn truths(name: &str, parts: &[ArrayRef]) -> Result<Vec<bool>> {
    let nulls: usize = parts.iter().map(Array::null_count).sum();
    if nulls > 0 {
        return Err(Error::invalid(format!("{name} has {nulls} nulls among its booleans; fill them first")));
    }
    Ok(parts.iter().flat_map(|part| part.as_boolean().values().iter().collect::<Vec<_>>()).collect())
}

pub(crate) fn numbers(name: &str, parts: &[ArrayRef]) -> Result<Numbers> {
    use DataType::{Float32, Float64, Int64};
    let whole = |part: &ArrayRef| part.data_type().is_integer() || part.data_type() == &DataType::Boolean;
    let number = |part: &&ArrayRef| whole(part) || part.data_type().is_numeric() || part.data_type().is_null();
    if let Some(part) = parts.iter().find(|part| !number(part)) {
        return Err(Error::invalid(format!("{name} has Arrow type {}; give numbers", part.data_type())));
    }
    if parts.iter().all(whole) && parts.iter().all(|part| part.null_count() == 0) {
        return Ok(Numbers::I64(gathered(name, parts, &Int64, |part| {
            part.as_primitive::<Int64Type>().values().to_vec()
        })?));
    }
    if parts.iter().all(|part| part.data_type() == &Float32) {
        let unknown = |value: Option<f32>| value.unwrap_or(f32::NAN);
        let read = |part: &ArrayRef| part.as_primitive::<Float32Type>().iter().map(unknown).collect();
        return Ok(Numbers::F32(gathered(name, parts, &Float32, read)?));
    }
    let unknown = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let read = |part: &ArrayRef| part.as_primitive::<Float64Type>().iter().map(unknown).collect();
    Ok(Numbers::F64(gathered(name, parts, &Float64, read)?))
}

fn gathered<T>(name: &str, parts: &[ArrayRef], kind: &DataType, read: impl Fn(&ArrayRef) -> Vec<T>) -> Result<Vec<T>> {
    let mut out = Vec::with_capacity(parts.iter().map(Array::len).sum());
    for part in parts {
        out.extend(read(&cast(name, part, kind)?));
    }
    Ok(out)
}
