//! The figures of the forms, as a table and as JSON.

use petrel_command::failure::Failure;
use petrel_command::output::{Column, Output};
use petrel_command::units::format_rate;
use serde::Serialize;

use super::side::Window;
use super::{Form, Series};
use petrel_command::args::BenchTransport;

use crate::args::LookupsArgs;
use petrel_bench::measure::statistics::{Spread, format_ratio, median, spread};

/// Chance of a draw may bring so many times the expected misses, and a few more.
const MISSES_FACTOR: f64 = 2.0;
const MISSES_FREE: f64 = 20.0;

/// The figures of a form, with keys of a distribution, over a transport.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    bench: &'static str,
    over: &'static str,
    keys: &'static str,
    form: &'static str,
    accesses: u8,
    partitions: u16,
    items: u32,
    get: u8,
    in_flight: u16,
    rounds: u32,
    /// Calls per second of servers with a CPU each: the median of the windows.
    rate_per_s: f64,
    rate_spread: Option<Spread>,
    /// The servers' time for a call, and that of client and network.
    server_ns: f64,
    client_ns: f64,
    /// The rates, divided by the rates of other forms in the same rounds: the medians.
    of_plain: Option<f64>,
    of_plain_spread: Option<Spread>,
    of_echo: Option<f64>,
    /// By the same form without further accesses.
    of_no_access: Option<f64>,
    /// The rate by that without further accesses that a server would have whose further accesses take the time of the bare
    /// ones.
    of_no_access_bound: Option<f64>,
    /// By the same form with even popularity.
    of_uniform: Option<f64>,
    /// The operations of the partition with the most, over those of the partition with the fewest.
    imbalance: Option<f64>,
    /// Items that the index had no room for.
    lost: u64,
    checked: u64,
    missed: u64,
    wrong: u64,
}

impl Row {
    pub(super) fn new(
        args: &LookupsArgs,
        transport: BenchTransport,
        series: &Series,
        all: &[Series],
        stored: u64,
    ) -> Self {
        let Series { form, distribution, windows, .. } = series;
        let over = |other: Form, keys: &str| {
            let other = all.iter().find(|it| it.form == other && it.distribution == keys)?;
            let is_other = !std::ptr::eq(other, series);
            is_other.then(|| ratios(windows, &other.windows))
        };
        let items = |change: fn(&mut Form)| {
            let mut other = *form;
            change(&mut other);
            over(other, distribution)
        };
        let plain = items(|form| {
            if let Form::Items { lookups, .. } = form {
                *lookups = petrel_cache::Lookups::Plain;
            }
        });
        let no_access = items(|form| {
            if let Form::Items { accesses, .. } = form {
                *accesses = 0;
            }
        });
        let time_ns = |other: Form, keys: &str| {
            let other = all.iter().find(|it| it.form == other && it.distribution == keys)?;
            median(other.windows.iter().map(Window::server_ns))
        };
        let bound = match *form {
            Form::Items { lookups, accesses } if accesses > 0 => {
                let none_ns = time_ns(Form::Items { lookups, accesses: 0 }, distribution);
                let bare_ns = time_ns(Form::Bare { accesses }, "");
                none_ns.zip(bare_ns).map(|(none_ns, bare_ns)| {
                    let further_ns = bare_ns * f64::from(args.mix.get) / 100.0;
                    none_ns / (none_ns + further_ns)
                })
            }
            _ => None,
        };
        let imbalances = windows.iter().map(Window::imbalance);
        let has_balance = args.mix.partitions > 1 && matches!(form, Form::Items { .. });
        let sum = |of: fn(&Window) -> u64| windows.iter().map(of).sum();
        Self {
            bench: "lookups",
            over: transport.name(),
            keys: *distribution,
            form: form.name(),
            accesses: form.accesses(),
            partitions: args.mix.partitions,
            items: args.mix.items,
            get: args.mix.get,
            in_flight: args.mix.in_flight,
            rounds: args.mix.rounds,
            rate_per_s: median(windows.iter().map(Window::rate)).unwrap_or_default(),
            rate_spread: spread(windows.iter().map(Window::rate)),
            server_ns: median(windows.iter().map(Window::server_ns)).unwrap_or_default(),
            client_ns: median(windows.iter().map(|it| it.client_ns)).unwrap_or_default(),
            of_plain: plain.clone().and_then(median),
            of_plain_spread: plain.and_then(spread),
            of_echo: over(Form::Echo, "").and_then(median),
            of_no_access: no_access.and_then(median),
            of_no_access_bound: bound,
            of_uniform: over(*form, "uniform").and_then(median),
            imbalance: if has_balance { median(imbalances) } else { None },
            lost: u64::from(args.mix.items).saturating_sub(stored),
            checked: sum(|it| it.calls),
            missed: sum(|it| it.missed),
            wrong: sum(|it| it.wrong),
        }
    }

    /// Returns true if all answers were right, and no more items were missing than the index had no room for.
    pub(super) fn is_valid(&self) -> bool {
        let expected = self.checked as f64 * self.lost as f64 / f64::from(self.items);
        let misses_max = expected * MISSES_FACTOR + MISSES_FREE;
        self.wrong == 0 && self.checked > 0 && self.missed as f64 <= misses_max
    }
}

const COLUMNS: [Column<Row>; 15] = [
    ("over", |row| row.over.to_owned()),
    ("keys", |row| row.keys.to_owned()),
    ("look-ups", |row| row.form.to_owned()),
    ("accesses", |row| row.accesses.to_string()),
    ("per second", |row| format_rate(row.rate_per_s, "")),
    ("server ns", |row| format!("{:.0}", row.server_ns)),
    ("client ns", |row| format!("{:.0}", row.client_ns)),
    ("of plain", |row| format_ratio(row.of_plain)),
    ("of no access", |row| format_ratio(row.of_no_access)),
    ("bound", |row| format_ratio(row.of_no_access_bound)),
    ("of uniform", |row| format_ratio(row.of_uniform)),
    ("of echo", |row| format_ratio(row.of_echo)),
    ("imbalance", |row| format_ratio(row.imbalance)),
    ("missed", |row| row.missed.to_string()),
    ("wrong", |row| row.wrong.to_string()),
];

/// Returns the ratios of the rates in each round.
fn ratios(windows: &[Window], others: &[Window]) -> Vec<f64> {
    windows.iter().zip(others).map(|(it, other)| it.rate() / other.rate()).collect()
}

/// Prints the records and the table.
pub(super) fn show(rows: &[Row], args: &LookupsArgs, output: Output) -> Result<(), Failure> {
    rows.iter().try_for_each(|row| output.record(row))?;
    output.line(output.rows(&COLUMNS, 3, rows))?;
    output.line(
        "Clients and servers took turns on one thread; per second: servers with a CPU each.",
    )?;
    if rows.iter().any(|row| row.of_no_access_bound.is_some()) {
        output.line(
            "bare: the further accesses alone, by hand, in groups of 32; bound: of no access, if these were all that is added.",
        )?;
    }
    let (items, lost) = (args.mix.items, rows.first().map_or(0, |row| row.lost));
    output.line(format!("{items} items, of which the index had no room for {lost}."))?;
    Ok(output.line(format!("Again:\n  {}", command(args)))?)
}

fn command(args: &LookupsArgs) -> String {
    let how: Vec<_> = args.how.iter().map(|it| super::name_of(*it)).collect();
    let accesses: Vec<_> = args.accesses.iter().map(u8::to_string).collect();
    let (how, accesses) = (how.join(","), accesses.join(","));
    format!("petrel-experiment lookups --how {how} --accesses {accesses}{}", args.mix.flags())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(servers_ns: &[f64], operations: &[u64]) -> Window {
        Window {
            calls: operations.iter().sum(),
            servers_ns: servers_ns.to_vec(),
            client_ns: 0.0,
            operations: operations.to_vec(),
            wrong: 0,
            missed: 0,
        }
    }

    #[test]
    fn rate__is_that_of_the_busiest_server() {
        let even = window(&[500.0, 500.0], &[10, 10]);
        assert_eq!((even.rate(), even.imbalance()), (4e7, 1.0));
        let skewed = window(&[1_000.0, 200.0], &[15, 5]);
        assert_eq!((skewed.rate(), skewed.imbalance(), skewed.server_ns()), (2e7, 3.0, 60.0));
        assert_eq!(ratios(&[skewed], &[even]), [0.5]);
    }
}
