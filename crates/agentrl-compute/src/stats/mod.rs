//! Statistics of scores over runs: summaries, their uncertainty, and tests of differences.
//!
//! Scores are a table of runs by tasks. Resampling is stratified: each task keeps its number of runs. The same seed
//! gives the same resamples on any number of threads.

mod bootstrap;
mod sign_flip;

pub use bootstrap::{Statistic, bootstrap, improvement, improvements, statistic};
pub use sign_flip::{detectable_effect, sign_flip};
