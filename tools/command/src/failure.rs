//! The failure of a subcommand: a sentence for human readers, and the same as JSON for programs.

use std::fmt;
use std::io;

use petrel::Status;
use petrel::nexus::SetupError;
use petrel::security::SecurityError;
use serde::Serialize;

/// The reason why a subcommand failed.
#[derive(Debug)]
pub enum Failure {
    /// The result could not be printed, or a file could not be read.
    Io(io::Error),
    /// Petrel refused or failed an operation.
    Refused {
        /// The gRPC status code, if any.
        status: Option<Status>,
        /// The cause, and advice.
        message: String,
    },
}

/// A failure as a JSON line of `--json`.
#[derive(Serialize)]
pub struct FailureRecord {
    error: String,
    status: Option<&'static str>,
}

impl Failure {
    /// Creates a failure with a status.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self::Refused { status: Some(status), message: message.into() }
    }

    /// Creates a failure without a status.
    pub fn because(message: impl fmt::Display) -> Self {
        Self::Refused { status: None, message: message.to_string() }
    }

    /// Returns the gRPC status code, if any.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Io(_) => None,
            Self::Refused { status, .. } => *status,
        }
    }

    /// Returns true if the reader of standard output has closed the pipe, as `head` does.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns the record that `--json` prints.
    pub fn record(&self) -> FailureRecord {
        FailureRecord { error: self.to_string(), status: self.status().map(Status::name) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<petrel::Error> for Failure {
    fn from(error: petrel::Error) -> Self {
        Self::new(error.status, error.to_string())
    }
}

impl From<SecurityError> for Failure {
    fn from(error: SecurityError) -> Self {
        Self::because(error)
    }
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::NotLoopback { address } => Self::because(format!(
                "refused to listen on {address}, which other hosts can reach, and nothing is authenticated: \
                 give the process --credentials (`petrel cert --help`), listen on a loopback address, or say --insecure if the \
                 network is trusted"
            )),
            error => Self::because(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record__carries_the_name_of_the_status() {
        let failure = Failure::new(Status::Unavailable, "nobody is there");
        let json = serde_json::to_string(&failure.record()).unwrap();
        assert_eq!(json, r#"{"error":"nobody is there","status":"UNAVAILABLE"}"#);
        let failure = Failure::because("no CPU");
        assert_eq!(failure.status(), None);
        assert!(serde_json::to_string(&failure.record()).unwrap().ends_with("\"status\":null}"));
    }

    #[test]
    fn is_closed_pipe__only_for_that_error() {
        assert!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).is_closed_pipe());
        assert!(!Failure::from(io::Error::from(io::ErrorKind::NotFound)).is_closed_pipe());
    }
}
