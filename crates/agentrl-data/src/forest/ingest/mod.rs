//! Store turns, chats and nodes by the column: one call takes many rows of many trajectories and stores all or none.

mod align;
mod columns;
mod images;
mod rollback;

use std::borrow::Cow;
use std::collections::HashMap;
use std::iter::successors;

use agentrl_compute::hash::hash_bytes;
use agentrl_compute::ragged::Ragged;

pub use columns::Rows;

use super::steps::Step;
use super::{BlobHash, Forest, Group, Handle, NewNode, Place, StepOutcome, handle, split};
use crate::schema::{Drift, Kind};
use crate::{Check, Error, Result};
use align::{Alignment, Rules};

/// Turns of a policy as its engine read them: the whole context, and the tokens that were sampled after it.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// Sampled actions, one row per turn. Turns of one trajectory are in order.
    pub outputs: Rows<'a>,
    /// Whole context of each turn, without its `known` tokens.
    pub prompts: Ragged<'a, i32>,
    /// Number of leading tokens that each context shares with the context of the previous turn of the same trajectory
    /// in the call. They are left out of `prompts`. `None`: nothing is left out.
    pub known: Option<&'a [i64]>,
    /// Images of each context, in the order of their tokens. `None`: images are not compared.
    pub images: Option<Ragged<'a, BlobHash>>,
    /// Maximum number of tokens at the end of an output that may differ; if more differ, the context counts as
    /// rewritten.
    pub realign: usize,
    /// Text of each token id, to recognise equal text in other tokens.
    pub vocabulary: Option<Ragged<'a, u8>>,
}

/// Result of ingesting turns, one row per turn.
#[derive(Clone, Debug, Default)]
pub struct Ingested {
    /// Node of the output.
    pub nodes: Vec<Handle>,
    /// Agreement of the prompt with the turns before: codes of [`Drift`].
    pub drift: Vec<u8>,
    /// Position of the first token that differs; -1 if none does.
    pub drift_at: Vec<i32>,
}

/// The role of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Tokens of this kind.
    Kind(Kind),
    /// Input of the policy: a prompt before its first action, an observation after it.
    Context,
}

impl Forest {
    /// Store turns: each context by its longest common prefix with the trajectory's contexts, each output as an action
    /// with a step of its own.
    ///
    /// A turn is clean if its context continues a context of the trajectory. Otherwise the trajectory gets another
    /// context, which enters the tree at the first token that differs. Tokens that replace or repeat earlier tokens are
    /// `injected`, and name the node that they come from. The earlier output stays as it was sampled, in the context in
    /// which it was sampled. So every output is trained once, whatever later contexts contain. A turn is rejected if
    /// the trajectory already has one with equal context, output and sampling.
    pub fn ingest(&mut self, turns: &Turns<'_>, check: Check<'_>) -> Result<Ingested> {
        let rows = &turns.outputs;
        rows.check()?;
        rows.as_long(("prompts", turns.prompts.len()))?;
        turns.known.map_or(Ok(()), |known| rows.as_long(("known", known.len())))?;
        turns.images.map_or(Ok(()), |images| rows.as_long(("images", images.len())))?;
        self.all_or_nothing(rows.trajectories, |forest| {
            let mut ingested = Ingested::default();
            let mut before = HashMap::new();
            for (row, &trajectory) in rows.trajectories.iter().enumerate() {
                check()?;
                let refused = |error: Error| refused("turn", row, trajectory, &error);
                let prompt = turns.prompt(row, before.get(&trajectory)).map_err(refused)?;
                let (node, outcome) = forest.ingest_turn(turns, row, &prompt).map_err(refused)?;
                before.insert(trajectory, (row, prompt.len()));
                ingested.nodes.push(node);
                ingested.drift.push(outcome.drift.map_or(0, |drift| drift as u8));
                ingested.drift_at.push(outcome.drift_at.map_or(-1, |at| at as i32));
            }
            forest.record_columns(rows, &ingested.nodes)?;
            Ok(ingested)
        })
    }

    fn ingest_turn(&mut self, turns: &Turns<'_>, row: usize, prompt: &Prompt<'_>) -> Result<(Handle, StepOutcome)> {
        let trajectory = turns.outputs.trajectories[row];
        let output = turns.outputs.tokens_of(row);
        for (name, count) in [("prompts", prompt.len()), ("outputs", output.len())] {
            if count == 0 {
                return Err(Error::invalid(format!(
                    "{name} is empty; give each turn a context and at least one sampled token"
                )));
            }
        }
        if i32::try_from(prompt.len() + output.len()).is_err() {
            return Err(Error::overflow(format!(
                "prompts and outputs have {} tokens together; give at most {}, the longest path",
                prompt.len() + output.len(),
                i32::MAX
            )));
        }
        self.declare_rows(prompt.len(), output.len(), turns.outputs.columns_of(row))?;
        let mut action = turns.outputs.node(row, 0..output.len(), Kind::Action)?;
        let state = action.state.take();
        action.check().map_err(|error| Error::new(error.kind(), format!("outputs: {error}")))?;
        self.check_blobs(prompt.images.unwrap_or_default())?;
        let (key, index) = split(trajectory);
        let group = self.group_mut(trajectory)?;
        let rules = Rules { realign: turns.realign, vocabulary: turns.vocabulary };
        let prompt = group.needed(index, prompt);
        let (place, alignment, pieces) = group.meet(index, &prompt, &rules);
        let begin = group.position(place) as usize;
        let added = &prompt.rest[begin - prompt.known..];
        let images = group.new_images(place, &prompt, added.len())?;
        if let Some(at) = added.iter().position(|&token| token < 0) {
            let token = added[at];
            let at = begin + at;
            return Err(Error::invalid(format!("prompts[{at}] is {token}; give token ids of at least 0")));
        }
        if let Some(step) = group.repeated(index, &prompt, &action) {
            return Err(Error::invalid(format!(
                "the turn repeats step {step} of the trajectory with equal context, output and sampling; pass each \
                 turn once (if it was sampled twice, give each its own seed)"
            )));
        }
        group.enter(index, place);
        group.extend(index, pieces, added, images, state);
        let node = group.attach(index, action);
        let clean = alignment.drift == Drift::Clean;
        let outcome = StepOutcome {
            drift: Some(alignment.drift),
            drift_at: (!clean).then_some(alignment.at as u32),
            ..turns.outputs.outcome(row).unwrap_or_default()
        };
        self.step(trajectory, &outcome)?;
        Ok((handle(key, node), outcome))
    }

    /// Append one node per row, in order. A row with an outcome closes its step with it. Return the nodes.
    pub fn append_rows(&mut self, rows: &Rows<'_>, roles: &[Role], check: Check<'_>) -> Result<Vec<Handle>> {
        rows.check()?;
        rows.as_long(("kinds", roles.len()))?;
        self.all_or_nothing(rows.trajectories, |forest| {
            let mut nodes = Vec::with_capacity(rows.len());
            for (row, (&trajectory, &role)) in rows.trajectories.iter().zip(roles).enumerate() {
                check()?;
                let appended = forest.append_row(rows, row, 0..rows.tokens_of(row).len(), role);
                nodes.push(appended.map_err(|error| refused("row", row, trajectory, &error))?);
            }
            forest.record_columns(rows, &nodes)?;
            Ok(nodes)
        })
    }

    /// Append whole chats, one per row. Runs of tokens with `sampled` 1 are actions, each of them a step; all other
    /// tokens are context. The outcome of a row belongs to its last action. Return the last node of each chat.
    pub fn append_chats(&mut self, rows: &Rows<'_>, sampled: Ragged<'_, u8>, check: Check<'_>) -> Result<Vec<Handle>> {
        rows.check()?;
        rows.as_long(("sampled", sampled.len()))?;
        self.all_or_nothing(rows.trajectories, |forest| {
            let mut nodes = Vec::with_capacity(rows.len());
            for (row, &trajectory) in rows.trajectories.iter().enumerate() {
                check()?;
                let sampled = sampled.get(row).unwrap_or_default();
                let appended = forest.append_chat(rows, row, sampled);
                nodes.push(appended.map_err(|error| refused("chat", row, trajectory, &error))?);
            }
            Ok(nodes)
        })
    }

    fn append_chat(&mut self, rows: &Rows<'_>, row: usize, sampled: &[u8]) -> Result<Handle> {
        let count = rows.tokens_of(row).len();
        if sampled.len() != count {
            return Err(Error::invalid(format!(
                "sampled has {} values for {count} tokens; give one per token",
                sampled.len()
            )));
        }
        if let Some(at) = sampled.iter().position(|&value| value > 1) {
            return Err(Error::invalid(format!("sampled[{at}] is {}; use 0 or 1", sampled[at])));
        }
        let last_action = sampled.iter().rposition(|&value| value == 1);
        let without =
            Rows { reward: None, rewards: None, terminated: None, truncated: None, flags: None, facts: None, ..*rows };
        let mut start = 0;
        let mut node = None;
        for run in sampled.chunk_by(|a, b| a == b) {
            let part = start..start + run.len();
            let role = if run[0] == 1 { Role::Kind(Kind::Action) } else { Role::Context };
            let last = last_action.is_some_and(|last| part.contains(&last));
            node = Some(self.append_row(if last { rows } else { &without }, row, part, role)?);
            start += run.len();
        }
        node.ok_or_else(|| Error::invalid("tokens is empty; give at least one token"))
    }

    fn append_row(&mut self, rows: &Rows<'_>, row: usize, part: std::ops::Range<usize>, role: Role) -> Result<Handle> {
        let trajectory = rows.trajectories[row];
        let kind = match role {
            Role::Kind(kind) => kind,
            Role::Context => {
                let entry = self.trajectory(trajectory)?;
                let begun = entry.open.is_some() || !entry.steps.is_empty();
                if begun { Kind::Observation } else { Kind::Prompt }
            }
        };
        let (_, index) = split(trajectory);
        let group = self.live_group(trajectory)?;
        let start = group.position(group.trajectories[index].tip) as usize;
        self.declare_rows(start, part.len(), rows.columns_of(row))?;
        let node = self.append(trajectory, rows.node(row, part, kind)?)?;
        if let Some(outcome) = rows.outcome(row) {
            self.step(trajectory, &outcome)?;
        }
        Ok(node)
    }
}

impl Forest {
    /// Record the rows of token columns that are given with the nodes of a call. This comes last, when nothing can fail
    /// any more, because a token keeps its first row for ever.
    fn record_columns(&mut self, rows: &Rows<'_>, nodes: &[Handle]) -> Result<()> {
        let mut given = rows.columns.into_iter().flatten().zip(nodes);
        given.try_for_each(|(columns, &node)| self.record_rows(node, columns))
    }
}

fn refused(what: &str, row: usize, trajectory: Handle, error: &Error) -> Error {
    Error::new(error.kind(), format!("{what} {row} (trajectory {trajectory}): {error}; nothing of the call was stored"))
}

/// The context of a turn: the number of tokens that it shares with the path of the trajectory, the tokens after them,
/// and its images, if they are compared.
#[derive(Clone, Debug)]
struct Prompt<'a> {
    known: usize,
    rest: Cow<'a, [i32]>,
    images: Option<&'a [BlobHash]>,
}

impl Prompt<'_> {
    fn len(&self) -> usize {
        self.known + self.rest.len()
    }
}

impl<'a> Turns<'a> {
    /// Return the context of a row. `before` is the previous row of the same trajectory, with the length of its
    /// context. One comparison with that context, which is contiguous, saves many comparisons with the nodes of the
    /// path.
    fn prompt(&self, row: usize, before: Option<&(usize, usize)>) -> Result<Prompt<'a>> {
        let tokens = self.prompts.get(row).unwrap_or_default();
        let images = self.images.map(|images| images.get(row).unwrap_or_default());
        let known = match (self.known, before) {
            (Some(known), before) => {
                let most = before.map_or(0, |&(_, length)| length);
                return match usize::try_from(known[row]).ok().filter(|&known| known <= most) {
                    Some(known) => Ok(Prompt { known, rest: tokens.into(), images }),
                    None => Err(Error::invalid(format!(
                        "known is {}, but the context of the turn before it has {most} tokens; give 0 to {most}",
                        known[row]
                    ))),
                };
            }
            (None, Some(&(before, length))) => {
                let same = tokens.starts_with(self.prompts.get(before).unwrap_or_default());
                if same { length } else { 0 }
            }
            (None, None) => 0,
        };
        Ok(Prompt { known, rest: tokens[known..].into(), images })
    }
}

/// New tokens of a prompt that become one node: their kind, their number, and the node that they rewrite or repeat.
type TurnPart = (Kind, usize, Option<Handle>);

impl Group {
    /// Find the place at which a prompt enters the tree of a trajectory, its alignment with the tokens there, and the
    /// nodes that it adds.
    fn meet(&self, index: usize, prompt: &Prompt<'_>, rules: &Rules<'_>) -> (Option<Place>, Alignment, Vec<TurnPart>) {
        let entry = &self.trajectories[index];
        let kind = |place: Option<Place>| if place.is_none() { Kind::Prompt } else { Kind::Observation };
        // Try the last context first, since most turns continue it.
        let mut tips = std::iter::once(entry.tip).chain(entry.contexts.iter().rev().copied().map(Some));
        if let Some(tip) = tips.clone().find(|&tip| self.extends(tip, prompt)) {
            let at = self.position(tip) as usize;
            let clean = Alignment { drift: Drift::Clean, at, replaced: at, repeated: at };
            return (tip, clean, vec![(kind(tip), prompt.len() - at, None)]);
        }
        let first = tips.next().flatten();
        let mut old = first;
        let (mut at, mut place) = self.shared(first, prompt);
        for tip in tips {
            let (shared, last) = self.shared(tip, prompt);
            if shared > at {
                (old, at, place) = (tip, shared, last);
            }
        }
        let path = self.path(old);
        let tokens: Vec<i32> = path.iter().flat_map(|&place| self.used(place)).copied().collect();
        let alignment = self.align(&path, &tokens, prompt, at, rules);
        let Alignment { replaced, repeated, .. } = alignment;
        // Return the place on the old path that contains a position.
        let holder = |position: usize| {
            path[path.partition_point(|&(node, _)| self.nodes[node].start as usize <= position).saturating_sub(1)]
        };
        let origin = |node: usize| Some(handle(self.key, node));
        let mut pieces = Vec::new();
        if place.is_none() && (replaced == prompt.len() || prompt.images.is_some()) {
            // The prompt shares no beginning with an earlier context. If it also repeats no tokens of one, or if images
            // are compared, it is a context of its own, not a rewrite.
            pieces.push((Kind::Prompt, prompt.len(), None));
        } else if alignment.at > at || self.shown(place).count() < prompt.images.map_or(0, <[_]>::len) {
            // The positions of new images are unknown, so one node has them.
            pieces.push((Kind::Injected, prompt.len() - at, None));
        } else {
            pieces.push((Kind::Injected, replaced - at, origin(holder(at).0)));
            let mut position = tokens.len() - (repeated - replaced);
            while position < tokens.len() {
                let from = holder(position);
                let end = self.position(Some(from)) as usize;
                pieces.push((Kind::Injected, end - position, origin(from.0)));
                position = end;
            }
            pieces.push((Kind::Observation, prompt.len() - repeated, None));
        }
        (place, alignment, pieces)
    }

    /// Return a prompt as [`Group::meet`] needs it: with all of its tokens, unless it continues the trajectory's path.
    fn needed<'a>(&self, index: usize, prompt: &Prompt<'a>) -> Prompt<'a> {
        let tip = self.trajectories[index].tip;
        if prompt.known == 0 || self.extends(tip, prompt) {
            return prompt.clone();
        }
        Prompt { known: 0, rest: Cow::Owned(self.whole(tip, prompt)), images: prompt.images }
    }

    /// Return all tokens of a prompt whose `known` tokens are the first tokens of a path.
    fn whole(&self, tip: Option<Place>, prompt: &Prompt<'_>) -> Vec<i32> {
        let path = self.path(tip);
        let known = path.iter().flat_map(|&place| self.used(place)).take(prompt.known);
        known.chain(prompt.rest.iter()).copied().collect()
    }

    /// Return the step of a trajectory that is the same turn, if there is one.
    fn repeated(&self, index: usize, prompt: &Prompt<'_>, action: &NewNode) -> Option<usize> {
        let entry = &self.trajectories[index];
        if entry.contexts.is_empty() && self.extends(entry.tip, prompt) {
            // The context is longer than those of all steps.
            return None;
        }
        let known = Prompt { known: prompt.len(), rest: Cow::Borrowed(&[]), images: None };
        let matches = |step: &Step| {
            step.start as usize == prompt.len()
                && step.first_node == step.node
                && self.nodes[step.node].content.is_same(action)
                && self.whole(self.nodes[step.node].parent, &known) == self.whole(entry.tip, prompt)
                && prompt.images.is_none_or(|images| self.shown(self.nodes[step.node].parent).eq(images))
        };
        self.steps(index).position(matches)
    }

    /// Return the tokens of a node that a path uses.
    fn used(&self, (node, used): Place) -> &[i32] {
        &self.nodes[node].content.tokens[..used as usize]
    }

    /// Whether a prompt begins with all tokens of a path. The `known` tokens of the prompt must be the first tokens of
    /// the path.
    fn extends(&self, tip: Option<Place>, prompt: &Prompt<'_>) -> bool {
        // Compare the last node first, since contexts most often differ there.
        prompt.len() >= self.position(tip) as usize
            && self.shows_first(tip, prompt)
            && successors(tip, |&(node, _)| self.nodes[node].parent)
                .take_while(|&place| self.position(Some(place)) as usize > prompt.known)
                .all(|place| {
                    let start = self.nodes[place.0].start as usize;
                    let begin = start.max(prompt.known);
                    let rest = &prompt.rest[begin - prompt.known..];
                    rest.starts_with(&self.used(place)[begin - start..])
                })
    }

    /// Return the position at which the last action of a path begins; without an action, the end of the path.
    fn last_output(&self, path: &[Place]) -> usize {
        let is_action = |&&(node, _): &&Place| self.nodes[node].content.kind == Kind::Action;
        let end = path.last().map_or(0, |&last| self.position(Some(last)) as usize);
        let behind = path.iter().rev().skip_while(|place| !is_action(place));
        behind.take_while(is_action).last().map_or(end, |&(node, _)| self.nodes[node].start as usize)
    }

    /// Continue a trajectory from a place in one of its contexts.
    fn enter(&mut self, index: usize, place: Option<Place>) {
        let entry = &mut self.trajectories[index];
        entry.close_step(index, &StepOutcome::default());
        if place != entry.tip {
            entry.contexts.extend(entry.tip);
            entry.tip = place;
            entry.state_key = None;
        }
    }

    /// Append the pieces of `added` as nodes, the last one with the images. The next action acts on `state`; if it is
    /// `None`, the added tokens are the state.
    fn extend(
        &mut self,
        index: usize,
        pieces: Vec<TurnPart>,
        added: &[i32],
        images: Vec<BlobHash>,
        state: Option<Vec<u8>>,
    ) {
        let mut pieces: Vec<_> = pieces.into_iter().filter(|&(_, length, _)| length > 0).collect();
        let Some(last) = pieces.pop() else {
            let key = state.map(|state| hash_bytes(&state));
            let entry = &mut self.trajectories[index];
            entry.state_key = key.or(entry.state_key);
            return;
        };
        // Placeholders of different images are equal tokens, but their states differ: hash the images too.
        let bytes = || added.iter().flat_map(|token| token.to_le_bytes()).chain(images.concat()).collect();
        let state = state.or_else(|| (last.0 == Kind::Injected || !images.is_empty()).then(bytes));
        let ends = std::iter::repeat_n((None, Vec::new()), pieces.len()).chain([(state, images)]);
        let mut start = 0;
        for ((kind, length, origin), (state, blobs)) in pieces.into_iter().chain([last]).zip(ends) {
            let tokens = added[start..start + length].to_vec();
            self.attach(index, NewNode { state, origin, blobs, ..NewNode::new(kind, tokens) });
            start += length;
        }
    }
}

#[cfg(test)]
mod tests;
