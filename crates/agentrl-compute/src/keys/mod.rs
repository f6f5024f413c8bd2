//! Dense ids: the first key is 0, the next new one 1, and so on. All keyed functions take these ids.
//!
//! Rows of one group are mostly contiguous, so a key that equals the one before it costs a comparison and no lookup.

mod hashed;
mod hasher;
mod history;
mod ids;
mod integers;
mod similar;
mod table;
#[cfg(test)]
mod tests;

pub use hashed::{dense_bytes, dense_bytes_of, dense_words, pair};
pub use history::{History, history};
pub use ids::Ids;
pub use integers::{Integer, LabelRange, Labels, dense_integers, label_integers};
pub use similar::{Similarity, Sketch, sequence_ratio, similar};
pub use table::Keys;

pub(crate) use hasher::FixedHasher;
