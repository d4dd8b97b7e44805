//! The second process: the test program, started again to run only [`runs_its_part`].
//!
//! It ends with standard input, and at the latest with the thread that started it. No process is left behind, even if
//! the test is killed while the process is stopped.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::common::device;
use crate::interop::service;

/// The environment variable with the second process's role.
const PART: &str = "PETREL_TEST_SECOND_PROCESS";

/// Precedes the second process's report in its output.
const READY: &str = "ready: ";

/// A process, killed at the end if it still runs.
pub(crate) struct Process {
    child: Child,
    /// Closing it ends the process.
    _stdin: Option<ChildStdin>,
    /// The report with which it became ready.
    word: String,
}

impl Process {
    /// Starts a server and waits until it is ready.
    pub(crate) fn server(listen: SocketAddr) -> Self {
        let program = env::current_exe().unwrap();
        Self::start(device::command(&program), &format!("serve {}", device::address_of(listen)))
    }

    /// Starts a client that has an outstanding call of `KEEP` to a server after an answered call of `ECHO`.
    pub(crate) fn client(server: SocketAddr) -> Self {
        Self::start(Command::new(env::current_exe().unwrap()), &format!("call {server}"))
    }

    fn start(mut program: Command, part: &str) -> Self {
        let mut child = program
            .args(["--exact", "interop::process::runs_its_part", "--nocapture"])
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut process = Self { child, _stdin: stdin, word: String::new() };
        process.word = word_of(stdout.expect("it is piped"));
        process
    }

    /// Returns a server's listening address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.word.parse().unwrap()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the process, and waits until it has stopped.
    pub(crate) fn stand_still(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.id());
        // The state follows the name in parentheses.
        let is_stopped =
            |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
        while !is_stopped(std::fs::read_to_string(&stat).unwrap()) {
            thread::yield_now();
        }
    }

    /// Kills the process, as an accident would, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the process's report, after the output of the test harness.
fn word_of(stdout: ChildStdout) -> String {
    let mut lines = BufReader::new(stdout).lines().map(Result::unwrap);
    let word = lines.find_map(|line| Some(line.split_once(READY)?.1.to_owned()));
    word.expect("the second process ended before it was ready")
}

/// The second process's main function; does nothing as a normal test.
#[test]
fn runs_its_part() {
    let Ok(part) = env::var(PART) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    thread::spawn(end_with_input);
    let say = |word: &str| println!("{READY}{word}");
    match part.split_once(' ') {
        Some(("serve", listen)) => service::serve(listen.parse().unwrap(), say),
        Some(("call", server)) => service::call(server.parse().unwrap(), say),
        _ => panic!("no such part: {part}"),
    }
}

fn end_with_input() {
    // An error is an end, too.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}
