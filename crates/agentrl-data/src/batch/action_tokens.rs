//! The action tokens of a batch and their places in its nodes.

use std::ops::Range;
use std::sync::Arc;

use super::node_tree::{NodeTree, PathNode};

/// The place of an action token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActionToken {
    /// Index in the `token` level.
    pub(super) token: usize,
    /// Index in the `node_token` level.
    pub(super) node_token: i64,
    /// Position on the path of its context.
    pub(super) position: i32,
}

/// The action of one step: the tokens of a path from the beginning of a node to a place in the same or a later node.
#[derive(Clone, Copy, Debug)]
struct Action {
    /// Index of its first token in the `token` level.
    token: usize,
    /// Row of its first node.
    first: usize,
    last: PathNode,
}

/// The action tokens by step. Nodes between the first and the last one of an action are found by a walk upwards. Lists
/// of these nodes would be quadratic in a chain of forks that each begin inside the action before.
#[derive(Clone, Debug, Default)]
pub(super) struct Actions {
    tree: Arc<NodeTree>,
    steps: Vec<Action>,
    count: usize,
}

impl Actions {
    pub(super) fn new(tree: Arc<NodeTree>) -> Self {
        Self { tree, steps: Vec::new(), count: 0 }
    }

    /// Add the action of the next step. The node in row `first` is on the path that ends in `last`.
    pub(super) fn push(&mut self, first: usize, last: PathNode) {
        self.steps.push(Action { token: self.count, first, last });
        self.count += self.tree.end(last) - self.tree.before(first);
    }

    /// Number of action tokens.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Return one action token.
    pub(super) fn at(&self, token: usize) -> ActionToken {
        let action = self.steps[self.action_of(token)];
        let on_path = self.tree.before(action.first) + token - action.token;
        let mut above = self.tree.upwards(action.last).skip_while(|node| self.tree.before(node.row) > on_path);
        let row = above.next().map_or(action.first, |node| node.row);
        self.token(token, row, on_path - self.tree.before(row))
    }

    /// Return the action tokens of a range of the token level.
    pub(super) fn of(&self, tokens: Range<usize>) -> impl Iterator<Item = ActionToken> {
        let first = if tokens.is_empty() { self.steps.len() } else { self.action_of(tokens.start) };
        let actions = self.steps[first..].iter().take_while(move |action| action.token < tokens.end);
        actions.flat_map(|action| self.runs(action)).flat_map(move |(token, node)| {
            let own = token.max(tokens.start)..(token + node.used).min(tokens.end);
            own.map(move |each| self.token(each, node.row, each - token))
        })
    }

    /// Return the runs of action tokens that lie in one node, in order, as ranges of the `node_token` level.
    pub(super) fn node_tokens(&self) -> impl Iterator<Item = Range<usize>> {
        self.steps.iter().flat_map(|action| self.runs(action)).map(|(_, node)| {
            let first = self.tree.offsets[node.row] as usize;
            first..first + node.used
        })
    }

    /// Return the same runs as positions on the paths of their contexts.
    pub(super) fn positions(&self) -> impl Iterator<Item = Range<i32>> {
        self.steps.iter().flat_map(|action| self.runs(action)).map(|(_, node)| {
            let first = self.tree.starts.value(node.row);
            first..first + node.used as i32
        })
    }

    /// Return the nodes of an action in the order of the path, each with the index of its first token.
    fn runs(&self, action: &Action) -> impl Iterator<Item = (usize, PathNode)> + use<'_> {
        let first = action.first;
        // Most actions are one node, for which nothing is allocated.
        let above: Vec<_> = if action.last.row == first {
            Vec::new()
        } else {
            self.tree.upwards(action.last).skip(1).take_while(|node| node.row >= first).collect()
        };
        let nodes = above.into_iter().rev().chain(std::iter::once(action.last));
        nodes.filter(|node| node.used > 0).scan(action.token, |next, node| {
            let token = *next;
            *next += node.used;
            Some((token, node))
        })
    }

    fn action_of(&self, token: usize) -> usize {
        self.steps.partition_point(|action| action.token <= token) - 1
    }

    /// Return the place of a token of the token level that is token `place` of the node in `row`.
    fn token(&self, token: usize, row: usize, place: usize) -> ActionToken {
        ActionToken {
            token,
            node_token: self.tree.offsets[row] + place as i64,
            position: self.tree.starts.value(row) + place as i32,
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Int32Array;
    use proptest::prelude::*;

    use super::*;

    /// A chain of nodes. Each pair has the number of tokens that the next node uses and the number of tokens after
    /// them.
    fn path(lengths: &[(usize, usize)]) -> Arc<NodeTree> {
        let (mut above, mut starts, mut offsets) = (vec![None], vec![0], vec![0]);
        for (row, &(used, rest)) in lengths.iter().enumerate() {
            above.push(Some(PathNode { row, used }));
            starts.push(starts[row] + used as i32);
            offsets.push(offsets[row] + (used + rest) as i64);
        }
        offsets.push(offsets[lengths.len()] + 9);
        Arc::new(NodeTree::new(above, Int32Array::from(starts), offsets))
    }

    #[test]
    fn action_tokens_lie_in_their_nodes() {
        // Nodes of 2, 3 and 9 tokens; the path uses 2, 1 and 4 of them.
        let tree = path(&[(2, 0), (1, 2)]);
        let mut actions = Actions::new(tree);
        actions.push(1, PathNode { row: 2, used: 4 });
        actions.push(0, PathNode { row: 0, used: 2 });
        assert_eq!(actions.len(), 7);
        assert_eq!(actions.node_tokens().collect::<Vec<_>>(), [2..3, 5..9, 0..2]);
        assert_eq!(actions.positions().collect::<Vec<_>>(), [2..3, 3..7, 0..2]);
        assert_eq!(actions.at(1), ActionToken { token: 1, node_token: 5, position: 3 });
        let tokens: Vec<_> = actions.of(0..2).map(|at| (at.token, at.node_token, at.position)).collect();
        assert_eq!(tokens, [(0, 2, 2), (1, 5, 3)]);
    }

    proptest! {
        /// Actions return the same numbers as a list with one entry per token.
        #[test]
        fn actions_are_a_number_for_each_token(
            lengths in prop::collection::vec((0_usize..4, 0_usize..3), 0..12),
            given in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_usize..5), 0..12),
            cuts in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let tree = path(&lengths);
            let mut actions = Actions::new(Arc::clone(&tree));
            let mut naive: Vec<(i64, i32)> = Vec::new();
            for (last, first, used) in given {
                let last = last.index(lengths.len() + 1);
                let first = first.index(last + 1);
                actions.push(first, PathNode { row: last, used });
                for row in first..=last {
                    let count = lengths.get(row).filter(|_| row != last).map_or(used, |length| length.0);
                    naive.extend((0..count).map(|at| (tree.offsets[row] + at as i64, tree.starts.value(row) + at as i32)));
                }
            }
            prop_assert_eq!(actions.len(), naive.len());
            let (one, other) = (cuts.0.index(naive.len() + 1), cuts.1.index(naive.len() + 1));
            let (from, to) = (one.min(other), one.max(other));
            let found: Vec<_> = actions.of(from..to).map(|at| (at.token, at.node_token, at.position)).collect();
            let wanted: Vec<_> = (from..to).map(|token| (token, naive[token].0, naive[token].1)).collect();
            prop_assert_eq!(found, wanted);
            for (token, &(node_token, position)) in naive.iter().enumerate() {
                prop_assert_eq!(actions.at(token), ActionToken { token, node_token, position });
            }
            let stored: Vec<_> = actions.node_tokens().flatten().map(|token| token as i64).collect();
            let positions: Vec<_> = actions.positions().flatten().collect();
            prop_assert_eq!(stored, naive.iter().map(|at| at.0).collect::<Vec<_>>());
            prop_assert_eq!(positions, naive.iter().map(|at| at.1).collect::<Vec<_>>());
        }
    }
}
