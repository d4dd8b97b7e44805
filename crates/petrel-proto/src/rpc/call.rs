//! Calls, from the application's request to their completion (`docs/wire-protocol.md` §5).

use core::fmt;

use super::{Core, Event, FrameSink, Notice, Shared};
use crate::buffer::Buffer;
use crate::limits::{ENDPOINT_METHOD, MESSAGE_BYTES_MAX, packets_of};
use crate::session::backlog::{Expiry, NEVER, PendingCall, Queued};
use crate::session::client::{ClientSession, ClientState, SendPath, SlotCall, SlotEnd};
use crate::session::{PeerKey, Role, SessionId};
use crate::status::Status;

/// An ended call, with its two buffers.
#[derive(Debug)]
pub struct Completion<B, T = u64> {
    /// The session of the call.
    pub session: SessionId,
    /// The tag that the application passed with the call.
    pub tag: T,
    /// The success or failure of the call.
    pub outcome: Result<(), Box<CallFailure>>,
    /// The request's buffer, unchanged.
    pub request: B,
    /// The response's buffer: the response if the call succeeded, otherwise empty.
    pub response: B,
    /// The inherited deadline ([`Core::inherit`]), for calls made by the continuation.
    pub inherited_ns: Option<u64>,
}

/// The end of a call answered in one packet, with status OK.
#[derive(Debug)]
pub struct PlainCompletion<B, T> {
    /// The session of the call.
    pub session: SessionId,
    /// The tag that the application passed with the call.
    pub tag: T,
    /// The request's buffer, unchanged.
    pub request: B,
    /// The response.
    pub response: B,
}

impl<B, T> From<PlainCompletion<B, T>> for Completion<B, T> {
    fn from(ended: PlainCompletion<B, T>) -> Self {
        let PlainCompletion { session, tag, request, response } = ended;
        Self { session, tag, outcome: Ok(()), request, response, inherited_ns: None }
    }
}

/// The time limit of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// The caller's deadline, in nanoseconds of the core's clock, carried to the server. Without a deadline,
    /// [`Config::call_timeout_ns`](super::Config) ends the call.
    pub deadline_ns: Option<u64>,
}

impl CallLimits {
    pub(super) fn expiry(self, inherited_ns: u64) -> Expiry {
        let at_ns = self.deadline_ns.unwrap_or(NEVER).min(inherited_ns);
        Expiry { at_ns, is_on_wire: at_ns != NEVER, inherited_ns }
    }
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// The gRPC status code, never OK.
    pub status: Status,
    /// The reason, for people.
    pub message: String,
    /// The known execution of the request at the server.
    pub execution: Execution,
}

/// The known execution of a failed call's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// No packet was sent: the request was not executed.
    NotSent,
    /// The request was sent, and the outcome is unknown.
    MayHaveExecuted,
    /// The server reports that the request was not executed and will not be.
    Refused,
    /// The server answered: with the failure, or with a response that could not be accepted.
    Answered,
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let execution = match self.execution {
            Execution::NotSent => "the request was not sent",
            Execution::MayHaveExecuted => "the request may have been executed",
            Execution::Refused => "the server did not execute the request",
            Execution::Answered => "the server answered",
        };
        write!(f, "{}: {} ({execution})", self.status, self.message)
    }
}

impl std::error::Error for CallFailure {}

/// A refused call, with its buffers. Nothing was sent.
pub struct CallRejected<B, T = ()> {
    /// The reason.
    pub error: CallError,
    /// The request's buffer.
    pub request: B,
    /// The response's buffer.
    pub response: B,
    /// The call's tag.
    pub tag: T,
}

impl<B, T> fmt::Debug for CallRejected<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// The reason why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The session has ended, or is not one of this endpoint's client sessions.
    #[error("the session has ended; open a new one")]
    SessionClosed,
    /// The server is going to end, and has asked for no further calls on this session.
    #[error("the server is draining; open a new session, to another server or a little later")]
    Draining,
    /// The request is longer than the server accepts.
    #[error("the request has {len} bytes, and the server accepts {max}")]
    RequestTooLarge {
        /// Length of the request in bytes.
        len: usize,
        /// The largest request that the server accepts, in bytes.
        max: u32,
    },
    /// The session's queue is full: the server is slower than the calls.
    #[error("{max} calls are already waiting on this session; wait for some to end")]
    QueueFull {
        /// The queue's limit.
        max: usize,
    },
}

impl CallError {
    /// Returns the corresponding gRPC status code.
    pub fn status(&self) -> Status {
        match self {
            CallError::SessionClosed | CallError::Draining => Status::Unavailable,
            CallError::RequestTooLarge { .. } | CallError::QueueFull { .. } => {
                Status::ResourceExhausted
            }
        }
    }
}

impl<B: Buffer, T> Core<B, T> {
    /// Calls `method` on a session. The core writes the response to `response`, up to its capacity. Calls
    /// beyond the session's slots wait in a queue, as do calls before the session is open.
    ///
    /// Every call ends with one [`Completion`], with `tag` and the two buffers.
    ///
    /// # Errors
    /// [`CallRejected`] returns the buffers; nothing was sent.
    #[inline]
    pub fn call(
        &mut self,
        now_ns: u64,
        session: SessionId,
        method: u16,
        request: B,
        response: B,
        tag: T,
    ) -> Result<(), CallRejected<B, T>> {
        // Callers that have a sink use `call_at_once`.
        let mut nowhere = |_: PeerKey, _: &[u8], _: &[u8]| false;
        let call = PendingCall { method, tag, request, response };
        self.call_at_once(now_ns, session, call, &mut nowhere)
    }

    /// Like [`Core::call`]. A small request goes to `sink` at once if `sink` accepts it. As with
    /// [`Core::transmit`], its bytes stay unchanged until the core's next method is called.
    ///
    /// # Errors
    /// As [`Core::call`].
    #[inline(always)]
    pub fn call_at_once<S: FrameSink>(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        sink: &mut S,
    ) -> Result<(), CallRejected<B, T>> {
        match self.call_plain(now_ns, session, call, sink) {
            None => Ok(()),
            Some(call) => self.call_with(now_ns, session, call, CallLimits::default()),
        }
    }

    /// Like [`Core::call_with`]. A small request goes to `sink` at once as by [`Core::call_at_once`].
    ///
    /// # Errors
    /// As [`Core::call`].
    #[inline(always)]
    pub fn call_with_at_once<S: FrameSink>(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        limits: CallLimits,
        sink: &mut S,
    ) -> Result<(), CallRejected<B, T>> {
        match self.call_timed(now_ns, session, call, limits, sink) {
            None => Ok(()),
            Some(call) => self.call_with(now_ns, session, call, limits),
        }
    }

    /// [`Core::call`] without the fast path, for a request in shared memory ([`Buffer::wire_len`]), and with
    /// a deadline. At the deadline, or at most a tick of the timer wheel later (66 µs), the call ends with
    /// DEADLINE_EXCEEDED in any state. A deadline in the past ends the call as well, by an event.
    ///
    /// # Errors
    /// As [`Core::call`].
    // Also used for all other calls outside the fast path.
    #[inline(never)]
    pub fn call_with(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        limits: CallLimits,
    ) -> Result<(), CallRejected<B, T>> {
        let mut expiry = limits.expiry(self.shared.inherited_ns);
        let PendingCall { method, tag, request, response } = call;
        let Some(client) = self.sessions.client_mut(session) else {
            return Err(CallRejected { error: CallError::SessionClosed, request, response, tag });
        };
        if let Err(error) = check(client, request.wire_len(), self.shared.config.backlog_max) {
            return Err(CallRejected { error, request, response, tag });
        }
        self.shared.counters.calls_started += 1;
        let call = PendingCall { method, tag, request, response };
        if expiry.at_ns <= self.shared.latest_ns(now_ns) {
            let ended = self.shared.expired_unsent(session, Queued { call, expiry });
            self.events.push_back(Event::Completed(ended));
            return Ok(());
        }
        match slot_for(client, &call) {
            Some(slot) => {
                start(&mut self.shared, session.index, client, slot, Queued { call, expiry });
            }
            None => {
                if !expiry.is_on_wire {
                    expiry.at_ns = now_ns.saturating_add(self.shared.config.call_timeout_ns);
                }
                self.shared.counters.calls_queued += 1;
                client.backlog_mut().push_back(Queued { call, expiry });
            }
        }
        self.shared.note_expiry(session, client, expiry.at_ns);
        Ok(())
    }

    /// Starts calls that waited for the session to open. Calls too large for the server fail.
    pub(super) fn start_backlog(&mut self, id: SessionId) {
        let Some(entry) = self.sessions.get_mut(id) else { return };
        let Role::Client(client) = entry.role_mut() else { return };
        let max = client.agreed().map_or(0, |agreed| agreed.peer_message_bytes_max);
        let is_too_large = |queued: &Queued<B, T>| queued.call.request.wire_len() > max as usize;
        client.backlog_mut().sift(is_too_large, |queued| {
            let error = CallError::RequestTooLarge { len: queued.call.request.wire_len(), max };
            let failure = CallFailure {
                status: error.status(),
                message: error.to_string(),
                execution: Execution::NotSent,
            };
            self.shared.counters.calls_failed += 1;
            self.events.push_back(Event::Completed(failed(id, queued, failure)));
        });
        while !client.backlog().is_empty() && client.has_room() {
            start_next(&mut self.shared, id.index, client);
        }
    }
}

/// Takes a slot for a call. A small request to the endpoint itself uses the reserved slot.
fn slot_for<B: Buffer, T>(
    client: &mut ClientSession<B, T>,
    call: &PendingCall<B, T>,
) -> Option<usize> {
    let is_small = call.request.wire_len() <= client.packet_bytes() as usize;
    let reserved = match call.method == ENDPOINT_METHOD && is_small {
        true => client.take_reserved_slot(),
        false => None,
    };
    reserved.or_else(|| client.take_slot())
}

#[inline]
pub(super) fn check<B, T>(
    client: &ClientSession<B, T>,
    len: usize,
    backlog_max: usize,
) -> Result<(), CallError> {
    if client.is_draining() {
        return Err(CallError::Draining);
    }
    // Until the server's limit is known, the protocol's limit applies.
    let max = client.agreed().map_or(MESSAGE_BYTES_MAX, |a| a.peer_message_bytes_max);
    if len > max as usize {
        return Err(CallError::RequestTooLarge { len, max });
    }
    if !client.has_room() && client.backlog().len() >= backlog_max {
        return Err(CallError::QueueFull { max: backlog_max });
    }
    Ok(())
}

/// Puts a call into a slot taken for it. The session is open.
#[inline(always)]
pub(super) fn start<B: Buffer, T>(
    shared: &mut Shared<B>,
    index: u32,
    client: &mut ClientSession<B, T>,
    slot: usize,
    Queued { call, expiry }: Queued<B, T>,
) {
    let size = call.request.wire_len();
    let packets = packets_of(size as u32, client.packet_bytes());
    // Messages in shared memory cannot use the fast path.
    let is_own = call.request.len() == size;
    let is_small = packets == 1 && call.response.capacity() <= client.packet_bytes() as usize;
    let is_reserved = client.is_reserved(slot);
    let send_path = match is_small && is_own && !is_reserved {
        true if !expiry.is_on_wire => SendPath::Plain,
        // A call's end returns its inherited deadline, but the fast path's completion cannot.
        true if expiry.inherited_ns == NEVER => SendPath::Timed,
        _ => SendPath::General,
    };
    let is_first = client.start(slot, call, packets, send_path);
    let state = client.slot_mut(slot);
    if expiry.is_on_wire {
        state.set_expiry(expiry, &mut shared.client_parts);
    }
    if is_first {
        shared.queue_client(index, slot, state);
    } else {
        // Slots that already wait for a credit come first.
        shared.counters.credit_waits += 1;
    }
}

/// Ends the call in a slot, frees the slot, and starts the next waiting call.
pub(super) fn finish<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    outcome: Result<(), Box<CallFailure>>,
) -> Completion<B, T> {
    shared.note_queued_end(client, slot, outcome.is_err());
    let ended = client.end_call(slot, &mut shared.client_parts);
    let SlotCall { tag, request, mut response } = ended.call;
    let inherited_ns = ended.inherited_ns;
    shared.counters.multicast_missed += u64::from(ended.missed_multicast == Some(true));
    match &outcome {
        Ok(()) => shared.counters.calls_succeeded += 1,
        Err(_) => {
            shared.counters.calls_failed += 1;
            response.set_len(0);
        }
    }
    after_end(shared, id, client, slot);
    Completion { session: id, tag, outcome, request, response, inherited_ns }
}

impl<B> Shared<B> {
    /// Counts a call ending while its slot waits to send. In eRPC, with frames and not slots in the queue,
    /// the queue would now refer to memory of the application (appendix C).
    #[inline]
    pub(super) fn note_queued_end<T>(
        &mut self,
        client: &ClientSession<B, T>,
        slot: usize,
        fails: bool,
    ) {
        if client.slot(slot).is_queued() || client.is_held_back(slot) {
            self.count_queued_end(client, slot, fails);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_queued_end<T>(&mut self, client: &ClientSession<B, T>, slot: usize, fails: bool) {
        let state = client.slot(slot);
        let repeats = state.state() == ClientState::Sending && state.first_lost().is_some();
        self.counters.ended_before_repeat += u64::from(repeats);
        self.counters.failed_while_paced += u64::from(fails && client.is_held_back(slot));
    }
}

/// Returns the completion of an answered call whose slot is otherwise free already, if further calls or slots
/// wait for the slot or its credits.
#[cold]
#[inline(never)]
pub(super) fn ended_before_others<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> PlainCompletion<B, T> {
    let SlotCall { tag, request, response } = client.take_ended(slot);
    after_end(shared, id, client, slot);
    PlainCompletion { session: id, tag, request, response }
}

/// Passes the credits and the slot of an ended call on to waiting ones.
pub(super) fn after_end<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    match client.recycle(slot) {
        SlotEnd::Released => {
            if !client.backlog().is_empty() {
                start_next(shared, id.index, client);
            }
        }
        SlotEnd::Retired => {}
        SlotEnd::Exhausted => shared.notices.push_back(Notice::Exhausted(id)),
    }
    shared.wake_stalled(id.index, client);
}

/// Starts the call that has waited longest for a slot.
fn start_next<B: Buffer, T>(shared: &mut Shared<B>, index: u32, client: &mut ClientSession<B, T>) {
    if client.has_room()
        && let Some(queued) = client.backlog_mut().pop_front()
    {
        let Some(slot) = client.take_slot() else {
            unreachable!("a session with room has a slot for the next call");
        };
        start(shared, index, client, slot, queued);
    }
}

/// Returns the completion of a call that never got a slot.
pub(super) fn failed<B: Buffer, T>(
    session: SessionId,
    queued: Queued<B, T>,
    failure: CallFailure,
) -> Completion<B, T> {
    let PendingCall { tag, request, mut response, .. } = queued.call;
    response.set_len(0);
    let inherited_ns = queued.expiry.inherited();
    Completion { session, tag, outcome: Err(Box::new(failure)), request, response, inherited_ns }
}
