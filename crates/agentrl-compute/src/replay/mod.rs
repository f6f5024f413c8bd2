//! Which stored rows are drawn again: proportional to priorities, by rank, at random without repetition, and in pairs.

mod choice;
mod pairs;
mod sum_tree;

pub use choice::{race, rank_weights};
pub use pairs::{Matching, Pairing, pairs};
pub use sum_tree::{Normalise, SumTree, importance};
