//! Requests to groups: their packets are sent to all members at once, by multicast (`docs/wire-protocol.md`
//! §12).
//!
//! Multicast only replaces the first copy of a request's packets. All else is a call on every member's session: the
//! call holds a slot and credits there, an ANNOUNCE identifies the request's message in the group, CREDITs acknowledge
//! packets, and the client repeats missing packets by unicast.
//!
//! | file | concern |
//! | --- | --- |
//! | `sender`, `announce` | packets to groups, and the calls they belong to |
//! | `member`, `members` | packets from groups, and the requests they belong to |

mod announce;
mod member;
mod members;
mod sender;

pub use members::Membership;

pub(super) use announce::{announce, send_multicast};
pub(super) use member::{on_announce, on_multicast};
pub(super) use sender::{call_announced, may_announce};

use std::collections::VecDeque;

use super::queue::{TransmitQueue, Work};
use crate::buffer::Buffer;
use crate::limits::packets_of;
use crate::session::{PeerKey, SessionId};
use crate::wire::Announcement;
use members::Members;

/// The destination and header fields of the packets of one message to a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupFrames {
    /// The medium's name of the group.
    pub peer: PeerKey,
    /// The group's key.
    pub key: u32,
    /// The group and the message's number in the group.
    pub announcement: Announcement,
    /// Payload bytes of a full packet.
    pub packet_bytes: u32,
}

/// A message being sent to a group.
struct Transmission<B> {
    to: GroupFrames,
    message: B,
    packets: u32,
    next: u32,
}

/// The groups of a core, in both roles.
pub(super) struct Multicast<B> {
    /// Messages with packets left to send, the oldest first.
    outgoing: VecDeque<Transmission<B>>,
    /// Sent messages, kept until their frames are certainly flushed.
    sent: Vec<B>,
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

    /// Returns the number of sent messages that are kept until their frames are flushed.
    #[cfg(test)]
    pub(super) fn sent_count(&self) -> usize {
        self.sent.len()
    }

    /// Releases messages whose packets have all been sent.
    pub(super) fn release_sent(&mut self) {
        self.sent.clear();
    }

    /// Removes the memberships of an ended session.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.members.leave_all(session);
    }

    /// Adds a membership, in place of an earlier one of the session in the group. Returns false if there are
    /// too many.
    pub(super) fn join(&mut self, membership: Membership) -> bool {
        self.members.join(membership)
    }

    pub(super) fn leave(&mut self, session: SessionId, group: u32) -> Option<Membership> {
        self.members.leave(session, group)
    }

    pub(super) fn memberships(&self) -> impl Iterator<Item = &Membership> {
        self.members.all()
    }
}

impl<B: Buffer> Multicast<B> {
    pub(super) fn send(&mut self, queue: &mut TransmitQueue, to: GroupFrames, message: B) {
        self.release_sent();
        let packets = packets_of(message.wire_len() as u32, to.packet_bytes);
        assert!(packets > 1, "a group is sent messages of several packets");
        self.outgoing.push_back(Transmission { to, message, packets, next: 0 });
        if self.outgoing.len() == 1 {
            queue.push(Work::Multicast);
        }
    }
}
