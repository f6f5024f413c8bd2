//! Layout of token rows as prefix trees.

use super::pairs::Folded;
use super::{Sequences, Trie, in_order};
use crate::prefix::common_prefix;
use crate::ragged::Ragged;
use crate::{Error, Result};

/// Token rows, each up to its last trained token.
#[derive(Clone, Debug)]
pub struct TokenRows<'a> {
    tokens: Ragged<'a, i32>,
    lengths: Vec<usize>,
}

impl<'a> TokenRows<'a> {
    /// Create rows. `trained` is a mask of the flat values; `None` trains all tokens but the first of each row.
    ///
    /// # Errors
    /// `InvalidInput` if the mask has another length, or the first token of a row is trained.
    pub fn new(tokens: Ragged<'a, i32>, trained: Option<&[bool]>) -> Result<Self> {
        let Some(trained) = trained else {
            return Ok(Self { tokens, lengths: tokens.iter().map(<[i32]>::len).collect() });
        };
        if trained.len() != tokens.values().len() {
            return Err(Error::invalid(format!(
                "trained has {} values for {} tokens; give one for each",
                trained.len(),
                tokens.values().len()
            )));
        }
        let lengths = (0..tokens.len()).map(|row| {
            let mask = &trained[tokens.range(row)];
            if mask.first() == Some(&true) {
                return Err(Error::invalid(format!(
                    "trained is true for the first token of row {row}, but no token before it can predict it; make \
                     it false"
                )));
            }
            Ok(mask.iter().rposition(|&trained| trained).map_or(0, |last| last + 1))
        });
        Ok(Self { tokens, lengths: lengths.collect::<Result<_>>()? })
    }

    fn row(&self, row: usize) -> &'a [i32] {
        &self.tokens.get(row).unwrap_or_default()[..self.lengths[row]]
    }
}

impl Sequences for TokenRows<'_> {
    fn length(&self, sequence: usize) -> usize {
        self.lengths[sequence]
    }

    fn common(&self, a: usize, b: usize) -> usize {
        common_prefix(self.row(a), self.row(b))
    }

    fn element(&self, sequence: usize, depth: usize) -> i64 {
        i64::from(self.row(sequence)[depth])
    }
}

/// Prefix trees of token rows: shared prefixes are stored once, and equal trained tokens in them are one prediction.
#[derive(Clone, Debug)]
pub struct RowTree<'a> {
    rows: TokenRows<'a>,
    trie: Trie,
    folded: Folded,
}

/// The arrays that a [`RowTree`] writes: `T` rows, `S` trees, `N` pairs, `M` trained tokens.
#[derive(Debug)]
pub struct RowArrays<'a> {
    /// Input tokens, `[T]`.
    pub input_ids: &'a mut [i64],
    /// Position of each input token, `[T]`.
    pub position_ids: &'a mut [i64],
    /// Row after the subtree of each row, `[T]`.
    pub subtree_end: &'a mut [i32],
    /// First row of each tree, then `T`, `[S + 1]`.
    pub cu_seqlens: &'a mut [i32],
    /// Row that predicts each pair, `[N]`.
    pub source_row: &'a mut [i64],
    /// Predicted token of each pair, `[N]`.
    pub target: &'a mut [i64],
    /// Index of each pair's first token in the flat values, `[N]`.
    pub token: &'a mut [i64],
    /// Offsets of the pairs in `pair_tokens`, `[N + 1]`.
    pub pair_offsets: &'a mut [i64],
    /// Indices in the flat values of the tokens of each pair, `[M]`.
    pub pair_tokens: &'a mut [i64],
}

impl<'a> RowTree<'a> {
    /// Build the trees of some rows. Trained tokens at the same node are one pair if they agree in all columns of
    /// `same`.
    ///
    /// # Errors
    /// See [`TokenRows::new`] and [`fold`](super::fold()); `Overflow` for 2³¹ nodes or more.
    pub fn new(tokens: Ragged<'a, i32>, trained: Option<&[bool]>, same: &[&[f32]]) -> Result<Self> {
        let rows = TokenRows::new(tokens, trained)?;
        let trie = Trie::new(&rows, &in_order(&rows, tokens.len()));
        if trie.nodes() > i32::MAX as usize {
            return Err(Error::overflow(format!(
                "the trees have {} tokens, more than 2^31 - 1; give fewer rows",
                trie.nodes()
            )));
        }
        let mut nodes = vec![0; tokens.values().len()];
        for (place, branch) in trie.branches().iter().enumerate() {
            let row = &mut nodes[tokens.range(branch.sequence)];
            for span in trie.path(place) {
                row[span.from..span.to].iter_mut().zip(span.node as u32..).for_each(|(out, node)| *out = node);
            }
        }
        let all_but_first: Vec<bool>;
        let trained = if let Some(trained) = trained {
            trained
        } else {
            let mut mask = vec![false; nodes.len()];
            for row in 0..tokens.len() {
                mask[tokens.range(row)].iter_mut().skip(1).for_each(|trained| *trained = true);
            }
            all_but_first = mask;
            &all_but_first
        };
        let folded = Folded::new(nodes, trie.nodes(), trained, same)?;
        Ok(Self { rows, trie, folded })
    }

    /// Return the prefix trie.
    pub fn trie(&self) -> &Trie {
        &self.trie
    }

    /// Number of pairs.
    pub fn pairs(&self) -> usize {
        self.folded.pairs
    }

    /// Number of trained tokens.
    pub fn trained(&self) -> usize {
        self.folded.items
    }

    /// Write all arrays, which must have the right lengths.
    pub fn fill(&self, out: &mut RowArrays<'_>) {
        let tokens = self.rows.tokens;
        self.trie.depths(out.position_ids);
        self.trie.subtree_ends(out.subtree_end);
        out.cu_seqlens.iter_mut().zip(self.trie.starts()).for_each(|(out, &start)| *out = start as i32);
        self.folded.fill(out.pair_offsets, out.pair_tokens);
        let mut places = vec![0; tokens.len()];
        for (place, branch) in self.trie.branches().iter().enumerate() {
            let row = self.rows.row(branch.sequence);
            let into = &mut out.input_ids[branch.row..branch.row + branch.rows];
            into.iter_mut().zip(&row[branch.from..]).for_each(|(out, &token)| *out = i64::from(token));
            places[branch.sequence] = place;
        }
        // Pairs are in the order of their first tokens.
        let mut next = 0;
        for (sequence, place) in places.into_iter().enumerate() {
            let (row, begin) = (self.rows.row(sequence), tokens.range(sequence).start);
            for span in self.trie.path(place) {
                // A token is predicted by the row before it, so the first token of a span belongs to the previous span.
                let (from, to) = (span.from + 1, row.len().min(span.to + 1));
                let pairs = &self.folded.of[begin + from..begin + to];
                for ((depth, &pair), source) in (from..).zip(pairs).zip(span.row..) {
                    if pair as usize == next {
                        out.source_row[next] = source as i64;
                        out.target[next] = i64::from(row[depth]);
                        out.token[next] = (begin + depth) as i64;
                        next += 1;
                    }
                }
            }
        }
    }
}
