//! The flat arrays of one forward pass.

use std::ops::Range;

use agentrl_compute::pack::{Span, Trie};

use super::action_tokens::ActionToken;
use super::image_uses::ImageUses;
use super::lists;
use super::plan::{PackLayout, Paths, Plan};
use crate::{Error, Result};

/// Lengths of the arrays of a pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackSizes {
    /// Number of tokens that are read, `T`.
    pub rows: usize,
    /// Number of runs of rows that attend only to themselves, `S`: sequences, or trees.
    pub runs: usize,
    /// Number of paths, `P`: sequences, or branches of trees.
    pub paths: usize,
    /// Number of prediction pairs, `N`.
    pub pairs: usize,
    /// Number of action tokens of all pairs, `M`: one per pair, or more if predictions are folded.
    pub tokens: usize,
}

/// Arrays of one forward pass; `T`, `S`, `P`, `N` and `M` are those of [`PackSizes`].
#[derive(Debug)]
pub struct PackArrays<'a> {
    /// Token ids, `[T]`.
    pub input_ids: &'a mut [i64],
    /// Position of each token on its path, `[T]`.
    pub position_ids: &'a mut [i64],
    /// Row after the last one that may attend to each token: the end of its subtree or of its sequence, `[T]`.
    pub subtree_end: &'a mut [i32],
    /// First row of each sequence or tree, and `T` last, `[S + 1]`.
    pub cu_seqlens: &'a mut [i32],
    /// Draw of each path, `[P]`.
    pub draw: &'a mut [i64],
    /// Row of the hidden states that predicts each pair, `[N]`.
    pub source_row: &'a mut [i64],
    /// Token that the pair predicts, `[N]`.
    pub target: &'a mut [i64],
    /// Index at level `token` of the predicted token; the first one if several are folded into the pair, `[N]`.
    pub token: &'a mut [i64],
    /// Index at level `node_token` of the predicted token, `[N]`.
    pub node_token: &'a mut [i64],
    /// Begin of each pair's tokens in `pair_tokens`, and `M` last, `[N + 1]`.
    pub pair_offsets: &'a mut [i64],
    /// Indices at level `token` of each pair's tokens, `[M]`.
    pub pair_tokens: &'a mut [i64],
}

/// The arrays of [`PackArrays`] in memory of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are those of PackArrays")]
pub struct PlannedPack {
    pub input_ids: Vec<i64>,
    pub position_ids: Vec<i64>,
    pub subtree_end: Vec<i32>,
    pub cu_seqlens: Vec<i32>,
    pub draw: Vec<i64>,
    pub source_row: Vec<i64>,
    pub target: Vec<i64>,
    pub token: Vec<i64>,
    pub node_token: Vec<i64>,
    pub pair_offsets: Vec<i64>,
    pub pair_tokens: Vec<i64>,
}

/// A pack of a plan: the layout of its arrays.
#[derive(Debug)]
pub struct LaidOut<'a> {
    plan: &'a Plan,
    sequences: &'a [usize],
    /// Trie of the sequences, in the tree layout.
    trie: Option<Trie>,
    sizes: PackSizes,
}

impl Plan {
    /// Layout of the sequences in the packs.
    pub fn layout(&self) -> PackLayout {
        self.layout
    }

    /// Number of packs.
    pub fn len(&self) -> usize {
        self.packs.len()
    }

    /// Whether there is no pack.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }

    /// Return all packs, in memory of their own.
    pub fn packs(&self) -> Result<Vec<PlannedPack>> {
        (0..self.len()).map(|index| self.pack(index)?.to_owned()).collect()
    }

    /// Return the images of the sequences of one pack, up to the last trained token of each. Places are numbers of
    /// sequences in the pack.
    pub fn images(&self, index: usize) -> Result<ImageUses> {
        let (blobs, paths) = (lists(self.batch.nodes(), "blobs")?, self.paths()?);
        let mut found = ImageUses::default();
        for (place, &sequence) in self.sequences_of(index)?.iter().enumerate() {
            for row in paths.rows_before(sequence, self.sequences[sequence].rows) {
                found.add(blobs, row, place)?;
            }
        }
        Ok(found)
    }

    fn sequences_of(&self, index: usize) -> Result<&[usize]> {
        let count = self.len();
        self.packs.get(index).map(Vec::as_slice).ok_or_else(|| {
            Error::not_found(format!("pack {index} does not exist; give an index below the {count} packs of the plan"))
        })
    }

    /// Lay out one pack.
    pub fn pack(&self, index: usize) -> Result<LaidOut<'_>> {
        let sequences = self.sequences_of(index)?;
        let trie = (self.layout == PackLayout::Tree)
            .then(|| self.paths().map(|paths| Trie::new(&paths, sequences)))
            .transpose()?;
        let mut sizes = PackSizes { paths: sequences.len(), runs: sequences.len(), ..PackSizes::default() };
        for sequence in sequences.iter().map(|&sequence| &self.sequences[sequence]) {
            sizes.rows += sequence.rows;
            for token in sequence.tokens.clone().filter(|&token| self.makes_pair[token]) {
                sizes.pairs += 1;
                sizes.tokens += self.folded.as_ref().map_or(1, |pairs| pairs.items(pairs.of[token] as usize).len());
            }
        }
        if let Some(trie) = &trie {
            (sizes.rows, sizes.runs) = (trie.rows(), trie.starts().len() - 1);
        }
        if sequences.is_empty() {
            (sizes.rows, sizes.runs) = (1, 1);
        }
        Ok(LaidOut { plan: self, sequences, trie, sizes })
    }
}

impl LaidOut<'_> {
    /// Lengths of its arrays.
    pub fn sizes(&self) -> PackSizes {
        self.sizes
    }

    /// Return the index at level `node_token` of each token that is read, `[T]`. If several nodes hold the token, the
    /// index is that in the first of its sequences. -1 for the token that a pack without sequences runs.
    pub fn row_tokens(&self) -> Result<Vec<i64>> {
        let paths = self.plan.paths()?;
        let mut stored = vec![-1; self.sizes.rows];
        let mut fill = |sequence: usize, from: usize, rows: Range<usize>| {
            let mut out = stored[rows.clone()].iter_mut();
            let tokens = paths.runs(sequence, from..from + rows.len()).flatten();
            tokens.zip(&mut out).for_each(|(token, out)| *out = token as i64);
        };
        if let Some(trie) = &self.trie {
            for branch in trie.branches() {
                fill(branch.sequence, branch.from, branch.row..branch.row + branch.rows);
            }
        } else {
            let mut begin = 0;
            for &sequence in self.sequences {
                let end = begin + self.plan.sequences[sequence].rows;
                fill(sequence, 0, begin..end);
                begin = end;
            }
        }
        Ok(stored)
    }

    /// Return the pack in memory of its own.
    pub fn to_owned(&self) -> Result<PlannedPack> {
        let PackSizes { rows, runs, paths, pairs, tokens } = self.sizes;
        let mut pack = PlannedPack {
            input_ids: vec![0; rows],
            position_ids: vec![0; rows],
            subtree_end: vec![0; rows],
            cu_seqlens: vec![0; runs + 1],
            draw: vec![0; paths],
            source_row: vec![0; pairs],
            target: vec![0; pairs],
            token: vec![0; pairs],
            node_token: vec![0; pairs],
            pair_offsets: vec![0; pairs + 1],
            pair_tokens: vec![0; tokens],
        };
        self.fill(&mut PackArrays {
            input_ids: &mut pack.input_ids,
            position_ids: &mut pack.position_ids,
            subtree_end: &mut pack.subtree_end,
            cu_seqlens: &mut pack.cu_seqlens,
            draw: &mut pack.draw,
            source_row: &mut pack.source_row,
            target: &mut pack.target,
            token: &mut pack.token,
            node_token: &mut pack.node_token,
            pair_offsets: &mut pack.pair_offsets,
            pair_tokens: &mut pack.pair_tokens,
        })?;
        Ok(pack)
    }

    /// Write the pack into arrays of the lengths in [`LaidOut::sizes`].
    pub fn fill(&self, out: &mut PackArrays<'_>) -> Result<()> {
        let paths = self.plan.paths()?;
        out.pair_offsets[0] = 0;
        if self.sequences.is_empty() {
            // A rank with nothing to train runs one token, so that it takes part in collective operations.
            out.input_ids[0] = paths.tokens.first().map_or(0, |&token| i64::from(token));
            (out.position_ids[0], out.subtree_end[0]) = (0, 1);
            out.cu_seqlens.copy_from_slice(&[0, 1]);
            return Ok(());
        }
        let draws = self.sequences.iter().map(|&sequence| self.plan.sequences[sequence].draw);
        out.draw.iter_mut().zip(draws).for_each(|(out, draw)| *out = draw);
        match &self.trie {
            Some(trie) => self.fill_tree(trie, &paths, out),
            None => self.fill_sequences(&paths, out),
        }
        Ok(())
    }

    fn fill_sequences(&self, paths: &Paths<'_>, out: &mut PackArrays<'_>) {
        let (mut begin, mut pairs) = (0, PairWriter::default());
        out.cu_seqlens[0] = 0;
        for (place, &index) in self.sequences.iter().enumerate() {
            let rows = self.plan.sequences[index].rows;
            let end = begin + rows;
            copy(paths, index, 0, &mut out.input_ids[begin..end]);
            out.position_ids[begin..end].iter_mut().zip(0..).for_each(|(out, position)| *out = position);
            out.subtree_end[begin..end].fill(end as i32);
            out.cu_seqlens[place + 1] = end as i32;
            self.fill_pairs(
                index,
                &[Span { from: 0, to: rows, node: begin, row: begin }],
                paths.tokens,
                &mut pairs,
                out,
            );
            begin = end;
        }
    }

    fn fill_tree(&self, trie: &Trie, paths: &Paths<'_>, out: &mut PackArrays<'_>) {
        trie.depths(out.position_ids);
        trie.subtree_ends(out.subtree_end);
        out.cu_seqlens.iter_mut().zip(trie.starts()).for_each(|(out, &start)| *out = start as i32);
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(trie.branches().len());
        for (place, branch) in trie.branches().iter().enumerate() {
            let rows = branch.row..branch.row + branch.rows;
            copy(paths, branch.sequence, branch.from, &mut out.input_ids[rows]);
            places.push((branch.sequence, place));
        }
        // Pairs are in the order of their draws, as in the sequence layout.
        places.sort_unstable();
        let mut pairs = PairWriter::default();
        for (sequence, place) in places {
            self.fill_pairs(sequence, &trie.path(place), paths.tokens, &mut pairs, out);
        }
    }

    fn fill_pairs(&self, index: usize, path: &[Span], tokens: &[i32], next: &mut PairWriter, out: &mut PackArrays<'_>) {
        let layout = &self.plan.batch.layout;
        let mut path = path.iter().peekable();
        let tokens_of = layout.actions.of(self.plan.sequences[index].tokens.clone());
        for ActionToken { token, node_token, position } in tokens_of.filter(|at| self.plan.makes_pair[at.token]) {
            let source = position as usize - 1;
            while path.next_if(|span| span.to <= source).is_some() {}
            let Some(span) = path.peek() else { return };
            let one = [token as i64];
            let stands_for = match &self.plan.folded {
                Some(pairs) => pairs.items(pairs.of[token] as usize),
                None => &one,
            };
            out.source_row[next.pair] = (span.row + source - span.from) as i64;
            out.target[next.pair] = i64::from(tokens[node_token as usize]);
            out.token[next.pair] = stands_for[0];
            out.node_token[next.pair] = node_token;
            out.pair_offsets[next.pair] = next.token as i64;
            out.pair_tokens[next.token..next.token + stands_for.len()].copy_from_slice(stands_for);
            next.pair += 1;
            next.token += stands_for.len();
            out.pair_offsets[next.pair] = next.token as i64;
        }
    }
}

/// Copy tokens of a sequence from a depth on.
fn copy(paths: &Paths<'_>, sequence: usize, from: usize, mut out: &mut [i64]) {
    for run in paths.runs(sequence, from..from + out.len()) {
        let (head, rest) = out.split_at_mut(run.len());
        head.iter_mut().zip(&paths.tokens[run]).for_each(|(out, &token)| *out = i64::from(token));
        out = rest;
    }
}

/// Index of the next pair to write, and of its first token.
#[derive(Default)]
struct PairWriter {
    pair: usize,
    token: usize,
}
