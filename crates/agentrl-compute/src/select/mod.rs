//! Select tasks and allocate rollouts: top-k, random sampling, posterior draws, budgets.
//!
//! All randomness is a hash of a key and the task's row in the pool. The chance of a task therefore depends neither on
//! the other candidates nor on their order, and the choice does not depend on the number of threads.

mod allocation;
mod attention_predictor;
mod best;
mod beta_draws;
mod lookup;
mod sampling;

pub use allocation::{Greedy, Value, best_arms, greedy, shares};
pub use attention_predictor::attended;
pub use beta_draws::beta_draws;
pub use lookup::places;
pub use sampling::{drawn, independent, log_total, permuted, successive, top};
