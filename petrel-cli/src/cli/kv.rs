//! Arguments of `petrel kv`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use petrel_command::args::address::parse_listen;
use petrel_command::args::values::{IdleChoice, TransportChoice};
use petrel_command::args::{ReadsChoice, ServerAddress};
use petrel_command::units::{parse_duration, parse_size};
use petrel_kv::limits::{DISK_BYTES_MIN_DEFAULT, HISTORY_BYTES_DEFAULT};

use super::kv_chaos::{KvChaosArgs, KvChaosReplicaArgs};
use super::kv_files::{KvExportArgs, KvImportArgs, KvRestoreArgs, KvSaveArgs};
use super::kv_lease::KvLeaseArgs;
use super::kv_sim::KvSimArgs;
use super::kv_watch::KvWatchArgs;

/// A key-value store replicated over three or more processes: serve, read, write, administer
///
/// The replicas agree by Raft on one order of all writes. A write is answered when a majority has stored
/// it, and applied once even if the client repeats the request. Reads see all previously answered
/// writes. The store is available while a majority of the replicas is alive.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct KvArgs {
    #[command(subcommand)]
    pub(crate) what: KvCommand,
}

const AFTER_HELP: &str = "\
Examples:
  petrel kv serve --id 1 --peers 1=127.0.0.1:7001,2=127.0.0.1:7002,3=127.0.0.1:7003
  petrel kv put colour grey --servers 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
  petrel kv status --servers 127.0.0.1:7001

`petrel kv COMMAND --help` has more, with --json among it.";

// The help texts stand with the argument structs.
#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    Serve(KvServeArgs),
    Get(KvGetArgs),
    Put(KvPutArgs),
    Delete(KvDeleteArgs),
    Cas(KvCasArgs),
    Scan(KvScanArgs),
    Watch(KvWatchArgs),
    Lease(KvLeaseArgs),
    Save(KvSaveArgs),
    Restore(KvRestoreArgs),
    Export(KvExportArgs),
    Import(KvImportArgs),
    Status(KvStatusArgs),
    Member(KvMemberArgs),
    /// Hand leadership to a node, and wait until it leads
    #[command(after_long_help = TRANSFER_AFTER_HELP)]
    Transfer(KvNodeArgs),
    Sim(KvSimArgs),
    Chaos(KvChaosArgs),
    #[command(hide = true)]
    ChaosReplica(KvChaosReplicaArgs),
}

/// Serve one replica of the store, until interrupted
///
/// The replicas of `--peers` bootstrap the cluster together, once every replica has reached all members.
/// A replica that finds a running cluster asks to join. If the node is a member, the replica takes its
/// former place and learns its state from the members; else `petrel kv member add` has to allow the node
/// first.
///
/// Without `--data` all state is in memory: then a majority of the replicas has to be alive at any time.
#[derive(Args, Debug)]
#[command(after_long_help = SERVE_AFTER_HELP)]
pub(crate) struct KvServeArgs {
    /// This node's number, from 1: unique in the cluster, and the same after a restart
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) id: u16,

    /// Nodes of the cluster and their addresses
    ///
    /// A name in place of an address is looked up once. With --credentials a node's certificate contains the name given here, or the
    /// address. The list is the same at all nodes when the cluster begins. Nodes added later name the current
    /// members.
    #[arg(long, value_name = "N=ADDR:PORT,...", required = true, value_delimiter = ',')]
    pub(crate) peers: Vec<Peer>,

    /// Address and TCP port to listen at, reachable by the members [default: the node's address in
    /// --peers]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,

    /// Directory for the log: writes are synced before they are acknowledged [default: all state in
    /// memory]
    ///
    /// The directory is created on demand, and belongs to this node alone.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Memory of keys, values and log at which writes that store something are refused; the same at all nodes
    /// [default: no bound]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<usize>,

    /// Free space of the disk of --data below which a leader refuses such writes
    #[arg(long, value_name = "SIZE", default_value_t = DISK_BYTES_MIN_DEFAULT as usize, value_parser = parse_size)]
    pub(crate) disk_free: usize,

    /// Memory of the last changes, for watches that begin or go on at an earlier revision
    #[arg(long, value_name = "SIZE", default_value_t = HISTORY_BYTES_DEFAULT, value_parser = parse_size)]
    pub(crate) history: usize,

    /// How the leader verifies its leadership before a read
    #[arg(long, value_enum, default_value_t = ReadsChoice::ReadIndex)]
    pub(crate) reads: ReadsChoice,

    /// Time between two heartbeats of the leader, the same at all nodes
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = parse_duration)]
    pub(crate) heartbeat: Duration,

    /// Time without a heartbeat after which another leader is elected, the same at all nodes
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = parse_duration)]
    pub(crate) election: Duration,

    /// Allow addresses that other hosts can reach, without any authentication
    ///
    /// Without this flag the replica refuses to listen anywhere except on loopback. With it everyone who
    /// can reach the port can read and write.
    #[arg(long)]
    pub(crate) insecure: bool,

    /// How the replica's thread waits for packets
    #[arg(long, value_enum, default_value_t = IdleChoice::Spin)]
    pub(crate) idle: IdleChoice,

    /// Transport between the nodes, and of clients
    #[arg(long, value_enum, default_value_t = TransportChoice::Auto)]
    pub(crate) transport: TransportChoice,

    /// Most time to hand leadership over, and for clients to leave, after Ctrl-C or SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) drain: Duration,
}

const SERVE_AFTER_HELP: &str = "\
Examples:
  petrel kv serve --id 1 --peers 1=127.0.0.1:7001,2=127.0.0.1:7002,3=127.0.0.1:7003
  petrel kv serve --id 2 --peers 1=10.0.0.1:7000,2=10.0.0.2:7000,3=10.0.0.3:7000 --insecure --idle poll
  petrel kv serve --id 3 --peers 1=10.0.0.1:7000,2=10.0.0.2:7000,3=10.0.0.3:7000 --insecure --data /srv/kv
  petrel kv serve --id 4 --listen 127.0.0.1:7004 --peers 1=127.0.0.1:7001,2=127.0.0.1:7002

With --json: one object when it listens, {event, address, pid, node, peers}, and one at the end,
{event, sessions_cut}. Stop it with Ctrl-C or SIGTERM: it hands leadership over, answers what is on its
way, and ends when its clients have left. A second signal ends it at once.";

/// A node and its address, written `N=ADDR:PORT`, or with a name in place of the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) node: u16,
    pub(crate) address: SocketAddr,
    /// The name in the certificate of the node.
    pub(crate) host: Option<String>,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let argument_error = |reason: &str| {
            format!("'{text}' is no node: {reason}; write N=ADDR:PORT, as in 2=127.0.0.1:7002")
        };
        let (node, address) =
            text.split_once('=').ok_or_else(|| argument_error("the '=' is missing"))?;
        let node = node.parse().ok().filter(|node| *node > 0);
        let node = node.ok_or_else(|| argument_error("its number is not one from 1 to 65535"))?;
        if let Ok(address) = address.parse() {
            return Ok(Self { node, address, host: None });
        }
        let host = address.rsplit_once(':').map(|(host, _)| host.to_owned());
        let address = parse_listen(address).map_err(|reason| argument_error(&reason))?;
        Ok(Self { node, address, host })
    }
}

/// Arguments of all commands that talk to the cluster.
#[derive(Args, Debug)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// Addresses of replicas: one live replica is enough, more are better
    ///
    /// By naming an address of another host, you allow unprotected calls to that host.
    #[arg(long, value_name = "ADDR,...", env = "PETREL_KV_SERVERS", required = true)]
    #[arg(value_delimiter = ',')]
    pub(crate) servers: Vec<ServerAddress>,

    /// Most time for the operation, with all its attempts
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// The notation of keys and values.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct FormatArgs {
    /// Keys and values are written in hexadecimal digits, here and in the answer
    #[arg(long)]
    pub(crate) hex: bool,
}

/// The key of an operation.
#[derive(Args, Debug)]
pub(crate) struct KvKeyArgs {
    /// The key
    #[arg(value_name = "KEY")]
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// Print the value of a key
///
/// The value's bytes go to standard output unchanged. The exit code is 1 if there is no such key.
#[derive(Args, Debug)]
#[command(after_long_help = GET_AFTER_HELP)]
pub(crate) struct KvGetArgs {
    #[command(flatten)]
    pub(crate) of: KvKeyArgs,

    /// Read from any replica, without asking the leader
    #[arg(long)]
    pub(crate) stale: bool,
}

const GET_AFTER_HELP: &str = "\
Examples:
  petrel kv get colour --servers 127.0.0.1:7001,127.0.0.1:7002
  petrel kv get 636f6c --hex --stale --json --servers 127.0.0.1:7001

With --json: {found, revision, value}; the value in hexadecimal digits with --hex, or as value_hex where it is
not UTF-8.";

/// Set a key's value
#[derive(Args, Debug)]
#[command(after_long_help = PUT_AFTER_HELP)]
pub(crate) struct KvPutArgs {
    #[command(flatten)]
    pub(crate) of: KvKeyArgs,

    /// The new value
    #[arg(value_name = "VALUE")]
    pub(crate) value: String,

    /// Give the key to this lease: it goes when the lease ends. Without this flag the key has no lease any more
    #[arg(long, value_name = "N")]
    pub(crate) lease: Option<u64>,

    /// Set the key for this time, with a lease of its own
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "lease")]
    pub(crate) ttl: Option<Duration>,
}

const PUT_AFTER_HELP: &str = "\
Examples:
  petrel kv put colour grey --servers 127.0.0.1:7001,127.0.0.1:7002
  petrel kv put token 4711 --ttl 30s --servers 127.0.0.1:7001
  petrel kv put 00ff 0102 --hex --json --servers 127.0.0.1:7001

With --json: {revision, replaced}.";

/// Remove a key
///
/// The command succeeds whether the key existed or not, and reports which.
#[derive(Args, Debug)]
#[command(after_long_help = DELETE_AFTER_HELP)]
pub(crate) struct KvDeleteArgs {
    #[command(flatten)]
    pub(crate) of: KvKeyArgs,
}

const DELETE_AFTER_HELP: &str = "\
Examples:
  petrel kv delete colour --servers 127.0.0.1:7001
  petrel kv delete colour --json --servers 127.0.0.1:7001

With --json: {existed}.";

/// Compare and set: set a key's value if it is as expected
///
/// Otherwise the exit code is 1 and the store is unchanged.
#[derive(Args, Debug)]
#[command(after_long_help = CAS_AFTER_HELP)]
pub(crate) struct KvCasArgs {
    #[command(flatten)]
    pub(crate) of: KvKeyArgs,

    /// The new value
    #[arg(value_name = "VALUE")]
    pub(crate) value: String,

    #[command(flatten)]
    pub(crate) expected: ExpectedArgs,

    /// Give the key to this lease: it goes when the lease ends
    #[arg(long, value_name = "N")]
    pub(crate) lease: Option<u64>,
}

/// The condition of a compare-and-set.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct ExpectedArgs {
    /// Only if there is no such key
    #[arg(long)]
    pub(crate) absent: bool,

    /// Only if the key has this revision, as printed by get and scan with --json
    #[arg(long, value_name = "N")]
    pub(crate) revision: Option<u64>,

    /// Only if the key has this value
    #[arg(long, value_name = "VALUE")]
    pub(crate) expect: Option<String>,
}

const CAS_AFTER_HELP: &str = "\
Examples:
  petrel kv cas leader me --absent --lease 42 --servers 127.0.0.1:7001
  petrel kv cas colour white --expect grey --servers 127.0.0.1:7001
  petrel kv cas colour white --revision 17 --json --servers 127.0.0.1:7001

With --json: {done, revision}, the revision that the key has now, or null if it is not there.";

/// Print the keys of a range with their values, in order
///
/// A line per key: the key, a tab, the value; unprintable text is escaped. Long ranges are read page by
/// page; a page is a state at one moment.
#[derive(Args, Debug)]
#[command(after_long_help = SCAN_AFTER_HELP)]
pub(crate) struct KvScanArgs {
    /// The first key [default: the beginning]
    #[arg(value_name = "FROM", default_value = "", hide_default_value = true)]
    pub(crate) from: String,

    /// The first key after the range [default: none]
    #[arg(value_name = "UNTIL")]
    pub(crate) until: Option<String>,

    /// Only keys that begin with FROM
    #[arg(long, conflicts_with = "until")]
    pub(crate) prefix: bool,

    /// Most keys to print
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,

    /// Read from any replica, without asking the leader
    #[arg(long)]
    pub(crate) stale: bool,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const SCAN_AFTER_HELP: &str = "\
Examples:
  petrel kv scan --servers 127.0.0.1:7001
  petrel kv scan user: --prefix --limit 100 --servers 127.0.0.1:7001
  petrel kv scan a c --json --servers 127.0.0.1:7001

With --json: an object for each key, {key, revision, value}; key_hex and value_hex for what is not UTF-8.";

/// Print the state of every replica: role, log, keys, and lag
///
/// Asks the replicas of --servers, and all members that they name. The exit code is 1 if no replica
/// leads.
#[derive(Args, Debug)]
#[command(after_long_help = STATUS_AFTER_HELP)]
pub(crate) struct KvStatusArgs {
    /// Print the counters of every replica, too
    #[arg(long)]
    pub(crate) counters: bool,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const STATUS_AFTER_HELP: &str = "\
Examples:
  petrel kv status --servers 127.0.0.1:7001
  petrel kv status --counters --servers 127.0.0.1:7001
  petrel kv status --json --timeout 2s --servers 127.0.0.1:7001

With --json: an object for each replica, {address, node, raft_id, role, vote, term, commit, applied, first_index,
last_index, lag, keys, bytes, sessions, counters}, or {address, error}.";

/// Add a node to the cluster, or remove one
#[derive(Args, Debug)]
#[command(after_long_help = MEMBER_AFTER_HELP)]
pub(crate) struct KvMemberArgs {
    #[command(subcommand)]
    pub(crate) what: KvMemberCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KvMemberCommand {
    /// Add a node: start the node afterwards; after catching up it becomes a voter
    Add(KvMemberAddArgs),
    /// Remove a node, alive or not: stop the node afterwards
    #[command(after_long_help = MEMBER_AFTER_HELP)]
    Remove(KvNodeArgs),
}

const MEMBER_AFTER_HELP: &str = "\
Examples:
  petrel kv member add 4 127.0.0.1:7004 --servers 127.0.0.1:7001
  petrel kv member remove 2 --json --servers 127.0.0.1:7001

The leader is not removed: hand leadership over first, by `petrel kv transfer`.";

#[derive(Args, Debug)]
#[command(after_long_help = MEMBER_AFTER_HELP)]
pub(crate) struct KvMemberAddArgs {
    #[command(flatten)]
    pub(crate) of: KvNodeArgs,

    /// The address at which the node will listen
    #[arg(value_name = "ADDR:PORT")]
    pub(crate) address: SocketAddr,
}

/// A node of the cluster.
#[derive(Args, Debug)]
pub(crate) struct KvNodeArgs {
    /// The node's number
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) node: u16,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const TRANSFER_AFTER_HELP: &str = "\
Examples:
  petrel kv transfer 2 --servers 127.0.0.1:7001
  petrel kv transfer 2 --json --servers 127.0.0.1:7001";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer__is_a_number_and_an_address() {
        let peer: Peer = "2=127.0.0.1:7002".parse().unwrap();
        assert_eq!((peer.node, peer.address.port(), peer.host), (2, 7002, None));
        let named: Peer = "2=localhost:7002".parse().unwrap();
        assert!(named.address.ip().is_loopback());
        assert_eq!(named.host.as_deref(), Some("localhost"));
        for (text, reason) in [
            ("127.0.0.1:7002", "'=' is missing"),
            ("0=127.0.0.1:7002", "1 to 65535"),
            ("x=127.0.0.1:7002", "1 to 65535"),
            ("2=127.0.0.1", "is not an address"),
            ("2=localhost", "is not an address"),
        ] {
            let error = text.parse::<Peer>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
