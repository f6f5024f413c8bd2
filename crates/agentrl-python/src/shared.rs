//! What several threads use, and what a forked child may still use of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LockResult, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use agentrl_data::{Error, Result};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;

/// A value behind a lock. A forked child has a copy of it. Where a thread of the parent was changing the value, the lock of
/// the copy is never given back, and the copy can be half changed: then the child is refused, and does not wait for ever.
pub(crate) struct Shared<T> {
    /// What it is, for messages.
    name: &'static str,
    /// The process that used it last.
    process: AtomicU32,
    value: Mutex<T>,
}

impl<T> Shared<T> {
    pub(crate) fn new(name: &'static str, value: T) -> Self {
        Self { name, process: AtomicU32::new(std::process::id()), value: Mutex::new(value) }
    }

    /// The value, for work that runs without the interpreter's lock.
    pub(crate) fn detached(&self) -> Result<MutexGuard<'_, T>> {
        self.enter_process()?;
        self.usable(self.value.lock())
    }

    /// The value, for small work. Where another thread has it, the interpreter is let go while waiting.
    pub(crate) fn attached<'a>(&'a self, py: Python<'a>) -> Result<MutexGuard<'a, T>> {
        self.enter_process()?;
        self.usable(self.value.lock_py_attached(py))
    }

    fn usable<'a>(&self, guard: LockResult<MutexGuard<'a, T>>) -> Result<MutexGuard<'a, T>> {
        guard.map_err(|_| {
            Error::internal(format!(
                "an earlier call on this {} failed inside the core; it is not safe any more",
                self.name
            ))
        })
    }

    fn enter_process(&self) -> Result<()> {
        let (used, here) = (self.process.load(Ordering::Relaxed), std::process::id());
        if used == here {
            return Ok(());
        }
        // Where a second thread of the child has the lock already, it has also said so, or is about to.
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
