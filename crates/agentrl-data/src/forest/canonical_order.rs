//! The canonical order of a group's rows: by place and content, never by order of arrival.

use agentrl_compute::hash::hash_bytes;

use super::trajectory::{Lineage, Note, Ordinal};
use super::{Decision, Group, StepOutcome, split};
use crate::facts::{Fact, FactValues};
use crate::schema::Role;
use crate::{Check, Result};

type Key = [u8; 16];

/// A trajectory derived from another one: its kind (0 fork, 1 answer, 2 same episode), the context, position and
/// ordinal of a fork, and its digest.
type Derived = (u8, u32, u32, u64, Key);

impl Group {
    /// Return all trajectories, each before its forks. Stored trajectories are ordered by id, roots by member and
    /// agent, forks by context, position and ordinal. Forks without an ordinal follow those with one, ordered by
    /// content.
    pub(super) fn canonical(&self, check: Check<'_>) -> Result<Vec<usize>> {
        let count = self.trajectories.len();
        let mut roots = Vec::new();
        let mut forks = vec![Vec::new(); count];
        for (index, entry) in self.trajectories.iter().enumerate() {
            match entry.lineage.fork_of() {
                Some((parent, _, _)) => forks[parent].push(index),
                None => roots.push(index),
            }
        }
        let digests = if self.ambiguous() { Some(self.digests(check)?) } else { None };
        let content = |index: usize| digests.as_ref().map(|digests| digests[index]);
        let key = |&index: &usize| match self.trajectories[index].lineage {
            Lineage::Stored { id } => (0, 0, id as u64, 0, None),
            Lineage::Root { member, agent } => (1, member, agent as u64, 0, None),
            Lineage::Fork { context, position, ordinal: Ordinal::Given(ordinal), .. } => {
                (context, position, 0, ordinal, None)
            }
            Lineage::Fork { context, position, ordinal: Ordinal::Arrival(_), .. } => {
                (context, position, 1, 0, content(index))
            }
        };
        // The vectors are stacks: the last element is taken first.
        roots.sort_by_key(|index| std::cmp::Reverse(key(index)));
        let mut order = Vec::with_capacity(count);
        let mut next = roots;
        while let Some(index) = next.pop() {
            check()?;
            order.push(index);
            let mut children = std::mem::take(&mut forks[index]);
            children.sort_by_key(|index| std::cmp::Reverse(key(index)));
            next.extend(children);
        }
        Ok(order)
    }

    /// Whether two forks without ordinals leave a trajectory at the same token.
    fn ambiguous(&self) -> bool {
        self.trajectories.iter().flat_map(|entry| entry.forks.values()).any(|ordinals| ordinals.arrived > 1)
    }

    /// Return a hash of the content of each trajectory and of all trajectories derived from it. Times and numbers of
    /// arrival are left out.
    fn digests(&self, check: Check<'_>) -> Result<Vec<Key>> {
        let nodes = self.node_digests(check)?;
        let mut digests = vec![Key::default(); self.trajectories.len()];
        let mut decisions: Vec<Vec<&Decision>> = vec![Vec::new(); self.trajectories.len()];
        for decision in &self.decisions {
            decisions[split(decision.trajectory).1].push(decision);
        }
        // The trajectories derived from each trajectory.
        let mut derived: Vec<Vec<Derived>> = vec![Vec::new(); self.trajectories.len()];
        // A trajectory has a smaller index than all trajectories that refer to it.
        for (index, entry) in self.trajectories.iter().enumerate().rev() {
            check()?;
            let mut bytes = Bytes::default();
            for (node, end) in entry.tips() {
                bytes.key(&nodes[node]).number(u64::from(end));
            }
            for step in self.steps(index) {
                bytes.number(u64::from(step.context)).number(u64::from(step.end)).key(&step.state_key);
                bytes.outcome(&step.outcome);
            }
            bytes.key(&self.state_key(index)).number(entry.agent as u64).number(u64::from(entry.origin as u8));
            bytes.number(u64::from(entry.status as u8));
            let finish = &entry.finish;
            bytes.float(finish.reward).floats(finish.rewards.as_deref());
            bytes.number(finish.success.map_or(2, u64::from)).text(finish.info.as_deref()).facts(&finish.facts);
            match &entry.note {
                None => bytes.number(0),
                Some(Note::Pruned(reason)) => bytes.number(1).text(Some(reason)),
                Some(Note::Untrained(reason)) => bytes.number(2).text(Some(reason)),
                Some(Note::ReplacedBy(_)) => bytes.number(3),
            };
            // Appended only if set, so that trajectories without them keep their order of earlier versions.
            if entry.untrained > 0 {
                bytes.number(entry.untrained as u64);
            }
            if entry.role != Role::Member {
                bytes.number(entry.role as u64);
            }
            let mut log: Vec<_> =
                decisions[index].iter().map(|decision| decision_bytes(decision, index, &nodes, &digests)).collect();
            log.sort_unstable();
            bytes.0.extend(log.iter().flatten());
            derived[index].sort_unstable();
            for (kind, context, position, ordinal, digest) in &derived[index] {
                bytes.number(u64::from(*kind)).number(u64::from(*context)).number(u64::from(*position));
                bytes.number(*ordinal).key(digest);
            }
            let digest = hash_bytes(&bytes.0);
            digests[index] = digest;
            let own = |other: &i64| split(*other).0 == self.key;
            if let Lineage::Fork { parent, context, position, ordinal } = entry.lineage {
                let ordinal = match ordinal {
                    Ordinal::Given(ordinal) => u64::from(ordinal),
                    Ordinal::Arrival(_) => u64::MAX,
                };
                derived[parent].push((0, context, position, ordinal, digest));
            } else if let Some(parent) = entry.parent.filter(own) {
                derived[split(parent).1].push((1, 0, 0, 0, digest));
            }
            if let Some(first) = entry.episode.filter(own) {
                derived[split(first).1].push((2, 0, 0, 0, digest));
            }
        }
        Ok(digests)
    }

    /// Return a hash of each node together with the path before it.
    fn node_digests(&self, check: Check<'_>) -> Result<Vec<Key>> {
        let mut digests: Vec<Key> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            check()?;
            let mut bytes = Bytes::default();
            if let Some((parent, end)) = node.parent {
                bytes.key(&digests[parent]).number(u64::from(end));
            }
            let content = &node.content;
            bytes.number(node.stored.map_or(u64::MAX, |id| id as u64)).number(u64::from(content.kind as u8));
            bytes.number(content.tokens.len() as u64);
            bytes.0.extend(content.tokens.iter().flat_map(|token| token.to_le_bytes()));
            bytes.floats(content.logprobs.as_deref()).floats(content.entropies.as_deref());
            bytes.number(content.trainable.as_ref().map_or(u64::MAX, |mask| mask.len() as u64));
            bytes.0.extend(content.trainable.iter().flatten());
            bytes.number(content.policy as u64).number(content.policy_version.map_or(u64::MAX, |value| value as u64));
            bytes.number(content.seed.map_or(u64::MAX, |value| value as u64));
            if let Some(sampling) = content.sampling {
                bytes.float(Some(sampling.temperature)).float(Some(sampling.top_p)).number(sampling.top_k as u64);
            }
            bytes.number(u64::from(content.finish_reason as u8)).key(&node.state_key);
            for hash in &content.blobs {
                bytes.0.extend(hash);
            }
            for (name, rows) in &node.rows {
                bytes.text(Some(name));
                rows.write_bytes(&mut bytes.0);
            }
            // An origin has a smaller index than its copies.
            bytes.0.extend(content.origin.map(|origin| digests[split(origin).1]).unwrap_or_default());
            digests.push(hash_bytes(&bytes.0));
        }
        Ok(digests)
    }
}

/// Return the bytes of a decision about a trajectory. Later trajectories have their digests already; a result that is an
/// earlier one, or the trajectory itself, is only present.
fn decision_bytes(decision: &Decision, trajectory: usize, nodes: &[Key], digests: &[Key]) -> Vec<u8> {
    let mut bytes = Bytes::default();
    bytes.number(u64::from(decision.operation as u8)).number(u64::from(decision.round));
    bytes.number(decision.ordinal.map_or(u64::MAX, u64::from)).text(decision.reason.as_deref());
    bytes.number(decision.score.map_or(u64::MAX, f64::to_bits));
    if let Some(node) = decision.node {
        bytes.number(1).key(&nodes[split(node).1]);
    }
    if let Some(end) = decision.end {
        bytes.number(2).number(u64::from(end));
    }
    if let Some(result) = decision.result.map(|result| split(result).1) {
        bytes.number(3);
        if result > trajectory {
            bytes.key(&digests[result]);
        }
    }
    bytes.0
}

/// Bytes to hash: different values give different bytes.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn key(&mut self, key: &Key) -> &mut Self {
        self.0.extend(key);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn float(&mut self, value: Option<f32>) -> &mut Self {
        self.number(value.map_or(u64::MAX, |value| u64::from(value.to_bits())))
    }

    fn floats(&mut self, values: Option<&[f32]>) -> &mut Self {
        self.number(values.map_or(u64::MAX, |values| values.len() as u64));
        self.0.extend(values.unwrap_or_default().iter().flat_map(|value| value.to_bits().to_le_bytes()));
        self
    }

    fn text(&mut self, text: Option<&str>) -> &mut Self {
        self.number(text.map_or(u64::MAX, |text| text.len() as u64));
        self.0.extend(text.unwrap_or_default().bytes());
        self
    }

    fn outcome(&mut self, outcome: &StepOutcome) -> &mut Self {
        self.float(outcome.reward).floats(outcome.rewards.as_deref()).number(u64::from(outcome.flags));
        self.number(u64::from(outcome.terminated)).number(u64::from(outcome.truncated));
        self.number(outcome.drift.map_or(u64::MAX, |drift| drift as u64));
        self.number(outcome.drift_at.map_or(u64::MAX, u64::from));
        self.facts(&outcome.facts)
    }

    /// Append the facts; append nothing if there are none.
    fn facts(&mut self, facts: &FactValues) -> &mut Self {
        for (name, fact) in facts {
            self.text(Some(name));
            match fact {
                Fact::Number(value) => self.float(Some(*value)),
                Fact::Key(value) => self.text(Some(value)),
            };
        }
        self
    }
}
