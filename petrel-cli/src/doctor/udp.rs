//! Datagrams over loopback, segmentation offload both ways, and IPv6.
//!
//! Every check sends real datagrams between two connected sockets, without interference by foreign
//! datagrams. A check waits at most [`TIMEOUT`] for datagrams that must arrive at once.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use super::check::{Check, Status};
use super::ecn;
use super::host::read_number;
use super::paths;
use petrel_transport::socket_option::set_int_option;

const AREA: &str = "udp";

/// Loopback delivers during the send; only a starved machine needs this time.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of one segment: fits any MTU.
const SEGMENT_BYTES: usize = 512;

/// Segments per call: the fewest that need GSO.
const SEGMENTS: usize = 2;

const PAYLOAD: [u8; SEGMENT_BYTES * SEGMENTS] = {
    let mut payload = [0; SEGMENT_BYTES * SEGMENTS];
    let mut index = 0;
    while index < payload.len() {
        payload[index] = (index % 251) as u8;
        index += 1;
    }
    payload
};

pub(super) fn checks() -> Vec<Check> {
    let loopback = loopback();
    let offloads = match loopback.status {
        Status::Ok => [segmentation(), coalescing()],
        // Without loopback these checks would fail as well, and blame the kernel.
        _ => ["udp-gso", "udp-gro"]
            .map(|name| Check::info(AREA, name, "not tried: see udp-loopback")),
    };
    let [segmentation, coalescing] = offloads;
    let marks = ecn::check(loopback.status);
    vec![loopback, segmentation, coalescing, marks, paths::check(), ipv6(), loopback_mtu()]
}

fn loopback() -> Check {
    match round_trip("127.0.0.1:0") {
        Ok(()) => Check::ok(AREA, "udp-loopback", "a datagram over 127.0.0.1 arrived unchanged"),
        Err(error) => Check::fail(
            AREA,
            "udp-loopback",
            format!("a datagram over 127.0.0.1 did not arrive: {error}"),
            "Bring the loopback device up (`ip link set lo up`), and look for a firewall or a \
             sandbox that forbids UDP sockets.",
        ),
    }
}

fn segmentation() -> Check {
    match send_segmented("127.0.0.1:0") {
        Ok(()) => Check::ok(
            AREA,
            "udp-gso",
            format!("{SEGMENTS} datagrams left in one system call and arrived unchanged"),
        ),
        Err(error) => Check::warn(
            AREA,
            "udp-gso",
            format!("not usable: {error}"),
            "Use Linux 4.18 or later outside of sandboxes that filter socket options. Without GSO \
             Petrel makes a system call for every datagram, and sends fewer of them.",
        ),
    }
}

fn coalescing() -> Check {
    match receive_coalesced("127.0.0.1:0") {
        Ok(true) => Check::ok(
            AREA,
            "udp-gro",
            format!("{SEGMENTS} datagrams arrived unchanged in one system call"),
        ),
        Ok(false) => Check::info(
            AREA,
            "udp-gro",
            "the socket option is accepted, but loopback delivers datagrams singly",
        ),
        Err(error) => Check::warn(
            AREA,
            "udp-gro",
            format!("not usable: {error}"),
            "Use Linux 5.0 or later outside of sandboxes that filter socket options. Without GRO \
             Petrel makes a system call for every datagram it receives.",
        ),
    }
}

fn ipv6() -> Check {
    match round_trip("[::1]:0") {
        Ok(()) => Check::ok(AREA, "ipv6-loopback", "a datagram over [::1] arrived unchanged"),
        Err(error) => Check::warn(
            AREA,
            "ipv6-loopback",
            format!("a datagram over [::1] did not arrive: {error}"),
            "IPv4 works without it. To switch IPv6 on: `sudo sysctl -w \
             net.ipv6.conf.lo.disable_ipv6=0` (and no `ipv6.disable=1` on the kernel's command \
             line).",
        ),
    }
}

/// Checks the MTU: a small loopback MTU is legal but slow; every kernel sets 65536 by default.
fn loopback_mtu() -> Check {
    match read_number::<u64>("/sys/class/net/lo/mtu") {
        Some(mtu) if mtu < 9_000 => Check::warn(
            AREA,
            "loopback-mtu",
            format!("{mtu} bytes"),
            "Large messages over loopback take more packets than need be: `sudo ip link set lo mtu \
             65536`.",
        ),
        Some(mtu) => Check::ok(AREA, "loopback-mtu", format!("{mtu} bytes")),
        None => Check::info(AREA, "loopback-mtu", "unknown: /sys/class/net/lo/mtu is not readable"),
    }
}

/// Sends one datagram to the other socket.
fn round_trip(address: &str) -> io::Result<()> {
    let (sender, receiver) = socket_pair(address)?;
    sender.send(&PAYLOAD[..SEGMENT_BYTES])?;
    expect(&receiver, &PAYLOAD[..SEGMENT_BYTES])
}

/// Sends two datagrams by a single call, and receives them separately.
fn send_segmented(address: &str) -> io::Result<()> {
    let (sender, receiver) = socket_pair(address)?;
    enable_segmentation(&sender)?;
    sender.send(&PAYLOAD)?;
    PAYLOAD.chunks(SEGMENT_BYTES).try_for_each(|segment| expect(&receiver, segment))
}

/// Receives two datagrams by a single call: returns false if the option had no effect.
fn receive_coalesced(address: &str) -> io::Result<bool> {
    let (sender, receiver) = socket_pair(address)?;
    set_int_option(&receiver, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    send_all(&sender)?;
    let mut buffer = [0; 2 * PAYLOAD.len()];
    let length = receiver.recv(&mut buffer)?;
    match length {
        SEGMENT_BYTES => Ok(false),
        _ if buffer[..length] == PAYLOAD => Ok(true),
        _ => Err(changed()),
    }
}

/// Sends all segments, by a single call if possible, else separately.
fn send_all(sender: &UdpSocket) -> io::Result<()> {
    if enable_segmentation(sender).is_ok() && sender.send(&PAYLOAD).is_ok() {
        return Ok(());
    }
    set_int_option(sender, libc::SOL_UDP, libc::UDP_SEGMENT, 0).ok();
    PAYLOAD.chunks(SEGMENT_BYTES).try_for_each(|segment| sender.send(segment).map(drop))
}

fn enable_segmentation(sender: &UdpSocket) -> io::Result<()> {
    set_int_option(sender, libc::SOL_UDP, libc::UDP_SEGMENT, SEGMENT_BYTES as libc::c_int)
}

/// Returns two sockets that receive only from their partner.
fn socket_pair(address: &str) -> io::Result<(UdpSocket, UdpSocket)> {
    let (sender, receiver) = (UdpSocket::bind(address)?, UdpSocket::bind(address)?);
    sender.connect(receiver.local_addr()?)?;
    receiver.connect(sender.local_addr()?)?;
    sender.set_write_timeout(Some(TIMEOUT))?;
    receiver.set_read_timeout(Some(TIMEOUT))?;
    Ok((sender, receiver))
}

fn expect(receiver: &UdpSocket, expected: &[u8]) -> io::Result<()> {
    let mut buffer = [0; 2 * PAYLOAD.len()];
    let length = receiver.recv(&mut buffer).map_err(explain_timeout)?;
    if buffer[..length] == *expected { Ok(()) } else { Err(changed()) }
}

/// Explains a timeout, which the system only calls "resource temporarily unavailable".
fn explain_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("nothing came within {} s", TIMEOUT.as_secs()),
        ),
        _ => error,
    }
}

fn changed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it arrived changed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expect__detects_changed_bytes() {
        let (sender, receiver) = socket_pair("127.0.0.1:0").unwrap();
        sender.send(b"other").unwrap();
        let error = expect(&receiver, b"this").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn round_trip__works_on_every_host_that_builds_petrel() {
        round_trip("127.0.0.1:0").unwrap();
    }

    #[test]
    fn receive_coalesced__works_with_and_without_segmentation() {
        let (sender, receiver) = socket_pair("127.0.0.1:0").unwrap();
        send_all(&sender).unwrap();
        expect(&receiver, &PAYLOAD[..SEGMENT_BYTES]).unwrap();
        expect(&receiver, &PAYLOAD[SEGMENT_BYTES..]).unwrap();
    }
}
