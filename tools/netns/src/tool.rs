//! The programs that configure networks.

use std::io::{self, Write};
use std::process::{Command, Stdio};

/// A step beyond the machine's features or the user's rights.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program could not be started.
    #[error("`{command}` cannot be run: {error}")]
    NotRun {
        /// The program with its arguments.
        command: String,
        /// The reason.
        error: io::Error,
    },
    /// The program ended with an error.
    #[error("`{command}` failed: {said}")]
    Failed {
        /// The program with its arguments.
        command: String,
        /// The program's standard error.
        said: String,
    },
    /// The kernel refused a new network namespace.
    #[error("a network namespace cannot be made (are you root?): {0}")]
    NoNamespace(io::Error),
    /// The kernel refused to change a device's offloads.
    #[error("the offloads of {device} cannot be switched: {error}")]
    Offloads {
        /// The device's name.
        device: String,
        /// The reason.
        error: io::Error,
    },
}

impl From<Error> for String {
    fn from(error: Error) -> Self {
        error.to_string()
    }
}

/// Runs a program in this thread's namespace, with some input; returns its output.
///
/// # Errors
/// The program cannot be started, or fails.
pub fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, Error> {
    let command = || format!("{program} {}", arguments.join(" "));
    let not_run = |error| Error::NotRun { command: command(), error };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    // A program that ends before all input is read gives the reason on standard error.
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(not_run)?;
    if output.status.success() {
        written.map_err(not_run)?;
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Failed { command: command(), said })
}

/// Runs `ip` in this thread's namespace; spaces separate the arguments.
///
/// # Errors
/// The program cannot be started, or fails.
pub fn ip(arguments: &str) -> Result<(), Error> {
    run("ip", &arguments.split(' ').collect::<Vec<_>>(), "").map(drop)
}

/// Applies a script of nftables in this thread's namespace, in a single transaction.
///
/// # Errors
/// The program cannot be started, or fails.
pub fn nft(script: &str) -> Result<(), Error> {
    run("nft", &["-f", "-"], script).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run__passes_input_and_returns_output() {
        assert_eq!(run("cat", &[], "some text").unwrap(), "some text");
    }

    #[test]
    fn run__names_the_command_that_failed() {
        let error = run("sh", &["-c", "echo oops >&2; exit 3"], "").unwrap_err();
        assert_eq!(error.to_string(), "`sh -c echo oops >&2; exit 3` failed: oops");
        let error = run("no-such-program", &[], "").unwrap_err();
        assert!(error.to_string().starts_with("`no-such-program ` cannot be run"), "{error}");
    }
}
