//! The order of the windows: in every round all peers take turns at every measurement, so changes of the
//! machine affect all peers alike.

use peers_common::Failure;

use crate::building::Entry;
use crate::catalog::Measurement;
use crate::cli::{Cli, Cpus};
use crate::others;
use crate::record::{Record, Recorder};
use crate::window::{self, Window};

/// Runs all windows. A failed window is reported and recorded; the run continues.
pub(crate) fn run(
    entries: &[Entry],
    cli: &Cli,
    cpus: Cpus,
    recorder: &mut Recorder,
) -> Result<Vec<Window>, Failure> {
    let mut windows = Vec::new();
    for round in 1..=cli.rounds {
        for &measurement in &cli.measure {
            eprintln!("round {round} of {}: {measurement:?}", cli.rounds);
            for entry in entries.iter().filter(|entry| does(entry, measurement, cli)) {
                match undisturbed(entry, measurement, round, cli, cpus) {
                    Ok(window) => {
                        recorder.put(&Record::Window(&window))?;
                        windows.push(window);
                    }
                    Err(failure) => fail(entry, measurement, &failure, recorder)?,
                }
            }
        }
    }
    Ok(windows)
}

/// Runs a window, and repeats the window while other programs use the CPUs; returns the last result.
fn undisturbed(
    entry: &Entry,
    measurement: Measurement,
    round: u32,
    cli: &Cli,
    cpus: Cpus,
) -> Result<Window, Failure> {
    let mut retries = cli.retries;
    loop {
        // With real-time priority, other programs only get the time that client and server leave.
        if cli.realtime {
            return window::run(entry, measurement, round, cli, cpus);
        }
        others::wait_for_quiet(cli.patience());
        let window = window::run(entry, measurement, round, cli, cpus)?;
        if !window.is_disturbed() || retries == 0 {
            return Ok(window);
        }
        retries -= 1;
    }
}

fn does(entry: &Entry, measurement: Measurement, cli: &Cli) -> bool {
    // With real-time priority Aeron's driver does not get the CPU on which the server polls, and its
    // streams stall once their windows are used up: 1.2 k calls/s were measured instead of millions.
    let stands_still =
        cli.realtime && entry.peer.name == "aeron" && measurement != Measurement::Latency;
    entry.variant.measurements.contains(&measurement) && !stands_still
}

fn fail(
    entry: &Entry,
    measurement: Measurement,
    failure: &Failure,
    recorder: &mut Recorder,
) -> Result<(), Failure> {
    let (peer, variant) = (entry.peer.name, entry.variant.name);
    println!("{peer}/{variant}: {measurement:?} failed: {failure}");
    let why = failure.to_string();
    recorder.put(&Record::Failed { peer, variant, measurement, why: &why })
}
