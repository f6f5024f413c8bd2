//! Statistics of groups of rows, and advantages made from them.
//!
//! A statistic of a group has the same bits in whatever order the group's rows stand, and on any number of threads,
//! because its sums are exact integer additions. Rows that are not valid neither vote nor get a value.

mod accumulator;
mod beta;
mod columns;
mod grouped;
mod moments;
mod normalise;
mod options;
mod order;
mod partial;
mod reduce;
mod rule;
mod scattered;
mod statistics;
mod sums;
mod whitened;

pub use columns::Columns;
pub use moments::{Extent, Moments, Statistics};
pub use normalise::{Extra, normalise};
pub use options::{Center, Middle, Options, Scale, Singleton};
pub use order::quantile;
pub use partial::{extents, moments};
pub use reduce::{Map, arg_extreme, log_mean_exp, map};
pub use statistics::statistics;
pub use sums::sums;

pub(crate) use accumulator::Accumulator;
pub(crate) use columns::group_count;
pub(crate) use sums::total;
pub(crate) use whitened::whitened;

#[cfg(test)]
pub(crate) mod testing;
