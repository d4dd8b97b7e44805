//! `petrel cache bench`: GETs and SETs beside an echo.
//!
//! Echo and cache have a process each, on one CPU, and idle in the other's windows. Without further work on the machine a
//! rate is that of the CPU. With other work, the rate per core is more exact: operations by the run time of the server's
//! threads, as the kernel counts it.

mod args;
pub mod attacks;
mod keys;
mod load;
mod report;
mod stream;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use petrel::endpoint::{EndpointConfig, EndpointId, IdlePolicy};
use petrel::{Client, Endpoint, Nexus};
use petrel_cache::wire::{self, Hello};
use petrel_cache::{Hasher, limits};
use petrel_command::Outcome;
use petrel_command::cores::{self, CpuPlacement};
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::output::latency::Latencies;
use serde::Deserialize;

pub use self::args::{CacheAttacksArgs, CacheBenchArgs, MixArgs};
pub use self::keys::{Items, Popularity, mix};
pub use self::load::{Kind, Load};
use self::report::Row;
use self::stream::Stream;
use crate::attacks::threads_ns;
use crate::measure::process::{Process, parse};
use petrel_command::args::BenchTransport;

/// The most calls in flight of a session.
pub const SESSION_CALLS: u16 = 8;

/// Pause between windows: control planes' threads without CPU time take their peers for dead.
const PAUSE: Duration = Duration::from_millis(30);

/// The operations of a window.
pub struct Work {
    /// The operations that ended.
    pub count: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// GETs that found no item.
    pub missed: u64,
    /// The time of the window.
    pub elapsed_ns: u64,
    /// The times of the operations.
    pub latencies: Latencies,
}

/// The windows of a kind.
#[derive(Default)]
struct Series {
    /// Operations per second, and per second of the server's run time, by round.
    rates: Vec<f64>,
    core_rates: Vec<f64>,
    sum: Work,
}

#[derive(Deserialize)]
struct Ready {
    #[serde(default)]
    address: Option<SocketAddr>,
    #[serde(default)]
    memcached: Option<SocketAddr>,
    pid: u32,
}

/// Another process, which serves.
struct Server {
    _process: Process,
    ready: Ready,
}

/// Runs `petrel cache bench`, and prints its figures.
///
/// # Errors
/// The reason why nothing could be measured.
pub fn run(args: &CacheBenchArgs, output: Output) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for &transport in &args.mix.transport {
        rows.extend(measure(&args.mix, transport)?);
    }
    if let Some(address) = args.memcached {
        rows.extend(measure_stream(args, address)?);
    }
    report::show(&rows, output)?;
    let is_valid = rows.iter().all(Row::is_valid);
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

/// Measures echoes and mixes of the cache in alternating windows.
fn measure(args: &MixArgs, transport: BenchTransport) -> Result<Vec<Row>, Failure> {
    let echo = Server::start(&["serve", "--transport", transport.name()], args, "--endpoints")?;
    let cache = Server::cache(args, "--listen", &["--transport", transport.name()])?;
    let _placement = place(0)?;
    let mut echo_clients = clients(args, transport, &echo, Hasher::new(0))?;
    let hello = hello(cache.address()?)?;
    let mut cache_clients = clients(args, transport, &cache, Hasher::new(hello.seed))?;
    let filled = Load::window(&mut cache_clients, Kind::Fill(args.items), Duration::MAX, || {})?;
    if filled.wrong > 0 || filled.count != u64::from(args.items) {
        return Err(Failure::because("not all items could be stored"));
    }
    let kinds: Vec<_> = args
        .popularities()
        .into_iter()
        .map(|(name, popularity)| (name, Kind::Mix(popularity, args.get)))
        .collect();
    let mut echoes = Series::default();
    let mut mixes: Vec<_> = kinds.iter().map(|_| Series::default()).collect();
    // The first round warms up.
    for round in 0..=args.rounds {
        let window =
            |server: &Server, clients: &mut Endpoint<Load>, kind: &Kind, series: &mut Series| {
                thread::sleep(PAUSE);
                let before_ns = run_time_ns(server.ready.pid);
                let work = Load::window(clients, kind.clone(), args.window, || {})?;
                if round > 0 {
                    series.add(
                        work,
                        run_time_ns(server.ready.pid)
                            .zip(before_ns)
                            .map(|(after, before)| after - before),
                    );
                }
                Ok::<_, Failure>(())
            };
        window(&echo, &mut echo_clients, &Kind::Echo, &mut echoes)?;
        for ((_, kind), series) in kinds.iter().zip(&mut mixes) {
            window(&cache, &mut cache_clients, kind, series)?;
        }
    }
    let echo_row = Row::new(transport.name(), "echo", &echoes, None);
    let mixes = kinds.iter().zip(&mixes);
    let rows = mixes.map(|((name, _), it)| Row::new(transport.name(), name, it, Some(&echoes)));
    Ok([echo_row].into_iter().chain(rows).collect())
}

/// Measures memcached's protocol, of a server at this address or of an own one.
fn measure_stream(args: &CacheBenchArgs, address: Option<SocketAddr>) -> Result<Vec<Row>, Failure> {
    let CacheBenchArgs { mix, pid, .. } = args;
    let own = match address {
        Some(_) => None,
        None => Some(Server::cache(mix, "--memcached", &[])?),
    };
    let own_address = own.as_ref().and_then(|server| server.ready.memcached);
    let address =
        address.or(own_address).ok_or_else(|| Failure::because("the server has no address"))?;
    let _placement = place(0)?;
    let mut stream = Stream::connect(address, mix.item_sizes(), mix.in_flight)?;
    if stream.fill(mix.items)?.wrong > 0 {
        return Err(Failure::because("not all items could be stored"));
    }
    let popularities = mix.popularities();
    let mut all: Vec<_> = popularities.iter().map(|_| Series::default()).collect();
    for round in 0..=mix.rounds {
        for ((_, popularity), series) in popularities.iter().zip(&mut all) {
            let pid = own.as_ref().map(|server| server.ready.pid).or(*pid);
            let run_time_ns = || pid.and_then(run_time_ns);
            let before_ns = run_time_ns();
            let work = stream.window(popularity, mix.get, mix.window)?;
            if round > 0 {
                series
                    .add(work, run_time_ns().zip(before_ns).map(|(after, before)| after - before));
            }
        }
    }
    let rows = popularities.iter().zip(&all);
    Ok(rows.map(|((name, _), series)| Row::new("tcp", name, series, None)).collect())
}

/// Puts this thread, and processes that it starts, on the clients' CPU (0) or the servers' (1), if there are two.
fn place(which: usize) -> Result<cores::PlacementGuard, Failure> {
    let cpu = cores::pair().map(|pair| pair[which]);
    Ok(CpuPlacement { cpu, is_realtime: false }.apply()?)
}

impl Server {
    /// Starts this command with these arguments, and as many threads as there are partitions.
    fn start(what: &[&str], args: &MixArgs, threads: &str) -> Result<Self, Failure> {
        let count = args.partitions.to_string();
        let listen =
            if what.contains(&"--memcached") { &[][..] } else { &["--listen", "127.0.0.1:0"] };
        let arguments = [what, listen, &["--json", threads, &count]].concat();
        // The process inherits this thread's CPU; more partitions than one need all.
        let _placement = if args.partitions == 1 { Some(place(1)?) } else { None };
        let mut process = Process::start(&arguments)?;
        let ready = parse(&process.line()?)?;
        Ok(Self { _process: process, ready })
    }

    fn cache(args: &MixArgs, door: &str, more: &[&str]) -> Result<Self, Failure> {
        let item = args.item_bytes().min(limits::VALUE_BYTES_MAX).to_string();
        let memory = args.memory_bytes().to_string();
        let what = ["cache", "serve", "--memory", &memory, "--item-size", &item];
        let door: &[&str] =
            if door == "--memcached" { &["--memcached", "127.0.0.1:0"] } else { &[] };
        Self::start(&[&what[..], door, more].concat(), args, "--threads")
    }

    fn address(&self) -> Result<SocketAddr, Failure> {
        self.ready.address.ok_or_else(|| Failure::because("the server has no address"))
    }
}

/// Returns the time that the threads of a process have run.
fn run_time_ns(pid: u32) -> Option<u64> {
    Some(threads_ns(pid)?.into_iter().map(|(_, ns)| ns).sum())
}

/// Learns the seed of a server.
fn hello(address: SocketAddr) -> Result<Hello, Failure> {
    let client = Client::connect_wait(address)?;
    let answer = client.call(wire::HELLO, []).wait()?;
    wire::decode(&answer).map_err(Failure::because)
}

/// Creates an endpoint with sessions to all partitions.
fn clients(
    args: &MixArgs,
    transport: BenchTransport,
    server: &Server,
    hasher: Hasher,
) -> Result<Endpoint<Load>, Failure> {
    let nexus = Nexus::builder().transports(transport.only()).start()?;
    let mut config = EndpointConfig::default();
    config.transports = transport.only();
    config.idle = IdlePolicy::Poll;
    let load = Load::new(args.item_sizes());
    let mut endpoint = nexus.endpoint_with(config, load).map_err(Failure::because)?;
    let address = server.address()?;
    let mut sessions = Vec::new();
    for partition in 0..args.partitions {
        let count = args.in_flight.div_ceil(SESSION_CALLS);
        let opened = (0..count).map(|_| endpoint.connect_wait_to(address, EndpointId(partition)));
        sessions.push(opened.collect::<Result<Vec<_>, _>>()?);
    }
    endpoint.with(|load, cx| load.set_sessions(cx, sessions, hasher, args.in_flight))?;
    Ok(endpoint)
}

impl Series {
    fn add(&mut self, work: Work, run_time_ns: Option<u64>) {
        let rate = |ns: u64| work.count as f64 * 1e9 / ns.max(1) as f64;
        self.rates.push(rate(work.elapsed_ns));
        self.core_rates.extend(run_time_ns.map(rate));
        self.sum.count += work.count;
        self.sum.wrong += work.wrong;
        self.sum.missed += work.missed;
        self.sum.latencies.add(&work.latencies);
    }
}
