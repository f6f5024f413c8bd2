//! `Forest` for Python.

use std::sync::{Mutex, MutexGuard};

use agentrl_data::forest::{self, Finish, NewNode, Sampling, StepOutcome};
use agentrl_data::schema::{FinishReason, Kind, Status};
use agentrl_data::{Error, Result};
use pyo3::prelude::*;

use crate::arrays::{Whole, floats, mask, tokens};
use crate::batch::Batch;
use crate::enter::{held, released};
use crate::error::to_python;

/// The live form of the data. Safe to use from several threads.
#[pyclass(frozen, module = "agentrl_core._core")]
pub(crate) struct Forest(Mutex<forest::Forest>);

impl Forest {
    fn lock(&self) -> Result<MutexGuard<'_, forest::Forest>> {
        self.0.lock().map_err(|_| {
            Error::internal("an earlier call on this Forest failed inside the core; freeze is not safe any more")
        })
    }
}

#[pymethods]
impl Forest {
    #[new]
    #[pyo3(signature = (*, iteration=0.into(), seed=0.into()))]
    fn new(iteration: Whole<i64>, seed: Whole<u64>) -> PyResult<Self> {
        let (iteration, seed) = (iteration.named("iteration")?, seed.named("seed")?);
        Ok(Self(Mutex::new(forest::Forest::new(iteration, seed))))
    }

    fn add_group(&self, group: Whole<u32>, task_id: &str) -> PyResult<()> {
        let group = group.named("group")?;
        held(|| self.lock()?.add_group(group, task_id))
    }

    fn start(&self, group: Whole<u32>, member: Whole<u32>) -> PyResult<i64> {
        let (group, member) = (group.named("group")?, member.named("member")?);
        held(|| self.lock()?.start(group, member))
    }

    #[pyo3(signature = (trajectory, tokens, *, kind, logprobs=None, entropies=None, trainable=None, state=None, policy=0.into(),
        policy_version=None, seed=None, temperature=None, top_p=1.0, top_k=0.into(), finish_reason=None))]
    #[expect(clippy::too_many_arguments, reason = "the columns of a node, all by name")]
    fn append(
        &self,
        trajectory: Whole<i64>,
        tokens: Bound<'_, PyAny>,
        kind: &str,
        logprobs: Option<Bound<'_, PyAny>>,
        entropies: Option<Bound<'_, PyAny>>,
        trainable: Option<Bound<'_, PyAny>>,
        state: Option<Vec<u8>>,
        policy: Whole<i32>,
        policy_version: Option<Whole<i64>>,
        seed: Option<Whole<i64>>,
        temperature: Option<f32>,
        top_p: f32,
        top_k: Whole<i32>,
        finish_reason: Option<&str>,
    ) -> PyResult<i64> {
        let trajectory = trajectory.named("trajectory")?;
        let top_k = top_k.named("top_k")?;
        let node = NewNode {
            logprobs: logprobs.map(|value| floats("logprobs", &value)).transpose()?,
            entropies: entropies.map(|value| floats("entropies", &value)).transpose()?,
            trainable: trainable.map(|value| mask("trainable", &value)).transpose()?,
            state,
            policy: policy.named("policy")?,
            policy_version: policy_version.map(|version| version.named("policy_version")).transpose()?,
            seed: seed.map(|seed| seed.named("seed")).transpose()?,
            sampling: temperature.map(|temperature| Sampling { temperature, top_p, top_k }),
            finish_reason: finish_reason
                .map(FinishReason::from_name)
                .transpose()
                .map_err(to_python)?
                .unwrap_or_default(),
            ..NewNode::new(Kind::from_name(kind).map_err(to_python)?, self::tokens("tokens", &tokens)?)
        };
        held(|| self.lock()?.append(trajectory, node))
    }

    #[pyo3(signature = (trajectory, *, reward=None, rewards=None, terminated=false, truncated=false, flags=0.into()))]
    fn step(
        &self,
        trajectory: Whole<i64>,
        reward: Option<f32>,
        rewards: Option<Vec<f32>>,
        terminated: bool,
        truncated: bool,
        flags: Whole<u32>,
    ) -> PyResult<()> {
        let (trajectory, flags) = (trajectory.named("trajectory")?, flags.named("flags")?);
        held(|| self.lock()?.step(trajectory, &StepOutcome { reward, rewards, terminated, truncated, flags }))
    }

    #[pyo3(signature = (trajectory, *, node=None, end=None))]
    fn fork(&self, trajectory: Whole<i64>, node: Option<Whole<i64>>, end: Option<Whole<u32>>) -> PyResult<i64> {
        let trajectory = trajectory.named("trajectory")?;
        let node = node.map(|node| node.named("node")).transpose()?;
        let end = end.map(|end| end.named("end")).transpose()?;
        held(|| self.lock()?.fork(trajectory, node, end))
    }

    #[pyo3(signature = (trajectory, *, reward=None, rewards=None, success=None, info=None, status="finished"))]
    fn finish(
        &self,
        trajectory: Whole<i64>,
        reward: Option<f32>,
        rewards: Option<Vec<f32>>,
        success: Option<bool>,
        info: Option<String>,
        status: &str,
    ) -> PyResult<()> {
        let trajectory = trajectory.named("trajectory")?;
        held(|| {
            let status = Status::from_name(status)?;
            self.lock()?.finish(trajectory, Finish { reward, rewards, success, info, status })
        })
    }

    fn prune(&self, trajectory: Whole<i64>, reason: &str) -> PyResult<()> {
        let trajectory = trajectory.named("trajectory")?;
        held(|| self.lock()?.prune(trajectory, reason))
    }

    fn abort(&self) -> PyResult<()> {
        held(|| {
            self.lock()?.abort();
            Ok(())
        })
    }

    fn tokens<'py>(&self, py: Python<'py>, trajectory: Whole<i64>) -> PyResult<Bound<'py, numpy::PyArray1<i32>>> {
        let trajectory = trajectory.named("trajectory")?;
        let tokens = held(|| self.lock()?.tokens(trajectory))?;
        Ok(numpy::PyArray1::from_vec(py, tokens))
    }

    fn segment_seed(&self, trajectory: Whole<i64>) -> PyResult<u64> {
        let trajectory = trajectory.named("trajectory")?;
        held(|| self.lock()?.segment_seed(trajectory))
    }

    fn freeze(&self, py: Python<'_>) -> PyResult<Batch> {
        released(py, || self.lock()?.freeze()).map(Batch)
    }

    #[getter]
    fn iteration(&self) -> PyResult<i64> {
        held(|| Ok(self.lock()?.iteration()))
    }

    fn __len__(&self) -> PyResult<usize> {
        held(|| Ok(self.lock()?.len()))
    }
}
