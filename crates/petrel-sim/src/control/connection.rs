//! Streams between two processes: ordered, delayed by partitions, and ended by a reset or by silence
//! (`docs/wire-protocol.md` §8.1, §8.3, §8.6).

use std::collections::VecDeque;

use petrel::endpoint::Reason;
use petrel::unstable::control::{FromNexus, LinkId};
use petrel_proto::control::{
    Decoder, GroupAccept, GroupRefuse, Hello, Message, PREFACE, VersionRange,
};

use super::CrashKind;
use super::links::Stage;
use super::network::{Event, Network, Side, unavailable};
use crate::fabric::HostId;

/// A peer counts as dead or hung that has not answered a PING after this number of heartbeats (§8.6).
const SILENT_HEARTBEATS_MAX: u64 = 3;

/// Heartbeats between two PINGs if nothing raises a doubt of the peer (§8.6).
const KEEP_ALIVE_HEARTBEATS: u64 = 48;

/// The growth from one of the first pauses between PINGs to the next (§8.6).
const PAUSE_GROWTH: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionId(pub(super) u32);

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ends: [End; 2],
    /// Whether the acceptor's kernel has the connection.
    is_established: bool,
    dialled_ns: u64,
    /// The shortest round trip measured by the dialling kernel.
    pub(super) path_rtt_ns: u32,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) host: HostId,
    /// Whether the process has its end open.
    is_open: bool,
    /// The peer's incarnation, once its HELLO has arrived.
    pub(super) peer: Option<u64>,
    heard_ns: u64,
    /// When the last PING was sent, or HELLO before the first.
    asked_ns: u64,
    /// Time from this PING to the next if nothing raises a doubt.
    pause_ns: u64,
    /// Whether the peer's answer to a PING is awaited.
    awaits: bool,
    /// Whether a doubt demands a PING.
    doubts: bool,
    /// When the side is to be checked next; earlier ticks do nothing.
    tick_ns: u64,
    decoder: Decoder,
    /// Items in flight to the peer, with their arrival times.
    out: VecDeque<(u64, Item)>,
}

#[derive(Debug)]
enum Item {
    Bytes(Vec<u8>),
    /// A PING. PINGs are most of all messages, and so skip encoder and decoder.
    Ping,
    /// The answer to a PING.
    Pong,
    Reset,
}

impl End {
    fn new(host: HostId, is_open: bool, now_ns: u64) -> Self {
        Self {
            host,
            is_open,
            peer: None,
            heard_ns: now_ns,
            asked_ns: now_ns,
            pause_ns: 0,
            awaits: false,
            doubts: false,
            tick_ns: 0,
            decoder: Decoder::new(),
            out: VecDeque::new(),
        }
    }

    fn hear(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.awaits = false;
        self.doubts = false;
    }

    /// Returns when the side asks next, or else gives the peer up. An acceptor asks only if in doubt.
    fn next_ns(&self, heartbeat_ns: u64) -> u64 {
        match (self.awaits, self.doubts) {
            (true, _) => self.asked_ns + SILENT_HEARTBEATS_MAX * heartbeat_ns,
            (false, true) => self.asked_ns + heartbeat_ns,
            (false, false) => self.asked_ns + self.pause_ns,
        }
    }
}

impl Network {
    /// Returns the connection of `host` to the process of `remote`, and opens one if necessary.
    pub(super) fn connect(&mut self, host: HostId, remote: HostId) -> ConnectionId {
        if let Some(&id) = self.process(host).dialled.get(&remote) {
            return id;
        }
        let (id, now_ns) = (ConnectionId(self.connection_count), self.now_ns());
        self.connection_count += 1;
        let ends = [End::new(host, true, now_ns), End::new(remote, false, now_ns)];
        let path_rtt_ns = self.draw_round_trip_ns();
        let connection =
            Connection { ends, is_established: false, dialled_ns: now_ns, path_rtt_ns };
        self.connections.insert(id, connection);
        self.process(host).dialled.insert(remote, id);
        let arrives_ns = now_ns + self.draw_delay_ns();
        self.schedule(arrives_ns, Event::Dial(id));
        self.greet(id, 0);
        id
    }

    /// Returns true if a side has received the peer's HELLO.
    pub(super) fn has_greeted(&self, id: ConnectionId, side: Side) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.ends[side].peer.is_some())
    }

    /// Handles the arrival of a connection request: accepted, refused or lost.
    pub(super) fn on_dial(&mut self, id: ConnectionId) {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let [from, to] = [connection.ends[0].host, connection.ends[1].host];
        let acceptor = &self.processes[usize::from(to.0)];
        let is_cut = self.fabric.is_cut(from, to) || self.fabric.is_cut(to, from);
        if is_cut || acceptor.is_silent {
            return;
        }
        connection.is_established = true;
        if acceptor.incarnation == 0 {
            return self.push_item(id, 1, Item::Reset);
        }
        connection.ends[1].is_open = true;
        connection.ends[1].heard_ns = now_ns;
        self.greet(id, 1);
        self.schedule(now_ns, Event::Pump(id, 0));
    }

    /// Sends HELLO from a side, and schedules its first question.
    fn greet(&mut self, id: ConnectionId, side: Side) {
        let Some(connection) = self.connections.get(&id) else { return };
        let host = connection.ends[side].host;
        let hello = Hello {
            versions: VersionRange { min: 1, max: 1 },
            incarnation: self.process(host).incarnation,
            heartbeat_ms: (self.config.heartbeat_ns / 1_000_000).max(1) as u32,
            agent: "petrel-sim".to_owned(),
            host_identity: None,
            rendezvous: None,
        };
        self.push_item(id, side, Item::Bytes(PREFACE.to_vec()));
        self.send(id, side, hello);
        let (now_ns, heartbeat_ns) = (self.now_ns(), self.config.heartbeat_ns);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.ends[side].asked_ns = now_ns;
            connection.ends[side].pause_ns = heartbeat_ns;
        }
        self.tick_at(id, side, now_ns + heartbeat_ns);
    }

    /// Schedules a check of a side of a connection.
    fn tick_at(&mut self, id: ConnectionId, side: Side, at_ns: u64) {
        let at_ns = at_ns.max(self.now_ns() + 1);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.ends[side].tick_ns = at_ns;
            self.schedule(at_ns, Event::Tick(id, side));
        }
    }

    /// Asks the peer of an endpoint's link for a sign of life.
    pub(super) fn check_peer(&mut self, host: HostId, link: LinkId) {
        let Some(link) = self.process(host).links.get(link) else { return };
        let id = link.connection;
        let heartbeat_ns = self.config.heartbeat_ns;
        let Some(side) = self.side_of(host, id) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = &mut connection.ends[side];
        if end.is_open && end.peer.is_some() && !end.awaits {
            end.doubts = true;
            let next_ns = end.next_ns(heartbeat_ns);
            self.tick_at(id, side, next_ns);
        }
    }

    pub(super) fn send(&mut self, id: ConnectionId, side: Side, message: impl Into<Message>) {
        let message = message.into();
        let mut bytes = Vec::new();
        match message.encode(&mut bytes) {
            Ok(()) => self.push_item(id, side, Item::Bytes(bytes)),
            Err(error) => self.report(format!("cannot encode {message:?}: {error}")),
        }
    }

    fn push_item(&mut self, id: ConnectionId, side: Side, item: Item) {
        let earliest_ns = self.now_ns() + self.draw_delay_ns();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let out = &mut connection.ends[side].out;
        let is_first = out.is_empty();
        let at_ns = out.back().map_or(0, |&(at_ns, _)| at_ns).max(earliest_ns);
        out.push_back((at_ns, item));
        if is_first {
            self.schedule(at_ns, Event::Pump(id, side));
        }
    }

    fn draw_delay_ns(&mut self) -> u64 {
        let (low_ns, high_ns) = self.config.delay_ns;
        self.rng.between(low_ns, high_ns)
    }

    fn draw_round_trip_ns(&mut self) -> u32 {
        u32::try_from(self.draw_delay_ns() + self.draw_delay_ns()).unwrap_or(u32::MAX)
    }

    /// Draws a further round trip of the kernel, and reports a shorter round trip to the endpoints.
    fn measure_path(&mut self, id: ConnectionId) {
        let rtt_ns = self.draw_round_trip_ns();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if rtt_ns < connection.path_rtt_ns {
            connection.path_rtt_ns = rtt_ns;
            self.tell_path(id);
        }
    }

    /// Delivers the items from `side` that have arrived, unless the network is cut.
    pub(super) fn on_pump(&mut self, id: ConnectionId, side: Side) {
        while let Some(at_ns) = self.deliverable_at(id, side) {
            if at_ns > self.now_ns() {
                return self.schedule(at_ns, Event::Pump(id, side));
            }
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let Some((_, item)) = connection.ends[side].out.pop_front() else { return };
            self.deliver(id, 1 - side, item);
        }
        self.forget_if_over(id);
    }

    /// Returns when the first item from `side` can be delivered.
    fn deliverable_at(&self, id: ConnectionId, side: Side) -> Option<u64> {
        let connection = self.connections.get(&id)?;
        let &(at_ns, _) = connection.ends[side].out.front()?;
        let [from, to] = [&connection.ends[side], &connection.ends[1 - side]];
        // The connection request is not accepted yet; `on_dial` continues.
        let is_early = !connection.is_established;
        let is_cut = to.is_open && self.fabric.is_cut(from.host, to.host);
        let retry_ns = self.now_ns() + self.config.retry_ns;
        match (is_early, is_cut) {
            (true, _) => from.is_open.then_some(retry_ns),
            (_, true) => Some(at_ns.max(retry_ns)),
            _ => Some(at_ns),
        }
    }

    /// Delivers an item to a side. A side without the connection answers with a reset.
    fn deliver(&mut self, id: ConnectionId, side: Side, item: Item) {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = &mut connection.ends[side];
        if !end.is_open {
            // The kernel of a running host does not know this connection.
            let answers = !matches!(item, Item::Reset) && self.fabric.is_up(end.host);
            if answers {
                self.push_item(id, side, Item::Reset);
            }
            return;
        }
        match item {
            Item::Reset => {
                self.stats.resets += 1;
                self.close(id, side, "the peer's process has ended or closed the connection");
            }
            Item::Bytes(bytes) => {
                end.hear(now_ns);
                self.receive(id, side, &bytes);
            }
            Item::Ping => {
                end.hear(now_ns);
                self.push_item(id, side, Item::Pong);
            }
            Item::Pong => {
                end.hear(now_ns);
                let next_ns = end.next_ns(self.config.heartbeat_ns);
                self.tick_at(id, side, next_ns);
            }
        }
    }

    fn receive(&mut self, id: ConnectionId, side: Side, mut bytes: &[u8]) {
        while let Some(connection) = self.connections.get_mut(&id) {
            match connection.ends[side].decoder.decode(&mut bytes) {
                Ok(Some(message)) => self.on_message(id, side, message),
                Ok(None) => return,
                Err(error) => return self.report(format!("cannot decode: {error}")),
            }
        }
    }

    fn on_message(&mut self, id: ConnectionId, side: Side, message: Message) {
        match message {
            Message::Hello(hello) => self.on_hello(id, side, &hello),
            Message::LinkOpen(open) => self.on_link_open(id, &open),
            Message::LinkAccept(accept) => self.on_link_accept(id, &accept),
            Message::LinkRefuse(refuse) => self.on_link_refuse(id, refuse),
            Message::LinkClose(close) => self.on_link_close(id, side, close),
            Message::SessionOpen(open) => self.on_session_open(id, side, open),
            Message::SessionAccept(accept) => self.on_session_accept(id, side, accept),
            Message::SessionRefuse(refuse) => self.on_session_refuse(id, side, refuse),
            Message::SessionClose(close) => self.on_session_close(id, side, close),
            Message::SessionDrain(drain) => self.on_session_drain(id, side, drain),
            Message::GroupJoin(join) => self.on_group_join(id, side, join),
            Message::GroupAccept(GroupAccept { link, request }) => {
                self.on_group_answer((id, side), link, request, Ok(()));
            }
            Message::GroupRefuse(GroupRefuse { link, request, status, text }) => {
                let reason = Reason::new(status, text);
                self.on_group_answer((id, side), link, request, Err(reason));
            }
            Message::GroupLeave(leave) => self.on_group_leave(id, side, leave),
            other => self.report(format!("unexpected {other:?}")),
        }
    }

    fn on_hello(&mut self, id: ConnectionId, side: Side, hello: &Hello) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.ends[side].peer = Some(hello.incarnation);
        if side == 0 {
            self.send_link_opens(id);
        }
    }

    /// Checks the peer of a side for silence. The opener's side asks for a sign of life.
    pub(super) fn on_tick(&mut self, id: ConnectionId, side: Side) {
        let (now_ns, heartbeat_ns) = (self.now_ns(), self.config.heartbeat_ns);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = &mut connection.ends[side];
        if !end.is_open || now_ns < end.tick_ns {
            return;
        }
        if end.peer.is_none() {
            if now_ns - connection.dialled_ns > self.config.step_timeout_ns {
                return self.close(id, side, "the peer does not answer");
            }
            return self.tick_at(id, side, now_ns + heartbeat_ns);
        }
        let unheard_ns =
            end.heard_ns + SILENT_HEARTBEATS_MAX * KEEP_ALIVE_HEARTBEATS * heartbeat_ns;
        let is_unanswered =
            end.awaits && now_ns >= end.asked_ns + SILENT_HEARTBEATS_MAX * heartbeat_ns;
        if is_unanswered || side == 1 && now_ns >= unheard_ns {
            self.stats.silences += 1;
            return self.close(id, side, "the peer gives no sign of life");
        }
        let may_ask = !end.awaits && (side == 0 || end.doubts);
        if may_ask && now_ns >= end.next_ns(heartbeat_ns) {
            end.asked_ns = now_ns;
            end.pause_ns = (PAUSE_GROWTH * end.pause_ns).min(KEEP_ALIVE_HEARTBEATS * heartbeat_ns);
            (end.awaits, end.doubts) = (true, false);
            if side == 0 {
                self.measure_path(id);
            }
            self.push_item(id, side, Item::Ping);
        }
        let Some(connection) = self.connections.get(&id) else { return };
        let end = &connection.ends[side];
        let next_ns = match side {
            0 => end.next_ns(heartbeat_ns),
            _ if end.awaits || end.doubts => end.next_ns(heartbeat_ns).min(unheard_ns),
            _ => unheard_ns,
        };
        if !self.needs_no_heartbeats(id) {
            self.tick_at(id, side, next_ns);
        }
    }

    /// Returns true if further heartbeats of a connection would change nothing.
    fn needs_no_heartbeats(&self, id: ConnectionId) -> bool {
        let is_alive = |end: &End| {
            end.is_open
                && end.peer.is_some()
                && self.fabric.paused_until_ns(end.host) <= self.now_ns()
        };
        self.is_fault_free
            && self.connections.get(&id).is_some_and(|one| one.ends.iter().all(is_alive))
    }

    /// Closes a side of the connection: its links end, and the peer gets a reset.
    fn close(&mut self, id: ConnectionId, side: Side, why: &str) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !std::mem::take(&mut connection.ends[side].is_open) {
            return;
        }
        let [here, there] = [connection.ends[side].host, connection.ends[1 - side].host];
        connection.ends[side].out.clear();
        self.push_item(id, side, Item::Reset);
        let process = self.process(here);
        if process.dialled.get(&there) == Some(&id) {
            process.dialled.remove(&there);
        }
        let lost = process.links.select(|link| link.connection == id);
        for link in lost {
            self.lose_link(here, link, why);
        }
    }

    fn lose_link(&mut self, host: HostId, id: LinkId, why: &str) {
        let Some(link) = self.process(host).links.remove(id) else { return };
        let reason = unavailable(why);
        let message = match link.stage {
            Stage::Up => FromNexus::LinkDown { link: id, reason },
            Stage::Opening { request, .. } => FromNexus::LinkFailed { request, reason },
        };
        match link.stage {
            Stage::Up => self.stats.links_lost += 1,
            Stage::Opening { .. } => self.stats.links_failed += 1,
        }
        self.tell(host, link.endpoint, message);
    }

    /// Drops the connections of an ended process.
    pub(super) fn abandon_connections(&mut self, host: HostId, is_silent: bool) {
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for (id, side) in ids.into_iter().flat_map(|id| [(id, 0), (id, 1)]) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let end = &mut connection.ends[side];
            if end.host != host || !std::mem::take(&mut end.is_open) {
                continue;
            }
            if is_silent {
                let now_ns = self.fabric.now_ns();
                // Bytes on the wire arrive, unless earlier bytes wait for the end of a partition: these
                // will not be retransmitted, and a stream has no gaps.
                if end.out.front().is_some_and(|&(at_ns, _)| at_ns <= now_ns) {
                    end.out.clear();
                }
                self.forget_if_over(id);
            } else {
                self.push_item(id, side, Item::Reset);
            }
        }
    }

    fn forget_if_over(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.ends.iter().all(|end| !end.is_open && end.out.is_empty()) {
            self.connections.remove(&id);
        }
    }

    /// Records the first error.
    pub(super) fn report(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }
}

impl CrashKind {
    /// Returns the name for traces.
    pub fn name(self) -> &'static str {
        match self {
            CrashKind::Killed => "killed",
            CrashKind::PowerLoss => "power lost",
        }
    }
}
