//! The return route: frames to the sender of the current frame bypass the queue.

use petrel_proto::buffer::Buffer;
use petrel_proto::{FrameSink, PeerKey};
use petrel_transport::ReturnPath;
use petrel_transport::shm::Outgoing;

/// The sender of the frame being handled, and the return path to it: frames to that peer bypass the queue.
pub(super) struct ReturnRoute<'a> {
    peer: PeerKey,
    path: Option<&'a mut Outgoing>,
}

impl<'a> ReturnRoute<'a> {
    /// No frame is being handled.
    pub(super) const NONE: ReturnRoute<'static> = ReturnRoute { peer: PeerKey(0), path: None };

    #[inline(always)]
    pub(super) fn new(peer: PeerKey, path: Option<&'a mut Outgoing>) -> Self {
        Self { peer, path }
    }

    /// The same for a shorter time.
    #[inline(always)]
    pub(super) fn reborrow(&mut self) -> ReturnRoute<'_> {
        ReturnRoute { peer: self.peer, path: self.path.as_deref_mut() }
    }
}

impl FrameSink for ReturnRoute<'_> {
    #[inline(always)]
    fn send(&mut self, _peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        // Only messages of one packet use the return path, and their bytes are contiguous.
        body.is_empty() && self.path.as_mut().is_some_and(|path| path.push(head))
    }

    /// The header goes to the ring directly, and not by the buffer of the message.
    #[inline(always)]
    fn send_message<B: Buffer>(
        &mut self,
        _peer: PeerKey,
        header: [u64; 2],
        message: &mut B,
    ) -> bool {
        let Some(path) = &mut self.path else { return false };
        path.push_message(header, message.message()) || push_frame(path, header, message)
    }

    #[inline(always)]
    fn reaches(&mut self, peer: PeerKey) -> bool {
        self.path.is_some() && self.peer == peer
    }
}

/// Sends a message that is not of one line, or for which no room is known.
#[inline(never)]
fn push_frame<B: Buffer>(path: &mut Outgoing, header: [u64; 2], message: &mut B) -> bool {
    path.push(message.frame(header))
}

/// The route of a call with a deadline, and the time of the call.
pub(super) struct Timed<'a, R> {
    route: &'a mut R,
    clock_ns: u64,
}

impl<'a, R: FrameSink> Timed<'a, R> {
    #[inline(always)]
    pub(super) fn new(route: &'a mut R, clock_ns: u64) -> Self {
        Self { route, clock_ns }
    }
}

impl<R: FrameSink> FrameSink for Timed<'_, R> {
    #[inline(always)]
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self.route.send(peer, head, body)
    }

    #[inline(always)]
    fn send_message<B: Buffer>(
        &mut self,
        peer: PeerKey,
        header: [u64; 2],
        message: &mut B,
    ) -> bool {
        self.route.send_message(peer, header, message)
    }

    #[inline(always)]
    fn now_ns(&mut self, _burst_ns: u64) -> u64 {
        self.clock_ns
    }

    #[inline(always)]
    fn reaches(&mut self, peer: PeerKey) -> bool {
        self.route.reaches(peer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side};
    use petrel_transport::wake::Waker;
    use petrel_transport::{FrameHandler, PeerId, Transport, TxFrame};

    use super::*;

    /// Sends these frames back at once, every other frame as a call with a deadline, and records which were accepted.
    struct Echo<'a> {
        frames: &'a [[u8; 40]],
        taken: Vec<bool>,
    }

    impl FrameHandler<Outgoing> for &mut Echo<'_> {
        fn handle(&mut self, peer: PeerId, _frame: &[u8], path: Option<&mut Outgoing>) {
            let peer = PeerKey(peer.0);
            let mut route = ReturnRoute::new(peer, path);
            assert!(route.reaches(peer) && !route.reaches(PeerKey(peer.0 + 1)));
            assert!(!route.send(peer, &self.frames[0], b"and more"), "in two pieces");
            let mut timed = Timed { route: &mut route, clock_ns: 7 };
            assert!(timed.reaches(peer) && !timed.reaches(PeerKey(peer.0 + 1)));
            assert_eq!(timed.now_ns(3), 7);
            assert!(!timed.send(peer, &self.frames[0], b"and more"), "in two pieces");
            for pair in self.frames.chunks(2) {
                let mut timed = Timed { route: &mut route, clock_ns: 7 };
                self.taken.push(timed.send(peer, &pair[0], b""));
                self.taken.push(route.send(peer, &pair[1], b""));
            }
        }

        fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
            unreachable!("{peer:?}: no switch has marked {frame:?}");
        }
    }

    fn shm(config: &ShmConfig) -> Shm {
        Shm::new(config, Waker::new().unwrap())
    }

    #[test]
    fn send__returns_true_only_for_frames_that_arrive() {
        // The ring fills before all have gone.
        let config =
            ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 2_048, ..Default::default() };
        let frames: Vec<[u8; 40]> = (0..2_000u16)
            .map(|number| std::array::from_fn(|at| number.to_le_bytes()[at % 2]))
            .collect();
        let (mut near, mut far) = (shm(&config), shm(&config));
        let segment = Segment::create(&config).unwrap();
        let other = Segment::from_fd(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let (bell, other_bell) = UnixStream::pair().unwrap();
        let to_far = near.add_peer(ShmLink::new(segment, Side::Creator, bell)).unwrap();
        let to_near = far.add_peer(ShmLink::new(other, Side::Opener, other_bell)).unwrap();
        let send_word = |by: &mut Shm, peer| {
            assert_eq!(by.tx_burst(&[TxFrame { peer, head: b"word", body: b"" }]), 0);
        };
        // The first frame to a ring detects how much room there is.
        send_word(&mut far, to_near);
        assert_eq!(near.rx_burst(64, |_, _: &[u8]| {}), 1);
        send_word(&mut near, to_far);
        let mut echo = Echo { frames: &frames, taken: Vec::new() };
        assert_eq!(far.rx_burst_to(64, &mut echo), 1);
        far.flush();
        let taken = echo.taken;
        assert!(taken.contains(&true) && taken.contains(&false));
        let mut arrived = Vec::new();
        while near.rx_burst(64, |_, frame: &[u8]| arrived.push(frame.to_vec())) > 0 {}
        let sent = frames.iter().zip(&taken).filter_map(|(frame, taken)| taken.then_some(frame));
        assert!(arrived.iter().eq(sent));
        let mut nowhere = ReturnRoute::NONE;
        assert!(!nowhere.reaches(PeerKey(0)) && !nowhere.send(PeerKey(0), &frames[0], b""));
    }
}
