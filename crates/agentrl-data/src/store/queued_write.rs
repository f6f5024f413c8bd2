//! A write that waits for the next commit.

use arrow_array::RecordBatch;

use super::write_log::Entry;
use crate::batch::Blobs;

/// A write that waits for the next commit.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) entry: Entry,
    pub(super) rows: Vec<(&'static str, RecordBatch)>,
    pub(super) blobs: Blobs,
    /// Whether its rows of folder `states` hold all arrays whole, so that reading can begin with them.
    pub(super) is_base: bool,
}
