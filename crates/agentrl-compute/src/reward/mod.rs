//! Rewards of trajectories, steps and tokens, from environment scores and model outputs.

mod checklist;
mod clusters;
mod edit_distance;
mod kendall_tau;
mod max_at_k;
mod moving_mean;
mod risk;
mod shape;
mod step_rewards;
mod success_distance;
mod win_rates;

pub use checklist::{Checklist, ChecklistRewards, checklist};
pub use clusters::{ClusterVotes, cluster_votes};
pub use edit_distance::edit_distances;
pub use kendall_tau::rank_agreement;
pub use max_at_k::{MaxAtK, max_at_k, top_gap};
pub use moving_mean::window_means;
pub use risk::{Tail, TailRisk, tail_risk, tracked_quantiles};
pub use shape::{Noise, dither, excess_penalty};
pub use step_rewards::{Gain, implicit_rewards, information_gain};
pub use success_distance::{ProgressOptions, success_distance};
pub use win_rates::win_rates;
