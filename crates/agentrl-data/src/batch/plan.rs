//! From draws to the flat sequences of forward passes.

use std::ops::Range;

use agentrl_compute::pack::first_fit_decreasing;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;

use super::layout::PathNode;
use super::{Batch, Level, Numbers, lists};
use crate::{Error, Result};

/// Flat arrays of one forward pass in the sequence layout: each path by itself, one after the other, no padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedPack {
    /// Token ids, `[T]`.
    pub input_ids: Vec<i64>,
    /// Position of each token in its own sequence, `[T]`.
    pub position_ids: Vec<i64>,
    /// Where each sequence begins, and `T` last, `[S + 1]`.
    pub cu_seqlens: Vec<i32>,
    /// Length of the longest sequence.
    pub max_seqlen: usize,
    /// Row of the hidden states that predicts each trained token, `[N]`.
    pub source_row: Vec<i64>,
    /// The trained token, `[N]`.
    pub target: Vec<i64>,
    /// Index of the trained token at level `token`, `[N]`.
    pub token: Vec<i64>,
    /// Index of the trained token at level `node_token`, `[N]`.
    pub node_token: Vec<i64>,
    /// Draw of each sequence, `[S]`.
    pub draw: Vec<i64>,
}

/// One context of a draw, up to its last trainable token.
struct Sequence<'a> {
    draw: i64,
    path: &'a [PathNode],
    /// Its action tokens, as a range of the token level.
    tokens: Range<usize>,
    length: usize,
}

impl Batch {
    /// Packs of at most `max_tokens` tokens that hold the paths of some draws, first-fit decreasing by length.
    ///
    /// A draw whose context was rewritten has one sequence for each context; every trained token is in one of them. A
    /// sequence ends with its last trainable token, which is predicted but never read; a context with nothing to train is
    /// in no pack.
    pub fn plan(&self, draws: &[i64], max_tokens: usize) -> Result<Vec<PlannedPack>> {
        let layout = &self.layout;
        let Numbers::U8(trainable) = self.column("trainable", Level::Token)? else {
            return Err(Error::invalid("column \"trainable\" is not a mask of 0 and 1".to_owned()));
        };
        self.chosen("draws", draws)?;
        // Sequence bounds are 32-bit, which is what attention kernels take.
        let max_tokens = max_tokens.min(i32::MAX as usize);
        let (mut sequences, mut lengths) = (Vec::with_capacity(draws.len()), Vec::with_capacity(draws.len()));
        for &draw in draws {
            for (path, steps) in layout.contexts(draw as usize) {
                let tokens = layout.tokens_of(steps);
                let Some(last) = tokens.clone().rev().find(|&token| trainable[token] != 0) else { continue };
                let length = layout.positions[last] as usize;
                if length > max_tokens {
                    return Err(Error::invalid(format!(
                        "max_tokens is {max_tokens}, but draw {draw} has a sequence of {length} tokens; raise max_tokens or shorten the episodes"
                    )));
                }
                sequences.push(Sequence { draw, path, tokens, length });
                lengths.push(length);
            }
        }
        let bins = first_fit_decreasing(&lengths, max_tokens)?;
        bins.iter().map(|bin| self.fill(bin.iter().map(|&item| &sequences[item]), &trainable)).collect()
    }

    fn fill<'a>(&self, sequences: impl Iterator<Item = &'a Sequence<'a>>, trainable: &[u8]) -> Result<PlannedPack> {
        let layout = &self.layout;
        let list = lists(self.nodes(), "tokens")?;
        let first = list.value_offsets()[0] as usize;
        let tokens = &list.values().as_primitive::<Int32Type>().values()[first..];
        let mut pack = PlannedPack { cu_seqlens: vec![0], ..PlannedPack::default() };
        for sequence in sequences {
            let (begin, length) = (pack.input_ids.len(), sequence.length);
            for node in sequence.path {
                let from = layout.node_offsets[node.row] as usize;
                pack.input_ids.extend(tokens[from..from + node.used].iter().map(|&token| i64::from(token)));
            }
            pack.input_ids.truncate(begin + length);
            pack.position_ids.extend(0..length as i64);
            for token in sequence.tokens.clone() {
                let position = layout.positions[token] as usize;
                if trainable[token] != 0 {
                    let node_token = layout.node_tokens[token];
                    pack.source_row.push((begin + position - 1) as i64);
                    pack.target.push(i64::from(tokens[node_token as usize]));
                    pack.token.push(token as i64);
                    pack.node_token.push(node_token);
                }
            }
            pack.cu_seqlens.push((begin + length) as i32);
            pack.max_seqlen = pack.max_seqlen.max(length);
            pack.draw.push(sequence.draw);
        }
        Ok(pack)
    }
}
