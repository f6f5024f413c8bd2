//! Ids of keys.

use std::borrow::Cow;

use agentrl_compute::hash::Parts;
use agentrl_compute::keys::{self, Ids, Keys, Similarity, Sketch};
use agentrl_compute::{Error, Result};
use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, ArrayRef};
use arrow_schema::DataType;
use numpy::{PyArray1, PyArrayMethods as _, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use pyo3_arrow::input::AnyArray;

use super::columns::run;
use crate::arrays::{Text, Whole, slice};
use crate::columns;
use crate::enter::{held, released};
use crate::error::invalid;

/// Dense ids of keys.
#[pymodule(submodule, name = "keys", module = "agentrl_core._core")]
pub(crate) mod exports {
    #[pymodule_export]
    use super::{dense, hash_parts, history, label, named, pair, similar};
}

/// Run `$work` with the slice of an array of integers of any width.
macro_rules! integers {
    ($array:ident, $name:ident, |$values:ident| $work:block) => {
        integers!(@each $array, $name, $values, $work, i64, u32, i32, u64, i16, u16, i8, u8)
    };
    (@each $array:ident, $name:ident, $values:ident, $work:block, $($type:ty),+) => {
        $(if let Ok(array) = $array.cast::<PyArray1<$type>>() {
            let array = array.readonly();
            let $values = slice($name, &array)?;
            $work
        })+
    };
}

#[pyfunction]
#[pyo3(signature = (values, name="values"))]
fn dense<'py>(py: Python<'py>, values: &Bound<'py, PyAny>, name: &str) -> PyResult<(Bound<'py, PyArray1<u32>>, u32)> {
    integers!(values, name, |values| {
        let made = run(py, values.len(), || keys::dense_integers(values))?;
        return Ok((PyArray1::from_vec(py, made.ids), made.count));
    });
    let made = if let Ok(array) = values.extract::<AnyArray>() {
        let parts = columns::parts(name, array)?;
        released(py, || dense_texts(name, &parts))?
    } else {
        dense_items(name, &values.extract::<Vec<Bound<'py, PyAny>>>().map_err(|_| not_keys(name, values))?)?
    };
    Ok((PyArray1::from_vec(py, made.ids), made.count))
}

/// Return the dense ids of the items of a list.
fn dense_items(name: &str, items: &[Bound<'_, PyAny>]) -> PyResult<Keys> {
    if let Some(texts) = items.iter().map(text).collect::<Option<Vec<&str>>>() {
        return held(|| keys::dense_bytes_of(texts.len(), |row| texts[row].as_bytes()));
    }
    let items = items.iter().map(|item| item_bytes(name, item)).collect::<PyResult<Vec<_>>>()?;
    held(|| keys::dense_bytes(items.iter().map(Vec::as_slice)))
}

/// Return the first row of each id; ids are numbered in order of appearance.
fn first_rows(made: &Keys) -> Vec<usize> {
    let mut firsts = Vec::with_capacity(made.count as usize);
    for (row, &id) in made.ids.iter().enumerate() {
        if id as usize == firsts.len() {
            firsts.push(row);
        }
    }
    firsts
}

/// Return dense ids (uint32), and the key of each id as a string, which identifies it across batches.
#[pyfunction]
fn named<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<(Bound<'py, PyArray1<u32>>, Bound<'py, PyList>)> {
    if let Ok(array) = values.cast::<PyArray1<i64>>() {
        let array = array.readonly();
        let values = slice(name, &array)?;
        let made = run(py, values.len(), || keys::dense_integers(values))?;
        let names = PyList::new(py, first_rows(&made).into_iter().map(|row| values[row].to_string()))?;
        return Ok((PyArray1::from_vec(py, made.ids), names));
    }
    let items: Vec<Bound<'py, PyAny>> = values.extract().map_err(|_| not_keys(name, values))?;
    let made = dense_items(name, &items)?;
    let names = first_rows(&made).into_iter().map(|row| items[row].str()).collect::<PyResult<Vec<_>>>()?;
    Ok((PyArray1::from_vec(py, made.ids), PyList::new(py, names)?))
}

/// Return the hash of strings, bytes and token arrays, 16 bytes. Each part is hashed after its length.
#[pyfunction]
#[pyo3(signature = (*parts))]
fn hash_parts<'py>(parts: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyBytes>> {
    let mut all = Parts::default();
    for part in parts {
        if let Ok(text) = part.cast::<PyString>() {
            all.add(text.to_str()?.as_bytes());
        } else if let Ok(bytes) = part.cast::<PyBytes>() {
            all.add(bytes.as_bytes());
        } else {
            all.add_tokens(slice("parts", &part.cast::<PyArray1<i32>>()?.readonly())?);
        }
    }
    Ok(PyBytes::new(parts.py(), &all.hash()))
}

/// Ids in no particular order: equal keys have equal ids, below the number of rows.
pub(super) enum Labels<'py> {
    Given(PyReadonlyArray1<'py, u32>),
    Made(Vec<u32>),
}

impl Labels<'_> {
    pub(super) fn slice(&self, name: &str) -> PyResult<&[u32]> {
        match self {
            Self::Given(ids) => slice(name, ids),
            Self::Made(ids) => Ok(ids),
        }
    }
}

/// Return ids in no particular order for an array of integers; an array that is valid as ids is read in place.
pub(super) fn labels<'py>(py: Python<'py>, values: &Bound<'py, PyAny>, name: &str) -> PyResult<Labels<'py>> {
    integers!(values, name, |keys| {
        let made = match run(py, keys.len(), || keys::label_integers(keys))?.ids {
            Cow::Borrowed(_) => None,
            Cow::Owned(ids) => Some(ids),
        };
        // Only uint32 arrays can be borrowed as labels.
        return match made {
            Some(ids) => Ok(Labels::Made(ids)),
            None => Ok(Labels::Given(values.extract()?)),
        };
    });
    Err(not_keys(name, values))
}

/// Run work with an array of integers of any width as ids.
pub(super) fn with_ids<'py, R>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    name: &str,
    work: impl FnOnce(&dyn Ids) -> PyResult<R>,
) -> PyResult<R> {
    if let Ok(array) = values.cast::<PyArray1<i64>>() {
        return work(&slice(name, &array.readonly())?);
    }
    if let Ok(array) = values.cast::<PyArray1<u32>>() {
        return work(&slice(name, &array.readonly())?);
    }
    integers!(values, name, |keys| {
        let made = run(py, keys.len(), || keys::label_integers(keys))?;
        return work(&&*made.ids);
    });
    Err(not_keys(name, values))
}

/// Read rows of a table: uint32 in place, int64 if they fit. The kernel knows the table's length and checks them.
pub(super) fn rows<'py>(values: &Bound<'py, PyAny>, name: &str) -> PyResult<Labels<'py>> {
    if let Ok(array) = values.cast::<PyArray1<u32>>() {
        return Ok(Labels::Given(array.readonly()));
    }
    let array = values.cast::<PyArray1<i64>>()?.readonly();
    let narrow = |(place, &row): (usize, &i64)| {
        u32::try_from(row).map_err(|_| invalid(format!("{name}[{place}] is {row}; give the row of a node, at least 0")))
    };
    slice(name, &array)?.iter().enumerate().map(narrow).collect::<PyResult<_>>().map(Labels::Made)
}

/// Return ids in no particular order (uint32) for an array of integers; an array that is valid as ids is returned
/// itself.
#[pyfunction]
#[pyo3(signature = (values, name="values"))]
fn label<'py>(py: Python<'py>, values: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyArray1<u32>>> {
    Ok(match labels(py, values, name)? {
        Labels::Given(_) => values.cast::<PyArray1<u32>>()?.clone(),
        Labels::Made(ids) => PyArray1::from_vec(py, ids),
    })
}

/// Return the dense ids of an Arrow array of any string or binary type, without copying it.
fn dense_texts(name: &str, parts: &[ArrayRef]) -> Result<Keys> {
    match parts {
        [chunk] => {
            let text = texts(name, chunk)?;
            short_texts(chunk).map_or_else(|| keys::dense_bytes_of(chunk.len(), text), keys::dense_words)
        }
        chunks => {
            let mut rows = Vec::with_capacity(chunks.iter().map(arrow_array::Array::len).sum());
            for chunk in chunks {
                let text = texts(name, chunk)?;
                rows.extend((0..chunk.len()).map(text));
            }
            keys::dense_bytes_of(rows.len(), |row| rows[row])
        }
    }
}

/// Maximum length in bytes of a string that a view stores inline, padded with zeros.
const SHORT: u32 = 12;

/// Return the views of an array whose strings are all short: views are equal if their strings are.
fn short_texts(array: &ArrayRef) -> Option<&[u128]> {
    macro_rules! views {
        ($array:expr) => {{
            let array = $array;
            let short = array.data_buffers().is_empty() || array.lengths().all(|length| length <= SHORT);
            short.then_some(&array.views()[..])
        }};
    }
    match array.data_type() {
        DataType::Utf8View => views!(array.as_string_view()),
        DataType::BinaryView => views!(array.as_binary_view()),
        _ => None,
    }
}

type TextAt<'a> = Box<dyn Fn(usize) -> &'a [u8] + Sync + 'a>;

/// Return a function that reads the bytes of each row of an Arrow array.
fn texts<'a>(name: &str, array: &'a ArrayRef) -> Result<TextAt<'a>> {
    if array.null_count() > 0 {
        return Err(Error::invalid(format!(
            "{name} has {} nulls, which belong to no group; fill them first",
            array.null_count()
        )));
    }
    macro_rules! rows {
        ($array:expr) => {{
            let array = $array;
            Ok(Box::new(move |row| array.value(row).as_ref()))
        }};
    }
    match array.data_type() {
        DataType::Utf8 => rows!(array.as_string::<i32>()),
        DataType::LargeUtf8 => rows!(array.as_string::<i64>()),
        DataType::Utf8View => rows!(array.as_string_view()),
        DataType::Binary => rows!(array.as_binary::<i32>()),
        DataType::LargeBinary => rows!(array.as_binary::<i64>()),
        DataType::BinaryView => rows!(array.as_binary_view()),
        DataType::FixedSizeBinary(_) => rows!(array.as_fixed_size_binary()),
        other => Err(Error::invalid(format!("{name} has Arrow type {other}; keys are integers, strings or binary"))),
    }
}

/// Return a string from Python's memory, without a copy.
fn text<'a>(item: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    item.cast::<PyString>().ok()?.to_str().ok()
}

/// Encode one key of a list as bytes; the first byte distinguishes strings, bytes and integers.
fn item_bytes(name: &str, item: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let tagged = |tag: u8, bytes: &[u8]| [&[tag], bytes].concat();
    if let Ok(text) = item.cast::<PyString>() {
        Ok(tagged(0, text.extract::<Text>()?.named(name)?.as_bytes()))
    } else if let Ok(bytes) = item.cast::<PyBytes>() {
        Ok(tagged(1, bytes.as_bytes()))
    } else {
        item.extract::<i64>().map(|number| tagged(2, &number.to_le_bytes())).map_err(|_| not_keys(name, item))
    }
}

/// Return the error for an item that should be a string.
fn not_text(name: &str, row: usize, item: &Bound<'_, PyAny>) -> PyErr {
    let whole = item.extract::<Text>().and_then(|text| text.named(name));
    whole.err().filter(|_| item.is_instance_of::<PyString>()).unwrap_or_else(|| {
        let shown = item.repr().map_or_else(|_| "unprintable".to_owned(), |text| text.to_string());
        invalid(format!("{name}[{row}] is {shown}; give strings"))
    })
}

fn not_keys(name: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let kind = value.get_type().qualname().map_or_else(|_| "an unknown type".to_owned(), |name| name.to_string());
    invalid(format!(
        "{name} contains {kind}; give an integer array, an Arrow string array, or a list of str, bytes or int"
    ))
}

#[pyfunction]
fn pair<'py>(
    py: Python<'py>,
    first: PyReadonlyArray1<'py, u32>,
    second: PyReadonlyArray1<'py, u32>,
) -> PyResult<(Bound<'py, PyArray1<u32>>, u32)> {
    let (first, second) = (slice("first", &first)?, slice("second", &second)?);
    let made = run(py, first.len(), || keys::pair(first, second))?;
    Ok((PyArray1::from_vec(py, made.ids), made.count))
}

/// Ids and their validity, one pair per level.
type Levels<'py> = Vec<(Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<bool>>)>;

#[pyfunction]
fn history<'py>(
    py: Python<'py>,
    states: &Bound<'py, PyAny>,
    trajectories: &Bound<'py, PyAny>,
    groups: &Bound<'py, PyAny>,
    levels: Whole<usize>,
) -> PyResult<Levels<'py>> {
    let (states, levels) = (labels(py, states, "states")?, levels.named("levels")?);
    let trajectories = labels(py, trajectories, "trajectory_ids")?;
    let groups = labels(py, groups, "group_ids")?;
    let (states, groups) = (states.slice("states")?, groups.slice("group_ids")?);
    let trajectories = trajectories.slice("trajectory_ids")?;
    let made = run(py, states.len(), || keys::history(states, trajectories, groups, levels))?;
    let level = |level: keys::History| (PyArray1::from_vec(py, level.keys.ids), PyArray1::from_vec(py, level.valid));
    Ok(made.into_iter().map(level).collect())
}

#[pyfunction]
#[pyo3(signature = (texts, groups, threshold, sketch=None))]
fn similar<'py>(
    py: Python<'py>,
    texts: Vec<Bound<'py, PyAny>>,
    groups: PyReadonlyArray1<'py, u32>,
    threshold: f64,
    sketch: Option<(Whole<usize>, Whole<usize>, Whole<usize>)>,
) -> PyResult<Bound<'py, PyArray1<u32>>> {
    let groups = slice("groups", &groups)?;
    let similarity = match sketch {
        None => Similarity::Sequence,
        Some((words, hashes, bands)) => Similarity::Jaccard(Sketch {
            words: words.named("words")?,
            hashes: hashes.named("hashes")?,
            bands: bands.named("bands")?,
        }),
    };
    let read = |(row, item)| text(item).ok_or_else(|| not_text("texts", row, item));
    let texts = texts.iter().enumerate().map(read).collect::<PyResult<Vec<&str>>>()?;
    // Each character may be compared with every other one.
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    let made = run(py, bytes.saturating_mul(bytes), || keys::similar(&texts, groups, threshold, similarity))?;
    Ok(PyArray1::from_vec(py, made.ids))
}
