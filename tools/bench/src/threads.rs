//! The three threading models (RAMCloud's slides; eRPC §3.2), and the cost of crossing a thread:
//!
//! | model | server | caller |
//! | --- | --- | --- |
//! | `single` | one thread, whose event loop runs the handlers | calls of its own endpoint |
//! | `workers` | one thread for the network, a pool for the handlers | the same |
//! | `endpoints` | several threads, each with an endpoint that runs handlers | the same, over all endpoints |
//! | `client` | as `single` | a thread other than its endpoint's, by a client handle |
//!
//! A third table has several threads that call ([`callers`]).
//!
//! All models exist at once, but only the measured one is awake. Their windows take turns, so other load
//! on the machine affects all models.

mod caller;
mod callers;
mod crew;
mod crossing;
mod locked;
mod remote;
mod server;
mod work;

use std::sync::Arc;
use std::time::Duration;

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, IdlePolicy};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::latency::{Latencies, LatencySummary, format_percentile};
use petrel_command::output::{Column, Output};
use petrel_command::units::exact_duration;
use serde::Serialize;

use self::caller::Caller;
use self::remote::{ClientThread, RemoteCaller};
use self::server::Server;
use self::work::Work;
use crate::args::{BenchTransport, ThreadsArgs};

/// The method whose handler computes.
const WORK: u16 = 1;

/// The threads of handlers and callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Single,
    Workers,
    Endpoints,
    Client,
}

const MODELS: [Model; 4] = [Model::Single, Model::Workers, Model::Endpoints, Model::Client];

impl Model {
    fn name(self) -> &'static str {
        match self {
            Model::Single => "single",
            Model::Workers => "workers",
            Model::Endpoints => "endpoints",
            Model::Client => "client",
        }
    }
}

/// A source of calls, which counts them.
trait Calls {
    /// Keeps `in_flight` calls in flight for `length`.
    fn window(
        &mut self,
        in_flight: usize,
        length: Duration,
        counts: &mut Counts,
    ) -> Result<(), Failure>;
}

/// The counts of windows of one kind.
struct Counts {
    latencies: Latencies,
    /// Calls per second of every window.
    rates: Vec<f64>,
    checks: Checks,
}

/// The outcomes of calls.
#[derive(Clone, Copy, Default, Serialize)]
struct Checks {
    checked: u64,
    mismatched: u64,
    failed: u64,
}

impl Checks {
    fn and(self, other: Self) -> Self {
        Self {
            checked: self.checked + other.checked,
            mismatched: self.mismatched + other.mismatched,
            failed: self.failed + other.failed,
        }
    }

    fn are_valid(self) -> bool {
        self.mismatched == 0 && self.failed == 0 && self.checked > 0
    }
}

impl Counts {
    fn new() -> Self {
        Self { latencies: Latencies::default(), rates: Vec::new(), checks: Checks::default() }
    }

    /// Counts an ended call.
    fn count(&mut self, number: u64, latency_ns: u64, reply: Option<&[u8]>) {
        match reply {
            None => self.checks.failed += 1,
            Some(reply) => {
                self.checks.checked += 1;
                self.checks.mismatched += u64::from(reply != work::answer(number).to_le_bytes());
                self.latencies.record(latency_ns);
            }
        }
    }

    fn median_rate(&mut self) -> f64 {
        self.rates.sort_by(f64::total_cmp);
        self.rates.get(self.rates.len() / 2).copied().unwrap_or_default()
    }
}

/// A model under a load, as `--json` prints the figures.
#[derive(Serialize)]
struct Row {
    bench: &'static str,
    transport: &'static str,
    model: &'static str,
    handler_ns: u64,
    /// Threads that run handlers.
    handler_threads: usize,
    #[serde(flatten)]
    figures: Figures,
}

/// The figures of a model, or of a way of several threads to the network.
#[derive(Serialize)]
struct Figures {
    /// Calls in flight of each calling thread.
    in_flight: usize,
    cpus: usize,
    windows: usize,
    command: String,
    /// Calls of all threads: the median of the windows with `in_flight` calls of each at a time.
    calls_per_second: f64,
    /// Latency in these windows.
    loaded_latency: Option<LatencySummary>,
    /// Latency of one call of each thread at a time.
    latency: Option<LatencySummary>,
    #[serde(flatten)]
    checks: Checks,
}

impl Figures {
    fn new(args: &ThreadsArgs, alone: &Counts, loaded: &mut Counts) -> Self {
        Self {
            in_flight: usize::from(args.in_flight),
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get()),
            windows: loaded.rates.len(),
            command: command(args),
            calls_per_second: loaded.median_rate(),
            loaded_latency: loaded.latencies.summary(),
            latency: alone.latencies.summary(),
            checks: alone.checks.and(loaded.checks),
        }
    }
}

/// One way of crossing threads, as `--json` prints it.
#[derive(Serialize)]
struct Crossing {
    bench: &'static str,
    transport: &'static str,
    way: &'static str,
    command: String,
    latency: Option<LatencySummary>,
    /// The median latency minus that of `local`.
    crossing_ns: i64,
    #[serde(flatten)]
    checks: Checks,
}

/// A model that is set up.
struct ModelSetup {
    model: Model,
    handler_threads: usize,
    caller: Box<dyn Calls>,
    alone: Counts,
    loaded: Counts,
    _server: Server,
}

/// Runs the benchmark and prints its figures.
pub(super) fn run(args: &ThreadsArgs, output: Output) -> Result<Outcome, Failure> {
    let work = Work::calibrate();
    let (mut rows, mut crossings, mut callers) = (Vec::new(), Vec::new(), Vec::new());
    for transport in &args.transport {
        let group = cross(args, *transport, work, output)?;
        group.iter().try_for_each(|row| output.record(row))?;
        crossings.extend(group);
        for handler in &args.handler {
            let group = measure(args, *transport, *handler, work, output)?;
            group.iter().try_for_each(|row| output.record(row))?;
            rows.extend(group);
        }
        for count in &args.callers {
            let group = callers::measure(args, *transport, usize::from(*count), work, output)?;
            group.iter().try_for_each(|row| output.record(row))?;
            callers.extend(group);
        }
    }
    output.line(output.rows(&CROSSING_COLUMNS, CROSSING_COLUMNS.len(), &crossings))?;
    output.line(output.rows(&COLUMNS, COLUMNS.len(), &rows))?;
    output.line(output.rows(&callers::COLUMNS, callers::COLUMNS.len(), &callers))?;
    output.line(format!("Again:\n  {}", command(args)))?;
    let checks = rows.iter().map(|row| row.figures.checks);
    let checks = checks.chain(crossings.iter().map(|row| row.checks));
    let mut checks = checks.chain(callers.iter().map(|row| row.figures.checks));
    let is_valid = checks.all(Checks::are_valid);
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

/// Measures the cost of crossing a thread if both threads have a CPU.
fn cross(
    args: &ThreadsArgs,
    transport: BenchTransport,
    work: Work,
    output: Output,
) -> Result<Vec<Crossing>, Failure> {
    let (config, job) = (config(args, transport), work.of(Duration::ZERO));
    let mut all_counts = crossing::WAYS.map(|_| Counts::new());
    let mut progress = output.progress(u64::from(args.rounds), "crossing a thread");
    for round in 0..args.rounds {
        crossing::round(&config, job, args.window, &mut all_counts)?;
        progress.set(u64::from(round) + 1);
    }
    let p50_ns = |counts: &Counts| counts.latencies.summary().map_or(0, |latency| latency.p50_ns);
    let local_ns = p50_ns(&all_counts[0]);
    let row = |(way, counts): (_, &Counts)| Crossing {
        bench: "crossing",
        transport: transport.name(),
        way,
        command: command(args),
        latency: counts.latencies.summary(),
        crossing_ns: p50_ns(counts) as i64 - local_ns as i64,
        checks: counts.checks,
    };
    Ok(crossing::WAYS.into_iter().zip(&all_counts).map(row).collect())
}

fn measure(
    args: &ThreadsArgs,
    transport: BenchTransport,
    handler: Duration,
    work: Work,
    output: Output,
) -> Result<Vec<Row>, Failure> {
    let config = config(args, transport);
    let job = work.of(handler);
    let mut setups = Vec::new();
    for model in MODELS {
        setups.push(ModelSetup::start(model, args, &config, job)?);
    }
    let title = format!("{} handler over {}", exact_duration(handler), transport.name());
    let mut progress = output.progress(u64::from(args.rounds), &title);
    for round in 0..args.rounds {
        for setup in &mut setups {
            setup.round(usize::from(args.in_flight), args.window)?;
        }
        progress.set(u64::from(round) + 1);
    }
    let row = |setup: &mut ModelSetup| setup.row(args, transport, handler);
    Ok(setups.iter_mut().map(row).collect())
}

fn config(args: &ThreadsArgs, transport: BenchTransport) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    let udp = transport == BenchTransport::Udp;
    config.transports = AllowedTransports { udp, shm: !udp, stream: false };
    config.idle = idle(args.spin);
    config
}

/// The idle policy of all threads.
fn idle(spin: Duration) -> IdlePolicy {
    if spin.is_zero() { IdlePolicy::Block } else { IdlePolicy::SpinThenBlock(spin) }
}

impl ModelSetup {
    fn start(
        model: Model,
        args: &ThreadsArgs,
        config: &EndpointConfig,
        job: work::Job,
    ) -> Result<Self, Failure> {
        let threads = usize::from(args.threads);
        let (endpoints, workers) = match model {
            Model::Single | Model::Client => (1, 0),
            Model::Workers => (1, threads),
            Model::Endpoints => (threads, 0),
        };
        let server = Server::start(config, endpoints, workers, job)?;
        let caller: Box<dyn Calls> = match model {
            Model::Client => {
                let thread = ClientThread::start(config, server.address)?;
                Box::new(RemoteCaller::new(Arc::new(thread)))
            }
            _ => Box::new(Caller::start(config, server.address, endpoints)?),
        };
        let (alone, loaded) = (Counts::new(), Counts::new());
        let handler_threads = endpoints.max(workers);
        Ok(Self { model, handler_threads, caller, alone, loaded, _server: server })
    }

    /// Runs a window with a single call at a time, and one with many.
    fn round(&mut self, in_flight: usize, length: Duration) -> Result<(), Failure> {
        self.caller.window(1, length, &mut self.alone)?;
        self.caller.window(in_flight, length, &mut self.loaded)
    }

    fn row(&mut self, args: &ThreadsArgs, transport: BenchTransport, handler: Duration) -> Row {
        Row {
            bench: "threads",
            transport: transport.name(),
            model: self.model.name(),
            handler_ns: handler.as_nanos() as u64,
            handler_threads: self.handler_threads,
            figures: Figures::new(args, &self.alone, &mut self.loaded),
        }
    }
}

fn command(args: &ThreadsArgs) -> String {
    let transports: Vec<_> = args.transport.iter().map(|transport| transport.name()).collect();
    let callers: Vec<_> = args.callers.iter().map(u8::to_string).collect();
    let handlers: Vec<_> = args.handler.iter().map(|length| exact_duration(*length)).collect();
    format!(
        "petrel bench threads --transport {} --handler {} --threads {} --callers {} --in-flight {} \
         --spin {} --rounds {} --window {}",
        transports.join(","),
        handlers.join(","),
        args.threads,
        callers.join(","),
        args.in_flight,
        exact_duration(args.spin),
        args.rounds,
        exact_duration(args.window),
    )
}

const CROSSING_COLUMNS: [Column<Crossing>; 6] = [
    ("way", |row| row.way.to_owned()),
    ("over", |row| row.transport.to_owned()),
    ("p50", |row| format_percentile(&row.latency, |latency| latency.p50_ns)),
    ("p99", |row| format_percentile(&row.latency, |latency| latency.p99_ns)),
    ("crossing", |row| format!("{:+} ns", row.crossing_ns)),
    ("checked", |row| row.checks.checked.to_string()),
];

const COLUMNS: [Column<Row>; 10] = [
    ("model", |row| row.model.to_owned()),
    ("over", |row| row.transport.to_owned()),
    ("handler", |row| exact_duration(Duration::from_nanos(row.handler_ns))),
    ("threads", |row| row.handler_threads.to_string()),
    ("alone p50", |row| format_percentile(&row.figures.latency, |latency| latency.p50_ns)),
    ("p99", |row| format_percentile(&row.figures.latency, |latency| latency.p99_ns)),
    ("calls/s", |row| format!("{:.0}", row.figures.calls_per_second)),
    ("loaded p50", |row| format_percentile(&row.figures.loaded_latency, |latency| latency.p50_ns)),
    ("p99", |row| format_percentile(&row.figures.loaded_latency, |latency| latency.p99_ns)),
    ("checked", |row| row.figures.checks.checked.to_string()),
];
