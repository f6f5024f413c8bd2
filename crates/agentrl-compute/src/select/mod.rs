//! Which tasks, and how many rollouts of each: choices by scores, draws of posteriors, budgets.
//!
//! All randomness is a hash of a key and of a task's own number (its row in the pool), so a task's chance depends neither on
//! the other candidates nor on their order, and any number of threads chooses the same.

mod allocation;
mod best;
mod choice;
mod posterior;
mod predicted;
mod rows;

pub use allocation::{Greedy, Value, best_arms, greedy, shares};
pub use choice::{drawn, independent, log_total, permuted, successive, top};
pub use posterior::beta_draws;
pub use predicted::attended;
pub use rows::places;
