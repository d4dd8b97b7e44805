//! Programs under test, with a limit of time and memory, because a defect may make them run or grow for
//! ever.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Outcome;
use crate::failure::Failure;

/// Address space of a process under test, in KiB: the largest tests map less than half of this limit.
const MEMORY_KIB_MAX: u64 = 16 << 20;

/// Interval of the checks whether a process has ended.
const LOOK: Duration = Duration::from_millis(20);

/// A program with its arguments and environment.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) directory: PathBuf,
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Output that shows a failed test; if set, the program is then stopped.
    pub(crate) ends_at: Option<&'static str>,
}

/// The longest time of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Time on processors: of the program's threads, and of reaped child processes.
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
}

impl Limits {
    /// Limits only the time on the clock.
    pub(crate) fn wall(wall: Duration) -> Self {
        Self { cpu: Duration::MAX, wall }
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    Failed,
    /// The program exceeded a time limit, and was killed.
    TooLong,
}

/// The outcome of a program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) end: End,
    pub(crate) took: Duration,
    /// Counted as in [`Limits`].
    pub(crate) cpu: Duration,
}

impl Program {
    /// Runs the program within `limits`. Its output goes to the file `log`: child processes could
    /// keep a pipe open.
    pub(crate) fn run(&self, limits: Limits, log: &Path) -> Outcome<Ran> {
        let begin = Instant::now();
        let mut child = self.start(log)?;
        let group = Pid::from_child(&child);
        let mut cpu = Duration::ZERO;
        let end = loop {
            // Before the wait, because the system then forgets the process and the time.
            cpu = cpu_time(group).unwrap_or(cpu);
            let is_too_long = cpu >= limits.cpu || begin.elapsed() >= limits.wall;
            match child.try_wait().map_err(Failure::io("waiting for a test"))? {
                Some(status) if status.success() => break End::Passed,
                Some(_) => break End::Failed,
                None if is_too_long => break End::TooLong,
                None if self.has_failed(log) => break End::Failed,
                None => thread::sleep(LOOK),
            }
        };
        // Kills all processes that the program has left behind, if any.
        let _ = kill_process_group(group, Signal::KILL);
        child.wait().map_err(Failure::io("waiting for a test"))?;
        Ok(Ran { end, took: begin.elapsed(), cpu })
    }

    /// Returns true if the program has printed that a test failed, and can be stopped.
    fn has_failed(&self, log: &Path) -> bool {
        let Some(word) = self.ends_at else { return false };
        let text = std::fs::read(log).unwrap_or_default();
        text.windows(word.len()).any(|window| window == word.as_bytes())
    }

    fn start(&self, log: &Path) -> Outcome<Child> {
        let what = || format!("{}", log.display());
        let out = File::create(log).map_err(Failure::io(what()))?;
        let err = out.try_clone().map_err(Failure::io(what()))?;
        // The shell sets the limit before it becomes the program.
        let limited = format!("ulimit -v {MEMORY_KIB_MAX}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.arg("-c").arg(limited).arg(&self.path).args(&self.arguments);
        command.current_dir(&self.directory).stdin(Stdio::null()).stdout(out).stderr(err);
        // The smallest failing input of a defect is not needed, nor a file with it beside the test.
        command.env("PROPTEST_MAX_SHRINK_ITERS", "0");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        command.process_group(0);
        command.spawn().map_err(Failure::io(format!("{}", self.path.display())))
    }
}

/// Returns the time of a process and of all reaped children on processors.
fn cpu_time(process: Pid) -> Option<Duration> {
    let path = format!("/proc/{}/stat", process.as_raw_nonzero());
    let stat = std::fs::read_to_string(path).ok()?;
    // Fields 14 to 17 are the times. The second field, the name, may contain spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(11).take(4);
    let ticks: u64 = times.filter_map(|time| time.parse::<u64>().ok()).sum();
    Some(Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn run(script: &str, limits: Limits) -> (End, String) {
        let name = format!("petrel-probe-{}-{:?}", std::process::id(), thread::current().id());
        let log = std::env::temp_dir().join(name);
        let program = Program {
            path: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            directory: "/".into(),
            variables: vec![("PROBED", "yes".to_owned())],
            ends_at: Some("FAILED"),
        };
        let ran = program.run(limits, &log).unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        (ran.end, text)
    }

    #[test]
    fn run__tells_how_a_program_ended_and_what_it_said() {
        let limits = Limits::wall(LONG);
        assert_eq!(run("echo $PROBED", limits), (End::Passed, "yes\n".to_owned()));
        assert_eq!(run("echo no >&2; exit 3", limits), (End::Failed, "no\n".to_owned()));
    }

    #[test]
    fn run__ends_with_the_first_test_that_fails() {
        let (end, text) = run("echo test a ... FAILED; sleep 1000", Limits::wall(LONG));
        assert_eq!((end, &text[..]), (End::Failed, "test a ... FAILED\n"));
    }

    #[test]
    fn run__limits_the_time_on_processors_and_not_that_asleep() {
        let limits = Limits { cpu: Duration::from_millis(100), wall: LONG };
        assert_eq!(run("while :; do :; done", limits).0, End::TooLong);
        assert_eq!(run("sleep 0.3", limits).0, End::Passed);
    }

    #[test]
    fn run__ends_what_hangs_with_what_it_has_started() {
        let (end, text) =
            run("sleep 1000 & echo $!; wait", Limits::wall(Duration::from_millis(200)));
        assert_eq!(end, End::TooLong);
        let stat = format!("/proc/{}/stat", text.trim());
        // The process is killed, but perhaps not yet reaped by its new parent.
        let is_gone = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        while !is_gone() {
            thread::yield_now();
        }
    }
}
