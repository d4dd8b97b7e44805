//! The nexus's event loop: takes events, commands and deadlines, and has the parts of the nexus handle them.
//!
//! A part owns its state, and returns changes for other parts. Six files change the reactor:
//!
//! | file | concern |
//! | --- | --- |
//! | `mod` | turns; bytes to messages, and the dispatch of messages, commands and deadlines |
//! | `opening` | connections that peers make, connections to peers, and HELLO |
//! | `closing` | GOODBYE, timeouts, broken connections, and the end of their links |
//! | `links` | agreeing on links and their transports |
//! | `streams` | connections that carry the frames of links |
//! | `trust` | the end of certificates, and revoked peers |
//!
//! The other files define parts of their own, or read the reactor:
//!
//! | file | concern |
//! | --- | --- |
//! | `listener` | the listening socket |
//! | `early` | links requested before their endpoint is attached |
//! | `offers` | transports that both sides can use |
//! | `grants` | the decisions about callers, which may change |
//! | `stats` | counters for callers outside the process |
//! | `table_sizes` | the sizes of the tables, and whether they agree |

mod closing;
mod early;
mod grants;
mod links;
mod listener;
mod offers;
mod opening;
mod stats;
mod streams;
pub(super) mod table_sizes;
#[cfg(test)]
pub(super) mod tests;
mod trust;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::control::{GroupRefuse, Message};

use crate::control::{EndpointId, FromNexus, Reason, ToNexus};
use crate::nexus::connection::Received;
use crate::nexus::counters::Counters;
use crate::nexus::deadlines::Due;
use crate::nexus::due::DueAction;
use crate::nexus::endpoint::Attached;
use crate::nexus::goodbye::{Ending, not_ok};
use crate::nexus::ids::{ConnectionId, ExchangeId};
use crate::nexus::limits::{READ_BYTES, READS_PER_TURN, TICK_MAX, TICK_MIN};
use crate::nexus::mailbox::{Command, Mailbox};
use crate::nexus::net::{Events, MioNetwork, Network, Ready};
use crate::nexus::relay::Relay;
use crate::nexus::relay::sessions::Further;
use crate::nexus::rendezvous::Exchanges;
use crate::nexus::request::OpenRequest;
use crate::nexus::routes::Routes;
use crate::nexus::settings::Settings;
use crate::security::Authorize;
use early::EarlyLinks;
use grants::GrantWatch;
use listener::Listener;
use stats::Collector;
use table_sizes::{TableSizes, Tables};

/// Token of the mailbox's waker.
pub(super) const MAILBOX: usize = 0;
/// Token of the listening socket.
pub(super) const LISTENER: usize = 1;
/// Token of the rendezvous for shared memory.
pub(super) const RENDEZVOUS: usize = 2;
/// Connections and exchanges are numbered from here.
const FIRST_FREE_TOKEN: usize = 3;

const EVENTS_PER_TURN: usize = 256;

/// The state of the nexus's thread.
#[derive(Debug)]
pub(super) struct Reactor<N: Network = MioNetwork> {
    net: N,
    mailbox: Arc<Mailbox<N>>,
    is_stopping: bool,
    /// Connections, endpoints, and the links between them.
    pub(super) relay: Relay<N>,
    listener: Option<Listener<N>>,
    routes: Routes,
    exchanges: Exchanges<N>,
    /// Links whose endpoint is not attached yet.
    early_links: EarlyLinks,
    collector: Collector,
    /// The revision of the credentials at the last look at the connections inside TLS; `None` without such connections.
    revision: Option<u64>,
    grants: GrantWatch,
    buffer: Vec<u8>,
}

impl<N: Network> Reactor<N> {
    pub(super) fn new(
        settings: Settings,
        net: N,
        mailbox: Arc<Mailbox<N>>,
        counters: Arc<Counters>,
    ) -> Self {
        let now = net.now();
        let capacity = settings.capacity(net.descriptors_max());
        let mut reactor = Self {
            net,
            mailbox,
            is_stopping: false,
            relay: Relay::new(settings, counters, capacity, now, FIRST_FREE_TOKEN),
            listener: None,
            routes: Routes::default(),
            exchanges: Exchanges::default(),
            early_links: EarlyLinks::default(),
            collector: Collector::default(),
            revision: None,
            grants: GrantWatch::default(),
            buffer: vec![0; READ_BYTES],
        };
        reactor.grants.begin(&mut reactor.relay);
        reactor
    }

    /// Returns the queue of commands.
    pub(super) fn mailbox(&self) -> &Arc<Mailbox<N>> {
        &self.mailbox
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        self.relay.counters()
    }

    /// Returns the number that distinguishes the process from earlier processes at the address.
    pub(super) fn incarnation(&self) -> u64 {
        self.relay.settings().incarnation()
    }

    /// Returns the decisions about callers, if there are any.
    pub(super) fn authorization(&self) -> Option<&Arc<dyn Authorize>> {
        self.relay.settings().authorization()
    }

    /// Returns true if the last user of the nexus has gone.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Runs until the last user of the nexus has gone.
    ///
    /// # Errors
    /// When the system cannot wait for events.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let mut events = self.new_events();
        while !self.is_stopping {
            self.turn(&mut events)?;
        }
        self.say_goodbye_to_all();
        Ok(())
    }

    /// Returns room for the events of one turn.
    pub(super) fn new_events(&self) -> N::Events {
        self.net.events(EVENTS_PER_TURN)
    }

    /// Opens the rendezvous. Without it shared memory is not offered.
    pub(super) fn open_rendezvous(&mut self) -> io::Result<()> {
        self.exchanges.open(&mut self.net, RENDEZVOUS)
    }

    /// Waits for events, and handles them.
    pub(super) fn turn(&mut self, events: &mut N::Events) -> io::Result<()> {
        let timeout = self.poll_timeout();
        match self.net.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => other?,
        }
        self.handle(events);
        Ok(())
    }

    /// Handles events, and all other due work.
    fn handle(&mut self, events: &N::Events) {
        self.relay.begin_turn(self.net.now());
        self.discount_own_delay();
        self.note_used_links();
        events.iter().for_each(|event| self.on_event(event));
        self.run_commands();
        self.read_the_unread();
        self.accept_more();
        self.run_exchanges();
        self.run_deadlines();
        self.run_connection_timers();
        self.send_the_unsent();
        // An action that was due and has changed nothing must not keep the thread awake.
        self.set_timers(TICK_MIN);
    }

    fn on_event(&mut self, event: Ready) {
        match event.token {
            // Commands are handled in every turn.
            MAILBOX => {}
            LISTENER => self.on_listener_ready(),
            RENDEZVOUS => self.exchanges.on_ready(),
            number if self.relay.connections.contains(ConnectionId(number)) => {
                self.on_connection_event(ConnectionId(number), event);
            }
            number => self.on_exchange_ready(ExchangeId(number)),
        }
    }

    /// Returns how long to wait for events; `None` is forever.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let has_unread = self.relay.connections.has_unread();
        if has_unread || self.has_more_to_accept() || self.exchanges.has_more() {
            return Some(Duration::ZERO);
        }
        let timer = self.relay.connections.next_timer();
        let pause = self.listener.as_ref().and_then(Listener::paused_until);
        let soonest = [timer, pause, self.relay.deadlines().next()].into_iter().flatten().min();
        soonest.map(|at| at.saturating_duration_since(self.net.now()))
    }

    fn tick_interval(&self) -> Duration {
        (self.relay.settings().heartbeat() / 4).clamp(TICK_MIN, TICK_MAX)
    }

    /// Does not count time in which the thread did not run as silence or slowness of peers.
    fn discount_own_delay(&mut self) {
        let now = self.relay.now();
        let timer = self.relay.connections.next_timer();
        let late = timer.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        if late >= self.tick_interval() {
            self.relay.connections.discount(late, now);
        }
    }

    /// Sets the timers of the connections that the turn has changed, no earlier than after some time.
    fn set_timers(&mut self, after: Duration) {
        let (now, tick) = (self.relay.now(), self.tick_interval());
        let step_timeout = self.relay.settings().step_timeout();
        self.relay.connections.set_timers(now + after, step_timeout, now + tick);
    }

    pub(super) fn table_sizes(&self) -> TableSizes {
        Tables::of(self).sizes()
    }

    /// Compares the tables with each other.
    ///
    /// # Errors
    /// The first disagreement between two tables.
    pub(super) fn check_tables(&self) -> Result<(), String> {
        Tables::of(self).check()
    }

    pub(super) fn run_commands(&mut self) {
        for command in self.mailbox.take() {
            match command {
                Command::Attach(id, media, inbox) => {
                    self.relay.endpoints.attach(id, Attached::new(media, inbox));
                    self.welcome_early_links(id);
                }
                Command::Post(id, message) => self.on_post(id, message),
                Command::StopListening => self.stop_listening(),
                Command::Shutdown => self.is_stopping = true,
            }
        }
    }

    /// Notes which connections have been used, before any yields.
    fn note_used_links(&mut self) {
        for (endpoint, link) in self.mailbox.take_used() {
            self.relay.note_used(endpoint, link);
        }
    }

    /// Answers commands that will not be carried out.
    fn refuse_commands(&mut self, reason: &Reason) {
        for command in self.mailbox.close() {
            match command {
                // Recently attached endpoints have made requests, too.
                Command::Attach(id, media, inbox) => {
                    self.relay.endpoints.attach(id, Attached::new(media, inbox));
                }
                Command::Post(id, ToNexus::OpenLink { request, .. }) => {
                    let reason = reason.clone();
                    self.relay.notify(id, FromNexus::LinkFailed { request, reason });
                }
                // The endpoint knows the end of the link already, and nothing may follow that message.
                Command::Post(id, ToNexus::OpenSession { link, open })
                    if self.relay.links.owns(id, link) =>
                {
                    let (request, reason) = (open.request, reason.clone());
                    self.relay.notify(id, FromNexus::SessionRefused { link, request, reason });
                }
                // The next endpoint with this number must not get messages about the links of the former.
                Command::Post(id, ToNexus::Gone) => self.on_gone(id),
                Command::Post(..) | Command::StopListening | Command::Shutdown => {}
            }
        }
    }

    fn on_post(&mut self, from: EndpointId, message: ToNexus) {
        let relay = &mut self.relay;
        match message {
            ToNexus::OpenLink { request, remote, remote_endpoint, transports, reverse } => {
                let give_up_at = relay.now() + relay.settings().step_timeout();
                let (to, wanted) = ((remote, remote_endpoint), (transports, reverse));
                self.open_link(OpenRequest::new((from, request), to, wanted, give_up_at));
            }
            ToNexus::Unreached { .. } => relay.counters().links_unreached.increment(),
            ToNexus::CheckPeer { link } => relay.check_peer(from, link),
            ToNexus::LinkUsed { link } => relay.note_used(from, link),
            ToNexus::OpenSession { link, open } => relay.propose_session(from, link, open),
            ToNexus::AnswerSession { link, request, answer } => {
                relay.answer_session(from, link, request, answer);
            }
            ToNexus::CloseSession { link, peer_session, peer_token, from_client, reason } => {
                let session = (peer_session, peer_token);
                relay.close_session(from, link, session, from_client, reason);
            }
            ToNexus::SessionEnded { link, slots } => relay.remove_session(from, link, slots),
            ToNexus::DrainSession { link, peer_session, peer_token, message } => {
                relay.drain_session(from, link, (peer_session, peer_token), message);
            }
            ToNexus::JoinGroup { link, join } => relay.offer_group(from, link, join),
            ToNexus::AnswerGroup { link, request, answer } => {
                relay.answer_group(from, link, request, answer);
            }
            ToNexus::LeaveGroup { link, group } => relay.leave_group(from, link, group),
            ToNexus::CloseLink { link, reason } if relay.links.owns(from, link) => {
                self.close_link(link, &reason);
            }
            ToNexus::CloseLink { .. } => relay.counters().late_messages.increment(),
            ToNexus::Stats { request, json } => {
                self.collector.on_answer(from, request, json, relay, &self.net);
            }
            ToNexus::Gone => self.on_gone(from),
        }
    }

    pub(super) fn on_connection_event(&mut self, id: ConnectionId, event: Ready) {
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        connection.note_ready(event);
        if connection.is_connecting() {
            self.on_dial_progress(id);
        } else {
            self.read(id);
            if event.is_writable {
                self.relay.connections.write_later(id);
            }
        }
    }

    /// Reads the bytes left by an earlier turn.
    fn read_the_unread(&mut self) {
        for id in self.relay.connections.take_unread() {
            self.read(id);
        }
    }

    /// Reads a bounded number of times and leaves the rest for the next turn.
    fn read(&mut self, id: ConnectionId) {
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        connection.begin_reading();
        let mut buffer = std::mem::take(&mut self.buffer);
        let is_drained = (0..READS_PER_TURN).any(|_| !self.read_once(id, &mut buffer));
        self.buffer = buffer;
        if !is_drained && !planted("nexus_rest_is_not_read") {
            self.relay.connections.read_later(id);
        }
    }

    /// Reads once. Returns true if reading should go on.
    fn read_once(&mut self, id: ConnectionId, buffer: &mut [u8]) -> bool {
        let Some(connection) = self.relay.connections.get_mut(id) else { return false };
        if connection.pauses() {
            return false;
        }
        let received = connection.receive(buffer);
        if matches!(received, Received::Bytes(_) | Received::Handshake) && connection.can_send() {
            self.relay.connections.write_later(id);
        }
        match received {
            Received::Bytes(count) => {
                self.digest(id, &buffer[..count]);
                true
            }
            Received::Handshake => true,
            Received::Nothing => false,
            Received::Untrusted(error) => {
                self.on_untrusted(id, &error);
                false
            }
            Received::End(cause) => {
                self.on_stream_end(id, &cause);
                false
            }
        }
    }

    /// Handles the messages in received bytes (`docs/wire-protocol.md` §8.1).
    fn digest(&mut self, id: ConnectionId, mut bytes: &[u8]) {
        let now = self.relay.now();
        let mut has_progressed = false;
        loop {
            let Some(connection) = self.relay.connections.get_mut(id) else { return };
            connection.signs_mut().hear(now);
            if connection.is_closing() {
                return;
            }
            match connection.decode(&mut bytes) {
                // The connection's other bytes are frames.
                Ok(Some(Message::StreamOpen(open))) => return self.on_stream_open(id, open, bytes),
                Ok(Some(Message::StreamAccept(accept))) => {
                    return self.on_stream_accept(id, accept, bytes);
                }
                Ok(Some(message)) => {
                    has_progressed = true;
                    if let Err(ending) = self.on_message(id, message) {
                        return self.on_ending(id, ending);
                    }
                }
                Ok(None) => return connection.note_midway(has_progressed, now),
                Err(error) => return self.on_malformed(id, error),
            }
        }
    }

    fn on_message(&mut self, id: ConnectionId, message: Message) -> Result<(), Ending> {
        let relay = &mut self.relay;
        let is_stream = relay.connections.get(id).is_some_and(|c| c.carried().is_some());
        if is_stream && !matches!(message, Message::Hello(_) | Message::Goodbye(_)) {
            return Err(Ending::Violation("a message other than STREAM_ACCEPT"));
        }
        match message {
            Message::Hello(hello) => self.on_hello(id, hello),
            Message::Goodbye(goodbye) => self.on_goodbye(id, &goodbye),
            Message::Ping(ping) => relay.answer_ping(id, ping),
            // Its arrival is all that matters.
            Message::Pong(_) => {}
            // These messages end the decoding of the connection's bytes.
            Message::StreamOpen(_) | Message::StreamAccept(_) => {
                return Err(Ending::Violation("a stream amid messages"));
            }
            Message::LinkOpen(open) => return self.on_link_open(id, &open),
            Message::LinkAccept(accept) => return self.on_link_accept(id, &accept),
            Message::LinkRefuse(refuse) => return self.on_link_refuse(id, refuse),
            Message::LinkClose(close) => self.on_link_close(id, close),
            Message::SessionOpen(open) => {
                self.make_room_for_session(id, open.slots);
                return self.relay.on_session_open(id, open);
            }
            Message::SessionAccept(accept) => return relay.on_session_accept(id, accept),
            Message::SessionRefuse(refuse) => return relay.on_session_refuse(id, refuse),
            Message::SessionClose(close) => return relay.on_session_close(id, close),
            Message::SessionDrain(drain) => match relay.on_session_drain(id, drain)? {
                Further::Links => {}
                Further::NoLinks => self.retire(id),
            },
            Message::GroupJoin(join) => return relay.on_group_join(id, join),
            Message::GroupAccept(accept) => {
                return relay.on_group_answer(id, accept.link, accept.request, Ok(()));
            }
            Message::GroupRefuse(GroupRefuse { link, request, status, text }) => {
                let reason = Reason::new(not_ok(status), text);
                return relay.on_group_answer(id, link, request, Err(reason));
            }
            Message::GroupLeave(leave) => return relay.on_group_leave(id, leave),
            Message::StatsRequest(request) => {
                return self.collector.on_request(id, request.request, relay, &self.net);
            }
            Message::StatsReply(_) => {
                return Err(Ending::Violation("STATS_REPLY without a request"));
            }
        }
        Ok(())
    }

    /// Writes the queued messages.
    pub(super) fn send_the_unsent(&mut self) {
        while let Some(id) = self.relay.connections.next_unsent() {
            let now = self.relay.now();
            let Some(connection) = self.relay.connections.get_mut(id) else { continue };
            if planted("nexus_sending_is_hearing") {
                connection.signs_mut().hear(now);
            }
            let mut flushed = connection.flush(now);
            if flushed.is_ok() && connection.waits_for_room() {
                flushed = self.net.report_room(connection.stream_mut(), id.0);
            }
            match flushed {
                Err(error) => {
                    // The peer may have sent a reason before it closed.
                    self.read(id);
                    self.on_stream_end(id, &error.to_string());
                }
                Ok(()) if connection.is_over_limit() => self.on_not_reading(id),
                Ok(()) if connection.is_closing() => self.finish_closing(id),
                Ok(()) if connection.ends_pause() => self.relay.connections.read_later(id),
                Ok(()) => {}
            }
        }
    }

    fn run_deadlines(&mut self) {
        while let Some(due) = self.relay.take_due() {
            match due {
                Due::EarlyLink(id, link) => self.on_early_link_due(id, link),
                Due::Link(link) => self.on_link_due(link),
                Due::Session(link, name) => self.relay.on_session_due(link, name),
                Due::Exchange(exchange) => {
                    self.exchanges.on_due(exchange, &self.net, &self.relay);
                }
                Due::Redial(remote) => self.on_redial_due(remote),
                Due::Stats(id) => self.collector.on_due(id, &mut self.relay, &self.net),
                Due::Trust => self.on_trust_due(),
                Due::Grants => self.grants.look(&mut self.relay),
            }
        }
        let Self { relay, early_links, exchanges, routes, collector, .. } = self;
        relay.sweep_deadlines(|due| match due {
            Due::EarlyLink(id, link) => early_links.contains(*id, *link),
            Due::Exchange(exchange) => exchanges.contains(*exchange),
            Due::Redial(remote) => routes.contains(*remote),
            Due::Stats(id) => collector.is_under_way(*id),
            Due::Trust => true,
            Due::Grants => true,
            Due::Link(_) | Due::Session(..) => unreachable!("the relay has links and sessions"),
        });
    }

    /// Performs all due actions of the connections.
    fn run_connection_timers(&mut self) {
        self.set_timers(Duration::ZERO);
        let (now, step_timeout) = (self.relay.now(), self.relay.settings().step_timeout());
        for (id, action) in self.relay.connections.take_due(now, step_timeout) {
            match action {
                DueAction::DialTimeout => {
                    self.on_dial_failed(id, &io::ErrorKind::TimedOut.into());
                }
                DueAction::HelloTimeout => self.on_hello_timeout(id),
                DueAction::Silent => self.on_silence(id),
                DueAction::SlowMessage => self.on_slow_message(id),
                DueAction::NotReading => self.on_not_reading(id),
                DueAction::Idle => self.on_idle(id),
                DueAction::Ping => self.relay.ping(id),
                DueAction::LingerOver => self.remove_connection(id),
            }
        }
    }
}
