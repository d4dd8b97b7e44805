//! Rows for human readers.

use petrel_command::failure::Failure;
pub(crate) use petrel_command::output::Column;
use petrel_command::output::Output;
use serde::Serialize;

use super::chart::Chart;

/// A row of an experiment.
pub(crate) trait Row: Serialize + Sized + 'static {
    /// The columns of the table.
    const COLUMNS: &'static [Column<Self>];

    /// Returns remarks that a reader of the table needs.
    fn remarks(rows: &[Self]) -> Vec<String>;

    /// Returns all rows as a chart.
    fn chart(rows: &[Self]) -> Chart;
}

/// All rows of an experiment, and the command that repeats it.
pub(crate) struct Report<'a, R> {
    pub(crate) rows: &'a [R],
    pub(crate) command: &'a str,
}

impl<R: Row> Report<'_, R> {
    /// Prints the table, the remarks and the command.
    pub(crate) fn print(&self, output: Output) -> Result<(), Failure> {
        output.line(output.rows(R::COLUMNS, 0, self.rows))?;
        for remark in R::remarks(self.rows) {
            output.line(remark)?;
        }
        output.line(format!("Again:\n  {}", self.command))?;
        Ok(())
    }
}

/// Formats nanoseconds as microseconds.
pub(crate) fn us(ns: f64) -> String {
    digits(ns / 1e3)
}

/// Formats a count of nanoseconds as microseconds.
pub(crate) fn us_of(ns: u64) -> String {
    us(ns as f64)
}

/// Formats three significant digits, and all digits before the point.
pub(crate) fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v < 1.0 => 3,
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats a probability in scientific notation.
pub(crate) fn probability(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.0e}") }
}
