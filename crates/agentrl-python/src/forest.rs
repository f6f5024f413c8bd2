//! `Forest` for Python.

use std::collections::BTreeMap;

use agentrl_data::Result;
use agentrl_data::forest::{self, Decision, Finish, Fork, NewNode, Sampling, Start, StepOutcome};
use agentrl_data::schema::{FinishReason, Kind, Operation, Origin, Role, Source, Status};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arrays::{Name, Number, Text, Whole, floats, mask, token_rows, tokens};
use crate::batch::Batch;
use crate::enter::{held, interruptible};
use crate::error::{invalid, to_python};
use crate::facts;
use crate::fork_safe_lock::Shared;
use crate::tree::{Tree, frontier_columns};

/// Rollout data while it is collected. Safe to use from several threads.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct Forest(pub(crate) Shared<forest::Forest>);

impl Forest {
    /// Run small work on the forest.
    fn with<T>(&self, py: Python<'_>, work: impl FnOnce(&mut forest::Forest) -> Result<T>) -> PyResult<T> {
        let mut forest = self.0.attached(py).map_err(to_python)?;
        held(|| work(&mut forest))
    }
}

fn optional<T: crate::arrays::Bounded>(name: &str, value: Option<Whole<T>>) -> PyResult<Option<T>> {
    value.map(|value| value.named(name)).transpose()
}

/// Convert a reward and its components to f32, the type of their columns.
fn paid(reward: Option<Number>, rewards: Option<Vec<Number>>) -> (Option<f32>, Option<Vec<f32>>) {
    (reward.map(Number::narrow), rewards.map(|rewards| rewards.into_iter().map(Number::narrow).collect()))
}

fn named<T>(name: Option<&str>, from_name: impl Fn(&str) -> Result<T>) -> PyResult<Option<T>> {
    name.map(from_name).transpose().map_err(to_python)
}

fn hashes(blobs: Option<Vec<Vec<u8>>>) -> PyResult<Vec<[u8; 32]>> {
    let hash = |(index, blob): (usize, Vec<u8>)| {
        let found = blob.len();
        let wrong = |_| invalid(format!("blobs[{index}] has {found} bytes; give the 32 bytes that add_blob returned"));
        <[u8; 32]>::try_from(blob).map_err(wrong)
    };
    blobs.unwrap_or_default().into_iter().enumerate().map(hash).collect()
}

#[pymethods]
impl Forest {
    #[new]
    #[pyo3(signature = (*, iteration=0.into(), seed=0.into(), reward_components=None, entropies="exact".into(),
        facts=None, max_blob_bytes=None))]
    fn new(
        iteration: Whole<i64>,
        seed: Whole<u64>,
        reward_components: Option<Vec<Text>>,
        entropies: Text,
        facts: Option<&Bound<'_, PyAny>>,
        max_blob_bytes: Option<Whole<usize>>,
    ) -> PyResult<Self> {
        let mut forest = forest::Forest::new(iteration.named("iteration")?, seed.named("seed")?)
            .with_entropies(&entropies.named("entropies")?);
        let mut components = Vec::new();
        if let Some(names) = reward_components {
            let names = names.into_iter().map(|name| name.named("reward_components"));
            components = names.collect::<PyResult<Vec<_>>>()?;
            forest = forest.with_reward_components(components.clone());
        }
        if let Some(facts) = facts {
            let facts = facts::declared(facts)?;
            facts.check_components(&components).map_err(to_python)?;
            forest = forest.with_facts(facts);
        }
        if let Some(limit) = optional("max_blob_bytes", max_blob_bytes)? {
            forest = forest.with_max_blob_bytes(limit);
        }
        Ok(Self(Shared::new("Forest", forest)))
    }

    #[pyo3(signature = (group, task_id, *, key=None))]
    fn add_group(
        &self,
        py: Python<'_>,
        group: Whole<u32>,
        task_id: Text,
        key: Option<Vec<Whole<u64>>>,
    ) -> PyResult<()> {
        let (group, task_id) = (group.named("group")?, task_id.named("task_id")?);
        let key =
            key.map(|key| key.into_iter().map(|word| word.named("key")).collect::<PyResult<Vec<u64>>>()).transpose()?;
        self.with(py, |forest| match &key {
            Some(key) => forest.add_group_as(group, &task_id, key),
            None => forest.add_group(group, &task_id),
        })
    }

    fn add_blob<'py>(&self, py: Python<'py>, blob: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let hash = self.with(py, |forest| forest.add_blob(blob))?;
        Ok(PyBytes::new(py, &hash))
    }

    #[pyo3(signature = (group, member, *, agent=0.into(), episode=None, parent=None, origin=None, role="member".into()))]
    #[expect(clippy::too_many_arguments, reason = "what a trajectory is, all by name")]
    fn start(
        &self,
        py: Python<'_>,
        group: Whole<u32>,
        member: Whole<u32>,
        agent: Whole<i32>,
        episode: Option<Whole<i64>>,
        parent: Option<Whole<i64>>,
        origin: Option<Name>,
        role: Name,
    ) -> PyResult<i64> {
        let group = group.named("group")?;
        let start = Start {
            member: member.named("member")?,
            agent: agent.named("agent")?,
            episode: optional("episode", episode)?,
            parent: optional("parent", parent)?,
            origin: named(origin.as_deref(), Origin::from_name)?,
            role: Role::from_name(&role).map_err(to_python)?,
        };
        self.with(py, |forest| forest.start_as(group, &start))
    }

    #[pyo3(signature = (group, batch, trajectory_id, *, source=None))]
    fn adopt(
        &self,
        py: Python<'_>,
        group: Whole<u32>,
        batch: PyRef<'_, Batch>,
        trajectory_id: Whole<i64>,
        source: Option<Name>,
    ) -> PyResult<i64> {
        let (group, id) = (group.named("group")?, trajectory_id.named("trajectory_id")?);
        let source = named(source.as_deref(), Source::from_name)?;
        self.with(py, |forest| forest.adopt(group, &batch.0, id, source))
    }

    #[pyo3(signature = (trajectory, tokens, *, kind, logprobs=None, entropies=None, trainable=None, state=None, policy=0.into(),
        policy_version=None, seed=None, temperature=None, top_p=1.0.into(), top_k=0.into(), finish_reason=None, origin=None,
        blobs=None, columns=None))]
    #[expect(clippy::too_many_arguments, reason = "the columns of a node, all by name")]
    fn append(
        &self,
        py: Python<'_>,
        trajectory: Whole<i64>,
        tokens: Bound<'_, PyAny>,
        kind: Name,
        logprobs: Option<Bound<'_, PyAny>>,
        entropies: Option<Bound<'_, PyAny>>,
        trainable: Option<Bound<'_, PyAny>>,
        state: Option<Vec<u8>>,
        policy: Whole<i32>,
        policy_version: Option<Whole<i64>>,
        seed: Option<Whole<i64>>,
        temperature: Option<Number>,
        top_p: Number,
        top_k: Whole<i32>,
        finish_reason: Option<Name>,
        origin: Option<Whole<i64>>,
        blobs: Option<Vec<Vec<u8>>>,
        columns: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<i64> {
        let trajectory = trajectory.named("trajectory")?;
        let rows = columns.into_iter().flatten().map(|(name, rows)| {
            let name = name.extract::<Text>()?.named("the name of a column")?;
            let rows = token_rows(&format!("columns[{name:?}]"), &rows)?;
            Ok((name, rows))
        });
        let rows = rows.collect::<PyResult<BTreeMap<_, _>>>()?;
        let top_k = top_k.named("top_k")?;
        let node = NewNode {
            logprobs: logprobs.map(|value| floats("logprobs", &value)).transpose()?,
            entropies: entropies.map(|value| floats("entropies", &value)).transpose()?,
            trainable: trainable.map(|value| mask("trainable", &value)).transpose()?,
            state,
            policy: policy.named("policy")?,
            policy_version: optional("policy_version", policy_version)?,
            seed: optional("seed", seed)?,
            sampling: temperature.map(|temperature| Sampling {
                temperature: temperature.narrow(),
                top_p: top_p.narrow(),
                top_k,
            }),
            finish_reason: named(finish_reason.as_deref(), FinishReason::from_name)?.unwrap_or_default(),
            origin: optional("origin", origin)?,
            blobs: hashes(blobs)?,
            ..NewNode::new(Kind::from_name(&kind).map_err(to_python)?, self::tokens("tokens", &tokens)?)
        };
        self.with(py, |forest| forest.append_with(trajectory, node, &rows))
    }

    /// Raise an error if no forest can store this action.
    #[staticmethod]
    #[pyo3(signature = (tokens, *, logprobs, entropies=None))]
    fn check_action(
        tokens: &Bound<'_, PyAny>,
        logprobs: &Bound<'_, PyAny>,
        entropies: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let action = NewNode {
            entropies: entropies.map(|value| floats("entropies", value)).transpose()?,
            ..NewNode::action(self::tokens("tokens", tokens)?, floats("logprobs", logprobs)?)
        };
        action.check().map_err(to_python)
    }

    #[pyo3(signature = (trajectory, *, reward=None, rewards=None, terminated=false, truncated=false, flags=0.into(),
        facts=None))]
    #[expect(clippy::too_many_arguments, reason = "the columns of a step, all by name")]
    fn step(
        &self,
        py: Python<'_>,
        trajectory: Whole<i64>,
        reward: Option<Number>,
        rewards: Option<Vec<Number>>,
        terminated: bool,
        truncated: bool,
        flags: Whole<u32>,
        facts: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let facts = facts::values(facts)?;
        let (trajectory, flags) = (trajectory.named("trajectory")?, flags.named("flags")?);
        let (reward, rewards) = paid(reward, rewards);
        let outcome = StepOutcome { reward, rewards, terminated, truncated, flags, facts, ..StepOutcome::default() };
        self.with(py, |forest| forest.step(trajectory, &outcome))
    }

    #[pyo3(signature = (trajectory, *, node=None, end=None, count=1.into(), ordinal=None, train_prefix=true, episode=None))]
    #[expect(clippy::too_many_arguments, reason = "where and how to fork, all by name")]
    fn fork(
        &self,
        py: Python<'_>,
        trajectory: Whole<i64>,
        node: Option<Whole<i64>>,
        end: Option<Whole<u32>>,
        count: Whole<u32>,
        ordinal: Option<Whole<u32>>,
        train_prefix: bool,
        episode: Option<Whole<i64>>,
    ) -> PyResult<Vec<i64>> {
        let (trajectory, count) = (trajectory.named("trajectory")?, count.named("count")?);
        let (node, end, ordinal) = (optional("node", node)?, optional("end", end)?, optional("ordinal", ordinal)?);
        let episode = optional("episode", episode)?;
        self.with(py, |forest| forest.fork_many(trajectory, node, end, &Fork { count, ordinal, train_prefix, episode }))
    }

    #[expect(clippy::too_many_arguments, reason = "two places of two trajectories")]
    fn splice(
        &self,
        py: Python<'_>,
        prefix: Whole<i64>,
        node: Option<Whole<i64>>,
        end: Option<Whole<u32>>,
        suffix: Whole<i64>,
        from_node: Whole<i64>,
        start: Whole<u32>,
    ) -> PyResult<i64> {
        let (prefix, suffix) = (prefix.named("prefix")?, suffix.named("suffix")?);
        let (at, from) =
            ((optional("node", node)?, optional("end", end)?), (from_node.named("from_node")?, start.named("start")?));
        self.with(py, |forest| forest.splice(prefix, at, suffix, from))
    }

    fn under(
        &self,
        py: Python<'_>,
        trajectory: Whole<i64>,
        tokens: Bound<'_, PyAny>,
        blobs: Option<Vec<Vec<u8>>>,
        state: Option<Vec<u8>>,
    ) -> PyResult<i64> {
        let trajectory = trajectory.named("trajectory")?;
        let (tokens, blobs) = (self::tokens("tokens", &tokens)?, hashes(blobs)?);
        self.with(py, |forest| forest.with_prompt(trajectory, tokens, blobs, state.as_deref()))
    }

    fn rollback(
        &self,
        py: Python<'_>,
        trajectory: Whole<i64>,
        node: Whole<i64>,
        end: Option<Whole<u32>>,
    ) -> PyResult<i64> {
        let (trajectory, node) = (trajectory.named("trajectory")?, node.named("node")?);
        let end = optional("end", end)?;
        self.with(py, |forest| forest.rollback(trajectory, node, end))
    }

    fn replace(&self, py: Python<'_>, trajectory: Whole<i64>, by: Whole<i64>) -> PyResult<()> {
        let (trajectory, by) = (trajectory.named("trajectory")?, by.named("by")?);
        self.with(py, |forest| forest.replace(trajectory, by))
    }

    fn rewrite(
        &self,
        py: Python<'_>,
        trajectory: Whole<i64>,
        tokens: Bound<'_, PyAny>,
        images: Vec<(u32, Vec<u8>)>,
        state: Option<Vec<u8>>,
    ) -> PyResult<u32> {
        let trajectory = trajectory.named("trajectory")?;
        let tokens = self::tokens("tokens", &tokens)?;
        let (places, blobs): (Vec<_>, Vec<_>) = images.into_iter().unzip();
        let images: Vec<_> = places.into_iter().zip(hashes(Some(blobs))?).collect();
        self.with(py, |forest| forest.rewrite(trajectory, &tokens, &images, state.as_deref()))
    }

    #[pyo3(signature = (trajectory, *, reward=None, rewards=None, success=None, info=None, status="finished".into(),
        facts=None))]
    #[expect(clippy::too_many_arguments, reason = "the columns of an end, all by name")]
    fn finish(
        &self,
        py: Python<'_>,
        trajectory: Whole<i64>,
        reward: Option<Number>,
        rewards: Option<Vec<Number>>,
        success: Option<bool>,
        info: Option<Text>,
        status: Name,
        facts: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let facts = facts::values(facts)?;
        let trajectory = trajectory.named("trajectory")?;
        let status = Status::from_name(&status).map_err(to_python)?;
        let info = info.map(|info| info.named("info")).transpose()?;
        let (reward, rewards) = paid(reward, rewards);
        self.with(py, |forest| forest.finish(trajectory, Finish { reward, rewards, success, info, status, facts }))
    }

    #[pyo3(signature = (trajectory, reason, *, gradient_only=false))]
    fn prune(&self, py: Python<'_>, trajectory: Whole<i64>, reason: Text, gradient_only: bool) -> PyResult<()> {
        let (trajectory, reason) = (trajectory.named("trajectory")?, reason.named("reason")?);
        self.with(py, |forest| forest.prune(trajectory, &reason, gradient_only))
    }

    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |forest| {
            forest.abort();
            Ok(())
        })
    }

    #[pyo3(signature = (operation, trajectory, *, in_round, ordinal=None, node=None, end=None, result=None, score=None,
        reason=None))]
    #[expect(clippy::too_many_arguments, reason = "the columns of a decision, all by name")]
    fn decide(
        &self,
        py: Python<'_>,
        operation: Name,
        trajectory: Whole<i64>,
        in_round: Whole<u32>,
        ordinal: Option<Whole<u32>>,
        node: Option<Whole<i64>>,
        end: Option<Whole<u32>>,
        result: Option<Whole<i64>>,
        score: Option<Number>,
        reason: Option<Text>,
    ) -> PyResult<()> {
        let operation = Operation::from_name(&operation).map_err(to_python)?;
        let decision = Decision {
            ordinal: optional("ordinal", ordinal)?,
            node: optional("node", node)?,
            end: optional("end", end)?,
            result: optional("result", result)?,
            score: score.map(Number::wide).filter(|score| !score.is_nan()),
            reason: reason.map(|reason| reason.named("reason")).transpose()?,
            ..Decision::new(operation, trajectory.named("trajectory")?, in_round.named("in_round")?)
        };
        self.with(py, |forest| forest.decide(decision))
    }

    fn tokens<'py>(&self, py: Python<'py>, trajectory: Whole<i64>) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let trajectory = trajectory.named("trajectory")?;
        let tokens = self.with(py, |forest| forest.tokens(trajectory))?;
        Ok(PyArray1::from_vec(py, tokens))
    }

    fn segment_seed(&self, py: Python<'_>, trajectory: Whole<i64>) -> PyResult<u64> {
        let trajectory = trajectory.named("trajectory")?;
        self.with(py, |forest| forest.segment_seed(trajectory))
    }

    fn frontier<'py>(&self, py: Python<'py>, group: Option<Whole<u32>>) -> PyResult<Bound<'py, PyDict>> {
        let group = optional("group", group)?;
        let frontier = self.with(py, |forest| forest.frontier(group))?;
        frontier_columns(py, frontier)
    }

    fn tree(&self, py: Python<'_>, group: Whole<u32>) -> PyResult<Tree> {
        let group = group.named("group")?;
        self.with(py, |forest| forest.tree(group)).map(Tree)
    }

    fn look<'py>(&self, py: Python<'py>, group: Whole<u32>) -> PyResult<(Batch, Bound<'py, PyArray1<i64>>)> {
        let group = group.named("group")?;
        let (batch, handles) = interruptible(py, |check| {
            let copy = self.0.detached()?.copy_group(group)?;
            // Other threads can use the forest while the batch is made.
            copy.freeze_with_handles(check)
        })?;
        Ok((Batch(batch), PyArray1::from_vec(py, handles)))
    }

    fn freeze(&self, py: Python<'_>, partial: bool) -> PyResult<Batch> {
        let frozen = interruptible(py, |check| {
            let groups = self.0.detached()?.take_groups(partial);
            // Other threads can use the forest while the batch is made.
            let frozen = groups.freeze(check);
            if frozen.is_err() {
                self.0.detached()?.restore(groups);
            }
            frozen
        });
        frozen.map(Batch)
    }

    #[getter]
    fn iteration(&self, py: Python<'_>) -> PyResult<i64> {
        self.with(py, |forest| Ok(forest.iteration()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |forest| Ok(forest.len()))
    }
}
