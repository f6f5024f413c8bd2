//! Statistics of groups of rows, and advantages computed from them.
//!
//! A statistic of a group has the same bits for any order of the group's rows and any number of threads, because its
//! sums are exact integer additions. Rows that are not valid neither vote nor get a value.
//!
//! Files, each after the files that it uses:
//!
//! - `columns` holds and checks the rows, `options` the options;
//! - `fixed_point` adds numbers exactly, `extent` is the count and range of values, `grid` rounds values so that
//!   integer sums are exact, `moments` turns those sums into count, mean, deviation and range;
//! - `lanes` computes the statistics of many small groups at once, `sums` only sums;
//! - `vote_buffer` holds the votes of neighbouring groups, `buckets` collects them if the rows of groups are scattered,
//!   and `per_group` runs work on each group on all threads;
//! - `statistics`, `quantiles`, `reduce` (one number for each group, or a column computed within groups) and
//!   `normalise` are the public functions. `normalise` turns the statistics of a group into a rule (`affine`, with
//!   `beta` for one of its scales) and applies it to the rows, by `contiguous` if ids never decrease; `whitened` is its
//!   shortcut for one group of all rows;
//! - `distributed` splits statistics over several ranks.

mod affine;
mod beta;
mod buckets;
mod columns;
mod contiguous;
mod distributed;
mod extent;
mod fixed_point;
mod grid;
mod lanes;
mod moments;
mod normalise;
mod options;
mod per_group;
mod quantiles;
mod reduce;

mod statistics;
mod sums;
mod vote_buffer;
mod whitened;

pub use columns::Columns;
pub use distributed::{extents, moments};
pub use extent::Extent;
pub use moments::{Moments, Statistics};
pub use normalise::{Extra, NormalisedFloat, normalise, normalise_by};
pub use options::{Center, Middle, Options, Scale, Singleton};
pub use quantiles::quantile;
pub use reduce::{Map, arg_extreme, log_mean_exp, map};
pub use statistics::statistics;
pub use sums::sums;

pub(crate) use columns::group_count;
pub(crate) use fixed_point::Accumulator;
pub(crate) use grid::Grid;
pub(crate) use normalise::normalise_into;
pub(crate) use sums::total;
pub(crate) use whitened::whitened;

#[cfg(test)]
pub(crate) mod testing;
