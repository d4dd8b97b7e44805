//! The figures of the windows, as a table and as JSON.

use petrel_command::failure::Failure;
use petrel_command::output::latency::{LatencySummary, format_percentile};
use petrel_command::output::{Column, Output};
use petrel_command::text::again;
use petrel_command::units::format_rate;
use serde::Serialize;

use super::Series;
use crate::measure::statistics::{Spread, format_ratio, median, spread};

/// At most one operation in this number may find no item, else the run is invalid: in cache mode a full bucket of the index loses its
/// oldest item.
const CHECKED_PER_MISS: u64 = 10_000;

/// The figures of a kind of window.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    bench: &'static str,
    over: &'static str,
    what: &'static str,
    /// Operations per second: the median of the windows.
    rate_per_s: f64,
    rate_spread: Option<Spread>,
    /// Operations per second of the server's run time.
    core_rate_per_s: Option<f64>,
    core_rate_spread: Option<Spread>,
    /// The median of the rates per core, divided by the rates of the echo's windows.
    of_echo: Option<f64>,
    of_echo_spread: Option<Spread>,
    latency: Option<LatencySummary>,
    checked: u64,
    missed: u64,
    wrong: u64,
}

impl Row {
    pub(super) fn new(
        over: &'static str,
        what: &'static str,
        series: &Series,
        echo: Option<&Series>,
    ) -> Self {
        let ratios = echo.map(|echo| {
            let pairs = series.core_rates.iter().zip(&echo.core_rates);
            pairs.map(|(rate, echo)| rate / echo).collect::<Vec<_>>()
        });
        Self {
            bench: "cache",
            over,
            what,
            rate_per_s: median(series.rates.iter().copied()).unwrap_or_default(),
            rate_spread: spread(series.rates.iter().copied()),
            core_rate_per_s: median(series.core_rates.iter().copied()),
            core_rate_spread: spread(series.core_rates.iter().copied()),
            of_echo: ratios.clone().and_then(median),
            of_echo_spread: ratios.and_then(spread),
            latency: series.sum.latencies.summary(),
            checked: series.sum.count,
            missed: series.sum.missed,
            wrong: series.sum.wrong,
        }
    }

    /// Returns true if all answers were right, and at most one in [`CHECKED_PER_MISS`] operations found no item.
    pub(super) fn is_valid(&self) -> bool {
        self.wrong == 0 && self.missed <= self.checked / CHECKED_PER_MISS && self.checked > 0
    }
}

const COLUMNS: [Column<Row>; 11] = [
    ("over", |row| row.over.to_owned()),
    ("keys", |row| row.what.to_owned()),
    ("per second", |row| format_rate(row.rate_per_s, "")),
    ("per core", |row| row.core_rate_per_s.map_or(String::new(), |rate| format_rate(rate, ""))),
    ("of echo", |row| format_ratio(row.of_echo)),
    ("p50", |row| format_percentile(&row.latency, |latency| latency.p50_ns)),
    ("p99", |row| format_percentile(&row.latency, |latency| latency.p99_ns)),
    ("p99.9", |row| format_percentile(&row.latency, |latency| latency.p999_ns)),
    ("checked", |row| row.checked.to_string()),
    ("missed", |row| row.missed.to_string()),
    ("wrong", |row| row.wrong.to_string()),
];

/// Prints the records and the table.
pub(super) fn show(rows: &[Row], output: Output) -> Result<(), Failure> {
    rows.iter().try_for_each(|row| output.record(row))?;
    output.line(output.rows(&COLUMNS, 2, rows))?;
    output.line("Per core: by the run time of the server's threads. Echo: of an item's size.")?;
    Ok(output.line(format!("Again:\n  {}", again()))?)
}
