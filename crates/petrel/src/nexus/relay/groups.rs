//! Multicast groups: passes messages about membership between the wire and the endpoints (`docs/wire-protocol.md`
//! §12.2).
//!
//! The nexus keeps no state for groups: an endpoint knows its own requests, and a member that does not answer gets
//! unicast.

use petrel_proto::Status;
use petrel_proto::control::{GroupAccept, GroupJoin, GroupLeave, GroupRefuse};

use super::Relay;
use crate::control::{EndpointId, FromNexus, LinkId, Reason};
use crate::nexus::goodbye::Ending;
use crate::nexus::ids::ConnectionId;
use crate::nexus::link::Stage;
use crate::nexus::net::Network;

const NOT_TO_CLIENTS: &str = "multicast goes to servers, and not back to their clients";

impl<N: Network> Relay<N> {
    /// Offers a link's peer to receive this endpoint's multicast, too.
    pub(in crate::nexus) fn offer_group(
        &mut self,
        from: EndpointId,
        id: LinkId,
        mut join: GroupJoin,
    ) {
        let Some((connection, link)) = self.place_of(from, id) else { return };
        if !self.links[&id].is_up_at_opener() {
            let request = join.request;
            let answer = Err(Reason::new(Status::FailedPrecondition, NOT_TO_CLIENTS));
            return self.notify(from, FromNexus::GroupAnswered { link: id, request, answer });
        }
        join.link = link;
        self.send(connection, join);
        self.expect_answer(connection);
    }

    /// Sends the peer an endpoint's answer: whether it receives a group's multicast.
    pub(in crate::nexus) fn answer_group(
        &mut self,
        from: EndpointId,
        id: LinkId,
        request: u32,
        answer: Result<(), Reason>,
    ) {
        let Some((connection, link)) = self.place_of(from, id) else { return };
        match answer {
            Ok(()) => self.send(connection, GroupAccept { link, request }),
            Err(Reason { status, message: text }) => {
                self.send(connection, GroupRefuse { link, request, status, text });
            }
        }
    }

    /// Tells the peer that an endpoint no longer sends to a group.
    pub(in crate::nexus) fn leave_group(&mut self, from: EndpointId, id: LinkId, group: u32) {
        let Some((connection, link)) = self.place_of(from, id) else { return };
        if self.links[&id].is_up_at_opener() {
            self.send(connection, GroupLeave { link, group });
        }
    }

    pub(in crate::nexus) fn on_group_join(
        &mut self,
        connection: ConnectionId,
        join: GroupJoin,
    ) -> Result<(), Ending> {
        if self.connections.get(connection).is_some_and(|peer| !peer.channel().is_plain()) {
            // A key in common would let the members forge messages to each other (§17.3).
            let text = "the link is sealed, and its datagrams are for one peer".to_owned();
            let (link, request, status) = (join.link, join.request, Status::FailedPrecondition);
            self.send(connection, GroupRefuse { link, request, status, text });
            return Ok(());
        }
        let message = |link| FromNexus::GroupOffered { link, join };
        self.pass_to(connection, join.link, false, "GROUP_JOIN by a server", message)
    }

    pub(in crate::nexus) fn on_group_answer(
        &mut self,
        connection: ConnectionId,
        link: u32,
        request: u32,
        answer: Result<(), Reason>,
    ) -> Result<(), Ending> {
        let message = |link| FromNexus::GroupAnswered { link, request, answer };
        self.pass_to(connection, link, true, "an answer to a GROUP_JOIN by a client", message)
    }

    pub(in crate::nexus) fn on_group_leave(
        &mut self,
        connection: ConnectionId,
        leave: GroupLeave,
    ) -> Result<(), Ending> {
        let message = |link| FromNexus::GroupLeft { link, group: leave.group };
        self.pass_to(connection, leave.link, false, "GROUP_LEAVE by a server", message)
    }

    /// Passes a message on to the link's endpoint, which must have the right role and keep up.
    fn pass_to(
        &mut self,
        connection: ConnectionId,
        number: u32,
        to_client: bool,
        violation: &'static str,
        message: impl FnOnce(LinkId) -> FromNexus<N::Link>,
    ) -> Result<(), Ending> {
        let Some(id) = self.link_at(connection, number) else { return Ok(()) };
        let link = &self.links[&id];
        match *link.stage() {
            Stage::Up { is_opener, .. } if is_opener == to_client => {}
            _ => return Err(Ending::Violation(violation)),
        }
        self.pass_on(link.endpoint(), message(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexus::reactor::tests::linked_at;

    /// Clients ask and leave, and servers answer. Allowed messages are passed on.
    #[test]
    fn messages_of_groups__of_the_wrong_side_or_before_the_link_is_up_break_the_protocol() {
        let by = |is_opener| Stage::Up { is_opener, max_frame: 1_472 };
        let promised = Stage::Promised { expected: None, max_frame: 1_472 };
        for (stage, is_opener, may_ask, may_answer) in [
            (by(true), true, false, true),
            (by(false), false, true, false),
            (promised, false, false, false),
        ] {
            let (mut reactor, inbox, (at, _peer), id) = linked_at(is_opener, stage);
            let address = ([239, 1, 2, 3], 7).into();
            let (request, session, token, group, key) = (1, 3, 4, 2, 6);
            let join = |link| GroupJoin {
                link,
                request,
                session,
                token,
                group,
                key,
                address,
                packet_bytes: 1_024,
            };
            let refusal = || Err(Reason::new(Status::Unavailable, "no"));
            for number in [5, 6] {
                let is_there = number == 5;
                let leave = GroupLeave { link: number, group: 2 };
                assert_eq!(
                    reactor.relay.on_group_join(at, join(number)).is_ok(),
                    may_ask || !is_there
                );
                assert_eq!(reactor.relay.on_group_leave(at, leave).is_ok(), may_ask || !is_there);
                for answer in [Ok(()), refusal()] {
                    let result = reactor.relay.on_group_answer(at, number, 1, answer);
                    assert_eq!(result.is_ok(), may_answer || !is_there);
                }
            }
            assert_eq!(
                reactor.relay.counters().snapshot().late_messages,
                4,
                "no link has the number 6"
            );
            if may_ask {
                let offered = inbox.pop();
                assert!(
                    matches!(offered, Some(FromNexus::GroupOffered { link, .. }) if link == id)
                );
                let left = inbox.pop();
                assert!(
                    matches!(left, Some(FromNexus::GroupLeft { link, group: 2 }) if link == id)
                );
            }
            if may_answer {
                for expected in [true, false] {
                    let Some(FromNexus::GroupAnswered { link, request: 1, answer }) = inbox.pop()
                    else {
                        panic!("the endpoint is not notified")
                    };
                    assert_eq!((link, answer.is_ok()), (id, expected));
                }
            }
            assert!(inbox.pop().is_none());
        }
    }
}
