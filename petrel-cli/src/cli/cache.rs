//! Arguments of `petrel cache`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Subcommand};
use petrel_cache::limits;
use petrel_command::args::address::parse_listen;
use petrel_command::units::{parse_duration, parse_size};

/// A cache in memory, for memcached's clients
///
/// The cache has a partition per thread: an index over a circular log. When the memory is in use, the
/// oldest items make place for new ones. The data is lost when the server's process ends.
#[derive(Args, Debug)]
#[command(after_long_help = CACHE_AFTER_HELP)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) what: CacheCommand,
}

const CACHE_AFTER_HELP: &str = "\
Examples:
  petrel cache serve --memcached 127.0.0.1:11211
  petrel cache serve --memcached 127.0.0.1:11211 --memory 4GiB --threads 4
  petrel cache serve --memcached 127.0.0.1:11211 --store";

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    Serve(CacheServeArgs),
}

/// Serve a cache until interrupted
///
/// At the end the server answers the requests that it has read, and closes the connections.
#[derive(Args, Debug)]
pub(crate) struct CacheServeArgs {
    /// Address and TCP port for memcached's text and meta protocols; port 0 selects any free port
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub(crate) memcached: SocketAddr,

    /// Allow an address that other hosts can reach, without any authentication
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Memory of the process: items, index, buffers of connections and the rest
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub(crate) memory: usize,

    /// Threads, with a partition of the keys each
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(limits::THREADS_MAX)))]
    pub(crate) threads: u16,

    /// Evict nothing: a value without room is refused
    #[arg(long)]
    pub(crate) store: bool,

    /// Expected mean size of an item (key, value and 24 bytes), from which the index gets its size
    #[arg(long, value_name = "SIZE", default_value_t = limits::ITEM_BYTES_EXPECTED_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(32..=1 << 20))]
    pub(crate) item_size: u32,

    /// Most connections; beyond, a new one is refused
    #[arg(long, value_name = "N", default_value_t = limits::CONNECTIONS_MAX_DEFAULT)]
    pub(crate) connections: usize,

    /// Time after which a connection without a request is closed [default: never]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) idle_timeout: Option<Duration>,

    /// CPUs of the threads, in turn, as in 1,2,3 [default: the scheduler's choice]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
}
