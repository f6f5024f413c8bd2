//! Private extension module `agentrl_core._core`: thin wrappers and nothing else.
//!
//! Long work goes through [`enter::released`], the only place that releases the interpreter lock. Every error goes
//! through [`error`], the only place that names exception classes.
#![expect(clippy::needless_pass_by_value, reason = "arguments come from Python's side by value")]

mod array_checks;
mod arrays;
mod batch;
mod columns;
mod compute;
mod enter;
mod error;
mod facts;
mod forest;
mod fork_safe_lock;
mod ingest;
mod lists;
mod pack;
mod search;
mod store;
mod table;
mod tree;
mod vllm_response;

/// The module that Python imports.
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::columns::exports as columns;
    #[pymodule_export]
    use crate::compute::{
        advantage::exports as advantage, baseline::exports as baseline, filters::exports as filters,
        group::exports as group, keys::exports as keys, replay::exports as replay, returns::exports as returns,
        reward::exports as reward, rng::exports as rng, rollout::exports as rollout, select::exports as select,
        stats::exports as stats, tree::exports as tree, weight::exports as weight,
    };
    #[pymodule_export]
    use crate::compute::{num_threads, set_num_threads};
    #[pymodule_export]
    use crate::forest::Forest;
    #[pymodule_export]
    use crate::ingest::{append_chats, append_many, ingest};
    #[pymodule_export]
    use crate::pack::{Plan, PlannedPack, exports as pack};
    #[pymodule_export]
    use crate::search::SearchTree;
    #[pymodule_export]
    use crate::store::{RolloutLog, Store, after_fork_in_child, after_fork_in_parent, before_fork};
    #[pymodule_export]
    use crate::table::Table;
    #[pymodule_export]
    use crate::tree::Tree;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::{PyAnyMethods as _, PyModule, PyModuleMethods as _};
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // A panic while bytes are decoded becomes an error, so it is not printed.
            if !agentrl_data::ipc::is_reading() {
                default(panic);
            }
        }));
        // Read the environment through Python, so that changes to `os.environ` count.
        let threads = module.py().import("os")?.getattr("environ")?.call_method1("get", ("AGENTRL_NUM_THREADS",))?;
        if !threads.is_none() {
            crate::compute::threads_of_environment(&threads.extract::<String>()?)?;
        }
        // A submodule inside a binary has no file: `import agentrl_core._core.weight` finds it in `sys.modules`.
        let modules = module.py().import("sys")?.getattr("modules")?;
        for (_, part) in module.dict() {
            if let Ok(part) = part.cast::<PyModule>() {
                modules.set_item(part.name()?, part)?;
            }
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
