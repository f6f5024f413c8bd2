//! Values that threads share. A forked child gets a copy, or an error if the copy may be half changed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LockResult, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use agentrl_data::{Error, Result};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;

/// A value behind a lock. A forked child has a copy of both. If a thread of the parent was changing the value, the lock
/// of the copy is never released, and the copy can be half changed. The child then gets an error instead of waiting
/// forever.
pub(crate) struct Shared<T> {
    /// Name of the value, for messages.
    name: &'static str,
    /// The process that used it last.
    process: AtomicU32,
    value: Mutex<T>,
}

impl<T> Shared<T> {
    pub(crate) fn new(name: &'static str, value: T) -> Self {
        Self { name, process: AtomicU32::new(std::process::id()), value: Mutex::new(value) }
    }

    /// Return the value, for work that runs without the interpreter lock.
    pub(crate) fn detached(&self) -> Result<MutexGuard<'_, T>> {
        self.enter_process()?;
        self.usable(self.value.lock())
    }

    /// Return the value, for small work. While another thread holds the value, the interpreter lock is released.
    pub(crate) fn attached<'a>(&'a self, py: Python<'a>) -> Result<MutexGuard<'a, T>> {
        self.enter_process()?;
        self.usable(self.value.lock_py_attached(py))
    }

    fn usable<'a>(&self, guard: LockResult<MutexGuard<'a, T>>) -> Result<MutexGuard<'a, T>> {
        guard.map_err(|_| {
            Error::internal(format!(
                "an earlier call on this {name} failed inside the core, so it is not safe to use; create a new {name}",
                name = self.name
            ))
        })
    }

    fn enter_process(&self) -> Result<()> {
        let (used, here) = (self.process.load(Ordering::Relaxed), std::process::id());
        if used == here {
            return Ok(());
        }
        // A second thread of the child that holds the lock has stored the process id, or is about to.
        for _ in 0..100 {
            let parents = matches!(self.value.try_lock(), Err(TryLockError::WouldBlock));
            if !parents || self.process.load(Ordering::Relaxed) == here {
                self.process.store(here, Ordering::Relaxed);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Error::unsupported(format!(
            "process {here} was forked from process {used} while a thread was inside this {name}; make a {name} of its own \
             in each process",
            name = self.name
        )))
    }
}
