//! Arguments of `petrel demo`, `petrel bench`, `petrel index bench`, `petrel cache bench` and `petrel cache attacks`.

mod demo;

#[cfg(feature = "full")]
mod batch;
#[cfg(feature = "full")]
mod bench;
#[cfg(feature = "full")]
mod cache;
#[cfg(feature = "full")]
mod index;

pub use petrel_command::args::{BenchTransport, ServerAddress};

/// The other side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Beside {
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
pub use index::IndexBenchArgs;
