//! `petrel doctor`: the features of this host that Petrel uses, and advice about missing ones.
//!
//! A check tries the feature itself wherever that is harmless: kernels are patched, containers filtered and virtual
//! network cards incomplete, so a version number proves little. Untestable properties are read from `/proc` and `/sys`,
//! where any file may be missing. Every wait is bounded, no check needs privileges, and none leaves a trace.
//!
//! | file | subject |
//! | --- | --- |
//! | [`check`] | the result of one check |
//! | [`system`] | kernel, container, virtual machine |
//! | [`udp`] | datagrams over loopback, GSO, GRO, MTU |
//! | [`ecn`] | ECN marks |
//! | [`paths`] | equal-cost paths of the host's routes |
//! | [`buffers`] | limits of socket buffers |
//! | [`interrupts`] | interrupts of network cards, busy polling |
//! | [`control`] | the control plane's TCP ports |
//! | [`shared`] | requirements of the shared-memory transport |
//! | [`memory`] | huge pages and locked memory |
//! | [`cpu`] | CPUs, their isolation, quota and real-time scheduling |
//! | `credentials` | the folder of `--credentials` |
//! | `device` | the device of `--device` |
//! | [`clock`] | time stamp counter and clock source |
//! | [`limits`] | open files |
//! | [`bypass`] | AF_XDP, DPDK and RDMA |
//! | [`host`] | reading and parsing `/proc` and `/sys` |
//! | [`sys`] | the three system calls without a safe wrapper |

mod buffers;
mod bypass;
mod check;
mod clock;
mod control;
mod cpu;
#[cfg(feature = "full")]
mod credentials;
#[cfg(feature = "full")]
mod device;
mod ecn;
mod host;
mod interrupts;
mod limits;
mod memory;
mod paths;
mod shared;
mod sys;
mod system;
mod udp;

use std::io;

use comfy_table::{Cell, Color, Table};
use petrel_command::Outcome;
use petrel_command::output::Output;

use self::check::{Check, Status};
#[cfg(feature = "full")]
use crate::cli::CredentialsArgs;
use crate::cli::DoctorArgs;

/// Runs all checks, with checks of the credentials and the device if given, and prints the results. Fails if a check fails that Petrel depends on.
pub(crate) fn run(
    args: &DoctorArgs,
    #[cfg(feature = "full")] own: &CredentialsArgs,
    output: Output,
) -> io::Result<Outcome> {
    let checks = all_checks(args.port);
    #[cfg(feature = "full")]
    let checks = [
        checks,
        own.credentials.as_deref().map_or(Vec::new(), credentials::checks),
        own.device.as_ref().map_or(Vec::new(), device::checks),
    ]
    .concat();
    for check in &checks {
        output.record(check)?;
    }
    if !output.is_json() {
        print_for_people(&checks, output)?;
    }
    Ok(outcome(&checks))
}

fn all_checks(port: u16) -> Vec<Check> {
    [
        system::checks(),
        udp::checks(),
        buffers::checks(),
        interrupts::checks(),
        control::checks(port),
        shared::checks(),
        memory::checks(),
        cpu::checks(),
        clock::checks(),
        limits::checks(),
        bypass::checks(),
    ]
    .concat()
}

fn outcome(checks: &[Check]) -> Outcome {
    match count(checks, Status::Fail) {
        0 => Outcome::Success,
        _ => Outcome::Failure,
    }
}

fn count(checks: &[Check], status: Status) -> usize {
    checks.iter().filter(|check| check.status == status).count()
}

fn print_for_people(checks: &[Check], output: Output) -> io::Result<()> {
    output.line(results(checks, output))?;
    if checks.iter().any(|check| check.advice.is_some()) {
        output.line("\nWhat to do, the most urgent first:\n")?;
        output.line(advice(checks, output).trim_fmt())?;
    }
    output.line(format!("\n{}", verdict(checks)))
}

/// Creates a table with one row per check; unchanged areas are omitted.
fn results(checks: &[Check], output: Output) -> Table {
    let mut table = output.table(&["", "area", "check", "found"]);
    let mut last_area = "";
    for check in checks {
        let area = if check.area == last_area { "" } else { check.area };
        last_area = check.area;
        table.add_row([
            symbol(check.status),
            Cell::new(area),
            Cell::new(check.name),
            Cell::new(&check.found),
        ]);
    }
    table
}

/// Creates a table with one row per piece of advice.
fn advice(checks: &[Check], output: Output) -> Table {
    let mut table = output.list();
    let mut advised: Vec<&Check> = checks.iter().filter(|check| check.advice.is_some()).collect();
    advised.sort_by_key(|check| check.status.urgency());
    for check in advised {
        let text = check.advice.as_deref().unwrap_or_default();
        table.add_row([symbol(check.status), Cell::new(check.name), Cell::new(text)]);
    }
    table
}

/// Returns the status as sign and word: the word serves readers who cannot see the colour.
fn symbol(status: Status) -> Cell {
    match status {
        Status::Ok => Cell::new("✓ ok").fg(Color::Green),
        Status::Info => Cell::new("· info").fg(Color::Cyan),
        Status::Warn => Cell::new("! warn").fg(Color::Yellow),
        Status::Fail => Cell::new("✗ fail").fg(Color::Red),
    }
}

fn verdict(checks: &[Check]) -> String {
    let [ok, info, warn, fail] =
        [Status::Ok, Status::Info, Status::Warn, Status::Fail].map(|status| count(checks, status));
    let head = match (fail, warn) {
        (0, 0) => "Petrel runs on this host, and nothing holds it back",
        (0, _) => "Petrel runs on this host; the warnings say what holds it back",
        _ => "Petrel cannot run on this host before the failed checks are mended",
    };
    format!("{head}. {ok} ok, {info} info, {warn} warn, {fail} fail.")
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: &str = "area";

    fn samples() -> Vec<Check> {
        vec![
            Check::ok(AREA, "one", "found one"),
            Check::info(AREA, "two", "found two").advise("maybe do two"),
            Check::warn(AREA, "three", "found three", "do three"),
        ]
    }

    #[test]
    fn outcome__fails_only_with_a_failed_check() {
        let mut checks = samples();
        assert_eq!(outcome(&checks), Outcome::Success);
        checks.push(Check::fail(AREA, "four", "found four", "do four"));
        assert_eq!(outcome(&checks), Outcome::Failure);
        assert!(verdict(&checks).contains("cannot run"));
        assert!(verdict(&checks).ends_with("1 ok, 1 info, 1 warn, 1 fail."));
    }

    #[test]
    fn advice__puts_the_most_urgent_first() {
        let text = advice(&samples(), Output::new(false, true)).to_string();
        assert!(text.find("do three").unwrap() < text.find("maybe do two").unwrap(), "{text}");
        assert!(!text.contains("one"), "{text}");
    }

    #[test]
    fn results__show_every_check() {
        let text = results(&samples(), Output::new(false, true)).to_string();
        for found in ["found one", "found two", "found three", "✓ ok", "· info", "! warn"] {
            assert!(text.contains(found), "{found}: {text}");
        }
    }

    #[test]
    fn all_checks__have_distinct_names() {
        let checks = all_checks(31850);
        let mut names: Vec<_> = checks.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), checks.len());
    }

    #[test]
    fn all_checks__never_warn_without_advice() {
        for check in all_checks(31850) {
            let needs_advice = matches!(check.status, Status::Warn | Status::Fail);
            assert!(!needs_advice || check.advice.is_some(), "{check:?}");
        }
    }
}
