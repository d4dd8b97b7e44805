//! The figures of a table over a transport.

use petrel_command::failure::Failure;
use petrel_command::output::{Column, Output};
use petrel_command::units::exact_duration;
use serde::Serialize;

use super::side::Window;
use super::{FORMS, Form};
use petrel_command::args::BenchTransport;

use crate::args::{BatchArgs, LookupTable};
use crate::report::plot::{Bar, draw_bars};
use petrel_bench::measure::statistics::{Spread, format_ratio, median, spread};

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

    /// Returns the rate of the batched form over that of another.
    fn batched_over(&self, form: &FormFigures) -> Option<f64> {
        match form.form {
            "plain" => Some(self.batched_over_plain),
            "prefetched" => Some(self.batched_over_prefetched),
            "echo" => Some(self.batched_over_echo),
            _ => None,
        }
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
        "petrel-experiment batch --table {} --transport {} --smaller {} --in-flight {} --rounds {} --window {}",
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
    let columns: [Column<(&Row, &FormFigures)>; 9] = [
        ("table", |(row, _)| row.table.to_owned()),
        ("over", |(row, _)| row.transport.to_owned()),
        ("form", |(_, form)| form.form.to_owned()),
        ("M/s per server core", |(_, form)| format!("{:.2}", form.rate_per_server_core)),
        ("server ns", |(_, form)| format!("{:.0}", form.server_ns)),
        ("client ns", |(_, form)| format!("{:.0}", form.client_ns)),
        ("batched over it", |(row, form)| format_ratio(row.batched_over(form))),
        ("required", |(row, form)| match form.form {
            "plain" => row.required.to_string(),
            _ => String::new(),
        }),
        ("reached", |(row, form)| match form.form {
            "plain" => if row.reached { "yes" } else { "no" }.to_owned(),
            _ => String::new(),
        }),
    ];
    let forms = rows.iter().flat_map(|row| row.forms.iter().map(move |form| (row, form)));
    let forms: Vec<_> = forms.collect();
    output.line(output.rows(&columns, 3, &forms))?;
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
