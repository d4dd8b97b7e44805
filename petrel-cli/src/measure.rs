//! One measurement: both ends set up, a warm-up, the calls, and what they show. Nothing here
//! prints; `bench` and `demo` do.

use std::ops::ControlFlow;
use std::time::Duration;

use petrel::IdlePolicy;
use serde::Serialize;

use crate::cli::{BenchTransport, ServerAddress};
use crate::client::{Client, ClientConfig};
use crate::cores::{self, Pinned};
use crate::failure::Failure;
use crate::load::{self, Exchange, FailureGroup, Limit, Plan, Tally};
use crate::output::latency::LatencySummary;
use crate::server::{Server, ServerConfig};
use crate::units::exact_duration;

/// How long a measurement may be before caches, tables and clocks have settled.
const WARM_UP_MAX: Duration = Duration::from_millis(200);

/// A call that takes longer than this has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What both ends do between calls, with a CPU each: look again for so long that they never sleep
/// while calls go on, and do sleep when the other end is gone.
const SPIN: IdlePolicy = IdlePolicy::SpinThenBlock(Duration::from_millis(1));

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Quantity {
    /// The time that a call takes.
    Latency,
    /// Calls per second.
    Rate,
    /// Bits of requests per second.
    Bandwidth,
}

/// A measurement to be made.
#[derive(Clone, Debug)]
pub(crate) struct Measurement {
    pub(crate) quantity: Quantity,
    pub(crate) transport: BenchTransport,
    pub(crate) size: usize,
    pub(crate) in_flight: u16,
    pub(crate) duration: Duration,
    /// A server that runs already, and the number of its endpoint; else one in this process.
    pub(crate) connect: Option<(ServerAddress, u16)>,
}

/// What was measured; these are its names in JSON too.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) bench: Quantity,
    pub(crate) transport: &'static str,
    /// CPUs of client and server, if they were chosen.
    pub(crate) cores: Option<[usize; 2]>,
    pub(crate) size_bytes: usize,
    pub(crate) in_flight: u16,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) latency: Option<LatencySummary>,
    pub(crate) calls: u64,
    /// Replies that were compared with what they had to be.
    pub(crate) checked: u64,
    pub(crate) mismatched: u64,
    pub(crate) failures: Vec<FailureGroup>,
    pub(crate) retransmissions: u64,
    pub(crate) elapsed_ns: u64,
    /// Repeats the measurement.
    pub(crate) command: String,
}

impl Quantity {
    /// The name of the subcommand.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Bandwidth => "bandwidth",
        }
    }

    fn exchange(self) -> Exchange {
        match self {
            Self::Latency | Self::Rate => Exchange::Echo,
            Self::Bandwidth => Exchange::Sink,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Latency => "us",
            Self::Rate => "Mcalls/s",
            Self::Bandwidth => "Gbit/s",
        }
    }
}

impl Figure {
    /// Whether every call was answered, and rightly.
    pub(crate) fn is_flawless(&self) -> bool {
        self.mismatched == 0 && self.failures.is_empty()
    }
}

impl Measurement {
    /// Measures. `watch` sees from time to time how much of the time has passed.
    pub(crate) fn run(&self, watch: impl FnMut(Duration)) -> Result<Figure, Failure> {
        match &self.connect {
            Some((server, endpoint)) => {
                let client = Client::connect(server, &self.client(*endpoint))?;
                self.with_client(client, None, watch)
            }
            None => self.with_own_server(watch),
        }
    }

    fn with_own_server(&self, watch: impl FnMut(Duration)) -> Result<Figure, Failure> {
        let cores = cores::pair();
        let server = Server::start(&ServerConfig {
            idle: idle(),
            transports: self.transport.only(),
            cpu: cores.map(|[_, server]| server),
            ..ServerConfig::at(([127, 0, 0, 1], 0).into())
        })?;
        let client = Client::connect_to(server.address(), &self.client(0));
        // The nexuses' threads run where there is room; only now does this thread choose.
        let pinned = cores.map(|[client, _]| Pinned::to(client)).transpose();
        let figure = pinned
            .map_err(Failure::from)
            .and_then(|_pinned| self.with_client(client?, cores, watch));
        server.stop()?;
        figure
    }

    fn client(&self, endpoint: u16) -> ClientConfig {
        ClientConfig {
            endpoint,
            transports: self.transport.only(),
            in_flight: self.in_flight,
            timeout: TIMEOUT,
            idle: idle(),
        }
    }

    fn with_client(
        &self,
        mut client: Client,
        cores: Option<[usize; 2]>,
        mut watch: impl FnMut(Duration),
    ) -> Result<Figure, Failure> {
        let warm_up = (self.duration / 5).min(WARM_UP_MAX);
        let mut tally = load::run(&mut client, self.plan(warm_up), |_| ControlFlow::Continue(()))?;
        if tally.is_flawless() {
            tally = load::run(&mut client, self.plan(self.duration), |tally| {
                watch(Duration::from_nanos(tally.elapsed_ns));
                ControlFlow::Continue(())
            })?;
        }
        Ok(self.figure(tally, cores))
    }

    fn plan(&self, time: Duration) -> Plan {
        Plan {
            exchange: self.quantity.exchange(),
            size: self.size,
            in_flight: self.in_flight,
            limit: Limit::Time(time),
            timeout: TIMEOUT,
        }
    }

    fn figure(&self, tally: Tally, cores: Option<[usize; 2]>) -> Figure {
        let latency = tally.latencies.summary();
        Figure {
            bench: self.quantity,
            transport: self.transport.name(),
            cores,
            size_bytes: self.size,
            in_flight: self.in_flight,
            value: self.value(&tally, latency),
            unit: self.quantity.unit(),
            latency,
            calls: tally.started,
            checked: tally.answered,
            mismatched: tally.mismatched,
            retransmissions: tally.retransmissions,
            elapsed_ns: tally.elapsed_ns,
            command: self.command(),
            failures: tally.failures,
        }
    }

    fn value(&self, tally: &Tally, latency: Option<LatencySummary>) -> f64 {
        let per_second = tally.calls_per_second();
        match self.quantity {
            Quantity::Latency => latency.map_or(0.0, |latency| latency.p50_ns as f64 / 1e3),
            Quantity::Rate => per_second / 1e6,
            Quantity::Bandwidth => per_second * self.size as f64 * 8.0 / 1e9,
        }
    }

    /// The command that repeats the measurement.
    fn command(&self) -> String {
        let connect = match &self.connect {
            Some((server, 0)) => format!(" --connect {server}"),
            Some((server, endpoint)) => format!(" --connect {server} --endpoint {endpoint}"),
            None => String::new(),
        };
        format!(
            "petrel bench {} --transport {} --size {} --in-flight {} --duration {}{connect}",
            self.quantity.name(),
            self.transport.name(),
            self.size,
            self.in_flight,
            exact_duration(self.duration),
        )
    }
}

/// Two ends on one CPU must give way to each other at once.
fn idle() -> IdlePolicy {
    if cores::pair().is_some() { SPIN } else { IdlePolicy::Block }
}
