//! `petrel-experiment`: the experiment of each subcommand.
//!
//! Simulated experiments return rows, and this module prints tables, JSON and plots. The output of these does not depend on
//! the machine: two runs of a seed can be compared byte by byte. `veth` and the experiments beside `sim` measure this machine.

mod cc_cost;
mod incast;
mod loss;
mod overload;
mod papers;
mod paths;
mod puts;
mod responses;
mod scale;
mod small_loss;
mod veth;

use crate::sim::cc_cost::CostConfig;
use crate::{
    batch, card, congestion, factors, index, lookups, one_sided, pause, sealed, sim, stalls, sweep,
};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;

use crate::args::{CommonArgs, ExperimentArgs, ExperimentCommand};
use crate::report::rows::{Report, Row};
use crate::report::{chart, rows};

/// Runs the experiment and prints its figures.
pub(crate) fn run(args: &ExperimentArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        ExperimentCommand::Loss(args) if args.veth.veth => veth::run_large(args, output),
        ExperimentCommand::SmallLoss(args) if args.veth.veth => veth::run_small(args, output),
        ExperimentCommand::Loss(args) => {
            let config = loss::config(args);
            simulate(&args.common, output, &loss::repeat(args), |on_row| {
                sim::loss::run(&config, on_row)
            })
        }
        ExperimentCommand::SmallLoss(args) => {
            let config = small_loss::config(args);
            simulate(&args.common, output, &small_loss::repeat(args), |on_row| {
                sim::small_loss::run(&config, on_row)
            })
        }
        ExperimentCommand::Responses(args) => {
            let [quick, full] = responses::CALLS;
            let calls = if args.common.quick { quick } else { full };
            simulate(&args.common, output, &command("responses", &args.common), |on_row| {
                sim::responses::run(args.common.seed, calls, on_row)
            })
        }
        ExperimentCommand::Incast(args) => {
            let config = incast::config(args);
            simulate(&args.common, output, &incast::repeat(args), |on_row| {
                sim::incast::run(&config, on_row)
            })
        }
        ExperimentCommand::Scale(args) => {
            let config = scale::config(args);
            scale::raise_open_files();
            simulate(&args.common, output, &scale::repeat(args), |on_row| {
                sim::scale::run(&config, on_row)
            })
        }
        ExperimentCommand::Overload(args) => {
            let config = overload::config(args);
            simulate(&args.common, output, &overload::repeat(args), |on_row| {
                sim::overload::run(&config, on_row)
            })
        }
        ExperimentCommand::Paths(args) => paths::run(&args.what, output),
        ExperimentCommand::CcCost(args) => {
            let config = args.common.choose(CostConfig::quick, CostConfig::full);
            simulate(&args.common, output, &command("cc-cost", &args.common), |on_row| {
                sim::cc_cost::run(&config, on_row)
            })
        }
        ExperimentCommand::Papers(args) => papers::run(args, output),
        ExperimentCommand::Puts(args) => puts::run(args, output),
        ExperimentCommand::Card(args) => card::run(args, output),
        ExperimentCommand::OneSided(args) => one_sided::run(args, output),
        ExperimentCommand::Factors(args) => factors::run(args, output),
        ExperimentCommand::Congestion(args) => congestion::run(args, output),
        ExperimentCommand::Sweep(args) => sweep::run(args, output),
        ExperimentCommand::Batch(args) => batch::run(args, output),
        ExperimentCommand::Stalls(args) => stalls::run(args, output),
        ExperimentCommand::Lookups(args) => lookups::run(args, output),
        ExperimentCommand::Index(args) => index::run(args, output),
        ExperimentCommand::OverloadMeasured(args) => crate::overload::run(args, output),
        ExperimentCommand::Pause(args) => pause::run(args, output),
        ExperimentCommand::Sealed(args) => sealed::run(args, output),
        ExperimentCommand::IndexServer(args) => {
            index::run_server(args, output)?;
            Ok(Outcome::Success)
        }
        ExperimentCommand::OverloadServer(args) => {
            crate::overload::run_server(args, output)?;
            Ok(Outcome::Success)
        }
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

/// Runs an experiment of the simulator, as [`show`] does.
fn simulate<R: Row>(
    common: &CommonArgs,
    output: Output,
    command: &str,
    run: impl FnOnce(OnRow<'_, R>) -> Result<Vec<R>, sim::ExperimentError>,
) -> Result<Outcome, Failure> {
    show(common, output, |on_row| run(on_row).map_err(Failure::because), command)
}

/// Replaces a list of the configuration if the command line has one.
fn set_list<T: Clone>(list: &mut Vec<T>, given: &[T]) {
    if !given.is_empty() {
        *list = given.to_vec();
    }
}

/// Returns the command of an experiment with its common flags.
fn command(name: &str, common: &CommonArgs) -> String {
    let quick = if common.quick { " --quick" } else { "" };
    format!("petrel-experiment {name} --seed {}{quick}", common.seed)
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
