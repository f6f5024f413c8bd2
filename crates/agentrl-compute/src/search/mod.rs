//! Searches: the turns that were taken, the states that they lead to, and what is known of both.
//!
//! A turn is taken in a state and leads to another one, or ends the episode. Turns make a tree, since each follows the turn
//! before it on its path; states make a graph, since several turns may lead to one. [`Search`] keeps both while they grow: a
//! turn has visits and values ([`Search::back_up`]), a state has a [`Status`] and a distance to a solved end. Everything is
//! kept up with each new turn, so a question costs what its answer is large.

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
