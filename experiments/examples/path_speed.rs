//! The speed of endpoints on the largest network of the path experiments: 320 hosts and 160 sessions, or with
//! `quick` a quarter of them for a short time.
//!
//! `cargo run --release --manifest-path experiments/Cargo.toml --example path_speed [quick]`

use std::time::Instant;

use petrel_experiments::sim::paths::{self, PathsConfig, ThroughputRow};
use petrel_proto::Recovery;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let is_quick = std::env::args().nth(1).is_some_and(|argument| argument == "quick");
    let config = if is_quick { PathsConfig::quick(1) } else { PathsConfig::full(1) };
    let start = Instant::now();
    let config = PathsConfig { recoveries: vec![Recovery::Selective], ..config };
    let rows = paths::fabric(&config, |_| {})?;
    let seconds = start.elapsed().as_secs_f64();
    rows.iter().for_each(|row| print(row, seconds));
    Ok(())
}

fn print(row: &ThroughputRow, seconds: f64) {
    let virtual_ms = (row.warm_up_ns + row.measured_ns) as f64 / 1e6;
    println!("{}, {}: {virtual_ms} ms and the last calls", row.network, row.case);
    println!("{:.0} Gbit/s of goodput, {} packets while measured", row.goodput_gbit, row.packets);
    println!(
        "{} events in {seconds:.1} s: {:.2} M events/s",
        row.events,
        row.events as f64 / seconds / 1e6
    );
}
