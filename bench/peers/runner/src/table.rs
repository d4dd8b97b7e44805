//! The table of results.

use comfy_table::{CellAlignment, Table, presets};

use crate::summary::Row;

const HEADINGS: [&str; 12] = [
    "peer",
    "version",
    "waits by",
    "cores",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "calls/s",
    "Gbit/s, 1",
    "Gbit/s, 4",
    "windows",
    "others",
];

/// Columns from here on are numbers.
const FIRST_NUMBER: usize = 4;

/// Formats the rows as a Markdown table.
pub(crate) fn render(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(HEADINGS);
    for row in rows {
        table.add_row(cells(row));
    }
    for index in FIRST_NUMBER..HEADINGS.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

fn cells(row: &Row) -> [String; 12] {
    let windows = match row.dropped_windows {
        0 => row.windows.to_string(),
        dropped => format!("{} (-{dropped})", row.windows),
    };
    [
        row.title.to_owned(),
        row.version.clone().unwrap_or_default(),
        row.waits.name().to_owned(),
        format!("{}, {:.0} ns", row.cores.name(), row.probe_ns.unwrap_or_default()),
        number(row.p50_us),
        number(row.p99_us),
        number(row.p999_us),
        count(row.calls_per_second),
        number(row.gbit_per_second_1),
        number(row.gbit_per_second_4),
        windows,
        row.others.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
    ]
}

/// Formats a number with three digits, which are more than a measurement repeats.
pub(crate) fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// Formats a count with its unit: `97.0 k`.
pub(crate) fn count(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= 1e6 => format!("{} M", number(Some(value / 1e6))),
        Some(value) if value >= 1e3 => format!("{} k", number(Some(value / 1e3))),
        value => number(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count__has_three_digits_and_a_unit() {
        let text = [97_040.0, 5_678_900.0, 12.34, 123_456.0].map(|value| count(Some(value)));
        assert_eq!(text, ["97.0 k", "5.68 M", "12.3", "123 k"]);
        assert_eq!(count(None), "-");
    }
}
