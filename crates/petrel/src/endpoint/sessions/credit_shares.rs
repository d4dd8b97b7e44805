//! The credits of an endpoint's sessions and its receive queue (eRPC §4.3.1).
//!
//! A credit permits a packet in flight, and the packet, or its answer, may wait in the receive queue. If the queue is
//! full, the kernel drops packets. Therefore the sessions over the network draw their credits from the number of packets
//! that the queue holds. The first sessions get the credits that they propose. Each further one gets at most half of the
//! remainder, and none gets less than a small call needs: then lost packets are sent again.
//!
//! Shared memory loses nothing, and its sessions draw nothing.

use petrel_proto::SessionId;

use crate::endpoint::ids::IdMap;
use crate::tables::shrink;

/// The least credits of a session that proposes at least as many: with 1.4 KB each, the bandwidth-delay product of 10
/// Gbit/s and 18 µs.
const CREDITS_MIN: u16 = 16;

const _: () = assert!(CREDITS_MIN > 0 && CREDITS_MIN <= petrel_proto::limits::CREDITS_MAX);

/// The packets of a receive queue, and the credits drawn from them.
#[derive(Debug)]
pub(super) struct CreditShares {
    /// Packets that the receive queue holds; `None` without a bound.
    packets: Option<u64>,
    drawn: u64,
    of_session: IdMap<SessionId, u16>,
}

impl CreditShares {
    pub(super) fn new(packets: Option<u64>) -> Self {
        Self { packets, drawn: 0, of_session: IdMap::default() }
    }

    /// Returns the credits for a further session that wants `wanted`.
    pub(super) fn offer(&self, wanted: u16) -> u16 {
        let Some(packets) = self.packets else { return wanted };
        let share = packets.saturating_sub(self.drawn) / 2;
        let share = u16::try_from(share).unwrap_or(u16::MAX);
        wanted.min(share.max(CREDITS_MIN))
    }

    /// Draws the credits of a session, in place of its former ones.
    pub(super) fn draw(&mut self, session: SessionId, credits: u16) {
        if self.packets.is_none() {
            return;
        }
        let before = self.of_session.insert(session, credits).unwrap_or(0);
        assert!(self.drawn >= u64::from(before), "the credits of a session were drawn");
        self.drawn = self.drawn - u64::from(before) + u64::from(credits);
    }

    /// Gives the credits of an ended session back.
    pub(super) fn give_back(&mut self, session: SessionId) {
        let Some(credits) = self.of_session.remove(&session) else { return };
        assert!(self.drawn >= u64::from(credits), "the credits of a session were drawn");
        self.drawn -= u64::from(credits);
        assert!(
            self.drawn == 0 || !self.of_session.is_empty(),
            "the credits that are drawn are those of sessions"
        );
        shrink(&mut self.of_session);
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
        let mut shares = CreditShares::new(Some(554));
        for index in 0..6 {
            assert_eq!(shares.offer(64), 64, "session {index}");
            shares.draw(id(index), 64);
        }
        assert_eq!(shares.offer(64), 64);
        shares.draw(id(6), 64);
        assert_eq!(shares.offer(64), 53, "half of the remainder");
        assert_eq!(shares.offer(8), 8);
        shares.give_back(id(0));
        assert_eq!(shares.offer(64), 64);
    }

    #[test]
    fn offer__without_a_bound_it_is_the_wish() {
        let mut shares = CreditShares::new(None);
        shares.draw(id(1), 4096);
        assert_eq!((shares.offer(4096), shares.of_session.len()), (4096, 0));
        shares.give_back(id(1));
    }

    proptest! {
        /// However sessions come, change and go, all together draw no more than the queue holds, but for those with the
        /// minimum.
        #[test]
        fn shares__are_bounded_by_the_queue(
            packets in 0u64..3_000,
            steps in prop::collection::vec((0u32..60, 1u16..=512, any::<bool>()), 0..300),
        ) {
            let mut shares = CreditShares::new(Some(packets));
            for (session, wanted, ends) in steps {
                shares.give_back(id(session));
                if !ends {
                    let offered = shares.offer(wanted);
                    prop_assert!(offered <= wanted && offered >= wanted.min(CREDITS_MIN));
                    shares.draw(id(session), offered);
                }
                let sum: u64 = shares.of_session.values().map(|credits| u64::from(*credits)).sum();
                prop_assert_eq!(shares.drawn, sum);
                let least = u64::from(CREDITS_MIN) * shares.of_session.len() as u64;
                prop_assert!(sum <= packets + least, "{} of {}", sum, packets);
            }
        }
    }

    #[test]
    #[should_panic(expected = "the credits that are drawn are those of sessions")]
    fn give_back__with_credits_of_no_session() {
        let mut shares = CreditShares::new(Some(554));
        shares.draw(id(0), 64);
        shares.drawn += 1;
        shares.give_back(id(0));
    }
}
