//! A simulated endpoint of a nexus: it makes requests, sends answers, and records the messages of the nexus.
//!
//! The actor has the link and session state of a real endpoint, and nothing else. It checks every message
//! against the promises of `petrel::unstable::control` and `docs/wire-protocol.md` §8: every answer comes
//! once, and no message names a link that is not up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use petrel::Status;
use petrel::endpoint::{AllowedTransports, EndpointId, Reason};
use petrel::nexus::stepped::NexusHandle;
use petrel::unstable::control::{FromNexus, LinkId, ToNexus};
use petrel_proto::control::{GroupJoin, PACKET_OVERHEAD_BYTES, SessionAccept, SessionOpen};
use petrel_transport::MIN_FRAME_BYTES;
use petrel_transport::shm::Side;

use super::link::SimLink;
use crate::net::{ProcessId, SimNetwork};
use crate::rng::Rng;

/// Slots of the smallest share, the minimum for a server (§8.5).
const SLOTS_LEAST: u16 = 16;

#[derive(Clone, Copy, Debug)]
pub(super) enum DelayedAction {
    /// Process the messages of the nexus.
    Listen,
    /// Answer a proposal.
    Answer { link: LinkId, open: SessionOpen },
    /// Close an open session, by its index.
    Close { session: u32 },
    /// Send counters.
    Stats { request: u64 },
    /// Answer the offer of a group.
    AnswerGroup { link: LinkId, request: u32 },
}

/// The environment of an acting endpoint.
pub(super) struct ActorContext<'a> {
    pub(super) now_ns: u64,
    pub(super) rng: &'a mut Rng,
    pub(super) later: &'a mut Vec<(u64, DelayedAction)>,
    pub(super) next_token: &'a mut u32,
    /// Whether endpoints leave some questions unanswered.
    pub(super) hangs: bool,
    /// Longest time of an answer.
    pub(super) think_ns_max: u64,
    /// Longest time of an answer of a slow endpoint.
    pub(super) slow_ns_max: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) asked_ns: u64,
    /// The accumulated lateness of the process at that time.
    pub(super) lateness_ns: u64,
    pub(super) remote: SocketAddr,
    /// Whether nothing justifies a refusal.
    pub(super) must_succeed: bool,
}

#[derive(Debug)]
pub(super) struct LinkView {
    pub(super) is_opener: bool,
    /// Whether both ends may be clients.
    pub(super) has_reverse: bool,
    pub(super) incarnation: u64,
    max_frame_bytes: u32,
    transport: SimLink,
    /// When the nexus was asked whether the peer lives.
    pub(super) checks_ns: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    pub(super) asked_ns: u64,
    pub(super) lateness_ns: u64,
    open: SessionOpen,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub(super) link: LinkId,
    pub(super) is_client: bool,
    token: u32,
    peer: (u32, u32),
    slots: u16,
    /// Whether the client was asked to leave.
    is_draining: bool,
}

impl LinkView {
    /// Returns true if this endpoint may be the client of sessions on the link.
    pub(super) fn may_be_client(&self) -> bool {
        self.is_opener || self.has_reverse
    }

    /// Returns true if the peer may be the client of sessions on the link.
    fn may_be_server(&self) -> bool {
        !self.is_opener || self.has_reverse
    }
}

/// Numbers of messages from the nexus to endpoints.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageCounts {
    pub(super) links_up: u64,
    pub(super) links_shm: u64,
    pub(super) links_failed: u64,
    pub(super) links_down: u64,
    pub(super) sessions_opened: u64,
    pub(super) sessions_refused: u64,
    pub(super) sessions_closed: u64,
    pub(super) sessions_drained: u64,
    pub(super) groups_answered: u64,
    pub(super) stats_asked: u64,
    pub(super) paths_measured: u64,
}

pub(super) struct Actor {
    pub(super) process: ProcessId,
    pub(super) id: EndpointId,
    nexus: NexusHandle<SimNetwork<SimLink>>,
    news: VecDeque<FromNexus<SimLink>>,
    pub(super) hangs_until_ns: u64,
    pub(super) requests: BTreeMap<u64, Request>,
    next_request: u64,
    pub(super) links: BTreeMap<LinkId, LinkView>,
    seen_links: BTreeSet<LinkId>,
    pub(super) proposals: BTreeMap<(LinkId, u32), Proposal>,
    pub(super) sessions: BTreeMap<u32, Session>,
    next_session: u32,
    offers: BTreeSet<(LinkId, u32)>,
    pub(super) counts: MessageCounts,
}

impl Actor {
    pub(super) fn new(process: ProcessId, nexus: NexusHandle<SimNetwork<SimLink>>) -> Self {
        Self {
            process,
            id: nexus.id(),
            nexus,
            news: VecDeque::new(),
            hangs_until_ns: 0,
            requests: BTreeMap::new(),
            next_request: 0,
            links: BTreeMap::new(),
            seen_links: BTreeSet::new(),
            proposals: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next_session: 0,
            offers: BTreeSet::new(),
            counts: MessageCounts::default(),
        }
    }

    /// Fetches messages from the nexus. Returns true if messages have arrived.
    pub(super) fn fetch(&mut self, now_ns: u64) -> bool {
        if now_ns < self.hangs_until_ns {
            return false;
        }
        let was_empty = self.news.is_empty();
        while let Some(message) = self.nexus.poll() {
            self.news.push_back(message);
        }
        was_empty && !self.news.is_empty()
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let has_questions = !(self.requests.is_empty() && self.proposals.is_empty());
        // Honest peers answer offers, and leave when asked.
        let is_draining = self.sessions.values().any(|session| session.is_draining);
        self.news.is_empty() && !has_questions && self.offers.is_empty() && !is_draining
    }

    pub(super) fn open_link(
        &mut self,
        (remote, remote_endpoint): (SocketAddr, EndpointId),
        transports: AllowedTransports,
        request: Request,
    ) {
        let number = self.next_request;
        self.next_request += 1;
        self.requests.insert(number, request);
        self.nexus.post(ToNexus::OpenLink {
            request: number,
            remote,
            remote_endpoint,
            transports,
            // A third of the links, without a draw.
            reverse: number % 3 == 1,
        });
    }

    /// Draws an active link on which this endpoint may be a client.
    pub(super) fn some_own_link(&self, rng: &mut Rng) -> Option<LinkId> {
        let own: Vec<_> = self.links.iter().filter(|(_, link)| link.may_be_client()).collect();
        own.get(rng.below(own.len() as u64) as usize).map(|(id, _)| **id)
    }

    pub(super) fn some_link(&self, rng: &mut Rng) -> Option<LinkId> {
        self.links.keys().nth(rng.below(self.links.len() as u64) as usize).copied()
    }

    /// Proposes a session on a link, now and then with slots that the nexus must reject.
    pub(super) fn propose(&mut self, link: LinkId, lateness_ns: u64, cx: &mut ActorContext<'_>) {
        let Some(view) = self.links.get(&link) else { return };
        // Occasionally illegal slots, which the nexus must reject.
        let slots = if cx.rng.below(20) == 0 { 3 } else { 1 << cx.rng.below(12) };
        *cx.next_token += 1;
        let (session, token) = (self.next_session, *cx.next_token);
        self.next_session += 1;
        let open = SessionOpen {
            link: 0,
            request: session,
            session,
            token,
            first_request: u64::from(slots) * cx.rng.below(1_000),
            slots,
            credits: cx.rng.between(1, 64) as u16,
            max_message: 1 << 20,
            packet_bytes: view.max_frame_bytes - PACKET_OVERHEAD_BYTES,
        };
        let asked_ns = cx.now_ns;
        self.proposals.insert((link, open.request), Proposal { asked_ns, lateness_ns, open });
        self.nexus.post(ToNexus::OpenSession { link, open });
    }

    /// Asks the nexus whether the server at the other end of a link lives, as an endpoint does whose calls are silent.
    pub(super) fn check_peer(&mut self, now_ns: u64, rng: &mut Rng) {
        let Some(link) = self.some_own_link(rng) else { return };
        if let Some(view) = self.links.get_mut(&link) {
            view.checks_ns.push(now_ns);
            self.nexus.post(ToNexus::CheckPeer { link });
        }
    }

    pub(super) fn close_link(&mut self, link: LinkId) {
        let reason = Reason::new(Status::FailedPrecondition, "the transport refused it");
        self.nexus.post(ToNexus::CloseLink { link, reason });
    }

    pub(super) fn some_session(&self, rng: &mut Rng) -> Option<u32> {
        self.sessions.keys().nth(rng.below(self.sessions.len() as u64) as usize).copied()
    }

    fn close_session(&mut self, index: u32) {
        let Some(session) = self.sessions.remove(&index) else { return };
        let (peer_session, peer_token) = session.peer;
        self.nexus.post(ToNexus::CloseSession {
            link: session.link,
            peer_session,
            peer_token,
            from_client: session.is_client,
            reason: Reason::new(Status::Ok, "closed"),
        });
        self.give_back(&session);
    }

    fn give_back(&self, session: &Session) {
        if !session.is_client {
            let Session { link, slots, .. } = *session;
            self.nexus.post(ToNexus::SessionEnded { link, slots });
        }
    }

    /// Asks the clients of all served sessions to leave.
    pub(super) fn drain(&mut self) {
        for session in self.sessions.values_mut().filter(|session| !session.is_client) {
            session.is_draining = true;
            let (peer_session, peer_token) = session.peer;
            let message = "the server ends".to_owned();
            let link = session.link;
            self.nexus.post(ToNexus::DrainSession { link, peer_session, peer_token, message });
        }
    }

    /// Asks the server of a session to receive a group's multicast, or to stop doing so.
    pub(super) fn offer_group(&mut self, index: u32, rng: &mut Rng) {
        let Some(session) = self.sessions.get(&index).filter(|session| session.is_client) else {
            return;
        };
        let (link, group) = (session.link, rng.below(8) as u32);
        if rng.below(4) == 0 {
            return self.nexus.post(ToNexus::LeaveGroup { link, group });
        }
        let request = self.next_session;
        self.next_session += 1;
        self.offers.insert((link, request));
        let (session, token) = session.peer;
        let address = ([239, 1, 1, 1], 7_000).into();
        let packet_bytes = 1_200;
        let join =
            GroupJoin { link: 0, request, session, token, group, key: 1, address, packet_bytes };
        self.nexus.post(ToNexus::JoinGroup { link, join });
    }

    /// Performs an action that was delayed by the endpoint's time for an answer.
    pub(super) fn perform(
        &mut self,
        action: DelayedAction,
        cx: &mut ActorContext<'_>,
    ) -> Result<(), String> {
        match action {
            DelayedAction::Listen => {
                while let Some(message) = self.news.pop_front() {
                    self.handle_message(message, cx)?;
                }
            }
            DelayedAction::Answer { link, open } if self.links.contains_key(&link) => {
                self.answer(link, &open, cx);
            }
            DelayedAction::Close { session } => self.close_session(session),
            DelayedAction::Stats { request } => {
                let json = "{\"calls\":1}".to_owned();
                self.nexus.post(ToNexus::Stats { request, json });
            }
            DelayedAction::AnswerGroup { link, request } if self.links.contains_key(&link) => {
                let no = || Reason::new(Status::ResourceExhausted, "no group more");
                let answer = if cx.rng.below(2) == 0 { Ok(()) } else { Err(no()) };
                self.nexus.post(ToNexus::AnswerGroup { link, request, answer });
            }
            DelayedAction::Answer { .. } | DelayedAction::AnswerGroup { .. } => {}
        }
        Ok(())
    }

    /// Answers a proposal as a server.
    fn answer(&mut self, link: LinkId, open: &SessionOpen, cx: &mut ActorContext<'_>) {
        let request = open.request;
        if cx.rng.below(6) == 0 {
            let reason = Reason::new(Status::ResourceExhausted, "no session more");
            return self.nexus.post(ToNexus::AnswerSession { link, request, answer: Err(reason) });
        }
        *cx.next_token += 1;
        let (session, token) = (self.next_session, *cx.next_token);
        self.next_session += 1;
        let slots = match cx.rng.below(12) {
            0..3 => open.slots.min(SLOTS_LEAST),
            // More slots than proposed: the nexus must reject the answer.
            3 => 2 * open.slots,
            _ => open.slots,
        };
        let accept = SessionAccept {
            link: 0,
            request,
            session,
            token,
            slots,
            credits: open.credits,
            max_message: 1 << 20,
            packet_bytes: open.packet_bytes,
        };
        let peer = (open.session, open.token);
        self.sessions.insert(
            session,
            Session { link, is_client: false, token, peer, slots, is_draining: false },
        );
        self.nexus.post(ToNexus::AnswerSession { link, request, answer: Ok(accept) });
    }

    fn handle_message(
        &mut self,
        message: FromNexus<SimLink>,
        cx: &mut ActorContext<'_>,
    ) -> Result<(), String> {
        match message {
            FromNexus::LinkUp { request, link, transport, incarnation, features, .. } => {
                self.on_link_up((request, link), transport, incarnation, features.reverse)
            }
            FromNexus::LinkFailed { request, reason } => self.on_link_failed(request, &reason),
            FromNexus::LinkDown { link, .. } => self.on_link_down(link),
            FromNexus::PathMeasured { link, rtt_ns } => {
                let is_client = self.view(link, "PathMeasured")?.may_be_client();
                self.counts.paths_measured += 1;
                must(is_client && rtt_ns > 0, || format!("the path of {link:?} is measured"))
            }
            FromNexus::SessionProposed { link, open } => self.on_proposed(link, open, cx),
            FromNexus::SessionOpened { link, accept } => self.on_opened(link, &accept),
            FromNexus::SessionRefused { link, request, .. } => {
                self.counts.sessions_refused += 1;
                let asked = self.proposals.remove(&(link, request));
                must(asked.is_some(), || format!("{link:?}: {request} is refused and not asked"))
            }
            FromNexus::SessionClosed { link, session, token, from_client, .. } => {
                self.view(link, "SessionClosed")?;
                self.on_closed(link, (session, token), from_client);
                Ok(())
            }
            FromNexus::SessionDraining { link, session, token, .. } => {
                let view = self.view(link, "SessionDraining")?;
                must(view.may_be_client(), || format!("a server on {link:?} is drained"))?;
                let is_it = |session: &&Session| session.token == token && session.is_client;
                if self.sessions.get(&session).filter(is_it).is_some() {
                    self.counts.sessions_drained += 1;
                    let after_ns = cx.rng.below(cx.think_ns_max);
                    cx.later.push((after_ns, DelayedAction::Close { session }));
                }
                Ok(())
            }
            FromNexus::LinkDraining { link } => {
                must(false, || format!("{link:?} has certificates that end"))
            }
            FromNexus::GroupOffered { link, join } => {
                let view = self.view(link, "GroupOffered")?;
                must(!view.is_opener, || format!("a group is offered to a client on {link:?}"))?;
                let after_ns = cx.rng.below(cx.think_ns_max);
                let request = join.request;
                cx.later.push((after_ns, DelayedAction::AnswerGroup { link, request }));
                Ok(())
            }
            FromNexus::GroupAnswered { link, request, .. } => {
                self.view(link, "GroupAnswered")?;
                self.counts.groups_answered += 1;
                // Foreign peers may send unrequested answers; honest peers answer once.
                self.offers.remove(&(link, request));
                Ok(())
            }
            FromNexus::GroupLeft { link, .. } => self.view(link, "GroupLeft").map(|_| ()),
            FromNexus::GrantsChanged => Err("no process here has decisions that change".to_owned()),
            FromNexus::StatsRequested { request } => {
                self.counts.stats_asked += 1;
                if !(cx.hangs && cx.rng.below(3) == 0) {
                    let after_ns = cx.rng.below(cx.think_ns_max);
                    cx.later.push((after_ns, DelayedAction::Stats { request }));
                }
                Ok(())
            }
        }
    }

    fn view(&self, link: LinkId, what: &str) -> Result<&LinkView, String> {
        let view = self.links.get(&link);
        view.ok_or_else(|| format!("{what} of {link:?}, which is not up at {}", self.name()))
    }

    /// Checks that a link is new, was requested or not by its side, and carries full frames. Remembers the link.
    fn on_link_up(
        &mut self,
        (request, link): (Option<u64>, LinkId),
        transport: SimLink,
        incarnation: u64,
        has_reverse: bool,
    ) -> Result<(), String> {
        must(self.seen_links.insert(link), || format!("{link:?} is up for the second time"))?;
        self.counts.links_up += 1;
        self.counts.links_shm += u64::from(matches!(transport, SimLink::Shm { .. }));
        if let Some(number) = request {
            let was_requested = self.requests.remove(&number).is_some();
            must(was_requested, || format!("link {number} is up and was not asked for"))?;
        }
        let max_frame_bytes = match &transport {
            SimLink::Udp(udp) => udp.max_frame.unwrap_or(0),
            SimLink::Shm { memory, side, .. } => {
                let is_creator = *side == Side::Creator;
                must(is_creator == request.is_some(), || format!("{link:?} is its {side:?}"))?;
                memory.max_frame_bytes
            }
        } as u32;
        must(max_frame_bytes >= MIN_FRAME_BYTES as u32, || {
            format!("frames of {max_frame_bytes} bytes")
        })?;
        let is_opener = request.is_some();
        let checks_ns = Vec::new();
        let view =
            LinkView { is_opener, has_reverse, incarnation, max_frame_bytes, transport, checks_ns };
        self.links.insert(link, view);
        Ok(())
    }

    fn on_link_failed(&mut self, number: u64, reason: &Reason) -> Result<(), String> {
        self.counts.links_failed += 1;
        let request = self.requests.remove(&number);
        let request =
            request.ok_or_else(|| format!("link {number} failed and was not asked for"))?;
        must(reason.status != Status::Ok, || format!("link {number} failed with OK"))?;
        must(!request.must_succeed, || {
            format!("{} gets no link to {}: {}", self.name(), request.remote, reason.message)
        })
    }

    fn on_link_down(&mut self, link: LinkId) -> Result<(), String> {
        self.counts.links_down += 1;
        let view = self.links.remove(&link);
        let view = view.ok_or_else(|| format!("{link:?} is down and was not up"))?;
        drop(view.transport);
        self.sessions.retain(|_, session| session.link != link);
        self.proposals.retain(|(at, _), _| *at != link);
        self.offers.retain(|(at, _)| *at != link);
        Ok(())
    }

    /// Checks a peer's proposal, and schedules the answer; a hanging endpoint may never answer.
    fn on_proposed(
        &mut self,
        link: LinkId,
        open: SessionOpen,
        cx: &mut ActorContext<'_>,
    ) -> Result<(), String> {
        let view = self.view(link, "SessionProposed")?;
        must(view.may_be_server(), || format!("a client on {link:?} is proposed a session"))?;
        let is_known = |session: &Session| session.link == link && session.peer.1 == open.token;
        // The tokens of honest clients are all different.
        let is_twice = self.sessions.values().any(is_known);
        must(!is_twice || open.token >= FOREIGN_TOKEN, || {
            format!("a session is proposed twice on {link:?}")
        })?;
        let after_ns = match cx.rng.below(8) {
            0 | 1 if cx.hangs => return Ok(()),
            2 | 3 if cx.hangs => cx.rng.below(cx.slow_ns_max),
            _ => cx.rng.below(cx.think_ns_max),
        };
        cx.later.push((after_ns, DelayedAction::Answer { link, open }));
        Ok(())
    }

    fn on_opened(&mut self, link: LinkId, accept: &SessionAccept) -> Result<(), String> {
        self.counts.sessions_opened += 1;
        let proposal = self.proposals.remove(&(link, accept.request));
        let Proposal { open, .. } =
            proposal.ok_or_else(|| format!("{link:?}: session not asked for"))?;
        must(accept.is_within(&open), || format!("{accept:?} exceeds {open:?}"))?;
        let (slots, peer) = (accept.slots, (accept.session, accept.token));
        let session =
            Session { link, is_client: true, token: open.token, peer, slots, is_draining: false };
        self.sessions.insert(open.session, session);
        Ok(())
    }

    fn on_closed(&mut self, link: LinkId, (index, token): (u32, u32), from_client: bool) {
        let found = self.sessions.get(&index).filter(|session| {
            session.link == link && session.token == token && session.is_client != from_client
        });
        if let Some(session) = found.copied() {
            self.counts.sessions_closed += 1;
            self.sessions.remove(&index);
            self.give_back(&session);
        }
    }

    /// Returns the tokens of client and server of the sessions in which this endpoint is the client, or the server.
    pub(super) fn agreements(&self, as_client: bool) -> impl Iterator<Item = (u32, u32)> + '_ {
        let held = self.sessions.values().filter(move |session| session.is_client == as_client);
        held.map(move |session| match as_client {
            true => (session.token, session.peer.1),
            false => (session.peer.1, session.token),
        })
    }

    pub(super) fn was_hung(&self, since_ns: u64) -> bool {
        self.hangs_until_ns > since_ns
    }

    pub(super) fn name(&self) -> String {
        format!("p{} endpoint {}", self.process, self.id.0)
    }
}

/// Foreign peers' tokens begin here; honest clients use smaller tokens.
pub(super) const FOREIGN_TOKEN: u32 = 1 << 31;

fn must(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}
