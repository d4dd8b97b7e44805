//! A process of a peer. Reading its lines has a time limit; the process ends with its owner.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use peers_common::Failure;
use rustix::process::{Pid, Signal, kill_process};

/// Most time for a process to end after SIGTERM, in which it can remove shared memory.
const GRACE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(2);

/// Most bytes to read of a failed peer's error output.
const ERRORS_BYTES_MAX: u64 = 64 << 10;

/// A process, ended on drop.
pub(crate) struct PeerProcess {
    child: Child,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

impl PeerProcess {
    pub(crate) fn start(command: &mut Command) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            format!("{} cannot be started: {error}", command.get_program().display())
        })?;
        let output = child.stdout.take().ok_or("the process has no output")?;
        let errors = child.stderr.take().ok_or("the process has no error output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // Ends with the process, or when the receiver is gone.
            lines.map(|line| sender.send(line)).find(Result::is_err);
        });
        let errors = thread::spawn(move || read_all(errors));
        Ok(Self { child, lines, errors: Some(errors) })
    }

    /// Returns the rest of the first line with this prefix.
    pub(crate) fn line(&mut self, prefix: &str, limit: Duration) -> Result<String, Failure> {
        let end = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with(prefix) => return Ok(line[prefix.len()..].to_owned()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("no result after {} s", limit.as_secs()).into());
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.why_it_ended().into()),
            }
        }
    }

    /// Waits for a successful end.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<(), Failure> {
        match self.wait(limit)? {
            Some(status) if status.success() => Ok(()),
            Some(_) => Err(self.why_it_ended().into()),
            None => Err(format!("did not end within {} s", limit.as_secs()).into()),
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, Failure> {
        let end = Instant::now() + limit;
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() >= end {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }

    /// Returns the last error message of a process with closed output.
    fn why_it_ended(&mut self) -> String {
        self.end();
        let status = self.child.wait();
        let errors = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        match (errors.lines().rfind(|line| !line.trim().is_empty()), status) {
            (Some(line), _) => line.trim().to_owned(),
            (None, Ok(status)) => format!("ended without a word, {status}"),
            (None, Err(error)) => format!("ended without a word: {error}"),
        }
    }

    /// Asks the process to end; kills a process that refuses.
    fn end(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        if !matches!(self.wait(GRACE), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads to the end, and returns the beginning.
fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.by_ref().take(ERRORS_BYTES_MAX).read_to_end(&mut bytes);
    let _ = std::io::copy(&mut from, &mut std::io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> PeerProcess {
        PeerProcess::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn line__is_the_first_that_fits() {
        let mut process = shell("echo hello; echo ready here; echo ready there");
        assert_eq!(process.line("ready ", LONG).unwrap(), "here");
        process.finish(LONG).unwrap();
    }

    #[test]
    fn line__of_a_process_that_ends_is_what_it_said_last() {
        let mut process = shell("echo nothing; echo it broke >&2; exit 3");
        assert_eq!(process.line("ready ", LONG).unwrap_err().to_string(), "it broke");
        let mut silent = shell("exit 3");
        assert!(silent.line("", LONG).unwrap_err().to_string().contains("3"));
    }

    #[test]
    fn line__of_a_process_that_hangs_is_an_error_and_drop_ends_it() {
        let mut process = shell("trap '' TERM; while :; do sleep 0.05; done");
        let pid = Pid::from_child(&process.child);
        assert!(process.line("ready ", Duration::from_millis(20)).is_err());
        drop(process);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn finish__is_an_error_after_a_bad_end() {
        let mut process = shell("echo '{}'; echo too late >&2; exit 1");
        process.line("{", LONG).unwrap();
        assert_eq!(process.finish(LONG).unwrap_err().to_string(), "too late");
    }
}
