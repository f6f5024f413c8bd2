//! Loss weights of tokens: shares of steps, denominators, selection of tokens and rows, importance ratios.
//!
//! The loss is a plain sum over tokens of `weight · something`, so every denominator is here. Draws that are not valid
//! enter neither shares nor denominators.

mod conflict_tokens;
mod denominator;
mod divergence;
mod importance;
#[cfg(test)]
mod importance_tests;
mod ratios;
mod select;
mod shares;
mod top_of_column;
mod top_options;

pub use conflict_tokens::{Conflicts, conflict_tokens};
pub use denominator::{Denominator, TokenUnits, mean_of_means, token_weights, weights_of_rows};
pub use divergence::{Aggregate, Diagnostics, Divergence, TrustRegion, importance_diagnostics, trust_region};
pub use importance::{Action, ImportanceOptions, Level, importance_weights};
pub use ratios::Ratios;
pub use select::{AboveQuantile, Quota, above_quantile, max_variance_subset, quota, top};
pub use shares::{Shared, shares};
pub use top_of_column::best;
pub use top_options::{Amount, Rounding, Ties, Top};
