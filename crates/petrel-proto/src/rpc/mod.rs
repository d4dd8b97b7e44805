//! The state machines of calls: bytes and time go in, bytes and events come out.

mod abandoned;
mod call;
mod census;
mod credit;
mod expiry;
mod give_up;
mod lifecycle;
mod lookahead;
mod memory;
mod multicast;
mod pace;
mod plain;
mod pull;
mod receive;
mod request;
mod respond;
mod response;
mod send_answer;
mod send_request;
mod timed;
mod timeout;
mod transmit;
mod work;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use call::{CallError, CallFailure, CallLimits, CallRejected, Completion, Execution};
#[doc(hidden)]
pub use census::Census;
pub use lifecycle::{Accepted, Closed, OpenError};
pub use lookahead::{Upcoming, method_of, upcoming_request};
pub use multicast::{GroupFrames, Membership};
pub use plain::{PlainCompletion, PlainRequest};
pub use receive::Received;
pub use respond::{RequestHandle, RespondError, RespondRejected};
pub use transmit::FrameSink;

pub use crate::session::client::PendingCall;

use crate::buffer::Buffer;
use crate::congestion::{CongestionControl, CongestionCounters};
use crate::counters::Counters;
use crate::limits;
use crate::recovery::rtt::RtoBounds;
use crate::session::backlog::NEVER;
use crate::session::client::{ClientParts, ClientSession, ClientSlot};
use crate::session::held::Held;
use crate::session::server::{ServerParts, ServerSlot};
use crate::session::spare::Spare;
use crate::session::{SessionId, SessionTable};
use crate::timer::{TimerKey, TimerWheel};
use give_up::Cancels;
use memory::{Patience, Wanted};
use multicast::Multicast;
use transmit::ControlFrames;
use work::{Work, WorkQueue};

/// How what was lost is sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovery {
    /// Packets that come in any order are kept, and those that are missing are sent again, at the
    /// first evidence.
    #[default]
    Selective,
    /// Packets out of order are dropped, and a timeout sends all again from the first that is
    /// missing on, as in eRPC (§5.3): to compare with. Both ends of a session should have the same.
    GoBackN,
}

/// What can be set about a core. All sessions of an endpoint share it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bounds of the retransmission timeout.
    pub rto: RtoBounds,
    /// How what was lost is sent again.
    pub recovery: Recovery,
    /// The congestion control of the sessions in their client role.
    pub congestion: CongestionControl,
    /// Timeouts without any answer after which a call fails. With the default bounds, 14 of them
    /// are about 3.5 s after the first measurement: more than three heartbeats, so that the control
    /// plane finds a dead peer first.
    pub retries_max: u8,
    /// How long a call without a deadline may take: 60 s, so that no call waits for ever, and a
    /// handler may take longer than any network. It counts from the call, while it waits for a slot,
    /// and from its first sending after that. The server is not told. `u64::MAX` is no limit.
    pub call_timeout_ns: u64,
    /// Sessions in both roles together, up to [`limits::SESSIONS_MAX`].
    pub sessions_max: u32,
    /// Memory for messages that this endpoint has, in bytes: of this, a server gives sessions and peers their
    /// shares (`docs/wire-protocol.md` §6.4). An endpoint puts its pool's limit here.
    pub memory_bytes: u64,
    /// Calls that may wait in one session's queue.
    pub backlog_max: usize,
    /// Whether the common case takes its short ways. Without them everything works, and slower: to
    /// measure what they are worth.
    pub short_ways: bool,
    /// Whether a request allows packets of its response beyond the first, so that a large response
    /// does not wait for another round trip.
    pub response_grants: bool,
}

impl Config {
    /// Whether a core can work with this.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn check(&self) -> Result<(), &'static str> {
        self.rto.check()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rto: RtoBounds::default(),
            recovery: Recovery::default(),
            congestion: CongestionControl::default(),
            retries_max: 14,
            call_timeout_ns: 60_000_000_000,
            sessions_max: limits::SESSIONS_MAX,
            memory_bytes: limits::MEMORY_BYTES_DEFAULT,
            backlog_max: limits::BACKLOG_CALLS_MAX,
            short_ways: true,
            response_grants: true,
        }
    }
}

/// Something that happened apart from a received frame.
#[derive(Debug)]
pub enum Event<B, T = u64> {
    /// A call ended.
    Completed(Completion<B, T>),
    /// Nobody waits any more for the answer to a request that was watched ([`Core::watch`]). It comes
    /// once, and only before the answer is given.
    Cancelled(RequestHandle),
    /// A session has used up its request numbers, or those that its server would follow: close it
    /// and open another.
    SessionExhausted(SessionId),
}

/// An [`Event`] that needs none of the core's types.
enum Notice {
    Exhausted(SessionId),
    Cancelled(RequestHandle),
}

/// The protocol core of one endpoint: its sessions, calls and timers, for buffers of type `B`. A
/// call carries a `T`, which comes back when it ends: a number to recognise it by, or what to do
/// then.
///
/// The owner calls, in a loop and with one reading of the clock for each burst:
///
/// 1. [`Core::handle_frame`] for each received frame, and acts on what it returns;
/// 2. [`Core::handle_timeouts`], once all received frames have been handled: a stall of the
///    owner's own thread is then not mistaken for loss;
/// 3. [`Core::poll_event`] until there is none;
/// 4. [`Core::transmit`], until it has nothing more or the medium no room, and has the medium send
///    what it took before any other method is called.
///
/// The application's verbs come at any time between: [`Core::call`], [`Core::cancel`],
/// [`Core::respond`], and those of sessions. Nothing is allocated once a session is up, but for calls that queue.
pub struct Core<B, T = u64> {
    sessions: SessionTable<B, T>,
    shared: Shared<B>,
    events: VecDeque<Event<B, T>>,
    control: ControlFrames,
}

/// What all sessions share, apart from their table, so that a session and this can be borrowed
/// at once.
struct Shared<B> {
    config: Config,
    counters: Counters,
    congestion: CongestionCounters,
    /// Slots that have something to send.
    work: WorkQueue,
    timers: TimerWheel,
    notices: VecDeque<Notice>,
    /// The deadline that calls made now inherit, and whether they inherit one.
    inherited_ns: u64,
    inherits: bool,
    /// The last reading of the clock of which the owner has told.
    clock_ns: u64,
    cancels: Cancels,
    multicast: Multicast<B>,
    /// What server slots hold of the endpoint's memory.
    held: Held,
    /// Whether the timer wheel has an entry to look for what was held too long.
    sweeps: bool,
    wanted: Option<Wanted>,
    patience: Patience,
    client_parts: Spare<ClientParts>,
    server_parts: Spare<ServerParts<B>>,
}

impl<B: Buffer, T> Core<B, T> {
    /// A core without sessions, whose clock stands at `now_ns`.
    ///
    /// # Panics
    /// When the configuration breaks a rule: see [`Config::check`].
    pub fn new(now_ns: u64, mut config: Config) -> Self {
        assert_eq!(config.check(), Ok(()), "a core is made of a configuration that was checked");
        if config.recovery == Recovery::GoBackN {
            // A timeout is all that it knows.
            config.rto.probe_min_ns = config.rto.min_ns;
        }
        let sessions_max = config.sessions_max.min(limits::SESSIONS_MAX);
        Self {
            sessions: SessionTable::new(sessions_max),
            shared: Shared {
                held: Held::new(now_ns, config.memory_bytes),
                sweeps: false,
                wanted: None,
                patience: Patience::Asks,
                config,
                counters: Counters::default(),
                congestion: CongestionCounters::default(),
                work: WorkQueue::new(),
                timers: TimerWheel::new(now_ns),
                notices: VecDeque::new(),
                inherited_ns: NEVER,
                inherits: false,
                clock_ns: now_ns,
                cancels: Cancels::default(),
                multicast: Multicast::default(),
                client_parts: Spare::new(),
                server_parts: Spare::new(),
            },
            events: VecDeque::new(),
            control: ControlFrames::new(),
        }
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What congestion control has heard and done.
    pub fn congestion_counters(&self) -> &CongestionCounters {
        &self.shared.congestion
    }

    /// Sessions in the table, in both roles.
    pub fn session_count(&self) -> u32 {
        self.sessions.open_count()
    }

    /// Tells what the clock says now. Times are measured from the one reading of each burst; whether a deadline is
    /// over is decided by the latest reading, because handlers and the system may have held the burst up.
    #[inline]
    pub fn set_time(&mut self, clock_ns: u64) {
        self.shared.clock_ns = self.shared.clock_ns.max(clock_ns);
    }

    /// What happened apart from received frames; call it until it gives `None`.
    pub fn poll_event(&mut self) -> Option<Event<B, T>> {
        let notice = || {
            Some(match self.shared.notices.pop_front()? {
                Notice::Exhausted(session) => Event::SessionExhausted(session),
                Notice::Cancelled(request) => Event::Cancelled(request),
            })
        };
        self.events.pop_front().or_else(notice)
    }

    /// Whether [`Core::poll_event`] has something.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || !self.shared.notices.is_empty()
    }

    /// Whether [`Core::transmit`] may have something.
    #[inline]
    pub fn has_transmit(&self) -> bool {
        !self.shared.work.is_empty()
    }

    /// Calls of a client session that have not ended: on the way, and queued.
    pub fn pending_calls(&self, id: SessionId) -> usize {
        match self.sessions.get(id).map(|entry| &entry.role) {
            Some(crate::session::Role::Client(client)) => client.pending_calls(),
            _ => 0,
        }
    }

    /// Slots that were agreed on for all sessions in the server's role: as many requests as their clients may
    /// have under way, and have memory taken for.
    pub fn server_slots(&self) -> u64 {
        self.sessions.server_slots()
    }

    /// Slots of a session for which there is memory: as many as its calls have needed at once, or the requests
    /// of its client.
    pub fn slots_made(&self, id: SessionId) -> usize {
        match self.sessions.get(id).map(|entry| &entry.role) {
            Some(crate::session::Role::Client(client)) => client.slots.len(),
            Some(crate::session::Role::Server(server)) => server.slots.len(),
            _ => 0,
        }
    }

    /// Credits of a client session: those free, and all. For tests and checkers: a session
    /// without pending calls has all of them free.
    pub fn credits(&self, id: SessionId) -> Option<(u32, u32)> {
        match &self.sessions.get(id)?.role {
            crate::session::Role::Client(client) => {
                Some((client.credits, u32::from(client.agreed.as_ref()?.credits)))
            }
            _ => None,
        }
    }

    /// The smoothed round-trip time of a client session in nanoseconds, once measured.
    pub fn srtt_ns(&self, id: SessionId) -> Option<u64> {
        match &self.sessions.get(id)?.role {
            crate::session::Role::Client(client) => client.trips.rtt.srtt_ns(),
            _ => None,
        }
    }
}

impl<B> Shared<B> {
    /// The latest time that is known. Whether a deadline is over goes by it, and not by the time of the burst.
    #[inline]
    fn latest_ns(&self, now_ns: u64) -> u64 {
        now_ns.max(self.clock_ns)
    }

    /// Puts a client slot into the transmit queue, unless it is there.
    #[inline]
    fn queue_client<T>(&mut self, session: u32, slot: usize, state: &mut ClientSlot<B, T>) {
        if !state.queued {
            state.queued = true;
            self.work.push(Work { session, slot: slot as u16, of_client: true });
        }
    }

    /// Puts a server slot into the transmit queue, unless it is there.
    #[inline]
    fn queue_server(&mut self, session: u32, slot: usize, state: &mut ServerSlot<B>) {
        if !state.queued {
            state.queued = true;
            self.work.push(Work { session, slot: slot as u16, of_client: false });
        }
    }

    /// Puts the slot that has waited longest for a credit, or for the window, into the transmit queue, if
    /// there is one for it. It stays at the head of the others until it has had its turn, and no call
    /// that comes meanwhile takes its credit. Then the next one is asked (`Core::transmit`).
    #[inline]
    fn wake_stalled<T>(&mut self, session: u32, client: &mut ClientSession<B, T>) {
        if let Some(slot) = client.stalled.first()
            && client.sendable_packets() > 0
        {
            self.queue_client(session, slot, &mut client.slots[slot]);
        }
    }

    /// Sets a slot's timer from now on.
    #[inline]
    fn arm<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) {
        let state = &mut client.slots[slot];
        let backoff = state.backoff.max(client.trips.backoff);
        let rto_ns = match backoff {
            0 if !state.probed => client.trips.probe_ns,
            _ => client.trips.rtt.rto_ns(&self.config.rto, backoff.into()),
        };
        state.deadline_ns = now_ns + rto_ns;
        if state.wakes_soon {
            return;
        }
        self.keep_in_wheel(now_ns, id, state, slot);
    }

    /// Sees to it that the timer wheel wakes a slot by its deadline.
    #[inline]
    fn keep_in_wheel<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        state: &mut ClientSlot<B, T>,
        slot: usize,
    ) {
        if state.in_wheel && self.timers.comes_after(state.timer, state.deadline_ns) {
            state.leave_wheel(&mut self.timers);
        }
        if !state.in_wheel {
            let key = TimerKey { session: id.index, generation: id.generation, slot: slot as u16 };
            state.enter_wheel(now_ns, key, &self.config.rto, &mut self.timers);
        }
    }
}
