//! `petrel-experiment stalls`: instructions and stalls of batched lookups (G-Opt, Figure 9).
//!
//! callgrind counts the instructions of a form, and by its model of caches the misses of the last level. The program runs itself under
//! callgrind for one part of the inputs and for all of them, and the difference of both counts has the lookups alone. Hardware counters
//! are not needed: the clock's frequency comes from a chain of dependent multiplications and additions. Stalled cycles
//! are those beyond the time of the same form in a structure that the caches hold.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use petrel_batch_bench::{COUNTED_WIDTH, Counted, Form, Lookup, PARTS, Pace, Report, measure};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use serde::Serialize;

use crate::args::StallsArgs;
use crate::report::chart::{self, Axis, Chart};
use crate::report::rows::{Column, Report as Table, Row, digits};

/// Divides the structures that are counted: callgrind runs some fifty times slower. Its last level is smaller than these, too.
const COUNTED_SMALLER: usize = 64;
const LAST_LEVEL: &str = "--LL=1048576,16,64";

/// Divides the structures that the caches hold.
const CACHED_SMALLER: usize = 256;

const FORMS: [Form; 3] = [Form::Naive, Form::Batched, Form::ByHand];

/// A form of a lookup.
#[derive(Clone, Debug, Serialize)]
struct StallRow {
    experiment: &'static str,
    lookup: String,
    structure: String,
    form: &'static str,
    ghz: f64,
    /// Each per input.
    instructions: f64,
    misses: f64,
    ns: f64,
    cycles: f64,
    stalled_cycles: f64,
    /// Instructions per cycle.
    ipc: f64,
}

fn name(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |it| it.get_name().to_owned())
}

fn title(form: Form) -> &'static str {
    match form {
        Form::Naive => "naive",
        Form::Batched => "batched",
        Form::ByHand => "by hand",
    }
}

/// Measures and counts the lookups, or runs a form for a count.
pub(crate) fn run(args: &StallsArgs, output: Output) -> Result<Outcome, Failure> {
    let pace = |smaller, counted| Pace { rounds: args.rounds, smaller, counted };
    if let Some(form) = args.counted {
        let counted = Some(Counted { form, parts: args.parts });
        for lookup in &args.lookup {
            let report = measure(*lookup, &pace(COUNTED_SMALLER, counted));
            // The inputs of a part, for the process that counts.
            output.line(report.counted_inputs(1))?;
        }
        return Ok(Outcome::Success);
    }
    let ghz = clock_ghz();
    let mut rows = Vec::new();
    for lookup in &args.lookup {
        let large = measure(*lookup, &pace(args.smaller.into(), None));
        let cached = measure(*lookup, &pace(CACHED_SMALLER, None));
        for form in FORMS {
            let times = large.time_ns(form).zip(cached.time_ns(form));
            let Some((ns, cached_ns)) = times else { continue };
            let [instructions, misses] = count(*lookup, form)?;
            let row = StallRow::new(
                (*lookup, &large, form),
                ghz,
                [ns, cached_ns],
                [instructions, misses],
            );
            output.record(&row)?;
            rows.push(row);
        }
    }
    let lookups: Vec<String> = args.lookup.iter().map(|lookup| name(*lookup)).collect();
    let command = format!(
        "petrel-experiment stalls {} --rounds {} --smaller {}",
        lookups.join(" "),
        args.rounds,
        args.smaller
    );
    Table { rows: &rows, command: &command }.print(output)?;
    if let Some(path) = &args.plot {
        chart::draw(path, &StallRow::chart(&rows))?;
    }
    Ok(Outcome::Success)
}

impl StallRow {
    fn new(
        (lookup, report, form): (Lookup, &Report, Form),
        ghz: f64,
        [ns, cached_ns]: [f64; 2],
        [instructions, misses]: [f64; 2],
    ) -> Self {
        Self {
            experiment: "stalls",
            lookup: name(lookup),
            structure: report.title().to_owned(),
            form: title(form),
            ghz,
            instructions,
            misses,
            ns,
            cycles: ns * ghz,
            stalled_cycles: (ns - cached_ns) * ghz,
            ipc: instructions / (ns * ghz),
        }
    }
}

/// The cycles of a multiplication and an addition, each of which needs the result before: the same on x86-64 processors since 2008.
const LINK_CYCLES: f64 = 4.0;

/// The frequency of this thread's CPU: the best of chains of multiplications and additions, so short that most are not interrupted.
fn clock_ghz() -> f64 {
    const LINKS: u32 = 20_000;
    let run = || {
        let (began, start) = (Instant::now(), black_box(3u64));
        black_box((0..LINKS).fold(start, |it, _| it.wrapping_mul(it).wrapping_add(start)));
        f64::from(LINKS) * LINK_CYCLES / began.elapsed().as_nanos() as f64
    };
    (0..1_000).map(|_| run()).fold(0.0, f64::max)
}

/// Returns instructions and misses of the last level per input of a form.
fn count(lookup: Lookup, form: Form) -> Result<[f64; 2], Failure> {
    let (one, inputs) = callgrind(lookup, form, 1)?;
    let (all, _) = callgrind(lookup, form, PARTS)?;
    let per_input =
        |at: usize| all[at].saturating_sub(one[at]) as f64 / (inputs * (PARTS - 1) as u64) as f64;
    match one[0] > 0 && all[0] > one[0] {
        true => Ok([per_input(0), per_input(1)]),
        false => Err(Failure::because("callgrind has counted no instruction of a lookup")),
    }
}

/// Runs a form under callgrind; returns the counts of the program, and the inputs of a part.
fn callgrind(lookup: Lookup, form: Form, parts: usize) -> Result<([u64; 2], u64), Failure> {
    let file = std::env::temp_dir().join(format!("petrel-stalls-{}.out", std::process::id()));
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--cache-sim=yes", LAST_LEVEL])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe()?)
        .args(["stalls", &name(lookup), "--counted", &name(form), "--parts", &parts.to_string()])
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| Failure::because(format!("valgrind does not run: {error}")))?;
    let dump = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file::<&PathBuf>(&file);
    let inputs = String::from_utf8_lossy(&run.stdout).trim().parse::<u64>().ok();
    match (run.status.success(), totals(&dump), inputs) {
        (true, Some(totals), Some(inputs)) if inputs > 0 => Ok((totals, inputs)),
        _ => {
            let said = String::from_utf8_lossy(&run.stderr).into_owned();
            Err(Failure::because(format!("callgrind has failed: {said}")))
        }
    }
}

/// Returns instructions and last-level misses of a dump of callgrind.
fn totals(dump: &str) -> Option<[u64; 2]> {
    let rest = |start: &str| dump.lines().find_map(|line| line.strip_prefix(start));
    let events: Vec<&str> = rest("events:")?.split_whitespace().collect();
    let values = rest("totals:").or_else(|| rest("summary:"))?;
    let values: Vec<u64> = values.split_whitespace().map_while(|it| it.parse().ok()).collect();
    let value = |event: &str| values.get(events.iter().position(|it| *it == event)?).copied();
    Some([value("Ir")?, value("DLmr")? + value("DLmw")?])
}

impl Row for StallRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("lookup", |row| row.lookup.clone()),
        ("form", |row| row.form.to_owned()),
        ("instructions", |row| digits(row.instructions)),
        ("misses", |row| digits(row.misses)),
        ("ns", |row| digits(row.ns)),
        ("cycles", |row| digits(row.cycles)),
        ("stalled", |row| digits(row.stalled_cycles)),
        ("IPC", |row| format!("{:.2}", row.ipc)),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(first) = rows.first() else { return Vec::new() };
        let mut remarks = vec![format!(
            "Per input, groups of {COUNTED_WIDTH}. Instructions and misses of the last level by callgrind, in structures {COUNTED_SMALLER} times \
             smaller; its model knows no prefetch, so that misses are those of prefetches as well. Cycles at {:.2} GHz; stalled: beyond the \
             time in a structure {CACHED_SMALLER} times smaller.",
            first.ghz
        )];
        for pair in rows.chunk_by(|one, other| one.lookup == other.lookup) {
            let of = |form| pair.iter().find(|row| row.form == title(form));
            if let (Some(naive), Some(batched)) = (of(Form::Naive), of(Form::Batched)) {
                remarks.push(format!(
                    "{}, {}: batched over naive: instructions {:.2}, IPC {:.2}, cycles {:.2}",
                    naive.lookup,
                    naive.structure,
                    batched.instructions / naive.instructions,
                    batched.ipc / naive.ipc,
                    batched.cycles / naive.cycles
                ));
            }
        }
        remarks
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::log("instructions per input");
        let mut chart = Chart::new("Instructions and IPC of lookups", x, Axis::linear("IPC"));
        for row in rows {
            chart.add(&row.lookup, (row.instructions, row.ipc));
        }
        chart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals__have_instructions_and_misses() {
        let dump = "events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nfn=1\n1 2\ntotals: 100 9 8 7 6 5 4 30 2\n";
        assert_eq!(totals(dump), Some([100, 32]));
        assert_eq!(totals("events: Ir\ntotals: 100\n"), None, "without a model of caches");
        assert_eq!(totals(""), None);
    }

    #[test]
    fn row__divides_by_the_cycles() {
        let pace = Pace { rounds: 1, smaller: 256, counted: None };
        let report = measure(Lookup::Chase, &pace);
        let of = (Lookup::Chase, &report, Form::Batched);
        let row = StallRow::new(of, 2.0, [50.0, 20.0], [400.0, 3.0]);
        assert_eq!((row.cycles, row.stalled_cycles, row.ipc), (100.0, 60.0, 4.0));
    }

    #[test]
    fn clock__has_a_frequency_of_processors() {
        assert!((0.1..10.0).contains(&clock_ghz()));
    }
}
