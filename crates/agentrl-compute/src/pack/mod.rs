//! Which sequences go into one forward and backward, and how they are laid out there.
//!
//! Sequences that begin alike make a [`Trie`], in which what they share lies once; [`pieces`] cuts a large one where its
//! branches part. [`first_fit_decreasing`] and [`balanced`] put pieces into packs. [`fold`] finds the tokens that
//! branches share and may be trained as one, and [`streams`] brings their columns together.

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
