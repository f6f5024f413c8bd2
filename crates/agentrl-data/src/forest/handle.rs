//! Handles of trajectories and nodes, and places in the tokens of a group.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Result};

/// Handle of a trajectory or a node: the handle of its group in the high 32 bits, its index in the group in the low 32
/// bits.
pub type Handle = i64;

/// Handle of a group: the high half of the handles of its trajectories and nodes. It is unique in the process, so a
/// handle of another forest or of a frozen group is detected.
pub(super) type GroupHandle = u32;

/// The handle of the next group.
static NEXT_GROUP: AtomicU32 = AtomicU32::new(0);

pub(super) fn next_group_handle() -> Result<GroupHandle> {
    let next = |handle: GroupHandle| handle.checked_add(1).filter(|&next| i32::try_from(next).is_ok());
    NEXT_GROUP.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| {
        Error::overflow(format!("this process has created {} groups, the most it can; start a new process", i32::MAX))
    })
}

/// A node of a group, and the number of its tokens that a path uses.
pub(super) type Place = (usize, u32);

pub(super) fn handle(group: GroupHandle, index: usize) -> Handle {
    (i64::from(group) << 32) | index as i64
}

pub(super) fn split(handle: Handle) -> (GroupHandle, usize) {
    ((handle >> 32) as u32, (handle & 0xffff_ffff) as usize)
}
