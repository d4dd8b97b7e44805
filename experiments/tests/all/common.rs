//! Runs the command as a process, and experiments twice.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use petrel_experiments::sim::ExperimentError;
use serde_json::Value;

/// Far beyond the time of any test on a machine with ten times its usual load. The limit detects hangs,
/// and judges no speed.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(240);

/// Returns the command, not yet started.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_petrel-experiment"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the command to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    finish(command(arguments).spawn().unwrap())
}

/// Waits until `holds` returns true; returns false after a timeout.
pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + COMMAND_TIMEOUT;
    while Instant::now() < end {
        if holds() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Waits for the end of a process, and reads its output meanwhile: a full pipe would block the process.
pub(crate) fn finish(mut child: Child) -> Output {
    let stdout = child.stdout.take().map(read_in_background);
    let stderr = child.stderr.take().map(read_in_background);
    let ended = wait_until(|| child.try_wait().unwrap().is_some());
    if !ended {
        child.kill().unwrap();
    }
    let text =
        |reader: Option<JoinHandle<Vec<u8>>>| reader.map_or(Vec::new(), |r| r.join().unwrap());
    let status = child.wait().unwrap();
    let output = Output { status, stdout: text(stdout), stderr: text(stderr) };
    assert!(ended, "hangs: {output:?}");
    output
}

fn read_in_background(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// Returns the standard output, as text.
pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Returns the standard error, as text.
pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Returns the objects that `--json` printed.
pub(crate) fn records(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the only object that `--json` printed.
pub(crate) fn record(output: &Output) -> Value {
    let mut records = records(output);
    assert_eq!(records.len(), 1, "{output:?}");
    records.remove(0)
}

/// Runs twice; the runs must return equal rows, and pass on every complete row at once.
pub(crate) fn same_twice<R: Clone + PartialEq + std::fmt::Debug>(
    run: impl Fn(&mut dyn FnMut(&R)) -> Result<Vec<R>, ExperimentError>,
) -> Vec<R> {
    let mut shown = Vec::new();
    let rows = run(&mut |row: &R| shown.push(row.clone())).unwrap();
    assert_eq!(rows, shown);
    assert_eq!(run(&mut |_| {}).unwrap(), rows, "the same seed, other figures");
    rows
}
