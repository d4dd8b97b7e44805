//! `petrel cache attacks`: attacks on the port of memcached's protocol, of the cache and of memcached side by side.
//!
//! Both servers have the same memory, threads and most connections, and a process each. Honest clients store and fetch values
//! of several sizes all the time, each over its own connection, and check each answer. In every window a newcomer connects. For
//! each attack, windows without and with the attack take turns, first at the cache, then at memcached. The medians of the
//! ratios over the rounds are the figures. An attacker that floods takes CPU time from all processes of the machine, so that
//! only the ratio of the other attacks is judged.

mod honest;
mod kinds;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::{Column, Output};
use petrel_command::text::again;
use petrel_command::units::{format_bytes, format_rate};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use self::honest::newcomer;
pub(crate) use self::kinds::CacheAttack;
use super::Ready;
use super::args::CacheAttacksArgs;
use crate::attacks::{Honest, SETTLE_TIME, peak_bytes, raise_descriptor_limit};
use crate::measure::process::{Process, parse};
use crate::measure::statistics::median;

/// The least ratio of the cache, relative to memcached's.
const RATIO_MIN: f64 = 0.9;

/// The most connections of both servers.
const CONNECTIONS_MAX: &str = "1024";

/// The longest time until a server listens.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The figures of a server under an attack.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    bench: &'static str,
    attack: String,
    server: &'static str,
    floods: bool,
    /// The attacker's resources, for human readers.
    #[serde(rename = "got")]
    obtained: String,
    honest: u64,
    failed: u64,
    /// Gets of evicted values.
    missed: u64,
    /// The first failure, for human readers.
    failure: Option<String>,
    newcomers: u64,
    newcomers_failed: u64,
    calm_per_s: f64,
    attacked_per_s: f64,
    /// Median over the rounds of the rate under the attack divided by the rate without.
    ratio: f64,
    memory_peak: u64,
    /// Whether honest clients fare no worse than those of the other server. The cache is judged, memcached is not.
    holds: bool,
    command: String,
}

impl Figure {
    /// Returns true if honest clients fare no worse than those of the other server.
    fn holds_beside(&self, other: &Self) -> bool {
        // A ratio above 1 comes from the machine, and counts as 1.
        let least = RATIO_MIN * other.ratio.min(1.0);
        self.failed <= other.failed
            && self.newcomers_failed <= other.newcomers_failed
            && (self.floods || self.ratio >= least)
    }
}

/// A server of memcached's protocol.
struct Server {
    _process: Process,
    name: &'static str,
    address: SocketAddr,
    pid: u32,
}

/// Runs the attacks and prints the figures.
///
/// # Errors
/// The reason for a missing measurement, for example a host without memcached.
pub fn run(args: &CacheAttacksArgs, output: Output) -> Result<Outcome, Failure> {
    let mut pairs = Vec::new();
    for &attack in &args.attack {
        let pair = measure(attack, args)?;
        pair.iter().try_for_each(|figure| output.record(figure))?;
        pairs.push(pair);
    }
    show(&pairs, output)?;
    let holds = pairs.iter().flatten().all(|figure| figure.holds);
    Ok(if holds { Outcome::Success } else { Outcome::Failure })
}

fn measure(attack: CacheAttack, args: &CacheAttacksArgs) -> Result<[Figure; 2], Failure> {
    // The servers get the user's limit on descriptors, and the attackers get more.
    let limit = getrlimit(Resource::Nofile);
    let servers = [Server::memcached(args)?, Server::cache(args)?];
    raise_descriptor_limit()?;
    let figures = measure_servers(attack, &servers, args);
    setrlimit(Resource::Nofile, Rlimit { ..limit }).map_err(std::io::Error::from)?;
    let [memcached, mut cache] = figures?;
    cache.holds = cache.holds_beside(&memcached);
    Ok([cache, memcached])
}

fn measure_servers(
    attack: CacheAttack,
    servers: &[Server; 2],
    args: &CacheAttacksArgs,
) -> Result<[Figure; 2], Failure> {
    let [first, second] = servers;
    let mut observers =
        [Observer::start(first, args.window)?, Observer::start(second, args.window)?];
    for _ in 0..args.rounds {
        observers.iter_mut().try_for_each(|observer| observer.round(attack))?;
    }
    let [first, second] = observers;
    Ok([first.end(attack)?, second.end(attack)?])
}

impl Server {
    fn cache(args: &CacheAttacksArgs) -> Result<Self, Failure> {
        let (memory, threads) = (args.memory.to_string(), args.threads.to_string());
        let mut process = Process::start(&[
            "cache",
            "serve",
            "--json",
            "--memcached",
            "127.0.0.1:0",
            "--memory",
            &memory,
            "--threads",
            &threads,
            "--connections",
            CONNECTIONS_MAX,
        ])?;
        let Ready { memcached, pid, .. } = parse(&process.line()?)?;
        let address = memcached.ok_or_else(|| Failure::because("the server has no address"))?;
        Ok(Self { _process: process, name: "petrel", address, pid })
    }

    fn memcached(args: &CacheAttacksArgs) -> Result<Self, Failure> {
        // memcached does not report a port chosen by the system. This port is free for the moment.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new(&args.beside);
        command.args(["-l", "127.0.0.1", "-U", "0", "-u", "root", "-c", CONNECTIONS_MAX]);
        // A line for each refused connection.
        command.stderr(Stdio::null());
        command.args(["-p", &address.port().to_string()]);
        command.args(["-m", &(args.memory >> 20).to_string(), "-t", &args.threads.to_string()]);
        let process = Process::spawn(&mut command).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Failure::because(format!(
                "{} is not installed, and the cache is measured beside it: install memcached, or name the program \
                 with --beside",
                args.beside
            )),
            _ => error.into(),
        })?;
        let begun = Instant::now();
        while let Err(error) = TcpStream::connect(address) {
            if begun.elapsed() > START_LIMIT {
                return Err(Failure::because(format!("{} does not listen: {error}", args.beside)));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let pid = process.id();
        Ok(Self { _process: process, name: "memcached", address, pid })
    }
}

/// Observes the honest clients of a server.
struct Observer<'a> {
    server: &'a Server,
    honest: Honest,
    window: Duration,
    /// Honest calls per second without and with the attack, by round.
    rates: Vec<[f64; 2]>,
    obtained: String,
}

impl<'a> Observer<'a> {
    fn start(server: &'a Server, window: Duration) -> Result<Self, Failure> {
        let honest = honest::start(server.address)?;
        // Warm-up.
        thread::sleep(window / 2);
        Ok(Self { server, honest, window, rates: Vec::new(), obtained: String::new() })
    }

    fn round(&mut self, attack: CacheAttack) -> Result<(), Failure> {
        let calm = self.window();
        let active = attack.set_up(self.server.address)?;
        // At first sockets fill, which takes CPU time from all processes. Failures count from the beginning.
        thread::sleep(SETTLE_TIME);
        let attacked = self.window();
        self.obtained = active.end();
        thread::sleep(SETTLE_TIME);
        self.rates.push([calm, attacked]);
        match calm > 0.0 {
            true => Ok(()),
            false => Err(Failure::because(format!("{} answers no honest call", self.server.name))),
        }
    }

    /// Returns the honest calls per second of a window.
    fn window(&mut self) -> f64 {
        self.honest.window(self.window, || newcomer(self.server.address))
    }

    fn end(self, attack: CacheAttack) -> Result<Figure, Failure> {
        let report = self.honest.end()?;
        let median_of =
            |get: fn(&[f64; 2]) -> f64| median(self.rates.iter().map(get)).unwrap_or(0.0);
        Ok(Figure {
            bench: "cache-attacks",
            attack: attack.name(),
            server: self.server.name,
            floods: attack.floods(),
            obtained: self.obtained,
            honest: report.calls,
            failed: report.failed,
            missed: report.missed,
            newcomers: report.newcomers,
            newcomers_failed: report.newcomers_failed,
            failure: report.failure,
            calm_per_s: median_of(|[calm, _]| *calm),
            attacked_per_s: median_of(|[_, attacked]| *attacked),
            ratio: median_of(|[calm, attacked]| attacked / calm),
            memory_peak: peak_bytes(self.server.pid)?,
            holds: true,
            command: again(),
        })
    }
}

const COLUMNS: [Column<Figure>; 10] = [
    ("attack", |figure| figure.attack.clone()),
    ("server", |figure| figure.server.to_owned()),
    ("honest calls", |figure| figure.honest.to_string()),
    ("failed", |figure| figure.failed.to_string()),
    ("missed", |figure| figure.missed.to_string()),
    ("newcomers failed", |figure| format!("{} of {}", figure.newcomers_failed, figure.newcomers)),
    ("without, with", |figure| {
        [figure.calm_per_s, figure.attacked_per_s].map(|rate| format_rate(rate, "")).join(", ")
    }),
    ("rate", |figure| {
        format!("{:.2}{}", figure.ratio, if figure.floods { " (floods)" } else { "" })
    }),
    ("peak", |figure| format_bytes(figure.memory_peak)),
    ("holds", |figure| if figure.holds { "yes" } else { "NO" }.to_owned()),
];

fn show(pairs: &[[Figure; 2]], output: Output) -> Result<(), Failure> {
    output.line(output.rows(&COLUMNS, 2, pairs.iter().flatten()))?;
    for figure in pairs.iter().flatten() {
        output.line(format!("{} of {}: {}", figure.attack, figure.server, figure.obtained))?;
        if let Some(failure) = &figure.failure {
            output.line(format!("  first failure: {failure}"))?;
        }
    }
    output.line(
        "Rate: of honest calls under the attack over that without, the median of the rounds. Missed: gets whose \
         value was evicted.\nAgain:",
    )?;
    Ok(output.line(format!("  {}", again()))?)
}
