//! The footer of a sealed file as a manifest records it, and the bounds of the file's columns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Smallest and greatest value, by column.
pub type Bounds = BTreeMap<String, (i64, i64)>;

/// Offsets of the start of a footer and of the end of its file, and the hash of the bytes between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FooterRange(pub(super) u64, pub(super) u64, pub(super) u64);
