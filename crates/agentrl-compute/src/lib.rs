//! Computation on slices: keys, group statistics, advantages, weights, packing. Independent of Arrow and Python.
//!
//! Every function is pure and deterministic: equal inputs give equal bits, and a statistic of a group does not depend
//! on the order of its rows. Inputs and results are f32 or f64 of the same type; arithmetic is f64. Group ids are dense
//! `u32` integers, created once by [`keys`].
//!
//! ```
//! use agentrl_compute::group::{Columns, Extra, Options, normalise};
//! use agentrl_compute::keys::dense_bytes;
//!
//! let rewards = [1.0_f32, 0.0, 0.5, 0.5];
//! let groups = dense_bytes([b"task-a", b"task-a", b"task-b", b"task-b"])?;
//! let mut advantages = [0.0_f32; 4];
//! normalise(&Columns::new("rewards", &rewards, &groups.ids), &Options::default(), Extra::default(), &mut advantages)?;
//! assert!((advantages[0] - 0.707_105_8).abs() < 1e-6 && advantages[1] == -advantages[0]);
//! assert_eq!(advantages[2..], [0.0, 0.0]);
//! # Ok::<(), agentrl_compute::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod advantage;
mod argument_checks;
pub mod baseline;
pub mod error;
pub mod filters;
pub mod float;
pub mod group;
pub mod hash;
pub mod keys;
pub mod named_options;
pub mod pack;
pub mod prefix;
pub mod quantile;
pub mod ragged;
pub mod replay;
pub mod returns;
pub mod reward;
pub mod rng;
pub mod rollout;
mod rows_by_group;
pub mod search;
pub mod select;
mod simd;
pub mod stats;
pub mod thread_pool;
pub mod tree;
pub mod weight;

pub use error::{Error, ErrorKind, Result};
pub use float::Float;
