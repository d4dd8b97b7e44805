//! The transport, lent to the tasks of an endpoint while they run: small requests of their calls bypass the queue, like
//! calls of handlers and continuations on the [return route](super::return_route).
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
use petrel_transport::{PeerId, Transport};

use super::return_route::ReturnRoute;

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

/// The route of a request: the return route of the frame being handled, or a path of the lent transport.
pub(super) struct CallRoute<'a> {
    route: ReturnRoute<'a>,
    lent: Option<&'a mut LentTransport>,
}

impl<'a> CallRoute<'a> {
    #[inline(always)]
    pub(super) fn new(route: ReturnRoute<'a>, lent: Option<&'a mut LentTransport>) -> Self {
        Self { route, lent }
    }
}

impl FrameSink for CallRoute<'_> {
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
    fn reaches(&mut self, peer: PeerKey) -> bool {
        if let Some(lent) = self.lent.take() {
            self.route = ReturnRoute::new(peer, lent.path_to(peer));
        }
        self.route.reaches(peer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side};
    use petrel_transport::udp::{Udp, UdpConfig};
    use petrel_transport::wake::Waker;

    use super::*;

    fn shm() -> Shm {
        Shm::new(&ShmConfig::default(), Waker::new().unwrap())
    }

    #[test]
    fn send__to_any_peer_of_the_lent_transport_with_its_next_burst() {
        let (mut near, mut far) = (shm(), [shm(), shm()]);
        let peers = far.each_mut().map(|far| {
            let segment = Segment::create(&ShmConfig::default()).unwrap();
            let other = Segment::from_fd(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
            let (bell, other_bell) = UnixStream::pair().unwrap();
            far.add_peer(ShmLink::new(other, Side::Opener, other_bell)).unwrap();
            near.add_peer(ShmLink::new(segment, Side::Creator, bell)).unwrap()
        });
        // The first frame to a ring detects how much room there is.
        for peer in peers {
            let word = petrel_transport::TxFrame { peer, head: b"word", body: b"" };
            assert_eq!(near.tx_burst(&[word]), 0);
        }
        // SAFETY: the transport is used again after the loan's end.
        let mut lent = unsafe { LentTransport::of(&mut near) };
        let mut send = |peer: PeerId, frame: &[u8]| {
            let mut route = CallRoute::new(ReturnRoute::NONE, lent.as_mut());
            let peer = PeerKey(peer.0);
            route.reaches(peer) && route.send(peer, frame, b"")
        };
        assert!(send(peers[1], &[1; 40]) && send(peers[0], &[2; 40]) && send(peers[1], &[3; 40]));
        assert!(!send(PeerId(peers[1].0 + 1), &[4; 40]), "an unknown peer");
        lent = None;
        assert!(!CallRoute::new(ReturnRoute::NONE, lent.as_mut()).reaches(PeerKey(peers[0].0)));
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
        assert!(!CallRoute::new(ReturnRoute::NONE, None).reaches(PeerKey(0)));
    }
}
