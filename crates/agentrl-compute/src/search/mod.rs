//! Tree search over turns, with a graph of the states that turns lead to.
//!
//! A turn is taken in a state and leads to another state, or ends the episode. Turns form a tree, because each follows
//! the previous turn on its path. States form a graph, because several turns may lead to the same state. [`Search`]
//! stores both while they grow: a turn has visits and values ([`Search::back_up`]); a state has a [`Status`] and a
//! distance to a solved end. Each new turn updates them, so that most queries cost no more than the size of their
//! answer.

mod choose;
mod graph;
mod similar;
mod states;
#[cfg(test)]
mod tests;

pub use choose::Descent;
pub use graph::{After, NONE, NewTurn, Search, Status, Turn, UNSOLVED};
pub(crate) use similar::edit_distance_in;
pub use similar::{common_subsequence, common_suffix, edit_distance};
