//! Requests to groups: their packets go to all members at once, by multicast
//! (`docs/wire-protocol.md` §12).
//!
//! Multicast is nothing but another way for the first copy of a request's packets. Everything else is a call on
//! each member's session: it holds a slot and credits there, an ANNOUNCE tells the member which message is
//! its request, CREDITs tell what came, and what did not is sent again to that member alone.
//!
//! | file | concern |
//! | --- | --- |
//! | `sender` | the packets that go to all, and the calls whose packets they are |
//! | `member` | the packets that come, and the requests that they belong to |

mod member;
mod sender;

pub use member::Membership;
pub use sender::GroupFrames;

use std::collections::VecDeque;

use member::Members;
use sender::Transmission;

/// What a core knows of groups, in both roles.
pub(super) struct Multicast<B> {
    /// Messages of which packets are to be sent, the oldest first.
    outgoing: VecDeque<Transmission<B>>,
    /// Messages that were sent, until their frames are surely flushed.
    pub(super) sent: Vec<B>,
    members: Members<B>,
}

impl<B> Default for Multicast<B> {
    fn default() -> Self {
        let (outgoing, sent, members) = (VecDeque::new(), Vec::new(), Members::default());
        Self { outgoing, sent, members }
    }
}

impl<B> Multicast<B> {
    /// Messages of which packets are to be sent.
    pub(super) fn len(&self) -> usize {
        self.outgoing.len()
    }

    /// A session has ended.
    pub(super) fn forget(&mut self, session: crate::session::SessionId) {
        self.members.leave_all(session);
    }
}
