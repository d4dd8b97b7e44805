//! The settings of a replica.

use std::net::SocketAddr;
use std::time::Duration;

use crate::limits::{DISK_BYTES_MIN_DEFAULT, HISTORY_BYTES_DEFAULT, WATCHERS_MAX_DEFAULT};

/// The leader's method for linearizable reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMode {
    /// The leader asks a majority whether it still leads, once for all waiting reads (Raft dissertation §6.4). Correct
    /// whatever clocks do.
    #[default]
    ReadIndex,
    /// The leader answers at once while a lease holds: followers that acknowledged a heartbeat promise not to vote for
    /// another replica for an election timeout, less [`ReplicaConfig::clock_drift`] (§6.4.1). Correct while clocks run
    /// about equally fast.
    Lease,
}

/// The settings of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// This node's number, from 1.
    pub node: u16,
    /// The node's address for peers and clients.
    pub address: SocketAddr,
    /// The nodes of the bootstrap, with addresses. The list may include this node.
    pub peers: Vec<(u16, SocketAddr)>,
    /// Time between two heartbeats of the leader.
    pub heartbeat: Duration,
    /// Time without a heartbeat after which a follower starts an election: drawn from this value to its double.
    pub election: Duration,
    /// The way in which reads are answered.
    pub reads: ReadMode,
    /// The greatest difference in speed between clocks that leases tolerate, in thousandths.
    pub clock_drift: u32,
    /// Number of log entries above which the replica takes a snapshot and truncates the log.
    pub log_entries_max: usize,
    /// The limit in bytes, with the same effect.
    pub log_bytes_max: usize,
    /// Entries kept after truncation, for replicas that are a little behind.
    pub log_entries_kept: usize,
    /// Most writes waiting for a majority. Further writes are refused.
    pub writes_max: usize,
    /// Memory of the changes that the replica keeps for watchers, in bytes. The last change stays in any case.
    pub history_bytes_max: usize,
    /// Most watchers. Further ones are refused, and find another replica.
    pub watchers_max: usize,
    /// Memory of keys, values and log at which a leader refuses writes that store something, in bytes.
    pub memory_bytes_max: u64,
    /// Free bytes of the log's disk below which a leader refuses such writes.
    pub disk_bytes_min: u64,
    /// The seed for random numbers: replica names and election timeouts.
    pub seed: u64,
    /// The logger of the replica and of the Raft core.
    pub logger: slog::Logger,
}

/// Ticks of the Raft core for each heartbeat.
pub(super) const TICKS_PER_HEARTBEAT: usize = 2;

impl ReplicaConfig {
    /// Settings with the defaults, for a network within a building.
    pub fn new(node: u16, address: SocketAddr, peers: Vec<(u16, SocketAddr)>, seed: u64) -> Self {
        Self {
            node,
            address,
            peers,
            heartbeat: Duration::from_millis(50),
            election: Duration::from_millis(500),
            reads: ReadMode::default(),
            clock_drift: 50,
            log_entries_max: 200_000,
            log_bytes_max: 256 << 20,
            log_entries_kept: 20_000,
            writes_max: 100_000,
            history_bytes_max: HISTORY_BYTES_DEFAULT,
            watchers_max: WATCHERS_MAX_DEFAULT,
            memory_bytes_max: u64::MAX,
            disk_bytes_min: DISK_BYTES_MIN_DEFAULT,
            seed,
            logger: slog::Logger::root(slog::Discard, slog::o!()),
        }
    }

    /// Returns the first broken rule.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.node == 0 || self.peers.iter().any(|(node, _)| *node == 0) {
            Err("nodes are numbered from 1")
        } else if self.heartbeat < Duration::from_micros(100) {
            Err("signs of life are at least 100 microseconds apart")
        } else if self.election < 3 * self.heartbeat {
            Err("an election timeout is at least three times the heartbeat")
        } else if self.peers.iter().any(|(node, at)| *node == self.node && *at != self.address) {
            Err("the list of peers has another address for this node")
        } else if has_doubles(&self.peers) {
            Err("a node or an address is twice in the list of peers")
        } else if self.log_entries_max <= self.log_entries_kept {
            Err("a log keeps fewer entries than those with which it begins anew")
        } else if self.clock_drift >= 1000 {
            Err("clocks differ by less than 1000 thousandths")
        } else {
            Ok(())
        }
    }

    pub(super) fn tick(&self) -> Duration {
        self.heartbeat / TICKS_PER_HEARTBEAT as u32
    }

    pub(super) fn election_ticks(&self) -> usize {
        self.election.as_nanos().div_ceil(self.tick().as_nanos()) as usize
    }

    /// How long a leader may rely on a follower that acknowledged a heartbeat. Followers count whole ticks, and the
    /// first tick may be almost over.
    pub(super) fn lease_ns(&self) -> u64 {
        let ticks = self.election_ticks() as u128 - 1;
        let promised_ns = self.tick().as_nanos() * ticks;
        (promised_ns * u128::from(1000 - self.clock_drift) / 1000) as u64
    }

    /// The other nodes that bootstrap the cluster.
    pub(super) fn others(&self) -> impl Iterator<Item = (u16, SocketAddr)> {
        self.peers.iter().copied().filter(|(node, _)| *node != self.node)
    }
}

fn has_doubles(peers: &[(u16, SocketAddr)]) -> bool {
    let is_first = |(place, peer): (usize, &(u16, SocketAddr))| {
        !peers[..place].iter().any(|other| other.0 == peer.0 || other.1 == peer.1)
    };
    !peers.iter().enumerate().all(is_first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ReplicaConfig {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        ReplicaConfig::new(1, at(1), vec![(1, at(1)), (2, at(2))], 7)
    }

    #[test]
    fn check__each_rule() {
        assert_eq!(config().check(), Ok(()));
        let broken: [fn(&mut ReplicaConfig); 8] = [
            |config| config.node = 0,
            |config| config.heartbeat = Duration::from_micros(1),
            |config| config.election = config.heartbeat,
            |config| config.peers[0].1.set_port(9),
            |config| config.peers[1].0 = 1,
            |config| config.peers.push((3, config.peers[1].1)),
            |config| config.log_entries_kept = config.log_entries_max,
            |config| config.clock_drift = 1000,
        ];
        for change in broken {
            let mut config = config();
            change(&mut config);
            assert!(config.check().is_err(), "{config:?}");
        }
    }

    #[test]
    fn lease__is_shorter_than_what_followers_wait() {
        let config = config();
        assert_eq!(config.election_ticks(), 20);
        assert_eq!(config.lease_ns(), 19 * 25_000_000 / 1000 * 950);
    }
}
