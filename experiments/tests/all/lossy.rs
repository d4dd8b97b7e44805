//! `petrel-experiment loss --veth`: loss of the kernel's packets.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::{command, finish, records, run, stderr, wait_until};
use petrel_skip::{Need, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LARGE: [&str; 2] = ["loss", "--veth"];
const SMALL: [&str; 2] = ["small-loss", "--veth"];

/// The messages of the command on hosts that lack a requirement.
const SKIP_REASONS: [&str; 3] =
    ["a network namespace cannot be made", "`ip link add", "packets cannot be thrown away"];

/// Serialises the runs: client and server of a run keep a CPU each, and two runs would choose equal
/// CPUs.
fn exclusive_run() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if this host lacks a requirement; then reports the test as skipped.
fn is_skipped(output: &Output) -> bool {
    let reason = stderr(output).trim();
    let is_skipped =
        !output.status.success() && SKIP_REASONS.iter().any(|cause| reason.contains(cause));
    if is_skipped {
        skip(Need::Namespaces, reason);
    }
    is_skipped
}

fn count(row: &Value, side: &str, name: &str) -> u64 {
    row[side][name].as_u64().unwrap_or_else(|| panic!("{side}.{name} of {row}"))
}

/// Checks the properties of every row, whatever was lost.
fn assert_row(row: &Value) {
    for side in ["with", "without"] {
        assert!(count(row, side, "answered") > 0, "{row}");
        assert!(count(row, side, "arrived") > 0, "{row}");
    }
    assert_eq!(count(row, "without", "dropped"), 0, "{row}");
    let dropped = count(row, "with", "dropped");
    if row["loss"] == 0.0 {
        assert_eq!(dropped, 0, "{row}");
        return;
    }
    assert!(dropped > 0, "{row}");
    // A packet dropped on the path to the server was part of a request, delivered later by a
    // retransmission, or a probe, which clients send only after a wait.
    let repeats = ["retransmissions", "timeouts", "probes"];
    let repeats: u64 = repeats.iter().map(|name| count(row, "with", name)).sum();
    assert!(repeats >= count(row, "with", "dropped_requests"), "{row}");
}

#[test]
fn loss__of_packets_is_mended_by_both_kinds_of_recovery() {
    let _guard = exclusive_run();
    let flags = ["--json", "--loss", "0,1e-2", "--duration", "60ms"];
    let output = run(&[&LARGE[..], &flags].concat());
    if is_skipped(&output) {
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = records(&output);
    let kinds: Vec<_> =
        rows.iter().map(|row| (row["recovery"].as_str().unwrap(), &row["loss"])).collect();
    let [none, some] = [0.0, 0.01].map(Value::from);
    let expected =
        [("selective", &none), ("selective", &some), ("go-back-n", &none), ("go-back-n", &some)];
    assert_eq!(kinds, expected);
    rows.iter().for_each(assert_row);
    assert!(!Path::new("/sys/class/net/petrel0").exists());
}

#[test]
fn small_loss__has_latencies_with_and_without() {
    let _guard = exclusive_run();
    let output = run(&[&SMALL[..], &["--json", "--loss", "0.05", "--duration", "60ms"]].concat());
    if is_skipped(&output) {
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let row = crate::common::record(&output);
    assert_row(&row);
    for side in ["with", "without"] {
        assert_eq!(row[side]["latency"]["count"], row[side]["answered"], "{row}");
    }
}

#[test]
fn loss__for_people_is_a_table_a_plot_and_the_way_to_repeat_it() {
    let _guard = exclusive_run();
    let plot = std::env::temp_dir().join(format!("petrel-lossy-{}.svg", std::process::id()));
    let flags =
        ["--quick", "--loss", "0.002", "--duration", "30ms", "--plot", plot.to_str().unwrap()];
    let output = run(&[&LARGE[..], &flags].concat());
    if is_skipped(&output) {
        return;
    }
    let text = crate::common::stdout(&output);
    let again = "  petrel-experiment loss --veth --quick --loss 0.002 --duration 30ms";
    for part in ["us per lost", "go-back-n", again, "Plot: "] {
        assert!(text.contains(part), "{part} is not in: {output:?}");
    }
    let svg = fs::read_to_string(&plot).unwrap();
    fs::remove_file(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("selective"), "{svg}");
}

/// The messages of the command on hosts that lack a requirement of several links.
const PATHS_SKIP_REASONS: [&str; 4] =
    ["a network namespace cannot be made", "`ip ", "`tc ", "packets cannot be thrown away"];

/// Several paths over the kernel's choice of links: a short form of the experiments.
#[test]
fn paths__over_links_of_the_kernel_use_all_and_survive_cuts() {
    let _guard = exclusive_run();
    for (what, rows) in [("loss", 6), ("cut", 20), ("permutation", 3)] {
        let flags = ["--veth", "--quick", "--json"];
        let output = run(&[&["paths", what][..], &flags].concat());
        let reason = stderr(&output).trim();
        if !output.status.success() && PATHS_SKIP_REASONS.iter().any(|cause| reason.contains(cause))
        {
            return skip(Need::Namespaces, reason);
        }
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let found = records(&output);
        assert_eq!(found.len(), rows, "{found:?}");
        for row in &found {
            assert!(row["answered"].as_u64().unwrap() > 0, "{row}");
            let share = row["share"].as_f64().unwrap();
            // Queues hold what arrives after a window's beginning and was sent before.
            assert!(share > 0.0 && share < 1.5, "{row}");
            let is_lossy = what == "loss" && row["level"].as_f64().unwrap() > 0.0;
            let is_coupled = row["policy"] == "coupled";
            assert!(
                !(is_lossy && is_coupled) || row["retransmissions"].as_u64().unwrap() > 0,
                "{row}"
            );
        }
        // One path has one link of 100 Mbit/s; how much several have depends on the load of the machine.
        let of_one_path = |row: &&Value| row["policy"] == "single" && what != "permutation";
        for row in found.iter().filter(of_one_path) {
            assert!(row["goodput_mbit"].as_f64().unwrap() < 120.0, "{row}");
        }
    }
}

/// Returns the network namespaces of a process's threads.
fn namespaces(process: &Path) -> BTreeSet<String> {
    let tasks = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let links = tasks.filter_map(|task| fs::read_link(task.path().join("ns/net")).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}

fn processes() -> impl Iterator<Item = std::path::PathBuf> {
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.join("task").exists())
}

#[test]
fn loss__interrupted_leaves_no_namespace_behind() {
    let _guard = exclusive_run();
    let mut child =
        command(&[&LARGE[..], &["--json", "--duration", "10min"]].concat()).spawn().unwrap();
    let process = Path::new("/proc").join(child.id().to_string());
    let own = namespaces(Path::new("/proc/self"));
    let mut made = BTreeSet::new();
    // A measuring run has two namespaces.
    let is_at_work = wait_until(|| {
        made = namespaces(&process).difference(&own).cloned().collect();
        made.len() == 2 || child.try_wait().unwrap().is_some()
    });
    if child.try_wait().unwrap().is_none() {
        // SIGTERM instead of SIGINT: shells let background jobs ignore SIGINT, and child processes
        // inherit that.
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    }
    let output = finish(child);
    if is_skipped(&output) {
        return;
    }
    assert!(is_at_work && made.len() == 2, "{made:?} {output:?}");
    assert!(!output.status.success(), "{output:?}");
    // Programs that the run started may end a little later.
    let is_empty_namespace = || processes().all(|process| namespaces(&process).is_disjoint(&made));
    assert!(wait_until(is_empty_namespace), "{made:?}");
}

/// A user without rights.
const UNPRIVILEGED_UID: u32 = 65_534;

#[test]
fn loss__without_the_right_to_it_says_so() {
    let _guard = exclusive_run();
    let mut command = command(&[&LARGE[..], &["--quick", "--json"]].concat());
    if rustix::process::geteuid().is_root() {
        command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            return skip(Need::Users, format!("the command cannot be run by others: {error}"));
        }
    };
    let output = finish(child);
    if !rustix::process::geteuid().is_root() && output.status.success() {
        return skip(Need::Users, "this user may make networks");
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("are you root?"), "{output:?}");
    assert!(crate::common::record(&output)["error"].as_str().unwrap().contains("are you root?"));
}

#[test]
fn loss__without_nftables_names_what_is_missing() {
    let _guard = exclusive_run();
    let folder = std::env::temp_dir().join(format!("petrel-lossy-path-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let paths = std::env::var("PATH").unwrap_or_default();
    let ip = std::env::split_paths(&paths).map(|path| path.join("ip")).find(|ip| ip.exists());
    if let Some(ip) = ip {
        std::os::unix::fs::symlink(ip, folder.join("ip")).unwrap();
    }
    let output = finish(command(&LARGE).env("PATH", &folder).spawn().unwrap());
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(&output);
    if SKIP_REASONS[..2].iter().any(|cause| said.contains(cause)) {
        return skip(Need::Namespaces, said);
    }
    assert!(said.contains("is nftables installed?"), "{output:?}");
}

#[test]
fn loss__wrong_flags_are_usage_errors() {
    for (flags, word) in [
        (&["--loss", "0.1"][..], "--veth"),
        (&["--veth", "--loss", "0.6"], "0.5"),
        (&["--veth", "--gbit", "25"], "--gbit"),
        (&["--veth", "--seed", "3"], "--seed"),
        (&["--veth", "--duration", "3"], "needs a unit"),
    ] {
        let output = run(&[&["loss"], flags].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).contains(word), "{output:?}");
    }
}
