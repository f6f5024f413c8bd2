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
mod store;
mod table;
mod tree;

/// The module that Python imports.
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use crate::batch::{Batch, PlannedPack};
    #[pymodule_export]
    use crate::columns::{arrow_lists, arrow_numbers};
    #[pymodule_export]
    use crate::compute::{
        dense_keys, entropy_branches, gigpo, group_relative, leave_one_out, segment_entropy, step_returns,
        structural_seed, uniform,
    };
    #[pymodule_export]
    use crate::forest::Forest;
    #[pymodule_export]
    use crate::ingest::{append_chats, append_many, ingest};
    #[pymodule_export]
    use crate::store::Store;
    #[pymodule_export]
    use crate::table::Table;
    #[pymodule_export]
    use crate::tree::Tree;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods as _;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
