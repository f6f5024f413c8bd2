//! Handles of trajectories and nodes, and places in the tokens of a group.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Result};

/// Handle of a trajectory or a node: the key of its group in the high half, its place in the group in the low half.
pub type Handle = i64;

/// What the handles of a group begin with. No other group has it, in no forest of the process, so that a handle of another
/// forest, or of a group that was frozen, is known for what it is.
pub(super) type Key = u32;

/// The key of the next group.
static NEXT_KEY: AtomicU32 = AtomicU32::new(0);

pub(super) fn next_key() -> Result<Key> {
    let next = |key: Key| key.checked_add(1).filter(|&next| i32::try_from(next).is_ok());
    NEXT_KEY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| {
        Error::overflow(format!(
            "the process has made {} groups, and there are no more handles; start another",
            i32::MAX
        ))
    })
}

/// A node of a group and how many of its tokens a path uses.
pub(super) type Place = (usize, u32);

pub(super) fn handle(group: Key, index: usize) -> Handle {
    (i64::from(group) << 32) | index as i64
}

pub(super) fn split(handle: Handle) -> (Key, usize) {
    ((handle >> 32) as u32, (handle & 0xffff_ffff) as usize)
}
