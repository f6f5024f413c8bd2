//! How much each token counts in the loss: which branch trains a shared step, what the sum is divided by, which tokens and
//! rows are chosen, and by what factors they are weighed.
//!
//! The loss is a plain sum over tokens of `weight · something`, so every denominator is here. Draws that are not valid
//! count nowhere: not in a share, not in a denominator.

mod bounds;
mod conflict;
mod denominator;
mod factor;
mod importance;
#[cfg(test)]
mod importance_tests;
mod select;
mod shares;

pub use bounds::{BalancedBounds, Bounds, Measure, balanced_bounds, second_moment_bound};
pub use conflict::{Conflicts, conflict_tokens};
pub use denominator::{Denominator, TokenUnits, mean_of_means, token_weights};
pub use factor::{Shape, by_sign, covariance, damping, entropy_change, novelty_bonus, probability_shape};
pub use importance::{
    Action, Aggregate, Diagnostics, Divergence, ImportanceOptions, Level, Ratios, TrustRegion, importance_diagnostics,
    importance_weights, trust_region,
};
pub use select::{Amount, Band, Quota, Rounding, Ties, above_quantile, max_variance_subset, quota, sample_band, top};
pub use shares::{Shared, shares};
