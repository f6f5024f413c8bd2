//! Pack sequences for forward and backward passes; shared prefixes are stored and computed once.
//!
//! A [`Trie`] stores the shared prefixes of its sequences once; [`pieces`] splits a large trie at its branches.
//! [`first_fit_decreasing`] and [`balanced`] assign pieces to packs. [`fold`] finds trained tokens that branches share
//! and joins them into one prediction; [`streams`] sums their columns.

mod balanced_bins;
mod first_fit;
mod packs;
mod pair_columns;
mod pairs;
mod pieces;
mod prefix_and_tail;
mod row_tree;
mod trie;

#[cfg(test)]
mod tests;

pub use balanced_bins::{balanced, room_for_bins};
pub use first_fit::first_fit_decreasing;
pub use packs::{Shards, packs};
pub use pair_columns::{Credit, Stream, streams};
pub use pairs::{Pairs, fold};
pub use pieces::{CONTEXT_OF_EQUAL_COST, Cost, Piece, pieces};
pub use prefix_and_tail::Continuations;
pub use row_tree::{RowArrays, RowTree, TokenRows};
pub use trie::{Branch, Sequences, Span, Trie, in_order};
