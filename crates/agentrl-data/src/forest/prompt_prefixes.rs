//! Shared beginnings of prompts, stored once: a radix tree over the prompts of a group, in canonical order.
//!
//! In a live forest only equal prompts share a node, because its nodes must not depend on the order of arrival. When
//! the forest freezes, the order is known: each prompt becomes a child of the earlier prompts at the first token that
//! differs from them. Its row holds the remaining tokens, if there are any. No node is split, and no live node changes.

use std::collections::BTreeMap;

use agentrl_compute::prefix::common_prefix;

use super::node::Node;
use super::{Group, Place};
use crate::schema::Kind;

/// For each node, the tokens that its own row holds, and the place before them.
///
/// Places in this struct refer to nodes that have rows, and count the tokens of these rows.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    /// Number of leading tokens of each node that earlier rows hold.
    shared: Vec<u32>,
    /// End of these leading tokens; if there are none, the end of the node before.
    parents: Vec<Option<Place>>,
    /// Whether each node belongs to the radix tree.
    prompts: Vec<bool>,
    /// Prompt that continues after a place with a token, by place and token.
    children: BTreeMap<(Option<Place>, i32), usize>,
}

impl Rest {
    /// Start with no node placed. A node that is never placed has a row of its own.
    pub(super) fn new(group: &Group) -> Self {
        Self {
            shared: vec![0; group.nodes.len()],
            parents: group.nodes.iter().map(|node| node.parent).collect(),
            prompts: vec![false; group.nodes.len()],
            children: BTreeMap::new(),
        }
    }

    /// Place a node whose parent is placed. Return whether any of its tokens need a row.
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

    /// Return the number of tokens on the path before a node's row.
    pub(super) fn start(&self, group: &Group, index: usize) -> u32 {
        group.nodes[index].start + self.shared[index]
    }

    /// Return the tokens of a node's row.
    pub(super) fn tokens<'a>(&self, group: &'a Group, index: usize) -> &'a [i32] {
        &group.nodes[index].content.tokens[self.shared[index] as usize..]
    }

    /// Return the place before a node's row.
    pub(super) fn parent(&self, index: usize) -> Option<Place> {
        self.parents[index]
    }

    /// Return the place, among rows, at which the first `end` tokens of a node end.
    pub(super) fn resolve(&self, group: &Group, (index, end): Place) -> Place {
        let position = group.nodes[index].start + end;
        let mut row = index;
        while let Some((above, _)) = self.parents[row].filter(|_| position <= self.start(group, row)) {
            row = above;
        }
        (row, position - self.start(group, row))
    }
}

/// Whether a node is a new prompt without any data except its tokens.
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
