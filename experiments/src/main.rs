//! `petrel-experiment`: the experiments of Petrel's papers, simulated or over the kernel's links.
//!
//! Exit codes: 0 for success, 1 for failure, 2 for wrong usage.

use std::process::ExitCode;

fn main() -> ExitCode {
    petrel_experiments::main()
}
