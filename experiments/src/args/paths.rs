//! Arguments of `petrel-experiment paths`.

use std::time::Duration;

use crate::sim::paths::Policy;
use crate::sim::traffic::SizeDistribution;
use crate::sim::{Controller, recovery_of};
use clap::{Args, Subcommand};
use petrel_command::units::parse_duration;
use petrel_proto::Recovery;

use super::CommonArgs;

/// Measure sessions over networks with several paths between hosts
///
/// Long requests or flows of published sizes travel over equal and unequal paths, with loss and cuts on some.
/// Every answer is checked.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct PathsArgs {
    #[command(subcommand)]
    pub(crate) what: PathsCommand,
}

const AFTER_HELP: &str = "\
Examples:
  petrel-experiment paths loss
  petrel-experiment paths cut --policy single,coupled --recovery selective --plot cut.svg
  petrel-experiment paths loss --veth --policy coupled,single
  petrel-experiment paths flows --load 80 --quick";

/// The experiment to run.
#[derive(Debug, Subcommand)]
pub(crate) enum PathsCommand {
    /// Goodput with loss on three of four paths
    Loss(VethPathArgs),
    /// Goodput over time while three of four paths go down and return
    Cut(VethPathArgs),
    /// Latency of small calls while one of four paths is dead
    Small(PathArgs),
    /// Fairness of eight sessions to one receiver, which come and go
    Fair(PathArgs),
    /// Goodput with a share of ordered calls, beside callers that wait for all earlier calls
    Ordered(PathArgs),
    /// A session over four paths, and a session over a single path
    Pinned(PathArgs),
    /// Goodput over equal paths, unequal ones, and with one that is nearly useless
    Unequal(PathArgs),
    /// Goodput of 25 sessions between 25 hosts under five leaves
    Permutation(VethPathArgs),
    /// Goodput of 160 sessions between 320 hosts
    Fabric(PathArgs),
    /// Completion times of flows of published sizes, which begin whatever became of the earlier ones
    Flows(FlowsArgs),
    /// Goodput of one to nine senders to one receiver
    Incast(PathArgs),
}

/// Flags of every experiment with paths.
#[derive(Args, Clone, Debug)]
pub(crate) struct PathArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,

    /// How sessions choose paths, separated by commas: single, plb, coupled, mp-rdma
    /// [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) policy: Vec<Policy>,

    /// Source ports of endpoints with several paths [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=32))]
    pub(crate) ports: Option<u8>,

    /// The recovery methods of single paths to compare, separated by commas: selective, go-back-n; several
    /// paths have selective recovery only [default: both]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = recovery_of)]
    pub(crate) recovery: Vec<Recovery>,

    /// The senders' congestion control: none, timely, dcqcn or swift [default: dcqcn]
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<Controller>,
}

/// Arguments of the experiments that can also run on this machine's kernel.
#[derive(Args, Debug)]
pub(crate) struct VethPathArgs {
    #[command(flatten)]
    pub(crate) paths: PathArgs,

    /// Measure UDP between two network namespaces of this machine, joined by four links of 100 Mbit/s; needs
    /// root, nftables and tc, and is no simulation
    #[arg(long, conflicts_with_all = ["seed", "ports", "recovery", "congestion"])]
    pub(crate) veth: bool,

    /// Time of a figure [default: 400ms]
    #[arg(long, value_name = "DURATION", requires = "veth", value_parser = parse_duration)]
    pub(crate) window: Option<Duration>,

    /// Sessions of a figure, one after the other: sessions of one path have different links [default: 8]
    #[arg(long, value_name = "N", requires = "veth", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) sessions: Option<u32>,

    /// Show the kernel's MPTCP beside, with a subflow over each link; only under loss
    #[arg(long, requires = "veth")]
    pub(crate) mptcp: bool,

    /// Let nothing interrupt the two ends' threads in windows: other load then disturbs less, and waits
    #[arg(long, requires = "veth")]
    pub(crate) realtime: bool,
}

/// Arguments of `petrel-experiment paths flows`.
#[derive(Args, Debug)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    pub(crate) paths: PathArgs,

    /// Offered load, in percent of the hosts' links, separated by commas [default: 30,50,80]
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) load: Vec<u32>,

    /// The sizes of flows: web-search or data-mining [default: web-search]
    #[arg(long, value_name = "NAME")]
    pub(crate) sizes: Option<SizeDistribution>,
}
