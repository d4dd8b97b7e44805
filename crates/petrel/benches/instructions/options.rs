//! The command line.

use crate::workload::{WORKLOADS, Workload};

pub(crate) const HELP: &str = "\
Counts instructions per RPC under callgrind, and checks them against budgets.txt.

cargo bench -p petrel-rpc --bench instructions -- [OPTIONS] [ROW]...

ROW            only these rows (shm-60, shm-8MiB, ...); all of them by default
--profile      also what each row spends its instructions on, function by function
--require      fail where nothing can be counted, instead of skipping it

Exit status: 0, or 1 when a row exceeds its budget or could not be counted.
";

/// The arguments that make the program run a workload, before the workload's name and the calls.
pub(crate) const RUN_AGAIN: &[&str] = &["--run"];

/// The program's task.
pub(crate) enum Mode {
    Help,
    /// Run as the counted program.
    Run {
        workload: &'static Workload,
        calls: u64,
    },
    Count(Options),
}

/// Options for counting and for the report.
pub(crate) struct Options {
    pub(crate) rows: Vec<&'static Workload>,
    pub(crate) profile: bool,
    pub(crate) require: bool,
}

impl Options {
    pub(crate) fn from_args(mut args: impl Iterator<Item = String>) -> Result<Mode, String> {
        let mut options = Self { rows: Vec::new(), profile: false, require: false };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--help" | "-h" => return Ok(Mode::Help),
                "--run" => return run(&mut args),
                "--profile" => options.profile = true,
                "--require" => options.require = true,
                // Passed by Cargo, to tell a benchmark from a test.
                "--bench" => {}
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
                row => options.rows.push(Workload::named(row)?),
            }
        }
        if options.rows.is_empty() {
            options.rows.extend(WORKLOADS);
        }
        Ok(Mode::Count(options))
    }
}

fn run(args: &mut impl Iterator<Item = String>) -> Result<Mode, String> {
    let workload = Workload::named(&args.next().unwrap_or_default())?;
    Ok(Mode::Run { workload, calls: number(args.next())? })
}

fn number(arg: Option<String>) -> Result<u64, String> {
    let arg = arg.unwrap_or_default();
    arg.parse().map_err(|_| format!("`{arg}` is not a number"))
}
