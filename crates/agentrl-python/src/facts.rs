//! Facts of the environment: conversion from Python.

use std::fmt::Write as _;

use agentrl_data::facts::{Declared, Fact, FactColumn, FactColumns, FactKind, FactValues, Facts};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::arrays::{Text, slice};
use crate::error::{invalid, to_python};

fn mapping<'a, 'py>(what: &str, value: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyDict>> {
    let kind = value.get_type().name().map_or_else(|_| "an unknown type".to_owned(), |name| name.to_string());
    value.cast::<PyDict>().map_err(|_| invalid(format!("{what} is of type {kind}; give a dict of facts by name")))
}

/// Read the declared facts: `{"step": {name: kind}, "trajectory": {name: kind}}`.
pub(crate) fn declared(value: &Bound<'_, PyAny>) -> PyResult<Facts> {
    let (mut step, mut trajectory) = (Declared::new(), Declared::new());
    for (level, names) in mapping("facts", value)? {
        let level = level.extract::<Text>()?.named("a level of facts")?;
        let declared = match level.as_str() {
            "step" => &mut step,
            "trajectory" => &mut trajectory,
            other => {
                return Err(invalid(format!("facts has level {other:?}; use \"step\" or \"trajectory\"")));
            }
        };
        for (name, kind) in mapping(&format!("facts[{level:?}]"), &names)? {
            let name = name.extract::<Text>()?.named("a name of facts")?;
            let kind = kind.extract::<Text>()?.named("a kind of facts")?;
            let kind = FactKind::from_name(&kind).map_err(|error| invalid(format!("facts[{name:?}]: {error}")))?;
            declared.insert(name, kind);
        }
    }
    Facts::new(step, trajectory).map_err(to_python)
}

/// Read a key: a string as it is, bytes as hexadecimal digits. `None` for any other type.
fn key(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Option<String>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Some(bytes.as_bytes().iter().fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            _ = write!(text, "{byte:02x}");
            text
        })));
    }
    if value.is_instance_of::<PyString>() {
        return value.extract::<Text>()?.named(what).map(Some);
    }
    Ok(None)
}

/// Read the facts of one step or trajectory; a value of None is left out.
pub(crate) fn values(value: Option<&Bound<'_, PyAny>>) -> PyResult<FactValues> {
    let mut values = FactValues::new();
    let Some(value) = value else { return Ok(values) };
    for (name, value) in mapping("facts", value)? {
        if value.is_none() {
            continue;
        }
        let name = name.extract::<Text>()?.named("a name of facts")?;
        let what = format!("facts[{name:?}]");
        let fact = match key(&value, &what)? {
            Some(key) => Fact::Key(key),
            None => Fact::Number(value.extract::<f64>().map_err(|_| {
                let kind =
                    value.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
                invalid(format!("{what} is of type {kind}; give a number, a text or bytes"))
            })? as f32),
        };
        values.insert(name, fact);
    }
    Ok(values)
}

/// Read facts of many rows: arrays of numbers (`float32`, NaN: missing) and lists of keys (None: missing).
pub(crate) fn columns(value: &Bound<'_, PyAny>) -> PyResult<FactColumns> {
    let mut columns = FactColumns::new();
    for (name, value) in mapping("facts", value)? {
        let name = name.extract::<Text>()?.named("a name of facts")?;
        let column = if let Ok(numbers) = value.extract::<PyReadonlyArray1<'_, f32>>() {
            FactColumn::Numbers(slice(&name, &numbers)?.to_vec())
        } else {
            let mut keys = Vec::new();
            for (row, value) in value.try_iter()?.enumerate() {
                let (value, what) = (value?, format!("facts[{name:?}][{row}]"));
                let read = key(&value, &what)?;
                if read.is_none() && !value.is_none() {
                    return Err(invalid(format!(
                        "{what} is {:.80}; give str, bytes or None in a column of keys",
                        value.repr().map_or_else(|_| "not a key".to_owned(), |text| text.to_string())
                    )));
                }
                keys.push(read);
            }
            FactColumn::Keys(keys)
        };
        columns.insert(name, column);
    }
    Ok(columns)
}
