//! A group of a forest: the tree of its nodes, and its trajectories.

use std::collections::{BTreeMap, BTreeSet};

use agentrl_compute::hash::{hash_bytes, hash_tokens};
use arrow_array::RecordBatch;

use super::decision::Decision;
use super::group_key::GroupKey;
use super::handle::{GroupHandle, Place};
use super::node::{NewNode, Node};
use super::steps::{OpenStep, StepOutcome};
use super::trajectory::Trajectory;
use crate::schema::Kind;
use crate::token_columns::{NodeRows, RowType, TokenRows};

/// A group of a forest: its tree of nodes and its trajectories.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) key: GroupHandle,
    /// Number that the caller gave the group.
    pub(super) number: u32,
    /// Key that determines its seeds and the order of its rows.
    pub(super) origin: GroupKey,
    pub(super) task_id: String,
    pub(super) nodes: Vec<Node>,
    /// Prompts at the roots of the tree, by the hash of their tokens; members with equal prompts share one.
    pub(super) roots: BTreeMap<[u8; 16], Vec<usize>>,
    pub(super) trajectories: Vec<Trajectory>,
    /// Pairs of member and agent that were started.
    pub(super) started: BTreeSet<(u32, i32)>,
    pub(super) decisions: Vec<Decision>,
    pub(super) adopted: Adopted,
    /// Indices of the changed trajectories, in the order of the changes. A reader that returns reads only these again.
    pub(super) changed: Vec<usize>,
}

/// Rows that the group adopted from a store.
#[derive(Clone, Debug, Default)]
pub(super) struct Adopted {
    /// Index in the group of each adopted node, by its id.
    pub(super) nodes: BTreeMap<i64, usize>,
    /// Index in the group of each adopted trajectory, by its id.
    pub(super) trajectories: BTreeMap<i64, usize>,
    /// The stored rows of `nodes`, `steps` and `trajectories`, one entry for each adopted trajectory.
    pub(super) rows: Vec<[RecordBatch; 3]>,
}

impl Group {
    /// Record that a trajectory changes, for later readers of the group.
    pub(super) fn changes(&mut self, index: usize) {
        if self.changed.last() != Some(&index) {
            self.changed.push(index);
        }
    }

    /// Return the nodes of a path from its root, each with the number of its tokens that the path uses.
    pub(super) fn path(&self, tip: Option<Place>) -> Vec<Place> {
        let mut path: Vec<_> = std::iter::successors(tip, |&(node, _)| self.nodes[node].parent).collect();
        path.reverse();
        path
    }

    /// Return the number of tokens of a path.
    pub(super) fn position(&self, tip: Option<Place>) -> u32 {
        tip.map_or(0, |(node, end)| self.nodes[node].start + end)
    }

    /// Return the key of the state that the next action of a trajectory acts on.
    pub(super) fn state_key(&self, index: usize) -> [u8; 16] {
        let entry = &self.trajectories[index];
        let of_node = entry.tip.map(|(node, _)| self.nodes[node].state_key);
        entry.state_key.or(of_node).unwrap_or_else(|| hash_bytes(b""))
    }

    /// Append a node to a trajectory without checks; [`Forest::append`](super::Forest::append) checks it first.
    pub(super) fn attach(&mut self, index: usize, new: NewNode) -> usize {
        let tip = self.trajectories[index].tip;
        let start = self.position(tip);
        let state_key = self.state_key(index);
        let node = Node::new(new, tip, start, state_key);
        let (kind, tokens) = (node.content.kind, node.len());
        let entry = &mut self.trajectories[index];
        entry.state_key = None;
        if tip.is_none() && kind == Kind::Prompt {
            let candidates = self.roots.entry(hash_tokens(&node.content.tokens)).or_default();
            if let Some(&root) = candidates.iter().find(|&&root| self.nodes[root].begins_like(&node)) {
                entry.tip = Some((root, tokens));
                return root;
            }
            candidates.push(self.nodes.len());
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

    /// Record the rows of a token column given with a node, for the tokens of its path that they cover.
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
