//! The kernel's measurements of the path to a peer.
//!
//! The unsafe code here makes the kernel fill a buffer of plain bytes.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::sockopt;

/// Offset of `tcpi_min_rtt` in `struct tcp_info`: behind 8 bytes, 24 words, 4 double words and 3
/// words (`linux/tcp.h`; present since Linux 4.6, and later fields follow behind).
const MIN_RTT_OFFSET: usize = 8 + 24 * 4 + 4 * 8 + 3 * 4;

/// The kernel's values for "not measured yet" and for sockets that never measure.
const NOT_MEASURED: [u32; 2] = [u32::MAX, 0];

/// Returns the shortest round trip the kernel has seen on a TCP connection, in nanoseconds. The
/// kernel's window is the last five minutes unless configured otherwise
/// (`net.ipv4.tcp_min_rtt_wlen`). The figure contains no time of the peer's process. `None`:
/// nothing measured yet, the kernel does not report the value, or the socket is not TCP.
pub fn tcp_min_rtt_ns(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut info = [0u8; MIN_RTT_OFFSET + size_of::<u32>()];
    let mut len = info.len() as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), info.as_mut_ptr().cast());
    // SAFETY: `to` and `len` describe a live array; the kernel writes at most `len` bytes.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len) };
    let is_told = result == 0 && len as usize == info.len();
    let min_rtt_us = u32::from_ne_bytes(*info.last_chunk()?);
    let is_measured = is_told && !NOT_MEASURED.contains(&min_rtt_us);
    is_measured.then(|| min_rtt_us.saturating_mul(1_000))
}

/// Returns the MTU that the kernel knows for the path of a TCP connection, in bytes of IP packet: the answer of [`crate::udp::path_mtu`]
/// for the two ends, without another socket. `None`: the connection has no route at present.
pub fn tcp_path_mtu(socket: BorrowedFd<'_>) -> Option<usize> {
    sockopt::ip_mtu(socket).or_else(|_| sockopt::ipv6_mtu(socket)).ok().map(|mtu| mtu as usize)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn tcp_min_rtt__is_within_a_round_trip_that_was_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let started = Instant::now();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"?").unwrap();
        server.read_exact(&mut [0]).unwrap();
        server.write_all(b"!").unwrap();
        client.read_exact(&mut [0]).unwrap();
        let longest_ns = started.elapsed().as_nanos() as u64;
        let measured_ns = tcp_min_rtt_ns(client.as_fd()).unwrap();
        assert!((1_000..=longest_ns.max(1_000)).contains(&u64::from(measured_ns)), "{measured_ns}");
        assert_eq!(measured_ns % 1_000, 0, "the kernel counts microseconds");
    }

    #[test]
    fn tcp_path_mtu__is_that_of_datagrams_between_the_ends() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                return petrel_skip::skip(petrel_skip::Need::Ipv6, "no IPv6 on loopback");
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, remote) = listener.accept().unwrap();
            let mtu = crate::udp::path_mtu(server.local_addr().unwrap().ip(), remote).unwrap();
            assert_eq!(tcp_path_mtu(server.as_fd()), Some(mtu), "{address}");
            assert_eq!(tcp_path_mtu(client.as_fd()), Some(mtu), "{address}");
        }
        assert_eq!(tcp_path_mtu(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()), None);
    }

    #[test]
    fn tcp_min_rtt__of_others_is_not_known() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(tcp_min_rtt_ns(udp.as_fd()), None);
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(tcp_min_rtt_ns(near.as_fd()), None);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(tcp_min_rtt_ns(listener.as_fd()), None, "it has no peer");
    }
}
