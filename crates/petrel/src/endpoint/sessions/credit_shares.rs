//! The credits of an endpoint's sessions and its receive queue (eRPC §4.3.1).
//!
//! A credit permits a packet in flight, and the packet, or its answer, may wait in the receive queue. A full queue drops
//! packets. Therefore the sessions over the network draw their credits from the number of packets that the queue holds.
//! The first sessions get the credits that they propose, and each further one at most half of the remainder.
//!
//! Credits do not overdraw a device's **ring**. Beside its credits a session draws one place, for a PULL
//! (`docs/wire-protocol.md` §4). Half of the ring is for sessions of one credit, so that many find room: a ring of 512
//! packets carries 136. Then sessions are refused. An eighth of the ring is out of reach for the clients of one source,
//! so that other sources find room.
//!
//! The endpoints of a process may share a ring. Each claims packets before its sessions draw them, so that two endpoints
//! never promise one packet twice, and gives them back with its sessions.
//!
//! The kernel's **buffer** is an estimate for small packets. No session gets less than a small call needs: then lost
//! packets are sent again.
//!
//! Shared memory loses nothing, and its sessions draw nothing.

use std::collections::HashMap;
use std::sync::Arc;

use petrel_proto::SessionId;
use petrel_transport::{ReceiveQueue, Ring};

use crate::endpoint::ids::IdMap;
use crate::tables::shrink;

/// The least credits of a session that proposes at least as many, in a buffer of the kernel: with 1.4 KB each, the
/// bandwidth-delay product of 10 Gbit/s and 18 µs.
const CREDITS_MIN: u16 = 16;

const _: () = assert!(CREDITS_MIN > 0 && CREDITS_MIN <= petrel_proto::limits::CREDITS_MAX);

/// The packets of a receive queue, and those drawn from them.
#[derive(Debug)]
pub(super) struct CreditShares {
    /// `None` without a bound.
    queue: Option<Queue>,
    drawn: u64,
    of_session: IdMap<SessionId, Share>,
    /// The packets drawn from a ring by the sessions of each source.
    of_source: HashMap<u64, u64>,
}

#[derive(Debug)]
enum Queue {
    Buffer(u64),
    Ring {
        ring: Arc<Ring>,
        /// The most packets for this endpoint.
        packets: u64,
        /// The packets that this endpoint has claimed: those drawn, and those offered.
        claimed: u64,
    },
}

/// The share of a session.
#[derive(Clone, Copy, Debug)]
struct Share {
    credits: u16,
    source: u64,
}

impl CreditShares {
    pub(super) fn new(queue: Option<ReceiveQueue>) -> Self {
        let queue = queue.map(|queue| match queue {
            ReceiveQueue::Buffer(packets) => Queue::Buffer(packets),
            ReceiveQueue::Ring(packets) => {
                Queue::Ring { ring: Arc::new(Ring::new(packets)), packets, claimed: 0 }
            }
            ReceiveQueue::Shared(ring, packets) => Queue::Ring { ring, packets, claimed: 0 },
        });
        Self { queue, drawn: 0, of_session: IdMap::default(), of_source: HashMap::new() }
    }

    /// Returns the credits for a further session that wants `wanted`; 0 if a ring has no room for the session.
    pub(super) fn offer(&mut self, wanted: u16) -> u16 {
        self.offer_within(wanted, u64::MAX)
    }

    /// Returns the credits for a further session of a client of a source; 0 if a ring has no room for the session, or the
    /// source has its part of the ring.
    pub(super) fn offer_to(&mut self, source: u64, wanted: u16) -> u16 {
        let Some(Queue::Ring { packets, .. }) = self.queue else { return self.offer(wanted) };
        let drawn = self.of_source.get(&source).copied().unwrap_or(0);
        self.offer_within(wanted, (packets - packets / 8).saturating_sub(drawn + 1))
    }

    /// Returns the credits for a further session, of `most` at most. Those of a ring are claimed.
    fn offer_within(&mut self, wanted: u16, most: u64) -> u16 {
        let (drawn, wanted) = (self.drawn, most.min(wanted.into()));
        let share = match &mut self.queue {
            None => wanted,
            Some(Queue::Buffer(packets)) => {
                wanted.min((packets.saturating_sub(drawn) / 2).max(CREDITS_MIN.into()))
            }
            Some(Queue::Ring { ring, packets, claimed }) => {
                let packets = *packets;
                // Beside its credits, a session has a place for a PULL.
                let further = ring.exchange(*claimed - drawn, |left| {
                    match wanted.min(share_of(packets, left.min(packets.saturating_sub(drawn)))) {
                        0 => 0,
                        credits => credits + 1,
                    }
                });
                *claimed = drawn + further;
                further.saturating_sub(1)
            }
        };
        u16::try_from(share).expect("a share is no larger than the wish")
    }

    /// Returns the packets of a session's share.
    fn packets_of(&self, credits: u16) -> u64 {
        let of_pulls = matches!(self.queue, Some(Queue::Ring { .. }));
        u64::from(credits) + u64::from(of_pulls)
    }

    /// Draws the credits of a session, in place of its former ones. Returns the credits: no more than the former ones,
    /// if the queue is a ring.
    pub(super) fn draw(&mut self, session: SessionId, source: u64, credits: u16) -> u16 {
        let Some(queue) = &self.queue else { return credits };
        let is_ring = matches!(queue, Queue::Ring { .. });
        let before = self.take(session);
        let credits = if is_ring { credits.min(before.unwrap_or(u16::MAX)) } else { credits };
        let drawn = self.packets_of(credits);
        self.drawn += drawn;
        self.of_session.insert(session, Share { credits, source });
        if is_ring {
            *self.of_source.entry(source).or_insert(0) += drawn;
        }
        self.settle();
        credits
    }

    /// Gives the credits of an ended session back.
    pub(super) fn give_back(&mut self, session: SessionId) {
        self.take(session);
        self.settle();
        assert!(
            self.drawn == 0 || !self.of_session.is_empty(),
            "the credits that are drawn are those of sessions"
        );
        shrink(&mut self.of_session);
    }

    /// Takes the share of a session, and returns its credits.
    fn take(&mut self, session: SessionId) -> Option<u16> {
        let Share { credits, source } = self.of_session.remove(&session)?;
        let packets = self.packets_of(credits);
        if let Some(of_source) = self.of_source.get_mut(&source) {
            assert!(*of_source >= packets, "the packets of a session are counted for its source");
            *of_source -= packets;
            if *of_source == 0 {
                self.of_source.remove(&source);
            }
        }
        assert!(self.drawn >= packets, "the credits of a session were drawn");
        self.drawn -= packets;
        Some(credits)
    }

    /// Gives claimed packets that no session has drawn back to the ring.
    fn settle(&mut self) {
        let drawn = self.drawn;
        if let Some(Queue::Ring { ring, claimed, .. }) = &mut self.queue {
            assert!(drawn <= *claimed, "the packets of all sessions have room in the ring");
            ring.exchange(*claimed - drawn, |_| 0);
            *claimed = drawn;
        }
    }
}

impl Drop for CreditShares {
    fn drop(&mut self) {
        self.drawn = 0;
        self.settle();
    }
}

/// Returns the most credits of a further session, in a ring for `packets` of which some are left.
fn share_of(packets: u64, left: u64) -> u64 {
    match left {
        0..2 => 0,
        left => (left.saturating_sub(packets / 2) / 2).max(1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(index: u32) -> SessionId {
        SessionId { index, generation: 0 }
    }

    #[test]
    fn offer__the_first_sessions_get_what_they_want() {
        let mut shares = CreditShares::new(Some(ReceiveQueue::Buffer(554)));
        for index in 0..6 {
            assert_eq!(shares.offer(64), 64, "session {index}");
            shares.draw(id(index), 0, 64);
        }
        assert_eq!(shares.offer(64), 64);
        shares.draw(id(6), 0, 64);
        assert_eq!(shares.offer(64), 53, "half of the remainder");
        assert_eq!(shares.offer(8), 8);
        shares.give_back(id(0));
        assert_eq!(shares.offer(64), 64);
    }

    #[test]
    fn offer__without_a_bound_it_is_the_wish() {
        let mut shares = CreditShares::new(None);
        assert_eq!(shares.draw(id(1), 0, 4096), 4096);
        assert_eq!((shares.offer(4096), shares.of_session.len()), (4096, 0));
        shares.give_back(id(1));
    }

    proptest! {
        /// However sessions come, change and go, all together draw no more than a ring holds, or than a buffer and the
        /// minimum of each.
        #[test]
        fn shares__are_bounded_by_the_queue(
            packets in 0u64..3_000,
            is_ring in any::<bool>(),
            steps in prop::collection::vec((0u32..60, 1u16..=512, any::<bool>()), 0..300),
        ) {
            let queue = if is_ring { ReceiveQueue::Ring } else { ReceiveQueue::Buffer };
            let mut shares = CreditShares::new(Some(queue(packets)));
            for (session, wanted, ends) in steps {
                shares.give_back(id(session));
                let offered = shares.offer(wanted);
                let least = if is_ring { 0 } else { wanted.min(CREDITS_MIN) };
                prop_assert!(offered <= wanted && offered >= least);
                if !ends && offered > 0 {
                    shares.draw(id(session), session.into(), offered);
                }
                let sum: u64 = shares.of_session.values().map(|share| u64::from(share.credits)).sum();
                let sessions = shares.of_session.len() as u64;
                let per_session = if is_ring { 1 } else { 0 };
                prop_assert_eq!(shares.drawn, sum + per_session * sessions);
                let beyond = if is_ring { 0 } else { u64::from(CREDITS_MIN) * sessions };
                prop_assert!(shares.drawn <= packets + beyond, "{} of {}", shares.drawn, packets);
            }
        }
    }

    #[test]
    fn offer__a_ring_carries_many_sessions_and_then_no_further_one() {
        let mut shares = CreditShares::new(Some(ReceiveQueue::Ring(512)));
        let mut offers = Vec::new();
        while let credits @ 1.. = shares.offer(64) {
            shares.draw(id(offers.len() as u32), 0, credits);
            offers.push(credits);
        }
        assert_eq!(offers[..8], [64, 64, 63, 31, 15, 7, 3, 1]);
        assert_eq!((offers.len(), shares.drawn), (136, 512));
        assert_eq!(shares.draw(id(0), 0, 70), 64, "a server grants no more than was asked for");
        shares.give_back(id(0));
        assert_eq!(shares.offer(64), 1, "the half for many is used up");
    }

    #[test]
    fn offer_to__one_source_leaves_an_eighth_of_a_ring_to_others() {
        let mut shares = CreditShares::new(Some(ReceiveQueue::Ring(512)));
        let mut count = 0;
        while let credits @ 1.. = shares.offer_to(1, 64) {
            shares.draw(id(count), 1, credits);
            count += 1;
        }
        assert_eq!((count, shares.drawn), (104, 448));
        assert_eq!((shares.offer_to(2, 64), shares.offer(64)), (1, 1));
        (0..count).for_each(|index| shares.give_back(id(index)));
        assert!(shares.of_source.is_empty() && shares.offer_to(1, 64) == 64);
    }

    #[test]
    fn offer__endpoints_with_one_ring_never_promise_a_packet_twice() {
        let ring = Arc::new(Ring::new(512));
        let shares = || CreditShares::new(Some(ReceiveQueue::Shared(Arc::clone(&ring), 512)));
        let mut ends = [shares(), shares(), shares()];
        // Both offers stand before either is drawn.
        let offers = [ends[0].offer(300), ends[1].offer(300)];
        assert_eq!(offers, [128, 63]);
        for (end, credits) in ends.iter_mut().zip(offers) {
            assert_eq!(end.draw(id(0), 0, credits), credits);
        }
        let mut count = 0;
        while let credits @ 1.. = ends[count % 3].offer(64) {
            ends[count % 3].draw(id(1 + count as u32), 0, credits);
            count += 1;
        }
        let drawn = ends.each_ref().map(|end| end.drawn);
        assert!(drawn.iter().sum::<u64>() >= 511, "{drawn:?}");
        assert_eq!(ends.each_mut().map(|end| end.offer(1)), [0; 3]);
        let [first, mut second, third] = ends;
        drop(first);
        assert!(second.offer(1) == 1, "the packets of an endpoint come back");
        drop((second, third));
        assert_eq!(ring.exchange(0, |left| left), 512);
        // The port turns out to hold more, and never fewer.
        ring.raise(600);
        ring.raise(100);
        assert_eq!(ring.exchange(0, |left| left), 88);
    }

    panics! {
        give_back__with_credits_of_no_session:
            "the credits that are drawn are those of sessions" => {
            let mut shares = CreditShares::new(Some(ReceiveQueue::Buffer(554)));
            shares.draw(id(0), 0, 64);
            shares.drawn += 1;
            shares.give_back(id(0));
        };
    }
}
