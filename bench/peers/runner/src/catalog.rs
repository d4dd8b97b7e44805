//! The peers, and the measurements of each.

use clap::ValueEnum;
use peers_common::Workload;
use serde::Serialize;

/// A library, and the program that uses it.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The name for `--only`, and the name of the directory.
    pub(crate) name: &'static str,
    pub(crate) source: Source,
    pub(crate) variants: &'static [Variant],
}

/// The source of a peer's program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The member `peer-NAME` of this workspace. Its version is the version of `package` in the lock
    /// file.
    Cargo { package: &'static str },
    /// A directory with a Makefile. The program itself reports its version.
    Make,
}

/// A way of using a library.
#[derive(Debug)]
pub(crate) struct Variant {
    /// The name that the peer's program accepts.
    pub(crate) name: &'static str,
    /// The name in tables.
    pub(crate) title: &'static str,
    pub(crate) waits: Waits,
    pub(crate) measurements: &'static [Measurement],
}

/// How client and server wait. This determines the latency: a wake-up costs 10 to 40 µs, and polling
/// costs a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Waits {
    Polling,
    Blocking,
}

/// The measurement of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measurement {
    /// 32 B echo, one call at a time.
    Latency,
    /// 32 B echo, 60 calls at a time.
    Rate,
    /// 8 MiB requests, one at a time.
    Bandwidth1,
    /// 8 MiB requests, 4 at a time.
    Bandwidth4,
}

impl Measurement {
    pub(crate) const ALL: [Self; 4] =
        [Self::Latency, Self::Rate, Self::Bandwidth1, Self::Bandwidth4];

    pub(crate) fn workload(self) -> Workload {
        match self {
            Self::Latency | Self::Rate => Workload::Echo,
            Self::Bandwidth1 | Self::Bandwidth4 => Workload::Bulk,
        }
    }

    pub(crate) fn in_flight(self) -> usize {
        match self {
            Self::Latency | Self::Bandwidth1 => 1,
            Self::Rate => 60,
            Self::Bandwidth4 => 4,
        }
    }
}

impl Waits {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Blocking => "blocking",
        }
    }
}

const ALL: &[Measurement] = &Measurement::ALL;
const SMALL: &[Measurement] = &[Measurement::Latency, Measurement::Rate];
const BULK: &[Measurement] = &[Measurement::Bandwidth1, Measurement::Bandwidth4];

const fn variant(
    name: &'static str,
    title: &'static str,
    waits: Waits,
    measurements: &'static [Measurement],
) -> Variant {
    Variant { name, title, waits, measurements }
}

use Waits::{Blocking, Polling};

/// All peers, in the order of the table.
pub(crate) static PEERS: &[Peer] = &[
    Peer {
        name: "petrel",
        source: Source::Cargo { package: "petrel-rpc" },
        variants: &[
            variant("udp", "Petrel, UDP", Polling, ALL),
            variant("udp-block", "Petrel, UDP", Blocking, ALL),
            variant("shm", "Petrel, shared memory", Polling, ALL),
            variant("client-udp", "Petrel client, UDP", Blocking, ALL),
            variant("sealed-udp", "Petrel, UDP, sealed", Polling, ALL),
            variant("sealed-udp-block", "Petrel, UDP, sealed", Blocking, ALL),
            variant("sealed-client-udp", "Petrel client, UDP, sealed", Blocking, ALL),
            variant("client-shm", "Petrel client, shared memory", Blocking, ALL),
            variant("prost-udp", "Petrel client, typed, UDP", Blocking, SMALL),
            variant("prost-shm", "Petrel client, typed, shared memory", Blocking, SMALL),
            variant("messages-udp", "Petrel client, one stream, UDP", Blocking, SMALL),
            variant("messages-shm", "Petrel client, one stream, shared memory", Blocking, SMALL),
            variant("stream", "Petrel, TCP stream", Polling, ALL),
            variant("stream-block", "Petrel, TCP stream", Blocking, ALL),
        ],
    },
    Peer {
        name: "grpc-cpp",
        source: Source::Make,
        variants: &[variant("unary", "gRPC C++, unary", Blocking, ALL)],
    },
    Peer {
        name: "tonic",
        source: Source::Cargo { package: "tonic" },
        variants: &[
            variant("unary", "tonic, unary", Blocking, ALL),
            variant("tls", "tonic, unary, TLS", Blocking, ALL),
            variant("stream", "tonic, one stream", Blocking, ALL),
        ],
    },
    Peer {
        name: "tarpc",
        source: Source::Cargo { package: "tarpc" },
        variants: &[variant("tcp", "tarpc, TCP", Blocking, ALL)],
    },
    Peer {
        name: "capnp",
        source: Source::Cargo { package: "capnp-rpc" },
        variants: &[variant("tcp", "Cap'n Proto, TCP", Blocking, ALL)],
    },
    Peer {
        name: "quinn",
        source: Source::Cargo { package: "quinn" },
        variants: &[
            variant("streams", "quinn, stream per call", Blocking, ALL),
            variant("datagrams", "quinn, datagrams", Blocking, SMALL),
        ],
    },
    Peer {
        name: "ucx",
        source: Source::Make,
        variants: &[
            variant("tcp", "UCX, TCP", Polling, ALL),
            variant("shm", "UCX, shared memory", Polling, ALL),
        ],
    },
    Peer {
        name: "iceoryx2",
        source: Source::Cargo { package: "iceoryx2" },
        variants: &[
            variant("copied", "iceoryx2, copied", Polling, ALL),
            variant("lent", "iceoryx2, lent", Polling, BULK),
        ],
    },
    Peer {
        name: "aeron",
        source: Source::Cargo { package: "rusteron-media-driver" },
        variants: &[variant("ipc", "Aeron IPC, two streams", Polling, ALL)],
    },
];
