//! The state machines of calls: the input is bytes and the time, the output is bytes and events.

mod abandoned;
mod call;
mod census;
mod credit;
mod expiry;
mod fast;
mod give_up;
mod lifecycle;
mod lookahead;
mod memory;
mod multicast;
mod pace;
mod pull;
mod receive;
mod request;
mod respond;
mod response;
mod send_answer;
mod send_request;
mod timeout;
mod transmit;
mod work;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use call::{
    CallError, CallFailure, CallLimits, CallRejected, Completion, Execution, PlainCompletion,
};
#[doc(hidden)]
pub use census::Census;
pub use fast::PlainRequest;
pub use lifecycle::{Accepted, Closed, OpenError};
pub use lookahead::{UpcomingFrame, method_of, peek_request};
pub use multicast::{GroupFrames, Membership};
pub use receive::Received;
pub use respond::{RequestHandle, RespondError, RespondRejected};
pub use transmit::FrameSink;

pub use crate::recovery::Recovery;
pub use crate::session::backlog::PendingCall;

use crate::buffer::Buffer;
use crate::congestion::{CongestionControl, CongestionCounters};
use crate::counters::Counters;
use crate::limits;
use crate::recovery::rtt::RtoBounds;
use crate::session::backlog::NEVER;
use crate::session::client::{ClientParts, ClientSession, ClientSlot};
use crate::session::free_list::FreeList;
use crate::session::held::Held;
use crate::session::server::{ServerParts, ServerSlot};
use crate::session::{SessionId, SessionTable};
use crate::timer::{TimerKey, TimerWheel};
use give_up::Cancels;
use memory::{Patience, Wanted};
use multicast::Multicast;
use transmit::ControlFrames;
use work::{Work, WorkQueue};

/// The configuration of a core, common to all sessions of an endpoint.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bounds of the retransmission timeout.
    pub rto: RtoBounds,
    /// The method of recovery from loss.
    pub recovery: Recovery,
    /// The congestion control of the sessions in their client role.
    pub congestion: CongestionControl,
    /// Unanswered timeouts after which a call fails. With the default bounds, 14 take about 3.5 s after the
    /// first measurement: more than three heartbeats, so that the control plane detects a dead peer first.
    pub retries_max: u8,
    /// Time limit of a call without a deadline, in nanoseconds: 60 s, so that every call ends, and a handler
    /// may take longer than any network. Counted from the call while it waits for a slot, and from the first
    /// transmission after that. The limit is not sent to the server. `u64::MAX` means no limit.
    pub call_timeout_ns: u64,
    /// Most sessions, in both roles together, up to [`limits::SESSIONS_MAX`].
    pub sessions_max: u32,
    /// Memory of this endpoint for messages, in bytes. A server derives the shares of sessions and peers from
    /// it (`docs/wire-protocol.md` §6.4). An endpoint sets its pool's limit here.
    pub memory_bytes: u64,
    /// Most waiting calls in a session's queue.
    pub backlog_max: usize,
    /// Enables the fast paths. Without them all calls take the slower general path, to measure the
    /// difference.
    pub fast_path: bool,
    /// Enables grants for response packets beyond the first, so that a large response does not wait for
    /// another round trip.
    pub response_grants: bool,
}

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The violated rule.
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
            fast_path: true,
            response_grants: true,
        }
    }
}

/// An event not caused by a received frame.
#[derive(Debug)]
pub enum Event<B, T = u64> {
    /// A call ended.
    Completed(Completion<B, T>),
    /// The client gave up a request registered by [`Core::watch`]. Comes once, and only before the answer.
    Cancelled(RequestHandle),
    /// A session has used up the request numbers, or those acceptable to the server: close the session and
    /// open a new one.
    SessionExhausted(SessionId),
}

/// An [`Event`] without the core's type parameters.
enum Notice {
    Exhausted(SessionId),
    Cancelled(RequestHandle),
}

/// The protocol core of one endpoint: its sessions, calls and timers, for buffers of type `B`. A call carries
/// a `T`, returned with the call's end: a number that identifies the call, or a continuation.
///
/// The owner calls, in a loop and with one reading of the clock for every burst:
///
/// 1. [`Core::handle_frame`] for every received frame, and acts on the result;
/// 2. [`Core::handle_timeouts`], after all received frames: a stall of the owner's own thread is then not
///    mistaken for loss;
/// 3. [`Core::poll_event`] until it returns `None`;
/// 4. [`Core::transmit`], until the core has no more frames or the medium has no room. The medium must send
///    the accepted frames before the owner calls any other method.
///
/// The application's methods may be called at any time in between: [`Core::call`], [`Core::cancel`],
/// [`Core::respond`], and those of sessions. Once a session is open, the core allocates only for calls that
/// queue.
pub struct Core<B, T = u64> {
    sessions: SessionTable<B, T>,
    shared: Shared<B>,
    events: VecDeque<Event<B, T>>,
    control: ControlFrames,
}

/// The shared state of all sessions, separate from their table, to allow borrowing a session and the shared
/// state at once.
struct Shared<B> {
    config: Config,
    counters: Counters,
    congestion: CongestionCounters,
    /// The transmit queue: slots with something to send.
    work: WorkQueue,
    timers: TimerWheel,
    notices: VecDeque<Notice>,
    /// The deadline inherited by new calls, and a flag for its presence.
    inherited_ns: u64,
    inherits: bool,
    /// The owner's latest reading of the clock.
    clock_ns: u64,
    cancels: Cancels,
    multicast: Multicast<B>,
    /// The account of memory held by server slots.
    held: Held,
    /// True while the timer wheel has an entry for the next search for idle holdings.
    sweeps: bool,
    wanted: Option<Wanted>,
    patience: Patience,
    client_parts: FreeList<ClientParts>,
    server_parts: FreeList<ServerParts<B>>,
}

impl<B: Buffer, T> Core<B, T> {
    /// Makes a core without sessions. The clock starts at `now_ns`.
    ///
    /// # Panics
    /// If the configuration violates a rule: see [`Config::check`].
    pub fn new(now_ns: u64, mut config: Config) -> Self {
        assert_eq!(config.check(), Ok(()), "a core is made of a configuration that was checked");
        if config.recovery == Recovery::GoBackN {
            // In go-back-N a timeout is the only evidence of loss.
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
                client_parts: FreeList::new(),
                server_parts: FreeList::new(),
            },
            events: VecDeque::new(),
            control: ControlFrames::new(),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Returns the counters of congestion control.
    pub fn congestion_counters(&self) -> &CongestionCounters {
        &self.shared.congestion
    }

    /// Returns the number of sessions in the table, in both roles.
    pub fn session_count(&self) -> u32 {
        self.sessions.open_count()
    }

    /// Sets the current time. Durations are measured from the one reading of every burst. Deadlines are
    /// compared with the latest reading, because handlers and the system may have delayed the burst.
    #[inline]
    pub fn set_time(&mut self, clock_ns: u64) {
        self.shared.clock_ns = self.shared.clock_ns.max(clock_ns);
    }

    /// Returns the next event. To be called until the result is `None`.
    pub fn poll_event(&mut self) -> Option<Event<B, T>> {
        let notice = || {
            Some(match self.shared.notices.pop_front()? {
                Notice::Exhausted(session) => Event::SessionExhausted(session),
                Notice::Cancelled(request) => Event::Cancelled(request),
            })
        };
        self.events.pop_front().or_else(notice)
    }

    /// Returns true if [`Core::poll_event`] has an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || !self.shared.notices.is_empty()
    }

    /// Returns true if [`Core::transmit`] may have a frame.
    #[inline]
    pub fn has_transmit(&self) -> bool {
        !self.shared.work.is_empty()
    }

    /// Returns the number of pending calls of a client session: outstanding and queued.
    pub fn pending_calls(&self, id: SessionId) -> usize {
        match self.sessions.get(id).map(|entry| entry.role()) {
            Some(crate::session::Role::Client(client)) => client.pending_calls(),
            _ => 0,
        }
    }

    /// Returns the sum of agreed slots of all sessions in the server's role: the most requests that clients
    /// may have outstanding, and occupy memory with.
    pub fn server_slots(&self) -> u64 {
        self.sessions.server_slots()
    }

    /// Returns the number of allocated slots of a session: as many as its calls, or the requests of its
    /// client, have needed at once.
    pub fn slots_allocated(&self, id: SessionId) -> usize {
        match self.sessions.get(id).map(|entry| entry.role()) {
            Some(crate::session::Role::Client(client)) => client.slots().len(),
            Some(crate::session::Role::Server(server)) => server.slots().len(),
            _ => 0,
        }
    }

    /// Returns the free credits of a client session, and all credits. For tests and checkers: in a session
    /// without pending calls all credits are free.
    pub fn credits(&self, id: SessionId) -> Option<(u32, u32)> {
        match self.sessions.get(id)?.role() {
            crate::session::Role::Client(client) => {
                client.agreed()?;
                Some(client.credits())
            }
            _ => None,
        }
    }

    /// Returns the smoothed round-trip time of a client session in nanoseconds, once measured.
    pub fn srtt_ns(&self, id: SessionId) -> Option<u64> {
        match self.sessions.get(id)?.role() {
            crate::session::Role::Client(client) => client.trips().srtt_ns(),
            _ => None,
        }
    }
}

impl<B> Shared<B> {
    /// Returns the latest known time. Deadlines are compared with this time, and not with the time of the
    /// burst.
    #[inline]
    fn latest_ns(&self, now_ns: u64) -> u64 {
        now_ns.max(self.clock_ns)
    }

    /// Puts a client slot into the transmit queue, unless already queued.
    #[inline]
    fn queue_client<T>(&mut self, session: u32, slot: usize, state: &mut ClientSlot<B, T>) {
        if state.enter_queue() {
            self.work.push(Work { session, slot: slot as u16, of_client: true });
        }
    }

    /// Puts a server slot into the transmit queue, unless already queued.
    #[inline]
    fn queue_server(&mut self, session: u32, slot: usize, state: &mut ServerSlot<B>) {
        if state.enter_queue() {
            self.work.push(Work { session, slot: slot as u16, of_client: false });
        }
    }

    /// Queues the slot that has waited longest for a credit or for the window, if a credit is free. The slot
    /// stays at the head of the waiting slots until its turn, to keep later calls from taking the credit.
    /// Then `Core::transmit` wakes the next slot.
    #[inline]
    fn wake_stalled<T>(&mut self, session: u32, client: &mut ClientSession<B, T>) {
        if let Some(slot) = client.next_stalled() {
            self.queue_client(session, slot, client.slot_mut(slot));
        }
    }

    /// Sets a slot's timer, starting now.
    #[inline]
    fn arm<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) {
        if !client.restart_timer(now_ns, slot, &self.config.rto) {
            self.keep_in_wheel(now_ns, id, client.slot_mut(slot), slot);
        }
    }

    /// Ensures that the timer wheel wakes a slot by its deadline.
    #[inline]
    fn keep_in_wheel<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        state: &mut ClientSlot<B, T>,
        slot: usize,
    ) {
        let key = TimerKey { session: id.index, generation: id.generation, slot: slot as u16 };
        state.keep_in_wheel(now_ns, key, &self.config.rto, &mut self.timers);
    }
}
