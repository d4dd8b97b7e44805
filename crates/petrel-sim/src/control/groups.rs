//! Multicast groups: passes messages about groups between the wire and the endpoints
//! (`docs/wire-protocol.md` §12.2). Stateless, like the nexus.

use petrel::endpoint::Reason;
use petrel::unstable::control::{FromNexus, LinkId};
use petrel_proto::Status;
use petrel_proto::control::{GroupAccept, GroupJoin, GroupLeave, GroupRefuse};

use super::connection::ConnectionId;
use super::network::{Network, Side};
use crate::fabric::HostId;
use crate::ring::DataLink;

impl Network {
    /// Offers multicast from an endpoint to its peer.
    pub(super) fn offer_group(&mut self, host: HostId, id: LinkId, join: GroupJoin) {
        let Some((connection, side, link)) = self.place_of(host, id) else { return };
        if side == 1 {
            let Some(endpoint) = self.process(host).links.get(id).map(|link| link.endpoint) else {
                return;
            };
            let answer =
                Err(Reason::new(Status::FailedPrecondition, "the client takes no multicast"));
            let answered = FromNexus::GroupAnswered { link: id, request: join.request, answer };
            return self.tell(host, endpoint, answered);
        }
        self.send(connection, side, GroupJoin { link, ..join });
    }

    /// Sends an endpoint's answer to an offer of multicast.
    pub(super) fn answer_group(
        &mut self,
        host: HostId,
        id: LinkId,
        request: u32,
        answer: Result<(), Reason>,
    ) {
        let Some((connection, side, link)) = self.place_of(host, id) else { return };
        match answer {
            Ok(()) => self.send(connection, side, GroupAccept { link, request }),
            Err(Reason { status, message: text }) => {
                self.send(connection, side, GroupRefuse { link, request, status, text });
            }
        }
    }

    /// Reports that an endpoint no longer sends to a group.
    pub(super) fn leave_group(&mut self, host: HostId, id: LinkId, group: u32) {
        let Some((connection, side, link)) = self.place_of(host, id) else { return };
        if side == 0 {
            self.send(connection, side, GroupLeave { link, group });
        }
    }

    pub(super) fn on_group_join(&mut self, id: ConnectionId, side: Side, join: GroupJoin) {
        if side == 0 {
            return self.report(format!("GROUP_JOIN by a server: {join:?}"));
        }
        self.pass_on((id, side), join.link, |link| FromNexus::GroupOffered { link, join });
    }

    pub(super) fn on_group_answer(
        &mut self,
        (id, side): (ConnectionId, Side),
        link: u32,
        request: u32,
        answer: Result<(), Reason>,
    ) {
        if side == 1 {
            return self.report(format!("an answer to a GROUP_JOIN by a client: {answer:?}"));
        }
        self.pass_on((id, side), link, |link| FromNexus::GroupAnswered { link, request, answer });
    }

    pub(super) fn on_group_leave(&mut self, id: ConnectionId, side: Side, leave: GroupLeave) {
        if side == 0 {
            return self.report(format!("GROUP_LEAVE by a server: {leave:?}"));
        }
        let group = leave.group;
        self.pass_on((id, side), leave.link, |link| FromNexus::GroupLeft { link, group });
    }

    /// Returns the connection of a process's link, its side of the connection, and the link's number there.
    pub(super) fn place_of(
        &mut self,
        host: HostId,
        id: LinkId,
    ) -> Option<(ConnectionId, Side, u32)> {
        let link = self.process(host).links.get(id)?;
        let (connection, number) = (link.connection, link.number);
        Some((connection, self.side_of(host, connection)?, number))
    }

    fn pass_on(
        &mut self,
        (id, side): (ConnectionId, Side),
        number: u32,
        message: impl FnOnce(LinkId) -> FromNexus<DataLink>,
    ) {
        if let Some((link, endpoint)) = self.link_and_endpoint(id, side, number) {
            let host = self.host_at(id, side);
            self.tell(host, endpoint, message(link));
        }
    }
}
