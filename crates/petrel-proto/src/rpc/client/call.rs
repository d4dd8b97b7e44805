//! Calls in the slots of a client session, from their start to their end (`docs/wire-protocol.md` §5).

use petrel_planted::planted;

use super::order::{call_in_order, end_in_order, start_waiting};
use super::start::{expired_unsent, failed, free, is_to_itself, start};
use crate::buffer::Buffer;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::rpc::{
    CallError, CallFailure, CallLimits, CallRejected, Completion, Event, Events, Execution,
    PlainCompletion, Shared,
};
use crate::session::backlog::{PendingCall, Queued};
use crate::session::client::{ClientSession, ClientSlot, ClientState, SlotCall};
use crate::session::{Role, SessionId, SessionTable};
use crate::status::Status;

/// [`Core::call`](crate::rpc::Core::call) without the fast path, for a request in shared memory ([`Buffer::wire_len`]), and with
/// a deadline. At the deadline, or at most a tick of the timer wheel later (66 µs), the call ends with
/// DEADLINE_EXCEEDED in any state. A deadline in the past ends the call as well, by an event.
///
/// # Errors
/// As [`Core::call`](crate::rpc::Core::call).
// Also used for all other calls outside the fast path.
#[inline(never)]
pub(in crate::rpc) fn call_with<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    events: &mut Events<B, T>,
    now_ns: u64,
    session: SessionId,
    call: PendingCall<B, T>,
    limits: CallLimits,
) -> Result<(), CallRejected<B, T>> {
    let PendingCall { method, tag, request, response } = call;
    let Some(client) = sessions.client_mut(session) else {
        return Err(CallRejected { error: CallError::SessionClosed, request, response, tag });
    };
    if let Err(error) = check(client, request.wire_len(), shared.config.backlog_max) {
        return Err(CallRejected { error, request, response, tag });
    }
    let call = PendingCall { method, tag, request, response };
    if limits.ordered || client.order().is_some() {
        return call_in_order(shared, events, now_ns, session, client, call, limits);
    }
    let mut expiry = limits.expiry(shared.clock.inherited_ns());
    shared.counters.calls_started += 1;
    if expiry.at_ns <= shared.clock.latest_ns(now_ns) {
        let ended = expired_unsent(shared, session, Queued::unordered(call, expiry));
        events.push_back(Event::Completed(ended));
        return Ok(());
    }
    match slot_for(client, &call) {
        Some(slot) => {
            start(shared, session.index, client, slot, Queued::unordered(call, expiry));
        }
        None => {
            if !expiry.is_on_wire {
                expiry.at_ns = now_ns.saturating_add(shared.config.call_timeout_ns);
            }
            shared.counters.calls_queued += 1;
            assert!(
                client.backlog().len() < shared.config.backlog_max,
                "the calls that wait for a slot are within their limit"
            );
            client.backlog_mut().push_back(Queued::unordered(call, expiry));
        }
    }
    shared.timers.note_expiry(session, client.expiry_timer(), expiry.at_ns);
    Ok(())
}

/// Starts calls that waited for the session to open. Calls too large for the server fail.
pub(in crate::rpc) fn start_backlog<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    events: &mut Events<B, T>,
    id: SessionId,
) {
    let Some(entry) = sessions.get_mut(id) else { return };
    let Role::Client(client) = entry.role_mut() else { return };
    let agreed = client.agreed();
    assert!(agreed.is_some(), "calls that waited start when their session is open");
    let max = agreed.map_or(0, |agreed| agreed.peer_message_bytes_max);
    let is_too_large = |queued: &Queued<B, T>| queued.call.request.wire_len() > max as usize;
    client.backlog_mut().sift(is_too_large, |queued| {
        let error = CallError::RequestTooLarge { len: queued.call.request.wire_len(), max };
        let failure = CallFailure::new(error.status(), error.to_string(), Execution::NotSent);
        shared.counters.calls_failed += 1;
        events.push_back(Event::Completed(failed(id, queued, failure)));
    });
    if client.order().is_some() {
        return start_waiting(shared, id.index, client);
    }
    while !client.backlog().is_empty() && client.has_room() {
        start_next(shared, id.index, client);
    }
}

/// Takes a slot for a call. A small request to the endpoint itself uses the reserved slot.
fn slot_for<B: Buffer, T>(
    client: &mut ClientSession<B, T>,
    call: &PendingCall<B, T>,
) -> Option<usize> {
    let reserved = match is_to_itself(client, call) {
        true => client.take_reserved_slot(),
        false => None,
    };
    reserved.or_else(|| client.take_slot())
}

#[inline]
pub(in crate::rpc) fn check<B, T>(
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

/// Ends the call in a slot, frees the slot, and starts the next waiting call.
pub(in crate::rpc) fn finish<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    outcome: Result<(), Box<CallFailure>>,
) -> Completion<B, T> {
    note_queued_end(shared, client, slot, outcome.is_err());
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
    match client.order() {
        None => after_end(shared, id, client, slot),
        Some(_) => end_in_order(shared, id, client, slot),
    }
    Completion { session: id, tag, outcome, request, response, inherited_ns }
}

/// Counts a call ending while its slot waits to send. In eRPC, with frames and not slots in the queue,
/// the queue would now refer to memory of the application (appendix C).
#[inline]
pub(in crate::rpc) fn note_queued_end<B, T>(
    shared: &mut Shared<B>,
    client: &ClientSession<B, T>,
    slot: usize,
    fails: bool,
) {
    if client.slot(slot).is_queued() || client.is_held_back(slot) {
        count_queued_end(shared, client, slot, fails);
    }
}

#[cold]
#[inline(never)]
fn count_queued_end<B, T>(
    shared: &mut Shared<B>,
    client: &ClientSession<B, T>,
    slot: usize,
    fails: bool,
) {
    let state = client.slot(slot);
    let repeats = state.state() == ClientState::Sending && state.first_lost().is_some();
    shared.counters.ended_before_repeat += u64::from(repeats);
    shared.counters.failed_while_paced += u64::from(fails && client.is_held_back(slot));
}

/// Returns the completion of an answered call whose slot is otherwise free already, if further calls or slots
/// wait for the slot or its credits.
#[cold]
#[inline(never)]
pub(in crate::rpc) fn ended_before_others<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> PlainCompletion<B, T> {
    let SlotCall { tag, request, response } = client.take_ended(slot);
    after_end(shared, id, client, slot);
    PlainCompletion { session: id, tag, request, response }
}

/// Passes the credits and the slot of an ended call on to waiting calls.
pub(in crate::rpc) fn after_end<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    if free(shared, id, client, slot) && !client.backlog().is_empty() {
        start_next(shared, id.index, client);
    }
    shared.queue.wake_stalled(id.index, client);
}

/// Starts the call that has waited longest for a slot.
fn start_next<B: Buffer, T>(shared: &mut Shared<B>, index: u32, client: &mut ClientSession<B, T>) {
    if client.order().is_some() {
        return start_waiting(shared, index, client);
    }
    if client.has_room()
        && let Some(queued) = client.backlog_mut().pop_front()
    {
        let Some(slot) = client.take_slot() else {
            unreachable!("a session with room has a slot for the next call");
        };
        start(shared, index, client, slot, queued);
    }
}

/// Ends the call in a slot, and notifies the server if some packet was sent.
#[cold]
pub(in crate::rpc) fn give_up<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    failure: CallFailure,
) -> Completion<B, T> {
    let state = client.slot(slot);
    assert!(!state.is_free(), "a call that is given up has a slot");
    let (is_sent, number) = (state.request_sent() > 0, state.number());
    if !planted("proto_order_given_up_untold") {
        client.note_abandoned(slot);
    }
    if is_sent {
        client.note_given_up(slot);
        shared.cancels.give_up(&mut shared.queue, id, number);
    }
    finish(shared, id, client, slot, Err(Box::new(failure)))
}

pub(in crate::rpc) fn fail_calls<B: Buffer, T>(
    shared: &mut Shared<B>,
    events: &mut Events<B, T>,
    id: SessionId,
    client: ClientSession<B, T>,
    status: Status,
    text: &str,
) {
    for slot in 0..client.slots().len() {
        note_queued_end(shared, &client, slot, true);
    }
    client.end(|queued, is_sent| {
        let execution = if is_sent { Execution::MayHaveExecuted } else { Execution::NotSent };
        let failure = CallFailure::new(status, text, execution);
        shared.counters.calls_failed += 1;
        events.push_back(Event::Completed(failed(id, queued, failure)));
    });
}

/// Returns the known execution of a call that ends without an answer.
pub(in crate::rpc) fn execution<B, T>(state: &ClientSlot<B, T>) -> Execution {
    if state.request_sent() > 0 { Execution::MayHaveExecuted } else { Execution::NotSent }
}

pub(in crate::rpc) fn cancelled(execution: Execution) -> CallFailure {
    CallFailure::new(Status::Cancelled, "the caller cancelled the call", execution)
}
