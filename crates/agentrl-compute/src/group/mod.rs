//! Statistics of groups of rows, and advantages made from them.
//!
//! A statistic of a group has the same bits in whatever order the group's rows stand, because its sums are exact integer
//! additions ([`sums`] says how). Rows that are not valid neither vote nor get a value.

mod accumulator;
mod columns;
mod leave_one_out;
mod options;
mod relative;
mod rule;
mod statistics;
mod sums;

pub use leave_one_out::leave_one_out;
pub use options::{GroupOptions, Scale, Singleton};
pub use relative::group_relative;
pub use statistics::{Statistics, statistics};
pub use sums::sums;

pub(crate) use accumulator::Accumulator;
pub(crate) use columns::{Columns, group_count};
pub(crate) use rule::relative_rules;

#[cfg(test)]
pub(crate) mod testing;
