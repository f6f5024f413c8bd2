//! Append columns of turns, chats and nodes to a `Forest`.

use std::collections::BTreeMap;

use agentrl_compute::ragged::Ragged;
use agentrl_data::facts::FactColumns;
use agentrl_data::forest::{BlobHash, Handle, Role, Rows, Sampling, Turns};
use agentrl_data::schema::Kind;
use agentrl_data::token_columns::TokenRows;
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyList};

use crate::arrays::{Number, Text, Whole, blob_hash, slice, token_rows, unusable};
use crate::enter::interruptible;
use crate::error::{invalid, to_python};
use crate::facts;
use crate::forest::Forest;
use crate::lists::{Item, Lists};

type Scalars<'py, T> = Option<PyReadonlyArray1<'py, T>>;

/// The columns of [`Rows`], in Python's memory.
struct Columns<'py> {
    trajectories: PyReadonlyArray1<'py, i64>,
    tokens: Lists<'py, i32>,
    logprobs: Option<Lists<'py, f32>>,
    entropies: Option<Lists<'py, f32>>,
    trainable: Option<Lists<'py, u8>>,
    state: Option<Lists<'py, u8>>,
    policy: Scalars<'py, i32>,
    policy_version: Scalars<'py, i64>,
    seed: Scalars<'py, i64>,
    sampling: Option<Sampling>,
    finish_reason: Scalars<'py, u8>,
    reward: Scalars<'py, f32>,
    rewards: Option<Lists<'py, f32>>,
    terminated: Scalars<'py, u8>,
    truncated: Scalars<'py, u8>,
    flags: Scalars<'py, u32>,
    facts: Option<FactColumns>,
    wide: Option<Vec<BTreeMap<String, TokenRows>>>,
}

fn missing(name: &str) -> PyErr {
    invalid(format!("{name} is missing; give one row for each trajectory"))
}

fn lists<'py, T: Item>(columns: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<Lists<'py, T>>> {
    columns.get_item(name)?.map(|value| Lists::read(name, &value)).transpose()
}

fn scalars<'py, T: Element>(columns: &Bound<'py, PyDict>, name: &str) -> PyResult<Scalars<'py, T>> {
    let read = |value: Bound<'py, PyAny>| {
        value.extract().map_err(|_| {
            let dtype = T::get_dtype(value.py());
            unusable(name, &value, &format!("a one-dimensional array of {dtype}"))
        })
    };
    columns.get_item(name)?.map(read).transpose()
}

/// Read token columns of all rows: for each name a list that has, per row, what `Forest.append` takes, or None.
fn token_columns(value: &Bound<'_, PyAny>) -> PyResult<Vec<BTreeMap<String, TokenRows>>> {
    let mut found = Vec::new();
    for (name, rows) in value.cast::<PyDict>()? {
        let name = name.extract::<Text>()?.named("the name of a column")?;
        let rows = rows.cast_into::<PyList>()?;
        found.resize_with(rows.len(), BTreeMap::new);
        for (row, (given, of_row)) in rows.iter().zip(&mut found).enumerate() {
            if !given.is_none() {
                of_row.insert(name.clone(), token_rows(&format!("columns[{name:?}][{row}]"), &given)?);
            }
        }
    }
    Ok(found)
}

impl<'py> Columns<'py> {
    fn read(columns: &Bound<'py, PyDict>, tokens: &str) -> PyResult<Self> {
        let sampling: Option<(Number, Number, Whole<i32>)> =
            columns.get_item("sampling")?.map(|value| value.extract()).transpose()?;
        Ok(Self {
            trajectories: scalars(columns, "trajectories")?.ok_or_else(|| missing("trajectories"))?,
            tokens: lists(columns, tokens)?.ok_or_else(|| missing(tokens))?,
            logprobs: lists(columns, "logprobs")?,
            entropies: lists(columns, "entropies")?,
            trainable: lists(columns, "trainable")?,
            state: lists(columns, "state")?,
            policy: scalars(columns, "policy")?,
            policy_version: scalars(columns, "policy_version")?,
            seed: scalars(columns, "seed")?,
            sampling: sampling
                .map(|(temperature, top_p, top_k)| {
                    Ok::<_, PyErr>(Sampling {
                        temperature: temperature.narrow(),
                        top_p: top_p.narrow(),
                        top_k: top_k.named("top_k")?,
                    })
                })
                .transpose()?,
            finish_reason: scalars(columns, "finish_reason")?,
            reward: scalars(columns, "reward")?,
            rewards: lists(columns, "rewards")?,
            terminated: scalars(columns, "terminated")?,
            truncated: scalars(columns, "truncated")?,
            flags: scalars(columns, "flags")?,
            facts: columns.get_item("facts")?.map(|value| facts::columns(&value)).transpose()?,
            wide: columns.get_item("columns")?.map(|value| token_columns(&value)).transpose()?,
        })
    }

    fn rows(&self, tokens: &str) -> PyResult<Rows<'_>> {
        fn flat<'a, T: Element>(name: &str, values: &'a Scalars<'_, T>) -> PyResult<Option<&'a [T]>> {
            values.as_ref().map(|values| slice(name, values)).transpose()
        }
        macro_rules! ragged {
            ($name:ident) => {
                self.$name.as_ref().map(|rows| rows.rows(stringify!($name))).transpose()?
            };
        }
        macro_rules! flat {
            ($name:ident) => {
                flat(stringify!($name), &self.$name)?
            };
        }
        Ok(Rows {
            logprobs: ragged!(logprobs),
            entropies: ragged!(entropies),
            trainable: ragged!(trainable),
            state: ragged!(state),
            policy: flat!(policy),
            policy_version: flat!(policy_version),
            seed: flat!(seed),
            sampling: self.sampling,
            finish_reason: flat!(finish_reason),
            reward: flat!(reward),
            rewards: ragged!(rewards),
            terminated: flat!(terminated),
            truncated: flat!(truncated),
            flags: flat!(flags),
            facts: self.facts.as_ref(),
            columns: self.wide.as_deref(),
            ..Rows::new(slice("trajectories", &self.trajectories)?, self.tokens.rows(tokens)?)
        })
    }
}

type Ints<'py, T> = Bound<'py, PyArray1<T>>;

/// Read rows of image hashes: all hashes, and the offsets of the rows.
fn images(columns: &Bound<'_, PyDict>) -> PyResult<Option<(Vec<BlobHash>, Vec<i64>)>> {
    let Some(given) = columns.get_item("images")? else { return Ok(None) };
    let rows: Vec<Vec<PyBackedBytes>> = given.extract().map_err(|_| {
        let shown: String =
            given.repr().map_or_else(|_| String::new(), |text| text.to_string().chars().take(80).collect());
        invalid(format!("images is {shown}; give a list for each turn, with the SHA-256 of each image as bytes"))
    })?;
    let hashes = rows.iter().flatten().map(|hash| blob_hash(hash)).collect::<Result<_, _>>().map_err(to_python)?;
    let ends = rows.iter().scan(0, |end, row| {
        *end += row.len() as i64;
        Some(*end)
    });
    Ok(Some((hashes, std::iter::once(0).chain(ends).collect())))
}

/// Append turns as an engine recorded them. Returns one value per turn: the node of the action (int64), the drift
/// (uint8), and the first token that differs (int32).
#[pyfunction]
pub(crate) fn ingest<'py>(
    py: Python<'py>,
    forest: &Bound<'py, Forest>,
    columns: &Bound<'py, PyDict>,
    realign: Whole<usize>,
) -> PyResult<(Ints<'py, i64>, Ints<'py, u8>, Ints<'py, i32>)> {
    let realign = realign.named("realign")?;
    let held = Columns::read(columns, "outputs")?;
    let prompts = lists(columns, "prompts")?.ok_or_else(|| missing("prompts"))?;
    let vocabulary = lists(columns, "vocabulary")?;
    let vocabulary = vocabulary.as_ref().map(|texts: &Lists<'_, u8>| texts.rows("vocabulary")).transpose()?;
    let known: Scalars<'py, i64> = scalars(columns, "known")?;
    let known = known.as_ref().map(|values| slice("known", values)).transpose()?;
    let (outputs, prompts) = (held.rows("outputs")?, prompts.rows("prompts")?);
    let images = images(columns)?;
    let images = match &images {
        Some((hashes, offsets)) => Some(Ragged::new(hashes, offsets).map_err(to_python)?),
        None => None,
    };
    let turns = Turns { outputs, prompts, known, images, realign, vocabulary };
    let forest = forest.get();
    let made = interruptible(py, |check| forest.0.detached()?.ingest(&turns, check))?;
    Ok((PyArray1::from_vec(py, made.nodes), PyArray1::from_vec(py, made.drift), PyArray1::from_vec(py, made.drift_at)))
}

/// Append one node per row and return the nodes (int64). `kinds` are codes of `nodes.kind`; any other code is context
/// given to the policy.
#[pyfunction]
pub(crate) fn append_many<'py>(
    py: Python<'py>,
    forest: &Bound<'py, Forest>,
    columns: &Bound<'py, PyDict>,
    kinds: PyReadonlyArray1<'py, u8>,
) -> PyResult<Ints<'py, Handle>> {
    let held = Columns::read(columns, "tokens")?;
    let rows = held.rows("tokens")?;
    let roles = slice("kinds", &kinds)?;
    let roles: Vec<Role> = roles.iter().map(|&code| Kind::from_code(code).map_or(Role::Context, Role::Kind)).collect();
    let forest = forest.get();
    let nodes = interruptible(py, |check| forest.0.detached()?.append_rows(&rows, &roles, check))?;
    Ok(PyArray1::from_vec(py, nodes))
}

/// Append one chat per row and return the nodes (int64); column `sampled` is 1 where a token was sampled.
#[pyfunction]
pub(crate) fn append_chats<'py>(
    py: Python<'py>,
    forest: &Bound<'py, Forest>,
    columns: &Bound<'py, PyDict>,
) -> PyResult<Ints<'py, Handle>> {
    let held = Columns::read(columns, "tokens")?;
    let sampled: Lists<'_, u8> = lists(columns, "sampled")?.ok_or_else(|| missing("sampled"))?;
    let (rows, sampled) = (held.rows("tokens")?, sampled.rows("sampled")?);
    let forest = forest.get();
    let nodes = interruptible(py, |check| forest.0.detached()?.append_chats(&rows, sampled, check))?;
    Ok(PyArray1::from_vec(py, nodes))
}
