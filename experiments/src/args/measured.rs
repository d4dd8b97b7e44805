//! Arguments of the experiments that measure this machine, and of those with a model of their own.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use petrel_batch_bench::{Form, Lookup, PARTS};
use petrel_bench::args::{CallsArgs, WindowArgs};
use petrel_bench::cache::MixArgs;
use petrel_cache::Lookups;
use petrel_command::args::BenchTransport;
use petrel_command::units::{parse_duration, parse_size};

use crate::card::{CONTEXTS, PaperFigure, Scheme};
use crate::lookups::parse_lookups;
use crate::report::plot::parse_plot;

/// Arguments of `petrel-experiment one-sided`.
#[derive(Args, Debug)]
pub(crate) struct OneSidedArgs {
    /// The RDMA card, as `rdma link` shows it
    #[arg(long, value_name = "CARD")]
    pub(crate) card: String,

    /// Schemes to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values = ["herd", "pilaf", "farm", "farm-var"])]
    pub(crate) scheme: Vec<Scheme>,

    /// Items in the table
    #[arg(long, value_name = "N", default_value_t = 30_000)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1_000..=10_000_000))]
    pub(crate) items: usize,

    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 32)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_024))]
    pub(crate) value: usize,

    /// GETs of a scheme
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(100..=10_000_000))]
    pub(crate) gets: usize,
}

/// Arguments of `petrel-experiment factors`.
#[derive(Args, Debug)]
pub(crate) struct FactorsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    #[command(flatten)]
    pub(crate) calls: CallsArgs,

    /// 2: a thread and a CPU per end; 1: the ends share a thread, which repeats better
    #[arg(long, value_name = "1|2", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) cores: u8,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
}

/// Arguments of `petrel-experiment congestion`.
#[derive(Args, Debug)]
pub(crate) struct CongestionArgs {
    /// 2: a thread and a CPU per end; 1: the ends share a thread, which repeats better
    #[arg(long, value_name = "1|2", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) cores: u8,

    /// Threads that compute meanwhile, like further programs of a busy host
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(..=256))]
    pub(crate) busy: u16,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
}

/// Arguments of `petrel-experiment sweep`.
#[derive(Args, Debug)]
pub(crate) struct SweepArgs {
    /// The value that changes from point to point
    #[arg(value_enum)]
    pub(crate) what: SweepKind,

    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Largest size of a sweep over sizes
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_size)]
    pub(crate) size_max: usize,

    /// 2: a thread and a CPU per end; 1: the ends share a thread, which repeats better
    #[arg(long, value_name = "1|2", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) cores: u8,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,

    /// Draw the figures into an SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = parse_plot)]
    pub(crate) plot: Option<PathBuf>,
}

/// The swept value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SweepKind {
    /// Calls started together, 60 in flight (eRPC figure 4)
    Batch,
    /// Size of requests, one outstanding (eRPC figure 6)
    Size,
}

/// The table of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LookupTable {
    /// The longest prefix of an IPv4 address among 500 000: 64 MiB
    Ipv4,
    /// The longest prefix of an IPv6 address among 200 000: 924 MiB
    Ipv6,
    /// The port of an Ethernet address among 67 million: 1 GiB
    Switch,
    /// The longest prefix of a name among 10 million: 433 MiB
    Ndn,
}

/// Arguments of `petrel-experiment batch`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BatchArgs {
    /// Tables to look up in, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values = ["ipv4", "ipv6", "switch", "ndn"])]
    pub(crate) table: Vec<LookupTable>,

    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Divides the number of entries and of requests: smaller tables for a quick look
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) smaller: u16,

    /// Calls in flight at a time, over 8 sessions
    #[arg(long, value_name = "N", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) in_flight: u16,

    /// Windows of every form, taken in turn
    #[arg(long, value_name = "N", default_value_t = 21)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Length of a window
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = parse_duration)]
    pub(crate) window: Duration,

    /// Servers on these numbers of cores, instead of the ratios (G-Opt, figure 10); separate several by commas
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) cores: Vec<u16>,

    /// Latency by load with batches of at most these sizes, instead of the ratios (G-Opt, figure 11)
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "cores")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) groups: Vec<u16>,

    /// Draw the ratios into an SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = parse_plot)]
    pub(crate) plot: Option<PathBuf>,
}

/// Arguments of `petrel-experiment stalls`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StallsArgs {
    /// The lookups, in turn
    #[arg(value_enum, default_values = ["cuckoo", "chase", "ipv6"])]
    pub(crate) lookup: Vec<Lookup>,

    /// Rounds; all forms run in a round
    #[arg(long, value_name = "N", default_value_t = 21)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_000))]
    pub(crate) rounds: usize,

    /// Divides the sizes of the structures whose times are measured
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) smaller: u16,

    /// Draw the figures into an SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = parse_plot)]
    pub(crate) plot: Option<PathBuf>,

    /// Run a form for callgrind
    #[arg(long, hide = true, requires = "parts")]
    pub(crate) counted: Option<Form>,

    /// The parts of the inputs for callgrind
    #[arg(long, hide = true, default_value_t = PARTS)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=PARTS as u64))]
    pub(crate) parts: usize,
}

/// Arguments of `petrel-experiment lookups`.
///
/// Clients and servers take turns on one thread; the rate is that of servers with a CPU each. The items are stored
/// directly. Every answer is checked; the exit code is 1 if one was wrong.
#[derive(Args, Debug)]
pub(crate) struct LookupsArgs {
    /// Ways of looking items up: `plain`, `prefetched`, `batched`
    #[arg(long, value_name = "HOW", value_delimiter = ',', value_parser = parse_lookups)]
    #[arg(default_values = ["plain", "prefetched", "batched"])]
    pub(crate) how: Vec<Lookups>,

    /// Further accesses to memory before a look-up, each of which depends on the one before
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0])]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=64))]
    pub(crate) accesses: Vec<u8>,

    #[command(flatten)]
    pub(crate) mix: MixArgs,
}

/// Arguments of `petrel-experiment card`.
#[derive(Args, Debug)]
pub(crate) struct CardArgs {
    /// Systems to compare
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values_t = Scheme::value_variants().to_vec())]
    pub(crate) scheme: Vec<Scheme>,

    /// Figures of the paper that the model draws
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [PaperFigure::Mixes])]
    pub(crate) figure: Vec<PaperFigure>,

    /// Contexts of connections that the card holds: all that Figures 3 to 6 tell are these bounds
    #[arg(long, value_name = "N", default_value_t = CONTEXTS)]
    #[arg(value_parser = clap::value_parser!(u16).range(16..=255))]
    pub(crate) contexts: u16,

    /// Fit the card's costs to Figures 3 to 6, and print them with the residuals
    #[arg(long, conflicts_with_all = ["figure", "scheme"])]
    pub(crate) fit: bool,

    /// Print the predictions of Figures 7 and 9 to 14 beside the paper's numbers
    #[arg(long, conflicts_with_all = ["figure", "scheme", "fit"])]
    pub(crate) predict: bool,

    /// Draw a figure into a file (SVG)
    #[arg(long, value_name = "FILE", value_parser = parse_plot)]
    pub(crate) plot: Option<PathBuf>,
}

/// Arguments of `petrel-experiment puts`.
#[derive(Args, Debug)]
pub(crate) struct PutsArgs {
    /// Puts, one at a time
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) puts: u64,
}
