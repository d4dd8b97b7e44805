//! What a row spends its instructions on, for people who tune.
//!
//! The fast path is inlined into a few functions, so that a profile by function says little. The
//! debug information tells for each address which functions were inlined there; the instruction
//! then counts for the innermost one of Petrel's own, so that `mem::replace` counts for who
//! replaces.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::dump::Place;
use crate::rows::{Cost, Row};

/// Lines of each function that are shown, and how much each must take.
const LINES_SHOWN: usize = 6;
const LEAST_SHOWN: f64 = 0.5;

/// A function and the lines of it that cost most.
#[derive(Default)]
struct Spent {
    total: f64,
    lines: HashMap<String, f64>,
}

/// Prints both sides of a row.
///
/// # Errors
/// Why addresses cannot be translated to lines.
pub(crate) fn print(row: &Row, functions: usize) -> Result<(), String> {
    for (side, cost) in [("client", &row.client), ("server", &row.server)] {
        println!("\n{} {side}: instructions per {}\n", row.name, row.unit.name());
        print_side(cost, functions)?;
    }
    Ok(())
}

fn print_side(cost: &Cost, functions: usize) -> Result<(), String> {
    let mut spent = by_function(cost)?;
    spent.sort_by(|a, b| b.1.total.total_cmp(&a.1.total));
    for (name, spent) in spent.iter().take(functions) {
        println!("{:>9.1}  {name}", spent.total);
        let mut lines: Vec<_> = spent.lines.iter().collect();
        lines.sort_by(|a, b| b.1.total_cmp(a.1));
        for (line, cost) in lines.iter().take(LINES_SHOWN).filter(|line| *line.1 >= LEAST_SHOWN) {
            println!("{:9}  {cost:>9.1}  {line}", "");
        }
    }
    Ok(())
}

fn by_function(cost: &Cost) -> Result<Vec<(String, Spent)>, String> {
    let addresses: Vec<u64> = cost.places.keys().filter_map(address).collect();
    let frames = translate(&addresses)?;
    let mut functions = HashMap::<String, Spent>::new();
    for (place, &cost) in &cost.places {
        let (name, line) = match place {
            Place::Function(name) => (name.clone(), None),
            Place::Address(address) => frames.get(address).cloned().unwrap_or_default(),
        };
        let spent = functions.entry(name).or_default();
        spent.total += cost;
        if let Some(line) = line {
            *spent.lines.entry(line).or_default() += cost;
        }
    }
    Ok(functions.into_iter().collect())
}

fn address(place: &Place) -> Option<u64> {
    match place {
        Place::Address(address) => Some(*address),
        Place::Function(_) => None,
    }
}

type Frame = (String, Option<String>);

/// Asks binutils' addr2line for function and line of each address.
fn translate(addresses: &[u64]) -> Result<HashMap<u64, Frame>, String> {
    let program = std::env::current_exe().map_err(|error| format!("no own path: {error}"))?;
    let mut child = Command::new("addr2line")
        .args(["--addresses", "--functions", "--inlines", "--demangle", "--exe"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("--profile needs addr2line, of binutils: {error}"))?;
    let mut stdin = child.stdin.take().ok_or("addr2line has no input")?;
    let list: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    // It answers line by line: a thread feeds it, so that neither waits for the other.
    let feeder = std::thread::spawn(move || stdin.write_all(list.as_bytes()));
    let output = child.wait_with_output().map_err(|error| format!("addr2line: {error}"))?;
    let fed = feeder.join().map_err(|_| "the thread that feeds addr2line panicked")?;
    fed.map_err(|error| format!("addr2line: {error}"))?;
    Ok(frames(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads addr2line's answer: an address, then a pair of lines for each function, innermost first.
fn frames(text: &str) -> HashMap<u64, Frame> {
    let mut frames = HashMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(Ok(address)) =
            line.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16))
        else {
            continue;
        };
        let mut stack = Vec::new();
        while let Some(function) = lines.next_if(|line| !line.starts_with("0x")) {
            stack.push((function.to_owned(), lines.next().unwrap_or_default().to_owned()));
        }
        frames.insert(address, own_frame(stack));
    }
    frames
}

/// The innermost frame of Petrel, or the innermost one at all.
fn own_frame(stack: Vec<(String, String)>) -> Frame {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let workspace = root.trim_end_matches("crates/petrel/");
    let own = stack.iter().find(|(_, line)| line.starts_with(workspace));
    match own.or(stack.first()) {
        Some((function, line)) => {
            let line = line.strip_prefix(workspace).unwrap_or(line);
            (function.clone(), Some(line.to_owned()))
        }
        None => ("unknown".into(), None),
    }
}
