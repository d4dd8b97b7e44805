//! The control plane's messages, and the ends of links and sessions.
//!
//! | file | concern |
//! | --- | --- |
//! | `open` | client sessions, from the request to the server's acceptance |
//! | `accept` | sessions with the endpoint as the server, and draining |
//! | `probes` | whether frames get through, before a session is used |
//! | `multicast` | the groups that the endpoint sends to, or is a member of |

mod accept;
mod multicast;
mod open;
mod probes;

use std::sync::Arc;

use petrel_proto::control::LinkFeatures;
use petrel_proto::limits::{
    DEADLINE_BLOCK_BYTES, DEADLINE_ORDER_BLOCK_BYTES, PACKET_BYTES_MIN, PACKET_OVERHEAD_BYTES,
};
use petrel_proto::{Closed, PeerKey, SessionId, Status};
use petrel_transport::{LinkError, PeerId, Transport};

use super::{Ended, Link, Remote};
use crate::control::{ControlPlane, FromNexus, LinkId, PeerName, Reason, ToNexus};
use crate::endpoint::Peer;
use crate::endpoint::context::Local;
use crate::endpoint::drain::Drain;
use crate::endpoint::groups::JoinedGroups;
use crate::endpoint::stats::EndpointStats;
use crate::events;
use crate::inbox::WorkFlag;
use crate::security::PeerIdentity;
use crate::source::Source;
use crate::values::{SessionEnd, SessionState};

/// Why a session is refused that finds no room in the receive ring (`docs/wire-protocol.md` §4).
const RING_FULL: &str =
    "the receive ring has no room for a further session: raise its size, or open fewer sessions";

/// The parts of an endpoint that open and end sessions, borrowed for one operation.
pub(in crate::endpoint) struct SessionControl<'a, T, C> {
    transport: &'a mut T,
    control: &'a mut C,
    local: &'a mut Local,
    drain: &'a mut Drain,
    joined: &'a mut JoinedGroups,
    work_flag: &'a WorkFlag,
}

impl<'a, T: Transport, C: ControlPlane<T::Link>> SessionControl<'a, T, C> {
    /// Borrows the endpoint's media, its state, and its multicast groups.
    #[inline]
    pub(in crate::endpoint) fn of(
        (transport, control): (&'a mut T, &'a mut C),
        local: &'a mut Local,
        (drain, work_flag): (&'a mut Drain, &'a WorkFlag),
        joined: &'a mut JoinedGroups,
    ) -> Self {
        Self { transport, control, local, drain, joined, work_flag }
    }
}

impl<T: Transport, C: ControlPlane<T::Link>> SessionControl<'_, T, C> {
    /// Handles a message of the control plane.
    #[inline(never)]
    pub(in crate::endpoint) fn handle_message(&mut self, message: FromNexus<T::Link>) {
        match message {
            FromNexus::LinkUp {
                request,
                link,
                transport,
                peer,
                incarnation,
                identity,
                features,
            } => {
                let peer = (peer, incarnation, identity);
                self.on_link_up((request, link), transport, peer, features);
            }
            FromNexus::PathMeasured { link, rtt_ns } => self.on_path_measured(link, rtt_ns),
            FromNexus::LinkFailed { request, reason } => self.on_link_failed(request, &reason),
            FromNexus::LinkDown { link, reason } => self.on_link_down(link, &reason),
            FromNexus::SessionProposed { link, open } => self.on_proposed(link, &open),
            FromNexus::SessionOpened { link, accept } => self.on_opened(link, &accept),
            FromNexus::SessionRefused { request, reason, .. } => {
                if let Some(id) = self.local.sessions.take_proposal(request) {
                    self.drop_session(id, SessionEnd::Refused, reason);
                }
            }
            FromNexus::SessionClosed { session, token, reason, .. } => {
                if let Some(id) = self.local.core.find(session, token) {
                    self.drop_session(id, SessionEnd::ClosedByPeer, reason);
                }
            }
            FromNexus::SessionDraining { session, token, .. } => self.on_draining(session, token),
            FromNexus::LinkDraining { link } => self.drain_link(link),
            FromNexus::GroupOffered { link, join } => self.on_group_offered(link, &join),
            FromNexus::GroupAnswered { link, request, answer } => {
                self.local.groups.on_answer(link, request, answer);
            }
            FromNexus::GroupLeft { link, group } => self.leave_group(link, group),
            FromNexus::GrantsChanged => self.judge_again(),
            FromNexus::StatsRequested { request } => {
                let json = EndpointStats::of(self.transport, self.control, self.local).to_json();
                self.control.post(ToNexus::Stats { request, json });
            }
        }
    }

    /// Adds the peer of a link, and proposes the sessions that wait for the link.
    fn on_link_up(
        &mut self,
        (request, name): (Option<u64>, LinkId),
        transport: T::Link,
        (peer, incarnation, identity): (PeerName, u64, Option<Arc<PeerIdentity>>),
        features: LinkFeatures,
    ) {
        let id = match self.add_peer(transport, &features) {
            Ok(id) => id,
            Err(error) => {
                let reason = Reason::new(Status::FailedPrecondition, error.to_string());
                if let Some(request) = request {
                    self.on_link_failed(request, &reason);
                }
                self.control.post(ToNexus::CloseLink { link: name, reason });
                return;
            }
        };
        let is_networked = self.transport.is_networked(id);
        let medium = self.transport.medium_of(id);
        let process = self.transport.process_of(id);
        let user = process.map(|process| process.uid);
        let source = Source::of(peer.address.ip(), user, identity.as_deref());
        self.local.core.set_account(PeerKey(id.0), source.number());
        let peer =
            Arc::new(Peer { name: peer, incarnation, is_networked, medium, process, identity });
        let link = Link::new(id, peer, source.number(), &features);
        for id in self.local.sessions.add_link(name, link, request) {
            self.propose(name, id);
        }
        self.close_if_orphaned(name);
    }

    /// Adds the peer of a link to the transport, with all of its source ports.
    fn add_peer(
        &mut self,
        transport: T::Link,
        features: &LinkFeatures,
    ) -> Result<PeerId, LinkError> {
        let id = self.transport.add_peer(transport)?;
        if features.paths.is_empty() {
            return Ok(id);
        }
        let accepted = self.transport.accept_ports(id, features.paths.as_slice());
        let id = accepted.inspect_err(|_| self.transport.remove_peer(id))?;
        if !features.probe {
            // Without probes, the control plane knows the ports to be the peer's.
            self.local.core.trust_peer(PeerKey(id.0));
        }
        Ok(id)
    }

    /// Gives the path's round trip to the established sessions of a link; others get it when established.
    fn on_path_measured(&mut self, name: LinkId, rtt_ns: u32) {
        let Some(link) = self.local.sessions.link(name) else { return };
        if !self.transport.is_networked(link.id()) {
            return;
        }
        for id in link.sessions() {
            self.local.core.note_path(self.local.now_ns, id, rtt_ns);
        }
        self.local.sessions.set_path_rtt(name, rtt_ns);
    }

    fn on_link_failed(&mut self, request: u64, reason: &Reason) {
        let Some((remote, waiting)) = self.local.sessions.fail_link(request) else { return };
        let reason = self.with_failure_of_datagrams(remote, reason);
        for id in waiting {
            self.drop_session(id, SessionEnd::NotReached, reason.clone());
        }
    }

    fn on_link_down(&mut self, name: LinkId, reason: &Reason) {
        let Some((link, remote)) = self.local.sessions.remove_link(name) else { return };
        for id in link.sessions() {
            self.on_link_lost(id, remote, reason, link.peer().name);
        }
        self.transport.remove_peer(link.id());
        if self.local.sessions.links_to(link.id()).next().is_none() {
            self.local.core.forget_peer(PeerKey(link.id().0));
        }
    }

    /// Has the control plane end the links of a peer that the medium has lost, for both sides.
    pub(in crate::endpoint) fn on_broken(&self, peer: PeerId, why: &str) {
        let text = format!("the {} to the peer broke: {why}", self.transport.medium_of(peer));
        for link in self.local.sessions.links_to(peer) {
            let reason = Reason::new(Status::Unavailable, text.clone());
            self.control.post(ToNexus::CloseLink { link, reason });
        }
    }

    /// Ends a session whose link is down, or proposes it once more.
    fn on_link_lost(
        &mut self,
        id: SessionId,
        remote: Option<Remote>,
        reason: &Reason,
        peer: PeerName,
    ) {
        match remote {
            Some(remote) if self.local.sessions.take_second_try(id) => self.propose_to(remote, id),
            _ => self.drop_session_of(id, SessionEnd::LinkLost, reason.clone(), Some(peer)),
        }
    }

    /// Ends a session and notifies the peer.
    pub(in crate::endpoint) fn end_session(
        &mut self,
        id: SessionId,
        end: SessionEnd,
        status: Status,
        message: &str,
    ) {
        let Some(closed) = self.local.core.close(id, status, message) else { return };
        let reason = Reason::new(status, message);
        let for_peer = match end {
            SessionEnd::Drained | SessionEnd::Refused => reason.clone(),
            _ => Reason::new(Status::Unavailable, "the peer closed the session"),
        };
        self.forget_session(id);
        let peer = self.peer_name_of(id);
        self.revoke_probed(id);
        let link = self.local.sessions.remove(id);
        self.report_end(link, &closed);
        if let (Some(link), Some(agreed)) = (link, closed.agreed) {
            self.control.post(ToNexus::CloseSession {
                link,
                peer_session: agreed.peer_session,
                peer_token: agreed.peer_token,
                from_client: closed.was_client,
                reason: for_peer,
            });
        }
        self.close_if_over(link);
        self.record_end(id, end, reason, peer);
    }

    /// Ends what belongs to a session that has ended.
    fn forget_session(&mut self, id: SessionId) {
        self.leave_groups_of(id);
        self.local.authorizer.forget(id);
        self.local.session_ends.iter().for_each(|tell| tell(id));
    }

    /// Ends a session that the peer does not know, or knows to have ended.
    pub(super) fn drop_session(&mut self, id: SessionId, end: SessionEnd, reason: Reason) {
        let peer = self.peer_name_of(id);
        self.drop_session_of(id, end, reason, peer);
    }

    fn drop_session_of(
        &mut self,
        id: SessionId,
        end: SessionEnd,
        reason: Reason,
        peer: Option<PeerName>,
    ) {
        if let Some(closed) = self.local.core.close(id, reason.status, &reason.message) {
            self.forget_session(id);
            let link = self.local.sessions.remove(id);
            self.report_end(link, &closed);
            self.close_if_over(link);
            self.record_end(id, end, reason, peer);
        }
    }

    fn record_end(
        &mut self,
        id: SessionId,
        end: SessionEnd,
        reason: Reason,
        peer: Option<PeerName>,
    ) {
        events::session_ended(self.control.endpoint_id(), id, peer, end, &reason);
        let state = SessionState::Ended(Some(reason.clone()));
        self.local.hub.set_session_state(id, &state);
        self.local.sessions.record_end(Ended::new(id, end, reason));
    }

    /// Returns the peer of a session that is about to end.
    fn peer_name_of(&self, id: SessionId) -> Option<PeerName> {
        self.local.sessions.peer_of(id).map(|peer| peer.name)
    }

    /// Reports the end to the control plane, which counts the sessions of peers here.
    fn report_end(&self, link: Option<LinkId>, closed: &Closed) {
        // The end of a link ends its sessions for the control plane, too.
        let link = link.filter(|link| self.local.sessions.link(*link).is_some());
        if let (Some(link), Some(agreed), false) = (link, closed.agreed, closed.was_client) {
            self.control.post(ToNexus::SessionEnded { link, slots: agreed.slots });
        }
    }

    /// Reports that a session is open.
    pub(super) fn report_open(&self, id: SessionId) {
        if let Some(peer) = self.local.sessions.peer_of(id) {
            let transport = peer.medium;
            let endpoint = self.control.endpoint_id();
            let is_server = self.local.core.is_server(id);
            events::session_opened(endpoint, id, Some(peer.name), transport, is_server);
        }
    }

    /// Returns the payload bytes of a full packet to a peer.
    pub(super) fn packet_bytes(&self, peer: PeerId) -> u32 {
        self.packet_bytes_beside(peer, 0)
    }

    /// Returns the payload bytes of a full packet on a link for a session that keeps an order; `None` if the server
    /// does not know ordered calls, or the link has no room for their records.
    pub(super) fn ordered_packet_bytes(&self, link: &Link) -> Option<u32> {
        let records = DEADLINE_ORDER_BLOCK_BYTES - DEADLINE_BLOCK_BYTES;
        let bytes = self.packet_bytes_beside(link.id(), records);
        (link.knows_order() && bytes >= PACKET_BYTES_MIN).then_some(bytes)
    }

    /// Returns the payload bytes of a full packet to a peer, beside this number of bytes of further records.
    fn packet_bytes_beside(&self, peer: PeerId, records: usize) -> u32 {
        let max = self.transport.max_frame_bytes(peer).min(u32::MAX as usize);
        let bytes = max.saturating_sub(PACKET_OVERHEAD_BYTES + records) as u32;
        whole_words(bytes.min(petrel_proto::limits::PACKET_BYTES_MAX))
    }
}

/// Returns the largest multiple of 8 that is at most `bytes`: no two packets of a WRITE then share a word of the region, and each is
/// stored as it arrives.
fn whole_words(bytes: u32) -> u32 {
    bytes & !7
}
