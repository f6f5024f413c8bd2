//! Mapping from the core's errors to the exception classes, which are written in Python.

use agentrl_data::{Error, ErrorKind};
use pyo3::PyErr;

mod classes {
    pyo3::import_exception!(agentrl_core.exceptions, CorruptError);
    pyo3::import_exception!(agentrl_core.exceptions, InternalError);
    pyo3::import_exception!(agentrl_core.exceptions, InvalidInputError);
    pyo3::import_exception!(agentrl_core.exceptions, NotFoundError);
    pyo3::import_exception!(agentrl_core.exceptions, StoreError);
    pyo3::import_exception!(agentrl_core.exceptions, UnsupportedError);
}

#[expect(clippy::needless_pass_by_value, reason = "used as `map_err(to_python)`")]
pub(crate) fn to_python(error: Error) -> PyErr {
    let message = error.to_string();
    match error.kind() {
        ErrorKind::InvalidInput | ErrorKind::Schema | ErrorKind::Overflow => {
            classes::InvalidInputError::new_err(message)
        }
        ErrorKind::NotFound => classes::NotFoundError::new_err(message),
        ErrorKind::Corrupt => classes::CorruptError::new_err(message),
        ErrorKind::Io | ErrorKind::Busy => classes::StoreError::new_err(message),
        ErrorKind::Unsupported => classes::UnsupportedError::new_err(message),
        _ => classes::InternalError::new_err(message),
    }
}

/// Return the error for an argument with a wrong type or shape.
pub(crate) fn invalid(message: String) -> PyErr {
    to_python(Error::invalid(message))
}
