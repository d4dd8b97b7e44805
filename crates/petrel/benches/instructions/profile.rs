//! A profile of a row's instructions, for tuning.
//!
//! The fast path is inlined into a few functions, and a profile by symbol says little. Here an instruction counts for
//! the innermost inlined function of Petrel.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;

use crate::cost::Cost;
use crate::dump::Place;
use crate::lines::{self, Frame};
use crate::rows::Row;

/// The numbers of files and of functions shown.
const FILES_SHOWN: usize = 12;
const FUNCTIONS_SHOWN: usize = 25;

/// The number of lines shown per function, and the least cost of a shown line.
const LINES_SHOWN: usize = 6;
const LEAST_SHOWN: f64 = 0.5;

/// Prints both sides of a row.
///
/// # Errors
/// Why addresses cannot be translated to lines.
pub(crate) fn print(row: &Row) -> Result<(), String> {
    for (side, cost) in [("client", &row.client), ("server", &row.server)] {
        let spent = spent(cost)?;
        let files = list_files(&spent);
        let functions = list_functions(&spent);
        let text = format!(
            "\n{row} {side}, instructions per {unit}: by file\n\n{files}\n\
             {row} {side}: by function and line\n\n{functions}",
            row = row.name,
            unit = row.unit.name(),
        );
        // The reader may close the pipe early.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    Ok(())
}

fn spent(cost: &Cost) -> Result<Vec<(Frame, f64)>, String> {
    let addresses: Vec<u64> = cost.places.keys().filter_map(Place::address).collect();
    let frames = lines::of(&addresses)?;
    let frame = |place: &Place| match place {
        Place::Address(address) => frames.get(address).cloned().unwrap_or_default(),
        Place::Function(name) => {
            Frame { function: name.clone(), file: "(libraries)".into(), line: String::new() }
        }
    };
    Ok(cost.places.iter().map(|(place, &cost)| (frame(place), cost)).collect())
}

fn list_files(spent: &[(Frame, f64)]) -> String {
    let files = sums(spent.iter().map(|(frame, cost)| (&frame.file, *cost)));
    files.iter().take(FILES_SHOWN).map(|(file, cost)| format!("{cost:>9.1}  {file}\n")).collect()
}

fn list_functions(spent: &[(Frame, f64)]) -> String {
    let by_function = sums(spent.iter().map(|(frame, cost)| (&frame.function, *cost)));
    let mut text = String::new();
    for (function, cost) in by_function.iter().take(FUNCTIONS_SHOWN) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{cost:>9.1}  {function}");
        let within = spent.iter().filter(|(frame, _)| frame.function == **function);
        let lines = sums(within.map(|(frame, cost)| ((&frame.file, &frame.line), *cost)));
        for ((file, line), cost) in lines.iter().take(LINES_SHOWN) {
            if *cost >= LEAST_SHOWN && !line.is_empty() {
                let _ = writeln!(text, "{:9}  {cost:>9.1}  {file}:{line}", "");
            }
        }
    }
    text
}

/// Returns sums by key, the largest first.
fn sums<K: Eq + std::hash::Hash>(costs: impl Iterator<Item = (K, f64)>) -> Vec<(K, f64)> {
    let mut sums = HashMap::<K, f64>::new();
    for (key, cost) in costs {
        *sums.entry(key).or_default() += cost;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums
}
