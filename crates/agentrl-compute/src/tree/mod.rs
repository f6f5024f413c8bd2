//! Trees: topology, and credit assignment along it.
//!
//! [`Topology`] is the shape. [`fuse`] aggregates the values of rows up to the roots. Tree credits combine it with
//! group statistics over [`peers`].

mod ancestors;
mod build;
mod fuse;
mod isotonic;
mod peers;
#[cfg(test)]
pub(crate) mod random_forests;
mod topology;

pub use ancestors::{AncestorOptions, Weighting, ancestor_relative};
pub use build::{Built, build};
pub use fuse::{Fused, Fusion, Rows, fuse};
pub use isotonic::{Radius, isotonic};
pub use peers::{Peers, peers};
pub use topology::Topology;
