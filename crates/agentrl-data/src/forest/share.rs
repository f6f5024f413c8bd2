//! Prompts that begin alike, stored once: a radix tree over the prompts of a group, in canonical order.
//!
//! While a forest is live only equal prompts share a node, because what a trajectory was told must not depend on who came
//! first. When it freezes, the order is known: each prompt becomes a child of the earlier ones at the first token that
//! differs from them, and holds the rest of its tokens, if there are any. Nothing is cut, and no live node changes.

use std::collections::BTreeMap;

use agentrl_compute::prefix::common_prefix;

use super::node::Node;
use super::{Group, Place};
use crate::schema::Kind;

/// Which tokens of each node its own row holds, and what comes before them.
///
/// Places here name nodes that have rows of tokens, and count the tokens of those rows.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    /// Number of first tokens of each node that earlier rows hold.
    shared: Vec<u32>,
    /// Where those tokens, or else the node before, end.
    parents: Vec<Option<Place>>,
    /// Whether a node belongs to the radix tree.
    prompts: Vec<bool>,
    /// The prompt that goes on after a place with a token.
    children: BTreeMap<(Option<Place>, i32), usize>,
}

impl Rest {
    /// Nothing is placed yet; nodes that are never placed are rows of their own.
    pub(super) fn new(group: &Group) -> Self {
        Self {
            shared: vec![0; group.nodes.len()],
            parents: group.nodes.iter().map(|node| node.parent).collect(),
            prompts: vec![false; group.nodes.len()],
            children: BTreeMap::new(),
        }
    }

    /// Place a node whose parent is placed; return whether any of its tokens need a row.
    pub(super) fn place(&mut self, group: &Group, index: usize) -> bool {
        let node = &group.nodes[index];
        let parent = node.parent.map(|parent| self.resolve(group, parent));
        self.parents[index] = parent;
        if !(parent.is_none_or(|(above, _)| self.prompts[above]) && is_plain_prompt(node)) {
            return true;
        }
        self.prompts[index] = true;
        let tokens = &node.content.tokens;
        let mut place = parent;
        let mut same = 0;
        loop {
            if let Some((row, used)) = &mut place {
                let more = common_prefix(&self.tokens(group, *row)[*used as usize..], &tokens[same..]);
                same += more;
                *used += more as u32;
            }
            let Some(&next) = tokens.get(same) else { break };
            let Some(&child) = self.children.get(&(place, next)) else {
                self.children.insert((place, next), index);
                break;
            };
            place = Some((child, 0));
        }
        (self.shared[index], self.parents[index]) = (same as u32, place);
        same < tokens.len()
    }

    /// Number of tokens on the path before a node's row.
    pub(super) fn start(&self, group: &Group, index: usize) -> u32 {
        group.nodes[index].start + self.shared[index]
    }

    /// The tokens of a node's row.
    pub(super) fn tokens<'a>(&self, group: &'a Group, index: usize) -> &'a [i32] {
        &group.nodes[index].content.tokens[self.shared[index] as usize..]
    }

    /// The place before a node's row.
    pub(super) fn parent(&self, index: usize) -> Option<Place> {
        self.parents[index]
    }

    /// The place among rows where the first `end` tokens of a node end.
    pub(super) fn resolve(&self, group: &Group, (index, end): Place) -> Place {
        let position = group.nodes[index].start + end;
        let mut row = index;
        while let Some((above, _)) = self.parents[row].filter(|_| position <= self.start(group, row)) {
            row = above;
        }
        (row, position - self.start(group, row))
    }
}

/// Whether a new prompt has nothing but its tokens.
fn is_plain_prompt(node: &Node) -> bool {
    let content = &node.content;
    node.stored.is_none()
        && content.kind == Kind::Prompt
        && content.entropies.is_none()
        && content.trainable.is_none()
        && content.blobs.is_empty()
        && content.origin.is_none()
        && (content.policy, content.policy_version, content.seed) == (0, None, None)
        && content.sampling.is_none()
        && content.finish_reason as u8 == 0
}
