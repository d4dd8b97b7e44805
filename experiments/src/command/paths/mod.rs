//! `paths`: several paths between hosts.

mod cut;
mod flows;
mod ordered;
mod shares;
mod small;
mod throughput;
mod veth;

use crate::sim::paths::{self, FlowsConfig, PathsConfig};
use crate::sim::{ExperimentError, recovery_name};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;

use super::rows::Row;
use super::{OnRow, command, flag, list_flag, set_list, simulate};
use crate::args::{FlowsArgs, PathArgs, PathsCommand, VethPathArgs};

/// Runs the experiment and prints its figures.
pub(super) fn run(what: &PathsCommand, output: Output) -> Result<Outcome, Failure> {
    match what {
        PathsCommand::Loss(args) if args.veth => veth::run("loss", args, output),
        PathsCommand::Cut(args) if args.veth => veth::run("cut", args, output),
        PathsCommand::Permutation(args) if args.veth => veth::run("permutation", args, output),
        PathsCommand::Loss(args) => {
            simulate_paths("loss", &args.paths, output, |config, on_row| {
                paths::loss(config, on_row)
            })
        }
        PathsCommand::Unequal(args) => {
            simulate_paths("unequal", args, output, |config, on_row| paths::unequal(config, on_row))
        }
        PathsCommand::Permutation(args) => {
            simulate_paths("permutation", &args.paths, output, |config, on_row| {
                paths::permutation(config, on_row)
            })
        }
        PathsCommand::Fabric(args) => {
            simulate_paths("fabric", args, output, |config, on_row| paths::fabric(config, on_row))
        }
        PathsCommand::Incast(args) => {
            simulate_paths("incast", args, output, |config, on_row| paths::incast(config, on_row))
        }
        PathsCommand::Cut(VethPathArgs { paths: args, .. }) => {
            simulate_paths("cut", args, output, |config, on_row| paths::cut(config, on_row))
        }
        PathsCommand::Fair(args) => {
            simulate_paths("fair", args, output, |config, on_row| paths::fair(config, on_row))
        }
        PathsCommand::Ordered(args) => {
            simulate_paths("ordered", args, output, |config, on_row| paths::ordered(config, on_row))
        }
        PathsCommand::Pinned(args) => {
            simulate_paths("pinned", args, output, |config, on_row| paths::pinned(config, on_row))
        }
        PathsCommand::Small(args) => {
            simulate_paths("small", args, output, |config, on_row| paths::small(config, on_row))
        }
        PathsCommand::Flows(args) => {
            let (config, flows) = (config(&args.paths), flows_config(args));
            simulate(&args.paths.common, output, &repeat_flows(args), |on_row| {
                paths::flows(&config, &flows, on_row)
            })
        }
    }
}

fn simulate_paths<R: Row>(
    name: &str,
    args: &PathArgs,
    output: Output,
    run: impl FnOnce(&PathsConfig, OnRow<'_, R>) -> Result<Vec<R>, ExperimentError>,
) -> Result<Outcome, Failure> {
    let config = config(args);
    simulate(&args.common, output, &repeat(name, args), |on_row| run(&config, on_row))
}

fn config(args: &PathArgs) -> PathsConfig {
    let mut config = args.common.choose(PathsConfig::quick, PathsConfig::full);
    set_list(&mut config.policies, &args.policy);
    set_list(&mut config.recoveries, &args.recovery);
    config.ports = args.ports.unwrap_or(config.ports);
    config.controller = args.congestion.unwrap_or(config.controller);
    config
}

fn flows_config(args: &FlowsArgs) -> FlowsConfig {
    let mut config = FlowsConfig::default();
    set_list(&mut config.loads_percent, &args.load);
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
