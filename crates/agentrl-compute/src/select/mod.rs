//! Select tasks and allocate rollouts: top-k, random sampling, posterior draws, budgets.
//!
//! All randomness is a hash of a key and the task's row in the pool. The chance of a task therefore depends neither on
//! the other candidates nor on their order, and the choice does not depend on the number of threads.

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
