//! Advantages that combine more than one comparison. The plain group ones are in [`group`](crate::group).

mod gigpo;

pub use gigpo::{GigpoColumns, GigpoOptions, Voter, gigpo, step_returns};
