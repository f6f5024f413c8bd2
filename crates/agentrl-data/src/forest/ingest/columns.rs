//! Nodes as columns: one row is one node and the outcome of its step.

use std::collections::BTreeMap;
use std::ops::Range;

use agentrl_compute::ragged::Ragged;

use crate::facts::{FactColumns, FactValues};
use crate::forest::{Handle, NewNode, Sampling, StepOutcome};
use crate::schema::{FinishReason, Kind};
use crate::token_columns::TokenRows;
use crate::{Error, Result};

/// Columns of nodes, with one row for each of `trajectories`. An empty row of a ragged column means that the value is
/// unknown.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Trajectory of each row.
    pub trajectories: &'a [Handle],
    /// Token ids.
    pub tokens: Ragged<'a, i32>,
    /// Behaviour log-probs of actions.
    pub logprobs: Option<Ragged<'a, f32>>,
    /// Entropies in nats.
    pub entropies: Option<Ragged<'a, f32>>,
    /// 1 if a token may be trained.
    pub trainable: Option<Ragged<'a, u8>>,
    /// The key of the environment's state.
    pub state: Option<Ragged<'a, u8>>,
    /// Number of the policy that sampled the tokens.
    pub policy: Option<&'a [i32]>,
    /// Version of the weights that sampled the tokens.
    pub policy_version: Option<&'a [i64]>,
    /// Seed of the segment.
    pub seed: Option<&'a [i64]>,
    /// Sampling options of all segments.
    pub sampling: Option<Sampling>,
    /// Reason why sampling stopped: codes of [`FinishReason`].
    pub finish_reason: Option<&'a [u8]>,
    /// Reward of the step; NaN if none was paid.
    pub reward: Option<&'a [f32]>,
    /// Components of the reward.
    pub rewards: Option<Ragged<'a, f32>>,
    /// 1 if the episode ended in the environment.
    pub terminated: Option<&'a [u8]>,
    /// 1 if a limit ended it.
    pub truncated: Option<&'a [u8]>,
    /// Flags of the turn, one bit each.
    pub flags: Option<&'a [u32]>,
    /// Facts of the environment.
    pub facts: Option<&'a FactColumns>,
    /// Rows of token columns by column name, as in [`Forest::append_with`](crate::forest::Forest::append_with); for
    /// turns and appended nodes.
    pub columns: Option<&'a [BTreeMap<String, TokenRows>]>,
}

static NO_COLUMNS: BTreeMap<String, TokenRows> = BTreeMap::new();

impl<'a> Rows<'a> {
    /// Create rows of tokens, without optional columns.
    pub fn new(trajectories: &'a [Handle], tokens: Ragged<'a, i32>) -> Self {
        Self {
            trajectories,
            tokens,
            logprobs: None,
            entropies: None,
            trainable: None,
            state: None,
            policy: None,
            policy_version: None,
            seed: None,
            sampling: None,
            finish_reason: None,
            reward: None,
            rewards: None,
            terminated: None,
            truncated: None,
            flags: None,
            facts: None,
            columns: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.trajectories.len()
    }

    /// Check that all columns have as many rows as `trajectories`.
    pub(super) fn check(&self) -> Result<()> {
        let ragged = |rows: Option<Ragged<'_, f32>>| rows.map(|rows| rows.len());
        let lengths = [
            ("tokens", Some(self.tokens.len())),
            ("logprobs", ragged(self.logprobs)),
            ("entropies", ragged(self.entropies)),
            ("trainable", self.trainable.map(|rows| rows.len())),
            ("state", self.state.map(|rows| rows.len())),
            ("policy", self.policy.map(<[_]>::len)),
            ("policy_version", self.policy_version.map(<[_]>::len)),
            ("seed", self.seed.map(<[_]>::len)),
            ("finish_reason", self.finish_reason.map(<[_]>::len)),
            ("reward", self.reward.map(<[_]>::len)),
            ("rewards", ragged(self.rewards)),
            ("terminated", self.terminated.map(<[_]>::len)),
            ("truncated", self.truncated.map(<[_]>::len)),
            ("flags", self.flags.map(<[_]>::len)),
            ("columns", self.columns.map(<[_]>::len)),
        ];
        for (name, column) in self.facts.into_iter().flatten() {
            self.as_long((&format!("facts[{name:?}]"), column.len()))?;
        }
        lengths
            .into_iter()
            .filter_map(|(name, length)| Some((name, length?)))
            .try_for_each(|column| self.as_long(column))
    }

    pub(super) fn as_long(&self, (name, length): (&str, usize)) -> Result<()> {
        if length == self.len() {
            return Ok(());
        }
        Err(Error::invalid(format!("{name} has {length} rows, but trajectories has {}; give one for each", self.len())))
    }

    pub(super) fn tokens_of(&self, row: usize) -> &'a [i32] {
        self.tokens.get(row).unwrap_or_default()
    }

    /// Return a range of a row's tokens as a node of a kind.
    pub(super) fn node(&self, row: usize, part: Range<usize>, kind: Kind) -> Result<NewNode> {
        let count = self.tokens_of(row).len();
        let mut node = NewNode::new(kind, self.tokens_of(row)[part.clone()].to_vec());
        node.entropies = of_tokens("entropies", self.entropies, row, part.clone(), count)?;
        node.state = self.state.and_then(|rows| rows.get(row)).filter(|state| !state.is_empty()).map(<[u8]>::to_vec);
        if kind == Kind::Action {
            node.logprobs = of_tokens("logprobs", self.logprobs, row, part.clone(), count)?;
            node.trainable = of_tokens("trainable", self.trainable, row, part, count)?;
            node.policy = self.policy.map_or(0, |values| values[row]);
            node.policy_version = self.policy_version.map(|values| values[row]);
            node.seed = self.seed.map(|values| values[row]);
            node.sampling = self.sampling;
            let code = self.finish_reason.map_or(0, |values| values[row]);
            node.finish_reason = FinishReason::from_code(code).ok_or_else(|| {
                Error::invalid(format!("finish_reason is {code}; use a code from 0 to 3 (none, stop, length, abort)"))
            })?;
        } else {
            for (name, given) in [
                ("logprobs", self.logprobs.and_then(|rows| rows.get(row)).map_or(0, <[_]>::len)),
                ("trainable", self.trainable.and_then(|rows| rows.get(row)).map_or(0, <[_]>::len)),
            ] {
                if given > 0 && part.len() == count {
                    return Err(Error::invalid(format!(
                        "{name} has {given} values for tokens of kind {kind:?}; only an action has them (give an empty row)"
                    )));
                }
            }
        }
        Ok(node)
    }

    /// Return the rows of token columns that are given with a row.
    pub(super) fn columns_of(&self, row: usize) -> &'a BTreeMap<String, TokenRows> {
        self.columns.map_or(&NO_COLUMNS, |columns| &columns[row])
    }

    /// Return the facts of a row.
    pub(super) fn facts_of(&self, row: usize) -> FactValues {
        let columns = self.facts.into_iter().flatten();
        columns.filter_map(|(name, column)| Some((name.clone(), column.get(row)?))).collect()
    }

    /// Return the outcome of a row; `None` if it has none.
    pub(super) fn outcome(&self, row: usize) -> Option<StepOutcome> {
        let outcome = StepOutcome {
            reward: self.reward.map(|values| values[row]).filter(|reward| !reward.is_nan()),
            rewards: self.rewards.and_then(|rows| rows.get(row)).filter(|row| !row.is_empty()).map(<[f32]>::to_vec),
            terminated: self.terminated.is_some_and(|values| values[row] != 0),
            truncated: self.truncated.is_some_and(|values| values[row] != 0),
            flags: self.flags.map_or(0, |values| values[row]),
            facts: self.facts_of(row),
            ..StepOutcome::default()
        };
        (outcome != StepOutcome::default()).then_some(outcome)
    }
}

/// Return the values of a range of a row's tokens; `None` if the row has none.
fn of_tokens<T: Copy>(
    name: &str,
    rows: Option<Ragged<'_, T>>,
    row: usize,
    part: Range<usize>,
    count: usize,
) -> Result<Option<Vec<T>>> {
    let Some(values) = rows.and_then(|rows| rows.get(row)).filter(|values| !values.is_empty()) else {
        return Ok(None);
    };
    if values.len() == count {
        return Ok(Some(values[part].to_vec()));
    }
    Err(Error::invalid(format!("{name} has {} values for {count} tokens; give one per token", values.len())))
}
