//! The footer of a sealed file as a manifest records it, and the bounds of the file's columns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Smallest and greatest value of some columns.
pub type Bounds = BTreeMap<String, (i64, i64)>;

/// Where the footer of a file begins, where the file ends, and the hash of what lies between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FooterRange(pub(super) u64, pub(super) u64, pub(super) u64);
