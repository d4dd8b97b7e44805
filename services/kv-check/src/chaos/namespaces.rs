//! The run's own namespaces. The namespaces always disappear with the run. The run is the first process of a process
//! namespace with all children, and ends with the parent.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use super::ChaosOutcome;
use super::phase::remove_unfinished;
use crate::linearizable;

/// Set for the process inside the namespaces.
const INSIDE: &str = "PETREL_KV_CHAOS_INSIDE";

/// Most attempts to remove files while replicas still write them.
const REMOVALS_MAX: usize = 100;

/// Flags for root, and for other users where permitted.
const FLAGS: [&str; 2] = [
    "--net --pid --fork --kill-child --mount-proc",
    "--user --map-root-user --net --pid --fork --kill-child --mount-proc",
];

/// A short trial of the run's privileges.
const TRIAL: &str = "ip link set lo up && ip link add petrel-br type bridge \
    && ip link add petrel-a type veth peer name petrel-b && ip link set petrel-a master petrel-br \
    && unshare --net true && nsenter --target $$ --net true && nft add table bridge petrel";

pub(super) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Starts the program again in new namespaces, and waits for its end; or returns the obstacle.
pub(super) fn enter() -> Result<ChaosOutcome, String> {
    // Build the checker here: `go` may need a network.
    if let Err(why) = linearizable::program() {
        return Ok(ChaosOutcome::Skipped(format!("no checker of linearizability: {why}")));
    }
    match find_flags() {
        Ok(flags) => Ok(ChaosOutcome::DoneByChild(run_inside(flags)?)),
        Err(why) => Ok(ChaosOutcome::Skipped(format!("no network namespaces: {why}"))),
    }
}

fn find_flags() -> Result<&'static str, String> {
    let [root, others] = FLAGS;
    try_flags(root).map(|()| root).or_else(|why| match try_flags(others) {
        Ok(()) => Ok(others),
        Err(_) => Err(why),
    })
}

fn try_flags(flags: &str) -> Result<(), String> {
    let output = Command::new("unshare")
        .args(flags.split(' '))
        .args(["sh", "-c", TRIAL])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("`unshare` cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn run_inside(flags: &str) -> Result<bool, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    // The run ends when its input ends. The input stays empty, and closes with this process.
    let mut child = Command::new("unshare")
        .args(flags.split(' '))
        .arg(own)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`unshare` cannot be run: {error}"))?;
    let input = child.stdin.take();
    let status = child.wait().map_err(|error| error.to_string())?;
    drop(input);
    Ok(status.success())
}

/// Ends this process, and with it the namespaces, when its parent has ended.
pub(super) fn end_with_parent(directory: &Path) {
    let directory = directory.to_owned();
    std::thread::spawn(move || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|count| count > 0) {}
        // Files of violations have other names. Replicas end with this process, and may write meanwhile.
        let _ = (0..REMOVALS_MAX).any(|_| remove_unfinished(&directory));
        let _ = std::fs::remove_dir(&directory);
        std::process::exit(130);
    });
}

/// Runs a test of the program in new namespaces. Returns the output, or the obstacle.
#[cfg(test)]
pub(super) fn test_inside(test: &str) -> Result<String, String> {
    let flags = find_flags()?;
    let own = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(flags.split(' '))
        .arg(own)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
