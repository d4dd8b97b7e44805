//! Nanoseconds of the rows with small calls, both ends in a single thread. On a shared machine the rows take turns; the
//! report has the median of some rounds, and the quickest.

use std::process::Command;

use crate::options::{Options, RUN_AGAIN};
use crate::workload::{Unit, Workload};

/// Turns of each row.
const ROUNDS: usize = 7;

/// Calls of one turn, for tenths of a second: a multiple of every batch.
const CALLS: u64 = 1_200_000;

/// Measures the requested rows, and prints them.
///
/// # Errors
/// A run failed.
pub(crate) fn print(options: &Options) -> Result<(), String> {
    let rows: Vec<&Workload> =
        options.rows.iter().copied().filter(|row| row.unit == Unit::Rpc).collect();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for _ in 0..ROUNDS {
        for (row, times) in rows.iter().zip(&mut times) {
            times.push(measure(row.name)?);
        }
    }
    println!(
        "nanoseconds per 32 B RPC, both ends in one thread, {ROUNDS} turns of {CALLS} calls\n"
    );
    println!("{:<10} {:>9} {:>9} {:>12}", "workload", "median", "least", "by the first");
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let medians: Vec<f64> = times.iter_mut().map(median).collect();
    for ((row, times), median_ns) in rows.iter().zip(&times).zip(&medians) {
        let ratio = median_ns / medians[0];
        println!("{:<10} {median_ns:>9.1} {:>9.1} {ratio:>12.2}", row.name, times[0]);
    }
    Ok(())
}

fn measure(row: &str) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let ran = Command::new(program)
        .args(RUN_AGAIN)
        .args([row, &CALLS.to_string()])
        .output()
        .map_err(|error| error.to_string())?;
    if !ran.status.success() {
        return Err(format!("{row}: {}", String::from_utf8_lossy(&ran.stderr)));
    }
    let said = String::from_utf8_lossy(&ran.stdout);
    let elapsed_ns = said.lines().find_map(|line| line.strip_prefix("elapsed_ns "));
    let elapsed_ns = elapsed_ns.and_then(|text| text.parse::<f64>().ok());
    elapsed_ns.map(|ns| ns / CALLS as f64).ok_or_else(|| format!("{row} did not tell its time"))
}
