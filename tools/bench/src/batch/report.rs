//! The figures of a table over a transport.

use comfy_table::{Cell, CellAlignment};
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::units::exact_duration;
use serde::Serialize;

use super::side::Window;
use super::{FORMS, Form};
use crate::args::{BatchArgs, BenchTransport, LookupTable};
use crate::plot::{Bar, draw_bars};
use crate::statistics::{Spread, median, spread};

/// A table over a transport, as `--json` prints it.
#[derive(Serialize)]
pub(super) struct Row {
    bench: &'static str,
    table: &'static str,
    transport: &'static str,
    /// The kind and the size of the table.
    title: String,
    /// The CPU of both ends.
    cpu: Option<usize>,
    in_flight: u16,
    rounds: u32,
    forms: Vec<FormFigures>,
    /// Rates per server core, the median of the rounds.
    batched_over_plain: f64,
    batched_over_plain_spread: Option<Spread>,
    batched_over_prefetched: f64,
    batched_over_echo: f64,
    /// The share of the plain server's time that an echo does not need.
    lookup_share: f64,
    required: f64,
    reached: bool,
    checked: u64,
    mismatched: u64,
    command: String,
}

/// The medians of a form.
#[derive(Serialize)]
struct FormFigures {
    form: &'static str,
    /// Calls per second that the server could answer with a CPU of its own, in millions.
    rate_per_server_core: f64,
    server_ns: f64,
    client_ns: f64,
}

impl Row {
    pub(super) fn new(
        (args, table, transport): (&BatchArgs, LookupTable, BenchTransport),
        title: &str,
        cpu: Option<usize>,
        windows: &[Vec<Window>; FORMS.len()],
    ) -> Self {
        // In the order of `FORMS`.
        let [echo, _, plain, prefetched, batched] = windows;
        let ratios = ratios(plain, batched);
        let batched_over_plain = median_of(ratios.iter().copied());
        let required = table.required();
        let all = || windows.iter().flatten();
        Self {
            bench: "batch",
            table: table.name(),
            transport: transport.name(),
            title: title.to_owned(),
            cpu,
            in_flight: args.in_flight,
            rounds: args.rounds,
            forms: FORMS.into_iter().zip(windows).map(FormFigures::of).collect(),
            batched_over_plain,
            batched_over_plain_spread: spread(ratios),
            batched_over_prefetched: median_of(self::ratios(prefetched, batched)),
            batched_over_echo: median_of(self::ratios(echo, batched)),
            lookup_share: 1.0 - median_of(self::ratios(echo, plain)),
            required,
            reached: batched_over_plain >= required,
            checked: all().map(|window| window.checked).sum(),
            mismatched: all().map(|window| window.wrong).sum(),
            command: command(args, table, transport),
        }
    }

    /// Returns true if all answers were right.
    pub(super) fn is_valid(&self) -> bool {
        self.checked > 0 && self.mismatched == 0
    }

    fn bar(&self) -> Bar {
        let quartiles = self.batched_over_plain_spread.map(|spread| (spread.q1, spread.q3));
        let ratio = self.batched_over_plain;
        let label = format!("{} over {}: {ratio:.2}", self.table, self.transport);
        Bar::new(label, ratio, quartiles)
    }
}

impl FormFigures {
    fn of((form, windows): (Form, &Vec<Window>)) -> Self {
        let server_ns = median_of(windows.iter().map(|window| window.server_ns));
        Self {
            form: form.name(),
            rate_per_server_core: 1e3 / server_ns,
            server_ns,
            client_ns: median_of(windows.iter().map(|window| window.client_ns)),
        }
    }
}

/// Returns the ratio of the server's times in each round.
fn ratios(slow: &[Window], fast: &[Window]) -> Vec<f64> {
    slow.iter().zip(fast).map(|(slow, fast)| slow.server_ns / fast.server_ns).collect()
}

fn median_of(values: impl IntoIterator<Item = f64>) -> f64 {
    median(values).expect("there is a round at least")
}

fn command(args: &BatchArgs, table: LookupTable, transport: BenchTransport) -> String {
    format!(
        "petrel bench batch --table {} --transport {} --smaller {} --in-flight {} --rounds {} --window {}",
        table.name(),
        transport.name(),
        args.smaller,
        args.in_flight,
        args.rounds,
        exact_duration(args.window),
    )
}

/// Prints the table and draws the plot.
pub(super) fn show(rows: &[Row], args: &BatchArgs, output: Output) -> Result<(), Failure> {
    let mut table = output.table(&[
        "table",
        "over",
        "form",
        "M/s per server core",
        "server ns",
        "client ns",
        "batched over it",
        "required",
        "reached",
    ]);
    for row in rows {
        for form in &row.forms {
            table.add_row(cells(row, form));
        }
    }
    output.line(table)?;
    for row in rows {
        let share = 100.0 * row.lookup_share;
        output.line(format!(
            "{} over {}: {}; the lookup takes {share:.0} % of the plain server's time; {} answers, {} wrong",
            row.table, row.transport, row.title, row.checked, row.mismatched
        ))?;
    }
    if let Some(cpu) = rows.first().and_then(|row| row.cpu) {
        output.line(format!("Client and server took turns on CPU {cpu}."))?;
    }
    output.line("Again:")?;
    rows.iter().try_for_each(|row| output.line(format!("  {}", row.command)))?;
    let Some(path) = &args.plot else { return Ok(()) };
    let bars: Vec<Bar> = rows.iter().map(Row::bar).collect();
    let axis = "batched over plain, calls per server core; thin line: quartiles";
    draw_bars(path, "Lookup servers with batched handlers", axis, &bars)
}

fn cells(row: &Row, form: &FormFigures) -> Vec<Cell> {
    let over = match form.form {
        "plain" => format!("{:.2}", row.batched_over_plain),
        "prefetched" => format!("{:.2}", row.batched_over_prefetched),
        "echo" => format!("{:.2}", row.batched_over_echo),
        _ => String::new(),
    };
    let (required, reached) = match form.form {
        "plain" => (row.required.to_string(), if row.reached { "yes" } else { "no" }),
        _ => (String::new(), ""),
    };
    let words = [row.table, row.transport, form.form].map(Cell::new);
    let numbers = [
        format!("{:.2}", form.rate_per_server_core),
        format!("{:.0}", form.server_ns),
        format!("{:.0}", form.client_ns),
        over,
        required,
        reached.to_owned(),
    ];
    let right = |text| Cell::new(text).set_alignment(CellAlignment::Right);
    words.into_iter().chain(numbers.into_iter().map(right)).collect()
}
