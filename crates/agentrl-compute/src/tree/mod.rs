//! Trees: their shape, and credit that flows along it.
//!
//! [`Topology`] is the shape. [`fuse`] carries the values of rows up to the roots; tree credits are made of it and of
//! group statistics over [`peers`].

mod ancestors;
mod build;
mod fuse;
mod isotonic;
mod peers;
#[cfg(test)]
pub(crate) mod testing;
mod topology;

pub use ancestors::{AncestorOptions, Weighting, ancestor_relative};
pub use build::{Built, build};
pub use fuse::{Fused, Fusion, Rows, fuse};
pub use isotonic::{Radius, isotonic};
pub use peers::{Peers, peers};
pub use topology::Topology;
