//! The control plane of two endpoints in memory: passes on the messages that the nexus would send to the other process.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use petrel_proto::Status;
use petrel_proto::control::{GroupJoin, LinkFeatures, SessionAccept, SessionOpen};

use super::queues::{InboxLink, Queues};
use crate::control::{ControlPlane, EndpointId, FromNexus, LinkId, PeerName, Reason, ToNexus};
use crate::sync::{Arc, Mutex, lock, now_ns};

/// The names of the client and of the server: addresses for documents (RFC 5737), which no host has.
const NAMES: [SocketAddr; 2] =
    [SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 1), SERVER];
pub(super) const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 1);

/// The only endpoint of each side.
const ENDPOINT: EndpointId = EndpointId(0);

type Message = FromNexus<InboxLink>;

/// The control plane of an endpoint of a [test](super).
pub struct InMemory {
    plane: Arc<Plane>,
    /// 0 for the client, 1 for the server.
    side: usize,
}

/// The state of both control planes.
struct Plane {
    inboxes: [InboxLink; 2],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Messages for either endpoint.
    queues: [VecDeque<Message>; 2],
    are_gone: [bool; 2],
    /// The links that are up. Both endpoints know a link by the same name.
    links: BTreeSet<LinkId>,
    links_so_far: u64,
}

/// A side of the pair, for the thread of its endpoint.
pub(super) struct Side(Arc<Plane>, usize);

impl Side {
    /// Returns the transport and the control plane.
    pub(super) fn parts(self) -> (Queues, InMemory) {
        let Self(plane, side) = self;
        (Queues::new(plane.inboxes[side].clone()), InMemory { plane, side })
    }
}

impl InMemory {
    /// Returns both sides of a pair: the client's and the server's.
    pub(super) fn pair() -> [Side; 2] {
        let inboxes = [InboxLink::new(), InboxLink::new()];
        let plane = Arc::new(Plane { inboxes, state: Mutex::default() });
        [Side(Arc::clone(&plane), 0), Side(plane, 1)]
    }
}

impl Plane {
    fn tell(&self, state: &mut State, side: usize, message: Message) {
        if !state.are_gone[side] {
            state.queues[side].push_back(message);
            self.inboxes[side].waker().wake();
        }
    }

    /// Passes a message about a link on to the other side, if the link is up.
    fn pass_on(&self, state: &mut State, from: usize, link: LinkId, message: Message) {
        if state.links.contains(&link) {
            self.tell(state, 1 - from, message);
        }
    }

    /// Reports a new link to both endpoints.
    fn open_link(
        &self,
        state: &mut State,
        from: usize,
        (request, reverse): (u64, bool),
        to: (SocketAddr, EndpointId),
    ) {
        let other = 1 - from;
        let (remote, endpoint) = to;
        let is_there = remote == NAMES[other] && [ENDPOINT, EndpointId::ANY].contains(&endpoint);
        if state.are_gone[other] || !is_there {
            let reason =
                Reason::new(Status::Unavailable, format!("no server in memory is at {remote}"));
            return self.tell(state, from, FromNexus::LinkFailed { request, reason });
        }
        state.links_so_far += 1;
        let link = LinkId(state.links_so_far);
        state.links.insert(link);
        // The accepting endpoint first: frames may follow at once.
        for (side, request) in [(other, None), (from, Some(request))] {
            let up = FromNexus::LinkUp {
                request,
                link,
                transport: self.inboxes[1 - side].clone(),
                peer: PeerName { address: NAMES[1 - side], endpoint: ENDPOINT },
                incarnation: 1,
                identity: None,
                features: LinkFeatures { order: true, reverse, ..LinkFeatures::NONE },
            };
            self.tell(state, side, up);
        }
    }

    fn close_link(&self, state: &mut State, link: LinkId, reason: &Reason) {
        if state.links.remove(&link) {
            for side in [0, 1] {
                self.tell(state, side, FromNexus::LinkDown { link, reason: reason.clone() });
            }
        }
    }

    fn end(&self, state: &mut State, side: usize) {
        state.are_gone[side] = true;
        state.queues[side].clear();
        let reason = Reason::new(Status::Unavailable, "the other end of the test has ended");
        for link in state.links.clone() {
            self.close_link(state, link, &reason);
        }
    }
}

impl ControlPlane<InboxLink> for InMemory {
    fn post(&self, message: ToNexus) {
        let Self { plane, side } = self;
        let state = &mut *lock(&plane.state);
        let mut pass_on = |link, message| plane.pass_on(state, *side, link, message);
        match message {
            ToNexus::OpenLink { request, remote, remote_endpoint, reverse, .. } => {
                plane.open_link(state, *side, (request, reverse), (remote, remote_endpoint));
            }
            ToNexus::OpenSession { link, open } => {
                let open = SessionOpen { link: link.0 as u32, ..open };
                pass_on(link, FromNexus::SessionProposed { link, open });
            }
            ToNexus::AnswerSession { link, request, answer } => pass_on(
                link,
                match answer {
                    Ok(accept) => {
                        let accept = SessionAccept { link: link.0 as u32, request, ..accept };
                        FromNexus::SessionOpened { link, accept }
                    }
                    Err(reason) => FromNexus::SessionRefused { link, request, reason },
                },
            ),
            ToNexus::CloseSession { link, peer_session, peer_token, from_client, reason } => {
                let (session, token) = (peer_session, peer_token);
                pass_on(
                    link,
                    FromNexus::SessionClosed { link, session, token, from_client, reason },
                );
            }
            ToNexus::DrainSession { link, peer_session, peer_token, message } => {
                let (session, token) = (peer_session, peer_token);
                pass_on(link, FromNexus::SessionDraining { link, session, token, message });
            }
            ToNexus::JoinGroup { link, join } => {
                let join = GroupJoin { link: link.0 as u32, ..join };
                pass_on(link, FromNexus::GroupOffered { link, join });
            }
            ToNexus::AnswerGroup { link, request, answer } => {
                pass_on(link, FromNexus::GroupAnswered { link, request, answer });
            }
            ToNexus::LeaveGroup { link, group } => {
                pass_on(link, FromNexus::GroupLeft { link, group });
            }
            ToNexus::CloseLink { link, reason } => plane.close_link(state, link, &reason),
            // Both sides are one process: there is none to look after. The end is that of this value.
            ToNexus::Unreached { .. }
            | ToNexus::CheckPeer { .. }
            | ToNexus::LinkUsed { .. }
            | ToNexus::SessionEnded { .. }
            | ToNexus::Stats { .. }
            | ToNexus::Gone => {}
        }
    }

    fn poll(&mut self) -> Option<Message> {
        lock(&self.plane.state).queues[self.side].pop_front()
    }

    fn endpoint_id(&self) -> EndpointId {
        ENDPOINT
    }

    /// The peer is in the same process: the number need not be unguessable, and differs from run to run.
    fn random(&mut self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(now_ns())
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.plane.end(&mut lock(&self.plane.state), self.side);
    }
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemory({})", NAMES[self.side])
    }
}
