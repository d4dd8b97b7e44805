//! Figures as tables for human readers.

use comfy_table::{Cell, CellAlignment, Color, Table};
use petrel_command::output::Output;
use petrel_command::units::{format_bytes, format_ns};

use crate::measure::figure::{Baseline, Figure, Parts};

/// Creates the table, with a row per figure. Targets, if any, stand in the last two columns.
pub fn table(figures: &[Figure], output: Output) -> Table {
    let mut header = vec![
        "bench",
        "over",
        "cores",
        "message",
        "in flight",
        "result",
        "beside",
        "ratio",
        "quartiles",
        "CPUs",
        "p99",
        "p99.9",
        "checked",
        "resent",
    ];
    let has_targets = figures.iter().any(|figure| figure.target.is_some());
    if has_targets {
        header.extend(["target", "reached"]);
    }
    let mut table = output.table(&header);
    for figure in figures {
        let mut row = row(figure);
        if has_targets {
            row.extend(target(figure));
        }
        table.add_row(row);
    }
    table
}

fn row(figure: &Figure) -> Vec<Cell> {
    let setting = &figure.setting;
    let bench = bench(figure);
    let words = [bench, setting.network.unwrap_or(setting.transport).to_owned()];
    let latency = |of: fn(&petrel_command::output::latency::LatencySummary) -> u64| {
        figure.latency.as_ref().map_or(String::new(), |latency| format_ns(of(latency)))
    };
    let numbers = [
        setting.cores.map_or(String::new(), |cores| cores.to_string()),
        format_bytes(setting.size_bytes as u64),
        setting.in_flight.to_string(),
        format!("{} {}", three_digits(figure.value), figure.unit),
        figure.bare.map_or(String::new(), three_digits),
        ratio(figure),
        figure.ratio_spread.map_or(String::new(), |spread| {
            format!("{} .. {}", three_digits(spread.q1), three_digits(spread.q3))
        }),
        figure.distance.unwrap_or_default().to_owned(),
        latency(|latency| latency.p99_ns),
        latency(|latency| latency.p999_ns),
        figure.checked.to_string(),
        figure.retransmissions.to_string(),
    ];
    let right = |text| Cell::new(text).set_alignment(CellAlignment::Right);
    words.into_iter().map(Cell::new).chain(numbers.into_iter().map(right)).collect()
}

/// Returns a short name of the measurement.
fn bench(figure: &Figure) -> String {
    let setting = &figure.setting;
    if let Some(parts) = figure.parts {
        return format!("{} per {}", setting.bench, parts.per);
    }
    if let Some(change) = &setting.change {
        return change.clone();
    }
    match (setting.bench, figure.side) {
        (bench, Some(side)) => format!("{bench}, {side}"),
        ("sessions", ..) if setting.announced == Some(true) => {
            format!("{} sessions, announced", setting.sessions)
        }
        ("sessions", ..) => format!("{} sessions", setting.sessions),
        (bench, _) => bench.to_owned(),
    }
}

/// Returns the ratio; for latencies also the difference, which is more informative for short ones.
fn ratio(figure: &Figure) -> String {
    let ratio = figure.ratio.map_or(String::new(), three_digits);
    match figure.difference_ns {
        Some(ns) => format!("{ratio} ({ns:+} ns)"),
        None => ratio,
    }
}

fn target(figure: &Figure) -> [Cell; 2] {
    match &figure.target {
        None => ["", ""].map(Cell::new),
        Some(target) => {
            let colour = if target.reached == "yes" { Color::Green } else { Color::Red };
            [Cell::new(&target.target), Cell::new(target.reached).fg(colour)]
        }
    }
}

/// Formats a number with at least three significant digits.
pub(crate) fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v < 0.1 => 4,
        v if v < 1.0 => 3,
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Returns the lines below the table: failures, the meaning of the columns, and the commands.
pub fn footer(figures: &[Figure]) -> String {
    let mut lines: Vec<String> = figures.iter().flat_map(defects).collect();
    lines.extend(baselines(figures));
    lines.extend(figures.iter().filter_map(parts));
    lines.extend(dropped(figures));
    lines.extend(cpus(figures));
    lines.push("Again:".to_owned());
    let mut commands: Vec<&str> =
        figures.iter().map(|figure| figure.setting.command.as_str()).collect();
    commands.dedup();
    lines.extend(commands.iter().map(|command| format!("  {command}")));
    lines.join("\n")
}

fn defects(figure: &Figure) -> Vec<String> {
    let title = figure.title();
    let wrong = |count: u64, whose: &str| {
        (count > 0).then(|| format!("{title}: {count} {whose} WERE WRONG"))
    };
    let replies = wrong(figure.mismatched, "REPLIES");
    let baseline = wrong(figure.bare_mismatched, "REPLIES OF WHAT IT IS COMPARED WITH");
    let failures = figure.failures.iter().map(|failures| format!("{title}: {failures}"));
    replies.into_iter().chain(baseline).chain(failures).collect()
}

fn baselines(figures: &[Figure]) -> Vec<String> {
    let baselines = figures.iter().filter_map(|figure| figure.setting.baseline);
    let mut texts: Vec<&str> = Vec::new();
    for (_, text) in baselines.map(Baseline::words) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    if texts.is_empty() {
        return Vec::new();
    }
    vec![format!("Beside it: {}.", texts.join("; "))]
}

/// Describes the instructions of client and server.
fn parts(figure: &Figure) -> Option<String> {
    let Parts { per, client, server } = figure.parts?;
    let copying = if per == "packet" { "; copying of data is left out" } else { "" };
    Some(format!("{}: client {client:.0}, server {server:.0}{copying}.", figure.title()))
}

fn dropped(figures: &[Figure]) -> Option<String> {
    let dropped: usize = figures.iter().map(|figure| figure.dropped_windows).sum();
    let kept: usize = figures.iter().map(|figure| figure.windows).sum();
    let text = "because the distance of the CPUs changed";
    (dropped > 0).then(|| format!("{dropped} of {} pairs were dropped {text}.", dropped + kept))
}

fn cpus(figures: &[Figure]) -> Option<String> {
    let cpus = figures
        .iter()
        .filter_map(|figure| figure.setting.cpus.as_deref())
        .max_by_key(|cpus| cpus.len())?;
    Some(match cpus {
        [client, server] => {
            format!("Both ends on this host: client on CPU {client}, server on CPU {server}.")
        }
        _ => "Both ends on this host, on one CPU.".to_owned(),
    })
}
