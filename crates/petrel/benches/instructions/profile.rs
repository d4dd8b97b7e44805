//! What a row spends its instructions on, for people who tune.
//!
//! The fast path is inlined into a few functions, so that a profile by symbol says little. Here an
//! instruction counts for the innermost function of Petrel's own that was inlined at its place.

use std::collections::HashMap;

use crate::dump::Place;
use crate::lines::{self, Frame};
use crate::rows::{Cost, Row};

/// Files that are shown.
const FILES_SHOWN: usize = 12;

/// Lines of each function that are shown, and how much each must take.
const LINES_SHOWN: usize = 6;
const LEAST_SHOWN: f64 = 0.5;

/// Prints both sides of a row.
///
/// # Errors
/// Why addresses cannot be translated to lines.
pub(crate) fn print(row: &Row, functions: usize) -> Result<(), String> {
    for (side, cost) in [("client", &row.client), ("server", &row.server)] {
        let spent = spent(cost)?;
        println!("\n{} {side}, instructions per {}: by file\n", row.name, row.unit.name());
        print_files(&spent);
        println!("\n{} {side}: by function and line\n", row.name);
        print_functions(&spent, functions);
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

fn print_files(spent: &[(Frame, f64)]) {
    let files = sums(spent.iter().map(|(frame, cost)| (&frame.file, *cost)));
    for (file, cost) in files.iter().take(FILES_SHOWN) {
        println!("{cost:>9.1}  {file}");
    }
}

fn print_functions(spent: &[(Frame, f64)], functions: usize) {
    let by_function = sums(spent.iter().map(|(frame, cost)| (&frame.function, *cost)));
    for (function, cost) in by_function.iter().take(functions) {
        println!("{cost:>9.1}  {function}");
        let within = spent.iter().filter(|(frame, _)| frame.function == **function);
        let lines = sums(within.map(|(frame, cost)| ((&frame.file, &frame.line), *cost)));
        for ((file, line), cost) in lines.iter().take(LINES_SHOWN) {
            if *cost >= LEAST_SHOWN && !line.is_empty() {
                println!("{:9}  {cost:>9.1}  {file}:{line}", "");
            }
        }
    }
}

/// Sums by key, the largest first.
fn sums<K: Eq + std::hash::Hash>(costs: impl Iterator<Item = (K, f64)>) -> Vec<(K, f64)> {
    let mut sums = HashMap::<K, f64>::new();
    for (key, cost) in costs {
        *sums.entry(key).or_default() += cost;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums
}
