//! Arguments of `petrel sim experiment paths`.

use clap::{Args, Subcommand};
use petrel_proto::Recovery;
use petrel_sim::experiment::paths::Policy;
use petrel_sim::experiment::{Controller, recovery_of};
use petrel_sim::traffic::SizeDistribution;

use super::experiment::CommonArgs;

/// Measure sessions over networks with several paths between hosts
///
/// Long requests or flows of published sizes travel over equal and unequal paths, with loss and cuts on some.
/// Every answer is checked.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct PathsArgs {
    #[command(subcommand)]
    pub(crate) what: PathsCommand,
}

const AFTER_HELP: &str = "\
Examples:
  petrel sim experiment paths loss
  petrel sim experiment paths cut --recovery selective --plot cut.svg
  petrel sim experiment paths flows --load 80 --quick";

/// The experiment to run.
#[derive(Debug, Subcommand)]
pub(crate) enum PathsCommand {
    /// Goodput with loss on three of four paths
    Loss(PathArgs),
    /// Goodput over time while three of four paths go down and return
    Cut(PathArgs),
    /// Goodput over equal paths, unequal ones, and with one that is nearly useless
    Unequal(PathArgs),
    /// Goodput of 25 sessions between 25 hosts under five leaves
    Permutation(PathArgs),
    /// Goodput of 160 sessions between 320 hosts
    Fabric(PathArgs),
    /// Completion times of flows of published sizes, which begin whatever became of the earlier ones
    Flows(FlowsArgs),
    /// Goodput of one to nine senders to one receiver
    Incast(PathArgs),
}

/// Flags of every experiment with paths.
#[derive(Args, Clone, Debug)]
pub(crate) struct PathArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,

    /// How sessions choose paths, separated by commas: single [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) policy: Vec<Policy>,

    /// The recovery methods to compare, separated by commas: selective, go-back-n [default: both]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = recovery_of)]
    pub(crate) recovery: Vec<Recovery>,

    /// The senders' congestion control: none, timely, dcqcn or swift [default: dcqcn]
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<Controller>,
}

/// Arguments of `petrel sim experiment paths flows`.
#[derive(Args, Debug)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    pub(crate) paths: PathArgs,

    /// Offered load, in percent of the hosts' links, separated by commas [default: 30,50,80]
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) load: Vec<u32>,

    /// The sizes of flows: web-search or data-mining [default: web-search]
    #[arg(long, value_name = "NAME")]
    pub(crate) sizes: Option<SizeDistribution>,
}
