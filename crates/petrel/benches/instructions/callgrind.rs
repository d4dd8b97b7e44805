//! Runs this program again under callgrind.
//!
//! The identity of the program does not matter here: the arguments that make it run a workload are a parameter.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::dump::{self, Costs};
use super::workload::Workload;

/// Most runs until one loses nothing: another process may fill a socket's buffer.
const ATTEMPTS: u32 = 3;

/// Makes the C library copy by plain loops. Otherwise large copies use a single repeated instruction, which valgrind
/// executes byte by byte: slowly, while the program's real-time timers run on.
const COPY_BY_LOOPS: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_non_temporal_threshold=1073741824";

/// The endpoint to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    /// The function of `workload` to which counting is restricted.
    fn function(self) -> &'static str {
        match self {
            Side::Client => "client_turn",
            Side::Server => "server_turn",
        }
    }
}

/// The result of one run.
#[derive(Debug)]
pub(crate) struct Count {
    /// Packets of the requests.
    pub(crate) packets: u64,
    pub(crate) costs: Costs,
}

/// Returns why counting is impossible here, if so.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !is_installed() {
        Some("valgrind is not installed")
    } else if cfg!(debug_assertions) {
        Some("this build is not optimised; a release build is")
    } else {
        None
    }
}

fn is_installed() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Counts the instructions of one side for `calls` calls. `again` are the arguments that make this program run a
/// workload, followed by the workload's name and the calls.
///
/// # Errors
/// The error of valgrind or of the counted program.
pub(crate) fn count(
    workload: &Workload,
    calls: u64,
    side: Side,
    again: &[&str],
) -> Result<Count, String> {
    let program = std::env::current_exe().map_err(|error| format!("no own path: {error}"))?;
    let file = OutFile::new();
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let mut command = command(&program, side, &file.0);
        command.args(again).args([workload.name, &calls.to_string()]);
        let output = command.output().map_err(|error| format!("cannot start valgrind: {error}"))?;
        if output.status.success() {
            return read(&program, &file.0, &output);
        }
        said = String::from_utf8_lossy(&output.stderr).into_owned();
    }
    Err(format!("{} with {calls} calls failed under valgrind:\n{said}", workload.name))
}

/// Returns the program under callgrind, still without its own arguments.
fn command(program: &Path, side: Side, file: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .args(["--quiet", "--fair-sched=try", "--tool=callgrind", "--dump-instr=yes"])
        .arg(format!("--toggle-collect=*{}*", side.function()))
        .arg(format!("--callgrind-out-file={}", file.display()))
        .env("GLIBC_TUNABLES", COPY_BY_LOOPS)
        .arg(program);
    command
}

fn read(program: &Path, file: &Path, output: &Output) -> Result<Count, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("callgrind left no {}: {error}", file.display()))?;
    let costs = dump::parse(&text, &program.to_string_lossy())?;
    if costs.total == 0 {
        let text = "callgrind did not find the functions; is the program stripped of its symbols?";
        return Err(format!("nothing was counted: {text}"));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let packets = said.lines().find_map(|line| line.strip_prefix("packets ")?.parse().ok());
    let packets = packets.ok_or("the counted program did not say how many packets it sent")?;
    Ok(Count { packets, costs })
}

/// Callgrind's output file; removed at the end.
struct OutFile(PathBuf);

impl OutFile {
    fn new() -> Self {
        let name = format!("petrel-instructions-{}.callgrind", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        // A missing file needs no removal.
        let _ = std::fs::remove_file(&self.0);
    }
}
