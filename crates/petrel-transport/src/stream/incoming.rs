//! Bytes from a peer, cut into frames.

use std::net::TcpStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::{STREAM_FRAME_BYTES, StreamCipher};
use crate::transport::TransportStats;

/// Bytes of the length before each frame.
pub(super) const LENGTH_BYTES: usize = 4;

const READ_BYTES: usize = 128 << 10;

/// The buffer for reads, shared by all peers of a transport.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<u8>);

/// The received bytes of a peer that were not delivered: complete frames beyond the budget, and the begin of a frame.
#[derive(Debug)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    /// Bytes delivered already.
    delivered: usize,
}

impl Incoming {
    /// Begins with bytes that were received before.
    pub(super) fn new(received: Vec<u8>) -> Self {
        Self { bytes: received, delivered: 0 }
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.delivered..]
    }

    /// Delivers up to `budget` frames: frames at hand, else frames of a single read. Returns their number, and true if
    /// there may be more.
    ///
    /// # Errors
    /// Why the connection cannot be used any more. The frames until then were delivered.
    pub(super) fn deliver(
        &mut self,
        (socket, cipher, max_frame): (&TcpStream, Option<&mut Box<dyn StreamCipher>>, usize),
        budget: usize,
        Scratch(scratch): &mut Scratch,
        stats: &mut TransportStats,
        deliver: &mut impl FnMut(&[u8]),
    ) -> (usize, Result<bool, String>) {
        let at_hand = cut(self.rest(), budget, max_frame, stats, deliver);
        self.delivered += at_hand.bytes;
        if at_hand.is_malformed {
            return (at_hand.frames, Err(malformed()));
        }
        if at_hand.frames > 0 {
            return (at_hand.frames, Ok(true));
        }
        let partial = self.rest().len();
        // Behind the place of decrypted bytes is a place for encrypted bytes.
        let room_bytes = if cipher.is_some() { 2 * READ_BYTES } else { READ_BYTES };
        let needed = room_bytes + STREAM_FRAME_BYTES.max(max_frame) + LENGTH_BYTES;
        if scratch.len() < needed {
            scratch.resize(needed, 0);
        }
        scratch[..partial].copy_from_slice(self.rest());
        let room = &mut scratch[partial..][..room_bytes];
        stats.rx_syscalls += 1;
        let read = match cipher {
            None => receive(socket, room),
            Some(cipher) => receive_inside(socket, cipher.as_mut(), room),
        };
        let Read { count, has_more } = match read {
            Ok(read) => read,
            Err(end) => return (0, end),
        };
        stats.rx_datagrams += 1;
        let received = &scratch[..partial + count];
        let new = cut(received, budget, max_frame, stats, deliver);
        self.bytes.clear();
        self.bytes.extend_from_slice(&received[new.bytes..]);
        self.delivered = 0;
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
        if new.is_malformed {
            return (new.frames, Err(malformed()));
        }
        (new.frames, Ok(new.frames == budget || has_more))
    }
}

/// The bytes of a read.
struct Read {
    count: usize,
    /// Whether there may be more: a read that leaves room has emptied the socket.
    has_more: bool,
}

/// Reads into `room`. The error is whether to read again, or why the connection cannot be used any more.
fn receive(socket: &TcpStream, room: &mut [u8]) -> Result<Read, Result<bool, String>> {
    match recv(socket, &mut *room, RecvFlags::empty()) {
        Ok((0, _)) => Err(Err("the peer has closed the connection".to_owned())),
        Ok((count, _)) => Ok(Read { count, has_more: count == room.len() }),
        Err(Errno::AGAIN) => Err(Ok(false)),
        Err(Errno::INTR) => Err(Ok(true)),
        Err(error) => Err(Err(error.to_string())),
    }
}

/// The same inside TLS: decrypted bytes come to the first half of `room`.
fn receive_inside(
    socket: &TcpStream,
    cipher: &mut dyn StreamCipher,
    room: &mut [u8],
) -> Result<Read, Result<bool, String>> {
    let (plain, sealed) = room.split_at_mut(READ_BYTES);
    let count = cipher.read(plain);
    if count > 0 {
        return Ok(Read { count, has_more: true });
    }
    let Read { count, has_more } = receive(socket, sealed)?;
    cipher.receive(&sealed[..count]).map_err(Err)?;
    let count = cipher.read(plain);
    Ok(Read { count, has_more: has_more || count > 0 })
}

fn malformed() -> String {
    "the peer broke the framing of the stream".to_owned()
}

/// The frames at the begin of some bytes.
struct Cut {
    frames: usize,
    bytes: usize,
    is_malformed: bool,
}

/// Delivers up to `budget` complete frames from the begin of `bytes`.
fn cut(
    bytes: &[u8],
    budget: usize,
    max_frame: usize,
    stats: &mut TransportStats,
    deliver: &mut impl FnMut(&[u8]),
) -> Cut {
    let mut cut = Cut { frames: 0, bytes: 0, is_malformed: false };
    while cut.frames < budget {
        let Some((length, rest)) = bytes[cut.bytes..].split_first_chunk() else { break };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > max_frame {
            stats.rx_dropped_malformed += 1;
            cut.is_malformed = true;
            break;
        }
        let Some(frame) = rest.get(..length) else { break };
        cut.frames += 1;
        cut.bytes += LENGTH_BYTES + length;
        stats.rx_frames += 1;
        stats.rx_bytes += length as u64;
        deliver(frame);
    }
    cut
}
