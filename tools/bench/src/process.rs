//! This command as another process, for measurements whose ends must not share a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use petrel_command::failure::Failure;
use serde::Deserialize;

/// Most time for a process to print its first line.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Parses JSON that a process has printed.
pub(crate) fn parse<T: for<'a> Deserialize<'a>>(line: &str) -> Result<T, Failure> {
    serde_json::from_str(line).map_err(|_| Failure::because(format!("a process printed: {line}")))
}

/// This command as another process; killed on drop.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        Ok(Self(child))
    }

    /// Returns the first line of the output.
    pub(crate) fn line(&mut self) -> Result<String, Failure> {
        let Some(stdout) = self.0.stdout.take() else {
            return Err(Failure::because("a process has no output left to read"));
        };
        let reader = thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let end = Instant::now() + TIMEOUT;
        while !reader.is_finished() {
            if Instant::now() > end {
                let _ = self.0.kill();
                return Err(Failure::because(format!("a process took longer than {TIMEOUT:?}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        reader.join().map_err(|_| Failure::because("a thread has panicked"))?.map_err(Failure::from)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
