//! Multicast: groups as destinations of the endpoint, and groups with the endpoint as a member (`docs/wire-protocol.md`
//! §12.2).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use petrel_planted::planted;
use petrel_proto::control::GroupJoin;
use petrel_proto::limits::{FIRST_REQUEST_END, SESSIONS_MAX, packets_of};
use petrel_proto::wire::Announcement;
use petrel_proto::{GroupFrames, Membership, PeerKey, PendingCall, SessionId, Status};
use petrel_transport::{PeerId, Transport};

use super::Endpoint;
use super::call::{CallKey, Continuation, Reply, run_keyed};
use super::context::{Context, Local};
use super::shared::SharedMsg;
use super::state::State;
use crate::control::{ControlPlane, LinkId, Reason, ToNexus};
use crate::error::{Error, SetupError};
use crate::group::{Group, GroupCall};
use crate::msgbuf::MsgBuf;

/// Groups to which an endpoint sends by multicast: the network has to carry an address for each.
const GROUPS_MAX: usize = 64;

/// The least number of receiving members for multicast: a single member costs the same packets plus an announcement.
const HEARERS_MIN: usize = 2;

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
    /// multicast 183 us in place of 231 us at 128; with ten members 726 in place of 1 121 us (`group_cost` in the
    /// examples, on a machine with other work). Short messages lose: an announcement for each member costs more than
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
pub enum Hearing {
    /// It does, by its own answer.
    Joined,
    /// It was asked, and has not answered: the process may not support groups.
    Asked,
    /// It does not.
    Refused(Reason),
    /// It was not asked: it is not reached over UDP, with packets as large as for other members.
    Apart,
}

/// The groups that an endpoint sends to, by their numbers.
#[derive(Default)]
pub(super) struct Groups {
    by_number: HashMap<u32, Sender>,
    next_number: u32,
    next_request: u32,
}

struct Sender {
    peer: PeerId,
    key: u32,
    packet_bytes: u32,
    packets_min: u32,
    next_sequence: u64,
    /// Members asked to join, with their links: in the order of asking, in which they are also notified of the end.
    asked: BTreeMap<u32, (SessionId, LinkId)>,
    answers: HashMap<SessionId, Result<(), Reason>>,
}

/// A group with the endpoint as a member.
pub(super) struct Joined {
    link: LinkId,
    group: u32,
    session: SessionId,
    peer: PeerId,
    address: SocketAddr,
}

/// A message whose packets some members receive by multicast.
pub(crate) struct Broadcast {
    frames: GroupFrames,
    message: MsgBuf,
    hearers: BTreeSet<SessionId>,
}

impl Broadcast {
    /// Returns true if this member receives it.
    pub(crate) fn reaches(&self, session: SessionId) -> bool {
        self.hearers.contains(&session)
    }

    /// Calls a member that it reaches.
    pub(crate) fn call(
        &self,
        cx: &mut Context<'_>,
        session: SessionId,
        message: &SharedMsg,
        response: MsgBuf,
        GroupCall { method, options, .. }: GroupCall,
        continuation: impl FnOnce(State<'_>, &mut Context<'_>, Reply) + 'static,
    ) -> Result<CallKey, Error> {
        let request = message.to_reference(&cx.local.pool)?;
        let Local { core, now_ns, clock, keyed, .. } = &mut *cx.local;
        let number = keyed.add(move |state, cx, mut reply| {
            reply.release_request();
            // All sent frames are flushed when a call ends.
            cx.local.core.release_sent();
            continuation(state, cx, reply);
        });
        let tag = Continuation::function(run_keyed, number);
        let call = PendingCall { method, tag, request, response };
        let limits = options.limits(clock.now_ns());
        core.call_announced(*now_ns, session, call, limits, self.frames.announcement);
        Ok(CallKey::on_session(session, run_keyed, number))
    }
}

impl Context<'_> {
    /// Prepares a message to a group for multicast, if enough members can receive it now.
    pub(crate) fn prepare_broadcast(
        &mut self,
        number: u32,
        members: &[SessionId],
        message: &SharedMsg,
    ) -> Option<Broadcast> {
        let sender = self.local.groups.by_number.get_mut(&number)?;
        if packets_of(message.len() as u32, sender.packet_bytes) < sender.packets_min {
            return None;
        }
        let core = &mut self.local.core;
        let hears = |id: &SessionId| {
            sender.answers.get(id) == Some(&Ok(()))
                && core.may_announce(*id, message.len(), sender.packet_bytes)
        };
        let hearers: BTreeSet<SessionId> = members.iter().copied().filter(hears).collect();
        if hearers.len() < HEARERS_MIN {
            return None;
        }
        // Without memory it is sent by unicast.
        let message = message.to_reference(&self.local.pool).ok()?;
        let announcement = Announcement { group: number, sequence: sender.next_sequence };
        sender.next_sequence += 1;
        let (peer, key) = (PeerKey(sender.peer.0), sender.key);
        let frames = GroupFrames { peer, key, announcement, packet_bytes: sender.packet_bytes };
        Some(Broadcast { frames, message, hearers })
    }

    /// Sends the packets, after the announcements.
    pub(crate) fn send_broadcast(&mut self, broadcast: Broadcast) {
        self.local.core.send_to_group(broadcast.frames, broadcast.message);
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Sends messages to a group by multicast where useful: messages longer than a packet, to receiving members. The
    /// members are asked now. A member that does not answer, or refuses, or proves unreachable, gets unicast, as
    /// without this call.
    ///
    /// # Errors
    /// No member is reached over UDP, the endpoint sends to too many groups, or its transport cannot send to the
    /// address. The group is then unchanged, and is called by unicast.
    pub fn start_multicast(
        &mut self,
        group: &Group,
        config: MulticastConfig,
    ) -> Result<(), SetupError> {
        self.stop_multicast(group);
        if self.local.groups.by_number.len() == GROUPS_MAX {
            return Err(SetupError::refused(format!(
                "the endpoint sends to {GROUPS_MAX} groups by multicast already; stop some first"
            )));
        }
        let members: Vec<_> = group.members().iter().filter_map(|&id| self.networked(id)).collect();
        let no_member =
            || SetupError::refused("no member of the group has an open session over UDP");
        let &(_, _, towards, packet_bytes) = members.first().ok_or_else(no_member)?;
        let peer = self
            .transport
            .open_group(config.address, towards, config.hops)
            .map_err(SetupError::of_link)?;
        let random = self.control.random();
        let number = self.local.groups.free_number();
        let sender = Sender {
            peer,
            key: random as u32,
            packet_bytes,
            packets_min: config.packets_min,
            next_sequence: self.control.random() % FIRST_REQUEST_END,
            asked: BTreeMap::new(),
            answers: HashMap::new(),
        };
        let key = sender.key;
        self.local.groups.by_number.insert(number, sender);
        group.set_multicast(Some(number));
        for (id, link, _, bytes) in members {
            if bytes == packet_bytes {
                self.ask_member(number, key, config.address, (id, link));
            }
        }
        Ok(())
    }

    /// Returns the link of an open session over a network, its peer and the session's packet size.
    fn networked(&self, id: SessionId) -> Option<(SessionId, LinkId, PeerId, u32)> {
        let agreed = self.local.core.agreed(id)?;
        let peer = PeerId(agreed.peer.0);
        let link = self.local.sessions.link_of(id)?;
        self.transport.is_networked(peer).then_some((id, link, peer, agreed.packet_bytes))
    }

    fn ask_member(
        &mut self,
        number: u32,
        key: u32,
        address: SocketAddr,
        (id, link): (SessionId, LinkId),
    ) {
        let Some(agreed) = self.local.core.agreed(id) else { return };
        let request = self.local.groups.next_request;
        let join = GroupJoin {
            link: 0,
            request,
            session: agreed.peer_session,
            token: agreed.peer_token,
            group: number,
            key,
            address,
            packet_bytes: agreed.packet_bytes,
        };
        self.local.groups.next_request = request.wrapping_add(1);
        if let Some(sender) = self.local.groups.by_number.get_mut(&number) {
            sender.asked.insert(request, (id, link));
            self.control.post(ToNexus::JoinGroup { link, join });
        }
    }

    /// Ends multicast to a group: it is called by unicast again.
    pub fn stop_multicast(&mut self, group: &Group) {
        let Some(number) = group.multicast() else { return };
        group.set_multicast(None);
        let Some(sender) = self.local.groups.by_number.remove(&number) else { return };
        for (_, link) in sender.asked.into_values() {
            self.control.post(ToNexus::LeaveGroup { link, group: number });
        }
        self.transport.remove_peer(sender.peer);
    }

    /// Returns which members of a group receive multicast; empty if the group has none.
    pub fn multicast_members(&self, group: &Group) -> Vec<(SessionId, Hearing)> {
        let number = group.multicast();
        let sender = number.and_then(|number| self.local.groups.by_number.get(&number));
        let Some(sender) = sender else { return Vec::new() };
        group.members().iter().map(|&id| (id, sender.hearing(id))).collect()
    }

    /// Handles a member's answer.
    pub(super) fn on_group_answered(
        &mut self,
        link: LinkId,
        request: u32,
        answer: Result<(), Reason>,
    ) {
        for sender in self.local.groups.by_number.values_mut() {
            if let Some(&(id, on)) = sender.asked.get(&request)
                && on == link
            {
                sender.answers.insert(id, answer);
                return;
            }
        }
    }

    /// Handles a client's offer to send requests by multicast.
    pub(super) fn on_group_offered(&mut self, link: LinkId, join: &GroupJoin) {
        let answer = self.join_group(link, join);
        self.control.post(ToNexus::AnswerGroup { link, request: join.request, answer });
    }

    fn join_group(&mut self, link: LinkId, join: &GroupJoin) -> Result<(), Reason> {
        let precondition = |why: &str| Reason::new(Status::FailedPrecondition, why);
        if !self.local.sessions.accepts_multicast() {
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
        self.joined.push(Joined { link, group, session, peer, address });
        Ok(())
    }

    /// Handles the end of a client's multicast to a group.
    pub(super) fn leave_group(&mut self, link: LinkId, group: u32) {
        self.leave(|joined| joined.link == link && joined.group == group);
    }

    /// Leaves the groups of a session that has ended.
    pub(super) fn leave_groups_of(&mut self, session: SessionId) {
        if !self.joined.is_empty() {
            self.leave(|joined| joined.session == session);
        }
    }

    fn leave(&mut self, mut is_it: impl FnMut(&Joined) -> bool) {
        for Joined { group, session, peer, address, .. } in
            self.joined.extract_if(.., |it| is_it(it))
        {
            self.local.core.leave_group(session, group);
            if !planted("multicast_listens_for_ever") {
                self.transport.leave_group(address, peer);
            }
        }
    }
}

impl Groups {
    /// Returns the number of groups to which the endpoint sends.
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
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
    fn hearing(&self, id: SessionId) -> Hearing {
        match self.answers.get(&id) {
            Some(Ok(())) => Hearing::Joined,
            Some(Err(reason)) => Hearing::Refused(reason.clone()),
            None if self.asked.values().any(|&(asked, _)| asked == id) => Hearing::Asked,
            None => Hearing::Apart,
        }
    }
}
