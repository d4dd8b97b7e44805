//! Runs this program again under callgrind.
//!
//! Which program that is does not matter here: how it is told to run a workload is a parameter.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::dump::{self, Costs};
use super::workload::Workload;

/// Runs until nothing was lost: another process may fill a socket's buffer meanwhile.
const ATTEMPTS: u32 = 3;

/// Has the C library copy by plain loops. It copies large pieces by one repeated instruction, which
/// valgrind executes byte by byte: slowly, while the timers of the program's real time run on.
const COPY_BY_LOOPS: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_non_temporal_threshold=1073741824";

/// Which endpoint is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    /// The function of `workload` in which instructions count.
    fn function(self) -> &'static str {
        match self {
            Side::Client => "client_turn",
            Side::Server => "server_turn",
        }
    }
}

/// What one run took.
#[derive(Debug)]
pub(crate) struct Count {
    /// Packets that the requests took.
    pub(crate) packets: u64,
    pub(crate) costs: Costs,
}

/// Why nothing can be counted here.
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

/// Counts the instructions of one side for so many calls. `again` are the arguments by which this
/// program runs a workload; its name and the calls follow them.
///
/// # Errors
/// What valgrind or the counted program said.
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

/// The program under callgrind, still without arguments of its own.
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

/// Where callgrind writes; removed at the end.
struct OutFile(PathBuf);

impl OutFile {
    fn new() -> Self {
        let name = format!("petrel-instructions-{}.callgrind", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        // It may not be there; then there is nothing to remove.
        let _ = std::fs::remove_file(&self.0);
    }
}
