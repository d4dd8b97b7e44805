//! `paths`: several paths between hosts.

mod cut;
mod flows;
mod ordered;
mod shares;
mod small;
mod throughput;
mod veth;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_sim::experiment::paths::{self, FlowsConfig, PathsConfig, ThroughputRow};
use petrel_sim::experiment::{ExperimentError, recovery_name};

use super::{OnRow, command, flag, list_flag, show};
use crate::args::{FlowsArgs, PathArgs, PathsCommand, VethPathArgs};

/// Runs the experiment and prints its figures.
pub(super) fn run(what: &PathsCommand, output: Output) -> Result<Outcome, Failure> {
    match what {
        PathsCommand::Loss(args) if args.veth => veth::run("loss", args, output),
        PathsCommand::Cut(args) if args.veth => veth::run("cut", args, output),
        PathsCommand::Permutation(args) if args.veth => veth::run("permutation", args, output),
        PathsCommand::Loss(args) => {
            throughput("loss", &args.paths, output, |config, on_row| paths::loss(config, on_row))
        }
        PathsCommand::Unequal(args) => {
            throughput("unequal", args, output, |config, on_row| paths::unequal(config, on_row))
        }
        PathsCommand::Permutation(args) => {
            throughput("permutation", &args.paths, output, |config, on_row| {
                paths::permutation(config, on_row)
            })
        }
        PathsCommand::Fabric(args) => {
            throughput("fabric", args, output, |config, on_row| paths::fabric(config, on_row))
        }
        PathsCommand::Incast(args) => {
            throughput("incast", args, output, |config, on_row| paths::incast(config, on_row))
        }
        PathsCommand::Cut(VethPathArgs { paths: args, .. }) => {
            let run =
                |on_row: OnRow<'_, _>| paths::cut(&config(args), on_row).map_err(Failure::because);
            show(&args.common, output, run, &repeat("cut", args))
        }
        PathsCommand::Fair(args) => {
            let run =
                |on_row: OnRow<'_, _>| paths::fair(&config(args), on_row).map_err(Failure::because);
            show(&args.common, output, run, &repeat("fair", args))
        }
        PathsCommand::Ordered(args) => {
            let run = |on_row: OnRow<'_, _>| {
                paths::ordered(&config(args), on_row).map_err(Failure::because)
            };
            show(&args.common, output, run, &repeat("ordered", args))
        }
        PathsCommand::Pinned(args) => {
            let run = |on_row: OnRow<'_, _>| {
                paths::pinned(&config(args), on_row).map_err(Failure::because)
            };
            show(&args.common, output, run, &repeat("pinned", args))
        }
        PathsCommand::Small(args) => {
            let run = |on_row: OnRow<'_, _>| {
                paths::small(&config(args), on_row).map_err(Failure::because)
            };
            show(&args.common, output, run, &repeat("small", args))
        }
        PathsCommand::Flows(args) => {
            let run = |on_row: OnRow<'_, _>| {
                let what = flows_config(args);
                paths::flows(&config(&args.paths), &what, on_row).map_err(Failure::because)
            };
            show(&args.paths.common, output, run, &repeat_flows(args))
        }
    }
}

/// An experiment whose rows are about goodput.
type Throughput =
    fn(&PathsConfig, OnRow<'_, ThroughputRow>) -> Result<Vec<ThroughputRow>, ExperimentError>;

fn throughput(
    name: &str,
    args: &PathArgs,
    output: Output,
    run: Throughput,
) -> Result<Outcome, Failure> {
    let run = |on_row: OnRow<'_, _>| run(&config(args), on_row).map_err(Failure::because);
    show(&args.common, output, run, &repeat(name, args))
}

fn config(args: &PathArgs) -> PathsConfig {
    let seed = args.common.seed;
    let mut config =
        if args.common.quick { PathsConfig::quick(seed) } else { PathsConfig::full(seed) };
    if !args.policy.is_empty() {
        config.policies.clone_from(&args.policy);
    }
    if !args.recovery.is_empty() {
        config.recoveries.clone_from(&args.recovery);
    }
    config.ports = args.ports.unwrap_or(config.ports);
    config.controller = args.congestion.unwrap_or(config.controller);
    config
}

fn flows_config(args: &FlowsArgs) -> FlowsConfig {
    let mut config = FlowsConfig::default();
    if !args.load.is_empty() {
        config.loads_percent.clone_from(&args.load);
    }
    config.sizes = args.sizes.unwrap_or(config.sizes);
    config
}

fn repeat(name: &str, args: &PathArgs) -> String {
    let recoveries: Vec<_> =
        args.recovery.iter().map(|&recovery| recovery_name(recovery)).collect();
    [
        command(&format!("paths {name}"), &args.common),
        list_flag("policy", &args.policy),
        flag("ports", args.ports),
        list_flag("recovery", &recoveries),
        flag("congestion", args.congestion),
    ]
    .concat()
}

fn repeat_flows(args: &FlowsArgs) -> String {
    [repeat("flows", &args.paths), list_flag("load", &args.load), flag("sizes", args.sizes)]
        .concat()
}
