//! Multicast: asking members of a group, and joining the groups of clients (`docs/wire-protocol.md` §12.2).

use petrel_planted::planted;
use petrel_proto::control::GroupJoin;
use petrel_proto::{Membership, PeerKey, SessionId, Status};
use petrel_transport::{PeerId, Transport};

use super::SessionControl;
use crate::control::{ControlPlane, LinkId, Reason, ToNexus};
use crate::endpoint::groups::{GROUPS_MAX, JoinedGroup, MulticastConfig, Sender};
use crate::error::SetupError;

impl<T: Transport, C: ControlPlane<T::Link>> SessionControl<'_, T, C> {
    /// Begins to send messages to a group by multicast, and asks the members. Returns the group's number.
    pub(in crate::endpoint) fn start_multicast(
        &mut self,
        members: &[SessionId],
        config: MulticastConfig,
    ) -> Result<u32, SetupError> {
        if self.local.groups.is_full() {
            return Err(SetupError::refused(format!(
                "the endpoint sends to {GROUPS_MAX} groups by multicast already; stop some first"
            )));
        }
        let members: Vec<_> = members.iter().filter_map(|&id| self.networked(id)).collect();
        let no_member =
            || SetupError::refused("no member of the group has an open session over UDP");
        let &(_, _, towards, packet_bytes) = members.first().ok_or_else(no_member)?;
        let peer = self
            .transport
            .open_group(config.address, towards, config.hops)
            .map_err(SetupError::of_link)?;
        let random = [self.control.random(), self.control.random()];
        let sender = Sender::new(peer, packet_bytes, config.packets_min, random);
        let number = self.local.groups.add(sender);
        for (id, link, _, bytes) in members {
            if bytes == packet_bytes
                && let Some(agreed) = self.local.core.agreed(id)
            {
                let join = self.local.groups.ask(number, (id, link), agreed, config.address);
                self.control.post(ToNexus::JoinGroup { link, join });
            }
        }
        Ok(number)
    }

    /// Returns the link of an open session over a network, its peer and the session's packet size.
    fn networked(&self, id: SessionId) -> Option<(SessionId, LinkId, PeerId, u32)> {
        let agreed = self.local.core.agreed(id)?;
        let peer = PeerId(agreed.peer.0);
        let link = self.local.sessions.link_of(id)?;
        self.transport.is_networked(peer).then_some((id, link, peer, agreed.packet_bytes))
    }

    /// Ends multicast to a group.
    pub(in crate::endpoint) fn stop_multicast(&mut self, number: u32) {
        let Some(sender) = self.local.groups.remove(number) else { return };
        let (peer, links) = sender.into_parts();
        for link in links {
            self.control.post(ToNexus::LeaveGroup { link, group: number });
        }
        self.transport.remove_peer(peer);
    }

    /// Handles a client's offer to send requests by multicast.
    pub(super) fn on_group_offered(&mut self, link: LinkId, join: &GroupJoin) {
        let answer = self.join_group(link, join);
        self.control.post(ToNexus::AnswerGroup { link, request: join.request, answer });
    }

    /// Receives a group's multicast for a session on the link, or returns why not.
    fn join_group(&mut self, link: LinkId, join: &GroupJoin) -> Result<(), Reason> {
        let precondition = |why: &str| Reason::new(Status::FailedPrecondition, why);
        if !self.local.sessions.config().accept_multicast {
            return Err(precondition("this endpoint takes no multicast"));
        }
        let session = self.local.core.find(join.session, join.token);
        let session = session.filter(|&id| self.local.sessions.link_of(id) == Some(link));
        let agreed = session.and_then(|id| Some((id, *self.local.core.agreed(id)?)));
        let Some((session, agreed)) = agreed else {
            return Err(precondition("there is no such session on the link"));
        };
        if agreed.packet_bytes != join.packet_bytes {
            return Err(precondition("the group's packets have another size than the session's"));
        }
        self.leave_group(link, join.group);
        let peer = PeerId(agreed.peer.0);
        self.transport
            .join_group(join.address, peer)
            .map_err(|error| precondition(&error.to_string()))?;
        let &GroupJoin { group, key, address, .. } = join;
        let source = PeerKey(self.transport.source_of(peer).0);
        if !self.local.core.join_group(Membership { peer: source, group, key, session }) {
            self.transport.leave_group(address, peer);
            let why = "this endpoint is a member of too many groups";
            return Err(Reason::new(Status::ResourceExhausted, why));
        }
        self.joined.add(JoinedGroup::new((link, group), session, (peer, address)));
        Ok(())
    }

    /// Handles the end of a client's multicast to a group.
    pub(super) fn leave_group(&mut self, link: LinkId, group: u32) {
        self.leave(|joined| joined.is(link, group));
    }

    /// Leaves the groups of a session that has ended.
    pub(super) fn leave_groups_of(&mut self, session: SessionId) {
        if self.joined.len() > 0 {
            self.leave(|joined| joined.session() == session);
        }
    }

    fn leave(&mut self, is_it: impl FnMut(&JoinedGroup) -> bool) {
        for joined in self.joined.take(is_it) {
            self.local.core.leave_group(joined.session(), joined.number());
            if !planted("multicast_listens_for_ever") {
                let (address, peer) = joined.place();
                self.transport.leave_group(address, peer);
            }
        }
    }
}
