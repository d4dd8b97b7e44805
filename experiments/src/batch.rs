//! Lookup servers with plain and with batched handlers: G-Opt's software routers (§4), as RPC servers.
//!
//! | form | handler |
//! | --- | --- |
//! | `echo` | answers with the first bytes of the request |
//! | `echo-batched` | the same, for the requests of a burst together |
//! | `plain` | looks up one request |
//! | `prefetched` | the same; the endpoint prefetches the first line of each lookup of a burst |
//! | `batched` | looks up the requests of a burst together, by the function that `#[batched]` wrote |
//!
//! All forms share the table and the requests. Client and server take turns on a thread, bound to a
//! CPU. Each turn is timed, so the time of the server is known without a second CPU that waits for the first. The forms
//! take turns as well, so other load on the machine affects all of them.

mod axes;
mod calls;
mod report;
mod side;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use petrel_batch_bench::served::{self, Service, Size, Workload};
use petrel_command::Outcome;
use petrel_command::cores::{self, CpuPlacement};
use petrel_command::failure::Failure;
use petrel_command::output::Output;

use self::axes::AxisRow;
use self::report::Row;
use self::side::{Side, Window};
use petrel_command::args::BenchTransport;

use crate::args::{BatchArgs, LookupTable};

/// Pause between windows: without CPU time, the control planes' threads take their peers for dead.
const PAUSE: Duration = Duration::from_millis(10);

/// Rounds before the first one that counts.
const WARM_UP_ROUNDS: u32 = 1;

/// How a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Echo,
    BatchedEcho,
    Plain,
    Prefetched,
    Batched,
}

const FORMS: [Form; 5] =
    [Form::Echo, Form::BatchedEcho, Form::Plain, Form::Prefetched, Form::Batched];

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::BatchedEcho => "echo-batched",
            Self::Plain => "plain",
            Self::Prefetched => "prefetched",
            Self::Batched => "batched",
        }
    }

    fn is_echo(self) -> bool {
        matches!(self, Self::Echo | Self::BatchedEcho)
    }
}

impl LookupTable {
    fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Switch => "switch",
            Self::Ndn => "ndn",
        }
    }

    /// The least ratio of batched over plain.
    fn required(self) -> f64 {
        match self {
            Self::Ipv4 | Self::Ndn => 1.4,
            Self::Ipv6 => 2.5,
            Self::Switch => 1.6,
        }
    }
}

/// Runs the benchmark and prints its figures.
pub(crate) fn run(args: &BatchArgs, output: Output) -> Result<Outcome, Failure> {
    let size = Size::divided_by(usize::from(args.smaller));
    let mut all = Measured::default();
    for table in &args.table {
        match table {
            LookupTable::Ipv4 => all.measure(args, *table, served::ipv4(size), output),
            LookupTable::Ipv6 => all.measure(args, *table, served::ipv6(size), output),
            LookupTable::Switch => all.measure(args, *table, served::switch(size), output),
            LookupTable::Ndn => all.measure(args, *table, served::ndn(size), output),
        }?;
    }
    let is_valid = match has_axes(args) {
        true => {
            axes::show(&all.points, args, output)?;
            all.points.iter().all(AxisRow::is_valid)
        }
        false => {
            report::show(&all.rows, args, output)?;
            all.rows.iter().all(Row::is_valid)
        }
    };
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

/// Returns true if the points of an axis are asked for, and not the ratios of the forms.
fn has_axes(args: &BatchArgs) -> bool {
    !args.cores.is_empty() || !args.groups.is_empty()
}

/// The figures of all tables.
#[derive(Default)]
struct Measured {
    rows: Vec<Row>,
    points: Vec<AxisRow>,
}

impl Measured {
    fn measure<S: Service>(
        &mut self,
        args: &BatchArgs,
        table: LookupTable,
        workload: Workload<S>,
        output: Output,
    ) -> Result<(), Failure> {
        let workload = Arc::new(workload);
        match has_axes(args) {
            true => self.points.extend(axes::measure(args, table, &workload, output)?),
            false => self.rows.extend(measure(args, table, &workload, output)?),
        }
        Ok(())
    }
}

fn measure<S: Service>(
    args: &BatchArgs,
    table: LookupTable,
    workload: &Arc<Workload<S>>,
    output: Output,
) -> Result<Vec<Row>, Failure> {
    let cpu = cores::pair().map(|[cpu, _]| cpu);
    let mut rows = Vec::new();
    for transport in &args.transport {
        let windows = windows(args, *transport, workload, cpu, output)?;
        let row = Row::new((args, table, *transport), &workload.title, cpu, &windows);
        output.record(&row)?;
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the windows of each form, round by round.
fn windows<S: Service>(
    args: &BatchArgs,
    transport: BenchTransport,
    workload: &Arc<Workload<S>>,
    cpu: Option<usize>,
    output: Output,
) -> Result<[Vec<Window>; FORMS.len()], Failure> {
    let mut sides = Vec::new();
    for form in FORMS {
        sides.push(Side::start(form, transport, workload, args.in_flight, axes::WHOLE)?);
    }
    let _placement = CpuPlacement { cpu, is_realtime: false }.apply()?;
    let mut progress = output.progress(u64::from(args.rounds), transport.name());
    let mut all = FORMS.map(|_| Vec::new());
    for round in 0..args.rounds + WARM_UP_ROUNDS {
        let mut turn: Vec<_> = sides.iter_mut().zip(&mut all).collect();
        // No form always runs before another.
        if round % 2 == 1 {
            turn.reverse();
        }
        for (side, windows) in turn {
            thread::sleep(PAUSE);
            let window = side.window(args.window)?;
            if round >= WARM_UP_ROUNDS {
                windows.push(window);
            }
        }
        progress.set(u64::from(round));
    }
    Ok(all)
}
