//! The arguments of `petrel demo`.

use clap::Args;

/// A first RPC, a verified 8 MiB transfer and a short benchmark, in one process
///
/// Starts a server and a client in this process, makes a call and prints the reply. Moves 8 MiB to the
/// server and back and compares the checksums. Then measures latency, rate and bandwidth over UDP and
/// over shared memory. Needs no root and no second machine, and takes some seconds.
#[derive(Args, Debug)]
#[command(after_long_help = DEMO_AFTER_HELP)]
pub struct DemoArgs {
    /// Skip the benchmark
    #[arg(long)]
    pub(crate) no_bench: bool,
}

const DEMO_AFTER_HELP: &str = "\
Examples:
  petrel demo
  petrel demo --no-bench
  petrel demo --json

The figures are of one short run with both ends on this host. `petrel bench` measures longer and
between hosts; `petrel doctor` says what holds this host back.";
