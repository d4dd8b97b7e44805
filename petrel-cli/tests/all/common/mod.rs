//! Runs the command, and a server, as separate processes.

// A test program may use only a part of this module.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Far beyond the time of any test on a machine with ten times its usual load. The limit detects hangs,
/// and judges no speed.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(240);

/// Returns the command, not yet started.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_petrel"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the command to its end.
pub(crate) fn petrel(arguments: &[&str]) -> Output {
    finish(command(arguments).spawn().unwrap())
}

/// Starts the command, sends it a signal after `lines` lines of output, and returns its output.
pub(crate) fn ended_after(lines: usize, arguments: &[&str], signal: Signal) -> Output {
    let mut child = command(arguments).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    for _ in 0..lines {
        stdout.read_line(&mut text).unwrap();
    }
    kill_process(Pid::from_child(&child), signal).unwrap();
    stdout.read_to_string(&mut text).unwrap();
    let mut output = finish(child);
    output.stdout = text.into_bytes();
    output
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

/// Returns an address without a listener: a loopback address of this process alone, which therefore
/// stays free. Its port is below the range that the system assigns.
pub(crate) fn free_address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    // Linux has at most 2²² process numbers.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    format!("127.{}.{middle}.{low}:{}", 64 | high, NEXT.fetch_add(1, Ordering::Relaxed))
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

/// A process; killed on drop.
pub(crate) struct Killed(pub(crate) Child);

impl Killed {
    /// Starts a process, and waits for its first line, which has to contain a text.
    pub(crate) fn start(command: &mut Command, ready: &str) -> Self {
        let mut own = Self(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(own.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains(ready), "{command:?}: {line}");
        own
    }

    pub(crate) fn kill(&mut self) {
        // Perhaps the process has ended.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A running server; killed on drop.
pub(crate) struct Server {
    child: Killed,
    stdout: BufReader<ChildStdout>,
    /// The subcommand of the server's service; empty for `petrel serve`.
    service: &'static str,
    /// The line that the server printed when it was ready.
    pub(crate) ready: Value,
    /// The control address, if the server has any.
    pub(crate) address: String,
}

impl Server {
    /// Starts a server and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_by(command(&[]), arguments)
    }

    /// Starts a server by a command without arguments, and waits for the ready line.
    pub(crate) fn start_by(mut command: Command, arguments: &[&str]) -> Self {
        command.args(["serve", "--json", "--idle", "block"]).args(arguments);
        Self::of("", command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Starts the server of a service, as `petrel cache serve`.
    pub(crate) fn of_service(service: &'static str, arguments: &[&str]) -> Self {
        let fixed = [service, "serve", "--json", "--idle", "block"];
        Self::of(service, command(&[&fixed, arguments].concat()).spawn().unwrap())
    }

    /// Waits for the ready line of a server.
    pub(crate) fn of(service: &'static str, mut child: Child) -> Self {
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            panic!("no server: {:?}", finish(child));
        };
        assert_eq!((&ready["event"], &ready["pid"]), (&"ready".into(), &child.id().into()));
        let address = ready["address"].as_str().unwrap_or_default().to_owned();
        Self { child: Killed(child), stdout, service, ready, address }
    }

    /// Runs a subcommand of the server's service against it.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let (what, rest) = arguments.split_first().unwrap();
        let fixed = [self.service, what, &self.address, "--timeout", "60s"];
        petrel(&[&fixed, rest].concat())
    }

    /// Asks the server to end; returns its exit code and its last line.
    pub(crate) fn terminate(self) -> (Option<i32>, Value) {
        self.signal(Signal::TERM);
        let (code, rest) = self.finish();
        (code, serde_json::from_str(&rest).unwrap())
    }

    /// Starts a server on a free port of IPv4's loopback.
    pub(crate) fn on_free_port() -> Self {
        Self::start(&["--listen", "127.0.0.1:0"])
    }

    /// Returns the counters of the first endpoint.
    pub(crate) fn stats(&self) -> Value {
        let output = petrel(&["stats", &self.address, "--json", "--timeout", "60s"]);
        record(&output)["endpoints"][0]["stats"].clone()
    }

    /// Waits until the server has received `count` requests.
    pub(crate) fn wait_for_requests(&self, count: u64) {
        let has = || self.stats()["requests_received"].as_u64().is_some_and(|now| now >= count);
        assert!(wait_until(has), "the server gets no requests: {}", self.stats());
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Waits for the server's end; returns its exit code and its remaining output.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        assert!(
            wait_until(|| self.child.0.try_wait().unwrap().is_some()),
            "the server does not end"
        );
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.0.wait().unwrap().code(), rest)
    }
}

/// Returns true if this host has IPv6 on loopback; otherwise reports the test as skipped.
pub(crate) fn has_ipv6() -> bool {
    let has = UdpSocket::bind("[::1]:0").is_ok();
    if !has {
        petrel_skip::skip(petrel_skip::Need::Ipv6, "this host has no IPv6 on loopback");
    }
    has
}
