//! Attacks on a server beside honest clients: no honest call fails, and their rate stays.
//!
//! The server is a process of its own. Honest calls of several sizes go on all the time, one after
//! the other on one session, and in each window a newcomer connects, makes a small call and one of 8 MiB,
//! and asks for the server's counters. Three windows take turns: one without the attack, one with the
//! attack on another server of the same host, and one with the attack on this server. The rates of the
//! second and the third are divided by the first of the same turn, and the medians over the turns are the
//! figures. The second shows the CPU time that attackers take from the whole host; the third
//! adds the attacked server's own cost.
//!
//! Most attackers are silent once they are set up, and what is seen then is what they hold
//! of the server; those that flood also take CPU time from everybody on the machine, and say so.

mod honest;
mod kinds;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::{Cell, CellAlignment};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use self::honest::{Honest, newcomer};
pub(crate) use self::kinds::AttackKind;
use self::kinds::Target;
use super::process::{Process, parse};
use super::statistics::median;
use crate::Outcome;
use crate::cli::AttacksArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::units::{exact_duration, format_bytes};

/// What the rate of honest calls under an attack must be, over that without.
const RATIO_MIN: f64 = 0.9;

/// Time between the end of an attack and the next window: connections close meanwhile.
const SETTLE: Duration = Duration::from_millis(500);

/// The name of the thread that a process has for connections, links and sessions.
const MANAGEMENT: &str = "petrel-nexus";

/// A figure.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    bench: &'static str,
    attack: &'static str,
    /// Whether the attacker goes on sending, and takes CPU time from the honest.
    floods: bool,
    /// What the attacker got, for people.
    got: String,
    /// Calls of the honest, from before the first attack to the end of the last.
    honest: u64,
    failed: u64,
    /// The first failure, for people.
    failure: Option<String>,
    newcomers: u64,
    newcomers_failed: u64,
    calm_per_s: f64,
    attacked_per_s: f64,
    /// Of the rates under the attack and without, in windows of one turn.
    ratio: f64,
    /// The same with the attack on another server of this host.
    ratio_beside: f64,
    /// Share of a CPU that the server's management thread takes without the attack, and under it.
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

/// What a server says when it listens.
#[derive(Deserialize)]
struct Ready {
    address: SocketAddr,
    pid: u32,
}

/// Measures and prints.
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

/// Attackers have thousands of connections.
fn raise_descriptor_limit() -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .map_err(std::io::Error::from)?)
}

fn measure(kind: AttackKind, args: &AttacksArgs) -> Result<Figure, Failure> {
    let (_server, Ready { address, pid }) = start_server()?;
    let (_other, beside) = start_server()?;
    let honest = Honest::start(address)?;
    // A server with a single peer connects its socket to it, which saves some 80 ns per datagram, and a
    // second client of any kind ends that. The bystander keeps this effect out of the ratio.
    let mut bystander = honest::endpoint()?;
    bystander.connect_wait(address)?;
    let mut watch = Watch {
        honest: &honest,
        address,
        pid,
        window: args.window,
        newcomers: 0,
        failures: vec![],
    };
    let victim_port = honest.port();
    // Warm-up: what the first calls allocate is not the attack's.
    thread::sleep(args.window / 2);
    let memory_before = resident_bytes(pid)?;
    let mut turns = Vec::new();
    let mut got = String::new();
    let mut memory_peak = memory_before;
    for _ in 0..args.rounds {
        let calm = watch.window();
        let standing = kind.set_up(Target { address: beside.address, victim_port })?;
        let others = watch.window();
        standing.end();
        thread::sleep(SETTLE);
        let standing = kind.set_up(Target { address, victim_port })?;
        let attacked = watch.window();
        memory_peak = memory_peak.max(resident_bytes(pid)?);
        got = standing.end();
        thread::sleep(SETTLE);
        turns.push(Turn { calm, others, attacked });
    }
    let memory_after = resident_bytes(pid)?;
    let Watch { newcomers, failures, .. } = watch;
    let report = honest.end()?;
    let of = |get: fn(&Turn) -> f64| median(turns.iter().map(get)).unwrap_or(0.0);
    if turns.iter().any(|turn| turn.calm.per_s == 0.0) {
        return Err(Failure::because("no call ended"));
    }
    let management =
        |get: fn(&Turn) -> &Seen| median(turns.iter().filter_map(|turn| get(turn).management));
    Ok(Figure {
        bench: "attacks",
        attack: kind.name(),
        floods: kind.floods(),
        got,
        honest: report.calls,
        failed: report.failed,
        newcomers,
        newcomers_failed: failures.len() as u64,
        failure: report.failure.or(failures.into_iter().next()),
        calm_per_s: of(|turn| turn.calm.per_s),
        // None may have ended under the attack: that is a result.
        attacked_per_s: of(|turn| turn.attacked.per_s),
        ratio: of(|turn| turn.attacked.per_s / turn.calm.per_s),
        ratio_beside: of(|turn| turn.others.per_s / turn.calm.per_s),
        management_calm: management(|turn| &turn.calm),
        management_attacked: management(|turn| &turn.attacked),
        memory_before,
        memory_peak: memory_peak.max(peak_bytes(pid)?),
        memory_after,
        command: format!(
            "petrel bench attacks --attack {} --rounds {} --window {}",
            kind.name(),
            args.rounds,
            exact_duration(args.window)
        ),
    })
}

fn start_server() -> Result<(Process, Ready), Failure> {
    let mut server = Process::start(&["serve", "--json", "--listen", "127.0.0.1:0"])?;
    let ready = parse(&server.line()?)?;
    Ok((server, ready))
}

/// Windows that follow one another.
struct Turn {
    calm: Seen,
    /// With the attack on another server.
    others: Seen,
    attacked: Seen,
}

/// What a window has shown.
struct Seen {
    /// Calls of the honest per second.
    per_s: f64,
    /// The share of a CPU that the server's management thread took, if the kernel says so.
    management: Option<f64>,
}

/// Looks at the honest clients of a server.
struct Watch<'a> {
    honest: &'a Honest,
    address: SocketAddr,
    pid: u32,
    window: Duration,
    newcomers: u64,
    /// Of newcomers.
    failures: Vec<String>,
}

impl Watch<'_> {
    fn window(&mut self) -> Seen {
        let (calls, cpu_ns, begun) = (self.honest.calls(), management_ns(self.pid), Instant::now());
        self.newcomers += 1;
        if let Err(failure) = newcomer(self.address) {
            self.failures.push(format!("newcomer: {failure}"));
        }
        thread::sleep(self.window.saturating_sub(begun.elapsed()));
        let time_s = begun.elapsed().as_secs_f64();
        let cpu_ns = management_ns(self.pid).zip(cpu_ns).map(|(end, begin)| end - begin);
        Seen {
            per_s: (self.honest.calls() - calls) as f64 / time_s,
            management: cpu_ns.map(|ns| ns as f64 / 1e9 / time_s),
        }
    }
}

/// CPU time of a server's management thread so far, in nanoseconds.
fn management_ns(pid: u32) -> Option<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let paths = threads.filter_map(|thread| Some(thread.ok()?.path()));
    let of_thread =
        |path: &PathBuf| read(path.join("comm")).is_some_and(|name| name.trim() == MANAGEMENT);
    let path = { paths }.find(of_thread)?;
    read(path.join("schedstat"))?.split_whitespace().next()?.parse().ok()
}

fn resident_bytes(pid: u32) -> Result<u64, Failure> {
    memory_line(pid, "VmRSS:")
}

fn peak_bytes(pid: u32) -> Result<u64, Failure> {
    memory_line(pid, "VmHWM:")
}

fn memory_line(pid: u32, name: &str) -> Result<u64, Failure> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path)?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let kib = kib.ok_or_else(|| Failure::because(format!("{path} has no {name}")))?;
    Ok(kib << 10)
}

fn percent(share: Option<f64>) -> String {
    share.map_or("?".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

const HEADER: [&str; 11] = [
    "attack",
    "honest calls",
    "failed",
    "newcomers failed",
    "rate",
    "on another",
    "management",
    "before",
    "peak",
    "after",
    "holds",
];

fn show(figures: &[Figure], output: Output) -> Result<(), Failure> {
    let mut table = output.table(&HEADER);
    for figure in figures {
        let right = |text| Cell::new(text).set_alignment(CellAlignment::Right);
        table.add_row(
            [
                figure.attack.to_owned(),
                figure.honest.to_string(),
                figure.failed.to_string(),
                format!("{} of {}", figure.newcomers_failed, figure.newcomers),
                format!("{:.2}{}", figure.ratio, if figure.floods { " (floods)" } else { "" }),
                format!("{:.2}", figure.ratio_beside),
                [figure.management_calm, figure.management_attacked].map(percent).join(", "),
                format_bytes(figure.memory_before),
                format_bytes(figure.memory_peak),
                format_bytes(figure.memory_after),
                if figure.holds() { "yes" } else { "NO" }.to_owned(),
            ]
            .map(right),
        );
    }
    output.line(table)?;
    for figure in figures {
        output.line(format!("{}: {}", figure.attack, figure.got))?;
        if let Some(failure) = &figure.failure {
            output.line(format!("  first failure: {failure}"))?;
        }
    }
    output.line(
        "Rate: of honest calls under the attack over that without, the median of the turns. On another: \
         the same with the\nattack on another server of this host, for the CPU time that attackers take from \
         everybody. Management: the share\nof a CPU that the server's thread for connections takes, without \
         and with the attack. Memory: of the server's\nprocess. An attacker that floods takes CPU time from \
         the honest clients, too.\nAgain:",
    )?;
    figures.iter().try_for_each(|figure| output.line(format!("  {}", figure.command)))?;
    Ok(())
}
