//! G-Opt's Figures 10 and 11 for the servers: the rate by number of cores, and the latency by load for each size of a batch.
//!
//! Each core has a thread with a server and its client, which take turns; all share the table. For the latency, the calls in flight set
//! the load, and the server's batches have a size at most. A call's latency includes the client's turns on the same core.

use std::sync::Arc;
use std::thread;

use petrel_batch_bench::served::{Service, Workload};
use petrel_bench::measure::statistics::median;
use petrel_command::args::BenchTransport;
use petrel_command::cores::{self, CpuPlacement};
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::units::exact_duration;
use serde::Serialize;

use super::side::{Side, Window};
use super::{Form, PAUSE, WARM_UP_ROUNDS};
use crate::args::{BatchArgs, LookupTable};
use crate::report::chart::{self, Axis, Chart};
use crate::report::rows::{Column, Report, Row, digits};

/// Batches are of the size that the endpoint hands over.
pub(super) const WHOLE: usize = usize::MAX;

/// Calls in flight, for the loads of Figure 11.
const LOADS: [u16; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The cores of G-Opt's server (§4.1).
const PAPER_CORES: usize = 8;

/// A point of a figure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AxisRow {
    experiment: &'static str,
    table: &'static str,
    transport: &'static str,
    line: String,
    cores: usize,
    in_flight: u16,
    /// By cores: calls that the servers' cores answer. By load: calls of client and server on one core.
    mops: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
    checked: u64,
    mismatched: u64,
}

const BY_CORES: &str = "batch-cores";
const BY_LOAD: &str = "batch-load";

/// Measures the points of a table that the arguments ask for.
pub(super) fn measure<S: Service>(
    args: &BatchArgs,
    table: LookupTable,
    workload: &Arc<Workload<S>>,
    output: Output,
) -> Result<Vec<AxisRow>, Failure> {
    let mut rows = Vec::new();
    let mut add = |row: AxisRow| {
        output.record(&row)?;
        rows.push(row);
        Ok::<_, Failure>(())
    };
    for &transport in &args.transport {
        for &cores in &args.cores {
            for form in [Form::Echo, Form::Plain, Form::Batched] {
                let run = Run { form, transport, in_flight: args.in_flight, group: WHOLE };
                let windows = run.on_cores(args, workload, cores.into())?;
                let rate =
                    windows.iter().map(|core| 1e3 / median_of(core, |it| it.server_ns)).sum();
                add(run.row(BY_CORES, table, form.name().to_owned(), rate, &windows))?;
            }
        }
        for &group in &args.groups {
            for in_flight in LOADS {
                let run = Run { form: Form::Batched, transport, in_flight, group: group.into() };
                let windows = run.on_cores(args, workload, 1)?;
                let rate = 1e3 / median_of(&windows[0], |it| it.server_ns + it.client_ns);
                add(run.row(BY_LOAD, table, format!("batches of {group}"), rate, &windows))?;
            }
        }
    }
    Ok(rows)
}

/// The load of a point.
#[derive(Clone, Copy)]
struct Run {
    form: Form,
    transport: BenchTransport,
    in_flight: u16,
    group: usize,
}

impl Run {
    /// Measures on some cores at the same time; returns the windows of each.
    fn on_cores<S: Service>(
        self,
        args: &BatchArgs,
        workload: &Arc<Workload<S>>,
        count: usize,
    ) -> Result<Vec<Vec<Window>>, Failure> {
        let cpus = cores::all();
        if count > cpus.len() {
            let text = format!("{count} cores are more than the {} of this process", cpus.len());
            return Err(Failure::because(text));
        }
        let on_core = |cpu| {
            let _placement = CpuPlacement { cpu: Some(cpu), is_realtime: false }.apply()?;
            let mut side =
                Side::start(self.form, self.transport, workload, self.in_flight, self.group)?;
            let mut windows = Vec::new();
            for round in 0..args.rounds + WARM_UP_ROUNDS {
                thread::sleep(PAUSE);
                let window = side.window(args.window)?;
                if round >= WARM_UP_ROUNDS {
                    windows.push(window);
                }
            }
            Ok::<_, Failure>(windows)
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                cpus[..count].iter().map(|cpu| scope.spawn(move || on_core(*cpu))).collect();
            let ended = threads.into_iter().map(|it| it.join().expect("a core's thread panicked"));
            ended.collect()
        })
    }

    fn row(
        self,
        experiment: &'static str,
        table: LookupTable,
        line: String,
        mops: f64,
        cores: &[Vec<Window>],
    ) -> AxisRow {
        let sum = |of: fn(&Window) -> u64| cores.iter().flatten().map(of).sum();
        AxisRow {
            experiment,
            table: table.name(),
            transport: self.transport.name(),
            line,
            cores: cores.len(),
            in_flight: self.in_flight,
            mops,
            latency_p50_us: median_of(&cores[0], |it| it.latency_us[0]),
            latency_p99_us: median_of(&cores[0], |it| it.latency_us[1]),
            checked: sum(|window| window.checked),
            mismatched: sum(|window| window.wrong),
        }
    }
}

fn median_of(windows: &[Window], of: impl Fn(&Window) -> f64) -> f64 {
    median(windows.iter().map(of)).expect("there is a round at least")
}

impl AxisRow {
    pub(super) fn is_valid(&self) -> bool {
        self.checked > 0 && self.mismatched == 0
    }
}

/// Prints the points and draws the plot.
pub(super) fn show(rows: &[AxisRow], args: &BatchArgs, output: Output) -> Result<(), Failure> {
    let list = |flag: &str, values: Vec<String>| match values.is_empty() {
        true => String::new(),
        false => format!(" --{flag} {}", values.join(",")),
    };
    let command = format!(
        "petrel-experiment batch{}{}{}{} --smaller {} --in-flight {} --rounds {} --window {}",
        list("table", args.table.iter().map(|it| it.name().to_owned()).collect()),
        list("transport", args.transport.iter().map(|it| it.name().to_owned()).collect()),
        list("cores", args.cores.iter().map(u16::to_string).collect()),
        list("groups", args.groups.iter().map(u16::to_string).collect()),
        args.smaller,
        args.in_flight,
        args.rounds,
        exact_duration(args.window)
    );
    Report { rows, command: &command }.print(output)?;
    args.plot.as_ref().map_or(Ok(()), |path| chart::draw(path, &AxisRow::chart(rows)))
}

impl Row for AxisRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("table", |row| row.table.to_owned()),
        ("over", |row| row.transport.to_owned()),
        ("form", |row| row.line.clone()),
        ("cores", |row| row.cores.to_string()),
        ("in flight", |row| row.in_flight.to_string()),
        ("million/s", |row| digits(row.mops)),
        ("p50 us", |row| digits(row.latency_p50_us)),
        ("p99 us", |row| digits(row.latency_p99_us)),
        ("wrong", |row| row.mismatched.to_string()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let most = rows.iter().filter(|row| row.experiment == BY_CORES).map(|row| row.cores).max();
        let missing = most.filter(|most| *most < PAPER_CORES).map(|most| {
            format!(
                "The paper's server has {PAPER_CORES} cores: {} to {PAPER_CORES} are not measured.",
                most + 1
            )
        });
        missing.into_iter().collect()
    }

    fn chart(rows: &[Self]) -> Chart {
        let by_cores = rows.first().is_some_and(|row| row.experiment == BY_CORES);
        let rate = "million calls a second";
        let mut chart = match by_cores {
            true => {
                Chart::new("Look-up servers by cores", Axis::linear("cores"), Axis::linear(rate))
            }
            false => Chart::new(
                "Latency of look-up servers",
                Axis::linear(rate),
                Axis::linear("p50, us"),
            ),
        };
        for row in rows.iter().filter(|row| (row.experiment == BY_CORES) == by_cores) {
            let point = match by_cores {
                true => (row.cores as f64, row.mops),
                false => (row.mops, row.latency_p50_us),
            };
            chart.add(&format!("{}, {}, {}", row.table, row.transport, row.line), point);
        }
        chart
    }
}
