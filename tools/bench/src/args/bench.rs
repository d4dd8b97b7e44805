//! Arguments of `petrel bench`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::overload::Policy;
use clap::{Args, Subcommand, ValueEnum};
use petrel::endpoint::IdlePolicy;
use petrel_command::args::values::{IdleChoice, parse_at_least, parse_plot};
use petrel_command::args::{BenchTransport, ReadsChoice, ServerAddress};
use petrel_command::units::{exact_duration, parse_duration, parse_size};

use super::Beside;
use super::batch::BatchArgs;
use crate::{AttackKind, CountedWorkload, Pace, SessionPlan};

/// Measure latency, rate, bandwidth and more beside the bare medium
///
/// Every measurement runs Petrel and the bare medium in turn, in short windows. The bare medium carries
/// equal messages in equal bursts, by plain sockets or a plain ring, without a protocol. The ratio of
/// the two is the cost of Petrel; the machine's noise affects both. Windows during which the distance of
/// the two CPUs changed, as on virtual machines, are dropped.
///
/// Without --connect the two ends run in this process, with separate threads and CPUs, or with --cores 1
/// in a single thread. Every reply is checked; the exit code is 1 if a reply was wrong or missing.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: BenchCommand,
}

const AFTER_HELP: &str = "\
Examples:
  petrel bench latency
  petrel bench rate --transport shm --cores 1
  petrel bench rate --transport udp --in-flight 60 --duration 3s
  petrel bench rate --veth
  petrel bench rate --beside raised
  petrel bench latency --in-flight 64 --slots 64 --credits 32
  petrel bench bandwidth --connect 10.0.0.7:31850 --size 8MiB --json
  petrel bench sessions --sessions 20000 --transport shm
  petrel bench pause --pause 10ms --idle spin,50us,block
  petrel bench sweep size --transport shm --plot sizes.svg
  petrel bench factors --transport udp
  petrel bench congestion --busy 4
  petrel bench defaults --transport shm --threads
  petrel bench defaults --processes 1000 --only-processes
  petrel bench batch --table ipv6 --transport shm
  petrel bench overload --policy none,default --load 50,100,200
  petrel bench attacks --attack connections,sessions --window 2s
  petrel bench kv --transport shm --clients 1,64 --etcd /tmp/etcd-bench
  petrel bench kv --simulated 20000
  petrel bench instructions --transport shm
  petrel bench all --json --plot bench.svg

Each run prints the command that repeats it. `petrel doctor` says what holds this host back.";

/// The benchmark to run.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Time of one call when no other call is in flight: p50, p99 and p99.9
    Latency(LatencyArgs),
    /// Small calls answered per second, with many in flight
    Rate(RateArgs),
    /// Bits per second that large messages carry
    Bandwidth(BandwidthArgs),
    /// Rate against the calls started together, or bandwidth against the size of the requests
    Sweep(SweepArgs),
    /// The first call after a pause, in which both ends have gone to sleep, in bare wake-ups
    Pause(PauseArgs),
    /// Slowdown of calls on many sessions against one session, and the memory of idle sessions
    Sessions(SessionsArgs),
    /// Worth of the optimisations: the library without one, beside the library with all; for small calls,
    /// over eight sessions of eight slots, and for large calls of 8 MiB
    Factors(FactorsArgs),
    /// Cost of congestion controls where nothing is congested, compared with none
    Congestion(CongestionArgs),
    /// Operations on regions beside calls: reads, words, mappings, large writes
    Regions(RegionsArgs),
    /// Lookup servers with batched handlers beside plain ones: IPv4, IPv6, Ethernet switch, named data
    Batch(BatchArgs),
    /// Requests that an overloaded server still answers in time
    Overload(BenchOverloadArgs),
    /// Cost of attacks for honest clients of the same server: failed calls, rate, memory
    Attacks(AttacksArgs),
    /// Latency and rate of replicated puts: three replicas of the key-value store
    Kv(KvBenchArgs),
    /// Instructions of a small call and of a packet of a large call, counted by valgrind
    Instructions(InstructionsArgs),
    /// Every figure that Petrel promises to reach, in ten minutes at most
    All(AllArgs),
    /// A user's figures: a server and a client process as the README writes them, with nothing set
    Defaults(DefaultsArgs),
    /// The server process of `defaults`
    #[command(hide = true)]
    DefaultsServer(DefaultsServerArgs),
    /// The client processes of `defaults`
    #[command(hide = true)]
    DefaultsClients(DefaultsClientsArgs),
    /// The server process of `overload`
    #[command(hide = true)]
    OverloadServer(OverloadServerArgs),
    /// The client process of the memory measurement; started by `sessions`
    #[command(hide = true)]
    IdleSessions(IdleArgs),
    /// The program whose instructions `instructions` counts, under valgrind
    #[command(hide = true)]
    CountedWorkload(CountedArgs),
}

impl BenchCommand {
    /// Returns true for commands whose figures stand in one table, which Ctrl-C cuts short.
    pub(crate) fn is_reported(&self) -> bool {
        matches!(
            self,
            Self::Latency(_)
                | Self::Rate(_)
                | Self::Bandwidth(_)
                | Self::Sweep(_)
                | Self::Sessions(_)
                | Self::Factors(_)
                | Self::Congestion(_)
                | Self::Instructions(_)
                | Self::All(_)
        )
    }
}

/// Flags of every benchmark.
#[derive(Args, Clone, Debug)]
pub(crate) struct WindowArgs {
    /// How long to measure, both sides together; a measurement with dropped windows takes longer
    #[arg(long, value_name = "DURATION", default_value = "6s", value_parser = parse_measured)]
    pub(crate) duration: Duration,

    /// Longest window; at least three run per side
    #[arg(long, value_name = "DURATION", default_value = "300ms", value_parser = parse_window)]
    pub(crate) window: Duration,

    /// Let nothing interrupt the two threads during windows: other load then disturbs less, and waits;
    /// needs root
    #[arg(long)]
    pub(crate) realtime: bool,

    /// Draw the figures into an SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = parse_plot)]
    pub(crate) plot: Option<PathBuf>,
}

/// The shortest window: the preparation of a window takes microseconds.
const WINDOW_MIN: Duration = Duration::from_millis(1);

/// The shortest measurement: three windows of 5 ms on either side, from which quartiles say something.
const MEASURED_MIN: Duration = Duration::from_millis(30);

fn parse_window(text: &str) -> Result<Duration, String> {
    parse_at_least(text, WINDOW_MIN)
}

fn parse_measured(text: &str) -> Result<Duration, String> {
    parse_at_least(text, MEASURED_MIN)
}

impl WindowArgs {
    /// Returns the duration and window as the benchmark's `Pace`.
    pub(crate) fn pace(&self) -> Pace {
        Pace { duration: self.duration, window: self.window, is_realtime: self.realtime }
    }
}

/// Flags of the benchmarks of one workload.
#[derive(Args, Clone, Debug)]
pub(crate) struct EndsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// 2: a thread and a CPU per end; 1: the ends share a thread, which repeats better
    #[arg(long, value_name = "1|2", default_value_t = 2, conflicts_with = "connect")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) cores: u8,

    /// A running `petrel serve` to measure against, without a bare medium beside it [default: a server
    /// in this process]
    #[arg(long, value_name = "ADDR")]
    pub(crate) connect: Option<ServerAddress>,

    /// Number of the server's endpoint to measure against
    #[arg(long, value_name = "N", default_value_t = 0, requires = "connect")]
    pub(crate) endpoint: u16,
}

/// The sessions of the calling end.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlanArgs {
    /// Sessions that the calls are spread over [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "raised")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    sessions: Option<u16>,

    /// Slots of a session, a power of two [default: the library's]
    #[arg(long, value_name = "N", conflicts_with = "raised", value_parser = parse_slots)]
    slots: Option<u16>,

    /// Credits of a session [default: the library's]
    #[arg(long, value_name = "N", conflicts_with = "raised")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    credits: Option<u16>,

    /// Raised settings: up to eight sessions, with a slot and a credit for each call
    #[arg(long)]
    raised: bool,

    /// Run beside it: the bare medium, the same calls with raised settings, or a polled TCP stream (of `rate` and `latency`)
    #[arg(long, value_enum, default_value = "bare", conflicts_with_all = ["raised", "connect"])]
    pub(crate) beside: Beside,
}

impl PlanArgs {
    /// Returns the sessions of the calling end.
    pub(crate) fn plan(&self) -> SessionPlan {
        let Self { sessions, slots, credits, raised, .. } = *self;
        match (sessions, slots, credits) {
            _ if raised => SessionPlan::Raised,
            (None, None, None) => SessionPlan::Default,
            _ => SessionPlan::Given { sessions: sessions.unwrap_or(1), slots, credits },
        }
    }
}

/// Parses a number of slots.
fn parse_slots(text: &str) -> Result<u16, String> {
    let slots: u16 = text.parse().map_err(|error| format!("{error}"))?;
    let is_allowed = slots.is_power_of_two() && slots <= petrel_proto::limits::SLOTS_MAX;
    is_allowed.then_some(slots).ok_or_else(|| "a power of two, 1 to 4096, is expected".to_owned())
}

/// Small calls, many at a time.
#[derive(Args, Clone, Debug)]
pub(crate) struct CallsArgs {
    /// Size of request and reply, in bytes or with a unit
    #[arg(long, value_name = "SIZE", default_value = "32", value_parser = parse_size)]
    pub(crate) size: usize,

    /// Calls in flight at a time
    #[arg(long, value_name = "N", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,

    /// Calls started together, once as many have ended
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) batch: u16,
}

impl CallsArgs {
    /// Returns the calls started together: no more than are in flight.
    pub(crate) fn batch(&self) -> u16 {
        self.batch.min(self.in_flight)
    }
}

/// Arguments of `petrel bench latency`.
#[derive(Args, Debug)]
pub(crate) struct LatencyArgs {
    /// Size of request and reply, in bytes or with a unit
    #[arg(long, value_name = "SIZE", default_value = "32", value_parser = parse_size)]
    pub(crate) size: usize,

    /// Calls in flight at a time; 1 is the unloaded latency
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,

    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    #[command(flatten)]
    pub(crate) ends: EndsArgs,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
}

/// Arguments of `petrel bench rate`.
#[derive(Args, Debug)]
pub(crate) struct RateArgs {
    #[command(flatten)]
    pub(crate) calls: CallsArgs,

    /// Measure UDP between two network namespaces, with one packet per datagram, beside a datagram per
    /// message; needs root and `ip`
    #[arg(long, conflicts_with_all = ["connect", "cores", "beside"])]
    pub(crate) veth: bool,

    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    #[command(flatten)]
    pub(crate) ends: EndsArgs,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
}

/// Arguments of `petrel bench bandwidth`.
#[derive(Args, Debug)]
pub(crate) struct BandwidthArgs {
    /// Size of the requests, in bytes or with a unit; the replies are small
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_size)]
    pub(crate) size: usize,

    /// Calls in flight at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) in_flight: u16,

    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    #[command(flatten)]
    pub(crate) ends: EndsArgs,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
}

/// Arguments of `petrel bench sweep`.
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
}

/// The swept value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SweepKind {
    /// Calls started together, 60 in flight (eRPC figure 4)
    Batch,
    /// Size of requests, one outstanding (eRPC figure 6)
    Size,
}

/// Arguments of `petrel bench pause`.
#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Pauses to measure, in turn; separate several by commas
    #[arg(long, value_name = "DURATION", value_delimiter = ',', value_parser = parse_duration)]
    #[arg(default_values = ["1ms", "10ms"])]
    pub(crate) pause: Vec<Duration>,

    /// Idle policies of both ends, in turn: `poll`, `spin` (the default), `yield`, `block`, or the time for which
    /// they poll before they sleep; separate several by commas
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    #[arg(default_values = ["spin", "20us", "200us", "block"])]
    pub(crate) idle: Vec<IdleValue>,

    /// First calls of each kind
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
}

/// A policy of `petrel bench pause`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleValue {
    Named(IdleChoice),
    /// Poll for this long, then sleep.
    Spin(Duration),
}

impl IdleValue {
    pub(crate) fn policy(self) -> IdlePolicy {
        match self {
            Self::Named(choice) => choice.policy(),
            Self::Spin(duration) => IdlePolicy::SpinThenBlock(duration),
        }
    }
}

impl FromStr for IdleValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return parse_duration(text).map(Self::Spin);
        }
        IdleChoice::from_str(text, false)
            .map(Self::Named)
            .map_err(|_| "poll, spin, yield, block or a duration is expected".to_owned())
    }
}

impl fmt::Display for IdleValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(choice) => f.write_str(choice.name()),
            Self::Spin(duration) => f.write_str(&exact_duration(*duration)),
        }
    }
}

/// Arguments of `petrel bench sessions`.
#[derive(Args, Debug)]
pub(crate) struct SessionsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Most sessions between the two ends; smaller numbers are measured first
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = parse_sessions)]
    pub(crate) sessions: usize,

    #[command(flatten)]
    pub(crate) calls: CallsArgs,

    /// 2: a thread and a CPU per end; 1: the ends share a thread, which repeats better
    #[arg(long, value_name = "1|2", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) cores: u8,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
}

/// Arguments of `petrel bench factors`.
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

/// Arguments of `petrel bench congestion`.
#[derive(Args, Debug)]
pub(crate) struct CongestionArgs {
    /// 2: a thread and a CPU per end; 1: the ends share a thread, which repeats better
    #[arg(long, value_name = "1|2", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) cores: u8,

    /// Threads that compute meanwhile, as other programs of a busy host would
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(..=256))]
    pub(crate) busy: u16,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
}

/// Arguments of `petrel bench regions`.
#[derive(Args, Debug)]
pub(crate) struct RegionsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Windows of every kind, taken in turn
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Length of a window
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = parse_duration)]
    pub(crate) window: Duration,
}

/// Arguments of `petrel bench overload`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchOverloadArgs {
    /// Transport between the two processes
    #[arg(long, value_enum, default_value = "udp")]
    pub(crate) transport: BenchTransport,

    /// Offered load, in percent of the measured capacity of the server, separated by commas
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    #[arg(default_values_t = [50, 80, 100, 150, 200, 300])]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) load: Vec<u16>,

    /// The server's overload policy, separated by commas: none, deadlines, codel, controlled, oldest,
    /// expected, default
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    #[arg(default_values = ["none", "deadlines", "default"])]
    pub(crate) policy: Vec<Policy>,

    /// Time within which an answer is still useful
    #[arg(long, value_name = "DURATION", default_value = "8ms", value_parser = parse_duration)]
    pub(crate) slo: Duration,

    /// Number of sessions; with back-pressure, every session has a separate limit
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) sessions: u16,

    /// How long to measure every figure
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// Arguments of `petrel bench attacks`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttacksArgs {
    /// Attacks to run, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values = [
        "half-requests", "kept-answers", "second-link", "doorbell", "connections", "sessions",
        "spray",
    ])]
    pub(crate) attack: Vec<AttackKind>,

    /// Windows without each attack, as many with the attack on another server, and as many with the
    /// attack
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,

    /// Length of every window
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) window: Duration,
}

/// The work that the server of `petrel bench overload` does for a request.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkArgs {
    /// Requests that the server executes at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,

    /// How long the server sleeps for every request
    #[arg(long, value_name = "DURATION", default_value = "400us", value_parser = parse_duration)]
    pub(crate) service: Duration,

    /// The queueing delay that policies with a target aim at, at most
    #[arg(long, value_name = "DURATION", default_value = "2ms", value_parser = parse_duration)]
    pub(crate) target: Duration,
}

/// Arguments of `petrel bench defaults`.
#[derive(Args, Debug)]
pub(crate) struct DefaultsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["shm", "udp"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Measured time of each row in a round
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "500ms")]
    pub(crate) duration: Duration,

    /// Rounds, in which all rows take turns
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    /// Measure two server threads beside one as well, with 16 clients over the first transport
    #[arg(long)]
    pub(crate) threads: bool,

    /// Time for which the handler computes, for --threads; separate several by commas
    #[arg(long, value_name = "DURATION", value_delimiter = ',', value_parser = parse_duration)]
    #[arg(default_values = ["50us", "200us", "1ms"])]
    pub(crate) work: Vec<Duration>,

    /// Measure an idle server with this number of client processes as well, and connections
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) processes: usize,

    /// Time without calls, for --processes: a connection gives a sign of life in 48 s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "48s")]
    pub(crate) idle: Duration,

    /// Measure no other rows than those of --processes
    #[arg(long, requires = "processes", conflicts_with = "threads")]
    pub(crate) only_processes: bool,
}

/// Arguments of the client processes that `petrel bench defaults` starts.
#[derive(Args, Debug)]
pub(crate) struct DefaultsClientsArgs {
    /// Server to connect to
    #[arg(long)]
    pub(crate) server: SocketAddr,

    /// Transport to use
    #[arg(long, value_enum)]
    pub(crate) transport: BenchTransport,

    /// Client processes
    #[arg(long)]
    pub(crate) processes: usize,

    /// Milliseconds without calls
    #[arg(long)]
    pub(crate) time_ms: u64,
}

/// Arguments of the server's process that `petrel bench defaults` starts.
#[derive(Args, Debug)]
pub(crate) struct DefaultsServerArgs {
    /// Threads of the server
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,

    /// Poll, and never sleep
    #[arg(long)]
    pub(crate) poll: bool,
}

/// Arguments of the server's process that `petrel bench overload` starts.
#[derive(Args, Debug)]
pub(crate) struct OverloadServerArgs {
    /// Transport to offer
    #[arg(long, value_enum)]
    pub(crate) transport: BenchTransport,

    /// Overload policy
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Policy,

    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// Arguments of `petrel bench instructions`.
#[derive(Args, Debug)]
pub struct InstructionsArgs {
    /// Transports to count on, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub transport: Vec<BenchTransport>,
}

/// Arguments of `petrel bench all`.
#[derive(Args, Debug)]
pub(crate) struct AllArgs {
    /// Sessions of the rows about many sessions; the expected figures are meant for the default
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = parse_sessions)]
    pub(crate) sessions: usize,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
}

/// Arguments of the client's process that `petrel bench sessions` starts.
#[derive(Args, Debug)]
pub(crate) struct IdleArgs {
    /// The server's control address
    #[arg(long, value_name = "ADDR")]
    pub(crate) connect: ServerAddress,

    /// The server's process id, on this host
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: u32,

    /// How many sessions to open
    #[arg(long, value_name = "N", value_parser = parse_sessions)]
    pub(crate) sessions: usize,

    /// Transport to use
    #[arg(long, value_enum)]
    pub(crate) transport: BenchTransport,
}

/// Arguments of the process that `petrel bench instructions` starts under valgrind.
#[derive(Args, Debug)]
pub(crate) struct CountedArgs {
    /// The workload to run
    #[arg(value_parser = CountedWorkload::named)]
    pub(crate) workload: &'static CountedWorkload,

    /// Calls to make
    pub(crate) calls: u64,
}

/// Parses a number of sessions, up to the maximum that a connection may propose at once.
fn parse_sessions(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=65_000) => Ok(count),
        _ => Err(format!("'{text}' is not a number of sessions: write one from 1 to 65000")),
    }
}

/// Measure replicated puts: 16 B keys, 64 B values
///
/// Three replicas in memory, a process per replica; the leader has a separate CPU. Every answer is
/// checked. At the end the replicas must have reached the same state.
#[derive(Args, Debug)]
pub(crate) struct KvBenchArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Clients with a single call in flight; one row per number
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values = ["1", "64"])]
    #[arg(value_parser = parse_clients)]
    pub(crate) clients: Vec<usize>,

    /// Keys that puts choose from; all keys exist before
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) keys: u64,

    /// How long to measure, for every row
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    /// Length of the windows; the kinds of operations take turns
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = parse_duration)]
    pub(crate) window: Duration,

    /// How replicas and clients wait for packets
    #[arg(long, value_enum, default_value_t = IdleChoice::Spin)]
    pub(crate) idle: IdleChoice,

    /// How the leader verifies its leadership before a get
    #[arg(long, value_enum, default_value_t = ReadsChoice::ReadIndex)]
    pub(crate) reads: ReadsChoice,

    /// Let the replicas keep their logs in this directory, synced [default: in memory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Give the leader a separate CPU, and clients and followers separate CPUs or a shared CPU
    #[arg(long)]
    pub(crate) pinned: bool,

    /// Let nothing interrupt the processes; needs root
    #[arg(long)]
    pub(crate) realtime: bool,

    /// Measure etcd afterwards, by the program of bench/etcd
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) etcd: Option<PathBuf>,

    /// Draw medians, relative to those of puts by raw calls, into a file (SVG)
    #[arg(long, value_name = "FILE", value_parser = parse_plot)]
    pub(crate) plot: Option<PathBuf>,

    /// Simulate this number of puts in a network of 2.3 µs a round trip instead, with measured costs
    #[arg(long, value_name = "PUTS", conflicts_with_all = ["transport", "clients", "keys", "plot"])]
    #[arg(value_parser = parse_clients)]
    pub(crate) simulated: Option<usize>,
}

fn parse_clients(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1_000_000) => Ok(count),
        _ => Err("a number from 1 to 1000000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(subcommand: &str) -> BenchCommand {
        Command::try_parse_from(["petrel bench", subcommand]).unwrap().bench.what
    }

    #[test]
    fn defaults__are_those_that_the_help_names() {
        let BenchCommand::Bandwidth(bandwidth) = parse("bandwidth") else { panic!() };
        assert_eq!((bandwidth.size, bandwidth.ends.transport.len()), (8 << 20, 2));
        let BenchCommand::Rate(rate) = parse("rate") else { panic!() };
        assert_eq!((rate.calls.size, rate.calls.in_flight, rate.calls.batch), (32, 60, 3));
        assert_eq!(rate.ends.cores, 2);
    }
}
