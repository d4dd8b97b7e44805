//! Attacks on a server beside honest clients: no honest call fails, and their rate stays.
//!
//! The server is a separate process. Honest calls of several sizes run all the time, in sequence on a single session.
//! In every window a newcomer connects, makes a small call and one of 8 MiB, and asks for the server's counters. Three
//! windows take turns: without the attack, with the attack on a second server of the host, and with the attack on the
//! clients' server. The rates of the second and the third are divided by the first of the same round; the medians over
//! the rounds are the figures. The second window shows the CPU time that attackers take from the whole host; the third
//! adds the attacked server's own cost.
//!
//! Most attackers are silent after their set-up, so their windows measure the held resources of the server. Attackers
//! that flood also take CPU time from every process on the machine; their rows are marked.

mod active;
mod args;
mod calls;
mod honest;
mod kinds;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

pub(crate) use self::active::ActiveAttack;
pub(crate) use self::calls::{Honest, Report, Shared};
use self::honest::newcomer;
pub(crate) use self::kinds::AttackKind;
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::{Column, Output};
use petrel_command::text::again;
use petrel_command::units::format_bytes;

pub(crate) use self::args::AttacksArgs;
use self::kinds::Target;
use crate::measure::process::{Process, parse, status_bytes};
use crate::measure::statistics::median;

/// Minimum rate of honest calls under an attack, relative to the rate without.
const RATIO_MIN: f64 = 0.9;

/// Time between the end of an attack and the next window, for connections to close.
pub(crate) const SETTLE_TIME: Duration = Duration::from_millis(500);

/// The name of the thread of a process that serves connections, links and sessions.
pub const MANAGEMENT: &str = "petrel-nexus";

#[derive(Clone, Debug, Serialize)]
struct Figure {
    bench: &'static str,
    attack: String,
    /// Whether the attacker keeps sending, and takes CPU time from the honest clients.
    floods: bool,
    /// The resources that the attacker obtained, for human readers.
    #[serde(rename = "got")]
    obtained: String,
    /// Calls of the honest clients, from before the first attack to the end of the last.
    honest: u64,
    failed: u64,
    /// The first failure, for human readers.
    failure: Option<String>,
    newcomers: u64,
    newcomers_failed: u64,
    calm_per_s: f64,
    attacked_per_s: f64,
    /// Median over the rounds of the rate under the attack divided by the rate without.
    ratio: f64,
    /// Median ratio with the attack on another server of this host.
    ratio_beside: f64,
    /// Share of a CPU that the server's management thread uses without the attack, and under it.
    management_calm: Option<f64>,
    management_attacked: Option<f64>,
    memory_before: u64,
    memory_peak: u64,
    memory_after: u64,
    command: String,
}

impl Figure {
    fn holds(&self) -> bool {
        self.failed + self.newcomers_failed == 0 && (self.floods || self.ratio >= RATIO_MIN)
    }
}

/// The record that a server prints when it listens.
#[derive(Deserialize)]
struct Ready {
    address: SocketAddr,
    pid: u32,
    /// The key of the server's region.
    region: String,
}

/// Runs the attacks and prints the figures.
pub(super) fn run(args: &AttacksArgs, output: Output) -> Result<Outcome, Failure> {
    raise_descriptor_limit()?;
    let mut figures = Vec::new();
    for &kind in &args.attack {
        let figure = measure(kind, args)?;
        output.record(&figure)?;
        figures.push(figure);
    }
    show(&figures, output)?;
    Ok(if figures.iter().all(Figure::holds) { Outcome::Success } else { Outcome::Failure })
}

/// Raises the limit on file descriptors: attackers have thousands of connections.
pub(crate) fn raise_descriptor_limit() -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .map_err(std::io::Error::from)?)
}

fn measure(kind: AttackKind, args: &AttacksArgs) -> Result<Figure, Failure> {
    let attacker = args.attacker.as_deref();
    let (_server, ready) = start_server()?;
    let (_other, beside) = start_server()?;
    let (address, pid, region) = (ready.address, ready.pid, &ready.region);
    let (mut honest, victim_port) = honest::start(address)?;
    // A server with a single peer connects its socket to the peer, to save some 80 ns per datagram. Any
    // second client ends the optimisation. The bystander keeps this effect out of the ratio.
    let mut bystander = honest::endpoint()?;
    bystander.connect_wait(address)?;
    // Warm-up: memory that the first calls allocate is not the attack's.
    thread::sleep(args.window / 2);
    let memory_before = resident_bytes(pid)?;
    let mut rounds = Vec::new();
    let mut obtained = String::new();
    let mut memory_peak = memory_before;
    for _ in 0..args.rounds {
        let calm = observe(&mut honest, &ready, args.window);
        let (at, other) = (beside.address, &beside.region);
        let attack = kind.set_up(Target { address: at, region: other, victim_port, attacker })?;
        let others = observe(&mut honest, &ready, args.window);
        attack.end();
        thread::sleep(SETTLE_TIME);
        let attack = kind.set_up(Target { address, region, victim_port, attacker })?;
        let attacked = observe(&mut honest, &ready, args.window);
        memory_peak = memory_peak.max(resident_bytes(pid)?);
        obtained = attack.end();
        thread::sleep(SETTLE_TIME);
        rounds.push(Round { calm, others, attacked });
    }
    let memory_after = resident_bytes(pid)?;
    let report = honest.end()?;
    let median_of = |get: fn(&Round) -> f64| median(rounds.iter().map(get)).unwrap_or(0.0);
    if rounds.iter().any(|round| round.calm.per_s == 0.0) {
        return Err(Failure::because("no call ended"));
    }
    let management = |get: fn(&Round) -> &Observation| {
        median(rounds.iter().filter_map(|round| get(round).management))
    };
    Ok(Figure {
        bench: "attacks",
        attack: kind.name(),
        floods: kind.floods(),
        obtained,
        honest: report.calls,
        failed: report.failed,
        newcomers: report.newcomers,
        newcomers_failed: report.newcomers_failed,
        failure: report.failure,
        calm_per_s: median_of(|round| round.calm.per_s),
        // The number may be zero under the attack: zero is a valid result.
        attacked_per_s: median_of(|round| round.attacked.per_s),
        ratio: median_of(|round| round.attacked.per_s / round.calm.per_s),
        ratio_beside: median_of(|round| round.others.per_s / round.calm.per_s),
        management_calm: management(|round| &round.calm),
        management_attacked: management(|round| &round.attacked),
        memory_before,
        memory_peak: memory_peak.max(peak_bytes(pid)?),
        memory_after,
        command: again(),
    })
}

fn start_server() -> Result<(Process, Ready), Failure> {
    let options = ["serve", "--json", "--listen", "127.0.0.1:0", "--region", "8MiB"];
    let mut server = Process::start(&options)?;
    let ready = parse(&server.line()?)?;
    Ok((server, ready))
}

/// The consecutive windows of one round.
struct Round {
    calm: Observation,
    /// The window with the attack on another server.
    others: Observation,
    attacked: Observation,
}

struct Observation {
    /// Calls of the honest clients per second.
    per_s: f64,
    /// The share of a CPU that the server's management thread used, if known.
    management: Option<f64>,
}

/// Observes a window of a server with honest clients.
fn observe(
    honest: &mut Honest,
    Ready { address, pid, .. }: &Ready,
    window: Duration,
) -> Observation {
    let (cpu_ns, begun) = (management_ns(*pid), Instant::now());
    let per_s = honest.window(window, || newcomer(*address).map_err(|failure| failure.to_string()));
    let cpu_ns = management_ns(*pid).zip(cpu_ns).map(|(end, begin)| end - begin);
    let management = cpu_ns.map(|ns| ns as f64 / begun.elapsed().as_nanos() as f64);
    Observation { per_s, management }
}

/// Returns the CPU time of a server's management thread so far, in nanoseconds.
pub(crate) fn management_ns(pid: u32) -> Option<u64> {
    threads_ns(pid)?.into_iter().find(|(name, _)| name == MANAGEMENT).map(|(_, ns)| ns)
}

/// Returns the names of a process's threads, and the CPU time of each so far in nanoseconds.
pub fn threads_ns(pid: u32) -> Option<Vec<(String, u64)>> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of_thread = |path: PathBuf| {
        let read = |name: &str| std::fs::read_to_string(path.join(name)).ok();
        let ns = read("schedstat")?.split_whitespace().next()?.parse().ok()?;
        Some((read("comm")?.trim().to_owned(), ns))
    };
    threads.map(|thread| of_thread(thread.ok()?.path())).collect()
}

fn resident_bytes(pid: u32) -> Result<u64, Failure> {
    status_bytes(pid, "VmRSS:")
}

pub(crate) fn peak_bytes(pid: u32) -> Result<u64, Failure> {
    status_bytes(pid, "VmHWM:")
}

fn percent(share: Option<f64>) -> String {
    share.map_or("?".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

const COLUMNS: [Column<Figure>; 11] = [
    ("attack", |figure| figure.attack.clone()),
    ("honest calls", |figure| figure.honest.to_string()),
    ("failed", |figure| figure.failed.to_string()),
    ("newcomers failed", |figure| format!("{} of {}", figure.newcomers_failed, figure.newcomers)),
    ("rate", |figure| {
        format!("{:.2}{}", figure.ratio, if figure.floods { " (floods)" } else { "" })
    }),
    ("on another", |figure| format!("{:.2}", figure.ratio_beside)),
    ("management", |figure| {
        [figure.management_calm, figure.management_attacked].map(percent).join(", ")
    }),
    ("before", |figure| format_bytes(figure.memory_before)),
    ("peak", |figure| format_bytes(figure.memory_peak)),
    ("after", |figure| format_bytes(figure.memory_after)),
    ("holds", |figure| if figure.holds() { "yes" } else { "NO" }.to_owned()),
];

fn show(figures: &[Figure], output: Output) -> Result<(), Failure> {
    output.line(output.rows(&COLUMNS, 0, figures))?;
    for figure in figures {
        output.line(format!("{}: {}", figure.attack, figure.obtained))?;
        if let Some(failure) = &figure.failure {
            output.line(format!("  first failure: {failure}"))?;
        }
    }
    output.line(
        "Rate: of honest calls under the attack over that without, the median of the rounds. On another: \
         the same with the\nattack on another server of this host, for the CPU time that attackers take from \
         everybody. Management: the share\nof a CPU that the server's thread for connections takes, without \
         and with the attack. Memory: of the server's\nprocess. An attacker that floods takes CPU time from \
         the honest clients, too.\nAgain:",
    )?;
    Ok(output.line(format!("  {}", again()))?)
}
