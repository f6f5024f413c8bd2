//! A node of the token tree: a run of tokens from one source.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use agentrl_compute::hash::{hash_bytes, hash_tokens};

use super::handle::{Handle, Place};
use crate::schema::{FinishReason, Kind};
use crate::token_columns::NodeRows;
use crate::{Error, Result};

/// Largest log-prob above zero that counts as a rounding error of the engine; larger ones are rejected.
const LOGPROB_TOLERANCE: f32 = 1e-4;

/// Sampling options of an action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Softmax temperature.
    pub temperature: f32,
    /// Nucleus mass; 1 keeps everything.
    pub top_p: f32,
    /// Number of tokens kept; 0 keeps everything.
    pub top_k: i32,
}

impl Sampling {
    fn check(self) -> Result<()> {
        let Self { temperature, top_p, top_k } = self;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(Error::invalid(format!("temperature is {temperature}; give a finite number of at least 0")));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Error::invalid(format!("top_p is {top_p}; give a number above 0 and up to 1")));
        }
        if top_k < 0 {
            return Err(Error::invalid(format!("top_k is {top_k}; give 0 (all tokens) or more")));
        }
        Ok(())
    }
}

/// SHA-256 of a blob.
pub type BlobHash = [u8; 32];

/// A node to append: the argument of [`super::Forest::append`].
#[derive(Clone, Debug, PartialEq)]
pub struct NewNode {
    /// Source of the tokens.
    pub kind: Kind,
    /// Token ids.
    pub tokens: Vec<i32>,
    /// Behaviour log-prob of each token; only if tokens were sampled.
    pub logprobs: Option<Vec<f32>>,
    /// Entropy of the sampling distribution at each token, in nats.
    pub entropies: Option<Vec<f32>>,
    /// 1 if a token may be trained; `None`: 1 for all tokens of an action, 0 for all others.
    pub trainable: Option<Vec<u8>>,
    /// Key of the environment's state; `None` on a prompt or an observation: its own tokens are the key.
    pub state: Option<Vec<u8>>,
    /// Number of the policy that sampled the tokens, if there are several.
    pub policy: i32,
    /// Version of the weights that sampled the tokens.
    pub policy_version: Option<i64>,
    /// Seed of the segment.
    pub seed: Option<i64>,
    /// Sampling options of the segment.
    pub sampling: Option<Sampling>,
    /// Reason why sampling stopped.
    pub finish_reason: FinishReason,
    /// Node of the same group whose tokens this one repeats or rewrites.
    pub origin: Option<Handle>,
    /// Blobs (such as images) that belong to the tokens, as the hashes that [`super::Forest::add_blob`] returned.
    pub blobs: Vec<BlobHash>,
}

impl NewNode {
    /// Create a node of a kind, without optional values.
    pub fn new(kind: Kind, tokens: Vec<i32>) -> Self {
        Self {
            kind,
            tokens,
            logprobs: None,
            entropies: None,
            trainable: None,
            state: None,
            policy: 0,
            policy_version: None,
            seed: None,
            sampling: None,
            finish_reason: FinishReason::None,
            origin: None,
            blobs: Vec::new(),
        }
    }

    /// Create a prompt.
    pub fn prompt(tokens: Vec<i32>) -> Self {
        Self::new(Kind::Prompt, tokens)
    }

    /// Create an observation.
    pub fn observation(tokens: Vec<i32>) -> Self {
        Self::new(Kind::Observation, tokens)
    }

    /// Create a sampled action.
    pub fn action(tokens: Vec<i32>, logprobs: Vec<f32>) -> Self {
        Self { logprobs: Some(logprobs), ..Self::new(Kind::Action, tokens) }
    }

    /// Whether another node has the same content. Log-probs that are NaN count as equal.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let comparable = |node: &Self| {
            let logprobs = node
                .logprobs
                .as_ref()
                .map(|values| values.iter().map(|&value| if value.is_nan() { f32::INFINITY } else { value }).collect());
            Self { logprobs, ..node.clone() }
        };
        self == other || (self.tokens == other.tokens && comparable(self) == comparable(other))
    }

    /// Check that a forest can store the node.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if there is no token, a token is negative, an array has another length than `tokens`, or a value
    /// is not allowed.
    pub fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 {
            let what = if self.kind == Kind::Action { "an action" } else { "a node" };
            return Err(Error::invalid(format!("tokens is empty; give {what} at least one token")));
        }
        if let Some(index) = self.tokens.iter().position(|&token| token < 0) {
            return Err(Error::invalid(format!(
                "tokens[{index}] is {}; give token ids of at least 0",
                self.tokens[index]
            )));
        }
        let lengths = [
            ("logprobs", self.logprobs.as_ref().map(Vec::len)),
            ("entropies", self.entropies.as_ref().map(Vec::len)),
            ("trainable", self.trainable.as_ref().map(Vec::len)),
        ];
        for (name, length) in lengths {
            if let Some(length) = length.filter(|&length| length != count) {
                return Err(Error::invalid(format!(
                    "{name} has {length} values for {count} tokens; give one per token"
                )));
            }
        }
        if self.logprobs.is_some() && self.kind != Kind::Action {
            return Err(Error::invalid(format!(
                "logprobs is given for kind {:?}, but only an action has log-probs; leave it out",
                self.kind
            )));
        }
        // Nothing reads the log-prob of a token that is not trained.
        let trains = |index: usize| self.trainable.as_ref().is_none_or(|mask| mask[index] != 0);
        for (index, &value) in self.logprobs.iter().flatten().enumerate().filter(|&(index, _)| trains(index)) {
            if !value.is_finite() || value > LOGPROB_TOLERANCE {
                return Err(Error::invalid(format!(
                    "logprobs[{index}] is {value}; give a finite number of at most 0, or mask the token with trainable=0"
                )));
            }
        }
        if let Some((index, value)) = self.entropies.iter().flatten().enumerate().find(|(_, value)| !value.is_finite())
        {
            return Err(Error::invalid(format!(
                "entropies[{index}] is {value}; give finite entropies, or none if they are unknown"
            )));
        }
        self.sampling.map_or(Ok(()), Sampling::check)?;
        if let Some((index, value)) = self.trainable.iter().flatten().enumerate().find(|&(_, &value)| value > 1) {
            return Err(Error::invalid(format!("trainable[{index}] is {value}; use 0 or 1")));
        }
        if self.kind != Kind::Action && self.trainable.iter().flatten().any(|&value| value != 0) {
            return Err(Error::invalid(format!(
                "trainable marks tokens of kind {:?}, but only an action can be trained; leave it out",
                self.kind
            )));
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Parent of the node, and the number of the parent's tokens that come before this node.
    pub(super) parent: Option<Place>,
    pub(super) start: u32,
    /// The node as it was appended, without `state`.
    pub(super) content: NewNode,
    /// Key of the state that an action after this node acts on.
    pub(super) state_key: [u8; 16],
    pub(super) created_us: i64,
    /// Rows of token columns, by column name.
    pub(super) rows: BTreeMap<String, NodeRows>,
    /// Id of the stored row, if the node was adopted from a stored batch.
    pub(super) stored: Option<i64>,
}

impl Node {
    /// Create a node. `inherited` is the state key at the tip that the node is appended to.
    pub(super) fn new(mut content: NewNode, parent: Option<Place>, start: u32, inherited: [u8; 16]) -> Self {
        let state_key = match (content.state.take(), content.kind) {
            (Some(state), _) => hash_bytes(&state),
            (None, Kind::Prompt | Kind::Observation) => hash_tokens(&content.tokens),
            (None, Kind::Action | Kind::Injected) => inherited,
        };
        let created_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_micros() as i64);
        Self { parent, start, content, state_key, created_us, rows: BTreeMap::new(), stored: None }
    }

    /// Whether another prompt at the root of the tree can share this node: it is equal in everything but the time. The
    /// content of a batch must not depend on which prompt came first.
    pub(super) fn begins_like(&self, other: &Self) -> bool {
        self.stored.is_none() && self.content == other.content && self.state_key == other.state_key
    }

    pub(super) fn len(&self) -> u32 {
        self.content.tokens.len() as u32
    }
}
