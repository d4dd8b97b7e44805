//! The one error of calls.

use std::fmt;
use std::ops::Deref;

use petrel_proto::{CallFailure, Execution, Status};
use petrel_transport::buf::PoolExhausted;

use crate::control::Reason;
use crate::endpoint::{CallRejected, ConnectError, StartError};

/// Why a call has no response.
///
/// It has three fields: `status`, the gRPC status code; `message`, for people; `execution`, which says whether the
/// server may have executed the request. Everything that can keep a call from its response becomes this, so that `?`
/// works in a handler that makes calls of its own: what it fails with, its caller gets.
///
/// ```
/// use petrel::{Error, Execution, Status};
///
/// fn parse(text: &str) -> Result<u32, Error> {
///     text.parse().map_err(|_| Error::new(Status::InvalidArgument, "a number expected"))
/// }
/// let error = parse("seven").expect_err("no number");
/// assert_eq!((error.status, error.execution), (Status::InvalidArgument, Execution::Answered));
/// assert_eq!(error.to_string(), "INVALID_ARGUMENT: a number expected (the server answered)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<CallFailure>);

impl Error {
    /// An error that a handler answers with.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self::of(status, message, Execution::Answered)
    }

    pub(crate) fn of(status: Status, message: impl Into<String>, execution: Execution) -> Self {
        Self(Box::new(CallFailure { status, message: message.into(), execution }))
    }

    /// Of a call of which nothing was sent.
    #[cold]
    pub(crate) fn not_sent(status: Status, message: impl Into<String>) -> Self {
        Self::of(status, message, Execution::NotSent)
    }

    /// The same error, with something else known of the request's execution.
    #[must_use]
    pub fn with_execution(mut self, execution: Execution) -> Self {
        self.0.execution = execution;
        self
    }

    /// The same error, in other words.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = message.into();
        self
    }
}

impl Deref for Error {
    type Target = CallFailure;

    fn deref(&self) -> &CallFailure {
        &self.0
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallFailure { status, message, execution } = &*self.0;
        let mut fields = f.debug_struct("Error");
        fields.field("status", status).field("message", message).field("execution", execution);
        fields.finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {}

impl From<Box<CallFailure>> for Error {
    #[inline]
    fn from(failure: Box<CallFailure>) -> Self {
        Self(failure)
    }
}

impl From<CallFailure> for Error {
    fn from(failure: CallFailure) -> Self {
        Self(Box::new(failure))
    }
}

impl From<Reason> for Error {
    fn from(Reason { status, message }: Reason) -> Self {
        Self::new(status, message)
    }
}

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        let CallFailure { status, message, .. } = *error.0;
        Self { status, message }
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Self {
        Self::not_sent(error.status(), error.to_string())
    }
}

impl From<PoolExhausted> for Error {
    fn from(error: PoolExhausted) -> Self {
        Self::not_sent(Status::ResourceExhausted, error.to_string())
    }
}

impl From<CallRejected> for Error {
    /// Without the buffers.
    fn from(rejected: CallRejected) -> Self {
        rejected.error.into()
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        Self::not_sent(error.status(), error.to_string())
    }
}
