//! The run's own namespaces. The namespaces always disappear with the run. The run is the first process of a process
//! namespace with all children, and ends with the parent.

use std::path::Path;

use petrel_netns::{Isolation, Namespaces};

use super::ChaosOutcome;
use super::phase::remove_unfinished;
use crate::linearizable;

/// Set for the process inside the namespaces.
const INSIDE: &str = "PETREL_KV_CHAOS_INSIDE";

/// Most attempts to remove files while replicas still write them.
const REMOVALS_MAX: usize = 100;

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
    match Namespaces::find(Isolation::NetworkAndProcesses, TRIAL, "") {
        Ok(namespaces) => {
            let is_right = namespaces.run_again(INSIDE, "1").map_err(|error| error.to_string())?;
            Ok(ChaosOutcome::DoneByChild(is_right))
        }
        Err(why) => Ok(ChaosOutcome::Skipped(format!("no network namespaces: {why}"))),
    }
}

/// Ends this process, and with it the namespaces, when its parent has ended.
pub(super) fn end_with_parent(directory: &Path) {
    let directory = directory.to_owned();
    petrel_netns::end_with_parent(move || {
        // Files of violations have other names. Replicas end with this process, and may write meanwhile.
        let _ = (0..REMOVALS_MAX).any(|_| remove_unfinished(&directory));
        let _ = std::fs::remove_dir(&directory);
    });
}

/// Runs a test of the program in new namespaces. Returns the output, or the obstacle.
#[cfg(test)]
pub(super) fn test_inside(test: &str) -> Result<String, petrel_netns::Error> {
    let namespaces = Namespaces::find(Isolation::NetworkAndProcesses, TRIAL, "")?;
    let output = namespaces
        .command(&std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
