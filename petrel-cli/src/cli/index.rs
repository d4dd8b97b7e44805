//! Arguments of `petrel index`.

use std::time::Duration;

use clap::{Args, Subcommand};
use petrel_command::args::values::IdleChoice;
use petrel_command::units::{parse_duration, parse_size};
use petrel_index::limits;

use super::client::ServerArgs;
use super::server::ListenArgs;

/// An ordered in-memory index: serve and use an index
///
/// Two tables, ordered by key: words, with numbers of 8 bytes as keys and values, and bytes, with keys
/// up to 1 KiB and values up to 64 KiB. The receiving endpoint answers lookups, worker threads answer
/// scans. The data is lost when the server's process ends.
#[derive(Args, Debug)]
#[command(after_long_help = INDEX_AFTER_HELP)]
pub(crate) struct IndexArgs {
    #[command(subcommand)]
    pub(crate) what: IndexCommand,
}

const INDEX_AFTER_HELP: &str = "\
Examples:
  petrel index serve --listen 127.0.0.1:31850 --dispatch 2 --workers 2
  petrel index put 127.0.0.1:31850 17 4711
  petrel index get 127.0.0.1:31850 17
  petrel index put 127.0.0.1:31850 --bytes petrel seabird
  petrel index scan 127.0.0.1:31850 --bytes --from p --limit 10
  petrel index scan 127.0.0.1:31850 --after 16 --limit 128 --sum
  petrel index status 127.0.0.1:31850";

#[derive(Debug, Subcommand)]
pub(crate) enum IndexCommand {
    Serve(IndexServeArgs),
    /// Print a key's value; the exit code is 1 if the key does not exist
    Get(IndexKeyArgs),
    Put(IndexPutArgs),
    /// Remove a key; the exit code is 1 if the key did not exist
    Delete(IndexKeyArgs),
    Scan(IndexScanArgs),
    Status(IndexStatusArgs),
}

/// Serve an index until interrupted
///
/// Stops without losing a call: the server asks clients to leave, and serves until all have left.
#[derive(Args, Debug)]
pub(crate) struct IndexServeArgs {
    #[command(flatten)]
    pub(crate) listen: ListenArgs,

    /// Dispatch endpoints, with a thread per endpoint; clients choose an endpoint by number, from 0
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(limits::DISPATCH_MAX)))]
    pub(crate) dispatch: u16,

    /// Worker threads for scans
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(limits::WORKERS_MAX)))]
    pub(crate) workers: u16,

    /// How an endpoint's thread waits for packets
    #[arg(long, value_enum, default_value_t = IdleChoice::Spin)]
    pub(crate) idle: IdleChoice,

    /// Words that the table is sized for, at 64 bytes each; with more, lookups get slower
    #[arg(long, value_name = "N", default_value_t = limits::WORDS_EXPECTED_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=limits::WORDS_MAX))]
    pub(crate) words: u64,

    /// Most words that the table accepts
    #[arg(long, value_name = "N", default_value_t = limits::WORDS_MAX)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=limits::WORDS_MAX))]
    pub(crate) words_max: u64,

    /// Memory for the table of bytes: its keys, its values, and 128 bytes per pair
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub(crate) bytes_max: usize,

    /// CPUs of the dispatch threads, in turn, as in 1,2,3 [default: the scheduler's choice]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,

    /// Time for clients to leave at the end
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) drain: Duration,
}

/// The key of an operation.
#[derive(Args, Debug)]
pub(crate) struct IndexKeyArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Key: a number, in decimal or after 0x; with --bytes a text
    pub(crate) key: String,

    /// Use the table of bytes
    #[arg(long)]
    pub(crate) bytes: bool,
}

/// Set a key's value
#[derive(Args, Debug)]
pub(crate) struct IndexPutArgs {
    #[command(flatten)]
    pub(crate) of: IndexKeyArgs,

    /// Value, written as the key
    pub(crate) value: String,
}

/// Print pairs in the order of their keys, or the sum of their values
#[derive(Args, Debug)]
pub(crate) struct IndexScanArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// First key [default: the lowest]
    #[arg(long, value_name = "KEY", conflicts_with = "after")]
    pub(crate) from: Option<String>,

    /// Key after which the scan begins
    #[arg(long, value_name = "KEY")]
    pub(crate) after: Option<String>,

    /// Pairs at most
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) limit: usize,

    /// Print the sum of the values after --after, in place of the pairs
    #[arg(long, conflicts_with_all = ["bytes", "from"], requires = "after")]
    pub(crate) sum: bool,

    /// Use the table of bytes
    #[arg(long)]
    pub(crate) bytes: bool,
}

/// Print the server's counters: keys, bytes, requests by method
#[derive(Args, Debug)]
pub(crate) struct IndexStatusArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
