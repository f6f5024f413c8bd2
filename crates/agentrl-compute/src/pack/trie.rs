//! Prefix trie of sequences: shared prefixes are stored once.

use std::cmp::Ordering;
use std::ops::Range;

/// Sequences of comparable elements. The last element of a sequence is predicted and never read.
pub trait Sequences {
    /// Number of elements of a sequence.
    fn length(&self, sequence: usize) -> usize;

    /// Length of the common prefix of two sequences.
    fn common(&self, a: usize, b: usize) -> usize;

    /// Return the element of a sequence at a depth, as a number that is equal for equal elements.
    fn element(&self, sequence: usize, depth: usize) -> i64;

    /// Number of rows of a sequence by itself.
    fn rows(&self, sequence: usize) -> usize {
        self.length(sequence).saturating_sub(1)
    }

    /// Number of rows that two sequences share.
    fn shared_rows(&self, a: usize, b: usize) -> usize {
        self.common(a, b).min(self.rows(a)).min(self.rows(b))
    }
}

/// Sort sequences lexicographically, so that sequences with a common prefix are neighbours; equal ones keep their
/// order.
pub fn in_order<S: Sequences>(sequences: &S, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| {
        let common = sequences.common(a, b);
        let (left, right) = (sequences.length(a), sequences.length(b));
        if common < left && common < right {
            sequences.element(a, common).cmp(&sequences.element(b, common))
        } else if common == left && common == right {
            Ordering::Equal
        } else {
            left.cmp(&right)
        }
    });
    order
}

/// The rows that a sequence adds to a [`Trie`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The sequence.
    pub sequence: usize,
    /// Number of leading elements that lie on earlier branches.
    pub from: usize,
    /// Number of elements of the sequence.
    pub to: usize,
    /// Node of the element at depth `from`.
    pub node: usize,
    /// Row of the element at depth `from`.
    pub row: usize,
    /// Number of rows; one less than the number of nodes if nothing reads the last element.
    pub rows: usize,
    /// Index of the branch that holds the element before `from`.
    parent: usize,
}

/// Part of the path of a sequence: consecutive depths whose nodes and rows are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Depth of the first element.
    pub from: usize,
    /// Depth after the last element.
    pub to: usize,
    /// Node of the first element.
    pub node: usize,
    /// Row of the first element.
    pub row: usize,
}

/// Prefix trie in depth-first order.
///
/// Every distinct prefix of a sequence is a node. A node has a row if something reads it: all nodes except the last
/// elements of sequences that no other sequence continues. Nodes and rows are numbered in depth-first order, so row `k`
/// is on the path of row `q` if and only if `k <= q` and `q` is below the end of the subtree of `k`.
///
/// ```
/// use agentrl_compute::pack::{TokenRows, Trie, in_order};
/// use agentrl_compute::ragged::Ragged;
///
/// let tokens = TokenRows::new(Ragged::new(&[5, 6, 7, 5, 6, 8, 9], &[0, 3, 7])?, None)?;
/// let trie = Trie::new(&tokens, &in_order(&tokens, 2));
/// let mut ends = vec![0; trie.rows()];
/// trie.subtree_ends(&mut ends);
/// // The rows are 5, 6 and 8: nothing reads 7 or 9.
/// assert_eq!((trie.rows(), ends), (3, vec![3, 3, 3]));
/// assert_eq!(trie.branches()[1].from, 2);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Trie {
    branches: Vec<Branch>,
    /// Ranges of rows, and the row at which the subtrees of all rows of the range end.
    ends: Vec<(Range<usize>, usize)>,
    /// First row of each tree, then the number of rows.
    starts: Vec<usize>,
    nodes: usize,
}

impl Trie {
    /// Build the trie of sequences that are given in the order of [`in_order`].
    pub fn new<S: Sequences>(sequences: &S, order: &[usize]) -> Self {
        let mut trie = Self { branches: Vec::with_capacity(order.len()), ..Self::default() };
        // Path of the previous branch: indices of branches, and the depth up to which each is still open.
        let mut open: Vec<(usize, usize)> = Vec::new();
        let (mut rows, mut before) = (0, None);
        for (place, &sequence) in order.iter().enumerate() {
            let to = sequences.length(sequence);
            let from = before.map_or(0, |before| sequences.common(before, sequence));
            rows = trie.close(&mut open, from, rows);
            if from == 0 && to > 0 {
                trie.starts.push(rows);
            }
            let parent = open.last().map_or(place, |&(parent, _)| parent);
            // A sequence that adds no elements has no row.
            let row = if to > from { rows } else { 0 };
            trie.branches.push(Branch { sequence, from, to, node: trie.nodes, row, rows: to - from, parent });
            if to > from {
                open.push((place, to));
            }
            (rows, trie.nodes) = (rows + to - from, trie.nodes + to - from);
            before = Some(sequence);
        }
        rows = trie.close(&mut open, 0, rows);
        // A tree of a single element is predicted from nothing and has no row.
        trie.starts.push(rows);
        trie.starts.dedup();
        trie
    }

    /// End all subtrees at `depth` and below, and return the number of rows.
    fn close(&mut self, open: &mut Vec<(usize, usize)>, depth: usize, mut rows: usize) -> usize {
        // The deepest element ends a sequence: if nothing continues from it, nothing reads it.
        let leaf = open.last().is_some_and(|&(_, to)| to > depth);
        if let Some((place, _)) = open.last().filter(|_| leaf) {
            self.branches[*place].rows -= 1;
            rows -= 1;
        }
        while let Some((place, to)) = open.last_mut().filter(|(_, to)| *to > depth) {
            let branch = &self.branches[*place];
            let keep = depth.max(branch.from);
            let first = branch.row + keep - branch.from;
            let last = (branch.row + *to - branch.from).min(branch.row + branch.rows);
            if first < last {
                self.ends.push((first..last, rows));
            }
            if keep > branch.from {
                *to = keep;
            } else {
                open.pop();
            }
        }
        rows
    }

    /// Return the branch of each sequence, in the order in which the sequences were given.
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Number of nodes: rows, and elements that nothing reads.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// First row of each tree, then the number of rows.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Return the path of a branch's sequence from the root, in spans of consecutive nodes and rows.
    pub fn path(&self, place: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        let (mut place, mut to) = (place, self.branches[place].to);
        loop {
            let Branch { from, node, row, parent, .. } = self.branches[place];
            if to > from {
                spans.push(Span { from, to, node, row });
            }
            if from == 0 {
                spans.reverse();
                return spans;
            }
            (place, to) = (parent, from);
        }
    }

    /// Write the row after the subtree of each row.
    pub fn subtree_ends(&self, out: &mut [i32]) {
        for (rows, end) in &self.ends {
            out[rows.clone()].fill(*end as i32);
        }
    }

    /// Write the depth of each row, which is the position of its token.
    pub fn depths(&self, out: &mut [i64]) {
        for branch in &self.branches {
            let rows = &mut out[branch.row..branch.row + branch.rows];
            rows.iter_mut().zip(branch.from as i64..).for_each(|(out, depth)| *out = depth);
        }
    }
}
