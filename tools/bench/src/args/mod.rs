//! Arguments of `petrel demo`, `petrel bench`, `petrel index bench`, `petrel cache bench`, `petrel cache attacks` and `petrel sim experiment`.

mod demo;

#[cfg(feature = "full")]
mod batch;
#[cfg(feature = "full")]
mod bench;
#[cfg(feature = "full")]
mod cache;
#[cfg(feature = "full")]
mod experiment;
#[cfg(feature = "full")]
mod index;
#[cfg(feature = "full")]
mod paths;

pub(crate) use petrel_command::args::{BenchTransport, ServerAddress};

/// The other side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Beside {
    Bare,
    Raised,
    Tcp,
}

#[cfg(feature = "full")]
pub(crate) use batch::{BatchArgs, LookupTable};
#[cfg(feature = "full")]
pub use bench::*;
#[cfg(feature = "full")]
pub use cache::{CacheAttacksArgs, CacheBenchArgs};
pub use demo::DemoArgs;
#[cfg(feature = "full")]
pub use experiment::ExperimentArgs;
#[cfg(feature = "full")]
pub(crate) use experiment::{
    CcCostArgs, CommonArgs, ExperimentCommand, IncastArgs, LossArgs, OverloadArgs, ScaleArgs,
    SmallLossArgs, VethArgs,
};
#[cfg(feature = "full")]
pub use index::IndexBenchArgs;
#[cfg(feature = "full")]
pub(crate) use paths::{FlowsArgs, PathArgs, PathsCommand, VethPathArgs};
