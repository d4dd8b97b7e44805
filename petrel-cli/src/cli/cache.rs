//! Arguments of `petrel cache`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use petrel_cache::limits;
use petrel_command::args::ServerAddress;
use petrel_command::args::address::parse_listen;
use petrel_command::args::values::{IdleChoice, TransportChoice};
use petrel_command::units::{parse_duration, parse_size};

/// A cache in memory: serve and use a cache, also for memcached's clients
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
  petrel cache serve --listen 127.0.0.1:31850 --memory 4GiB --threads 4
  petrel cache serve --listen 127.0.0.1:31850 --memcached 127.0.0.1:11211 --store
  petrel cache serve --memcached 10.0.0.7:11211 --credentials db1 --auth-file users
  petrel cache set 127.0.0.1:31850 petrel seabird --ttl 60s
  petrel cache get 127.0.0.1:31850 petrel
  petrel cache cas 127.0.0.1:31850 petrel albatross --version 1
  petrel cache incr 127.0.0.1:31850 visits --by 5 --initial 0
  petrel cache stats 127.0.0.1:31850
  petrel cache bench --memcached
  petrel cache attacks --attack half-values,connections";

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    Serve(CacheServeArgs),
    /// Print a key's value; the exit code is 1 if there is none
    Get(CacheKeyArgs),
    /// Store a value
    Set(CacheStoreArgs),
    /// Store a value if the key has none; the exit code is 1 if it has
    Add(CacheStoreArgs),
    /// Store a value if the key has one; the exit code is 1 if it has none
    Replace(CacheStoreArgs),
    Cas(CacheCasArgs),
    /// Remove a key; the exit code is 1 if it had no value
    Delete(CacheKeyArgs),
    Touch(CacheTouchArgs),
    Incr(CacheIncrArgs),
    /// Print the counters of all partitions together
    Stats(CacheServerArgs),
    Bench(petrel_bench::cache::CacheBenchArgs),
    Attacks(petrel_bench::cache::CacheAttacksArgs),
}

fn parse_value_size(text: &str) -> Result<usize, String> {
    match parse_size(text)? {
        bytes @ 1..=limits::VALUE_BYTES_MAX => Ok(bytes),
        _ => Err("at most 1MiB".to_owned()),
    }
}

/// Serve a cache until interrupted
///
/// At the end the server answers the requests that it has read, and closes the connections.
#[derive(Args, Debug)]
pub(crate) struct CacheServeArgs {
    /// Address and TCP port for the other subcommands and for clients of the library; port 0 selects any
    /// free port
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen, required_unless_present_any = ["memcached", "memcached_path"])]
    pub(crate) listen: Option<SocketAddr>,

    /// Address and TCP port for memcached's text and meta protocols; port 0 selects any free port
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub(crate) memcached: Option<SocketAddr>,

    /// A socket in the file system for memcached's protocol, as memcached's -s; only the server's user may open it
    #[arg(long, value_name = "PATH")]
    pub(crate) memcached_path: Option<PathBuf>,

    /// Refuse `flush_all` of memcached's clients, as memcached's -F
    #[arg(long)]
    pub(crate) refuse_flush: bool,

    /// Serve memcached's clients without TLS in spite of --credentials: on loopback
    ///
    /// With --credentials the port of --memcached speaks TLS 1.3, as memcached's -Z, and clients need no certificate.
    #[arg(long, requires = "memcached")]
    pub(crate) memcached_plain: bool,

    /// Demand certificates of memcached's clients, too
    #[arg(long, requires = "memcached", conflicts_with = "memcached_plain")]
    pub(crate) memcached_mutual: bool,

    /// Demand a password of memcached's clients: a file of lines USER:PASSWORD, as memcached's -Y
    ///
    /// A client's first command is then a `set` of any key with the value `USER PASSWORD`. A changed file is read again.
    #[arg(long, value_name = "FILE", requires = "memcached")]
    pub(crate) auth_file: Option<PathBuf>,

    /// Transport offered to clients of the library
    #[arg(long, value_enum, default_value_t = TransportChoice::Auto)]
    pub(crate) transport: TransportChoice,

    /// How the threads wait for packets of clients of the library
    #[arg(long, value_enum, default_value_t = IdleChoice::Spin)]
    pub(crate) idle: IdleChoice,

    /// Allow an address that other hosts can reach, without any authentication
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Memory for items, index, buffers and stacks; the program's code, which processes share, comes on top
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    pub(crate) memory: usize,

    /// Partitions of the keys, with a thread each; with both addresses, as many threads serve memcached's
    /// clients
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

    /// Longest value, at most 1 MiB; an eighth of a partition is a limit, too
    #[arg(long, short = 'I', value_name = "SIZE", default_value_t = limits::VALUE_BYTES_MAX, value_parser = parse_value_size)]
    pub(crate) value_size_max: usize,

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

/// The arguments to reach a server.
#[derive(Args, Debug)]
pub(crate) struct CacheServerArgs {
    /// The address of the server's --listen; without a port it is 31850
    #[arg(value_name = "ADDR")]
    pub(crate) address: ServerAddress,

    /// How long to wait for the connection, and for every answer
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// The key of an operation.
#[derive(Args, Debug)]
pub(crate) struct CacheKeyArgs {
    #[command(flatten)]
    pub(crate) server: CacheServerArgs,

    /// Key, of 1 to 250 bytes
    pub(crate) key: String,
}

/// A value to store.
#[derive(Args, Debug)]
pub(crate) struct CacheStoreArgs {
    #[command(flatten)]
    pub(crate) of: CacheKeyArgs,

    /// Value, up to 1 MiB
    pub(crate) value: String,

    /// Time that the value has, in whole seconds [default: no end]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,

    /// A number that is stored beside the value
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) flags: u32,
}

/// Store a value if the key's value has this version; the exit code is 1 if it has not
#[derive(Args, Debug)]
pub(crate) struct CacheCasArgs {
    #[command(flatten)]
    pub(crate) store: CacheStoreArgs,

    /// Version, as `get --json` prints it
    #[arg(long, value_name = "N")]
    pub(crate) version: u64,
}

/// Change the time that a key's value has; the exit code is 1 if there is none
#[derive(Args, Debug)]
pub(crate) struct CacheTouchArgs {
    #[command(flatten)]
    pub(crate) of: CacheKeyArgs,

    /// Time from now, in whole seconds [default: no end]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
}

/// Add to a number and print the sum; the exit code is 1 if there is no number
#[derive(Args, Debug)]
pub(crate) struct CacheIncrArgs {
    #[command(flatten)]
    pub(crate) of: CacheKeyArgs,

    /// Number to add; a negative number is subtracted, down to 0
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) by: i64,

    /// Number to begin with if the key has no value
    #[arg(long, value_name = "N")]
    pub(crate) initial: Option<u64>,
}
