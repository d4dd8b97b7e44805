//! Arguments that several benchmarks share.

use std::time::Duration;

use clap::Args;
use petrel_command::args::values::parse_at_least;
use petrel_command::args::{BenchTransport, ServerAddress};
use petrel_command::units::parse_size;

use crate::measure::figure::Quantity;
use crate::measure::measurement::{Beside, Measurement, SessionPlan};
use crate::measure::pairs::Pace;
use crate::measure::test_bed::Cores;

/// Flags of every benchmark.
#[derive(Args, Clone, Debug)]
pub struct WindowArgs {
    /// How long to measure, both sides together; a measurement with dropped windows takes longer
    #[arg(long, value_name = "DURATION", default_value = "6s", value_parser = parse_measured)]
    pub duration: Duration,

    /// Longest window; at least three run per side
    #[arg(long, value_name = "DURATION", default_value = "300ms", value_parser = parse_window)]
    pub window: Duration,

    /// Let nothing interrupt the two threads during windows: other load then disturbs less, and waits;
    /// needs root
    #[arg(long)]
    pub realtime: bool,
}

impl WindowArgs {
    /// Returns the duration and window as the benchmark's `Pace`.
    pub fn pace(&self) -> Pace {
        Pace { duration: self.duration, window: self.window, is_realtime: self.realtime }
    }
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

/// Flags of the benchmarks of one workload.
#[derive(Args, Clone, Debug)]
pub struct EndsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub transport: Vec<BenchTransport>,

    /// 2: a thread and a CPU per end; 1: the ends share a thread, which repeats better
    #[arg(long, value_name = "1|2", default_value_t = 2, conflicts_with = "connect")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    pub cores: u8,

    /// A running `petrel serve` to measure against, without a bare medium beside it [default: a server
    /// in this process]
    #[arg(long, value_name = "ADDR")]
    pub connect: Option<ServerAddress>,

    /// Number of the server's endpoint to measure against
    #[arg(long, value_name = "N", default_value_t = 0, requires = "connect")]
    pub endpoint: u16,

    /// Measure UDP between two network namespaces, with one packet per datagram; needs root and `ip`. With --device
    /// xdp:petrel0 both ends have AF_XDP, and so has the bare medium
    #[arg(long, conflicts_with_all = ["connect", "cores", "beside"])]
    pub veth: bool,

    /// Measure UDP between two processes by DPDK, joined by memory (net_memif); needs `petrel dpdk-shim`, and no rights
    #[arg(long, conflicts_with_all = ["connect", "cores", "beside", "veth"])]
    pub memif: bool,
}

/// The sessions of the calling end.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// Sessions that the calls are spread over
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    sessions: u16,

    /// Run beside it: the bare medium, or a polled TCP stream (of `rate` and `latency`)
    #[arg(long, value_enum, default_value = "bare", conflicts_with = "connect")]
    pub beside: Beside,
}

impl PlanArgs {
    /// Returns the sessions of the calling end.
    pub fn plan(&self) -> SessionPlan {
        SessionPlan::Default { sessions: self.sessions }
    }
}

/// Small calls, many at a time.
#[derive(Args, Clone, Debug)]
pub struct CallsArgs {
    /// Size of request and reply, in bytes or with a unit
    #[arg(long, value_name = "SIZE", default_value = "32", value_parser = parse_size)]
    pub size: usize,

    /// Calls in flight at a time
    #[arg(long, value_name = "N", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub in_flight: u16,

    /// Calls started together, once as many have ended
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub batch: u16,
}

impl CallsArgs {
    /// Returns the calls started together: no more than are in flight.
    pub fn batch(&self) -> u16 {
        self.batch.min(self.in_flight)
    }
    /// Returns the measurement of their rate, between ends in this process and beside the bare medium.
    pub fn rate(
        &self,
        transport: BenchTransport,
        cores: u8,
        windows: &WindowArgs,
        plan: SessionPlan,
    ) -> Measurement {
        Measurement {
            quantity: Quantity::Rate,
            transport,
            cores: Cores::requested(cores),
            size: self.size,
            in_flight: self.in_flight,
            batch: self.batch(),
            pace: windows.pace(),
            plan,
            beside: Beside::Bare,
            connect: None,
        }
    }
}
