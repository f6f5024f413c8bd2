//! The error type of the project: a kind for programs, a message for people, and an optional cause.
//!
//! The data crate and the binding use this type too, so errors cross the whole stack without translation. The binding
//! maps [`ErrorKind`] to an exception class in exactly one place.

use std::error::Error as StdError;
use std::fmt;

/// The kind of an [`Error`]; each kind becomes one exception class in Python.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// An argument is wrong: the caller can correct it.
    InvalidInput,
    /// The requested name or id does not exist.
    NotFound,
    /// A table lacks required columns or has wrong types.
    Schema,
    /// Stored bytes differ from the bytes that were written.
    Corrupt,
    /// The operating system refused a read or a write.
    Io,
    /// Another process holds a required resource; a later retry can succeed.
    Busy,
    /// A count or an offset does not fit its type.
    Overflow,
    /// The request is understood, but this version cannot do it.
    Unsupported,
    /// A defect of this library.
    Internal,
}

impl ErrorKind {
    /// Return the kind in plain words, for instance `"invalid input"`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid input",
            Self::NotFound => "not found",
            Self::Schema => "schema",
            Self::Corrupt => "corrupt",
            Self::Io => "io",
            Self::Busy => "busy",
            Self::Overflow => "overflow",
            Self::Unsupported => "unsupported",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// An error with a kind, a message that names the argument, its value and what to do, and optionally its cause.
///
/// ```
/// use agentrl_compute::error::{Error, ErrorKind};
///
/// let error = Error::invalid("gamma is 1.5, but must lie in [0, 1]");
/// assert_eq!(error.kind(), ErrorKind::InvalidInput);
/// assert_eq!(error.to_string(), "gamma is 1.5, but must lie in [0, 1]");
/// ```
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Result type of all functions of this project that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Create an error of any kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Add the cause, which [`std::error::Error::source`] returns.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Create an error for a wrong argument.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// Create an error for a name or an id that does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// Create an error for a table with wrong columns or types.
    pub fn schema(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Schema, message)
    }

    /// Create an error for stored bytes that differ from the bytes that were written.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Create an error for a failed read or write. The message names the path and the operation; the cause is kept.
    pub fn io(message: impl Into<String>, source: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, message).with_source(source)
    }

    /// Create an error for a required resource that another process holds.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Busy, message)
    }

    /// Create an error for a count or an offset that does not fit its type.
    pub fn overflow(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Overflow, message)
    }

    /// Create an error for a request that this version does not support.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Create an error for a defect of this library.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Return the kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Return the message without its cause.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_message_and_cause() {
        let cause = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "denied");
        let error = Error::io("cannot write nodes.arrow", cause);
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.message(), "cannot write nodes.arrow");
        assert_eq!(error.to_string(), "cannot write nodes.arrow");
        assert_eq!(error.source().map(ToString::to_string), Some("denied".to_owned()));
        assert!(Error::internal("x").source().is_none());
    }

    #[test]
    fn every_constructor_gives_its_kind() {
        let made = [
            (Error::invalid("m"), "invalid input"),
            (Error::not_found("m"), "not found"),
            (Error::schema("m"), "schema"),
            (Error::corrupt("m"), "corrupt"),
            (Error::busy("m"), "busy"),
            (Error::overflow("m"), "overflow"),
            (Error::unsupported("m"), "unsupported"),
            (Error::internal("m"), "internal"),
        ];
        for (error, words) in made {
            assert_eq!(error.kind().to_string(), words);
        }
    }

    #[test]
    fn an_error_can_cross_threads() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Error>();
    }
}
