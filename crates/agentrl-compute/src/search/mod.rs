//! Tree search over turns, with a graph of the states that turns lead to.
//!
//! A turn is taken in a state and leads to another state, or ends the episode. Turns form a tree, because each follows
//! the previous turn on its path. States form a graph, because several turns may lead to the same state. [`Search`]
//! stores both while they grow: a turn has visits and values ([`Search::back_up`]); a state has a [`Status`] and a
//! distance to a solved end. Each new turn updates them, so that most queries cost no more than the size of their
//! answer.

mod edit_distance;
mod graph;
mod selection;
mod states;
#[cfg(test)]
mod tests;

pub(crate) use edit_distance::edit_distance_in;
pub use edit_distance::{common_subsequence, common_suffix, edit_distance};
pub use graph::{After, NONE, NewTurn, Search, Status, Turn, UNSOLVED};
pub use selection::Descent;
