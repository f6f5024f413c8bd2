//! Advantages that combine several comparisons. Plain group advantages are in [`group`](crate::group).

mod gigpo;

pub use gigpo::{GigpoColumns, GigpoOptions, Voter, gigpo, step_returns};
