//! The sync modes: they determine when a write becomes durable.

#[cfg(doc)]
use super::Store;
use agentrl_compute::names;

names! {
    /// The mode that determines when a write becomes durable.
    #[derive(Default)]
    "sync" Sync {
        /// Appends are queued; [`Store::flush`], [`Store::close_iteration`] and [`Store::close`] make them durable.
        #[default]
        Batch = "batch",
        /// Every write is durable when its call returns.
        Always = "always",
        /// Like `Batch`, but the operating system decides when files reach the disk. A killed process loses nothing
        /// that was flushed; a crash of the machine can lose it.
        Never = "never",
    }
}
