//! Dense ids: the first key is 0, the next new one 1, and so on. All keyed functions take these ids.
//!
//! Rows of one group are mostly contiguous, so a key that equals the one before it costs a comparison and no lookup.

mod dense_integers;
mod hash_table;
mod hashed;
mod hasher;
mod history;
mod id_column;
#[cfg(test)]
mod tests;
mod text_clusters;

pub use dense_integers::{Integer, LabelRange, Labels, dense_integers, label_integers};
pub use hash_table::Keys;
pub use hashed::{dense_bytes, dense_bytes_of, dense_words, pair};
pub use history::{History, history};
pub use id_column::Ids;
pub use text_clusters::{Similarity, Sketch, sequence_ratio, similar};

pub(crate) use hasher::FixedHasher;
