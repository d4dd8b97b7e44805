//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use peers_common::{Failure, process};

use crate::catalog::{self, Measurement, Peer, Variant};

/// Measures Petrel beside the alternatives of its users.
#[derive(Parser, Debug)]
#[command(version, about)]
pub(crate) struct Cli {
    /// Peers to measure, as `tonic`, or single variants, as `tonic/stream`; all if none.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// Measurements to run.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Measurement::ALL)]
    pub(crate) measure: Vec<Measurement>,

    /// Repetitions of every window; all peers take turns.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Duration of the uncounted calls, in milliseconds.
    #[arg(long, default_value_t = 200)]
    pub(crate) warmup_ms: u64,

    /// Duration of the counted calls, in milliseconds.
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) window_ms: u64,

    /// Client and server run with the lowest real-time priority, before all ordinary threads. If other
    /// programs use the CPUs permanently, only this flag makes measurements possible. Keep windows and
    /// their warm-up under 0.8 s together: the kernel throttles a real-time thread after 0.95 s of a
    /// second.
    #[arg(long)]
    pub(crate) realtime: bool,

    /// Most seconds to wait, before every window, for other programs to leave the CPUs.
    #[arg(long, default_value_t = 5)]
    patience_s: u64,

    /// Most repetitions of a window during which other programs used the CPUs.
    #[arg(long, default_value_t = 2)]
    pub(crate) retries: u32,

    /// After this many seconds an unfinished server or client is killed, and the window has failed.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    limit_s: u64,

    /// The CPUs for the server and for the client, as `0,1`; the first two usable CPUs if none are
    /// named.
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,

    /// File for the results, one JSON object per line.
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,

    /// File for the plot, as SVG.
    #[arg(long)]
    pub(crate) plot: Option<PathBuf>,
}

/// The CPUs of server and client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpus {
    pub(crate) server: usize,
    pub(crate) client: usize,
}

impl Cli {
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.limit_s)
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience_s)
    }

    pub(crate) fn cpus(&self) -> Result<Cpus, Failure> {
        let usable = process::usable()?;
        if !matches!(self.cpus.len(), 0 | 2) {
            return Err("--cpus takes two CPUs, as 0,1".into());
        }
        let wanted = if self.cpus.is_empty() { &usable } else { &self.cpus };
        let &[server, client, ..] = wanted.as_slice() else {
            return Err("two CPUs are needed, and this process may use one only".into());
        };
        if server == client {
            return Err(
                "--cpus needs two different CPUs: two ends that poll would take turns".into()
            );
        }
        match [server, client].iter().find(|cpu| !usable.contains(cpu)) {
            Some(cpu) => Err(format!("CPU {cpu} is not one that may be used: {usable:?}").into()),
            None => Ok(Cpus { server, client }),
        }
    }

    /// Returns the selected peers with their selected variants.
    pub(crate) fn selected(&self) -> Result<Vec<(&'static Peer, Vec<&'static Variant>)>, Failure> {
        if let Some(name) = self.only.iter().find(|name| !is_known(name)) {
            let names: Vec<_> = catalog::PEERS.iter().map(|peer| peer.name).collect();
            return Err(format!("there is no peer {name}; there are {}", names.join(", ")).into());
        }
        let chosen = catalog::PEERS.iter().map(|peer| {
            let variants = peer.variants.iter().filter(|variant| self.wants(peer, variant));
            (peer, variants.collect::<Vec<_>>())
        });
        Ok(chosen.filter(|(_, variants)| !variants.is_empty()).collect())
    }

    fn wants(&self, peer: &Peer, variant: &Variant) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| is_name_of(name, peer, variant))
    }
}

fn is_name_of(name: &str, peer: &Peer, variant: &Variant) -> bool {
    match name.split_once('/') {
        None => name == peer.name,
        Some((first, second)) => first == peer.name && second == variant.name,
    }
}

fn is_known(name: &str) -> bool {
    let mut all = catalog::PEERS.iter();
    all.any(|peer| peer.variants.iter().any(|variant| is_name_of(name, peer, variant)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cli(args: &[&str]) -> Cli {
        Cli::try_parse_from([&["peers"], args].concat()).unwrap()
    }

    #[test]
    fn selected__takes_peers_and_single_variants() {
        let selected = cli(&["--only", "tarpc,petrel/shm"]).selected().unwrap();
        let names: Vec<_> = selected
            .iter()
            .flat_map(|(peer, variants)| variants.iter().map(|one| (peer.name, one.name)))
            .collect();
        assert_eq!(names, [("petrel", "shm"), ("tarpc", "tcp")]);
        assert_eq!(cli(&[]).selected().unwrap().len(), catalog::PEERS.len());
    }

    #[test]
    fn selected__names_what_there_is_when_it_is_asked_for_something_else() {
        for wrong in ["corba", "petrel/carrier-pigeon"] {
            let failure = cli(&["--only", wrong]).selected().unwrap_err().to_string();
            assert!(failure.contains(wrong) && failure.contains("tarpc"), "{failure}");
        }
    }

    #[test]
    fn cpus__must_be_two_different_ones() {
        for wrong in ["0,0", "0,100000", "0", "0,1,2"] {
            assert!(cli(&["--cpus", wrong]).cpus().is_err(), "{wrong}");
        }
    }
}
