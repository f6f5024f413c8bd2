//! A trajectory (one agent's view of one episode) while it runs.

use std::collections::{BTreeMap, BTreeSet};

use agentrl_compute::rng::structural_seed;

use super::handle::{Handle, Place};
use super::steps::{OpenStep, Step, StepOrigin, StepOutcome, Steps};
use crate::facts::FactValues;
use crate::schema::{Origin, Role, Source, Status};
use crate::{Error, Result};

/// The end of a trajectory.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Outcome reward of the whole trajectory.
    pub reward: Option<f32>,
    /// Components of the reward.
    pub rewards: Option<Vec<f32>>,
    /// Whether the task was solved, before any shaping.
    pub success: Option<bool>,
    /// Facts of the environment, as JSON.
    pub info: Option<String>,
    /// Final status.
    pub status: Status,
    /// Declared facts of the environment.
    pub facts: FactValues,
}

impl Default for Finish {
    fn default() -> Self {
        Self {
            reward: None,
            rewards: None,
            success: None,
            info: None,
            status: Status::Finished,
            facts: FactValues::new(),
        }
    }
}

/// Options of a new trajectory; see [`super::Forest::start_as`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Start {
    /// Number of the trajectory among those of its agent in the group.
    pub member: u32,
    /// Number of the agent, if several agents share an episode.
    pub agent: i32,
    /// A trajectory of the episode that this one joins; `None`: it begins an episode.
    pub episode: Option<Handle>,
    /// Trajectory that this one answers without sharing tokens with it: an observer answers a pioneer, a solver a
    /// proposer, a recovery a failure.
    pub parent: Option<Handle>,
    /// Origin of the trajectory; `None`: generated.
    pub origin: Option<Origin>,
    /// Role of the trajectory.
    pub role: Role,
}

pub(super) fn check_rewards(reward: Option<f32>, rewards: Option<&[f32]>, components: Option<&[String]>) -> Result<()> {
    if let Some(value) = reward.filter(|value| value.is_infinite()) {
        return Err(Error::invalid(format!(
            "reward is {value}; give a finite number, or None (or NaN) if it is unknown"
        )));
    }
    if let Some(index) = rewards.unwrap_or_default().iter().position(|value| value.is_infinite()) {
        return Err(Error::invalid(format!(
            "rewards[{index}] is infinite; give a finite number, or NaN if it is unknown"
        )));
    }
    match (rewards, components) {
        (Some(rewards), Some(names)) if rewards.len() != names.len() => Err(Error::invalid(format!(
            "rewards has {} values, but the forest's reward_components are {names:?}; give one for each",
            rewards.len()
        ))),
        _ => Ok(()),
    }
}

/// Number of a fork among the forks that leave the same trajectory at the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ordinal {
    /// Given by the caller.
    Given(u32),
    /// Counted in order of arrival. It determines seeds, but never the order of rows.
    Arrival(u32),
}

/// Place of a trajectory among those of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lineage {
    Root { member: u32, agent: i32 },
    Fork { parent: usize, context: u32, position: u32, ordinal: Ordinal },
    Stored { id: i64 },
}

/// Reason why a trajectory, or its gradient, is left out of training.
#[derive(Clone, Debug)]
pub(super) enum Note {
    Pruned(String),
    Untrained(String),
    ReplacedBy(usize),
}

/// A trajectory that was adopted from a stored batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) id: i64,
    /// Source of its draw; `None`: it is not drawn.
    pub(super) source: Option<Source>,
}

/// Ordinals of the forks at one token.
#[derive(Clone, Debug, Default)]
pub(super) struct Ordinals {
    pub(super) arrived: u32,
    pub(super) given: BTreeSet<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct Trajectory {
    pub(super) lineage: Lineage,
    /// Words of the trajectory in the seeds of its segments; they come after those of the run and the group.
    pub(super) place: [u64; 2],
    pub(super) agent: i32,
    pub(super) origin: Origin,
    pub(super) role: Role,
    /// First trajectory of the episode; `None`: this one.
    pub(super) episode: Option<Handle>,
    /// Trajectory that it shares a prefix with, or that it answers.
    pub(super) parent: Option<Handle>,
    /// Place where it left the parent; `None` if it is not a fork, or left before the first token.
    pub(super) branch: Option<Place>,
    /// Ordinals of the forks taken from this trajectory, by context and position.
    pub(super) forks: BTreeMap<(u32, u32), Ordinals>,
    /// Last node of the path, and the number of its tokens that the path uses.
    pub(super) tip: Option<Place>,
    /// Ends of the paths that were abandoned when the context was rewritten.
    pub(super) contexts: Vec<Place>,
    /// Key of the state that the next action acts on, if it differs from the key of the last node.
    pub(super) state_key: Option<[u8; 16]>,
    pub(super) steps: Steps,
    /// Number of first steps that are left out of its gradient.
    pub(super) untrained: usize,
    pub(super) open: Option<OpenStep>,
    pub(super) status: Status,
    pub(super) finish: Finish,
    pub(super) note: Option<Note>,
    pub(super) stored: Option<Stored>,
}

impl Trajectory {
    pub(super) fn new(lineage: Lineage, place: [u64; 2]) -> Self {
        Self {
            lineage,
            place,
            agent: 0,
            origin: Origin::Generated,
            role: Role::Member,
            episode: None,
            parent: None,
            branch: None,
            forks: BTreeMap::new(),
            tip: None,
            contexts: Vec::new(),
            state_key: None,
            steps: Steps::default(),
            untrained: 0,
            open: None,
            status: Status::Partial,
            finish: Finish { status: Status::Partial, ..Finish::default() },
            note: None,
            stored: None,
        }
    }

    pub(super) fn root(start: &Start) -> Self {
        // The second word (0 to 3) separates the four kinds of trajectories: roots of other agents, roots of agent 0,
        // forks and stored trajectories.
        let place = match start.agent {
            0 => [u64::from(start.member), 1],
            agent => [structural_seed(&[u64::from(start.member), agent as u64]), 0],
        };
        let lineage = Lineage::Root { member: start.member, agent: start.agent };
        let origin = start.origin.unwrap_or(Origin::Generated);
        Self { agent: start.agent, origin, role: start.role, ..Self::new(lineage, place) }
    }

    pub(super) fn stored(id: i64, source: Option<Source>) -> Self {
        let stored = Some(Stored { id, source });
        Self { stored, ..Self::new(Lineage::Stored { id }, [structural_seed(&[id as u64]), 3]) }
    }

    /// Create a fork of this trajectory, which has index `parent` in its group.
    pub(super) fn child(&self, parent: usize, context: u32, position: u32, ordinal: Ordinal) -> Self {
        let (tag, number) = match ordinal {
            Ordinal::Arrival(number) => (0, number),
            Ordinal::Given(number) => (1, number),
        };
        let parts = [self.place[0], self.place[1], u64::from(context), u64::from(position), tag, u64::from(number)];
        let lineage = Lineage::Fork { parent, context, position, ordinal };
        let child = Self::new(lineage, [structural_seed(&parts), 2]);
        Self { agent: self.agent, origin: self.origin, role: self.role, ..child }
    }

    /// Whether tokens can be appended to the trajectory.
    pub(super) fn is_running(&self) -> bool {
        self.status == Status::Partial && self.stored.is_none()
    }

    /// Number of the current context.
    pub(super) fn context(&self) -> u32 {
        self.contexts.len() as u32
    }

    /// Ends of the paths of all its contexts, the current context last.
    pub(super) fn tips(&self) -> impl DoubleEndedIterator<Item = Place> + '_ {
        self.contexts.iter().copied().chain(self.tip)
    }

    /// Close the open step, if there is one; return whether there was one. `index` is the index of this trajectory.
    pub(super) fn close_step(&mut self, index: usize, outcome: &StepOutcome) -> bool {
        let Some(open) = self.open.take() else { return false };
        let (node, end) = open.last;
        self.steps.push(Step {
            first_node: open.first_node,
            node,
            start: open.start,
            end,
            context: self.context(),
            origin: StepOrigin::Live(index),
            state_key: open.state_key,
            outcome: outcome.clone(),
        });
        true
    }

    /// Return the environment's facts as JSON, together with the note if there is one: `{"pruned": reason, "info": …}`.
    /// `id_of` maps the index of a trajectory of the group to its id.
    pub(super) fn info(&self, id_of: impl Fn(usize) -> i64) -> Option<String> {
        let info = self.finish.info.as_deref();
        let (key, value) = match &self.note {
            None => return info.map(str::to_owned),
            Some(Note::Pruned(reason)) => ("pruned", serde_json::Value::from(reason.as_str())),
            Some(Note::Untrained(reason)) => ("untrained", serde_json::Value::from(reason.as_str())),
            Some(Note::ReplacedBy(other)) => ("replaced_by", serde_json::Value::from(id_of(*other))),
        };
        Some(format!("{{\"{key}\":{value},\"info\":{}}}", info.unwrap_or("null")))
    }
}
