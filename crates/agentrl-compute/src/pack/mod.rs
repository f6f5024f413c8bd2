//! Pack sequences for forward and backward passes; shared prefixes are stored and computed once.
//!
//! A [`Trie`] stores the shared prefixes of its sequences once; [`pieces`] splits a large trie at its branches.
//! [`first_fit_decreasing`] and [`balanced`] assign pieces to packs. [`fold`] finds trained tokens that branches share
//! and joins them into one prediction; [`streams`] sums their columns.

mod balance;
mod bins;
mod continuations;
mod fold;
mod packs;
mod pieces;
mod rows;
mod streams;
mod trie;

#[cfg(test)]
mod tests;

pub use balance::{balanced, room_for_bins};
pub use bins::first_fit_decreasing;
pub use continuations::Continuations;
pub use fold::{Pairs, fold};
pub use packs::{Shards, packs};
pub use pieces::{CONTEXT_OF_EQUAL_COST, Cost, Piece, pieces};
pub use rows::{RowArrays, RowTree, TokenRows};
pub use streams::{Credit, Stream, streams};
pub use trie::{Branch, Sequences, Span, Trie, in_order};
