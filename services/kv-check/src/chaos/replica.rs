//! A replica's process: serves until killed, and reports a digest of the state on request.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use petrel::Nexus;
use petrel::endpoint::AllowedTransports;
use petrel::endpoint::EndpointConfig;
use petrel_kv::disk::{DiskLog, DiskOptions};
use petrel_kv::persist::{LogStore, Recovered, Volatile};
use petrel_kv::{ReadMode, Replica, ReplicaConfig};
use serde::Serialize;

use super::ChaosError;
use super::network::address_of;
use crate::logger;

/// In place of a directory, for a replica in memory.
const IN_MEMORY: &str = "-";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Settings {
    pub(super) nodes: u16,
    pub(super) has_leases: bool,
    pub(super) election_ms: u64,
    pub(super) log_entries_max: u64,
}

impl Settings {
    /// The arguments with these settings, for a replica's process.
    pub(super) fn arguments(self, node: u16, seed: u64, data: Option<&Path>) -> Vec<String> {
        let data = data.map_or(IN_MEMORY.to_owned(), |path| path.display().to_string());
        let numbers = [
            u64::from(node),
            seed,
            u64::from(self.nodes),
            u64::from(self.has_leases),
            self.election_ms,
            self.log_entries_max,
        ];
        std::iter::once(data).chain(numbers.iter().map(u64::to_string)).collect()
    }

    fn parse(arguments: &[String]) -> Option<(Self, u16, u64)> {
        let numbers: Vec<u64> =
            arguments.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [node, seed, nodes, leases, election_ms, log_entries_max] = numbers[..] else {
            return None;
        };
        let (nodes, has_leases) = (u16::try_from(nodes).ok()?, leases != 0);
        let settings = Self { nodes, has_leases, election_ms, log_entries_max };
        Some((settings, u16::try_from(node).ok()?, seed))
    }
}

/// Serves as a replica of a run, until the standard input ends. The run chooses the arguments.
///
/// # Errors
/// [`ChaosError`] if the replica cannot start, or has to stop.
pub fn serve(arguments: &[String]) -> Result<(), ChaosError> {
    let nobody = || "this is started by the run, with arguments of its own".to_owned();
    let (data, rest) = arguments.split_first().ok_or_else(nobody)?;
    let (settings, node, seed) = Settings::parse(rest).ok_or_else(nobody)?;
    let config = config(settings, node, seed);
    let (log, recovered) = open(data, node)?;
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

fn open(data: &str, node: u16) -> Result<(Box<dyn LogStore>, Option<Recovered>), String> {
    if data == IN_MEMORY {
        return Ok((Box::<Volatile>::default(), None));
    }
    let (log, recovered) = DiskLog::open(data.as_ref(), &DiskOptions::of_node(node))
        .map_err(|error| error.to_string())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments__round_trip() {
        let settings =
            Settings { nodes: 5, has_leases: true, election_ms: 800, log_entries_max: 200 };
        let words = settings.arguments(3, 17, Some("/srv/kv".as_ref()));
        assert_eq!(words[0], "/srv/kv");
        assert_eq!(Settings::parse(&words[1..]), Some((settings, 3, 17)));
        assert_eq!(Settings::parse(&words), None);
        assert_eq!(settings.arguments(3, 17, None)[0], IN_MEMORY);
        assert!(serve(&[]).is_err());
    }
}
