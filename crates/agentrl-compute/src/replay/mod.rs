//! Sample stored rows again: by priority, by rank, without replacement, and in preference pairs.

mod choice;
mod pairs;
mod sum_tree;

pub use choice::{race, rank_weights};
pub use pairs::{Matching, Pairing, pairs};
pub use sum_tree::{Normalise, SumTree, importance};
