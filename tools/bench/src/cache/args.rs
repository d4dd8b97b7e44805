//! The arguments of `petrel cache bench` and `petrel cache attacks`.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use petrel_command::args::BenchTransport;
use petrel_command::units::{exact_duration, parse_duration, parse_size};

use super::attacks::CacheAttack;
use super::keys::{Items, Popularity};

/// The popularity of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// All keys are equally popular
    Uniform,
    /// Zipf's law with the exponent .99
    Zipf,
}

impl Distribution {
    /// Returns the name, as `--distribution` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }

    /// Returns the exponent of Zipf's law.
    pub fn exponent(self) -> f64 {
        match self {
            Self::Uniform => 0.0,
            Self::Zipf => 0.99,
        }
    }
}

/// A mix of GETs and SETs: items, keys, servers and windows.
#[derive(Args, Clone, Debug)]
pub struct MixArgs {
    /// Transports to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [BenchTransport::Udp, BenchTransport::Shm])]
    pub transport: Vec<BenchTransport>,

    /// GETs per hundred operations; the others are SETs
    #[arg(long, value_name = "PERCENT", default_value_t = 95)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub get: u8,

    /// Bytes of a key
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(16..=250))]
    pub key_size: u16,

    /// Bytes of a value
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub value_size: u32,

    /// Items to store first
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1_000..=200_000_000))]
    pub items: u32,

    /// Popularity of keys
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Distribution::Uniform, Distribution::Zipf])]
    pub distribution: Vec<Distribution>,

    /// Partitions of the server, with a thread each
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub partitions: u16,

    /// Operations in flight; over TCP divided between 16 connections
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub in_flight: u16,

    /// Memory of the server [default: twice the items, and 256 MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<usize>,

    /// Rounds with a window of every kind
    #[arg(long, value_name = "N", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,

    /// Length of a window
    #[arg(long, value_name = "DURATION", default_value = "300ms", value_parser = parse_duration)]
    pub window: Duration,
}

/// Bytes of an item in the log beyond key and value.
const ITEM_HEAD_BYTES: usize = 24;

/// Bytes of an item in the index, with its part of the free entries.
const INDEX_ITEM_BYTES: usize = 16;

impl MixArgs {
    /// Returns the popularity of keys by each distribution, with its name.
    pub fn popularities(&self) -> Vec<(&'static str, Rc<Popularity>)> {
        let popularity = |it| Rc::new(Popularity::new(self.items, it));
        self.distribution.iter().map(|it| (it.name(), popularity(it.exponent()))).collect()
    }

    /// Returns the sizes of keys and values.
    pub fn item_sizes(&self) -> Items {
        Items { key_bytes: self.key_size.into(), value_bytes: self.value_size as usize }
    }

    /// Returns the bytes of an item in the log.
    pub fn item_bytes(&self) -> usize {
        ITEM_HEAD_BYTES + usize::from(self.key_size) + self.value_size as usize
    }

    /// Returns the memory of the server, or of all partitions.
    pub fn memory_bytes(&self) -> usize {
        let least = 2 * self.items as usize * (self.item_bytes() + INDEX_ITEM_BYTES);
        self.memory.unwrap_or(least + (256 << 20))
    }

    /// Returns the flags that repeat these arguments.
    pub fn flags(&self) -> String {
        let transports: Vec<_> = self.transport.iter().map(|it| it.name()).collect();
        let distributions: Vec<_> = self.distribution.iter().map(|it| it.name()).collect();
        let memory = self.memory.map_or(String::new(), |bytes| format!(" --memory {bytes}"));
        format!(
            " --transport {} --get {} --key-size {} --value-size {} --items {}{memory} --distribution {} \
             --partitions {} --in-flight {} --rounds {} --window {}",
            transports.join(","),
            self.get,
            self.key_size,
            self.value_size,
            self.items,
            distributions.join(","),
            self.partitions,
            self.in_flight,
            self.rounds,
            exact_duration(self.window),
        )
    }
}

/// Measure a mix of GETs and SETs beside an echo
///
/// A server in a separate process has all items. Windows with an echo of an item's size, by another process, and with
/// the mix take turns. With --memcached the mix also goes through memcached's protocol over TCP, pipelined, to the
/// same server or to a server at another address. The rate per core counts operations by the run time of the server's
/// threads. Every answer is checked; the exit code is 1 if one was wrong, or if more than one operation in 10 000 found
/// no item. Single items may be missing: a full bucket of the index loses its oldest item.
#[derive(Args, Debug)]
pub struct CacheBenchArgs {
    #[command(flatten)]
    pub(crate) mix: MixArgs,

    /// Measure memcached's protocol, too: of the same server, or of one at this address, which keeps its items
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1)]
    pub(crate) memcached: Option<Option<SocketAddr>>,

    /// Process of the server at --memcached's address, whose run time gives the rate per core
    #[arg(long, value_name = "PID", requires = "memcached")]
    pub(crate) pid: Option<u32>,
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
