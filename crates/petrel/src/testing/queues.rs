//! A medium of queues in memory: an inbox per transport, into which the transports of peers copy their frames.

use std::collections::VecDeque;
use std::fmt;

use petrel_transport::clock::{Clock, now_ns};
use petrel_transport::wake::{Waker, Watch};
use petrel_transport::{FrameHandler, LinkError, NoReturn, PeerId, Transport, TransportStats};

use crate::sync::{Arc, Mutex, lock};

/// The largest frame: a message of this size needs no further packets.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// Bytes of frames that an inbox holds: with more, the sender waits. Two messages of the default largest size.
const INBOX_BYTES_MAX: usize = 16 << 20;

/// The way to a transport: its inbox.
#[derive(Clone)]
pub struct InboxLink(Arc<Inbox>);

struct Inbox {
    arrived: Mutex<Arrived>,
    waker: Waker,
}

/// The frames that their receiver has not taken yet.
#[derive(Default)]
struct Arrived {
    /// Each with the inbox of the sender.
    frames: VecDeque<(InboxLink, Vec<u8>)>,
    bytes: usize,
    /// Whether the receiver sleeps, or is about to: its waker has to be used.
    sleeps: bool,
    /// Whether the receiver is gone.
    is_closed: bool,
}

struct Peer {
    to: InboxLink,
    links: u32,
    /// Whether a frame of the burst was refused: later frames are, too, to keep their order.
    is_blocked: bool,
}

/// The transport of a [test](super).
pub struct Queues {
    own: InboxLink,
    peers: Vec<Option<Peer>>,
    /// Frames that were taken out of the inbox, and are not delivered yet.
    taken: VecDeque<(InboxLink, Vec<u8>)>,
    stats: TransportStats,
}

impl Queues {
    pub(super) fn new(own: InboxLink) -> Self {
        Self { own, peers: Vec::new(), taken: VecDeque::new(), stats: TransportStats::default() }
    }

    fn find(&self, to: &InboxLink) -> Option<usize> {
        let is_it = |peer: &Option<Peer>| peer.as_ref().is_some_and(|peer| peer.to.is(to));
        self.peers.iter().position(is_it)
    }

    /// Takes all arrived frames at once, if the former ones are delivered.
    fn take(&mut self) {
        if self.taken.is_empty() {
            let mut arrived = lock(&self.own.0.arrived);
            arrived.sleeps = false;
            arrived.bytes = 0;
            std::mem::swap(&mut arrived.frames, &mut self.taken);
        }
    }
}

impl InboxLink {
    pub(super) fn new() -> Self {
        let waker = Waker::new().expect("the process has a descriptor left");
        Self(Arc::new(Inbox { arrived: Mutex::default(), waker }))
    }

    /// Returns the waker of the receiver.
    pub(super) fn waker(&self) -> &Waker {
        &self.0.waker
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Transport for Queues {
    type Link = InboxLink;
    type Return = NoReturn;

    fn now(&self) -> u64 {
        now_ns()
    }

    fn clock(&self) -> Clock {
        Clock::machine()
    }

    fn add_peer(&mut self, link: InboxLink) -> Result<PeerId, LinkError> {
        let known = self.find(&link);
        if let Some(Some(peer)) = known.map(|index| &mut self.peers[index]) {
            peer.links += 1;
        }
        let index = known.unwrap_or_else(|| {
            self.peers.push(Some(Peer { to: link, links: 1, is_blocked: false }));
            self.peers.len() - 1
        });
        Ok(PeerId(index as u32))
    }

    fn remove_peer(&mut self, PeerId(index): PeerId) {
        let Some(place) = self.peers.get_mut(index as usize) else { return };
        let Some(peer) = place else { return };
        peer.links -= 1;
        if peer.links == 0 {
            *place = None;
        }
    }

    fn max_frame_bytes(&self, PeerId(index): PeerId) -> usize {
        let peer = self.peers.get(index as usize);
        peer.map_or(0, |peer| if peer.is_some() { FRAME_BYTES_MAX } else { 0 })
    }

    fn is_networked(&self, _: PeerId) -> bool {
        false
    }

    fn medium_of(&self, _: PeerId) -> &'static str {
        "memory"
    }

    // The frame is copied at once: the caller has no promise to keep.
    unsafe fn push(&mut self, PeerId(index): PeerId, head: &[u8], body: &[u8]) -> bool {
        let Some(Some(peer)) = self.peers.get_mut(index as usize) else {
            self.stats.tx_dropped_no_peer += 1;
            return true;
        };
        let frame = [head, body].concat();
        let bytes = frame.len();
        if bytes > FRAME_BYTES_MAX {
            self.stats.tx_dropped_oversize += 1;
            return true;
        }
        let mut arrived = lock(&peer.to.0.arrived);
        if arrived.is_closed {
            self.stats.tx_dropped_error += 1;
            return true;
        }
        peer.is_blocked |= arrived.bytes + bytes > INBOX_BYTES_MAX;
        if peer.is_blocked {
            self.stats.tx_blocked += 1;
            return false;
        }
        arrived.bytes += bytes;
        arrived.frames.push_back((self.own.clone(), frame));
        if std::mem::take(&mut arrived.sleeps) {
            drop(arrived);
            peer.to.waker().wake();
        }
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += bytes as u64;
        true
    }

    fn flush(&mut self) {
        self.peers.iter_mut().flatten().for_each(|peer| peer.is_blocked = false);
    }

    fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, mut handler: H) -> usize {
        self.take();
        let mut delivered = 0;
        while delivered < budget
            && let Some((from, frame)) = self.taken.pop_front()
        {
            let Some(index) = self.find(&from) else {
                self.stats.rx_dropped_unknown_peer += 1;
                continue;
            };
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += frame.len() as u64;
            handler.handle(PeerId(index as u32), &frame, None);
            delivered += 1;
        }
        delivered
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        let mut arrived = lock(&self.own.0.arrived);
        if self.taken.is_empty() && arrived.frames.is_empty() {
            arrived.sleeps = true;
            drop(arrived);
            Watch::new(self.own.waker()).sleep(timeout_ns);
        }
    }

    fn waker(&self) -> Waker {
        self.own.waker().clone()
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}

impl Drop for Queues {
    /// Frees the frames, whose senders would otherwise hold each other.
    fn drop(&mut self) {
        *lock(&self.own.0.arrived) = Arrived { is_closed: true, ..Arrived::default() };
    }
}

impl fmt::Debug for InboxLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InboxLink")
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queues({} peers)", self.peers.iter().flatten().count())
    }
}

#[cfg(test)]
mod tests {
    use petrel_transport::conformance::{self, End, Harness, Medium, Star};

    use super::*;

    struct Memory;

    impl Harness for Memory {
        type T = Queues;

        fn medium(&self) -> Medium {
            Medium::lossless().with_capacity(INBOX_BYTES_MAX)
        }

        fn star(&mut self) -> Star<Queues> {
            let mut hub = Queues::new(InboxLink::new());
            let leaves = [(); 2].map(|()| {
                let mut transport = Queues::new(InboxLink::new());
                let peer = transport.add_peer(hub.own.clone()).unwrap();
                End { transport, peer }
            });
            let peers = leaves.each_ref().map(|leaf| hub.add_peer(leaf.transport.own.clone()));
            Star { hub, peers: peers.map(Result::unwrap), leaves }
        }
    }

    #[test]
    fn conformance__of_queues_in_memory() {
        conformance::run_all(&mut Memory);
        conformance::run_threaded(&mut Memory);
    }

    #[test]
    fn push__to_a_receiver_that_is_gone_keeps_nothing() {
        let [mut near, far] = Memory.pair();
        let inbox = far.transport.own.clone();
        drop(far);
        let frame = petrel_transport::TxFrame { peer: near.peer, head: b"late", body: b"" };
        assert_eq!(near.transport.tx_burst(&[frame]), 0);
        assert_eq!(near.transport.stats().tx_dropped_error, 1);
        assert!(lock(&inbox.0.arrived).frames.is_empty());
    }
}
