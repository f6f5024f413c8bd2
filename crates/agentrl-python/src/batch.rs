//! `Batch` for Python.

use std::collections::BTreeMap;

use agentrl_compute::pack::{Cost, Shards};
use agentrl_compute::weight::{Denominator, Shared};
use agentrl_data::batch::{self, JoinedDraws, Level, NewDraws, PackLayout, PlanOptions, TokenWeights};
use agentrl_data::schema;
use arrow_buffer::Buffer;
use numpy::{PyArray1, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods as _};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arrays::{Name, Text, Whole, blob_hash, slice, to_numbers, to_numpy};
use crate::enter::{held, interruptible, released};
use crate::error::{invalid, to_python};
use crate::pack::{ImageColumns, Plan, image_columns};
use crate::table::Table;
use crate::tree::Tree;

/// Tokens of all contexts; offsets of the contexts, their draws, their steps, and positions where the actions of steps
/// begin.
type ContextColumns<'py> = (Bound<'py, PyArray1<i32>>, [Bound<'py, PyArray1<i64>>; 4]);

/// Return the number of values per row of a two-dimensional array; `None` for another array.
fn width(name: &str, level: Level, values: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    let Some(array) = values.cast::<PyUntypedArray>().ok().filter(|array| array.ndim() == 2) else { return Ok(None) };
    if level != Level::NodeToken {
        let (rows, width) = (array.shape()[0], array.shape()[1]);
        return Err(invalid(format!(
            "column {name:?} has shape [{rows}, {width}] at level {:?}; only tokens of level \"node_token\" may have \
             several values",
            level.name()
        )));
    }
    Ok(Some(array.shape()[1]))
}

/// Immutable rollout data; methods that change it return a new batch.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct Batch(pub(crate) batch::Batch);

impl Batch {
    fn rows_of(&self, table: schema::Table) -> Table {
        self.0.table(table).clone().into()
    }

    fn computed(&self, level: Level) -> PyResult<Option<Table>> {
        held(|| Ok(self.0.computed_table(level)?.map(Table::from)))
    }
}

#[pymethods]
impl Batch {
    #[getter]
    fn nodes(&self) -> Table {
        self.rows_of(schema::Table::Nodes)
    }

    #[getter]
    fn steps(&self) -> Table {
        self.rows_of(schema::Table::Steps)
    }

    #[getter]
    fn trajectories(&self) -> Table {
        self.rows_of(schema::Table::Trajectories)
    }

    #[getter]
    fn draws(&self) -> Table {
        self.rows_of(schema::Table::Draws)
    }

    #[getter]
    fn tasks(&self) -> Table {
        self.rows_of(schema::Table::Tasks)
    }

    #[getter]
    fn decisions(&self) -> Table {
        self.rows_of(schema::Table::Decisions)
    }

    #[getter]
    fn reward_components(&self) -> PyResult<Option<Vec<String>>> {
        held(|| self.0.reward_components())
    }

    fn blob<'py>(&self, py: Python<'py>, sha256: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        held(|| self.0.blob(&blob_hash(sha256)?)).map(|content| PyBytes::new(py, &content))
    }

    /// Names and kinds of the facts of each level.
    #[getter]
    fn facts(&self) -> PyResult<BTreeMap<&'static str, BTreeMap<String, &'static str>>> {
        let facts = held(|| self.0.facts())?;
        let levels = [("step", facts.step), ("trajectory", facts.trajectory)];
        let named = levels.map(|(level, declared)| {
            (level, declared.into_iter().map(|(name, kind)| (name, kind.name())).collect::<BTreeMap<_, _>>())
        });
        Ok(named.into_iter().filter(|(_, declared)| !declared.is_empty()).collect())
    }

    #[getter]
    fn entropies(&self) -> Option<String> {
        self.0.entropies()
    }

    fn tree(&self, py: Python<'_>) -> PyResult<Tree> {
        released(py, || self.0.tree()).map(Tree)
    }

    #[getter]
    fn draw_columns(&self) -> PyResult<Option<Table>> {
        self.computed(Level::Draw)
    }

    #[getter]
    fn step_columns(&self) -> PyResult<Option<Table>> {
        self.computed(Level::Step)
    }

    #[getter]
    fn node_columns(&self) -> PyResult<Option<Table>> {
        self.computed(Level::NodeToken)
    }

    /// Return how the tokens of each stored node were sampled, and whether its path shows images, as arrays by name.
    fn sampled<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = released(py, || self.0.sampled())?;
        let columns = PyDict::new(py);
        columns.set_item("offsets", PyArray1::from_vec(py, found.offsets))?;
        columns.set_item("temperature", PyArray1::from_vec(py, found.temperature))?;
        columns.set_item("top_p", PyArray1::from_vec(py, found.top_p))?;
        columns.set_item("top_k", PyArray1::from_vec(py, found.top_k))?;
        columns.set_item("shows_images", PyArray1::from_vec(py, found.shows_images))?;
        Ok(columns)
    }

    #[getter]
    fn num_draws(&self) -> usize {
        self.0.num_draws()
    }

    #[getter]
    fn path_tokens(&self) -> usize {
        self.0.path_tokens()
    }

    fn level_len(&self, level: Name) -> PyResult<usize> {
        held(|| Ok(self.0.level_len(Level::from_name(&level)?)))
    }

    fn column<'py>(&self, py: Python<'py>, name: Text, level: Name) -> PyResult<Bound<'py, PyAny>> {
        let name = name.named("name")?;
        let (numbers, width) = released(py, || {
            let level = Level::from_name(&level)?;
            match self.0.wide_column(&name, level) {
                Some((numbers, width)) => Ok((numbers, Some(width))),
                None => Ok((self.0.column(&name, level)?, None)),
            }
        })?;
        let rows = to_numpy(py, numbers);
        width.map_or(Ok(rows.clone()), |width| rows.call_method1("reshape", (-1, width)))
    }

    fn keys<'py>(&self, py: Python<'py>, name: Text, level: Name) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let name = name.named("name")?;
        released(py, || self.0.keys(&name, Level::from_name(&level)?)).map(|keys| PyArray1::from_vec(py, keys))
    }

    fn texts(&self, py: Python<'_>, name: Text, level: Name) -> PyResult<Vec<String>> {
        let name = name.named("name")?;
        released(py, || self.0.texts(&name, Level::from_name(&level)?))
    }

    fn offsets<'py>(&self, py: Python<'py>, level: Name) -> PyResult<Bound<'py, PyArray1<i64>>> {
        held(|| self.0.offsets(Level::from_name(&level)?)).map(|offsets| PyArray1::from_slice(py, offsets))
    }

    fn contexts<'py>(&self, py: Python<'py>) -> PyResult<ContextColumns<'py>> {
        let found = released(py, || self.0.contexts())?;
        let columns = [found.offsets, found.draws, found.steps, found.begins];
        Ok((PyArray1::from_vec(py, found.tokens), columns.map(|column| PyArray1::from_vec(py, column))))
    }

    /// Return the images of all contexts: SHA-256 of each image; for each use, the position in the context tokens and
    /// the index of its image.
    fn images_of_contexts<'py>(&self, py: Python<'py>) -> PyResult<ImageColumns<'py>> {
        Ok(image_columns(py, released(py, || self.0.images_of_contexts())?))
    }

    fn has(&self, name: Text, level: Name) -> PyResult<bool> {
        let name = name.named("name")?;
        held(|| Ok(self.0.has(&name, Level::from_name(&level)?)))
    }

    #[pyo3(signature = (level, **columns))]
    fn with_columns(&self, level: Name, columns: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let level = Level::from_name(&level).map_err(to_python)?;
        let mut batch = self.0.clone();
        for (name, values) in columns.into_iter().flatten() {
            let name = name.extract::<Text>()?.named("the name of a column")?;
            let Some(width) = width(&name, level, &values)? else {
                let values = to_numbers(&name, &values)?;
                batch = held(|| batch.with_column(&name, level, values))?;
                continue;
            };
            let values = to_numbers(&name, &values.call_method1("reshape", (-1,))?)?;
            batch = held(|| batch.with_wide_column(&name, width, values))?;
        }
        Ok(Self(batch))
    }

    #[getter]
    fn state(&self) -> &str {
        self.0.state()
    }

    fn with_state(&self, state: &str) -> Self {
        Self(self.0.with_state(state))
    }

    fn with_old_logprobs(&self, codes: PyReadonlyArray1<'_, u8>) -> PyResult<Self> {
        let codes = slice("codes", &codes)?;
        held(|| self.0.with_old_logprobs(codes).map(Self))
    }

    fn with_source(&self, recipe: Text, options: Text) -> PyResult<Self> {
        let (recipe, options) = (recipe.named("recipe")?, options.named("options")?);
        let version = env!("CARGO_PKG_VERSION");
        Ok(Self(self.0.with_source("recipe", &recipe).with_source("options", &options).with_source("version", version)))
    }

    fn select_draws(&self, py: Python<'_>, indices: PyReadonlyArray1<'_, i64>) -> PyResult<Self> {
        let indices = slice("indices", &indices)?;
        released(py, || self.0.select_draws(indices)).map(Self)
    }

    #[pyo3(signature = (draws, *, denominator, constant=None, shared="each".into(), valid=None, keep=None))]
    #[expect(clippy::too_many_arguments, reason = "options by name")]
    fn token_weights<'py>(
        &self,
        py: Python<'py>,
        draws: PyReadonlyArray1<'py, i64>,
        denominator: Name,
        constant: Option<f64>,
        shared: Name,
        valid: Option<PyReadonlyArray1<'py, bool>>,
        keep: Option<PyReadonlyArray1<'py, bool>>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let draws = slice("draws", &draws)?;
        let valid = valid.as_ref().map(|valid| slice("valid", valid)).transpose()?;
        let keep = keep.as_ref().map(|keep| slice("keep", keep)).transpose()?;
        let weights = released(py, || {
            let denominator = Denominator::from_name(&denominator, constant)?;
            let shared = Shared::from_name(&shared)?;
            self.0.token_weights(&TokenWeights { draws, denominator, shared, valid, keep })
        })?;
        Ok(PyArray1::from_vec(py, weights))
    }

    #[pyo3(signature = (draws, max_tokens, *, layout="sequence".into(), unit_of=None, trained=None, fold=None, shards=None, balance="tokens".into()))]
    #[expect(clippy::too_many_arguments, reason = "options by name")]
    fn plan(
        &self,
        py: Python<'_>,
        draws: PyReadonlyArray1<'_, i64>,
        max_tokens: Whole<usize>,
        layout: Name,
        unit_of: Option<PyReadonlyArray1<'_, i64>>,
        trained: Option<PyReadonlyArray1<'_, bool>>,
        fold: Option<Vec<PyReadonlyArray1<'_, f32>>>,
        shards: Option<Whole<usize>>,
        balance: Name,
    ) -> PyResult<Plan> {
        let max_tokens = max_tokens.named("max_tokens")?;
        let ranks = shards.map(|shards| shards.named("shards")).transpose()?;
        let draws = slice("draws", &draws)?;
        let unit_of = unit_of.as_ref().map(|units| slice("unit_of", units)).transpose()?;
        let trained = trained.as_ref().map(|trained| slice("trained", trained)).transpose()?;
        let columns = fold.iter().flatten().map(|column| slice("fold", column)).collect::<PyResult<Vec<_>>>()?;
        let fold = fold.is_some().then_some(&columns[..]);
        released(py, || {
            let balance = Cost::from_name(&balance)?;
            self.0.plan(&PlanOptions {
                draws,
                max_tokens,
                layout: PackLayout::from_name(&layout)?,
                unit_of,
                trained,
                fold,
                shards: ranks.map(|ranks| Shards { ranks, balance }),
            })
        })
        .map(Plan)
    }

    #[pyo3(signature = (trajectory_ids, *, group_ids, source, probability, old_logprob, reason, iteration))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn draw(
        &self,
        py: Python<'_>,
        trajectory_ids: PyReadonlyArray1<'_, i64>,
        group_ids: Option<PyReadonlyArray1<'_, i64>>,
        source: Name,
        probability: Option<PyReadonlyArray1<'_, f64>>,
        old_logprob: Name,
        reason: Option<Text>,
        iteration: Option<Whole<i64>>,
    ) -> PyResult<Self> {
        let reason = reason.map(|reason| reason.named("reason")).transpose()?;
        let new = NewDraws {
            trajectory_ids: slice("trajectory_ids", &trajectory_ids)?,
            group_ids: group_ids.as_ref().map(|ids| slice("group_ids", ids)).transpose()?,
            source: &source,
            probability: probability.as_ref().map(|values| slice("probability", values)).transpose()?,
            old_logprob: &old_logprob,
            reason: reason.as_deref(),
            iteration: iteration.map(|iteration| iteration.named("iteration")).transpose()?,
        };
        released(py, || self.0.draw(&new)).map(Self)
    }

    #[pyo3(signature = (stored, trajectory_ids, *, votes_in, new_group, replaces, votes, trained, source, old_logprob, probability, reason, columns))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn join(
        &self,
        py: Python<'_>,
        stored: PyRef<'_, Self>,
        trajectory_ids: PyReadonlyArray1<'_, i64>,
        votes_in: PyReadonlyArray1<'_, i64>,
        new_group: PyReadonlyArray1<'_, i32>,
        replaces: PyReadonlyArray1<'_, i64>,
        votes: PyReadonlyArray1<'_, bool>,
        trained: PyReadonlyArray1<'_, bool>,
        source: PyReadonlyArray1<'_, u8>,
        old_logprob: PyReadonlyArray1<'_, u8>,
        probability: PyReadonlyArray1<'_, f64>,
        reason: Vec<Text>,
        columns: Vec<(String, Bound<'_, PyAny>)>,
    ) -> PyResult<Self> {
        let reason = reason.into_iter().map(|text| text.named("reason")).collect::<PyResult<Vec<_>>>()?;
        let columns = columns.into_iter().map(|(name, values)| {
            let values = to_numbers(&name, &values)?;
            Ok((name, values))
        });
        let columns = columns.collect::<PyResult<Vec<_>>>()?;
        let new = JoinedDraws {
            trajectory_ids: slice("trajectory_ids", &trajectory_ids)?,
            votes_in: slice("votes_in", &votes_in)?,
            new_group: slice("new_group", &new_group)?,
            replaces: slice("replaces", &replaces)?,
            votes: slice("votes", &votes)?,
            trained: slice("trained", &trained)?,
            source: slice("source", &source)?,
            old_logprob: slice("old_logprob", &old_logprob)?,
            probability: slice("probability", &probability)?,
            reason: &reason,
            columns: &columns,
        };
        let stored = stored.0.clone();
        released(py, || self.0.join(&stored, &new)).map(Self)
    }

    #[staticmethod]
    fn concat(py: Python<'_>, parts: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        let parts: Vec<batch::Batch> = parts.iter().map(|part| part.0.clone()).collect();
        interruptible(py, |check| batch::Batch::concat_with(&parts, check)).map(Self)
    }

    /// Return the batch with the rows of `tasks` that it changes, and a batch with the whole table after these changes.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 makes the map for this call")]
    fn advance_tasks(&self, previous: PyRef<'_, Self>, domains: BTreeMap<String, String>) -> PyResult<(Self, Self)> {
        held(|| {
            let (changed, all) = agentrl_data::advance_tasks(previous.0.tasks(), &self.0, &domains)?;
            Ok((Self(self.0.with_tasks(changed)?), Self(batch::Batch::empty()?.with_tasks(all)?)))
        })
    }

    #[staticmethod]
    fn empty() -> PyResult<Self> {
        held(batch::Batch::empty).map(Self)
    }

    /// Return the parts as uint8 arrays, whose memory pickle can send without a copy.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyArray1<u8>>>> {
        let parts = interruptible(py, |check| self.0.to_bytes_with(check))?;
        Ok(parts.into_iter().map(|part| PyArray1::from_vec(py, part)).collect())
    }

    #[staticmethod]
    fn from_bytes(py: Python<'_>, parts: Vec<PyReadonlyArray1<'_, u8>>) -> PyResult<Self> {
        let parts = parts.iter().map(|part| slice("part", part)).collect::<PyResult<Vec<_>>>()?;
        interruptible(py, |check| {
            let parts: Vec<Buffer> = parts.into_iter().map(Buffer::from).collect();
            batch::Batch::from_bytes_with(&parts, check)
        })
        .map(Self)
    }
}
