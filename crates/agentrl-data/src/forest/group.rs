//! A group of a forest: the tree of its nodes, and its trajectories.

use std::collections::{BTreeMap, BTreeSet};

use agentrl_compute::hash::{hash_bytes, hash_tokens};
use arrow_array::RecordBatch;

use super::decision::Decision;
use super::handle::{GroupHandle, Place};
use super::key::GroupKey;
use super::node::{NewNode, Node};
use super::steps::{OpenStep, StepOutcome};
use super::trajectory::Trajectory;
use crate::schema::Kind;
use crate::token_columns::{NodeRows, RowType, TokenRows};

/// A group of a forest: its tree of nodes and its trajectories.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) key: GroupHandle,
    /// The caller's number of it.
    pub(super) number: u32,
    /// The key from which its seeds and the order of its rows follow.
    pub(super) origin: GroupKey,
    pub(super) task_id: String,
    pub(super) nodes: Vec<Node>,
    /// Prompts at the roots of the tree by the hash of their tokens; members that begin alike share one.
    pub(super) roots: BTreeMap<[u8; 16], Vec<usize>>,
    pub(super) trajectories: Vec<Trajectory>,
    /// Members and agents that were started.
    pub(super) started: BTreeSet<(u32, i32)>,
    pub(super) decisions: Vec<Decision>,
    pub(super) adopted: Adopted,
    /// The trajectories that changed, in that order: who reads the group again looks at those alone.
    pub(super) changed: Vec<usize>,
}

/// Rows of tables that are in a store already.
#[derive(Clone, Debug, Default)]
pub(super) struct Adopted {
    /// Index in the group of each stored node.
    pub(super) nodes: BTreeMap<i64, usize>,
    /// Index in the group of each stored trajectory.
    pub(super) trajectories: BTreeMap<i64, usize>,
    /// The rows as they are stored: of `nodes`, `steps` and `trajectories`.
    pub(super) rows: Vec<[RecordBatch; 3]>,
}

impl Group {
    /// Notes that a trajectory changes, for those who read the group again later.
    pub(super) fn changes(&mut self, index: usize) {
        if self.changed.last() != Some(&index) {
            self.changed.push(index);
        }
    }

    /// Nodes of a path from its root, each with the number of its tokens that the path uses.
    pub(super) fn path(&self, tip: Option<Place>) -> Vec<Place> {
        let mut path: Vec<_> = std::iter::successors(tip, |&(node, _)| self.nodes[node].parent).collect();
        path.reverse();
        path
    }

    /// Number of tokens before the end of a path.
    pub(super) fn position(&self, tip: Option<Place>) -> u32 {
        tip.map_or(0, |(node, end)| self.nodes[node].start + end)
    }

    /// Key of the state that the next action of a trajectory acts on.
    pub(super) fn state_key(&self, index: usize) -> [u8; 16] {
        let entry = &self.trajectories[index];
        let of_node = entry.tip.map(|(node, _)| self.nodes[node].state_key);
        entry.state_key.or(of_node).unwrap_or_else(|| hash_bytes(b""))
    }

    /// Append a node to a trajectory, without checks: [`Forest::append`](super::Forest::append) makes them first.
    pub(super) fn attach(&mut self, index: usize, new: NewNode) -> usize {
        let tip = self.trajectories[index].tip;
        let start = self.position(tip);
        let state_key = self.state_key(index);
        let node = Node::new(new, tip, start, state_key);
        let (kind, tokens) = (node.content.kind, node.len());
        let entry = &mut self.trajectories[index];
        entry.state_key = None;
        if tip.is_none() && kind == Kind::Prompt {
            let alike = self.roots.entry(hash_tokens(&node.content.tokens)).or_default();
            if let Some(&root) = alike.iter().find(|&&root| self.nodes[root].begins_like(&node)) {
                entry.tip = Some((root, tokens));
                return root;
            }
            alike.push(self.nodes.len());
        }
        let local = self.nodes.len();
        self.nodes.push(node);
        if kind == Kind::Action {
            let last = (local, start + tokens);
            let begun = OpenStep { first_node: local, start, state_key, last, segments: 0 };
            let open = entry.open.get_or_insert(begun);
            *open = OpenStep { last, segments: open.segments + 1, ..*open };
        } else {
            entry.close_step(index, &StepOutcome::default());
        }
        entry.tip = Some((local, tokens));
        local
    }

    /// Record rows of a token column that are given with a node, for the tokens of its path that they cover.
    pub(super) fn record(&mut self, node: usize, name: &str, of: RowType, rows: &TokenRows) {
        let begin = rows.begin.unwrap_or(self.nodes[node].start as usize);
        let end = begin + rows.len();
        let mut place = Some((node, self.nodes[node].len()));
        while let Some((node, used)) = place {
            let node = &mut self.nodes[node];
            let start = node.start as usize;
            let (from, to) = (begin.max(start), end.min(start + used as usize));
            if node.stored.is_none() && from < to {
                let tokens = node.content.tokens.len();
                let own = node.rows.entry(name.to_owned()).or_insert_with(|| NodeRows::new(of, tokens));
                own.fill(from - start..to - start, rows, from - begin);
            }
            if start <= begin {
                break;
            }
            place = node.parent;
        }
    }
}
