//! Packets that a client sends again while handlers take half a millisecond: `cargo run --release --example slow_handlers`.
//!
//! Nothing is lost over loopback and shared memory, so that every repetition is needless. Requests are small, or 8 MiB that the
//! handler reads. The calls come one after the other from the client's own endpoint.

use std::hint;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use petrel::client::ClientConfig;
use petrel::endpoint::{AllowedTransports, EndpointConfig};
use petrel::{Nexus, Server};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Answers after [`HANDLER_TIME`].
const WAIT: u16 = 1;
/// Reads the request, and answers with the sum of its words, after [`HANDLER_TIME`] at the earliest.
const SUM: u16 = 2;

const HANDLER_TIME: Duration = Duration::from_micros(500);
const CALLS: usize = 2_000;
const LARGE_BYTES: usize = 8 << 20;

fn main() -> Result<(), Failure> {
    println!("{CALLS} calls each, whose handler takes {HANDLER_TIME:?}");
    println!("over  request   packets sent   sent again   probes   timeouts   slowest call");
    for (name, udp) in [("shm", false), ("udp", true)] {
        let mut config = EndpointConfig::default();
        config.transports = AllowedTransports { udp, shm: !udp, stream: false, verbs: false };
        let server = Server::bind("127.0.0.1:0").endpoint(config.clone()).serve(
            |_| (),
            |endpoint| {
                endpoint.on(WAIT, |_, cx, request| {
                    spin_until(Instant::now() + HANDLER_TIME);
                    request.reply(cx, b"")
                });
                endpoint.on(SUM, |_, cx, request| {
                    let end = Instant::now() + HANDLER_TIME;
                    let sum = sum(request.data());
                    spin_until(end);
                    request.reply(cx, &sum.to_le_bytes())
                });
            },
        );
        let server = server.start()?;
        for (method, bytes) in [(WAIT, 0), (SUM, LARGE_BYTES)] {
            measure(name, &config, server.local_addr(), method, bytes)?;
        }
    }
    Ok(())
}

fn measure(
    name: &str,
    config: &EndpointConfig,
    server: SocketAddr,
    method: u16,
    bytes: usize,
) -> Result<(), Failure> {
    let mut endpoint = Nexus::builder().start()?.endpoint(config.clone())?;
    let client = endpoint.client([server], ClientConfig::default());
    let request: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    let expected = if method == SUM { sum(&request).to_le_bytes().to_vec() } else { Vec::new() };
    let mut slowest = Duration::ZERO;
    for _ in 0..CALLS {
        let began = Instant::now();
        let answer = endpoint.block_on(client.call(method, request.clone()))?;
        slowest = slowest.max(began.elapsed());
        assert_eq!(answer, expected);
    }
    let counters = endpoint.stats().protocol;
    println!(
        "{name}   {:>8}   {:>12}   {:>10}   {:>6}   {:>8}   {slowest:?}",
        bytes,
        counters.packets_sent,
        counters.packets_retransmitted,
        counters.probes,
        counters.timeouts
    );
    Ok(())
}

/// Occupies the endpoint, as a handler that computes.
fn spin_until(end: Instant) {
    while Instant::now() < end {
        hint::spin_loop();
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}
