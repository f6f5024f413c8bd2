//! The three forms of the data in Arrow memory and files.
//!
//! [`forest::Forest`] is the live form while rollouts run, [`batch::Batch`] the frozen, immutable one (the tables of
//! one iteration's draws), [`store::Store`] the durable one (a directory of sealed Arrow IPC files). Data flows one
//! way:
//!
//! ```
//! use agentrl_data::forest::{Forest, NewNode};
//!
//! # fn main() -> agentrl_data::Result<()> {
//! let mut forest = Forest::new(0, 7);
//! forest.add_group(0, "task-a")?;
//! let trajectory = forest.start(0, 0)?;
//! forest.append(trajectory, NewNode::prompt(vec![5, 6, 7]))?;
//! forest.append(trajectory, NewNode::action(vec![8, 9], vec![-0.5, -0.25]))?;
//! forest.step(trajectory, &Default::default())?;
//! forest.finish(trajectory, Default::default())?;
//! let batch = forest.freeze()?;
//! assert_eq!(batch.nodes().num_rows(), 2);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod batch;
pub mod facts;
mod fixed_width_lists;
pub mod forest;
pub mod ipc;
pub mod schema;
pub mod store;
mod tasks;
pub mod token_columns;
pub mod vllm_response;

pub use agentrl_compute::error::{Error, ErrorKind, Result};
pub use tasks::advance_tasks;

/// Callback that runs between the steps of long work. An error (such as Ctrl-C) stops the work.
pub type Check<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Convert an error of the Arrow crates on data that this crate built. It is a bug of this crate, not a mistake of the
/// user.
#[expect(clippy::needless_pass_by_value, reason = "used as `map_err(arrow_bug)`")]
pub(crate) fn arrow_bug(error: arrow_schema::ArrowError) -> Error {
    Error::new(ErrorKind::Internal, format!("building an Arrow table failed: {error}"))
}
