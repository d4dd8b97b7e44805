//! Counts the instructions of the fast path, client and server apart, and checks them against `budgets.txt`.
//!
//! ```text
//! cargo bench -p petrel-rpc --bench instructions             the table; exit status 1 beyond a budget
//! cargo bench -p petrel-rpc --bench instructions -- --help   everything else
//! ```
//!
//! The program starts itself under `valgrind --tool=callgrind`, which executes and counts every instruction in
//! software. A count hardly depends on other load of the machine: a change of one per cent is visible where times
//! differ by ten.
//!
//! A row runs with N and with 3 N calls, and the difference is divided by 2 N, to exclude one-time costs. Kernel and
//! waiting are excluded, too.
//!
//! `petrel bench instructions` includes `callgrind`, `cost`, `dump`, `typed` and `workload` unchanged; therefore they refer to
//! each other by `super`.

mod budgets;
mod callgrind;
mod cost;
mod dump;
mod lines;
mod options;
mod profile;
mod report;
mod rows;
mod typed;
mod workload;

use std::process::ExitCode;

use options::{Mode, Options};
use rows::Row;

fn main() -> ExitCode {
    match Options::from_args(std::env::args().skip(1)) {
        Ok(Mode::Help) => {
            print!("{}", options::HELP);
            ExitCode::SUCCESS
        }
        Ok(Mode::Run { workload, calls }) => {
            match workload::run(workload, calls, petrel::Nexus::builder) {
                Ok(()) => ExitCode::SUCCESS,
                Err(text) => fail(&text),
            }
        }
        Ok(Mode::Count(options)) => count(&options),
        Err(text) => fail(&format!("{text}; --help tells what there is")),
    }
}

fn count(options: &Options) -> ExitCode {
    if let Some(reason) = callgrind::obstacle() {
        if options.require {
            return fail(reason);
        }
        petrel_skip::skip(petrel_skip::Need::Valgrind, reason);
        return ExitCode::SUCCESS;
    }
    match rows::count_all(options) {
        Ok(rows) => verdict(options, &rows),
        Err(text) => fail(&text),
    }
}

fn verdict(options: &Options, rows: &[Row]) -> ExitCode {
    if let Err(text) = report::print(options, rows) {
        return fail(&text);
    }
    let over: Vec<&str> = rows.iter().filter(|row| row.is_over()).map(|row| row.name).collect();
    if over.is_empty() {
        return ExitCode::SUCCESS;
    }
    fail(&format!("over the budget of benches/instructions/budgets.txt: {}", over.join(", ")))
}

fn fail(text: &str) -> ExitCode {
    eprintln!("error: {text}");
    ExitCode::FAILURE
}
