//! Requests to the kernel's rtnetlink, and its answers and events (RFC 3549).
//!
//! A message is a header, a structure that depends on its kind, and attributes: length, kind and value, at multiples of four bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};

/// The longest datagram: the kernel's longest messages, about links, have some 2 KiB.
const DATAGRAM_BYTES_MAX: usize = 16 << 10;

/// Datagrams that may precede an answer: those of a request that failed, or of other processes.
const PRECEDING_MAX: usize = 16;

const HEAD_BYTES: usize = 16;
const ATTRIBUTE_HEAD_BYTES: usize = 4;

/// The bits of an attribute's kind without its flags.
const KIND_MASK: u16 = 0x3fff;

const ERROR: u16 = libc::NLMSG_ERROR as u16;
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;

/// The kernel's address, and its multicast groups for none.
const KERNEL: SocketAddrNetlink = SocketAddrNetlink::new(0, 0);

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Socket {
    /// Opens a socket of protocol 0, `NETLINK_ROUTE`, that hears the kernel's events of the groups of a mask. The socket never blocks.
    pub(super) fn open(groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd, sequence: 0, buffer: vec![0; DATAGRAM_BYTES_MAX].into() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes a request that has a single answer, and returns the answer's body. The kernel answers during the request.
    pub(super) fn ask(&mut self, request: Request) -> Result<Vec<u8>, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        sendto(&self.fd, &request.finish(sequence), SendFlags::empty(), &KERNEL)?;
        for _ in 0..PRECEDING_MAX {
            let found = messages(self.read()?).find(|message| message.sequence == sequence);
            let Some(Message { kind, body, .. }) = found else { continue };
            if kind != ERROR {
                return Ok(body.to_vec());
            }
            let number = body.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
            return Err(Errno::from_raw_os_error(-number));
        }
        Err(Errno::PROTO)
    }

    /// Reads a datagram, which is empty if it comes from another process: such messages could lie about neighbours.
    ///
    /// # Errors
    /// `AGAIN` without a datagram, `NOBUFS` if events were lost.
    pub(super) fn read(&mut self) -> Result<&[u8], Errno> {
        let (_, bytes, from) = recvfrom(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC)?;
        let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
        if from.is_none_or(|from| from.pid() != KERNEL.pid()) {
            return Ok(&[]);
        }
        self.buffer.get(..bytes).ok_or(Errno::NOBUFS)
    }
}

/// A message to the kernel.
pub(super) struct Request(Vec<u8>);

impl Request {
    pub(super) fn new(kind: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
        bytes.extend(body);
        Self(bytes)
    }

    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let bytes = (ATTRIBUTE_HEAD_BYTES + value.len()) as u16;
        self.0.extend(bytes.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let bytes = self.0.len() as u32;
        self.0[..4].copy_from_slice(&bytes.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

/// A message of the kernel.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    sequence: u32,
    pub(super) body: &'a [u8],
}

/// The messages of a datagram, up to a wrong length.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        let [length, _, sequence, _] = [0, 4, 8, 12].map(|at| word_at(head, at));
        let body = bytes.get(HEAD_BYTES..length as usize)?;
        bytes = rest_of(bytes, length as usize);
        Some(Message { kind: half_at(head, 4), sequence, body })
    })
}

/// The attributes behind a structure of this many bytes, up to a wrong length: kind and value.
pub(super) fn attributes(body: &[u8], begin: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut bytes = body.get(begin..).unwrap_or_default();
    std::iter::from_fn(move || {
        let head: &[u8; ATTRIBUTE_HEAD_BYTES] = bytes.first_chunk()?;
        let length = usize::from(half_at(head, 0));
        let value = bytes.get(ATTRIBUTE_HEAD_BYTES..length)?;
        bytes = rest_of(bytes, length);
        Some((half_at(head, 2) & KIND_MASK, value))
    })
}

fn rest_of(bytes: &[u8], length: usize) -> &[u8] {
    bytes.get(length.next_multiple_of(4)..).unwrap_or_default()
}

/// Returns the word of 16 bits at an offset, or 0 behind the end.
pub(super) fn half_at(bytes: &[u8], at: usize) -> u16 {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

/// Returns the word of 32 bits at an offset, or 0 behind the end.
pub(super) fn word_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages__of_a_request_are_read_again() {
        let request = || Request::new(7, &[1, 2, 3, 4]).with(9, b"value").with(10, b"");
        let bytes = [request().finish(5), request().finish(6)].concat();
        let found: Vec<_> =
            messages(&bytes).map(|message| (message.kind, message.sequence)).collect();
        assert_eq!(found, [(7, 5), (7, 6)]);
        for message in messages(&bytes) {
            let found: Vec<_> = attributes(message.body, 4).collect();
            assert_eq!(found, [(9, &b"value"[..]), (10, b"")]);
        }
    }

    proptest! {
        #[test]
        fn messages__of_any_bytes_lie_within(bytes in prop::collection::vec(0..40_u8, 0..200)) {
            for message in messages(&bytes) {
                prop_assert!(message.body.len() + HEAD_BYTES <= bytes.len());
            }
            for (_, value) in attributes(&bytes, 3) {
                prop_assert!(value.len() + ATTRIBUTE_HEAD_BYTES <= bytes.len());
            }
        }
    }
}
