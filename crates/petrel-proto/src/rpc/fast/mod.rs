//! The fast path in all four directions, for the common case: request and response of one packet, without
//! loss or queueing (eRPC §4.3, §5.2.2).
//!
//! [`Core::transmit`](crate::rpc::Core::transmit) and [`Core::handle_frame`](crate::rpc::Core::handle_frame) can
//! handle all these frames. The fast path differs only to be shorter:
//!
//! 1. One flag of a slot replaces all conditions: set while nothing unusual holds, cleared otherwise. The
//!    flag is [`SendPath`] from the call to the response, and a server slot's `is_plain` for an answer.
//! 2. Version, kind and flags of a header are compared as one number.
//! 3. The results are for one kind of frame, to save callers from distinguishing kinds again.
//!
//! Small calls of sessions of several paths have fast paths of their own (`by_paths`), which the caller tries after these.
//!
//! Other frames and calls return `None` or false without any change, and take the general path. `petrel bench
//! factors` measures the gain: without the fast path small calls over shared memory reach half of their rate
//! (`PERFORMANCE.md`).

mod by_paths;
mod deadline;
mod part;
mod server;

pub(super) use by_paths::{take_plain_from, take_plain_response_from};
pub(super) use deadline::{call_timed, is_timed, peek_timed, send_queued_timed, take_timed};
pub(super) use part::{NotNext, next_part_destination, next_part_place, part_place_from};
pub use server::PlainRequest;
pub(super) use server::{respond_plain, take_plain};

use super::client::call;
use super::deadline::left_us;
use super::queue::Work;
use super::{FrameSink, PlainCompletion, Shared};
use crate::buffer::{Buffer, Payload};
use crate::limits::{ENDPOINT_METHOD, HEADER_BYTES};
use crate::session::backlog::{NEVER, PendingCall};
use crate::session::client::{
    ClientSession, ClientSlot, PlainAnswer, PlainPlace, PlainSend, SendPath, SlotCall,
};
use crate::session::{Entry, NO_PEER, PeerKey, Role, SessionId, SessionTable};
use crate::wire::{ANSWERED_LATER, Destination, Flags, Kind, first_bits};
use by_paths::{send_answer_by_paths, send_request_by_paths};
use deadline::send_timed;

/// No turn of an event loop takes longer, in nanoseconds, or else its owner blocks it. A response whose deadline is further
/// away comes in time by the turn's clock: most calls need no other clock.
const TURN_NS_MAX: u64 = 1_000_000_000;

/// The parts of a frame for the fast path.
pub struct Parsed<'f> {
    pub(super) first: u64,
    pub(super) second: u64,
    pub(in crate::rpc) payload: &'f [u8],
}

/// A frame that a fast path may take.
pub enum PlainFrame<'f> {
    /// See [`Core::take_plain_frame`](crate::rpc::Core::take_plain_frame).
    Request(Parsed<'f>),
    /// See [`Core::handle_plain_response`](crate::rpc::Core::handle_plain_response).
    Response,
}

impl<'f> PlainFrame<'f> {
    /// Returns which fast path may take a frame, by one look at the kind. Checks nothing else.
    #[inline(always)]
    pub fn of(frame: &'f [u8]) -> Option<Self> {
        let (head, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let (first, second) = crate::wire::header_words(head);
        let bits = first as u32 & 0xFFF;
        if bits == first_bits(Kind::Request) {
            Some(Self::Request(Parsed { first, second, payload }))
        } else if bits == first_bits(Kind::Response) {
            Some(Self::Response)
        } else {
            None
        }
    }
}

impl Parsed<'_> {
    /// Returns the frame's parts, if the frame has this kind and no flags.
    #[inline(always)]
    pub(in crate::rpc) fn of_kind(kind: Kind, frame: &[u8]) -> Option<Parsed<'_>> {
        let (head, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let (first, second) = crate::wire::header_words(head);
        let is_plain = first as u32 & 0xFFF == first_bits(kind);
        is_plain.then_some(Parsed { first, second, payload })
    }

    #[inline(always)]
    fn session(&self) -> u32 {
        (self.first >> 12) as u32 & 0xF_FFFF
    }

    #[inline(always)]
    fn token(&self) -> u32 {
        (self.first >> 32) as u32
    }

    #[inline(always)]
    pub(in crate::rpc) fn aux(&self) -> u16 {
        self.second as u16
    }

    #[inline(always)]
    fn request(&self) -> u64 {
        self.second >> 16
    }
}

/// Makes a call with a request and a response of one packet. The request is sent at once if `sink`
/// accepts it. Returns the call if the session has no free slot, or the fast path does not apply.
#[inline(always)]
pub(in crate::rpc) fn call_plain<B: Buffer, T, S: FrameSink>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    session: SessionId,
    call: PendingCall<B, T>,
    sink: &mut S,
) -> Option<PendingCall<B, T>> {
    start_plain::<B, T, S, false>(sessions, shared, now_ns, session, call, NEVER, sink)
}

/// [`call_plain`], with a deadline if `TIMED`. The two variants are compiled separately.
#[inline(always)]
pub(in crate::rpc) fn start_plain<B: Buffer, T, S: FrameSink, const TIMED: bool>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    session: SessionId,
    call: PendingCall<B, T>,
    deadline_ns: u64,
    sink: &mut S,
) -> Option<PendingCall<B, T>> {
    // The call is taken apart and put together again where needed as a whole: otherwise the compiler
    // keeps it in memory throughout.
    let PendingCall { method, tag, request, response } = call;
    // Requests to the endpoint itself use the reserved slot.
    if shared.clock.inherits() || method == ENDPOINT_METHOD {
        return Some(PendingCall { method, tag, request, response });
    }
    let sizes = (request.len(), response.capacity());
    let deadline_ns = TIMED.then_some(deadline_ns);
    let place = find_client(sessions, session).and_then(|it| PlainPlace::take_free(it, sizes));
    let Some(mut place) = place else {
        return Some(PendingCall { method, tag, request, response });
    };
    place.hold(SlotCall { tag, request, response });
    let slot = place.slot();
    shared.counters.calls_started += 1;
    if let Some(deadline_ns) = deadline_ns {
        shared.timers.note_expiry(session, place.expiry_timer(), deadline_ns);
    }
    let path = if TIMED { SendPath::Timed } else { SendPath::Plain };
    if place.others_wait() {
        place.begin(method, deadline_ns);
        place.leave_unsent(path);
        stall_slot(sessions, shared, session, slot);
        return None;
    }
    let peer = place.peer();
    if sink.reaches(peer)
        && place.may_send()
        && let Some(PlainSend { to, number, request, .. }) = place.outgoing()
        && send_request::<B, S, TIMED>(
            (to, number, method),
            request,
            (now_ns, deadline_ns.unwrap_or(NEVER)),
            peer,
            sink,
        )
    {
        place.lend();
        place.begin(method, deadline_ns);
        let is_armed = place.note_sent(now_ns);
        shared.counters.packets_sent += 1;
        if !is_armed {
            arm_slot(sessions, shared, now_ns, session, slot);
        }
        return None;
    }
    place.begin(method, deadline_ns);
    place.leave_unsent(path);
    // Also if the queue has an entry of the slot's former call, usable for the new call: a check would
    // wait for the slot's memory.
    place.note_queued();
    shared.queue.push(Work::Client { session: session.index, slot: slot as u16 });
    None
}

#[cold]
fn arm_slot<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    session: SessionId,
    slot: usize,
) {
    if let Some(client) = sessions.client_mut(session) {
        shared.timers.arm(now_ns, session, client, slot);
    }
}

/// Slots that already wait for a credit come first.
#[cold]
fn stall_slot<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    session: SessionId,
    slot: usize,
) {
    if let Some(client) = sessions.client_mut(session) {
        shared.counters.credit_waits += 1;
        client.stall(slot);
    }
}

/// [`Core::handle_plain_response`](crate::rpc::Core::handle_plain_response) for a payload in any kind of memory. `head` are the frame's first
/// bytes, which must not change. If `LATER`, takes only answers that did not follow at once on their requests.
#[inline(always)]
pub(in crate::rpc) fn take_plain_response<B: Buffer, T, const LATER: bool>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    peer: PeerKey,
    head: &[u8; HEADER_BYTES],
    payload: impl Payload<B>,
    clock: impl FnOnce() -> u64,
) -> Option<PlainCompletion<B, T>> {
    let parsed = Parsed::of_kind(Kind::Response, head)?;
    if LATER && parsed.aux() != ANSWERED_LATER {
        // Most such responses belong to sessions of several paths.
        return None;
    }
    let entry = sessions.at_mut(parsed.session())?;
    if !entry.is_from(parsed.token(), peer) || !LATER && parsed.aux() != 0 {
        return None;
    }
    let Role::Client(client) = entry.role_mut() else { return None };
    let mut answer = PlainAnswer::find(client, parsed.request())?;
    if answer.deadline_ns().is_some_and(|deadline_ns| is_late(deadline_ns, now_ns, clock)) {
        return None;
    }
    // Next to the copy, which needs the same comparison.
    let response = answer.response_mut()?;
    if payload.len() > response.capacity() {
        return None;
    }
    payload.fill(response);
    let (slot, ended) = conclude::<B, T, LATER>(shared, now_ns, answer);
    Some(completion(shared, entry, parsed.session(), slot, ended))
}

/// Returns true if a response comes after its call's deadline.
#[inline(always)]
fn is_late(deadline_ns: u64, now_ns: u64, clock: impl FnOnce() -> u64) -> bool {
    deadline_ns.wrapping_sub(now_ns) <= TURN_NS_MAX && deadline_ns <= clock()
        || deadline_ns <= now_ns
}

/// Ends an answered call. Returns the slot, and the call unless further calls wait for the slot or the credit.
#[inline(always)]
fn conclude<B: Buffer, T, const LATER: bool>(
    shared: &mut Shared<B>,
    now_ns: u64,
    mut answer: PlainAnswer<'_, B, T>,
) -> (usize, Option<SlotCall<B, T>>) {
    let Shared { counters, congestion, timers, .. } = shared;
    answer.take_credit_back();
    answer.sample::<LATER>(now_ns, timers.bounds(), congestion);
    if timers.is_crowded() {
        answer.leave_wheel(timers.wheel());
    }
    counters.frames_accepted += 1;
    counters.calls_succeeded += 1;
    (answer.slot(), answer.end())
}

/// Returns the completion of a call that [`conclude`] has ended.
#[inline(always)]
fn completion<B: Buffer, T>(
    shared: &mut Shared<B>,
    entry: &mut Entry<B, T>,
    index: u32,
    slot: usize,
    ended: Option<SlotCall<B, T>>,
) -> PlainCompletion<B, T> {
    // The name of the session is read last: until here its number would occupy a register.
    let session = SessionId { index, generation: entry.generation() };
    match (ended, entry.role_mut()) {
        (Some(SlotCall { tag, request, response }), _) => {
            PlainCompletion { session, tag, request, response }
        }
        (None, Role::Client(client)) => call::ended_before_others(shared, session, client, slot),
        (None, _) => unreachable!("a session has one role"),
    }
}

/// Sends a request or answer by the fast path. Returns false if the fast path does not apply, or the
/// medium refused the frame. If `TIMED`, sends only requests with a deadline.
#[inline(always)]
pub(in crate::rpc) fn send_plain<B: Buffer, T, S: FrameSink, const TIMED: bool>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    work: Work,
    sink: &mut S,
) -> bool {
    match work {
        Work::Client { session, slot } => {
            let Some(entry) = sessions.at_mut(session) else { return false };
            let Role::Client(client) = entry.role_mut() else { return false };
            let (slot, path) = (slot.into(), if TIMED { SendPath::Timed } else { SendPath::Plain });
            let Some(mut place) = PlainPlace::of_queued(client, slot, path) else {
                let is_plain = |slot: &ClientSlot<B, T>| slot.path() == SendPath::Plain;
                if TIMED
                    || client.peer() != NO_PEER
                    || !client.slots().get(slot).is_some_and(is_plain)
                {
                    return false;
                }
                return send_request_by_paths(shared, now_ns, session, entry, slot, sink);
            };
            let sent = send_from::<B, T, S, TIMED>(&mut place, now_ns, sink);
            let Some(is_armed) = sent else { return false };
            shared.counters.packets_sent += 1;
            if !is_armed {
                let id = SessionId { index: session, generation: entry.generation() };
                arm_slot(sessions, shared, now_ns, id, slot);
            }
            true
        }
        Work::Server { session, slot } if !TIMED => {
            let Some(entry) = sessions.at_mut(session) else { return false };
            let Role::Server(server) = entry.role_mut() else { return false };
            let (to, peer) = (server.to(), server.peer());
            let Some(state) = server.slots_mut().get_mut(usize::from(slot)) else { return false };
            let (aux, number, is_plain) = (state.answer_aux(), state.current(), state.is_plain());
            let (true, Some(message)) = (is_plain, state.message_mut()) else {
                return peer == NO_PEER
                    && state.is_plain_by_paths()
                    && send_answer_by_paths(shared, server, slot.into(), sink);
            };
            let header = to.words(Kind::Response, Flags::NONE, aux, number);
            if !sink.send(peer, message.frame(header), &[]) {
                return false;
            }
            state.note_plain_sent();
            shared.counters.packets_sent += 1;
            true
        }
        _ => false,
    }
}

/// Sends the request of a slot. Returns whether the slot's timer is set; `None` if the medium refused the frame.
#[inline(always)]
fn send_from<B: Buffer, T, S: FrameSink, const TIMED: bool>(
    place: &mut PlainPlace<'_, B, T>,
    now_ns: u64,
    sink: &mut S,
) -> Option<bool> {
    let peer = place.peer();
    let PlainSend { to, number, method, deadline_ns, request } = place.outgoing()?;
    let (header, times) = ((to, number, method), (now_ns, deadline_ns));
    if !send_request::<B, S, TIMED>(header, request, times, peer, sink) {
        return None;
    }
    place.lend();
    Some(place.note_sent(now_ns))
}

/// Sends the request of the slot that has waited longest for a credit, as [`send_plain`] does if none waits. Returns false
/// if the fast path does not apply, or the medium refused the frame.
#[inline(never)]
pub(in crate::rpc) fn send_woken<B: Buffer, T, S: FrameSink>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    work: Work,
    sink: &mut S,
) -> bool {
    let Work::Client { session, slot } = work else { return false };
    let (index, slot) = (session, usize::from(slot));
    let Some(entry) = sessions.at_mut(index) else { return false };
    let id = SessionId { index, generation: entry.generation() };
    let Role::Client(client) = entry.role_mut() else { return false };
    let Some((mut place, path)) = PlainPlace::of_woken(client, slot) else { return false };
    let sent = match path {
        SendPath::Timed => send_from::<B, T, S, true>(&mut place, now_ns, sink),
        _ => send_from::<B, T, S, false>(&mut place, now_ns, sink),
    };
    let Some(is_armed) = sent else {
        client.stall_first(slot);
        return false;
    };
    shared.counters.packets_sent += 1;
    if !is_armed {
        shared.timers.arm(now_ns, id, client, slot);
    }
    shared.queue.wake_stalled(index, client);
    true
}

/// Returns a client session that is open or being opened.
#[inline(always)]
fn find_client<B, T>(
    sessions: &mut SessionTable<B, T>,
    session: SessionId,
) -> Option<&mut ClientSession<B, T>> {
    let entry = sessions.at_mut(session.index)?;
    if entry.generation() != session.generation {
        return None;
    }
    match entry.role_mut() {
        Role::Client(client) => Some(client),
        _ => None,
    }
}

/// Sends a request of one packet, with the time left until its deadline if `TIMED`. `times` are the burst's
/// time and the deadline. Returns false if the medium refused the frame.
#[inline(always)]
fn send_request<B: Buffer, S: FrameSink, const TIMED: bool>(
    (to, number, method): (Destination, u64, u16),
    request: &mut B,
    (now_ns, deadline_ns): (u64, u64),
    peer: PeerKey,
    sink: &mut S,
) -> bool {
    if TIMED {
        let header = to.words(Kind::Request, Flags::EXTENDED, method, number);
        let left_us = left_us(sink.now_ns(now_ns), deadline_ns);
        send_timed(request, header, left_us, peer, sink)
    } else {
        let header = to.words(Kind::Request, Flags::NONE, method, number);
        sink.send_message(peer, header, request)
    }
}
