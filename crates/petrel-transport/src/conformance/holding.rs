//! A medium that reads frames late, as a network card does.

use std::rc::Rc;

use crate::buf::RegionWatch;
use crate::clock::Clock;
use crate::transport::{FrameHandler, LinkError, PeerId, PeerProcess, Transport, TransportStats};
use crate::wake::Waker;

/// Calls of [`Transport::released`] until flushed frames are read: bytes changed before are sent.
const LOOKS_UNTIL_READ: u32 = 3;

/// A frame by the places of its two parts.
#[derive(Clone, Copy)]
struct Place {
    peer: PeerId,
    head: (*const u8, usize),
    body: (*const u8, usize),
}

/// A transport that holds the frames of another: it reads their bytes some calls of
/// [`Transport::released`] after the flush. A user that changes a frame before sends the change.
/// The inner transport must take refused frames later without the help of a peer, as UDP does.
pub struct Holding<T> {
    inner: T,
    held: Vec<Place>,
    looks: u32,
}

impl<T: Transport> Holding<T> {
    /// Wraps a transport, which holds no frames itself.
    pub fn new(inner: T) -> Self {
        assert!(!T::HOLDS, "the frames are held once");
        Self { inner, held: Vec::new(), looks: 0 }
    }

    /// The transport that carries the frames.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// Reads and sends the held frames, as many as the inner transport takes.
    fn read(&mut self) {
        self.looks = 0;
        let count = self.held.len();
        for index in 0..count {
            let Place { peer, head, body } = self.held[index];
            // SAFETY: by the contract of `push` the bytes stay in place until `released` is true,
            // which is so after this frame is gone from the list.
            let is_taken = unsafe {
                let head = std::slice::from_raw_parts(head.0, head.1);
                let body = std::slice::from_raw_parts(body.0, body.1);
                self.inner.push(peer, head, body)
            };
            if !is_taken {
                self.inner.flush();
                self.held.drain(..index);
                return;
            }
        }
        // The inner transport's addresses end with its flush.
        self.inner.flush();
        self.held.clear();
    }
}

impl<T: Transport> Transport for Holding<T> {
    const HOLDS: bool = true;
    type Link = T::Link;
    type Return = T::Return;

    fn now(&self) -> u64 {
        self.inner.now()
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn add_peer(&mut self, link: T::Link) -> Result<PeerId, LinkError> {
        self.inner.add_peer(link)
    }

    fn remove_peer(&mut self, peer: PeerId) {
        self.inner.remove_peer(peer);
    }

    fn source_of(&self, peer: PeerId) -> PeerId {
        self.inner.source_of(peer)
    }

    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.inner.max_frame_bytes(peer)
    }

    fn is_networked(&self, peer: PeerId) -> bool {
        self.inner.is_networked(peer)
    }

    fn receive_packets(&self) -> Option<u64> {
        self.inner.receive_packets()
    }

    fn process_of(&self, peer: PeerId) -> Option<PeerProcess> {
        self.inner.process_of(peer)
    }

    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let place = |part: &[u8]| (part.as_ptr(), part.len());
        self.held.push(Place { peer, head: place(head), body: place(body) });
        true
    }

    fn path_to(&mut self, peer: PeerId) -> Option<&mut T::Return> {
        self.inner.path_to(peer)
    }

    fn flush(&mut self) {
        // Answers on the way back, which are copies, and kept frames.
        self.inner.flush();
    }

    fn released(&mut self) -> bool {
        if self.held.is_empty() {
            return true;
        }
        self.looks += 1;
        if self.looks >= LOOKS_UNTIL_READ {
            self.read();
        }
        self.held.is_empty()
    }

    fn region_watch(&self) -> Option<Rc<dyn RegionWatch>> {
        self.inner.region_watch()
    }

    fn rx_burst_to<H: FrameHandler<T::Return>>(&mut self, budget: usize, handler: H) -> usize {
        self.inner.rx_burst_to(budget, handler)
    }

    fn may_receive(&self) -> bool {
        self.inner.may_receive()
    }

    fn waited_ns(&mut self, pause_ns: u64, awake_ns: u64) -> (u64, usize) {
        self.inner.waited_ns(pause_ns, awake_ns)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        self.inner.wait(timeout_ns);
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    /// Frames refused by the inner transport stay held here, and are not refused.
    fn stats(&self) -> TransportStats {
        TransportStats { tx_blocked: 0, ..self.inner.stats() }
    }
}
