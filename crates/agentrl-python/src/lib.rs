//! The private extension module `agentrl_core._core`: thin wrappers and nothing else.
//!
//! Long work goes through [`enter::released`], the only place that releases the interpreter lock; every error goes
//! through [`error`], the only place that names exception classes.
#![expect(clippy::needless_pass_by_value, reason = "arguments come from Python's side by value")]

mod arrays;
mod batch;
mod columns;
mod compute;
mod enter;
mod error;
mod forest;
mod ingest;
mod lists;
mod pack;
mod shared;
mod store;
mod table;
mod tree;

/// The module that Python imports.
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::columns::{arrow_lists, arrow_numbers};
    #[pymodule_export]
    use crate::compute::filters::{
        filter_group_band, filter_not_overlong, filter_round_rows, filter_top_groups, filter_unflagged,
    };
    #[pymodule_export]
    use crate::compute::reward::{
        reward_checklist, reward_cluster_votes, reward_dither, reward_excess_penalty, reward_implicit,
        reward_information_gain, reward_max_at_k, reward_rank_agreement, reward_success_distance, reward_tail_risk,
        reward_tiers, reward_top_gap, reward_tracked_quantiles, reward_win_rates, reward_window_means,
    };
    #[pymodule_export]
    use crate::compute::tree::{
        tree_ancestor_relative, tree_build, tree_fuse, tree_isotonic, tree_path_sum, tree_peers, tree_topology,
    };
    #[pymodule_export]
    use crate::compute::weight::{
        weight_above_quantile, weight_conflict_tokens, weight_constant, weight_importance,
        weight_importance_diagnostics, weight_max_variance, weight_mean_of_means, weight_quota, weight_shares,
        weight_top, weight_trust_region,
    };
    #[pymodule_export]
    use crate::compute::{
        dense_keys, discounted, entropy_branches, gae, gigpo, group_arg_extreme, group_extents, group_finish,
        group_log_mean_exp, group_map, group_moments, group_quantile, group_statistics, group_sums, history_keys,
        label_keys, n_step, normalise, num_threads, optimal_token_baseline, pair_keys, segment_entropy,
        set_num_threads, similar_keys, structural_seed, uniform, v_trace,
    };
    #[pymodule_export]
    use crate::forest::Forest;
    #[pymodule_export]
    use crate::ingest::{append_chats, append_many, ingest};
    #[pymodule_export]
    use crate::pack::{Plan, PlannedPack, RowPack, pack_balanced, pack_continuations, pair_streams, tree_layout};
    #[pymodule_export]
    use crate::store::{Store, release_locks};
    #[pymodule_export]
    use crate::table::Table;
    #[pymodule_export]
    use crate::tree::Tree;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::{PyAnyMethods as _, PyModuleMethods as _};
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // What is wrong with bytes is told by an error.
            if !agentrl_data::ipc::is_reading() {
                default(panic);
            }
        }));
        // Python reads the environment, so that changes made in `os.environ` count.
        let threads = module.py().import("os")?.getattr("environ")?.call_method1("get", ("AGENTRL_NUM_THREADS",))?;
        if !threads.is_none() {
            crate::compute::threads_of_environment(&threads.extract::<String>()?)?;
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
