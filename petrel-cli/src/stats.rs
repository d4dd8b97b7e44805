//! `petrel stats`: the counters of a running process, from outside.

mod report;

use std::thread;
use std::time::{Duration, Instant};

use comfy_table::{Cell, CellAlignment};
use petrel::nexus::{fetch_stats, fetch_stats_inside};
use petrel_command::Outcome;
use petrel_command::args::ServerAddress;
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::text::clean;
use serde_json::value::RawValue;

use self::report::{Group, Report};
use crate::cli::StatsArgs;

/// Asks once or repeatedly, and prints the counters.
pub(crate) fn run(args: &StatsArgs, output: Output) -> Result<Outcome, Failure> {
    let (address, watch) = args.target().map_err(Failure::because)?;
    let mut last = ask(&address, args.timeout, output)?;
    print(&last.report, None, output)?;
    while let Some(every) = watch {
        thread::sleep(every.saturating_sub(last.at.elapsed()));
        let next = ask(&address, args.timeout, output)?;
        output.line("")?;
        print(&next.report, Some(&last.until(&next)), output)?;
        last = next;
    }
    Ok(Outcome::Success)
}

/// Counters with the time of their reading.
struct Reading {
    at: Instant,
    report: Report,
}

/// The previous counters and their age.
struct Before<'a> {
    report: &'a Report,
    ago: Duration,
}

impl Reading {
    fn until(&self, next: &Self) -> Before<'_> {
        Before { report: &self.report, ago: next.at - self.at }
    }
}

fn ask(server: &ServerAddress, timeout: Duration, output: Output) -> Result<Reading, Failure> {
    let json = server.first_that(|address| {
        let fetched = match credentials::get() {
            Some(security) => fetch_stats_inside(address, timeout, security.as_ref()),
            None => fetch_stats(address, timeout),
        };
        fetched.map_err(|error| Failure::new(error.status, error.message.clone()))
    })?;
    read(json, output)
}

/// With `--json` prints the answer unchanged; also parses it.
fn read(json: String, output: Output) -> Result<Reading, Failure> {
    let at = Instant::now();
    let unreadable =
        |error| Failure::because(format!("the process's counters are unreadable: {error}"));
    let report = serde_json::from_str(&json).map_err(unreadable)?;
    output.record(&RawValue::from_string(json).map_err(unreadable)?)?;
    Ok(Reading { at, report })
}

fn print(report: &Report, before: Option<&Before<'_>>, output: Output) -> Result<(), Failure> {
    if output.is_json() {
        return Ok(());
    }
    let mut hidden = 0;
    for (index, group) in report.groups().enumerate() {
        let before = before.map(|before| (before.report.groups().nth(index), before.ago));
        hidden += print_group(&group, before, output)?;
    }
    output.line(format!("{hidden} counters at 0 are not shown; --json has them"))?;
    Ok(())
}

/// Prints the nonzero counters; returns the number of zeros.
fn print_group(
    group: &Group<'_>,
    before: Option<(Option<Group<'_>>, Duration)>,
    output: Output,
) -> Result<usize, Failure> {
    let counters = match group.counters {
        Ok(counters) => counters,
        Err(error) => {
            output.line(format!("{}: {}", group.title, clean(error)))?;
            return Ok(0);
        }
    };
    let header: &[&str] = if before.is_some() {
        &[&group.title, "total", "per second"]
    } else {
        &[&group.title, "total"]
    };
    let mut table = output.table(header);
    for (name, value) in counters.non_zero() {
        let mut row = vec![Cell::new(clean(name)), number(value.to_string())];
        if let Some((former, ago)) = &before {
            let former = former.as_ref().and_then(|group| group.counters.ok()?.get(name));
            row.push(number(per_second(value, former.unwrap_or(value), *ago)));
        }
        table.add_row(row);
    }
    output.line(table)?;
    Ok(counters.zeros())
}

fn number(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Returns the rate of a counter. A value that fell, for instance a number of sessions, has rate 0.
fn per_second(now: u64, before: u64, ago: Duration) -> String {
    let rate = now.saturating_sub(before) as f64 / ago.as_secs_f64().max(1e-9);
    format!("{rate:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_second__of_what_fell_is_zero() {
        assert_eq!(per_second(30, 10, Duration::from_secs(2)), "10");
        assert_eq!(per_second(10, 30, Duration::from_secs(2)), "0");
    }
}
