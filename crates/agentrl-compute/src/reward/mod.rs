//! Rewards of trajectories, steps and tokens, from environment scores and model outputs.

mod agreement;
mod checklist;
mod clusters;
mod edits;
mod process;
mod progress;
mod ranked;
mod risk;
mod shape;
mod window;
mod wins;

pub use agreement::rank_agreement;
pub use checklist::{Checklist, ChecklistRewards, checklist};
pub use clusters::{ClusterVotes, cluster_votes};
pub use edits::edit_distances;
pub use process::{Gain, implicit_rewards, information_gain};
pub use progress::{ProgressOptions, success_distance};
pub use ranked::{MaxAtK, max_at_k, top_gap};
pub use risk::{Tail, TailRisk, tail_risk, tracked_quantiles};
pub use shape::{Noise, dither, excess_penalty};
pub use window::window_means;
pub use wins::win_rates;
