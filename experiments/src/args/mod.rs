//! Arguments of `petrel-experiment`.

use std::path::PathBuf;
use std::time::Duration;

use crate::index::{IndexArgs, IndexServerArgs};
use crate::overload::{OverloadMeasuredArgs, OverloadServerArgs};
use crate::pause::PauseArgs;
use crate::sealed::SealedArgs;
use crate::sim::Controller;
use crate::sim::overload::{Policy, Service};
use clap::{Args, Subcommand};
use petrel_command::args::values::{Share, parse_seed};
use petrel_command::units::parse_duration;

use crate::report::plot::parse_plot;

mod measured;
mod paths;

pub(crate) use self::measured::{
    BatchArgs, CardArgs, CongestionArgs, FactorsArgs, LookupTable, LookupsArgs, OneSidedArgs,
    PutsArgs, StallsArgs, SweepArgs, SweepKind,
};
pub(crate) use self::paths::{FlowsArgs, PathArgs, PathsArgs, PathsCommand, VethPathArgs};

/// The experiments of the papers: real endpoints over a simulated network, and measurements of this machine
///
/// Most experiments are simulated. Endpoints run as they would on hosts, over links and switches in virtual time. The figures are
/// properties of the protocol on that network, independent of this machine. The same seed yields the
/// same figures everywhere. Every answer is checked; a wrong or missing answer is a failure.
///
/// With --veth, loss and small-loss are measured on this machine instead: UDP packets of its kernel
/// between two network namespaces, where nftables drops some of them. The experiments at the end of the list measure this
/// machine as `petrel bench` does: two sides in alternating windows.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct ExperimentArgs {
    #[command(subcommand)]
    pub(crate) what: ExperimentCommand,
}

const AFTER_HELP: &str = "\
Examples:
  petrel-experiment loss
  petrel-experiment loss --gbit 100 --congestion timely
  petrel-experiment loss --rto-min 1ms,5ms
  petrel-experiment loss --veth --loss 0,1e-3 --duration 10s
  petrel-experiment small-loss --json
  petrel-experiment incast --senders 20,50,100 --plot incast.svg
  petrel-experiment incast --congestion none,timely,timely-no-bypass
  petrel-experiment incast --background
  petrel-experiment scale --threads 1,10
  petrel-experiment overload --load 100,200 --policy none,default
  petrel-experiment paths loss
  petrel-experiment cc-cost --quick
  petrel-experiment papers docs/papers.md
  petrel-experiment puts
  petrel-experiment card --figure 9
  petrel-experiment one-sided --card rxe0
  petrel-experiment factors --transport udp
  petrel-experiment congestion --busy 4
  petrel-experiment sweep size --transport shm --plot sizes.svg
  petrel-experiment batch --table ipv6 --transport shm
  petrel-experiment stalls cuckoo ipv6
  petrel-experiment lookups --how plain,batched --accesses 0,8
  petrel-experiment index --transport shm
  petrel-experiment overload-measured --policy none,default --load 50,100,200
  petrel-experiment pause --pause 10ms --idle spin,50us,block
  petrel-experiment sealed --part calls,store --petrel target/release/petrel

experiments/README.md says what each does and what came of it.";

/// The experiment to run.
#[derive(Debug, Subcommand)]
pub(crate) enum ExperimentCommand {
    /// Goodput of 8 MiB requests under random loss, by go-back-N and selective recovery
    Loss(LossArgs),
    /// Latency of small RPCs under random loss
    SmallLoss(SmallLossArgs),
    /// Latency of responses of several packets, beside requests of as many
    Responses(ResponsesArgs),
    /// Many senders, one receiver: goodput, queue, fairness, by congestion control
    Incast(IncastArgs),
    /// A hundred hosts on which every endpoint calls every other
    Scale(ScaleArgs),
    /// A server with more requests than it can execute: goodput by policy of refusal
    Overload(OverloadArgs),
    /// Several paths between hosts: loss, cuts, unequal paths, permutations, a fabric, flows, incast
    Paths(PathsArgs),
    /// Cost of congestion control when nothing is congested
    CcCost(CcCostArgs),
    /// Run the commands of pages again, and tell which of their figures have changed
    Papers(PapersArgs),
    /// Latency of replicated puts in the network of eRPC's paper, with measured costs
    Puts(PutsArgs),
    /// HERD beside Pilaf and FaRM, on a model of its network card
    Card(CardArgs),
    /// HERD, Pilaf and FaRM by the verbs that they send, on an RDMA card of this machine
    OneSided(OneSidedArgs),
    /// On this machine: the worth of the optimisations, the library without one beside the library with all; for small
    /// calls, over eight sessions of eight slots, and for large calls of 8 MiB
    Factors(FactorsArgs),
    /// On this machine: the cost of congestion controls where nothing is congested, compared with none
    Congestion(CongestionArgs),
    /// On this machine: rate against the calls started together, or bandwidth against the size of the requests
    Sweep(SweepArgs),
    /// On this machine: lookup servers with batched handlers beside plain ones: IPv4, IPv6, Ethernet switch, named data
    Batch(BatchArgs),
    /// On this machine: instructions and stalled cycles of batched lookups beside plain ones (G-Opt, figure 9)
    Stalls(StallsArgs),
    /// On this machine: ways of looking the cache's items up, with further accesses to memory
    Lookups(LookupsArgs),
    /// On this machine: the ordered index beside an echo, and the cost of scans for lookups (eRPC, section 7.2)
    Index(IndexArgs),
    /// On this machine: requests that an overloaded server still answers in time; a server and a client process
    OverloadMeasured(OverloadMeasuredArgs),
    /// On this machine: the first call after a pause, in which both ends have gone to sleep, in bare wake-ups
    Pause(PauseArgs),
    /// On this machine: calls, connections, puts and floods with credentials, beside the same without
    Sealed(SealedArgs),
    /// The server process of `index`
    #[command(hide = true)]
    IndexServer(IndexServerArgs),
    /// The server process of `overload-measured`
    #[command(hide = true)]
    OverloadServer(OverloadServerArgs),
}

/// Arguments of `petrel-experiment papers`.
#[derive(Args, Debug)]
pub(crate) struct PapersArgs {
    /// Pages with blocks of commands and their output
    #[arg(value_name = "PAGE.md", default_value = "docs/papers.md")]
    pub(crate) pages: Vec<PathBuf>,

    /// Fail for any difference, in place of figures that have changed by more than a tenth
    #[arg(long)]
    pub(crate) equal: bool,
}

/// Flags of every experiment.
#[derive(Args, Clone, Debug)]
pub(crate) struct CommonArgs {
    /// The seed of everything random
    #[arg(long, value_name = "SEED", default_value = "1", value_parser = parse_seed)]
    pub(crate) seed: u64,

    /// A short variant, of seconds: shows that the experiment works, but its figures are not reliable
    #[arg(long)]
    pub(crate) quick: bool,

    /// Draw the figures into an SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = parse_plot)]
    pub(crate) plot: Option<PathBuf>,
}

impl CommonArgs {
    /// Returns the configuration of the short or of the usual variant, with the seed.
    pub(crate) fn choose<C>(&self, quick: fn(u64) -> C, full: fn(u64) -> C) -> C {
        if self.quick { quick(self.seed) } else { full(self.seed) }
    }
}

/// Flags of the experiments that can also run on this machine's kernel.
#[derive(Args, Clone, Debug)]
pub(crate) struct VethArgs {
    /// Measure UDP between two network namespaces of this machine, beside the same without loss; needs
    /// root and nftables, and is no simulation
    #[arg(long, conflicts_with = "seed")]
    pub(crate) veth: bool,

    /// Loss probability of a packet, several separated by commas [default: 0 and 1e-7 to 1e-1]
    #[arg(long, value_name = "SHARE", value_delimiter = ',', requires = "veth")]
    pub(crate) loss: Vec<Share>,

    /// How long to measure every figure, windows with and without loss together [default: 6s]
    #[arg(long, value_name = "DURATION", requires = "veth", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,

    /// Let nothing interrupt the two ends' threads in windows: other load then disturbs less, and waits
    #[arg(long, requires = "veth")]
    pub(crate) realtime: bool,
}

/// Arguments of `petrel-experiment loss`.
#[derive(Args, Debug)]
pub(crate) struct LossArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,

    #[command(flatten)]
    pub(crate) veth: VethArgs,

    /// Rates of the links in Gbit/s, separated by commas [default: 25,100]
    #[arg(long, value_name = "GBIT", value_delimiter = ',', conflicts_with = "veth")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=400))]
    pub(crate) gbit: Vec<u64>,

    /// The client's congestion control: none, timely, dcqcn or swift [default: none]
    #[arg(long, value_name = "NAME", conflicts_with = "veth")]
    pub(crate) congestion: Option<Controller>,

    /// The client's least retransmission timeout, several separated by commas; eRPC's is 5ms [default: 1ms]
    #[arg(long, value_name = "DURATION", value_delimiter = ',', conflicts_with = "veth")]
    #[arg(value_parser = parse_duration)]
    pub(crate) rto_min: Vec<Duration>,

    /// Most requests for a figure; with many losses, fewer are enough [default: 2000]
    #[arg(long, value_name = "N", conflicts_with = "veth")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
}

/// Arguments of `petrel-experiment small-loss`.
#[derive(Args, Debug)]
pub(crate) struct SmallLossArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,

    #[command(flatten)]
    pub(crate) veth: VethArgs,

    /// The client's congestion control: none, timely, dcqcn or swift [default: none]
    #[arg(long, value_name = "NAME", conflicts_with = "veth")]
    pub(crate) congestion: Option<Controller>,

    /// Calls per figure [default: 3000000]
    #[arg(long, value_name = "N", conflicts_with = "veth")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) calls: Option<u64>,
}

/// Arguments of `petrel-experiment responses`.
#[derive(Args, Debug)]
pub(crate) struct ResponsesArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Arguments of `petrel-experiment incast`.
#[derive(Args, Debug)]
pub(crate) struct IncastArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,

    /// Numbers of senders, separated by commas [default: 20,50,100]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=104))]
    pub(crate) senders: Vec<u16>,

    /// The congestion controls to compare, separated by commas: none, timely, timely-no-bypass (Timely without
    /// eRPC's bypasses of controller and pacer), dcqcn or swift [default: all but timely-no-bypass]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) congestion: Vec<Controller>,

    /// Let the remaining hosts exchange calls of 64 kB meanwhile, and show their latency, also without
    /// senders
    #[arg(long)]
    pub(crate) background: bool,
}

/// Arguments of `petrel-experiment scale`.
#[derive(Args, Debug)]
pub(crate) struct ScaleArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,

    /// Endpoints per host, separated by commas [default: 1,2,4,6,8,10]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) threads: Vec<u16>,

    /// Load that the hosts of a leaf can offer, in multiples of the capacity of its uplinks [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) oversubscription: Option<u64>,

    /// The endpoints' congestion control: none, timely, dcqcn or swift [default: timely]
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<Controller>,
}

/// Arguments of `petrel-experiment overload`.
#[derive(Args, Debug)]
pub(crate) struct OverloadArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,

    /// Offered load, in percent of the capacity of the workers, separated by commas [default: 20 to 300]
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) load: Vec<u16>,

    /// The server's overload policy, separated by commas: none, deadlines, expected, default
    /// [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) policy: Vec<Policy>,

    /// The queueing delay that policies with a target aim at, at most [default: 50us]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) target: Option<Duration>,

    /// Distribution of service times, separated by commas: fixed, exponential, bimodal [default:
    /// exponential]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) service: Vec<Service>,

    /// Mean service time of a request [default: 10us]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) mean: Option<Duration>,

    /// Time within which an answer is still useful [default: 200us]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) slo: Option<Duration>,

    /// Hosts with a client each [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) clients: Option<u16>,

    /// Requests that the server executes at once [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) workers: Option<u16>,
}

/// Arguments of `petrel-experiment cc-cost`.
#[derive(Args, Debug)]
pub(crate) struct CcCostArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
