//! Entry from Python into the core: the only place that catches panics and releases the interpreter lock for work.
//! (`fork_safe_lock` releases it too, but only while it waits for a lock.)

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use agentrl_data::{Error, Result};
use pyo3::prelude::*;

use crate::error::to_python;

/// Minimum time between two checks for Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(50);

/// Run work that can take more than about a millisecond, with the interpreter lock released.
pub(crate) fn released<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(|| caught(work)).map_err(to_python)
}

/// Run long work with the interpreter lock released. The work calls the function that it is given between its steps.
/// After Ctrl-C that call returns an error, which ends the work.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<T> + Send,
) -> PyResult<T> {
    let mut interrupt = None;
    let mut checked = Instant::now();
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method's lifetime is not general enough")]
    let mut check = || {
        // Check rarely: taking the lock back can wait for another thread.
        if checked.elapsed() < PATIENCE {
            return Ok(());
        }
        checked = Instant::now();
        Python::attach(|py| py.check_signals()).map_err(|error| {
            interrupt = Some(error);
            Error::internal("interrupted")
        })
    };
    let done = released(py, || work(&mut check));
    interrupt.map_or(done, Err)
}

/// Run small work and keep the lock: releasing it costs more than the work if another thread is busy.
pub(crate) fn held<T>(work: impl FnOnce() -> Result<T>) -> PyResult<T> {
    caught(work).map_err(to_python)
}

/// Turn a panic, which is a bug in the core, into an error, so that it never ends the interpreter.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("no message");
        Err(Error::internal(format!("the core panicked: {text}; this is a bug in agentrl_core, please report it")))
    })
}
