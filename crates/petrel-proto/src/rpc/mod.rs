//! The state machines of calls: the input is bytes and the time, the output is bytes and events.
//!
//! [`Core`] is a front in four files: this one, `calls`, `sessions`, and `frames` with the doors for frames.
//!
//! | module | concern |
//! | --- | --- |
//! | `receive`, `transmit`, `turn` | frames in and out: which session, which slot, which state machine |
//! | `client`, `server` | the two halves of the protocol |
//! | `fast` | the common case in fewer instructions, with the same results |
//! | `queue`, `timers`, `clock`, `notices` | state that all sessions share |
//! | `multicast` | requests to groups |
//! | `probe` | whether frames get through |
//! | `call`, `respond`, `received` | calls, answers and requests as the application sees them |

mod call;
mod calls;
mod client;
mod clock;
mod config;
mod deadline;
mod fast;
mod frames;
mod lookahead;
mod multicast;
mod notices;
mod object_counts;
mod probe;
mod queue;
mod receive;
mod received;
mod respond;
mod server;
mod sessions;
mod sink;
mod timers;
mod transmit;
mod turn;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use call::{
    CallError, CallFailure, CallLimits, CallRejected, Completion, Execution, PlainCompletion,
};
pub use config::Config;
pub use fast::{Parsed, PlainFrame, PlainRequest};
pub use lookahead::{UpcomingFrame, method_of, peek_request};
pub use multicast::{GroupFrames, Membership};
pub use notices::Event;
#[doc(hidden)]
pub use object_counts::ObjectCounts;
pub use received::Received;
pub use respond::{RequestHandle, RespondError, RespondRejected};
pub use sessions::{Accepted, Closed, OpenError, PathChoice};
pub use sink::FrameSink;

pub use crate::recovery::Recovery;
pub use crate::session::backlog::PendingCall;

use crate::buffer::Buffer;
use crate::congestion::CongestionCounters;
use crate::counters::Counters;
use crate::limits;
use crate::path::{PathCounts, Senders};
use crate::session::client::ClientParts;
use crate::session::free_list::FreeList;
use crate::session::server::ServerParts;
use crate::session::{Role, SessionTable};
use client::cancels::Cancels;
use client::timeout::SilentSessions;
use clock::Clock;
use multicast::Multicast;
use notices::{Notice, Notices};
use probe::Probes;
use queue::TransmitQueue;
use server::by_paths::ProvenPorts;
use server::memory::Memory;
use server::order::take_ready;
use timers::Timers;
use turn::ControlFrames;

/// Events that the owner has not taken yet.
type Events<B, T> = VecDeque<Event<B, T>>;

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
/// The application's methods may be called at any time in between: [`Core::call`], [`Core::cancel`], [`Core::respond`],
/// and methods for sessions. Once a session is open, the core allocates only for calls that queue.
pub struct Core<B, T = u64> {
    sessions: SessionTable<B, T>,
    shared: Shared<B>,
    events: Events<B, T>,
    control: ControlFrames,
    /// Counters of the paths of client sessions that have ended.
    ended_paths: Vec<PathCounts>,
}

/// The shared state of all sessions, separate from their table, to allow borrowing a session and the shared
/// state at once.
struct Shared<B> {
    config: Config,
    counters: Counters,
    congestion: CongestionCounters,
    queue: TransmitQueue,
    timers: Timers,
    notices: Notices,
    clock: Clock,
    cancels: Cancels,
    probes: Probes,
    multicast: Multicast<B>,
    memory: Memory,
    client_parts: FreeList<ClientParts>,
    server_parts: FreeList<ServerParts<B>>,
    /// The source port of the peer from which the present frame came; 0 unless known to be another.
    frame_source: u8,
    /// The links whose offered ports are their clients'.
    proven: ProvenPorts,
    senders: Senders,
    silent: SilentSessions,
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
                memory: Memory::new(now_ns, config.memory_bytes),
                timers: Timers::new(now_ns, config.rto),
                config,
                counters: Counters::default(),
                congestion: CongestionCounters::default(),
                queue: TransmitQueue::new(),
                notices: Notices::default(),
                clock: Clock::new(now_ns),
                cancels: Cancels::default(),
                probes: Probes::default(),
                multicast: Multicast::default(),
                client_parts: FreeList::new(),
                server_parts: FreeList::new(),
                frame_source: 0,
                proven: ProvenPorts::default(),
                senders: Senders::default(),
                silent: SilentSessions::default(),
            },
            events: VecDeque::new(),
            control: ControlFrames::new(),
            ended_paths: Vec::new(),
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
        self.shared.clock.set(clock_ns);
    }

    /// Sets how long the frames that are passed next have waited for the poll, because the endpoint was held up; 0 from the next
    /// usual burst on. Deadlines count from the arrival (§6.2).
    ///
    /// # Panics
    /// When the frames came before the clock's zero.
    pub fn set_waited(&mut self, now_ns: u64, waited_ns: u64) {
        assert!(waited_ns <= now_ns, "frames wait within the time of the clock");
        self.shared.clock.set_waited(waited_ns);
    }

    /// Returns the next event. To be called until the result is `None`.
    pub fn poll_event(&mut self) -> Option<Event<B, T>> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        loop {
            match self.shared.notices.pop()? {
                Notice::Exhausted(session) => return Some(Event::SessionExhausted(session)),
                Notice::Silent(session) => return Some(Event::ServerSilent(session)),
                Notice::Used(session) => return Some(Event::SessionUsed(session)),
                Notice::Probed(session, peer, number) => {
                    return Some(Event::Probed { session, peer, number });
                }
                Notice::Cancelled(request) => return Some(Event::Cancelled(request)),
                Notice::Ready(session) => {
                    let ready = take_ready(&mut self.sessions, &mut self.shared, session);
                    if ready.is_some() {
                        return ready;
                    }
                }
            }
        }
    }

    /// Returns true if [`Core::poll_event`] has an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || !self.shared.notices.is_empty()
    }

    /// Returns true if the next event may be a request that waited for earlier requests. Its deadline is compared with
    /// the latest reading of the clock, so the owner should [set the time](Core::set_time) first.
    pub fn has_ready_request(&self) -> bool {
        self.events.is_empty() && self.shared.notices.is_ready_next()
    }

    /// Returns true if [`Core::transmit`] may have a frame.
    #[inline]
    pub fn has_transmit(&self) -> bool {
        !self.shared.queue.is_empty()
    }

    /// Counts everything, in as many steps as there are slots.
    #[doc(hidden)]
    pub fn object_counts(&self) -> ObjectCounts {
        let shared = &self.shared;
        let mut object_counts = ObjectCounts {
            held_bytes: shared.memory.bytes(),
            to_send: shared.queue.len()
                + shared.cancels.len()
                + shared.probes.len()
                + shared.multicast.len(),
            events: self.events.len() + shared.notices.len(),
            timers: shared.timers.entry_count(),
            ..ObjectCounts::default()
        };
        for role in self.sessions.roles() {
            match role {
                Role::Client(client) => object_counts.add_client(client),
                Role::Server(server) => object_counts.add_server(server),
                Role::Free => {}
            }
        }
        object_counts
    }
}
