//! The check that a store is used by the process that opened it for writing.

use crate::{Error, Result};

/// Reject a store that was opened before this process was forked; `opened` is the id of the process that opened it.
pub fn check_process(opened: u32) -> Result<()> {
    let here = std::process::id();
    if opened == here {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "this Store was opened in process {opened} and is used in process {here}, which was forked from it; open it again \
         here, read-only while the other process writes"
    )))
}
