//! This command as another process, for measurements whose ends must not share a process.

use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use petrel_command::credentials;
use petrel_command::device;
use petrel_command::failure::Failure;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Deserialize;

/// Time limit for a process to print a line.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Has the process end with its parent: no process outlives its benchmark.
pub fn end_with_parent() -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(Failure::because)
}

/// Parses JSON that a process has printed.
pub fn parse<T: for<'a> Deserialize<'a>>(line: &str) -> Result<T, Failure> {
    serde_json::from_str(line).map_err(|_| Failure::because(format!("a process printed: {line}")))
}

/// Returns a size of memory that the kernel reports of a process, for example `VmRSS:`.
pub fn status_bytes(process: impl Display, name: &str) -> Result<u64, Failure> {
    let path = format!("/proc/{process}/status");
    let bytes = parse_status(&fs::read_to_string(&path)?, name);
    bytes.ok_or_else(|| Failure::because(format!("{path} has no {name}")))
}

fn parse_status(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// This command as another process; killed on drop.
pub struct Process(Child);

impl Process {
    /// Starts it with the credentials of this process, if there are any.
    pub fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        credentials::pass_to(&mut command);
        device::pass_to(&mut command);
        Ok(Self::spawn(command.args(arguments))?)
    }

    /// Starts it with a pipe to its standard input.
    pub fn start_with_input(arguments: &[&str]) -> Result<(Self, ChildStdin), Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or_else(|| Failure::because("a process has no input"))?;
        Ok((Self(child), input))
    }

    /// Starts another program, with the error stream of the command.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the first line of the output.
    pub fn line(&mut self) -> Result<String, Failure> {
        self.lines()?.next_line()
    }

    /// Returns the lines of the output, to be read as they come.
    pub fn lines(&mut self) -> Result<Lines, Failure> {
        let Some(stdout) = self.0.stdout.take() else {
            return Err(Failure::because("a process has no output left to read"));
        };
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines();
            while let Some(Ok(line)) = lines.next()
                && sender.send(line).is_ok()
            {}
        });
        Ok(Lines(lines))
    }
}

/// The lines that a process prints.
pub struct Lines(Receiver<String>);

impl Lines {
    /// Waits for the next line.
    pub fn next_line(&self) -> Result<String, Failure> {
        self.0.recv_timeout(TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                Failure::because(format!("a process took longer than {TIMEOUT:?}"))
            }
            RecvTimeoutError::Disconnected => Failure::because("a process ended too soon"),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_status__reads_the_kernels_line() {
        let status = "Name:\tpetrel\nVmRSS:\t  5000 kB\nRssAnon:\t    1234 kB\nThreads:\t3\n";
        assert_eq!(parse_status(status, "RssAnon:"), Some(1234 << 10));
        assert_eq!(parse_status("RssAnon: many\n", "RssAnon:"), None);
        assert_eq!(parse_status("", "RssAnon:"), None);
        assert!(status_bytes("self", "RssAnon:").unwrap() > 0);
    }
}
