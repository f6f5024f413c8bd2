//! One agent's view of one episode, while it runs.

use crate::schema::Status;
use crate::{Error, Result};

use super::Handle;

/// What the environment said to an action.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Reward paid for the action; `None` where none was.
    pub reward: Option<f32>,
    /// Components of the reward.
    pub rewards: Option<Vec<f32>>,
    /// The episode ended in the environment.
    pub terminated: bool,
    /// A limit ended the episode.
    pub truncated: bool,
    /// Facts about the turn (tool error, format error, …), a bit each.
    pub flags: u32,
}

impl StepOutcome {
    pub(super) fn check(&self) -> Result<()> {
        check_rewards(self.reward, self.rewards.as_deref())
    }
}

/// How a trajectory ends.
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
    /// How it ended.
    pub status: Status,
}

impl Default for Finish {
    fn default() -> Self {
        Self { reward: None, rewards: None, success: None, info: None, status: Status::Finished }
    }
}

impl Finish {
    pub(super) fn check(&self) -> Result<()> {
        check_rewards(self.reward, self.rewards.as_deref())
    }
}

fn check_rewards(reward: Option<f32>, rewards: Option<&[f32]>) -> Result<()> {
    if let Some(value) = reward.filter(|value| value.is_infinite()) {
        return Err(Error::invalid(format!(
            "reward is {value}; give a finite number, or None (or NaN) where it is unknown"
        )));
    }
    if let Some(index) = rewards.unwrap_or_default().iter().position(|value| value.is_infinite()) {
        return Err(Error::invalid(format!(
            "rewards[{index}] is infinite; give a finite number, or NaN where it is unknown"
        )));
    }
    Ok(())
}

/// A closed step. Positions count tokens from the start of the path.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) first_node: usize,
    pub(super) node: usize,
    pub(super) start: u32,
    pub(super) end: u32,
    /// Index of the trajectory that took the step.
    pub(super) origin: usize,
    pub(super) state_key: [u8; 16],
    pub(super) outcome: StepOutcome,
}

/// An action that is still growing.
#[derive(Clone, Debug)]
pub(super) struct OpenStep {
    pub(super) first_node: usize,
    pub(super) start: u32,
    pub(super) state_key: [u8; 16],
    /// Last node of the action so far, and the position after its last token.
    pub(super) last: (usize, u32),
}

/// Where a trajectory left the one it shares its prefix with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Branch {
    pub(super) parent: usize,
    /// Node and number of its tokens; `None` at the very start.
    pub(super) at: Option<(usize, u32)>,
}

#[derive(Clone, Debug)]
pub(super) struct Trajectory {
    /// Member number of the root, then the ordinal of each fork.
    pub(super) fork_path: Vec<u32>,
    /// Number of forks taken from this trajectory so far.
    pub(super) forks: u32,
    /// Last node of the path and how many of its tokens the path uses.
    pub(super) tip: Option<(usize, u32)>,
    pub(super) branch: Option<Branch>,
    pub(super) steps: Vec<Step>,
    pub(super) open: Option<OpenStep>,
    pub(super) status: Status,
    pub(super) finish: Finish,
}

impl Trajectory {
    pub(super) fn root(member: u32) -> Self {
        Self {
            fork_path: vec![member],
            forks: 0,
            tip: None,
            branch: None,
            steps: Vec::new(),
            open: None,
            status: Status::Partial,
            finish: Finish { status: Status::Partial, ..Finish::default() },
        }
    }

    /// Closes the open step, if there is one; says whether there was.
    pub(super) fn close_step(&mut self, trajectory: Handle, outcome: &StepOutcome) -> bool {
        let Some(open) = self.open.take() else { return false };
        let (node, end) = open.last;
        self.steps.push(Step {
            first_node: open.first_node,
            node,
            start: open.start,
            end,
            origin: super::split(trajectory).1,
            state_key: open.state_key,
            outcome: outcome.clone(),
        });
        true
    }
}
