//! `petrel bench`: the measurements of each subcommand, and their figures as a table, as JSON and as a plot.

use std::path::Path;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::interrupt;
use petrel_command::output::Output;
use petrel_command::units::format_bytes;
use serde::Serialize;

use crate::all::Job;
use crate::args::{
    AllArgs, BenchArgs, BenchCommand, BenchTransport, Beside, CallsArgs, CongestionArgs, EndsArgs,
    FactorsArgs, InstructionsArgs, PlanArgs, RateArgs, SessionsArgs, WindowArgs,
};
use crate::congestion::Congestion;
use crate::factors::Factors;
use crate::sessions::{BOTH_HINTS, Sessions};
use crate::{
    Cores, CountedWorkload, Figure, Measurement, Quantity, SessionPlan, all, attacks, batch,
    defaults, footer, instructions, kv, memory, outcome, overload, pause, plot, progress_bar,
    regions, sweep, table, veth,
};

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
            run_and_show(&list, args.windows.plot.as_deref(), output)
        }
        BenchCommand::Rate(args) => run_rate(args, output),
        BenchCommand::Bandwidth(args) => {
            let calls = (args.size, args.in_flight, 1);
            let ends = (&args.plan, &args.ends);
            let list = measurements(Quantity::Bandwidth, calls, ends, &args.windows);
            run_and_show(&list, args.windows.plot.as_deref(), output)
        }
        BenchCommand::Sweep(args) => sweep::run(args, output),
        BenchCommand::Pause(args) => pause::run(args, output),
        BenchCommand::Sessions(args) => run_sessions(args, output),
        BenchCommand::Factors(args) => run_factors(args, output),
        BenchCommand::Congestion(args) => run_congestion(args, output),
        BenchCommand::Regions(args) => regions::run(args, output),
        BenchCommand::Batch(args) => batch::run(args, output),
        BenchCommand::Overload(args) => overload::run(args, output),
        BenchCommand::Attacks(args) => attacks::run(args, output),
        BenchCommand::Kv(args) => kv::run(args, output),
        BenchCommand::Defaults(args) => defaults::run(args, output),
        BenchCommand::DefaultsServer(args) => {
            defaults::run_server(args, output)?;
            Ok(Outcome::Success)
        }
        BenchCommand::DefaultsClients(args) => {
            defaults::run_clients(args, output)?;
            Ok(Outcome::Success)
        }
        BenchCommand::OverloadServer(args) => {
            overload::run_server(args, output)?;
            Ok(Outcome::Success)
        }
        BenchCommand::Instructions(args) => run_instructions(args, output),
        BenchCommand::All(args) => run_rows(args, output),
        BenchCommand::IdleSessions(args) => {
            memory::run_client(args, output)?;
            Ok(Outcome::Success)
        }
        BenchCommand::CountedWorkload(args) => {
            instructions::run_counted(args)?;
            Ok(Outcome::Success)
        }
    }
}

/// Returns a measurement for each transport.
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

/// Returns the measurement of small calls between ends in this process.
fn small_calls(
    transport: BenchTransport,
    cores: u8,
    calls: &CallsArgs,
    windows: &WindowArgs,
    plan: SessionPlan,
) -> Measurement {
    Measurement {
        quantity: Quantity::Rate,
        transport,
        cores: Cores::requested(cores),
        size: calls.size,
        in_flight: calls.in_flight,
        batch: calls.batch(),
        pace: windows.pace(),
        plan,
        beside: Beside::Bare,
        connect: None,
    }
}

fn run_rate(args: &RateArgs, output: Output) -> Result<Outcome, Failure> {
    let calls = (args.calls.size, args.calls.in_flight, args.calls.batch());
    let ends = (&args.plan, &args.ends);
    let list = measurements(Quantity::Rate, calls, ends, &args.windows);
    let plot = args.windows.plot.as_deref();
    if !args.veth {
        return run_and_show(&list, plot, output);
    }
    if !args.ends.transport.contains(&BenchTransport::Udp) {
        return Err(Failure::because("--veth measures UDP; name it among --transport"));
    }
    let udp = list.iter().filter(|measurement| measurement.transport == BenchTransport::Udp);
    let mut report = Report::new(output);
    for measurement in udp {
        report.veth(measurement, Ok)?;
    }
    report.show("Petrel between two network namespaces", plot)
}

fn run_and_show(
    list: &[Measurement],
    plot: Option<&Path>,
    output: Output,
) -> Result<Outcome, Failure> {
    let mut report = Report::new(output);
    for measurement in list {
        report.pair(measurement, Ok)?;
    }
    let beside = match list.first().map(|measurement| measurement.beside) {
        Some(Beside::Raised) => "raised settings",
        Some(Beside::Tcp) => "a TCP stream",
        Some(Beside::Bare) | None => "the bare medium",
    };
    report.show(&format!("Petrel beside {beside}"), plot)
}

fn run_sessions(args: &SessionsArgs, output: Output) -> Result<Outcome, Failure> {
    let mut report = Report::new(output);
    for transport in &args.transport {
        let plan = SessionPlan::Default;
        let calls = small_calls(*transport, args.cores, &args.calls, &args.windows, plan);
        let hints = BOTH_HINTS;
        let sessions = Sessions { calls, count: args.sessions, hints, has_steps: true };
        report.sessions(&sessions, Ok)?;
        let command = memory::command(*transport, args.sessions);
        report.memory(*transport, args.sessions, &command, Ok)?;
    }
    report.show("Petrel with many sessions beside one", args.windows.plot.as_deref())
}

fn run_factors(args: &FactorsArgs, output: Output) -> Result<Outcome, Failure> {
    let mut report = Report::new(output);
    for transport in &args.transport {
        let plan = SessionPlan::Raised;
        let small = small_calls(*transport, args.cores, &args.calls, &args.windows, plan);
        report.factors(&Factors { small })?;
    }
    report.show("Petrel with one thing switched off", args.windows.plot.as_deref())
}

fn run_congestion(args: &CongestionArgs, output: Output) -> Result<Outcome, Failure> {
    let mut report = Report::new(output);
    report.congestion(&Congestion {
        cores: Cores::requested(args.cores),
        busy: args.busy,
        pace: args.windows.pace(),
    })?;
    report.show("Petrel with congestion control beside without", args.windows.plot.as_deref())
}

/// Counts instructions, and prints them.
pub fn run_instructions(args: &InstructionsArgs, output: Output) -> Result<Outcome, Failure> {
    let mut report = Report::new(output);
    for workload in args.transport.iter().copied().flat_map(instructions::rows) {
        report.instructions(workload, Ok)?;
    }
    report.show("Instructions of Petrel", None)
}

fn run_rows(args: &AllArgs, output: Output) -> Result<Outcome, Failure> {
    let mut report = Report::new(output);
    for row in all::rows(args.windows.pace(), args.sessions) {
        let judge = |figure| Ok(row.judge(figure));
        match &row.job {
            Job::Pair(measurement) => report.pair(measurement, judge)?,
            Job::Veth(measurement) => report.veth(measurement, judge)?,
            Job::Sessions(sessions) => report.sessions(sessions, judge)?,
            Job::Memory(transport) => {
                let command = memory::command(*transport, args.sessions);
                report.memory(*transport, args.sessions, &command, judge)?;
            }
            Job::Instructions(workload) => report.instructions(workload, judge)?,
        }
    }
    report.show("Petrel and what it must reach", args.windows.plot.as_deref())
}

/// The reason for a skipped measurement, as `--json` prints it.
#[derive(Serialize)]
struct Skipped<'a> {
    bench: &'a str,
    transport: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<&'a str>,
    size_bytes: usize,
    skipped: &'a str,
    command: String,
}

/// The figures so far. Every figure is printed as JSON as soon as available.
pub(crate) struct Report {
    output: Output,
    pub(crate) figures: Vec<Figure>,
    skipped: Vec<String>,
    /// Whether a measurement was left out after Ctrl-C.
    is_cut: bool,
}

type FigureResult = Result<Figure, Failure>;

impl Report {
    pub(crate) fn new(output: Output) -> Self {
        Self { output, figures: Vec::new(), skipped: Vec::new(), is_cut: false }
    }

    /// Returns true after Ctrl-C, if there are figures to show: no further measurement begins. The first measurement has a
    /// pair of windows in any case.
    fn is_interrupted(&mut self) -> bool {
        self.is_cut |= interrupt::is_noted() && !self.figures.is_empty();
        self.is_cut
    }

    fn add(&mut self, figure: Figure) -> Result<(), Failure> {
        self.output.record(&figure)?;
        self.figures.push(figure);
        Ok(())
    }

    pub(crate) fn pair(
        &mut self,
        measurement: &Measurement,
        judge: impl Fn(Figure) -> FigureResult,
    ) -> Result<(), Failure> {
        if self.is_interrupted() {
            return Ok(());
        }
        let figure = measurement.run(progress_bar(self.output, &measurement.title()))?;
        self.add(judge(figure)?)
    }

    fn veth(
        &mut self,
        measurement: &Measurement,
        judge: impl Fn(Figure) -> FigureResult,
    ) -> Result<(), Failure> {
        if self.is_interrupted() {
            return Ok(());
        }
        let bench = measurement.quantity.name();
        match veth::run(measurement, progress_bar(self.output, "between network namespaces"))? {
            veth::Outcome::Measured(figure) => self.add(judge(*figure)?),
            veth::Outcome::Skipped(reason) => {
                let command = veth::command(measurement);
                self.skip(&Skipped {
                    bench,
                    transport: "udp",
                    network: Some("veth"),
                    size_bytes: measurement.size,
                    skipped: &reason,
                    command,
                })
            }
        }
    }

    fn sessions(
        &mut self,
        sessions: &Sessions,
        judge: impl Fn(Figure) -> FigureResult,
    ) -> Result<(), Failure> {
        if self.is_interrupted() {
            return Ok(());
        }
        let title = format!("sessions over {}", sessions.calls.transport.name());
        let watch = progress_bar(self.output, &title);
        sessions.run(watch, |figure| self.add(judge(figure)?))
    }

    fn memory(
        &mut self,
        transport: BenchTransport,
        sessions: usize,
        command: &str,
        judge: impl Fn(Figure) -> FigureResult,
    ) -> Result<(), Failure> {
        if self.is_interrupted() {
            return Ok(());
        }
        let figures = match memory::run(transport, sessions, command) {
            // The signal has ended the measured process too.
            Err(_) if self.is_interrupted() => return Ok(()),
            measured => measured?,
        };
        figures.into_iter().try_for_each(|figure| self.add(judge(figure)?))
    }

    fn instructions(
        &mut self,
        workload: &CountedWorkload,
        judge: impl Fn(Figure) -> FigureResult,
    ) -> Result<(), Failure> {
        if self.is_interrupted() {
            return Ok(());
        }
        let Some(reason) = instructions::obstacle() else {
            return match instructions::run(workload) {
                // The signal has ended the counted process too.
                Err(_) if self.is_interrupted() => Ok(()),
                counted => self.add(judge(counted?)?),
            };
        };
        let setting = workload.setting();
        self.skip(&Skipped {
            bench: setting.bench,
            transport: setting.transport,
            network: None,
            size_bytes: setting.size_bytes,
            skipped: reason,
            command: setting.command,
        })
    }

    fn skip(&mut self, skipped: &Skipped<'_>) -> Result<(), Failure> {
        self.output.record(skipped)?;
        let Skipped { bench, transport, network, size_bytes, skipped: reason, .. } = skipped;
        let (over, size) = (network.unwrap_or(transport), format_bytes(*size_bytes as u64));
        self.skipped.push(format!("skipped: {bench} over {over}, {size}: {reason}"));
        Ok(())
    }

    fn factors(&mut self, factors: &Factors) -> Result<(), Failure> {
        if self.is_interrupted() {
            return Ok(());
        }
        let title = format!("factors over {}", factors.small.transport.name());
        factors.run(progress_bar(self.output, &title), |figure| self.add(figure))
    }

    fn congestion(&mut self, congestion: &Congestion) -> Result<(), Failure> {
        congestion.run(progress_bar(self.output, "congestion controls"), |figure| self.add(figure))
    }

    /// Prints the table, the footer, and the plot.
    pub(crate) fn show(self, title: &str, plot: Option<&Path>) -> Result<Outcome, Failure> {
        let Self { output, figures, skipped, is_cut } = self;
        if !figures.is_empty() {
            output.line(table(&figures, output))?;
        }
        skipped.iter().try_for_each(|line| output.line(line))?;
        if is_cut {
            output.line("Interrupted: the further measurements were left out.")?;
        }
        if !figures.is_empty() {
            output.line(footer(&figures))?;
        }
        if let Some(path) = plot {
            plot::draw(path, title, &figures)?;
            output.line(format!("Plot: {}", path.display()))?;
        }
        Ok(outcome(&figures))
    }
}
