//! `petrel bench`: the measurements of each subcommand, and their figures as a table and as JSON.

mod all;
mod args;

use petrel_command::Outcome;
use petrel_command::args::BenchTransport;
use petrel_command::failure::Failure;
use petrel_command::interrupt;
use petrel_command::output::Output;

use self::all::Job;
pub use self::args::BenchArgs;
use self::args::{AllArgs, BenchCommand};
use crate::args::{EndsArgs, PlanArgs, WindowArgs};
use crate::measure::figure::{Figure, Quantity};
use crate::measure::measurement::Measurement;
use crate::measure::test_bed::Cores;
use crate::measure::{memif, veth};
use crate::report::figures::{Figures, Skipped};
use crate::{attacks, defaults, instructions, kv, regions, sessions, streams};

/// Runs `petrel bench`, and prints the figures.
///
/// # Errors
/// The reason why nothing could be measured.
pub fn run(args: &BenchArgs, output: Output) -> Result<Outcome, Failure> {
    if args.what.is_reported() {
        // Before any thread starts.
        interrupt::note()?;
    }
    match &args.what {
        BenchCommand::Latency(args) => {
            let calls = (args.size, args.in_flight, 1);
            let ends = (&args.plan, &args.ends);
            let list = measurements(Quantity::Latency, calls, ends, &args.windows);
            run_and_show(&list, &args.ends, output)
        }
        BenchCommand::Rate(args) => {
            let calls = (args.calls.size, args.calls.in_flight, args.calls.batch());
            let ends = (&args.plan, &args.ends);
            let list = measurements(Quantity::Rate, calls, ends, &args.windows);
            run_and_show(&list, &args.ends, output)
        }
        BenchCommand::Bandwidth(args) => {
            let calls = (args.size, args.in_flight, 1);
            let ends = (&args.plan, &args.ends);
            let list = measurements(Quantity::Bandwidth, calls, ends, &args.windows);
            run_and_show(&list, &args.ends, output)
        }
        BenchCommand::Sessions(args) => sessions::run(args, output),
        BenchCommand::Regions(args) => regions::run(args, output),
        BenchCommand::Attacks(args) => attacks::run(args, output),
        BenchCommand::Kv(args) => kv::run(args, output),
        BenchCommand::Streams(args) => streams::run(args, output),
        BenchCommand::Defaults(args) => defaults::run(args, output),
        BenchCommand::DefaultsServer(args) => {
            defaults::run_server(args, output)?;
            Ok(Outcome::Success)
        }
        BenchCommand::DefaultsClients(args) => {
            defaults::run_clients(args, output)?;
            Ok(Outcome::Success)
        }
        BenchCommand::MemifServer(args) => {
            memif::serve(args)?;
            Ok(Outcome::Success)
        }
        BenchCommand::Instructions(args) => instructions::run(args, output),
        BenchCommand::All(args) => run_rows(args, output),
        BenchCommand::IdleSessions(args) => {
            sessions::run_client(args, output)?;
            Ok(Outcome::Success)
        }
        BenchCommand::CountedWorkload(args) => {
            instructions::run_counted(args)?;
            Ok(Outcome::Success)
        }
    }
}

fn measurements(
    quantity: Quantity,
    (size, in_flight, batch): (usize, u16, u16),
    (plan, ends): (&PlanArgs, &EndsArgs),
    windows: &WindowArgs,
) -> Vec<Measurement> {
    let measurement = |transport: &BenchTransport| Measurement {
        quantity,
        transport: *transport,
        cores: Cores::requested(ends.cores),
        size,
        in_flight,
        batch,
        pace: windows.pace(),
        plan: plan.plan(),
        beside: plan.beside,
        connect: ends.connect.clone().map(|server| (server, ends.endpoint)),
    };
    ends.transport.iter().map(measurement).collect()
}

fn run_and_show(list: &[Measurement], ends: &EndsArgs, output: Output) -> Result<Outcome, Failure> {
    let is_udp = |measurement: &&Measurement| measurement.transport == BenchTransport::Udp;
    let is_far = ends.veth || ends.memif;
    if is_far && !list.iter().any(|measurement| is_udp(&measurement)) {
        return Err(Failure::because("--veth and --memif measure UDP; name it among --transport"));
    }
    let mut report = Figures::new(output);
    for measurement in list.iter().filter(|measurement| !is_far || is_udp(measurement)) {
        match (ends.veth, ends.memif) {
            (true, _) => measure_veth(&mut report, measurement, |figure| figure)?,
            (_, true) => measure_memif(&mut report, measurement)?,
            _ => report.measure(measurement, |figure| figure)?,
        }
    }
    report.show()
}

/// Adds the figure of a measurement between two network namespaces.
fn measure_veth(
    report: &mut Figures,
    measurement: &Measurement,
    judge: impl Fn(Figure) -> Figure,
) -> Result<(), Failure> {
    if report.is_interrupted() {
        return Ok(());
    }
    let outcome = veth::run(measurement, report.progress_bar("between network namespaces"))?;
    add(report, measurement, outcome, ("veth", veth::command(measurement)), judge)
}

/// Adds the figure of a measurement between two processes by DPDK.
fn measure_memif(report: &mut Figures, measurement: &Measurement) -> Result<(), Failure> {
    let command = memif::command(measurement);
    let outcome = memif::run(measurement, report.progress_bar("between two processes by DPDK"))?;
    add(report, measurement, outcome, ("memif", command), |figure| figure)
}

fn add(
    report: &mut Figures,
    measurement: &Measurement,
    outcome: veth::Outcome,
    (network, command): (&str, String),
    judge: impl Fn(Figure) -> Figure,
) -> Result<(), Failure> {
    match outcome {
        veth::Outcome::Measured(figure) => report.add(judge(*figure)),
        veth::Outcome::Skipped(reason) => report.skip(&Skipped {
            bench: measurement.quantity.name(),
            transport: "udp",
            network: Some(network),
            size_bytes: measurement.size,
            skipped: &reason,
            command,
        }),
    }
}

fn run_rows(args: &AllArgs, output: Output) -> Result<Outcome, Failure> {
    let mut report = Figures::new(output);
    for row in all::rows(args.windows.pace(), args.sessions) {
        let judge = |figure| row.judge(figure);
        match &row.job {
            Job::Pair(measurement) => report.measure(measurement, judge)?,
            Job::Veth(measurement) => measure_veth(&mut report, measurement, judge)?,
            Job::Sessions(sessions) => sessions.add_to(&mut report, judge)?,
            Job::Memory(transport) => {
                sessions::add_memory(&mut report, *transport, args.sessions, judge)?;
            }
            Job::Instructions(workload) => workload.add_to(&mut report, judge)?,
        }
    }
    report.show()
}
