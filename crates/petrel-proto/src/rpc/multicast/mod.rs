//! Requests to groups: their packets are sent to all members at once, by multicast (`docs/wire-protocol.md`
//! §12).
//!
//! Multicast only replaces the first copy of a request's packets. All else is a call on every member's
//! session: the call holds a slot and credits there, an ANNOUNCE identifies the request's message in the
//! group, CREDITs acknowledge packets, and missing packets are sent again to that member alone.
//!
//! | file | concern |
//! | --- | --- |
//! | `sender` | packets to groups, and the calls they belong to |
//! | `member` | packets from groups, and the requests they belong to |

mod member;
mod sender;

pub use member::Membership;
pub use sender::GroupFrames;

use std::collections::VecDeque;

use member::Members;
use sender::Transmission;

/// The groups of a core, in both roles.
pub(super) struct Multicast<B> {
    /// Messages with packets left to send, the oldest first.
    outgoing: VecDeque<Transmission<B>>,
    /// Sent messages, kept until their frames are certainly flushed.
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
    /// Returns the number of messages with packets left to send.
    pub(super) fn len(&self) -> usize {
        self.outgoing.len()
    }

    /// Removes the memberships of an ended session.
    pub(super) fn forget(&mut self, session: crate::session::SessionId) {
        self.members.leave_all(session);
    }
}
