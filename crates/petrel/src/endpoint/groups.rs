//! The groups that an endpoint sends to by multicast, and the groups with the endpoint as a member
//! (`docs/wire-protocol.md` §12.2).

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use petrel_proto::control::GroupJoin;
use petrel_proto::limits::{FIRST_REQUEST_END, REQUEST_NUMBER_END, SESSIONS_MAX, packets_of};
use petrel_proto::wire::Announcement;
use petrel_proto::{Agreed, GroupFrames, PeerKey, SessionId};
use petrel_transport::PeerId;

use crate::control::{LinkId, Reason};

/// Groups to which an endpoint sends by multicast: the network has to carry an address for each.
pub(super) const GROUPS_MAX: usize = 64;

/// The destination of a group's multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastConfig {
    /// A multicast address, preferably of the source-specific range 232.0.0.0/8 or of the administratively scoped
    /// 239.0.0.0/8, with a port. Groups may share an address; members then get the datagrams of all of them.
    pub address: SocketAddr,
    /// Networks that the datagrams may traverse: 1 stays on the local network.
    pub hops: u32,
    /// Shorter messages, in packets, are sent by unicast; at least 2.
    ///
    /// In processor time of client and three members together, both ways cost the same at 16 packets (18 us), and
    /// multicast 183 us in place of 231 us at 128; with ten members 726 in place of 1 121 us.
    /// Short messages lose: an announcement for each member costs more than
    /// sending the packets again, which the kernel accepts in batches. But a link gains from two packets on: at 10
    /// Gbit/s, sending eight packets once for three members saves 19 us of its time. By default 8.
    pub packets_min: u32,
}

impl MulticastConfig {
    /// Returns a configuration for this address, on the local network.
    pub const fn new(address: SocketAddr) -> Self {
        Self { address, hops: 1, packets_min: 8 }
    }
}

/// Whether a member of a group receives its multicast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipState {
    /// It does, by its own answer.
    Joined,
    /// The member was asked, and has not answered: its process may not support groups.
    Pending,
    /// It does not.
    Refused(Reason),
    /// The member was not asked: UDP does not reach it with packets as large as for other members.
    Unreachable,
}

/// The groups that an endpoint sends to, by their numbers.
#[derive(Default)]
pub(super) struct Groups {
    by_number: HashMap<u32, Sender>,
    next_number: u32,
    next_request: u32,
}

/// A group that the endpoint sends to.
pub(super) struct Sender {
    /// The transport's name of the group's address.
    peer: PeerId,
    key: u32,
    packet_bytes: u32,
    packets_min: u32,
    next_sequence: u64,
    /// Members asked to join, with their links: in the order of asking, in which they are also notified of the end.
    asked: BTreeMap<u32, (SessionId, LinkId)>,
    answers: HashMap<SessionId, Result<(), Reason>>,
}

impl Groups {
    /// Returns the number of groups to which the endpoint sends.
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Returns true if the endpoint may not send to another group.
    pub(super) fn is_full(&self) -> bool {
        self.by_number.len() == GROUPS_MAX
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Sender> {
        self.by_number.get_mut(&number)
    }

    /// Returns the members of a group with their states; empty if the group has no multicast.
    pub(super) fn members(
        &self,
        number: u32,
        members: &[SessionId],
    ) -> Vec<(SessionId, MembershipState)> {
        let Some(sender) = self.by_number.get(&number) else { return Vec::new() };
        members.iter().map(|&id| (id, sender.state_of(id))).collect()
    }

    /// Adds a group, and returns its number.
    pub(super) fn add(&mut self, sender: Sender) -> u32 {
        assert!(!self.is_full(), "an endpoint sends to a limited number of groups");
        let number = self.free_number();
        let before = self.by_number.insert(number, sender);
        assert!(before.is_none(), "a group has a number of its own");
        number
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Sender> {
        self.by_number.remove(&number)
    }

    /// Returns the offer to a member of a group to receive at `address`, to be sent on the link of its session.
    pub(super) fn ask(
        &mut self,
        number: u32,
        (id, link): (SessionId, LinkId),
        agreed: &Agreed,
        address: SocketAddr,
    ) -> GroupJoin {
        let request = self.next_request;
        self.next_request = request.wrapping_add(1);
        let sender = self.by_number.get_mut(&number).expect("members are asked for a group");
        assert!(
            sender.asked.values().all(|(asked, _)| *asked != id),
            "a member is asked to join a group once"
        );
        let before = sender.asked.insert(request, (id, link));
        assert!(before.is_none(), "an offer has a number of its own");
        GroupJoin {
            link: 0,
            request,
            session: agreed.peer_session,
            token: agreed.peer_token,
            group: number,
            key: sender.key,
            address,
            packet_bytes: agreed.packet_bytes,
        }
    }

    /// Records a member's answer.
    pub(super) fn on_answer(&mut self, link: LinkId, request: u32, answer: Result<(), Reason>) {
        for sender in self.by_number.values_mut() {
            if let Some(&(id, on)) = sender.asked.get(&request)
                && on == link
            {
                sender.answers.insert(id, answer);
                return;
            }
        }
    }

    fn free_number(&mut self) -> u32 {
        // There are far fewer groups than numbers.
        while self.by_number.contains_key(&self.next_number) {
            self.next_number = (self.next_number + 1) % SESSIONS_MAX;
        }
        let number = self.next_number;
        self.next_number = (number + 1) % SESSIONS_MAX;
        number
    }
}

impl Sender {
    /// Creates a group of members with packets of `packet_bytes`, from two random numbers.
    pub(super) fn new(
        peer: PeerId,
        packet_bytes: u32,
        packets_min: u32,
        [key, sequence]: [u64; 2],
    ) -> Self {
        Self {
            peer,
            key: key as u32,
            packet_bytes,
            packets_min,
            next_sequence: sequence % FIRST_REQUEST_END,
            asked: BTreeMap::new(),
            answers: HashMap::new(),
        }
    }

    /// Returns the state of a member.
    fn state_of(&self, id: SessionId) -> MembershipState {
        match self.answers.get(&id) {
            Some(Ok(())) => MembershipState::Joined,
            Some(Err(reason)) => MembershipState::Refused(reason.clone()),
            None if self.asked.values().any(|&(asked, _)| asked == id) => MembershipState::Pending,
            None => MembershipState::Unreachable,
        }
    }

    /// Returns true if a member receives multicast.
    pub(super) fn has_joined(&self, id: SessionId) -> bool {
        self.answers.get(&id) == Some(&Ok(()))
    }

    /// Returns true if a message is long enough for multicast.
    pub(super) fn is_worth(&self, message_bytes: usize) -> bool {
        packets_of(message_bytes as u32, self.packet_bytes) >= self.packets_min
    }

    pub(super) fn packet_bytes(&self) -> u32 {
        self.packet_bytes
    }

    /// Returns the names of the next message's packets.
    pub(super) fn next_frames(&mut self, group: u32) -> GroupFrames {
        assert!(
            self.next_sequence < REQUEST_NUMBER_END,
            "the messages to a group are numbered as requests are"
        );
        let announcement = Announcement { group, sequence: self.next_sequence };
        self.next_sequence += 1;
        let peer = PeerKey(self.peer.0);
        GroupFrames { peer, key: self.key, announcement, packet_bytes: self.packet_bytes }
    }

    /// Returns the transport's name of the group's address, and the links of the members that were asked.
    pub(super) fn into_parts(self) -> (PeerId, impl Iterator<Item = LinkId>) {
        (self.peer, self.asked.into_values().map(|(_, link)| link))
    }
}

/// A group with the endpoint as a member.
pub(super) struct JoinedGroup {
    link: LinkId,
    group: u32,
    session: SessionId,
    peer: PeerId,
    address: SocketAddr,
}

impl JoinedGroup {
    /// The group of a client, with the transport's name of its address.
    pub(super) fn new(
        (link, group): (LinkId, u32),
        session: SessionId,
        (peer, address): (PeerId, SocketAddr),
    ) -> Self {
        Self { link, group, session, peer, address }
    }

    /// Returns true if the client at the other end of a link gave the group this number.
    pub(super) fn is(&self, link: LinkId, group: u32) -> bool {
        self.link == link && self.group == group
    }

    /// Returns the session whose requests may arrive by the group.
    pub(super) fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the client's number of the group.
    pub(super) fn number(&self) -> u32 {
        self.group
    }

    /// Returns the address, and the transport's name of it.
    pub(super) fn place(&self) -> (SocketAddr, PeerId) {
        (self.address, self.peer)
    }
}

/// The groups with the endpoint as a member.
#[derive(Default)]
pub(super) struct JoinedGroups {
    list: Vec<JoinedGroup>,
}

impl JoinedGroups {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Adds a group. A client's next offer of the same group ends the former.
    pub(super) fn add(&mut self, joined: JoinedGroup) {
        let is_same = |other: &JoinedGroup| other.is(joined.link, joined.group);
        assert!(!self.list.iter().any(is_same), "a group is joined once at a time");
        self.list.push(joined);
    }

    /// Removes and returns the groups for which `is_it` is true.
    pub(super) fn take(&mut self, mut is_it: impl FnMut(&JoinedGroup) -> bool) -> Vec<JoinedGroup> {
        self.list.extract_if(.., |joined| is_it(joined)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender() -> Sender {
        Sender::new(PeerId(1), 1_000, 2, [5, 6])
    }

    panics! {
        add__beyond_the_limit: "a limited number of groups" => {
            let mut groups = Groups::default();
            (0..=GROUPS_MAX).for_each(|_| assert!(groups.add(sender()) < SESSIONS_MAX));
        };
    }

    #[test]
    fn next_frames__counts_the_messages_of_the_group() {
        let mut sender = sender();
        let sequences = [(); 3].map(|()| sender.next_frames(9).announcement.sequence);
        assert_eq!(sequences, [6, 7, 8]);
        assert!(!sender.is_worth(1_000) && sender.is_worth(1_001));
    }

    panics! {
        add__of_a_group_that_was_joined: "joined once at a time" => {
            let mut joined = JoinedGroups::default();
            for index in 0..2 {
                joined.add(JoinedGroup {
                    link: LinkId(1),
                    group: 2,
                    session: SessionId { index, generation: 0 },
                    peer: PeerId(1),
                    address: SocketAddr::from(([239, 0, 0, 1], 5)),
                });
            }
        };
        next_frames__beyond_the_last_number:
            "the messages to a group are numbered as requests are" => {
            let mut sender = sender();
            sender.next_sequence = REQUEST_NUMBER_END;
            sender.next_frames(9);
        };
    }
}
