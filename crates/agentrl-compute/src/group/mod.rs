//! Statistics of groups of rows, and advantages made from them.
//!
//! A statistic of a group has the same bits in whatever order the group's rows stand, and on any number of threads,
//! because its sums are exact integer additions. Rows that are not valid neither vote nor get a value.
//!
//! The files, from the ground up. `columns` are the rows as they come, checked; `options` what may be asked of them.
//! `accumulator` adds numbers up exactly, `grid` rounds them so that integers add up to the same, `moments` makes count, mean,
//! deviation and range of it, `lanes` those of many small groups at once, `sums` only the sum. `votes` holds what was read of
//! neighbouring groups, `scattered` reads it where the rows of a group stand apart, and `grouped` in
//! either case, so that work on each group runs on all threads. On these stand what users call: `statistics`, `order`
//! (quantiles), `reduce` (one number for each group, or a column made within groups), and `normalise`, which turns a group's
//! statistics into a `rule` (with `beta` for one of its scales) and applies it to the rows, by `runs` where ids
//! never decrease; `whitened` is its short cut for
//! one group of all rows. `partial` splits statistics over several ranks.

mod accumulator;
mod beta;
mod columns;
mod extent;
mod grid;
mod grouped;
mod lanes;
mod moments;
mod normalise;
mod options;
mod order;
mod partial;
mod reduce;
mod rule;
mod runs;
mod scattered;
mod statistics;
mod sums;
mod votes;
mod whitened;

pub use columns::Columns;
pub use extent::Extent;
pub use moments::{Moments, Statistics};
pub use normalise::{Extra, NormalisedFloat, normalise, normalise_by};
pub use options::{Center, Middle, Options, Scale, Singleton};
pub use order::quantile;
pub use partial::{extents, moments};
pub use reduce::{Map, arg_extreme, log_mean_exp, map};
pub use statistics::statistics;
pub use sums::sums;

pub(crate) use accumulator::Accumulator;
pub(crate) use columns::group_count;
pub(crate) use grid::Grid;
pub(crate) use normalise::normalise_into;
pub(crate) use sums::total;
pub(crate) use whitened::whitened;

#[cfg(test)]
pub(crate) mod testing;
