//! `petrel sim experiment`: figures of endpoints over a simulated network, in virtual time.
//!
//! The library runs the experiments and returns rows; this module prints tables, JSON and plots. The
//! output does not depend on the machine: two runs of a seed can be compared byte by byte. The exception
//! is `veth`, which measures this machine.

mod cc_cost;
pub(crate) mod chart;
mod incast;
mod loss;
mod overload;
mod paths;
pub(crate) mod report;
mod scale;
mod small_loss;
mod veth;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_sim::experiment as sim;

use self::report::{Report, Row};
use crate::args::{CommonArgs, ExperimentArgs, ExperimentCommand};

/// Runs the experiment and prints its figures.
pub fn run(args: &ExperimentArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        ExperimentCommand::Loss(args) if args.veth.veth => veth::run_large(args, output),
        ExperimentCommand::SmallLoss(args) if args.veth.veth => veth::run_small(args, output),
        ExperimentCommand::Loss(args) => {
            let config = loss::config(args);
            let run =
                |on_row: OnRow<'_, _>| sim::loss::run(&config, on_row).map_err(Failure::because);
            show(&args.common, output, run, &loss::repeat(args))
        }
        ExperimentCommand::SmallLoss(args) => {
            let config = small_loss::config(args);
            let run = |on_row: OnRow<'_, _>| {
                sim::small_loss::run(&config, on_row).map_err(Failure::because)
            };
            show(&args.common, output, run, &small_loss::repeat(args))
        }
        ExperimentCommand::Incast(args) => {
            let config = incast::config(args);
            let run =
                |on_row: OnRow<'_, _>| sim::incast::run(&config, on_row).map_err(Failure::because);
            show(&args.common, output, run, &incast::repeat(args))
        }
        ExperimentCommand::Scale(args) => {
            let config = scale::config(args);
            scale::raise_open_files();
            let run =
                |on_row: OnRow<'_, _>| sim::scale::run(&config, on_row).map_err(Failure::because);
            show(&args.common, output, run, &scale::repeat(args))
        }
        ExperimentCommand::Overload(args) => {
            let config = overload::config(args);
            let run = |on_row: OnRow<'_, _>| {
                sim::overload::run(&config, on_row).map_err(Failure::because)
            };
            show(&args.common, output, run, &overload::repeat(args))
        }
        ExperimentCommand::Paths(args) => paths::run(&args.what, output),
        ExperimentCommand::CcCost(args) => cc_cost::run(args, output),
    }
}

/// The function that gets every row as soon as available.
type OnRow<'a, R> = &'a mut (dyn FnMut(&R) + Send);

/// Runs an experiment. Prints every row as JSON at once; at the end the table, the plot, and the command
/// that repeats the experiment.
fn show<R: Row>(
    common: &CommonArgs,
    output: Output,
    run: impl FnOnce(OnRow<'_, R>) -> Result<Vec<R>, Failure>,
    command: &str,
) -> Result<Outcome, Failure> {
    let mut printed = Ok(());
    let rows = run(&mut |row| {
        if printed.is_ok() {
            printed = output.record(row);
        }
    });
    let rows = rows?;
    printed?;
    let report = Report { rows: &rows, command };
    report.print(output)?;
    if let Some(path) = &common.plot {
        chart::draw(path, &R::chart(&rows))?;
        output.line(format!("Plot: {}", path.display()))?;
    }
    Ok(Outcome::Success)
}

/// Returns the command of an experiment with its common flags.
fn command(name: &str, common: &CommonArgs) -> String {
    let quick = if common.quick { " --quick" } else { "" };
    format!("petrel sim experiment {name} --seed {}{quick}", common.seed)
}

/// Returns a flag with a list, or an empty text.
fn list_flag(flag: &str, values: &[impl ToString]) -> String {
    if values.is_empty() {
        return String::new();
    }
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!(" --{flag} {}", values.join(","))
}

/// Returns a flag with a value, or an empty text.
fn flag(flag: &str, value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |value| format!(" --{flag} {}", value.to_string()))
}
