//! Sample stored rows again: by priority, by rank, without replacement, and in preference pairs.

mod pairs;
mod sum_tree;
mod without_replacement;

pub use pairs::{Matching, Pairing, pairs};
pub use sum_tree::{Normalise, SumTree, importance};
pub use without_replacement::{race, rank_weights};
