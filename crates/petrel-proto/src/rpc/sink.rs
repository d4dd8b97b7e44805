//! The destination of frames: the medium, or a test.

use crate::buffer::Buffer;
use crate::path::PathId;
use crate::session::PeerKey;

/// The destination of frames: the medium, or a test.
pub trait FrameSink {
    /// Accepts a frame, `head` followed by `body`. Returns false if the medium has no room now. After a
    /// refusal, frames to the same peer are refused until the next [`Core::transmit`](super::Core::transmit).
    ///
    /// Both slices stay in place and unchanged until the core's next method is called.
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool;

    /// Accepts a frame of a header of two words in little-endian order, and a message: like
    /// [`FrameSink::send`] of [`Buffer::frame`]. A sink that copies the frame at once need not have the header
    /// in the buffer.
    #[inline(always)]
    fn send_message<B: Buffer>(
        &mut self,
        peer: PeerKey,
        header: [u64; 2],
        message: &mut B,
    ) -> bool {
        self.send(peer, message.frame(header), &[])
    }

    /// Accepts a frame like [`FrameSink::send`], from the source port of this index
    /// (`docs/wire-protocol.md` §14). Only sessions of several paths send from another port than 0.
    ///
    /// # Panics
    /// If the medium has no source port of this index, and always if it has one source port.
    fn send_from(&mut self, source: u8, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        let _ = (peer, head, body);
        panic!("a medium without further ports sends nothing from source port {source}");
    }

    /// Notes that the burst repeats a packet of a request. No answer shows that the medium has read the
    /// repetition; the medium reads all messages before the burst ends (eRPC §4.2.2).
    #[inline(always)]
    fn note_repeat(&mut self) {}

    /// Returns the current time, for a frame with the time left until a deadline; `burst_ns` is the burst's
    /// time.
    #[inline(always)]
    fn now_ns(&mut self, burst_ns: u64) -> u64 {
        burst_ns
    }

    /// Returns false if the sink accepts no frames for this peer: the caller need not make any.
    #[inline(always)]
    fn reaches(&mut self, peer: PeerKey) -> bool {
        let _ = peer;
        true
    }
}

impl<F: FnMut(PeerKey, &[u8], &[u8]) -> bool> FrameSink for F {
    #[inline(always)]
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self(peer, head, body)
    }
}

/// Sends the frames of one turn from one source port, to the peer of a session of several paths.
pub(super) struct OnPath<'a, S> {
    sink: &'a mut S,
    path: PathId,
    peer: PeerKey,
}

impl<'a, S> OnPath<'a, S> {
    pub(super) fn new(sink: &'a mut S, path: PathId, peer: PeerKey) -> Self {
        Self { sink, path, peer }
    }
}

impl<S: FrameSink> FrameSink for OnPath<'_, S> {
    fn send(&mut self, _peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self.sink.send_from(self.path.index() as u8, self.peer, head, body)
    }

    fn note_repeat(&mut self) {
        self.sink.note_repeat();
    }

    fn now_ns(&mut self, burst_ns: u64) -> u64 {
        self.sink.now_ns(burst_ns)
    }
}
