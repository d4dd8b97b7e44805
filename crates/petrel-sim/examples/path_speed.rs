//! The speed of endpoints on the largest network of the path experiments: 320 hosts and 160 sessions.
//!
//! `cargo run --release -p petrel-sim --example path_speed [loss|unequal|permutation|fabric|incast] [quick]`

use std::time::Instant;

use petrel_sim::experiment::paths::{self, PathsConfig, ThroughputRow};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = arguments.iter().any(|argument| argument == "quick");
    let config = if is_quick { PathsConfig::quick(1) } else { PathsConfig::full(1) };
    let mut last = Instant::now();
    let on_row = |row: &ThroughputRow| {
        println!("{:.1} s: {row:#?}", last.elapsed().as_secs_f64());
        last = Instant::now();
    };
    match arguments.first().map(String::as_str) {
        Some("loss") => paths::loss(&config, on_row)?,
        Some("unequal") => paths::unequal(&config, on_row)?,
        Some("permutation") => paths::permutation(&config, on_row)?,
        Some("incast") => paths::incast(&config, on_row)?,
        _ => paths::fabric(&config, on_row)?,
    };
    Ok(())
}
