//! The private extension module `agentrl_core._core`: thin wrappers and nothing else.
//!
//! Long work goes through [`enter::released`], the only place that releases the interpreter lock; every error goes
//! through [`error`], the only place that names exception classes.
#![expect(clippy::needless_pass_by_value, reason = "arguments come from Python's side by value")]

mod arrays;
mod batch;
mod compute;
mod enter;
mod error;
mod forest;
mod store;
mod table;

/// The module that Python imports.
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use crate::batch::{Batch, PlannedPack};
    #[pymodule_export]
    use crate::compute::filters::{
        filter_first_of_equal, filter_group_band, filter_not_overlong, filter_round_rows, filter_top_groups,
        filter_unflagged,
    };
    #[pymodule_export]
    use crate::compute::reward::{
        reward_checklist, reward_cluster_votes, reward_dither, reward_excess_penalty, reward_gate,
        reward_implicit, reward_information_gain, reward_max_at_k, reward_success_distance, reward_tail_risk,
        reward_tiers, reward_top_gap, reward_tracked_quantiles, reward_weighted_sum, reward_win_rates,
    };
    #[pymodule_export]
    use crate::compute::tree::{
        tree_ancestor_relative, tree_build, tree_fuse, tree_isotonic, tree_path_sum, tree_peers, tree_topology,
    };
    #[pymodule_export]
    use crate::compute::weight::{
        weight_above_quantile, weight_balanced_bounds, weight_by_sign, weight_conflict_tokens, weight_constant,
        weight_covariance, weight_damping, weight_entropy_change, weight_importance, weight_importance_diagnostics,
        weight_max_variance, weight_mean_of_means, weight_novelty_bonus, weight_probability_shape, weight_quota,
        weight_sample_band, weight_second_moment_bound, weight_shares, weight_top, weight_trust_region,
    };
    #[pymodule_export]
    use crate::compute::{
        dense_keys, entropy_branches, gigpo, group_relative, leave_one_out, segment_entropy, step_returns,
        structural_seed, uniform,
    };
    #[pymodule_export]
    use crate::forest::Forest;
    #[pymodule_export]
    use crate::store::Store;
    #[pymodule_export]
    use crate::table::Table;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods as _;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
