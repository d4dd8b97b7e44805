//! The behaviour of the library in some worlds, in figures stored in `record.txt`.
//!
//! The rules of the simulator say what must never happen. They cannot detect a superfluous frame, timer or
//! retransmission. The record contains all of them: a change of the frames on the wire, or of their timing,
//! changes the record, and a review sees the cost or the saving in its totals. A change without intended
//! effect on behaviour leaves the record unchanged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::thread;

use petrel_sim::check::{Options, Report, run_seed};

const RECORD: &str = include_str!("record.txt");

const WORLDS: Range<u64> = 0..100;

/// With the value `write`, the test rewrites the record.
const VARIABLE: &str = "PETREL_RECORD";

const HEAD: &str = "\
# Written by: PETREL_RECORD=write cargo test -p petrel-sim --test all record
# Equal digests: the same frames at the same times, and the same outcomes of calls.
";

/// Returns the reports of all worlds, in the order of their seeds.
fn reports() -> Vec<Report> {
    let run = |first: u64| -> Vec<Report> {
        let seeds = WORLDS.skip(first as usize).step_by(2);
        seeds.map(|seed| run_seed(seed, &Options::default()).unwrap()).collect()
    };
    let mut reports = thread::scope(|scope| {
        let odd = scope.spawn(|| run(1));
        let mut reports = run(0);
        reports.extend(odd.join().unwrap());
        reports
    });
    reports.sort_by_key(|report| report.seed);
    reports
}

/// Returns a line per total and a line per world.
fn lines(reports: &[Report]) -> String {
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    for report in reports {
        let protocol = report.protocol.iter().map(|(name, value)| (format!("core.{name}"), value));
        let others = report.iter().map(|(name, value)| (name.to_owned(), value));
        protocol.chain(others).for_each(|(name, value)| *totals.entry(name).or_default() += value);
    }
    let mut text = HEAD.to_owned();
    for (name, value) in totals {
        writeln!(text, "total {name} {value}").unwrap();
    }
    for report in reports {
        let Report { seed, digest, virtual_ns, calls, fabric, .. } = report;
        let packets = fabric.sent;
        writeln!(
            text,
            "seed {seed} digest {digest:016x} ns {virtual_ns} calls {calls} packets {packets}"
        )
        .unwrap();
    }
    text
}

#[test]
fn record__of_worlds_is_as_it_was() {
    let now = lines(&reports());
    if std::env::var(VARIABLE).is_ok_and(|value| value == "write") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/record.txt");
        return std::fs::write(path, now).unwrap();
    }
    let mut differences = String::new();
    let mut was = RECORD.lines();
    for line in now.lines() {
        let before = was.next().unwrap_or_default();
        if line != before {
            writeln!(differences, "- {before}\n+ {line}").unwrap();
        }
    }
    assert!(
        differences.is_empty() && was.next().is_none(),
        "the library behaves otherwise than recorded. If that is meant, {VARIABLE}=write writes the record anew:\n\
         {differences}"
    );
}
