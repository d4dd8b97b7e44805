//! Arguments of `petrel serve` and of `petrel demo`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use petrel_command::args::address::parse_listen;
use petrel_command::args::values::{IdleChoice, TransportChoice, parse_server_message_max};
use petrel_command::units::{parse_duration, parse_size};

/// Serve the methods that ping, call and bench use, until interrupted
///
/// Opens the control port, over which clients connect and agree on transport and limits. Opens one or
/// more endpoints, with a thread and a data port per endpoint. The first printed address is the address
/// to pass to `petrel ping`.
#[derive(Args, Debug)]
#[command(after_long_help = SERVE_AFTER_HELP)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) listen: ListenArgs,

    /// Number of endpoints, with a thread per endpoint; clients choose an endpoint by number, from 0
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) endpoints: u16,

    /// How an endpoint's thread waits for packets
    #[arg(long, value_enum, default_value_t = IdleChoice::Spin)]
    pub(crate) idle: IdleChoice,

    /// Largest IP packet to send, in bytes [default: the route's, at most 9000]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1280..))]
    pub(crate) mtu: Option<u16>,

    /// Largest message, as request and as reply, 1KiB to 1GiB
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_server_message_max)]
    pub(crate) message_max: u32,

    /// Serve a region of this size for one-sided operations, and print its key
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) region: Option<usize>,

    /// Time for clients to end their calls and leave, after Ctrl-C or SIGTERM; 0s ends at once
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) drain: Duration,
}

/// Where a server listens, and which hosts can reach it.
#[derive(Args, Debug)]
pub(crate) struct ListenArgs {
    /// Address and TCP port of the control plane
    ///
    /// A host name is looked up. IPv6 addresses stand in brackets. Port 0 selects and prints any free
    /// port.
    #[arg(long = "listen", value_name = "ADDR:PORT", default_value = "127.0.0.1:31850")]
    #[arg(value_parser = parse_listen)]
    pub(crate) address: SocketAddr,

    /// Transport offered to clients
    #[arg(long, value_enum, default_value_t = TransportChoice::Auto)]
    pub(crate) transport: TransportChoice,

    /// Allow an address that other hosts can reach, without any authentication
    ///
    /// Without this flag the server refuses to listen anywhere except on loopback. With it everyone who
    /// can reach the port can call the server and read along.
    #[arg(long)]
    pub(crate) insecure: bool,
}

const SERVE_AFTER_HELP: &str = "\
Examples:
  petrel serve
  petrel serve --listen [::1]:31850 --transport udp
  petrel serve --listen 10.0.0.7:31850 --insecure --endpoints 4 --idle poll

Methods, by number and name; numbers in messages are little-endian:
  1 echo    answers the request
  2 sink    answers the request's length and checksum, 8 bytes each
  3 source  request: size (4 bytes), seed (8 bytes); answers so many patterned bytes
  4 fail    request: a gRPC status (1 byte), a text; the call ends with them
  5 hello   request: a name; answers a greeting
  6 sample  answers the request's length and a sum of 8 bytes in every 8 KiB
  7 samples the same with 8 bytes in every KiB

With --json: one object when it is ready, {event, address, pid, endpoints, transports}, and one at
the end, {event, sessions_cut, endpoints}, with the counters of each endpoint.

Stop it with Ctrl-C or SIGTERM: it takes no sessions any more, answers the calls that are on their
way, and ends when its clients have left. A second signal ends it at once. Look inside from another shell with `petrel stats 127.0.0.1:31850`.";
