//! Arguments of `petrel kv`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::address::ServerAddress;
use super::kv_chaos::{KvChaosArgs, KvChaosReplicaArgs};
use super::kv_sim::KvSimArgs;
use super::values::{IdleChoice, TransportChoice};
use crate::units::parse_duration;

/// A key-value store that three or more processes keep together: serve, read, write, look after it
///
/// The replicas agree by Raft on one order of all writes. A write is answered when a majority has it, and
/// applied once however often its client has to send it; reads see every write that was answered
/// before. The store goes on while a majority of the replicas lives.
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

// The help texts stand with the arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    Serve(KvServeArgs),
    Get(KvGetArgs),
    Put(KvPutArgs),
    Delete(KvDeleteArgs),
    Cas(KvCasArgs),
    Scan(KvScanArgs),
    Status(KvStatusArgs),
    Member(KvMemberArgs),
    Transfer(KvTransferArgs),
    Sim(KvSimArgs),
    Chaos(KvChaosArgs),
    #[command(hide = true)]
    ChaosReplica(KvChaosReplicaArgs),
}

/// Serve one replica of the store, until interrupted
///
/// The replicas of `--peers` found the cluster together, once each has heard of all others. A replica that
/// finds a cluster that has begun already asks to be taken in: if its node is a member, it takes its former
/// place, with nothing but what the others tell it; else `petrel kv member add` has to allow it first.
///
/// Without `--data` all is kept in memory: then a majority of the replicas has to be alive at any time.
#[derive(Args, Debug)]
#[command(after_long_help = SERVE_AFTER_HELP)]
pub(crate) struct KvServeArgs {
    /// This node's number, from 1: no other node has it, and it keeps it when it is started again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) id: u16,

    /// Nodes of the cluster and their addresses
    ///
    /// The same at all nodes when the cluster begins. A node that comes later names the members that there are.
    #[arg(long, value_name = "N=ADDR:PORT,...", required = true, value_delimiter = ',')]
    pub(crate) peers: Vec<Peer>,

    /// Address and TCP port to listen at, by which others reach this node [default: that in --peers]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,

    /// Directory for the log: nothing is acknowledged before it is synced [default: all is kept in memory]
    ///
    /// It is made if it is not there, and belongs to this node alone.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// How the leader makes sure before a read that it leads
    #[arg(long, value_enum, default_value_t = ReadsChoice::ReadIndex)]
    pub(crate) reads: ReadsChoice,

    /// Time between two signs of life of the leader, the same at all nodes
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = parse_duration)]
    pub(crate) heartbeat: Duration,

    /// Time without a sign of life after which another leader is elected, the same at all nodes
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = parse_duration)]
    pub(crate) election: Duration,

    /// Allow addresses that other hosts can reach, without any authentication
    ///
    /// Without this flag the replica refuses to listen anywhere but on loopback. With it everybody who can
    /// reach the port can read and write.
    #[arg(long)]
    pub(crate) insecure: bool,

    /// What the replica's thread does while nothing comes in
    #[arg(long, value_enum, default_value_t = IdleChoice::Spin)]
    pub(crate) idle: IdleChoice,

    /// Transport between the nodes, and of clients
    #[arg(long, value_enum, default_value_t = TransportChoice::Auto)]
    pub(crate) transport: TransportChoice,

    /// How long leadership may take to be handed over, and clients to leave, after Ctrl-C or SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) drain: Duration,

    /// What goes to standard error
    #[arg(long, value_enum, default_value_t = LogLevel::Info)]
    pub(crate) log_level: LogLevel,
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

/// How the leader makes sure before a read that it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReadsChoice {
    /// It asks a majority, once for all reads that wait: right whatever clocks do
    ReadIndex,
    /// It relies on what followers have promised: faster, and right while clocks run equally fast within 5 %
    Lease,
}

impl ReadsChoice {
    /// The name by which it is chosen.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ReadIndex => "read-index",
            Self::Lease => "lease",
        }
    }
}

/// What is worth a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// What keeps it from working
    Error,
    /// What somebody should look at, too
    Warning,
    /// Elections and changes of members, too
    Info,
}

/// A node and its address, written `N=ADDR:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) node: u16,
    pub(crate) address: SocketAddr,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let complaint = |reason| {
            format!("'{text}' is no node: {reason}; write N=ADDR:PORT, as in 2=127.0.0.1:7002")
        };
        let (node, address) =
            text.split_once('=').ok_or_else(|| complaint("the '=' is missing"))?;
        let node = node.parse().ok().filter(|node| *node > 0);
        let node = node.ok_or_else(|| complaint("its number is not one from 1 to 65535"))?;
        let address: SocketAddr =
            address.parse().map_err(|_| complaint("behind '=' is no IP address with a port"))?;
        Ok(Self { node, address })
    }
}

/// What all commands have that talk to the cluster.
#[derive(Args, Debug)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// Addresses of replicas: one that is alive is enough, more are better
    ///
    /// To name an address of another host is to allow calls to it, unprotected.
    #[arg(long, value_name = "ADDR,...", env = "PETREL_KV_SERVERS", required = true)]
    #[arg(value_delimiter = ',')]
    pub(crate) servers: Vec<ServerAddress>,

    /// How long the operation may take, with all its attempts
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// How keys and values are written.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct FormatArgs {
    /// Keys and values are written in hexadecimal digits, here and in the answer
    #[arg(long)]
    pub(crate) hex: bool,
}

/// Print the value of a key
///
/// The value's bytes go to standard output as they are. The exit code is 1 if there is no such key.
#[derive(Args, Debug)]
#[command(after_long_help = GET_AFTER_HELP)]
pub(crate) struct KvGetArgs {
    /// The key
    #[arg(value_name = "KEY")]
    pub(crate) key: String,

    /// Take what any replica has, without asking the leader
    #[arg(long)]
    pub(crate) stale: bool,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
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
    /// The key
    #[arg(value_name = "KEY")]
    pub(crate) key: String,

    /// Its value from now on
    #[arg(value_name = "VALUE")]
    pub(crate) value: String,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const PUT_AFTER_HELP: &str = "\
Examples:
  petrel kv put colour grey --servers 127.0.0.1:7001,127.0.0.1:7002
  petrel kv put 00ff 0102 --hex --json --servers 127.0.0.1:7001

With --json: {revision, replaced}.";

/// Remove a key
///
/// It succeeds whether the key was there or not, and says which.
#[derive(Args, Debug)]
#[command(after_long_help = DELETE_AFTER_HELP)]
pub(crate) struct KvDeleteArgs {
    /// The key
    #[arg(value_name = "KEY")]
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const DELETE_AFTER_HELP: &str = "\
Examples:
  petrel kv delete colour --servers 127.0.0.1:7001
  petrel kv delete colour --json --servers 127.0.0.1:7001

With --json: {existed}.";

/// Compare and set: set a key's value if it is as expected
///
/// The exit code is 1 if it is not; nothing has changed then.
#[derive(Args, Debug)]
#[command(after_long_help = CAS_AFTER_HELP)]
pub(crate) struct KvCasArgs {
    /// The key
    #[arg(value_name = "KEY")]
    pub(crate) key: String,

    /// Its value from then on
    #[arg(value_name = "VALUE")]
    pub(crate) value: String,

    #[command(flatten)]
    pub(crate) expected: ExpectedArgs,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// What must hold.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct ExpectedArgs {
    /// Only if there is no such key
    #[arg(long)]
    pub(crate) absent: bool,

    /// Only if the key has this revision, as get and scan print it with --json
    #[arg(long, value_name = "N")]
    pub(crate) revision: Option<u64>,

    /// Only if the key has this value
    #[arg(long, value_name = "VALUE")]
    pub(crate) expect: Option<String>,
}

const CAS_AFTER_HELP: &str = "\
Examples:
  petrel kv cas leader me --absent --servers 127.0.0.1:7001
  petrel kv cas colour white --expect grey --servers 127.0.0.1:7001
  petrel kv cas colour white --revision 17 --json --servers 127.0.0.1:7001

With --json: {done, revision}, the revision that the key has now, or null if it is not there.";

/// Print the keys of a range with their values, in order
///
/// A line for each key: the key, a tab, the value; what is no printable text is escaped. Long ranges are read
/// page by page, each of one moment.
#[derive(Args, Debug)]
#[command(after_long_help = SCAN_AFTER_HELP)]
pub(crate) struct KvScanArgs {
    /// The first key [default: the beginning]
    #[arg(value_name = "FROM", default_value = "", hide_default_value = true)]
    pub(crate) from: String,

    /// The first key that is not wanted any more [default: none]
    #[arg(value_name = "UNTIL")]
    pub(crate) until: Option<String>,

    /// Only keys that begin with FROM
    #[arg(long, conflicts_with = "until")]
    pub(crate) prefix: bool,

    /// No more keys than these
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,

    /// Take what any replica has, without asking the leader
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

/// Print how each replica is: its role, its log, its keys, and how far behind it is
///
/// Asks the replicas of --servers, and all members that they name. The exit code is 1 if no replica leads.
#[derive(Args, Debug)]
#[command(after_long_help = STATUS_AFTER_HELP)]
pub(crate) struct KvStatusArgs {
    /// Print the counters of each replica, too
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
    /// Add a node: start it afterwards, and it becomes a voter when it has caught up
    Add(KvMemberAddArgs),
    /// Remove a node, alive or not: stop it afterwards
    Remove(KvMemberRemoveArgs),
}

const MEMBER_AFTER_HELP: &str = "\
Examples:
  petrel kv member add 4 127.0.0.1:7004 --servers 127.0.0.1:7001
  petrel kv member remove 2 --json --servers 127.0.0.1:7001

The leader is not removed: hand leadership over first, by `petrel kv transfer`.";

#[derive(Args, Debug)]
#[command(after_long_help = MEMBER_AFTER_HELP)]
pub(crate) struct KvMemberAddArgs {
    /// The node's number
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) node: u16,

    /// Where it will listen
    #[arg(value_name = "ADDR:PORT")]
    pub(crate) address: SocketAddr,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Args, Debug)]
#[command(after_long_help = MEMBER_AFTER_HELP)]
pub(crate) struct KvMemberRemoveArgs {
    /// The node's number
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) node: u16,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// Hand leadership to a node, and wait until it leads
#[derive(Args, Debug)]
#[command(after_long_help = TRANSFER_AFTER_HELP)]
pub(crate) struct KvTransferArgs {
    /// The node that is to lead
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
        assert_eq!((peer.node, peer.address.port()), (2, 7002));
        for (text, reason) in [
            ("127.0.0.1:7002", "'=' is missing"),
            ("0=127.0.0.1:7002", "1 to 65535"),
            ("x=127.0.0.1:7002", "1 to 65535"),
            ("2=localhost:7002", "no IP address"),
            ("2=127.0.0.1", "no IP address"),
        ] {
            let error = text.parse::<Peer>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
