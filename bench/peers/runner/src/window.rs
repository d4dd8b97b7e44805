//! One window: a server, a client, and the distance of their CPUs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use peers_common::{Failure, Outcome, Workload};
use serde::Serialize;

use crate::building::Entry;
use crate::catalog::Measurement;
use crate::cli::{Cli, Cpus};
use crate::others::{DISTURBED, Watch};
use crate::peer_process::PeerProcess;
use crate::probe::{self, Distance};

/// The results of a window.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Window {
    pub(crate) peer: &'static str,
    pub(crate) variant: &'static str,
    pub(crate) measurement: Measurement,
    pub(crate) round: u32,
    /// Round trip of a cache line before and after, in nanoseconds.
    pub(crate) probes_ns: [f64; 2],
    /// `None` if the CPUs were moved meanwhile, which makes the window invalid.
    pub(crate) cores: Option<Distance>,
    /// Share of all CPUs that other programs used, 0 to 1; `None` if unknown.
    pub(crate) others: Option<f64>,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

impl Window {
    /// Returns true if other programs used too much of the CPUs, so the window should be repeated.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.others.is_some_and(|share| share > DISTURBED)
    }
}

pub(crate) fn run(
    entry: &Entry,
    measurement: Measurement,
    round: u32,
    cli: &Cli,
    cpus: Cpus,
) -> Result<Window, Failure> {
    let watch = Watch::start();
    let scratch = Scratch::create()?;
    let mut server = PeerProcess::start(&mut server_command(entry, cli, cpus, &scratch.0))
        .map_err(|failure| format!("server: {failure}"))?;
    let address =
        server.line("ready ", cli.limit()).map_err(|failure| format!("server: {failure}"))?;
    // The server starts before the probe, and settles meanwhile; the probe shares the server's CPU.
    let before = probe::round_trip_ns(cpus)?;
    let outcome = call(client_command(entry, measurement, cli, cpus, &address), cli)
        .map_err(|failure| format!("client: {failure}"))?;
    drop(server);
    let others = watch.others();
    let after = probe::round_trip_ns(cpus)?;
    let cores = Some(Distance::of(before)).filter(|distance| *distance == Distance::of(after));
    let (peer, variant) = (entry.peer.name, entry.variant.name);
    let probes_ns = [before, after];
    Ok(Window { peer, variant, measurement, round, probes_ns, cores, others, outcome })
}

fn call(mut command: Command, cli: &Cli) -> Result<Outcome, Failure> {
    let mut client = PeerProcess::start(&mut command)?;
    let line = client.line("{", cli.limit())?;
    client.finish(cli.limit())?;
    let outcome = serde_json::from_str(&format!("{{{line}"));
    Ok(outcome.map_err(|error| format!("its result cannot be read: {error}"))?)
}

fn server_command(entry: &Entry, cli: &Cli, cpus: Cpus, scratch: &Path) -> Command {
    let mut command = Command::new(&entry.program);
    command.args(["server", "--variant", entry.variant.name]);
    command.args(["--cpu", &cpus.server.to_string()]).arg("--scratch").arg(scratch);
    command.args(["--priority", priority(cli)]);
    command
}

fn client_command(
    entry: &Entry,
    measurement: Measurement,
    cli: &Cli,
    cpus: Cpus,
    address: &str,
) -> Command {
    let workload = match measurement.workload() {
        Workload::Echo => "echo",
        Workload::Bulk => "bulk",
    };
    let mut command = Command::new(&entry.program);
    command.args(["client", "--variant", entry.variant.name, "--address", address]);
    command.args(["--workload", workload, "--priority", priority(cli)]);
    for (name, value) in [
        ("--cpu", cpus.client as u64),
        ("--in-flight", measurement.in_flight() as u64),
        ("--warmup-ms", cli.warmup_ms),
        ("--window-ms", cli.window_ms),
    ] {
        command.args([name, &value.to_string()]);
    }
    command
}

fn priority(cli: &Cli) -> &'static str {
    if cli.realtime { "1" } else { "0" }
}

/// A directory in memory for the files of a server; removed on drop, even after a kill.
struct Scratch(PathBuf);

impl Scratch {
    fn create() -> Result<Self, Failure> {
        let parent = Path::new("/dev/shm");
        let parent = if parent.is_dir() { parent.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(format!("petrel-peers-{}", std::process::id()));
        fs::create_dir_all(&path)
            .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A remaining directory does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
