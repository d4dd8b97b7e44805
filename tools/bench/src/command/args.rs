//! Arguments of `petrel bench`.

use clap::{Args, Subcommand};
use petrel_command::units::parse_size;

use crate::args::{CallsArgs, EndsArgs, PlanArgs, WindowArgs};
use crate::attacks::AttacksArgs;
use crate::defaults::{DefaultsArgs, DefaultsClientsArgs, DefaultsServerArgs};
use crate::instructions::{CountedArgs, InstructionsArgs};
use crate::kv::KvBenchArgs;
use crate::measure::memif::MemifServerArgs;
use crate::regions::RegionsArgs;
use crate::sessions::{IdleArgs, SessionsArgs, parse_sessions};
use crate::streams::StreamsArgs;

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
  petrel bench latency --veth --device xdp:petrel0
  petrel bench latency --memif
  petrel bench latency --in-flight 64 --sessions 8
  petrel bench bandwidth --connect 10.0.0.7:31850 --size 8MiB --json
  petrel bench sessions --sessions 20000 --transport shm
  petrel bench defaults --transport shm --threads
  petrel bench defaults --processes 1000 --only-processes
  petrel bench attacks --attack connections,sessions --window 2s
  petrel bench kv --transport shm --clients 1,64 --etcd /tmp/etcd-bench
  petrel bench stream --transport shm --size 32
  petrel bench instructions --transport shm
  petrel bench all --json

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
    /// Slowdown of calls on many sessions against one session, and the memory of idle sessions
    Sessions(SessionsArgs),
    /// Operations on regions beside calls: reads, words, mappings, large writes
    Regions(RegionsArgs),
    /// Cost of attacks for honest clients of the same server: failed calls, rate, memory
    Attacks(AttacksArgs),
    /// Latency and rate of replicated puts: three replicas of the key-value store
    Kv(KvBenchArgs),
    /// Messages of streams: their rate in each direction beside calls, and the memory of idle streams
    #[command(name = "stream")]
    Streams(StreamsArgs),
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
    /// The client process of the memory measurement; started by `sessions`
    #[command(hide = true)]
    IdleSessions(IdleArgs),
    /// The process with the answering ends of `--memif`
    #[command(hide = true)]
    MemifServer(MemifServerArgs),
    /// The program whose instructions `instructions` counts, under valgrind
    #[command(hide = true)]
    CountedWorkload(CountedArgs),
}

impl BenchArgs {
    /// Returns true if the benchmark measures with the process's credentials.
    pub fn uses_credentials(&self) -> bool {
        matches!(
            self.what,
            BenchCommand::Attacks(_)
                | BenchCommand::CountedWorkload(_)
                | BenchCommand::Defaults(_)
                | BenchCommand::DefaultsClients(_)
                | BenchCommand::DefaultsServer(_)
                | BenchCommand::Kv(_)
        )
    }

    /// Returns true if the benchmark's ends use the process's device. Both ends of the others are on loopback, where no device leads.
    pub fn uses_device(&self) -> bool {
        !matches!(
            self.what,
            BenchCommand::Defaults(_)
                | BenchCommand::DefaultsClients(_)
                | BenchCommand::DefaultsServer(_)
                | BenchCommand::MemifServer(_)
                | BenchCommand::Regions(_)
                | BenchCommand::Streams(_)
        )
    }
}

impl BenchCommand {
    /// Returns true for commands whose figures stand in one table, which Ctrl-C cuts short.
    pub(crate) fn is_reported(&self) -> bool {
        matches!(
            self,
            Self::Latency(_)
                | Self::Rate(_)
                | Self::Bandwidth(_)
                | Self::Sessions(_)
                | Self::Instructions(_)
                | Self::All(_)
        )
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

/// Arguments of `petrel bench all`.
#[derive(Args, Debug)]
pub(crate) struct AllArgs {
    /// Sessions of the rows about many sessions; the expected figures are meant for the default
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = parse_sessions)]
    pub(crate) sessions: usize,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
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
