//! The way into namespaces of the run's own. They go when it ends, however it ends: all that was started is in a
//! process namespace whose first process is the run, and the run ends with the process that started it.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use super::ChaosOutcome;
use super::phase::remove_unfinished;
use crate::linearizable;

/// Set for the process that is in the namespaces.
const INSIDE: &str = "PETREL_KV_CHAOS_INSIDE";

/// How often files are removed that others write.
const REMOVALS_MAX: usize = 100;

/// For root, and for others where they may.
const FLAGS: [&str; 2] = [
    "--net --pid --fork --kill-child --mount-proc",
    "--user --map-root-user --net --pid --fork --kill-child --mount-proc",
];

/// What the run does in short.
const TRIAL: &str = "ip link set lo up && ip link add petrel-br type bridge \
    && ip link add petrel-a type veth peer name petrel-b && ip link set petrel-a master petrel-br \
    && unshare --net true && nsenter --target $$ --net true && nft add table bridge petrel";

pub(super) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Starts this program again in namespaces of its own, and waits for it; or says why that cannot be.
pub(super) fn enter() -> Result<ChaosOutcome, String> {
    // It is built here: there may be a network that `go` needs.
    if let Err(why) = linearizable::program() {
        return Ok(ChaosOutcome::Skipped(format!("no checker of linearizability: {why}")));
    }
    match find_flags() {
        Ok(flags) => Ok(ChaosOutcome::Elsewhere(run_inside(flags)?)),
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
    // The run ends when its input does, to which nobody writes: with this process.
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

/// Ends this process, and with it the namespaces, when the one that started it has ended.
pub(super) fn end_with_parent(directory: &Path) {
    let directory = directory.to_owned();
    std::thread::spawn(move || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|count| count > 0) {}
        // What was kept of violations has other names. Replicas, which end with this process, may write meanwhile.
        let _ = (0..REMOVALS_MAX).any(|_| remove_unfinished(&directory));
        let _ = std::fs::remove_dir(&directory);
        std::process::exit(130);
    });
}

/// Runs a test of this program in namespaces of its own. Gives what it said; or why that cannot be.
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
