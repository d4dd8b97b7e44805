//! A replica's process: serves until killed, and reports a digest of the state on request.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use petrel::Nexus;
use petrel::endpoint::AllowedTransports;
use petrel::endpoint::EndpointConfig;
use petrel_kv::disk::{DiskLog, DiskOptions};
use petrel_kv::persist::{LogStore, Recovered, Volatile};
use petrel_kv::{ReadMode, Replica, ReplicaConfig};
use serde::{Deserialize, Serialize};

use super::ChaosError;
use super::network::address_of;
use crate::logger;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) nodes: u16,
    pub(super) has_leases: bool,
    pub(super) election_ms: u64,
    pub(super) log_entries_max: u64,
}

/// The argument of a replica's process, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Argument {
    pub(super) settings: Settings,
    pub(super) node: u16,
    pub(super) seed: u64,
    /// The directory of the log; `None` for a replica in memory.
    pub(super) data: Option<PathBuf>,
}

/// Serves as a replica of a run, until the standard input ends. The run chooses the arguments.
///
/// # Errors
/// [`ChaosError`] if the replica cannot start, or has to stop.
pub fn serve(arguments: &[String]) -> Result<(), ChaosError> {
    let nobody = || "this is started by the run, with arguments of its own".to_owned();
    let [argument] = arguments else { return Err(nobody().into()) };
    let argument = serde_json::from_str(argument).map_err(|_| nobody())?;
    let Argument { settings, node, seed, data } = argument;
    let config = config(settings, node, seed);
    let (log, recovered) = open(data.as_deref(), node)?;
    // All replicas are on one machine: shared memory would bypass the network.
    let transports = AllowedTransports::UDP;
    let builder = Nexus::builder().listen(config.address).insecure().transports(transports);
    let nexus = builder.start().map_err(|error| error.to_string())?;
    let endpoint = nexus.endpoint(EndpointConfig::default());
    let mut endpoint = endpoint.map_err(|error| error.to_string())?;
    let replica =
        Replica::start(&mut endpoint, config, log, recovered).map_err(|error| error.to_string())?;
    let asked = questions();
    let ran = replica.run(&mut endpoint, || match asked.try_recv() {
        Ok(()) => {
            let (index, digest) = replica.digest().unwrap_or_default();
            writeln!(std::io::stdout(), "{index} {digest}").is_err()
        }
        Err(error) => error == TryRecvError::Disconnected,
    });
    ran.map_err(|error| error.to_string().into())
}

fn config(settings: Settings, node: u16, seed: u64) -> ReplicaConfig {
    let peers = (1..=settings.nodes).map(|node| (node, address_of(node))).collect();
    let mut config = ReplicaConfig::new(node, address_of(node), peers, seed);
    config.election = Duration::from_millis(settings.election_ms);
    config.heartbeat = config.election / 10;
    config.log_entries_max = settings.log_entries_max as usize;
    config.log_entries_kept = config.log_entries_max / 4;
    config.logger = logger::to_stderr();
    if settings.has_leases {
        config.reads = ReadMode::Lease;
    }
    config
}

fn open(data: Option<&Path>, node: u16) -> Result<(Box<dyn LogStore>, Option<Recovered>), String> {
    let Some(data) = data else { return Ok((Box::<Volatile>::default(), None)) };
    let (log, recovered) =
        DiskLog::open(data, &DiskOptions::of_node(node)).map_err(|error| error.to_string())?;
    Ok((Box::new(log), recovered))
}

/// Signals a request for each line of the input. The end of the input ends the replica.
fn questions() -> Receiver<()> {
    let (ask, asked) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() || ask.send(()).is_err() {
                return;
            }
        }
    });
    asked
}
