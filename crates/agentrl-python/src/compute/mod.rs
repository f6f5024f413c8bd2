//! Compute functions for Python: columns in, columns out.

mod columns;
pub(crate) mod filters;
pub(crate) mod reward;
pub(crate) mod tree;
pub(crate) mod weight;

use agentrl_compute::advantage::{GigpoColumns, GigpoOptions, Unit};
use agentrl_compute::group::{GroupOptions, Scale, Singleton};
use agentrl_compute::ragged::Ragged;
use agentrl_compute::rollout::{BranchColumns, BranchOptions, Reduce};
use agentrl_compute::{Result, advantage, group, keys, returns, rng, rollout};
use arrow_array::cast::AsArray as _;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use pyo3_arrow::PyChunkedArray;
use pyo3_arrow::input::AnyArray;

use crate::arrays::slice;
use crate::enter::{held, released};
use crate::error::{invalid, to_python};

/// A column of either float type; the result has the same.
#[derive(FromPyObject)]
pub(crate) enum Floats<'py> {
    Single(PyReadonlyArray1<'py, f32>),
    Double(PyReadonlyArray1<'py, f64>),
}

/// Runs a kernel on float columns of one type: in `$make` each name is a slice, and `$out` an output of the same length.
macro_rules! kernel {
    ($py:ident, [$($name:ident),+], |$out:ident| $make:expr) => {
        match ($($name,)+) {
            ($(Floats::Single($name),)+) => {
                $(let $name = slice(stringify!($name), &$name)?;)+
                kernel!(@run $py, f32, [$($name),+], $out, $make)
            }
            ($(Floats::Double($name),)+) => {
                $(let $name = slice(stringify!($name), &$name)?;)+
                kernel!(@run $py, f64, [$($name),+], $out, $make)
            }
            #[expect(clippy::allow_attributes, reason = "only kernels of several columns have a mixed case")]
            #[allow(unreachable_patterns)]
            _ => Err(invalid(concat!("columns ", $(stringify!($name), " ",)+ "mix float32 and float64; convert them to one type").to_owned())),
        }
    };
    (@run $py:ident, $type:ty, [$first:ident $(, $rest:ident)*], $out:ident, $make:expr) => {{
        let made = released($py, || {
            let mut made: Vec<$type> = vec![0.0; $first.len()];
            let $out = made.as_mut_slice();
            let done: Result<()> = $make;
            done.map(|()| made)
        })?;
        Ok(PyArray1::from_vec($py, made).into_any())
    }};
}

#[pyfunction]
pub(crate) fn dense_keys<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyArray1<u32>>, u32)> {
    let made = if let Ok(values) = values.extract::<PyReadonlyArray1<'_, i64>>() {
        let values = slice("values", &values)?;
        released(py, || keys::dense_i64(values))?
    } else if let Ok(array) = values.extract::<AnyArray>() {
        let array = array.into_chunked_array().map_err(PyErr::from)?;
        released(py, || keys::dense_bytes(texts(&array)?))?
    } else {
        let items: Vec<Bound<'py, PyAny>> = values.extract().map_err(|_| not_keys(values))?;
        let items = items.iter().map(item_bytes).collect::<PyResult<Vec<_>>>()?;
        held(|| keys::dense_bytes(items.iter().map(Vec::as_slice)))?
    };
    Ok((PyArray1::from_vec(py, made.ids), made.count))
}

/// The texts of an Arrow array of any string or binary type.
fn texts(array: &PyChunkedArray) -> Result<Vec<&[u8]>> {
    use arrow_schema::DataType;
    let mut out = Vec::with_capacity(array.chunks().iter().map(|chunk| chunk.len()).sum());
    for chunk in array.chunks() {
        if chunk.null_count() > 0 {
            return Err(agentrl_compute::Error::invalid(format!(
                "values has {} nulls, which belong to no group; fill them first",
                chunk.null_count()
            )));
        }
        match chunk.data_type() {
            DataType::Utf8 => out.extend(chunk.as_string::<i32>().iter().flatten().map(str::as_bytes)),
            DataType::LargeUtf8 => out.extend(chunk.as_string::<i64>().iter().flatten().map(str::as_bytes)),
            DataType::Utf8View => out.extend(chunk.as_string_view().iter().flatten().map(str::as_bytes)),
            DataType::Binary => out.extend(chunk.as_binary::<i32>().iter().flatten()),
            DataType::LargeBinary => out.extend(chunk.as_binary::<i64>().iter().flatten()),
            DataType::BinaryView => out.extend(chunk.as_binary_view().iter().flatten()),
            DataType::FixedSizeBinary(_) => out.extend(chunk.as_fixed_size_binary().iter().flatten()),
            other => {
                return Err(agentrl_compute::Error::invalid(format!(
                    "values has Arrow type {other}; keys are integers (int64), strings or binary"
                )));
            }
        }
    }
    Ok(out)
}

/// One key of a list as bytes; a byte in front keeps texts, bytes and integers apart.
fn item_bytes(item: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let tagged = |tag: u8, bytes: &[u8]| [&[tag], bytes].concat();
    if let Ok(text) = item.cast::<PyString>() {
        Ok(tagged(0, text.to_str()?.as_bytes()))
    } else if let Ok(bytes) = item.cast::<PyBytes>() {
        Ok(tagged(1, bytes.as_bytes()))
    } else {
        item.extract::<i64>().map(|number| tagged(2, &number.to_le_bytes())).map_err(|_| not_keys(item))
    }
}

fn not_keys(value: &Bound<'_, PyAny>) -> PyErr {
    let kind = value.get_type().qualname().map_or_else(|_| "an unknown type".to_owned(), |name| name.to_string());
    invalid(format!(
        "values holds {kind}; keys are an int64 array, an Arrow string array, or a list of str, bytes or int"
    ))
}

fn flags<'a>(valid: Option<&'a PyReadonlyArray1<'_, bool>>) -> PyResult<Option<&'a [bool]>> {
    valid.map(|valid| slice("valid", valid)).transpose()
}

#[pyfunction]
#[pyo3(signature = (scores, groups, *, scale="std", ddof=1, eps=1e-6, singleton="zero", valid=None))]
#[expect(clippy::too_many_arguments, reason = "options by name")]
pub(crate) fn group_relative<'py>(
    py: Python<'py>,
    scores: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    scale: &str,
    ddof: u32,
    eps: f64,
    singleton: &str,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (groups, valid) = (slice("groups", &groups)?, flags(valid.as_ref())?);
    let options =
        || Ok(GroupOptions { scale: Scale::from_name(scale)?, ddof, eps, singleton: Singleton::from_name(singleton)? });
    let options = options().map_err(to_python)?;
    kernel!(py, [scores], |out| group::group_relative(scores, groups, &options, valid, out))
}

#[pyfunction]
#[pyo3(signature = (scores, groups, *, singleton="zero", valid=None))]
pub(crate) fn leave_one_out<'py>(
    py: Python<'py>,
    scores: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    singleton: &str,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (groups, valid) = (slice("groups", &groups)?, flags(valid.as_ref())?);
    let singleton = Singleton::from_name(singleton).map_err(to_python)?;
    kernel!(py, [scores], |out| group::leave_one_out(scores, groups, singleton, valid, out))
}

#[pyfunction]
pub(crate) fn step_returns<'py>(
    py: Python<'py>,
    rewards: Floats<'py>,
    trajectories: PyReadonlyArray1<'py, u32>,
    gamma: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let trajectories = slice("trajectories", &trajectories)?;
    kernel!(py, [rewards], |out| returns::discounted(rewards, trajectories, gamma, out))
}

#[pyfunction]
#[pyo3(signature = (episode_scores, step_returns, groups, trajectories, anchors, *, step_weight=1.0, scale="none",
    unit="step", ddof=1, eps=1e-6, valid=None))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
pub(crate) fn gigpo<'py>(
    py: Python<'py>,
    episode_scores: Floats<'py>,
    step_returns: Floats<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    trajectories: PyReadonlyArray1<'py, u32>,
    anchors: PyReadonlyArray1<'py, u32>,
    step_weight: f64,
    scale: &str,
    unit: &str,
    ddof: u32,
    eps: f64,
    valid: Option<PyReadonlyArray1<'py, bool>>,
) -> PyResult<Bound<'py, PyAny>> {
    let groups = slice("groups", &groups)?;
    let trajectories = slice("trajectories", &trajectories)?;
    let anchors = slice("anchors", &anchors)?;
    let valid = flags(valid.as_ref())?;
    let options =
        || Ok(GigpoOptions { step_weight, scale: Scale::from_name(scale)?, unit: Unit::from_name(unit)?, ddof, eps });
    let options = options().map_err(to_python)?;
    kernel!(py, [episode_scores, step_returns], |out| {
        let columns = GigpoColumns { episode_scores, step_returns, groups, trajectories, anchors, valid };
        advantage::gigpo(&columns, &options, out)
    })
}

#[pyfunction]
#[pyo3(signature = (groups, entropy, initial_entropy, uniform, existing, *, budget, beam, probability, entropy_weight))]
#[expect(clippy::too_many_arguments, reason = "columns in order, options by name")]
pub(crate) fn entropy_branches<'py>(
    py: Python<'py>,
    groups: PyReadonlyArray1<'py, u32>,
    entropy: PyReadonlyArray1<'py, f64>,
    initial_entropy: PyReadonlyArray1<'py, f64>,
    uniform: PyReadonlyArray1<'py, f64>,
    existing: PyReadonlyArray1<'py, u32>,
    budget: u32,
    beam: u32,
    probability: f64,
    entropy_weight: f64,
) -> PyResult<Bound<'py, PyArray1<u32>>> {
    let columns = BranchColumns {
        groups: slice("groups", &groups)?,
        entropy: slice("entropy", &entropy)?,
        initial_entropy: slice("initial_entropy", &initial_entropy)?,
        uniform: slice("uniform", &uniform)?,
        existing: slice("existing", &existing)?,
    };
    let options = BranchOptions { budget, beam, probability, entropy_weight };
    held(|| rollout::entropy_branches(&columns, &options)).map(|copies| PyArray1::from_vec(py, copies))
}

#[pyfunction]
#[pyo3(signature = (entropies, offsets, limit, vocabulary, reduce="sum"))]
pub(crate) fn segment_entropy<'py>(
    py: Python<'py>,
    entropies: PyReadonlyArray1<'py, f32>,
    offsets: PyReadonlyArray1<'py, i64>,
    limit: usize,
    vocabulary: u64,
    reduce: &str,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let (entropies, offsets) = (slice("entropies", &entropies)?, slice("offsets", &offsets)?);
    let made = held(|| {
        rollout::segment_entropy(Ragged::new(entropies, offsets)?, limit, vocabulary, Reduce::from_name(reduce)?)
    })?;
    Ok(PyArray1::from_vec(py, made))
}

#[pyfunction]
#[pyo3(signature = (*parts))]
pub(crate) fn structural_seed(parts: Vec<i64>) -> u64 {
    rng::structural_seed(&parts.iter().map(|&part| part as u64).collect::<Vec<_>>())
}

#[pyfunction]
pub(crate) fn uniform<'py>(
    py: Python<'py>,
    seeds: PyReadonlyArray1<'py, u64>,
    counter: u64,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let seeds = slice("seeds", &seeds)?;
    Ok(PyArray1::from_vec(py, seeds.iter().map(|&seed| rng::uniform(seed, counter)).collect()))
}
