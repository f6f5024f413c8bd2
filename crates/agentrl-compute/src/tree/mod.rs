//! Trees: their shape, and credit that flows along it.

#[cfg(test)]
pub(crate) mod testing;
mod topology;

pub use topology::Topology;
