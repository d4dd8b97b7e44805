//! The memberships of an endpoint in groups: announced requests, and packets that wait for their announcement
//! (`docs/wire-protocol.md` §12.4).

use std::collections::VecDeque;

use petrel_planted::planted;

use crate::buffer::{Buffer, BufferPool};
use crate::session::{PeerKey, SessionId};
use crate::wire::Flags;

const MEMBERSHIPS_MAX: usize = 16;

/// Most packets, and bytes of packets, that wait for their announcement in one group: two windows of the smallest
/// packets, or one message of large ones. The client repeats dropped packets to this member by unicast.
const HELD_PACKETS_MAX: usize = 512;

const HELD_BYTES_MAX: usize = 1 << 20;

/// The distance behind the newest announced message up to which packets are kept. Older messages will not be
/// announced.
const SEQUENCES_BEHIND_MAX: u64 = 64;

/// A membership of an endpoint in a group, for one session in the server's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The client, which sends to the group.
    pub peer: PeerKey,
    /// The group's number, chosen by the client.
    pub group: u32,
    /// The token that the group's packets carry.
    pub key: u32,
    /// The session whose requests may arrive by the group.
    pub session: SessionId,
}

/// The memberships of an endpoint.
pub(super) struct Members<B>(Vec<Member<B>>);

impl<B> Default for Members<B> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

pub(super) struct Member<B> {
    of: Membership,
    /// The latest announced requests, at most [`SEQUENCES_BEHIND_MAX`].
    announced: VecDeque<Request>,
    held: VecDeque<Held<B>>,
    held_bytes: usize,
    newest_sequence: u64,
}

/// The request that belongs to a message of the group.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) sequence: u64,
    pub(super) number: u64,
    pub(super) method: u16,
}

/// A packet received before its announcement, without the common header.
pub(super) struct Held<B> {
    sequence: u64,
    flags: Flags,
    rest: B,
}

impl<B: Buffer> Held<B> {
    pub(super) fn flags(&self) -> Flags {
        self.flags
    }

    /// Returns the bytes behind the header of the packet.
    pub(super) fn rest(&mut self) -> &[u8] {
        let len = self.rest.len();
        &self.rest.storage_mut()[..len]
    }
}

impl<B> Member<B> {
    /// Returns the session whose requests arrive by the group.
    pub(super) fn session(&self) -> SessionId {
        self.of.session
    }

    fn new(of: Membership) -> Self {
        let (announced, held) = (VecDeque::new(), VecDeque::new());
        Self { of, announced, held, held_bytes: 0, newest_sequence: 0 }
    }

    pub(super) fn note(&mut self, request: Request) {
        self.newest_sequence = self.newest_sequence.max(request.sequence);
        if self.announced.iter().any(|known| known.sequence == request.sequence) {
            return;
        }
        assert!(
            self.announced.len() as u64 <= SEQUENCES_BEHIND_MAX,
            "a member keeps a limited number of announced requests"
        );
        if self.announced.len() as u64 == SEQUENCES_BEHIND_MAX {
            self.announced.pop_front();
        }
        self.announced.push_back(request);
    }

    pub(super) fn request(&self, sequence: u64) -> Option<Request> {
        let is_it = |request: &&Request| {
            request.sequence == sequence || planted("multicast_messages_are_mixed")
        };
        self.announced.iter().rev().find(is_it).copied()
    }
}

impl<B: Buffer> Member<B> {
    /// Keeps a packet. Returns the number of packets dropped, the new one possibly included.
    pub(super) fn hold<P: BufferPool<Buffer = B>>(
        &mut self,
        sequence: u64,
        flags: Flags,
        rest: &[u8],
        pool: &mut P,
    ) -> u64 {
        if sequence + SEQUENCES_BEHIND_MAX < self.newest_sequence {
            return 1;
        }
        let mut dropped = 0;
        while self.held.len() >= HELD_PACKETS_MAX || self.held_bytes + rest.len() > HELD_BYTES_MAX {
            let Some(oldest) = self.held.pop_front() else { return dropped + 1 };
            assert!(
                oldest.rest.len() <= self.held_bytes,
                "no more bytes leave a group than it holds"
            );
            self.held_bytes -= oldest.rest.len();
            dropped += 1;
        }
        let Some(mut buffer) = pool.take(rest.len(), 1) else { return dropped + 1 };
        buffer.set_message(rest);
        self.held_bytes += rest.len();
        self.held.push_back(Held { sequence, flags, rest: buffer });
        assert!(
            self.held.len() <= HELD_PACKETS_MAX && self.held_bytes <= HELD_BYTES_MAX,
            "the packets that a group holds are within their limits"
        );
        dropped
    }

    /// Removes and returns the kept packets of a message, and drops packets that are too old.
    pub(super) fn take_held(&mut self, sequence: u64) -> Vec<Held<B>> {
        assert!(
            sequence <= self.newest_sequence,
            "the packets of a message are taken after its announcement"
        );
        let oldest = self.newest_sequence.saturating_sub(SEQUENCES_BEHIND_MAX);
        let (held, all) = (std::mem::take(&mut self.held), &mut self.held);
        let mut taken = Vec::new();
        let bytes: usize = held.iter().map(|packet| packet.rest.len()).sum();
        assert_eq!(bytes, self.held_bytes, "a group counts the bytes that it holds");
        for packet in held {
            match packet.sequence {
                at if at == sequence => taken.push(packet),
                at if at >= oldest => all.push_back(packet),
                _ => {}
            }
        }
        self.held_bytes = all.iter().map(|packet| packet.rest.len()).sum();
        taken
    }
}

impl<B> Members<B> {
    /// Adds a membership, in place of an earlier one of the session in the group. Returns false if there are
    /// too many.
    pub(super) fn join(&mut self, membership: Membership) -> bool {
        self.leave(membership.session, membership.group);
        assert!(self.0.len() <= MEMBERSHIPS_MAX, "an endpoint has a limited number of groups");
        let has_room = self.0.len() < MEMBERSHIPS_MAX;
        if has_room {
            self.0.push(Member::new(membership));
        }
        has_room
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Membership> {
        self.0.iter().map(|member| &member.of)
    }

    /// Returns the member that a packet is for. Group numbers of two processes behind one address may
    /// coincide, the keys do not.
    pub(super) fn find(&mut self, peer: PeerKey, group: u32, key: u32) -> Option<&mut Member<B>> {
        let is_it = |of: &Membership| of.peer == peer && of.group == group && of.key == key;
        self.0.iter_mut().find(|member| is_it(&member.of))
    }

    pub(super) fn of_session(&mut self, session: SessionId, group: u32) -> Option<&mut Member<B>> {
        self.0.iter_mut().find(|member| member.of.session == session && member.of.group == group)
    }

    pub(super) fn leave(&mut self, session: SessionId, group: u32) -> Option<Membership> {
        let is_it = |member: &Member<B>| member.of.session == session && member.of.group == group;
        let place = self.0.iter().position(is_it)?;
        let left = self.0.swap_remove(place).of;
        assert!(!self.0.iter().any(is_it), "a session is a member of a group once");
        Some(left)
    }

    pub(super) fn leave_all(&mut self, session: SessionId) {
        self.0.retain(|member| member.of.session != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{HeapBuffer, HeapPool};

    const OF: Membership = Membership {
        peer: PeerKey(1),
        group: 5,
        key: 77,
        session: SessionId { index: 3, generation: 1 },
    };
    const POOL: HeapPool = HeapPool { len_max: 64 << 20 };

    fn member() -> Member<HeapBuffer> {
        Member::new(OF)
    }

    fn request(sequence: u64) -> Request {
        Request { sequence, number: 1_000 + sequence, method: sequence as u16 }
    }

    /// Keeps a packet of `len` bytes. Returns the number of packets dropped.
    fn hold(member: &mut Member<HeapBuffer>, sequence: u64, len: usize) -> u64 {
        let rest = vec![sequence as u8; len];
        let dropped = member.hold(sequence, Flags::NONE, &rest, &mut POOL.clone());
        let held: usize = member.held.iter().map(|packet| packet.rest.len()).sum();
        assert_eq!(member.held_bytes, held);
        dropped
    }

    fn held(member: &Member<HeapBuffer>) -> Vec<u64> {
        member.held.iter().map(|packet| packet.sequence).collect()
    }

    #[test]
    fn note__keeps_the_last_ones_each_once() {
        let mut member = member();
        assert_eq!((member.held_bytes, member.newest_sequence), (0, 0));
        for sequence in [9, 7, 9, 7] {
            member.note(request(sequence));
            assert_eq!(member.newest_sequence, 9, "the newest, not the last");
        }
        assert_eq!(member.announced.len(), 2);
        let all = 10..10 + SEQUENCES_BEHIND_MAX;
        all.clone().for_each(|sequence| member.note(request(sequence)));
        assert_eq!(member.announced.len() as u64, SEQUENCES_BEHIND_MAX);
        assert!([7, 9].iter().all(|&gone| member.request(gone).is_none()));
        for sequence in all {
            let found = member.request(sequence).expect("it was announced");
            let expected = (sequence, 1_000 + sequence, sequence as u16);
            assert_eq!((found.sequence, found.number, found.method), expected);
        }
    }

    #[test]
    fn hold__drops_what_will_not_be_announced_any_more() {
        let mut member = member();
        member.note(request(100));
        assert_eq!(hold(&mut member, 100 - SEQUENCES_BEHIND_MAX - 1, 10), 1);
        assert_eq!(hold(&mut member, 100 - SEQUENCES_BEHIND_MAX, 10), 0);
        assert_eq!(held(&member), [100 - SEQUENCES_BEHIND_MAX]);
    }

    #[test]
    fn hold__gives_the_place_of_the_oldest_to_the_newest() {
        let mut member = member();
        let packets = HELD_PACKETS_MAX as u64;
        assert_eq!((0..packets).map(|sequence| hold(&mut member, sequence, 1)).sum::<u64>(), 0);
        assert_eq!(hold(&mut member, packets, 1), 1);
        assert!(held(&member).into_iter().eq(1..=packets));
    }

    #[test]
    fn hold__keeps_no_more_bytes_than_the_most() {
        let quarter = HELD_BYTES_MAX / 4;
        let mut member = member();
        assert_eq!((0..4).map(|sequence| hold(&mut member, sequence, quarter)).sum::<u64>(), 0);
        assert_eq!(hold(&mut member, 4, 1), 1);
        assert_eq!(held(&member), [1, 2, 3, 4]);
        assert_eq!(hold(&mut member, 5, 2 * quarter), 2);
        assert_eq!(held(&member), [3, 4, 5]);
        assert_eq!(hold(&mut member, 6, HELD_BYTES_MAX + 1), 4, "all others, and itself");
        assert!(held(&member).is_empty());
        assert_eq!(hold(&mut member, 7, HELD_BYTES_MAX), 0);
        let refused = member.hold(8, Flags::NONE, &[1; 9], &mut HeapPool { len_max: 8 });
        assert_eq!(refused, 2, "there is no buffer for it, and its place was made before");
    }

    #[test]
    fn take_held__takes_one_message_and_drops_the_old_ones() {
        let mut member = member();
        for sequence in [30, 40, 50, 40, 36, 35] {
            assert_eq!(hold(&mut member, sequence, sequence as usize), 0);
        }
        member.newest_sequence = 36 + SEQUENCES_BEHIND_MAX;
        let taken = member.take_held(40);
        assert_eq!(taken.iter().map(|packet| packet.rest.len()).collect::<Vec<_>>(), [40, 40]);
        assert_eq!(held(&member), [50, 36]);
        assert_eq!(member.held_bytes, 86);
    }

    #[test]
    fn members__are_found_by_all_that_names_them() {
        let session = |index| SessionId { index, generation: 1 };
        let all = [(3, 5), (3, 6), (4, 5), (4, 6)];
        let fresh = || {
            let of = |(index, group)| Membership { session: session(index), group, ..OF };
            Members(all.iter().map(|&names| Member::<HeapBuffer>::new(of(names))).collect())
        };
        let left = |members: &Members<HeapBuffer>| {
            let names = |member: &Member<_>| (member.of.session.index, member.of.group);
            let mut left: Vec<_> = members.0.iter().map(names).collect();
            left.sort_unstable();
            left
        };
        for (index, group) in all {
            let mut members = fresh();
            let of = members.of_session(session(index), group).expect("a member").of;
            assert_eq!((of.session.index, of.group), (index, group));
            let of = members.leave(session(index), group).expect("a member");
            assert_eq!((of.session.index, of.group), (index, group));
            assert!(members.leave(session(index), group).is_none());
            assert!(members.of_session(session(index), group).is_none());
            let others: Vec<_> = all.into_iter().filter(|&other| other != (index, group)).collect();
            assert_eq!(left(&members), others);
            let mut members = fresh();
            members.leave_all(session(index));
            let others: Vec<_> = all.into_iter().filter(|other| other.0 != index).collect();
            assert_eq!(left(&members), others);
        }
        let mut members = fresh();
        assert!(members.find(PeerKey(1), 5, 77).is_some());
        for (peer, group, key) in [(2, 5, 77), (1, 7, 77), (1, 5, 78)] {
            assert!(members.find(PeerKey(peer), group, key).is_none());
        }
    }

    panics! {
        take_held__before_the_announcement:
            "the packets of a message are taken after its announcement"
            => member().take_held(1);
        take_held__after_bytes_were_lost: "a group counts the bytes that it holds" => {
            let mut member = member();
            member.newest_sequence = 1;
            hold(&mut member, 1, 10);
            member.held_bytes = 9;
            member.take_held(1);
        };
    }
}
