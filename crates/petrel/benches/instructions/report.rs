//! Prints the counts.

use crate::options::Options;
use crate::profile;
use crate::rows::Row;

pub(crate) fn print(options: &Options, rows: &[Row]) -> Result<(), String> {
    print_table(rows);
    if options.profile {
        rows.iter().try_for_each(profile::print)?;
    }
    Ok(())
}

fn print_table(rows: &[Row]) {
    println!("instructions per 32 B RPC, or per packet of an 8 MiB request without the copying\n");
    println!(
        "{:<14} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "workload", "per", "client", "server", "both", "budget", "copy"
    );
    for row in rows {
        println!(
            "{:<14} {:>7} {:>9.1} {:>9.1} {:>9.1} {:>9} {:>9.1}{}",
            row.name,
            row.unit.name(),
            row.client.instructions,
            row.server.instructions,
            row.both(),
            row.budget,
            row.copying(),
            if row.is_over() { "  over the budget" } else { "" },
        );
    }
}
