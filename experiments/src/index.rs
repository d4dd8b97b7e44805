//! `petrel-experiment index`: eRPC's §7.2 on one machine.
//!
//! Rates are measured with a server process whose dispatch thread has a CPU, and clients on another CPU:
//! lookups beside an echo, in alternating windows. The echo has a separate server without prefetching,
//! because prefetching adds a cost to every request, whatever its method.
//!
//! The effect of scans on lookups needs three threads that do not disturb one another: clients, dispatch and worker. On
//! two CPUs the clients and a dispatch endpoint take turns on one, and the workers have the other (`one_thread`): while
//! the dispatch endpoint runs a scan, the clients could not get an answer anyway. With the workers on the clients' CPU
//! instead, workers would take from the clients the time saved in the dispatch thread.

mod args;
mod keys;
mod load;
mod one_thread;
mod report;
mod server;

use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use petrel::endpoint::EndpointId;
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId};
use petrel::{Endpoint, Nexus};
use petrel_command::Outcome;
use petrel_command::cores::{self, CpuPlacement, PlacementGuard};
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::output::latency::Latencies;
use serde::Deserialize;

pub(crate) use self::args::{IndexArgs, IndexServerArgs};
use self::keys::Keys;
use self::load::{CallKind, Load, OfferedLoad};
use self::one_thread::OneThread;
use self::report::Report;
pub(crate) use self::server::run as run_server;
use petrel_bench::measure::process::{Process, parse};
use petrel_command::args::BenchTransport;

/// Time limit for PUTs of all keys.
const FILL_MAX: Duration = Duration::from_secs(600);

/// Pause between windows: control planes' threads without CPU time take their peers for dead.
const PAUSE: Duration = Duration::from_millis(30);

/// Windows before the first one that counts.
const WARM_UP_ROUNDS: u32 = 1;

/// A kind of window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An echo of 8 bytes.
    Echo,
    /// Lookups alone.
    Lookups,
    /// One echo at a time.
    EchoSingle,
    /// One lookup at a time.
    LookupSingle,
    /// An echo, with clients and dispatch endpoint on one CPU.
    EchoOneThread,
    /// Lookups alone, with clients and dispatch endpoint on one CPU.
    LookupsOneThread,
    /// Lookups with some scans, which workers run.
    ScansInWorkers,
    /// Lookups with some scans, which the dispatch endpoint runs.
    ScansInDispatch,
}

/// The server process pauses after every second window: the kernel throttles a real-time thread after most of a second.
const KINDS: [Kind; 8] = [
    Kind::Echo,
    Kind::Lookups,
    Kind::EchoOneThread,
    Kind::LookupsOneThread,
    Kind::EchoSingle,
    Kind::LookupSingle,
    Kind::ScansInWorkers,
    Kind::ScansInDispatch,
];

/// The counts of all windows of a kind.
#[derive(Default)]
struct Series {
    /// Lookups or echoes per second, by round.
    rates: Vec<f64>,
    latencies: [Latencies; 2],
    lookups: u64,
    scans: u64,
    echoes: u64,
    wrong: u64,
    refused: u64,
}

/// A server process, and its clients.
struct ServerProcess {
    _process: Process,
    clients: Clients,
}

/// An endpoint with a session per client, and the clients' calls.
struct Clients {
    endpoint: Endpoint<Load>,
}

#[derive(Deserialize)]
struct Ready {
    address: SocketAddr,
}

/// Runs `petrel-experiment index`, and prints its figures.
///
/// # Errors
/// The reason why nothing could be measured.
pub(crate) fn run(args: &IndexArgs, output: Output) -> Result<Outcome, Failure> {
    let keys = Rc::new(Keys::new(args.keys));
    let mut reports = Vec::new();
    for &transport in &args.transport {
        let report = measure(args, transport, &keys, output)?;
        output.record(&report)?;
        reports.push(report);
    }
    report::show(&reports, args, output)?;
    let has_answers = |report: &Report| report.lookups_of_echoes > 0.0;
    let is_valid = reports.iter().all(|report| report.wrong == 0 && has_answers(report));
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

fn measure(
    args: &IndexArgs,
    transport: BenchTransport,
    keys: &Rc<Keys>,
    output: Output,
) -> Result<Report, Failure> {
    let cpus = cores::pair();
    let mut echo = ServerProcess::start(args, transport, cpus, keys, false)?;
    let mut index = ServerProcess::start(args, transport, cpus, keys, !args.no_prefetch)?;
    index.clients.fill(args)?;
    let mut one_thread = OneThread::start(args, transport, cpus, keys)?;
    let mut progress = output.progress(u64::from(args.rounds), transport.name());
    let mut all = KINDS.map(|_| Series::default());
    for round in 0..args.rounds + WARM_UP_ROUNDS {
        for (kind, series) in KINDS.into_iter().zip(&mut all) {
            thread::sleep(PAUSE);
            let _placement_guard = place_client(cpus)?;
            let offered_load = kind.offered_load(args);
            let outcome = match (kind.is_one_thread(), offered_load.kind) {
                (true, _) => one_thread.window(kind, offered_load)?,
                (false, CallKind::Echo) => echo.clients.call(offered_load, || ())?,
                (false, _) => index.clients.call(offered_load, || ())?,
            };
            if round >= WARM_UP_ROUNDS {
                series.add(outcome);
            }
        }
        progress.set(u64::from(round));
    }
    Ok(Report::new(args, transport, cpus, &all))
}

/// Puts this thread on the clients' CPU, with real-time priority if allowed.
fn place_client(cpus: Option<[usize; 2]>) -> Result<PlacementGuard, Failure> {
    let placement = CpuPlacement { cpu: cpus.map(|[client, _]| client), is_realtime: true };
    Ok(placement.apply().or_else(|_| CpuPlacement { is_realtime: false, ..placement }.apply())?)
}

impl ServerProcess {
    fn start(
        args: &IndexArgs,
        transport: BenchTransport,
        cpus: Option<[usize; 2]>,
        keys: &Rc<Keys>,
        prefetches: bool,
    ) -> Result<Self, Failure> {
        let arguments = arguments(args, transport, cpus, prefetches);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        // The process inherits this thread's scheduling.
        let guard = CpuPlacement { cpu: None, is_realtime: true }.apply();
        let mut process = Process::start(&arguments)?;
        drop(guard);
        let Ready { address } = parse(&process.line()?)?;
        let mut endpoint = endpoint(transport, keys)?;
        let sessions = (0..args.clients).map(|_| endpoint.connect_wait_to(address, EndpointId(0)));
        let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { _process: process, clients: Clients::new(endpoint, &sessions, args)? })
    }
}

impl Clients {
    fn new(
        mut endpoint: Endpoint<Load>,
        sessions: &[SessionId],
        args: &IndexArgs,
    ) -> Result<Self, Failure> {
        endpoint.with(|load, cx| load.set_sessions(cx, sessions, args.outstanding))?;
        Ok(Self { endpoint })
    }

    /// Puts all keys, by calls.
    fn fill(&mut self, args: &IndexArgs) -> Result<(), Failure> {
        let in_flight = in_flight(args);
        let offered_load =
            OfferedLoad { kind: CallKind::Fill, in_flight, is_timed: false, length: FILL_MAX };
        let outcome = self.call(offered_load, || ())?;
        match outcome.lookups == u64::from(args.keys) && outcome.wrong == 0 {
            true => Ok(()),
            false => Err(Failure::because("not all keys could be put")),
        }
    }

    /// Makes calls for a window; `between` runs after every turn of the event loop.
    fn call(
        &mut self,
        offered_load: OfferedLoad,
        between: impl FnMut(),
    ) -> Result<load::Outcome, Failure> {
        let outcome = load::window(&mut self.endpoint, offered_load, between)?;
        match &outcome.first_failure {
            Some(text) => Err(Failure::because(format!("a call failed: {text}"))),
            None => Ok(outcome),
        }
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Lookups => "get",
            Self::EchoSingle => "echo, one at a time",
            Self::LookupSingle => "get, one at a time",
            Self::EchoOneThread => "echo, one CPU",
            Self::LookupsOneThread => "get, one CPU",
            Self::ScansInWorkers => "get and scan, workers",
            Self::ScansInDispatch => "get and scan, dispatch",
        }
    }

    fn is_one_thread(self) -> bool {
        use Kind::{EchoOneThread, LookupsOneThread, ScansInDispatch, ScansInWorkers};
        matches!(self, EchoOneThread | LookupsOneThread | ScansInWorkers | ScansInDispatch)
    }

    fn offered_load(self, args: &IndexArgs) -> OfferedLoad {
        let kind = match self {
            Self::Echo | Self::EchoSingle | Self::EchoOneThread => CallKind::Echo,
            Self::Lookups | Self::LookupSingle | Self::LookupsOneThread => {
                CallKind::Lookups { scans: 0 }
            }
            Self::ScansInWorkers | Self::ScansInDispatch => CallKind::Lookups { scans: args.scans },
        };
        let is_single = matches!(self, Self::EchoSingle | Self::LookupSingle);
        // Rates come from windows without timestamps.
        let is_timed = is_single || matches!(self, Self::ScansInWorkers | Self::ScansInDispatch);
        let in_flight = if is_single { 1 } else { in_flight(args) };
        OfferedLoad { kind, in_flight, is_timed, length: args.window }
    }
}

impl Series {
    fn add(&mut self, outcome: load::Outcome) {
        self.rates.push(outcome.rate());
        self.lookups += outcome.lookups;
        self.scans += outcome.scans;
        self.echoes += outcome.echoes;
        self.wrong += outcome.wrong;
        self.refused += outcome.refused;
        for (sum, window) in self.latencies.iter_mut().zip(&outcome.latencies) {
            sum.add(window);
        }
    }
}

fn in_flight(args: &IndexArgs) -> usize {
    usize::from(args.clients) * usize::from(args.outstanding)
}

/// Returns the command line of a server.
fn arguments(
    args: &IndexArgs,
    transport: BenchTransport,
    cpus: Option<[usize; 2]>,
    prefetches: bool,
) -> Vec<String> {
    let mut arguments = vec!["index-server".to_owned(), "--json".to_owned()];
    let mut set = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    set("--transport", transport.name().to_owned());
    set("--workers", args.workers.to_string());
    set("--words", args.keys.to_string());
    if let Some([client, server]) = cpus {
        set("--cpu", server.to_string());
        set("--worker-cpu", client.to_string());
    }
    if !prefetches {
        arguments.push("--no-prefetch".to_owned());
    }
    arguments
}

/// Creates an endpoint that never sleeps, because it measures.
fn endpoint(transport: BenchTransport, keys: &Rc<Keys>) -> Result<Endpoint<Load>, Failure> {
    let nexus = Nexus::builder().transports(transport.only()).start()?;
    let load = Load::new(Rc::clone(keys));
    nexus.endpoint_with(endpoint_config(transport, false), load).map_err(Failure::because)
}

fn endpoint_config(transport: BenchTransport, accepts: bool) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.transports = transport.only();
    config.idle = IdlePolicy::Poll;
    config.sessions.accept = accepts;
    config
}
