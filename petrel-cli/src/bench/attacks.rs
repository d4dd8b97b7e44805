//! Attacks on a server beside honest clients: no honest call fails, and their rate stays.
//!
//! The server is a process of its own. Honest calls of several sizes go on all the time, one after
//! the other on one session, and in each window a newcomer connects, makes a small call and one of 8 MiB,
//! and asks for the server's counters. Windows without and with the attack take turns, and their medians are
//! compared. Most attackers are silent once they are set up, and what is seen then is what they hold
//! of the server; those that flood also take CPU time from everybody on the machine, and say so.

mod honest;
mod kinds;

use std::net::SocketAddr;
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
    ratio: f64,
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
    let mut server = Process::start(&["serve", "--json", "--listen", "127.0.0.1:0"])?;
    let Ready { address, pid } = parse(&server.line()?)?;
    let honest = Honest::start(address)?;
    let target = Target { address, victim_port: honest.port() };
    let window = args.window;
    // Warm-up: what the first calls allocate is not the attack's.
    thread::sleep(window / 2);
    let memory_before = resident_bytes(pid)?;
    let (mut calm, mut attacked) = (Vec::new(), Vec::new());
    let (mut newcomers, mut newcomers_failed) = (0, 0);
    let mut first_failure = None;
    let mut got = String::new();
    let mut memory_peak = memory_before;
    for _ in 0..args.rounds {
        calm.push(rate(&honest, window));
        let standing = kind.set_up(target)?;
        let begun = (honest.calls(), Instant::now());
        newcomers += 1;
        if let Err(failure) = newcomer(address) {
            newcomers_failed += 1;
            first_failure.get_or_insert(format!("newcomer: {failure}"));
        }
        thread::sleep(window.saturating_sub(begun.1.elapsed()));
        attacked.push(per_second(honest.calls() - begun.0, begun.1.elapsed()));
        memory_peak = memory_peak.max(resident_bytes(pid)?);
        got = standing.end();
        thread::sleep(SETTLE);
    }
    let memory_after = resident_bytes(pid)?;
    let report = honest.end()?;
    let median = |rates: Vec<f64>| {
        median(rates).filter(|rate| *rate > 0.0).ok_or_else(|| Failure::because("no call ended"))
    };
    let calm_per_s = median(calm)?;
    // None may have ended under the attack: that is a result.
    let attacked_per_s = median(attacked).unwrap_or(0.0);
    Ok(Figure {
        bench: "attacks",
        attack: kind.name(),
        floods: kind.floods(),
        got,
        honest: report.calls,
        failed: report.failed,
        failure: report.failure.or(first_failure),
        newcomers,
        newcomers_failed,
        calm_per_s,
        attacked_per_s,
        ratio: attacked_per_s / calm_per_s,
        memory_before,
        memory_peak: memory_peak.max(peak_bytes(pid)?),
        memory_after,
        command: format!(
            "petrel bench attacks --attack {} --rounds {} --window {}",
            kind.name(),
            args.rounds,
            exact_duration(window)
        ),
    })
}

fn rate(honest: &Honest, window: Duration) -> f64 {
    let (before, begun) = (honest.calls(), Instant::now());
    thread::sleep(window);
    per_second(honest.calls() - before, begun.elapsed())
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
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

const HEADER: [&str; 9] = [
    "attack",
    "honest calls",
    "failed",
    "newcomers failed",
    "rate",
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
        "Rate: of honest calls under the attack over that without, by medians of windows in turn. \
         Memory: of the\nserver's process. An attacker that floods takes CPU time from the honest \
         clients, too.\nAgain:",
    )?;
    figures.iter().try_for_each(|figure| output.line(format!("  {}", figure.command)))?;
    Ok(())
}
