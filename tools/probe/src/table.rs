//! Tables for people.

use comfy_table::{Table, presets};

/// A table with these titles.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(header);
    table
}
