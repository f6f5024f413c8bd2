//! When a write is durable.

#[cfg(doc)]
use super::Store;
use agentrl_compute::names;

names! {
    /// When a write is durable.
    #[derive(Default)]
    "sync" Sync {
        /// Appends are queued; [`Store::flush`], [`Store::close_iteration`] and [`Store::close`] make them durable.
        #[default]
        Batch = "batch",
        /// Every write is durable when its call returns.
        Always = "always",
        /// As `Batch`, but the system decides when files reach the disk: a killed process loses nothing that was
        /// flushed, a crash of the machine can.
        Never = "never",
    }
}
