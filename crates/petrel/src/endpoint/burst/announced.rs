//! Calls announced ahead: prefetches the memory of the sessions that the application will call.
//!
//! With thousands of sessions no cache has the memory of a random one. A call then waits for the session's entry, and
//! after that for its slot. The server learns of a request when the burst arrives (`ahead.rs`); the client learns of a
//! call when the application makes it, unless the application announces it.

use petrel_proto::{Core, SessionId};
use petrel_transport::prefetch::prefetch;

use crate::endpoint::context::continuation::Continuation;
use crate::msgbuf::MsgBuf;

/// Announcements between the two steps of a session: the second step reads the cache line that the first one fetches.
const SLOT_BEHIND: usize = 4;

/// The latest announced sessions, whose slots were not prefetched yet.
#[derive(Default)]
pub(in crate::endpoint) struct Announced {
    sessions: [Option<SessionId>; SLOT_BEHIND],
    next: usize,
}

impl Announced {
    /// Prefetches a session's entry, and the slot of a session announced earlier, whose entry has come.
    #[inline]
    pub(in crate::endpoint) fn announce(
        &mut self,
        core: &Core<MsgBuf, Continuation>,
        session: SessionId,
    ) {
        core.call_session_addresses(session).into_iter().for_each(prefetch);
        if let Some(earlier) = self.replace(session) {
            core.call_slot_addresses(earlier).into_iter().for_each(prefetch);
        }
    }

    /// Remembers a session. Returns and forgets the oldest.
    #[inline]
    fn replace(&mut self, session: SessionId) -> Option<SessionId> {
        let earlier = self.sessions[self.next].replace(session);
        self.next = (self.next + 1) % SLOT_BEHIND;
        earlier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replace__returns_the_session_announced_four_before() {
        let session = |index| SessionId { index, generation: 1 };
        let mut announced = Announced::default();
        for index in 0..4 * SLOT_BEHIND as u32 {
            let earlier = index.checked_sub(SLOT_BEHIND as u32).map(session);
            assert_eq!(announced.replace(session(index)), earlier);
        }
    }
}
