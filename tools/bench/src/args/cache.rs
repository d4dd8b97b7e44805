//! The arguments of `petrel cache bench` and `petrel cache attacks`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use petrel_cache::Lookups;
use petrel_command::args::BenchTransport;
use petrel_command::args::values::parse_plot;
use petrel_command::units::{parse_duration, parse_size};

use crate::cache::attacks::CacheAttack;
use crate::cache::{Scheme, SeedFigure};

/// The popularity of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Distribution {
    /// All keys are equally popular
    Uniform,
    /// Zipf's law with the exponent .99
    Zipf,
}

impl Distribution {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }

    pub(crate) fn exponent(self) -> f64 {
        match self {
            Self::Uniform => 0.0,
            Self::Zipf => 0.99,
        }
    }
}

/// Measure a mix of GETs and SETs beside an echo, or compare HERD, Pilaf and FaRM on a modelled network card
///
/// A server in a separate process has all items. Windows with an echo of an item's size, by another process, and with
/// the mix take turns. With --memcached the mix also goes through memcached's protocol over TCP, pipelined, to the
/// same server or to a server at another address. The rate per core counts operations by the run time of the server's
/// threads. Every answer is checked; the exit code is 1 if one was wrong, or if more than one operation in 10 000 found
/// no item. Single items may be missing: a full bucket of the index loses its oldest item.
///
/// With --lookups, the ways of looking items up are compared in one process, with the items stored directly.
///
/// With --scheme nothing is measured: a model of HERD's network card runs in virtual time.
#[derive(Args, Debug)]
pub struct CacheBenchArgs {
    /// Transports to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [BenchTransport::Udp, BenchTransport::Shm])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Measure memcached's protocol, too: of the same server, or of one at this address, which keeps its items
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1)]
    pub(crate) memcached: Option<Option<SocketAddr>>,

    /// Process of the server at --memcached's address, whose run time gives the rate per core
    #[arg(long, value_name = "PID", requires = "memcached")]
    pub(crate) pid: Option<u32>,

    /// GETs per hundred operations; the others are SETs
    #[arg(long, value_name = "PERCENT", default_value_t = 95)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) get: u8,

    /// Bytes of a key
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(16..=250))]
    pub(crate) key_size: u16,

    /// Bytes of a value
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub(crate) value_size: u32,

    /// Items to store first
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1_000..=200_000_000))]
    pub(crate) items: u32,

    /// Popularity of keys
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Distribution::Uniform, Distribution::Zipf])]
    pub(crate) distribution: Vec<Distribution>,

    /// Partitions of the server, with a thread each
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) partitions: u16,

    /// Operations in flight; over TCP divided between 16 connections
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,

    /// Memory of the server [default: twice the items, and 256 MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<usize>,

    /// Rounds with a window of every kind
    #[arg(long, value_name = "N", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,

    /// Length of a window
    #[arg(long, value_name = "DURATION", default_value = "300ms", value_parser = parse_duration)]
    pub(crate) window: Duration,

    /// Compare ways of looking items up: `plain`, `prefetched`, `batched`. Clients and servers take turns on one
    /// thread; the rate is that of servers with a CPU each
    #[arg(long, value_name = "HOW", value_delimiter = ',', conflicts_with_all = ["memcached", "scheme"])]
    pub(crate) lookups: Vec<Lookups>,

    /// Further accesses to memory before a look-up, each of which depends on the one before
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0], requires = "lookups")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=64))]
    pub(crate) accesses: Vec<u8>,

    /// Systems to compare on the modelled card, in place of a measurement
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) scheme: Vec<Scheme>,

    /// Figures of the seed that the model draws
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [SeedFigure::Mixes])]
    pub(crate) figure: Vec<SeedFigure>,

    /// Draw a figure of the model into a file (SVG)
    #[arg(long, value_name = "FILE", value_parser = parse_plot, requires = "scheme")]
    pub(crate) plot: Option<PathBuf>,
}

/// Attack the port of memcached's protocol, of a cache and of memcached side by side
///
/// Honest clients store and fetch values of several sizes all the time, and check each answer; a newcomer connects in
/// each window. Windows without and with the attack take turns. The exit code is 1 if honest clients of the cache fare worse
/// than those of memcached: more failed calls or newcomers, or, under an attack that does not flood, a rate of less than 0.9
/// of memcached's. memcached must be installed.
#[derive(Args, Debug)]
pub struct CacheAttacksArgs {
    /// Attacks to run, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = CacheAttack::value_variants().to_vec())]
    pub(crate) attack: Vec<CacheAttack>,

    /// Windows without each attack, and as many with it, for each server
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,

    /// Length of every window
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) window: Duration,

    /// Memory of each server
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = parse_size)]
    pub(crate) memory: usize,

    /// Threads of each server
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: u16,

    /// The program of memcached
    #[arg(long, value_name = "PROGRAM", default_value = "memcached")]
    pub(crate) beside: String,
}
