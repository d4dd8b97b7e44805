//! The frames for a peer that are not written yet.

use std::io;
use std::net::TcpStream;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::StreamCipher;
use super::incoming::LENGTH_BYTES;
use crate::transport::TransportStats;

/// Bytes kept for a peer. A frame that would exceed them is refused until the peer has read some.
pub const OUT_BYTES_MAX: usize = 256 << 10;

/// Bytes kept for all peers of a transport. Beyond, each peer has room for one frame: many peers that do not read take little memory.
pub const OUT_BYTES_OF_ALL_MAX: usize = 64 << 20;

/// Bytes of frames that are encrypted together.
const ENCRYPTED_BYTES: usize = 64 << 10;

/// Memory that an idle connection keeps for its next frames.
const KEPT_BYTES: usize = 16 << 10;

/// The bytes to write to a connection.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// Bytes written already.
    written: usize,
    /// The bytes of frames that count as sent: at most those written.
    sent: usize,
    /// The bytes of frames that count as sent or kept.
    kept: usize,
    /// Whether a frame of this burst was refused.
    has_refused: bool,
    /// Encrypted bytes to write, inside TLS.
    encrypted: Vec<u8>,
    /// The bytes of frames that are encrypted already.
    covered: usize,
}

impl Outgoing {
    /// Returns the bytes that are kept.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Returns true if a frame of `len` bytes can be kept beside `of_all` bytes of all peers.
    pub(super) fn has_room(&self, len: usize, of_all: usize) -> bool {
        let bytes = LENGTH_BYTES + len;
        let is_first = self.pending() == 0;
        (is_first || of_all + bytes <= OUT_BYTES_OF_ALL_MAX)
            && self.pending() + bytes <= OUT_BYTES_MAX
    }

    /// Adds a frame, unless the buffer is full or has refused an earlier frame of the burst: frames keep their order.
    pub(super) fn push(&mut self, head: &[u8], body: &[u8], of_all: usize) -> bool {
        let len = head.len() + body.len();
        if self.has_refused || !self.has_room(len, of_all) {
            self.has_refused = true;
            return false;
        }
        self.bytes.extend_from_slice(&(len as u32).to_le_bytes());
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(body);
        true
    }

    /// Ends the burst, and writes until no byte is left or the socket is full. Returns true if no byte is left.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(super) fn write(
        &mut self,
        socket: &TcpStream,
        mut cipher: Option<&mut Box<dyn StreamCipher>>,
        stats: &mut TransportStats,
    ) -> io::Result<bool> {
        self.has_refused = false;
        while self.pending() > 0 {
            let to_write = match &mut cipher {
                None => &self.bytes[self.written..],
                Some(cipher) => self.encrypt(cipher.as_mut()),
            };
            if to_write.is_empty() {
                return Err(io::Error::other("TLS has ended"));
            }
            stats.tx_syscalls += 1;
            match send(socket, to_write, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.note_written(count);
                    stats.tx_datagrams += 1;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.count_sent(stats);
                    self.count_kept(stats);
                    self.compact();
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.count_sent(stats);
        self.empty();
        Ok(true)
    }

    /// Returns encrypted bytes to write: those of the next frames, if the bytes before are written.
    fn encrypt(&mut self, cipher: &mut dyn StreamCipher) -> &[u8] {
        if self.encrypted.is_empty() {
            let end = self.bytes.len().min(self.covered + ENCRYPTED_BYTES);
            cipher.write(&self.bytes[self.covered..end]);
            cipher.take_output(&mut self.encrypted);
            self.covered = end;
        }
        &self.encrypted
    }

    /// Notes that the socket has taken bytes. Frames count as written when all encrypted bytes are.
    fn note_written(&mut self, count: usize) {
        if self.covered == 0 {
            self.written += count;
            return;
        }
        self.encrypted.drain(..count);
        if self.encrypted.is_empty() {
            self.written = self.covered;
        }
    }

    /// Returns the bytes of the frame that begins at a place, without the length.
    fn frame_at(&self, at: usize) -> usize {
        let length = self.bytes[at..].first_chunk().expect("a frame begins with the length");
        u32::from_le_bytes(*length) as usize
    }

    fn count_sent(&mut self, stats: &mut TransportStats) {
        while self.sent < self.written {
            let len = self.frame_at(self.sent);
            let end = self.sent + LENGTH_BYTES + len;
            if end > self.written {
                break;
            }
            self.sent = end;
            stats.tx_frames += 1;
            stats.tx_bytes += len as u64;
        }
    }

    fn count_kept(&mut self, stats: &mut TransportStats) {
        self.kept = self.kept.max(self.sent);
        while self.kept < self.bytes.len() {
            self.kept += LENGTH_BYTES + self.frame_at(self.kept);
            stats.tx_kept += 1;
        }
    }

    /// Moves the pending bytes to the front once most have been sent.
    fn compact(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.written -= self.sent;
            self.kept -= self.sent;
            self.covered = self.covered.saturating_sub(self.sent);
            self.sent = 0;
        }
    }

    fn empty(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.encrypted = Vec::new();
        (self.written, self.sent, self.kept, self.covered) = (0, 0, 0, 0);
    }

    /// Drops all frames that were not written whole.
    pub(super) fn drop_all(&mut self, stats: &mut TransportStats) {
        self.count_sent(stats);
        while self.sent < self.bytes.len() {
            self.sent += LENGTH_BYTES + self.frame_at(self.sent);
            stats.tx_dropped_error += 1;
        }
        self.empty();
    }
}
