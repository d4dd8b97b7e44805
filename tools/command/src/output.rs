//! The output of the command: results on standard output, progress and errors on standard error.
//!
//! With `--json` standard output carries one JSON object per line, for scripts that read line by line.
//! Otherwise standard output carries tables and sentences for human readers, coloured only on a terminal
//! and if `NO_COLOR` is not set.

pub mod latency;
pub mod progress;

use std::io::{self, IsTerminal, Write};

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use self::progress::Progress;
use crate::text::clean_bytes;

/// A column of a table with a line for each row: its title, and the text of a row's cell.
pub type Column<R> = (&'static str, fn(&R) -> String);

/// The printing mode, decided once from the global flags and the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    json: bool,
    colour: bool,
    progress: bool,
}

impl Output {
    /// Decides from the flags, the environment and the type of standard output.
    pub fn new(json: bool, quiet: bool) -> Self {
        Self {
            json,
            colour: !json && io::stdout().is_terminal() && is_colour_enabled(),
            progress: !json && !quiet && io::stderr().is_terminal(),
        }
    }

    /// Returns true if results are JSON lines.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints one JSON object on a separate line, in JSON mode only.
    pub fn record<T: Serialize>(self, record: &T) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        io::stdout().lock().write_all(&line)
    }

    /// Prints a line for human readers, except in JSON mode.
    pub fn line(self, text: impl std::fmt::Display) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        writeln!(io::stdout().lock(), "{text}")
    }

    /// Prints bytes, except in JSON mode. A terminal gets them with its control characters escaped, and as a line of its own;
    /// a file gets them unchanged.
    pub fn bytes(self, bytes: &[u8]) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match stdout.is_terminal() {
            true if bytes.ends_with(b"\n") => stdout.write_all(&clean_bytes(bytes))?,
            true => stdout.write_all(&[&clean_bytes(bytes)[..], b"\n"].concat())?,
            false => stdout.write_all(bytes)?,
        }
        stdout.flush()
    }

    /// Returns an empty table in the common style; print it by [`Output::line`].
    pub fn table(self, header: &[&str]) -> Table {
        let mut table = self.list();
        table.load_style(presets::UTF8_BORDERS_ONLY.with_rounded_corners());
        table
            .set_header(header.iter().map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
        table
    }

    /// Returns a table with a line for each row. The first `words` columns stand on the left, and the others, which
    /// contain numbers, on the right.
    pub fn rows<'r, R: 'r>(
        self,
        columns: &[Column<R>],
        words: usize,
        rows: impl IntoIterator<Item = &'r R>,
    ) -> Table {
        let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
        let mut table = self.table(&titles);
        for row in rows {
            table.add_row(columns.iter().enumerate().map(|(index, (_, text))| {
                let side = if index < words { CellAlignment::Left } else { CellAlignment::Right };
                Cell::new(text(row)).set_alignment(side)
            }));
        }
        table
    }

    /// Returns aligned columns without frame and header, suitable for copying lines.
    pub fn list(self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        // Without querying the terminal, the table's decision cannot differ from `NO_COLOR`.
        table.force_no_tty();
        if self.colour {
            table.enforce_styling();
        }
        if let Some(columns) = terminal_columns() {
            table.set_width(columns);
        }
        table
    }

    /// Returns a progress bar on standard error for work of `total` steps. The bar is hidden without a
    /// terminal, and for short work.
    pub fn progress(self, total: u64, title: &str) -> Progress {
        Progress::new(self.progress, total, title)
    }
}

/// Returns true unless the user has set `NO_COLOR` (to a non-empty value, as no-color.org defines) or
/// has a terminal without colours.
fn is_colour_enabled() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns the width of the terminal that standard output is connected to, if any.
fn terminal_columns() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Output = Output { json: false, colour: false, progress: false };

    #[test]
    fn table__without_colour_has_no_escape_sequences() {
        let mut table = PLAIN.table(&["name", "value"]);
        table.add_row([Cell::new("a").fg(comfy_table::Color::Red), Cell::new("b")]);
        let text = table.to_string();
        assert!(text.contains("name") && text.contains('b'));
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn table__with_colour_is_styled_even_off_a_terminal() {
        let mut table = Output { colour: true, ..PLAIN }.table(&["name"]);
        table.add_row([Cell::new("a").fg(comfy_table::Color::Red)]);
        assert!(table.to_string().contains('\u{1b}'));
    }

    #[test]
    fn rows__have_words_on_the_left_and_numbers_on_the_right() {
        let columns: [Column<(&str, u8)>; 2] =
            [("name", |row| row.0.to_owned()), ("count", |row| row.1.to_string())];
        let text = PLAIN.rows(&columns, 1, &[("a", 1), ("bcdef", 234)]).to_string();
        assert!(text.contains("│ a           1 │"), "{text}");
        assert!(text.contains("│ bcdef     234 │"), "{text}");
    }

    #[test]
    fn new__json_means_neither_colour_nor_progress() {
        let output = Output::new(true, false);
        assert!(output.is_json() && !output.colour && !output.progress);
    }
}
