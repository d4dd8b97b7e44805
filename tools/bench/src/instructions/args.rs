//! Arguments of `petrel bench instructions`, and of the program that it counts.

use clap::Args;
use petrel_command::args::BenchTransport;

use super::Workload;

/// Arguments of `petrel bench instructions`.
#[derive(Args, Debug)]
pub(crate) struct InstructionsArgs {
    /// Transports to count on, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,
}

/// Arguments of the process that `petrel bench instructions` starts under valgrind.
#[derive(Args, Debug)]
pub(crate) struct CountedArgs {
    /// The workload to run
    #[arg(value_parser = Workload::named)]
    pub(crate) workload: &'static Workload,

    /// Calls to make
    pub(crate) calls: u64,
}
