//! Date, machine and command: the context that a result needs to be useful later.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

const SECONDS_PER_DAY: u64 = 86_400;

/// The machine and the command.
#[derive(Debug, Serialize)]
pub(crate) struct Host {
    /// The date in UTC.
    pub(crate) date: String,
    pub(crate) processor: String,
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
    /// The system's load, before anything was built.
    pub(crate) load: String,
    pub(crate) command: String,
}

impl Host {
    pub(crate) fn of_this_machine() -> Self {
        Self {
            date: date(SystemTime::now()),
            processor: processor().unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load: load(),
            command: command(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { date, processor, cpus, kernel, load, command } = self;
        writeln!(f, "{date}, {cpus} CPUs ({processor}), Linux {kernel}, {load}")?;
        write!(f, "{command}")
    }
}

/// Returns the machine's load in the last minutes.
pub(crate) fn load() -> String {
    let file = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let numbers: Vec<_> = file.split_whitespace().take(3).collect();
    format!("load {}", numbers.join(" "))
}

fn processor() -> Option<String> {
    let file = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = file.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn command() -> String {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    ["cargo run --release --", &arguments.join(" ")].join(" ").trim_end_matches(" --").trim().into()
}

/// Returns year, month and day in UTC.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / SECONDS_PER_DAY);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the date of a day, counted from 1970.
fn civil(mut day: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    while day >= days_of_year(year) {
        day -= days_of_year(year);
        year += 1;
    }
    let february = days_of_year(year) - 337;
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    (year, month as u64 + 1, day + 1)
}

fn days_of_year(year: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    365 + u64::from(is_leap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn civil__knows_leap_years() {
        for (day, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_454, (2026, 1, 1)),
            (20_818, (2026, 12, 31)),
        ] {
            assert_eq!(civil(day), expected);
        }
    }
}
