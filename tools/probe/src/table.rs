//! Tables for human readers.

use comfy_table::{Table, presets};

/// Creates a table with these titles.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(header);
    table
}
