//! The routes of small frames that bypass the queue: to the sender of the current frame, and to any peer while the transport is
//! lent.
//!
//! Tasks are compiled once for all transports, and reach the endpoint through its hub. The transport is therefore lent
//! by its address, without its type. The loan is sound because [`Local::with_transport`](super::context::Local::with_transport)
//! borrows the transport exclusively until it has taken the address back, and no path outlives the borrow of the loan.

use std::any::TypeId;
use std::marker::PhantomData;
use std::ptr::NonNull;

use petrel_proto::buffer::Buffer;
use petrel_proto::{FrameSink, PeerKey};
use petrel_transport::shm::Outgoing;
use petrel_transport::{PeerId, ReturnPath, Transport};

/// The sender of the frame being handled, and the return path to it.
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

    /// Lends the route for a shorter time.
    #[inline(always)]
    pub(super) fn reborrow(&mut self) -> ReturnRoute<'_> {
        ReturnRoute { peer: self.peer, path: self.path.as_deref_mut() }
    }
}

/// Returns the path of a transport to a peer.
type PathTo = unsafe fn(NonNull<()>, PeerId) -> Option<NonNull<Outgoing>>;

/// A lent transport, without its type.
pub(super) struct LentTransport {
    transport: NonNull<()>,
    path_to: PathTo,
    /// The path returned last: it stays where it is until the transport is used otherwise.
    last: Option<(PeerKey, NonNull<Outgoing>)>,
    /// Stays on the thread of its endpoint.
    not_send: PhantomData<*mut ()>,
}

impl LentTransport {
    /// Returns the loan of a transport that has paths of rings.
    ///
    /// # Safety
    /// The transport is used through the loan alone, until the loan is dropped.
    pub(super) unsafe fn of<T: Transport>(transport: &mut T) -> Option<Self> {
        let has_paths = TypeId::of::<T::Return>() == TypeId::of::<Outgoing>();
        let transport = NonNull::from(transport).cast();
        let (path_to, last, not_send) = (path_to::<T>, None, PhantomData);
        has_paths.then_some(Self { transport, path_to, last, not_send })
    }

    /// Returns the path to a peer, if it has one.
    #[inline(always)]
    fn path_to(&mut self, peer: PeerKey) -> Option<&mut Outgoing> {
        let mut path = match self.last {
            Some((of, path)) if of == peer => path,
            _ => self.look_up(peer)?,
        };
        // SAFETY: the path lies in the transport, of which the borrow of the loan is the only use since the last look-up.
        Some(unsafe { path.as_mut() })
    }

    #[inline(never)]
    fn look_up(&mut self, peer: PeerKey) -> Option<NonNull<Outgoing>> {
        self.last = None;
        // SAFETY: the transport has this function's type, and the former path is used no more.
        let path = unsafe { (self.path_to)(self.transport, PeerId(peer.0))? };
        self.last = Some((peer, path));
        Some(path)
    }
}

/// # Safety
/// `transport` is a `T`, and is not in use.
unsafe fn path_to<T: Transport>(transport: NonNull<()>, peer: PeerId) -> Option<NonNull<Outgoing>> {
    // SAFETY: by the caller's promise.
    let transport = unsafe { transport.cast::<T>().as_mut() };
    Outgoing::of(transport.path_to(peer)).map(NonNull::from)
}

/// The route of an answer or a request: a path of the lent transport, if there is one, or else the return route.
pub(super) struct Route<'a> {
    to: ReturnRoute<'a>,
    lent: Option<&'a mut LentTransport>,
    /// The time of a call with a deadline.
    clock_ns: Option<u64>,
}

impl<'a> Route<'a> {
    #[inline(always)]
    pub(super) fn new(
        to: ReturnRoute<'a>,
        lent: Option<&'a mut LentTransport>,
        clock_ns: Option<u64>,
    ) -> Self {
        Self { to, lent, clock_ns }
    }
}

impl FrameSink for Route<'_> {
    #[inline(always)]
    fn send(&mut self, _peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        // Only messages of one packet use a path, and their bytes are contiguous.
        body.is_empty() && self.to.path.as_mut().is_some_and(|path| path.push(head))
    }

    /// Writes the header to the ring directly, and not by the buffer of the message.
    #[inline(always)]
    fn send_message<B: Buffer>(
        &mut self,
        _peer: PeerKey,
        header: [u64; 2],
        message: &mut B,
    ) -> bool {
        let Some(path) = &mut self.to.path else { return false };
        path.push_message(header, message.message()) || push_frame(path, header, message)
    }

    #[inline(always)]
    fn now_ns(&mut self, burst_ns: u64) -> u64 {
        self.clock_ns.unwrap_or(burst_ns)
    }

    #[inline(always)]
    fn reaches(&mut self, peer: PeerKey) -> bool {
        if let Some(lent) = self.lent.take() {
            self.to = ReturnRoute::new(peer, lent.path_to(peer));
        }
        self.to.path.is_some() && self.to.peer == peer
    }
}

/// Sends a message that is not of one line, or for which no room is known.
#[inline(never)]
fn push_frame<B: Buffer>(path: &mut Outgoing, header: [u64; 2], message: &mut B) -> bool {
    path.push(message.frame(header))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side};
    use petrel_transport::udp::{Udp, UdpConfig};
    use petrel_transport::wake::Waker;
    use petrel_transport::{FrameHandler, TxFrame};

    use super::*;

    fn shm(config: &ShmConfig) -> Shm {
        Shm::new(config, Waker::new().unwrap())
    }

    /// Links two transports. Returns the number of the peer at both ends.
    fn link(config: &ShmConfig, near: &mut Shm, far: &mut Shm) -> [PeerId; 2] {
        let segment = Segment::create(config).unwrap();
        let other = Segment::from_fd(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let (bell, other_bell) = UnixStream::pair().unwrap();
        let to_far = near.add_peer(ShmLink::new(segment, Side::Creator, bell)).unwrap();
        [to_far, far.add_peer(ShmLink::new(other, Side::Opener, other_bell)).unwrap()]
    }

    /// Sends the first frame to a ring, which detects how much room there is.
    fn send_word(by: &mut Shm, peer: PeerId) {
        assert_eq!(by.tx_burst(&[TxFrame { peer, head: b"word", body: b"" }]), 0);
    }

    /// Sends these frames back at once, every other frame as a call with a deadline, and records which were accepted.
    struct Echo<'a> {
        frames: &'a [[u8; 40]],
        taken: Vec<bool>,
    }

    impl FrameHandler<Outgoing> for &mut Echo<'_> {
        fn handle(&mut self, peer: PeerId, _frame: &[u8], path: Option<&mut Outgoing>) {
            let peer = PeerKey(peer.0);
            let mut to = ReturnRoute::new(peer, path);
            for (frame, clock_ns) in self.frames.iter().zip([Some(7), None].into_iter().cycle()) {
                let mut route = Route::new(to.reborrow(), None, clock_ns);
                assert!(route.reaches(peer) && !route.reaches(PeerKey(peer.0 + 1)));
                assert_eq!(route.now_ns(3), clock_ns.unwrap_or(3));
                assert!(!route.send(peer, frame, b"and more"), "in two pieces");
                self.taken.push(route.send(peer, frame, b""));
            }
        }

        fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
            unreachable!("{peer:?}: no switch has marked {frame:?}");
        }
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
        let [to_far, to_near] = link(&config, &mut near, &mut far);
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
        let mut nowhere = Route::new(ReturnRoute::NONE, None, None);
        assert!(!nowhere.reaches(PeerKey(0)) && !nowhere.send(PeerKey(0), &frames[0], b""));
    }

    #[test]
    fn send__to_any_peer_of_the_lent_transport_with_its_next_burst() {
        let config = ShmConfig::default();
        let (mut near, mut far) = (shm(&config), [shm(&config), shm(&config)]);
        let peers = far.each_mut().map(|far| link(&config, &mut near, far)[0]);
        peers.into_iter().for_each(|peer| send_word(&mut near, peer));
        // SAFETY: the transport is used again after the loan's end.
        let mut lent = unsafe { LentTransport::of(&mut near) };
        let mut send = |peer: PeerId, frame: &[u8]| {
            let mut route = Route::new(ReturnRoute::NONE, lent.as_mut(), None);
            let peer = PeerKey(peer.0);
            route.reaches(peer) && route.send(peer, frame, b"")
        };
        assert!(send(peers[1], &[1; 40]) && send(peers[0], &[2; 40]) && send(peers[1], &[3; 40]));
        assert!(!send(PeerId(peers[1].0 + 1), &[4; 40]), "an unknown peer");
        lent = None;
        assert!(!Route::new(ReturnRoute::NONE, lent.as_mut(), None).reaches(PeerKey(peers[0].0)));
        let arrived = |far: &mut Shm| {
            let mut frames = Vec::new();
            far.rx_burst(64, |_, frame| frames.push(frame[0]));
            frames
        };
        assert_eq!(far.each_mut().map(arrived), [[b'w'], [b'w']].map(Vec::from));
        near.flush();
        assert_eq!(far.each_mut().map(arrived), [vec![2], vec![1, 3]]);
    }

    #[test]
    fn of__a_transport_without_paths_is_no_loan() {
        let mut udp = Udp::bind(UdpConfig::default()).unwrap();
        // SAFETY: the transport is not used.
        assert!(unsafe { LentTransport::of(&mut udp) }.is_none());
    }
}
