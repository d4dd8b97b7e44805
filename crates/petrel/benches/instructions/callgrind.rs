//! Runs this program again under callgrind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::dump::{self, Costs};
use crate::workload::Workload;

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

pub(crate) fn is_installed() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Counts the instructions of one side for so many calls.
///
/// # Errors
/// What valgrind or the counted program said.
pub(crate) fn count(workload: &Workload, calls: u64, side: Side) -> Result<Count, String> {
    let program = std::env::current_exe().map_err(|error| format!("no own path: {error}"))?;
    let file = OutFile::new();
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let output = run(&program, workload, calls, side, &file.0)?;
        if output.status.success() {
            return read(&program, &file.0, &output);
        }
        said = String::from_utf8_lossy(&output.stderr).into_owned();
    }
    Err(format!("{} with {calls} calls failed under valgrind:\n{said}", workload.name))
}

fn run(
    program: &Path,
    workload: &Workload,
    calls: u64,
    side: Side,
    file: &Path,
) -> Result<Output, String> {
    Command::new("valgrind")
        .args(["--quiet", "--fair-sched=try", "--tool=callgrind", "--dump-instr=yes"])
        .arg(format!("--toggle-collect=*{}*", side.function()))
        .arg(format!("--callgrind-out-file={}", file.display()))
        .env("GLIBC_TUNABLES", COPY_BY_LOOPS)
        .arg(program)
        .args(["--run", workload.name, &calls.to_string()])
        .output()
        .map_err(|error| format!("cannot start valgrind: {error}"))
}

fn read(program: &Path, file: &Path, output: &Output) -> Result<Count, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("callgrind left no {}: {error}", file.display()))?;
    let costs = dump::parse(&text, &program.to_string_lossy())?;
    if costs.total == 0 {
        return Err("nothing was counted: callgrind did not find the functions".into());
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
