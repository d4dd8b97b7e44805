//! The destination of frames: the medium, or a test.

use crate::session::PeerKey;

/// The destination of frames: the medium, or a test.
pub trait FrameSink {
    /// Accepts a frame, `head` followed by `body`. Returns false if the medium has no room now. After a
    /// refusal, frames to the same peer are refused until the next [`Core::transmit`](super::Core::transmit).
    ///
    /// Both slices stay in place and unchanged until the core's next method is called.
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool;

    /// Returns the current time, for a frame with the time left until a deadline; `burst_ns` is the burst's
    /// time.
    #[inline(always)]
    fn now_ns(&mut self, burst_ns: u64) -> u64 {
        burst_ns
    }

    /// Returns false if the sink accepts no frames for this peer: the caller need not make any.
    #[inline(always)]
    fn reaches(&self, peer: PeerKey) -> bool {
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
