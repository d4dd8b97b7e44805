//! The verdicts of the kernel's own test run.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use petrel_skip::{Need, skip};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::*;

const REDIRECT: u32 = 4;
const PASS: u32 = XDP_PASS as u32;

const PORT: u16 = 0x1a2b;
const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const V6: IpAddr = IpAddr::V6(Ipv6Addr::from_bits(0xfdfd_fdfd_fdfd_fdfd_fdfd_fdfd_fdfd_0102));
const LARGEST: usize = 1514;

/// Loopback and its only queue: the kernel demands that they exist.
const ON: (u32, u32) = (1, 0);

/// A frame under construction.
#[derive(Clone)]
struct Frame(Vec<u8>);

impl Frame {
    fn ethernet(kind: u16) -> Self {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        bytes.extend(kind.to_be_bytes());
        Self(bytes)
    }

    fn ipv4(payload: usize) -> Self {
        let mut frame = Self::ethernet(0x0800);
        let length = (28 + payload) as u16;
        frame.0.extend([0x45, 0]);
        frame.0.extend(length.to_be_bytes());
        frame.0.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.udp(PORT, payload)
    }

    fn ipv6(payload: usize) -> Self {
        let mut frame = Self::ethernet(0x86dd);
        frame.0.extend([0x60, 0, 0, 0]);
        frame.0.extend(((8 + payload) as u16).to_be_bytes());
        frame.0.extend([17, 64]);
        frame.0.extend([0xfd; 30]);
        frame.0.extend([1, 2]);
        frame.udp(PORT, payload)
    }

    fn udp(mut self, port: u16, payload: usize) -> Self {
        self.0.extend(999_u16.to_be_bytes());
        self.0.extend(port.to_be_bytes());
        self.0.extend(((8 + payload) as u16).to_be_bytes());
        self.0.extend([0, 0]);
        self.0.extend((0..payload).map(|byte| byte as u8));
        self
    }

    fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn cut(mut self, bytes: usize) -> Self {
        self.0.truncate(bytes);
        self
    }

    fn inserted(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0.splice(at..at, bytes.iter().copied());
        self
    }
}

/// A loaded program that knows [`PORT`] on a queue. The socket need not be bound for a test run.
fn loaded(queue: u32) -> Option<(Program, OwnedFd)> {
    let program = match Program::load(LARGEST) {
        Ok(program) => program,
        Err(error) => {
            skip(Need::Namespaces, format!("no right to load an XDP program: {error}"));
            return None;
        }
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).unwrap();
    program.add(7, socket.as_fd()).unwrap();
    program.enter(&destination(V4, PORT, queue), 7).unwrap();
    program.enter(&destination(V6, PORT, queue), 7).unwrap();
    Some((program, socket))
}

impl Program {
    fn verdict(&self, frame: &Frame) -> u32 {
        bpf::run(self.program.as_fd(), &frame.0, ON).unwrap()
    }
}

#[test]
fn program__chooses_plain_datagrams_to_the_port() {
    let Some((program, _socket)) = loaded(0) else { return };
    let chosen = [
        Frame::ipv4(0),
        Frame::ipv4(1),
        Frame::ipv4(100),
        Frame::ipv4(LARGEST - 42),
        Frame::ipv6(0),
        Frame::ipv6(1),
        Frame::ipv6(100),
        Frame::ipv6(LARGEST - 62),
        // Neither ECN marks nor "don't fragment", time to live, source, checksums and source port matter.
        Frame::ipv4(9).with(15, &[3]),
        Frame::ipv4(9).with(15, &[0xff]),
        Frame::ipv4(9).with(20, &[0, 0]),
        Frame::ipv4(9).with(22, &[1]),
        Frame::ipv4(9).with(24, &[0xaa, 0xbb]),
        Frame::ipv4(9).with(26, &[1; 4]),
        Frame::ipv4(9).with(34, &[0, 0]),
        Frame::ipv4(9).with(40, &[7, 7]),
        Frame::ipv6(9).with(14, &[0x6f, 0xff, 0xff, 0xff]),
        Frame::ipv6(9).with(21, &[1]),
        Frame::ipv6(9).with(22, &[1; 16]),
        // Lengths that lie are left to the reader.
        Frame::ipv4(9).with(16, &[0xff, 0xff]),
        Frame::ipv4(9).with(38, &[0, 0]),
        Frame::ipv6(9).with(18, &[0, 0]),
        // Padding of short frames.
        Frame::ipv4(0).inserted(42, &[0; 18]),
    ];
    for (place, frame) in chosen.iter().enumerate() {
        assert_eq!(program.verdict(frame), REDIRECT, "{place}: {:x?}", frame.0);
    }
}

#[test]
fn program__passes_everything_else_to_the_kernel() {
    let Some((program, _socket)) = loaded(0) else { return };
    let mut passed = vec![
        // Too large.
        Frame::ipv4(LARGEST - 41),
        Frame::ipv6(LARGEST - 61),
        Frame::ipv4(2000),
        Frame::ipv6(3000),
        // Several receivers.
        Frame::ipv4(9).with(0, &[0xff; 6]),
        Frame::ipv4(9).with(0, &[1, 0, 0x5e]),
        Frame::ipv6(9).with(0, &[0x33, 0x33]),
        // Other protocols.
        Frame::ipv4(9).with(12, &[0x08, 0x06]),
        Frame::ipv4(9).with(12, &[0x86, 0xdd]),
        Frame::ipv6(9).with(12, &[0x08, 0x00]),
        Frame::ipv4(9).with(12, &[0x00, 0x08]),
        Frame::ipv4(9).with(12, &[0, 0]),
        Frame::ipv4(9).with(23, &[6]),
        Frame::ipv4(9).with(23, &[1]),
        Frame::ipv4(9).with(23, &[0]),
        Frame::ipv6(9).with(20, &[6]),
        // Tags: a VLAN, a priority, two tags.
        Frame::ipv4(9).inserted(12, &[0x81, 0, 0, 5]),
        Frame::ipv4(9).inserted(12, &[0x81, 0, 0xe0, 0]),
        Frame::ipv6(9).inserted(12, &[0x81, 0, 0, 0]),
        Frame::ipv4(9).inserted(12, &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 5]),
        // Options, short headers, other versions.
        Frame::ipv4(9).with(14, &[0x46]).inserted(34, &[1; 4]),
        Frame::ipv4(9).with(14, &[0x4f]).inserted(34, &[1; 40]),
        Frame::ipv4(9).with(14, &[0x44]),
        Frame::ipv4(9).with(14, &[0x55]),
        Frame::ipv4(9).with(14, &[0x65]),
        Frame::ipv6(9).with(14, &[0x45]),
        Frame::ipv6(9).with(14, &[0x70]),
        // Fragments: the first, one within, the last, the reserved flag.
        Frame::ipv4(9).with(20, &[0x20, 0]),
        Frame::ipv4(9).with(20, &[0x20, 9]),
        Frame::ipv4(9).with(20, &[0, 9]),
        Frame::ipv4(9).with(20, &[0x1f, 0]),
        Frame::ipv4(9).with(20, &[0x80, 0]),
        // Extension headers: hop by hop, routing, fragment, options, authentication, none.
        Frame::ipv6(9).with(20, &[0]).inserted(54, &[17, 0, 1, 4, 0, 0, 0, 0]),
        Frame::ipv6(9).with(20, &[43]).inserted(54, &[17, 0, 1, 4, 0, 0, 0, 0]),
        Frame::ipv6(9).with(20, &[44]).inserted(54, &[17, 0, 0, 1, 0, 0, 0, 0]),
        Frame::ipv6(9).with(20, &[60]).inserted(54, &[17, 0, 1, 4, 0, 0, 0, 0]),
        Frame::ipv6(9).with(20, &[51]),
        Frame::ipv6(9).with(20, &[59]),
        // Other destinations, in each word of the address.
        Frame::ipv4(9).with(30, &[10, 0, 0, 3]),
        Frame::ipv4(9).with(30, &[2, 0, 0, 10]),
        Frame::ipv4(9).with(30, &[0; 4]),
        Frame::ipv6(9).with(38, &[0xfe]),
        Frame::ipv6(9).with(42, &[0]),
        Frame::ipv6(9).with(49, &[0]),
        Frame::ipv6(9).with(52, &[2, 1]),
        // Other ports, and the port in the wrong order, or as the source.
        Frame::ipv4(9).with(36, &(PORT + 1).to_be_bytes()),
        Frame::ipv4(9).with(36, &(PORT - 1).to_be_bytes()),
        Frame::ipv4(9).with(36, &[0, 0]),
        Frame::ipv4(9).with(36, &PORT.to_le_bytes()),
        Frame::ipv4(9).with(34, &PORT.to_be_bytes()).with(36, &[3, 231]),
        Frame::ipv6(9).with(56, &(PORT + 1).to_be_bytes()),
        Frame::ipv6(9).with(56, &PORT.to_le_bytes()),
    ];
    // Short frames; the kernel's test run takes none without a whole Ethernet head.
    passed.extend([14, 15, 20, 33, 34, 36, 37, 41].map(|bytes| Frame::ipv4(9).cut(bytes)));
    passed.extend([14, 41, 42, 53, 54, 57, 61].map(|bytes| Frame::ipv6(9).cut(bytes)));
    for (place, frame) in passed.iter().enumerate() {
        assert_eq!(program.verdict(frame), PASS, "{place}: {:x?}", frame.0);
    }
    assert!(passed.len() >= 60, "{}", passed.len());
}

#[test]
fn program__passes_what_comes_on_another_queue() {
    let Some((program, _socket)) = loaded(1) else { return };
    assert_eq!(program.verdict(&Frame::ipv4(9)), PASS);
    assert_eq!(program.verdict(&Frame::ipv6(9)), PASS);
}

#[test]
fn program__does_not_take_ipv4_for_ipv6_with_equal_words() {
    let Some((program, _socket)) = loaded(0) else { return };
    for zeros in [[0; 16], Ipv4Addr::new(0, 0, 0, 0).to_ipv6_mapped().octets()] {
        let frame = Frame::ipv6(9).with(38, &zeros).with(50, &[10, 0, 0, 2]);
        assert_eq!(program.verdict(&frame), PASS);
    }
}

#[test]
fn program__passes_when_the_entry_or_the_socket_has_gone() {
    let Some((program, socket)) = loaded(0) else { return };
    assert_eq!(program.verdict(&Frame::ipv4(9)), REDIRECT);
    program.leave(&destination(V4, PORT, 0));
    assert_eq!(program.verdict(&Frame::ipv4(9)), PASS);
    assert_eq!(program.verdict(&Frame::ipv6(9)), REDIRECT);
    program.enter(&destination(V4, PORT, 0), 7).unwrap();
    assert_eq!(program.verdict(&Frame::ipv4(9)), REDIRECT);
    // A destination is one socket's.
    assert_eq!(program.enter(&destination(V4, PORT, 0), 8), Err(Errno::EXIST));
    assert_eq!(program.verdict(&Frame::ipv4(9)), REDIRECT);
    // The destination still leads to an index, and the index nowhere.
    drop(socket);
    let ended = (0..1_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        program.verdict(&Frame::ipv4(9)) == PASS
    });
    assert!(ended, "the kernel forgets a closed socket");
}
