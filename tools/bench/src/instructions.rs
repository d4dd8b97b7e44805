//! Instructions per RPC and per packet, counted in software by valgrind's callgrind.
//!
//! The counting code is shared with `cargo bench -p petrel-rpc --bench instructions`, whose documentation explains the
//! method. The files are linked here, and are therefore in the command's package. The benchmark counts itself; this
//! command counts another process: `petrel bench counted-workload`.

mod args;
mod callgrind;
#[allow(dead_code, reason = "where instructions were spent is shown by the benchmark alone")]
mod cost;
#[allow(dead_code, reason = "where instructions were spent is shown by the benchmark alone")]
mod dump;
mod typed;
mod workload;

use std::time::Instant;

use petrel::Nexus;
use petrel_command::Outcome;
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_command::output::Output;

pub(crate) use self::args::{CountedArgs, InstructionsArgs};
use self::callgrind::{Side, obstacle};
use self::workload::Medium;
use crate::measure::figure::{Figure, Parts, Quantity, Setting};
use crate::measure::pairs::Pairs;
use crate::measure::target::Requirement;
use crate::report::figures::{Figures, Skipped};
use petrel_command::args::BenchTransport;

pub(crate) use self::workload::Workload;

/// The counted rows of the benchmark: rows with a required value, and similar ones.
const ROWS: [&str; 4] = ["shm-60", "shm-8MiB", "udp-60", "udp-8MiB"];

/// Runs of a row, in calls of its short run: a short and a long run per side.
const SHORT_RUNS: u64 = 2 * (1 + 3);

/// The name of the subcommand and of its figures.
const NAME: &str = "instructions";

/// Runs the workload in the counted process.
pub(super) fn run_counted(args: &CountedArgs) -> Result<(), Failure> {
    let nexus = || credentials::apply(Nexus::builder(), false);
    workload::run(args.workload, args.calls, nexus).map_err(Failure::because)
}

pub(super) fn rows(transport: BenchTransport) -> impl Iterator<Item = &'static Workload> {
    let of_names = workload::WORKLOADS.iter().filter(|row| ROWS.contains(&row.name));
    of_names.filter(move |row| row.transport() == transport)
}

/// Counts instructions, and prints them.
pub(super) fn run(args: &InstructionsArgs, output: Output) -> Result<Outcome, Failure> {
    let mut report = Figures::new(output);
    for workload in args.transport.iter().copied().flat_map(rows) {
        workload.add_to(&mut report, |figure| figure)?;
    }
    report.show()
}

/// Counts the instructions of a row; takes seconds.
fn count(workload: &Workload) -> Result<Figure, Failure> {
    let start = Instant::now();
    let count = |side| {
        let again = ["bench", "counted-workload"];
        cost::of(workload, side, &again).map_err(Failure::because)
    };
    let (client, server) = (count(Side::Client)?, count(Side::Server)?);
    let parts = Parts {
        per: workload.unit.name(),
        client: client.instructions,
        server: server.instructions,
    };
    let mut figure = workload.figure(parts);
    figure.elapsed_ns = start.elapsed().as_nanos() as u64;
    Ok(figure)
}

impl Workload {
    /// Adds the row's figure, or the reason why instructions cannot be counted here.
    pub(super) fn add_to(
        &self,
        report: &mut Figures,
        judge: impl Fn(Figure) -> Figure,
    ) -> Result<(), Failure> {
        if report.is_interrupted() {
            return Ok(());
        }
        let Some(reason) = obstacle() else {
            return match count(self) {
                // The signal of Ctrl-C has ended the counted process, too.
                Err(_) if report.is_interrupted() => Ok(()),
                counted => report.add(judge(counted?)),
            };
        };
        let setting = self.setting();
        report.skip(&Skipped {
            bench: setting.bench,
            transport: setting.transport,
            network: None,
            size_bytes: setting.size_bytes,
            skipped: reason,
            command: setting.command,
        })
    }

    fn transport(&self) -> BenchTransport {
        match self.medium {
            Medium::Shm => BenchTransport::Shm,
            Medium::Udp => BenchTransport::Udp,
        }
    }

    /// Returns the row's required value, if any.
    pub(super) fn requirement(&self) -> Option<Requirement> {
        match self.name {
            "shm-60" => Some(Requirement::ValueAtMost(600.0)),
            "shm-8MiB" | "udp-8MiB" => Some(Requirement::ValueAtMost(500.0)),
            _ => None,
        }
    }

    /// Returns the settings known before the measurement.
    fn setting(&self) -> Setting {
        let transport = self.transport().name();
        let command = format!("petrel bench {NAME} --transport {transport}");
        Setting {
            cores: Some(1),
            size_bytes: self.request_bytes(),
            in_flight: self.in_flight as u16,
            batch: self.batch as u16,
            sessions: self.sessions,
            ..Setting::new(NAME, transport, command)
        }
    }

    fn figure(&self, parts: Parts) -> Figure {
        let mut figure = Figure::new(Quantity::Rate, self.setting(), Pairs::default());
        (figure.value, figure.unit) = (parts.client + parts.server, "instructions");
        (figure.ns_per_call, figure.parts) = (None, Some(parts));
        // The counted program compares every reply, and ends at the first wrong one.
        figure.calls = SHORT_RUNS * self.calls;
        figure.checked = figure.calls;
        figure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows__are_a_small_and_a_large_one_for_each_transport() {
        for transport in [BenchTransport::Shm, BenchTransport::Udp] {
            let settings: Vec<Setting> = rows(transport).map(Workload::setting).collect();
            let shapes = settings.iter().map(|row| (row.size_bytes, row.in_flight, row.batch));
            assert_eq!(shapes.collect::<Vec<_>>(), [(32, 60, 3), (8 << 20, 1, 1)]);
            assert!(settings.iter().all(|row| row.transport == transport.name()));
        }
    }

    #[test]
    fn figure__is_of_both_sides_and_has_nothing_beside_it() {
        let parts = Parts { per: "rpc", client: 300.0, server: 301.0 };
        let row = Workload::named("shm-60").unwrap();
        let figure = row.figure(parts);
        assert_eq!((figure.value, figure.unit), (601.0, "instructions"));
        assert_eq!((figure.bare, figure.ratio, figure.ns_per_call), (None, None, None));
        let target = row.requirement().unwrap().judge(&figure);
        assert_eq!((target.target.as_str(), target.reached), ("<= 600 instructions", "no"));
        let json = serde_json::to_value(&figure).unwrap();
        assert_eq!((&json["per"], &json["client"]), (&"rpc".into(), &300.0.into()));
    }
}
