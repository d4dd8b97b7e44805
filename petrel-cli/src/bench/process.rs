//! This command as another process, for measurements whose ends must not share one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::failure::Failure;

/// How long a process may take to do what it was started for.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a process has printed as JSON.
pub(crate) fn parse<T: for<'a> Deserialize<'a>>(line: &str) -> Result<T, Failure> {
    serde_json::from_str(line).map_err(|_| Failure::because(format!("a process printed: {line}")))
}

/// This command as another process; killed at the end.
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

    /// Its first line.
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
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
