//! The calls of a session that keeps an order (`docs/wire-protocol.md` §14.6).
//!
//! A call gets its number together with its slot, in the order in which the calls were made. So the oldest call that
//! has not ended never waits for a slot. All calls of such a session take the general path, and no other session
//! asks for an order on the fast path.

use super::start::{expired_unsent, failed, free, is_to_itself, start};
use crate::buffer::Buffer;
use crate::limits::{HEADER_BYTES, PACKET_OVERHEAD_BYTES, PART_HEADER_BYTES, packet_span};
use crate::rpc::deadline::left_us;
use crate::rpc::turn::{Out, Turn};
use crate::rpc::{CallError, CallFailure, CallLimits, CallRejected, Event, Events, Execution};
use crate::rpc::{FrameSink, Shared};
use crate::session::SessionId;
use crate::session::backlog::{PendingCall, Queued};
use crate::session::client::{CallOrder, ClientSession, ClientState};
use crate::wire::{Flags, Kind, Order, Part, header_bytes};

/// Makes a call that was checked, in a session that keeps an order.
#[cold]
pub(in crate::rpc) fn call_in_order<B: Buffer, T>(
    shared: &mut Shared<B>,
    events: &mut Events<B, T>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    call: PendingCall<B, T>,
    limits: CallLimits,
) -> Result<(), CallRejected<B, T>> {
    if limits.ordered && client.order().is_none() {
        let PendingCall { tag, request, response, .. } = call;
        return Err(CallRejected { error: CallError::NotOrdered, request, response, tag });
    }
    shared.counters.calls_started += 1;
    let mut expiry = limits.expiry(shared.clock.inherited_ns());
    let is_to_itself = is_to_itself(client, &call);
    let mut queued = Queued { call, expiry, synchronises: limits.ordered };
    if expiry.at_ns <= shared.clock.latest_ns(now_ns) {
        let ended = expired_unsent(shared, id, queued);
        events.push_back(Event::Completed(ended));
        return Ok(());
    }
    match slot_for(client, is_to_itself) {
        Some(slot) => start_in_order(shared, id.index, client, slot, queued),
        None => {
            if !expiry.is_on_wire {
                expiry.at_ns = now_ns.saturating_add(shared.config.call_timeout_ns);
            }
            queued.expiry = expiry;
            shared.counters.calls_queued += 1;
            client.backlog_mut().push_back(queued);
        }
    }
    shared.timers.note_expiry(id, client.expiry_timer(), expiry.at_ns);
    Ok(())
}

/// Takes a slot for a call. Calls that wait come first, since they were made before. A request to the endpoint itself
/// uses the reserved slot, and has no number.
fn slot_for<B: Buffer, T>(client: &mut ClientSession<B, T>, is_to_itself: bool) -> Option<usize> {
    if is_to_itself && let Some(slot) = client.take_reserved_slot() {
        return Some(slot);
    }
    if !client.backlog().is_empty() { None } else { take_slot(client) }
}

fn take_slot<B, T>(client: &mut ClientSession<B, T>) -> Option<usize> {
    let has_room = client.has_room() && client.order().is_some_and(CallOrder::has_room);
    if has_room { client.take_slot() } else { None }
}

fn start_in_order<B: Buffer, T>(
    shared: &mut Shared<B>,
    index: u32,
    client: &mut ClientSession<B, T>,
    slot: usize,
    queued: Queued<B, T>,
) {
    let is_numbered = !client.is_reserved(slot);
    if is_numbered && let Some(order) = client.order_mut() {
        order.begin(slot, queued.synchronises);
    }
    start(shared, index, client, slot, queued);
    client.slot_mut(slot).use_general_path();
}

/// Starts the calls that waited, as many as slots and numbers allow.
#[cold]
pub(in crate::rpc) fn start_waiting<B: Buffer, T>(
    shared: &mut Shared<B>,
    index: u32,
    client: &mut ClientSession<B, T>,
) {
    while !client.backlog().is_empty()
        && let Some(slot) = take_slot(client)
        && let Some(queued) = client.backlog_mut().pop_front()
    {
        start_in_order(shared, index, client, slot, queued);
    }
}

/// Notes the end of the call in a slot, and passes its slot, its credits and its place on.
#[cold]
pub(in crate::rpc) fn end_in_order<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    let must_tell = client.order_mut().is_some_and(|order| order.end(slot));
    free(shared, id, client, slot);
    start_waiting(shared, id.index, client);
    shared.queue.wake_stalled(id.index, client);
    if must_tell {
        tell_of_end(shared, id, client);
    }
}

/// Tells the server that all calls before the oldest have ended, if the oldest call may wait for one of them: the
/// server may never see an abandoned call.
fn tell_of_end<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
) {
    let Some(slot) = client.order().and_then(CallOrder::oldest) else { return };
    let state = client.slot_mut(slot);
    let carries_order = match state.state() {
        ClientState::Waiting => true,
        // Without packet 0 a repetition would say nothing.
        ClientState::Sending => state.request_packets() == 1,
        ClientState::Free | ClientState::Receiving => false,
    };
    if carries_order && state.is_waiting_for_server() {
        client.release_single(slot);
        let state = client.slot_mut(slot);
        state.repeat(shared.config.recovery, &mut shared.client_parts);
        shared.queue.push_client(id.index, slot, state);
    }
}

/// Gives the order of a session up, whose server does not know ordered calls. The ordered calls that waited end.
pub(in crate::rpc) fn forgo_order<B: Buffer, T>(
    shared: &mut Shared<B>,
    events: &mut Events<B, T>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
) {
    client.forgo_order();
    let is_ordered = |queued: &Queued<B, T>| queued.synchronises;
    client.backlog_mut().sift(is_ordered, |queued| {
        let error = CallError::NotOrdered;
        let (status, message) = (error.status(), error.to_string());
        let failure = CallFailure::new(status, message, Execution::NotSent);
        shared.counters.calls_failed += 1;
        events.push_back(Event::Completed(failed(id, queued, failure)));
    });
}

/// Sends packet 0 of a numbered request, with its order and the deadline behind the header. Returns false if the
/// medium refused it.
#[cold]
pub(super) fn send_first_in_order<B: Buffer, T, S: FrameSink>(
    client: &mut ClientSession<B, T>,
    slot: usize,
    flags: Flags,
    grant: u8,
    order: Order,
    out: &mut Out<'_, S>,
) -> bool {
    let (to, peer, packet_bytes) = (client.to(), client.peer(), client.packet_bytes());
    let state = client.slot_mut(slot);
    let (method, number, packets) = (state.method(), state.number(), state.request_packets());
    let deadline_ns = state.wire_deadline_ns();
    let left_us = deadline_ns.map(|at_ns| left_us(out.sink.now_ns(out.now_ns), at_ns));
    let Some(request) = state.request_mut() else {
        unreachable!("a slot in use holds its request");
    };
    let size = request.wire_len() as u32;
    let flags = flags.with(Flags::EXTENDED);
    let is_whole = packets == 1 && grant == 1;
    let kind = if is_whole { Kind::Request } else { Kind::RequestPart };
    let header = to.words(kind, flags, method, number);
    let mut bytes = [0; crate::limits::CONTROL_FRAME_BYTES_MAX];
    let at = match is_whole {
        true => {
            bytes[..HEADER_BYTES].copy_from_slice(&header_bytes::<2, HEADER_BYTES>(header));
            HEADER_BYTES
        }
        false => {
            let words = Part { size, packet: 0, grant }.words(header);
            bytes[..PART_HEADER_BYTES]
                .copy_from_slice(&header_bytes::<3, PART_HEADER_BYTES>(words));
            PART_HEADER_BYTES
        }
    };
    let (block, len) = order.block(left_us);
    bytes[at..at + len].copy_from_slice(&block[..len]);
    let (offset, payload_len) = packet_span(0, size, packet_bytes);
    // The headers' room in a buffer is too short for both records, so they stand apart from the message.
    let (head, body) = request.packet(0, 0, offset, payload_len);
    let body = if head.is_empty() { body } else { head };
    out.control.send_with(out.sink, peer, (bytes, at + len), body)
}

const _: () = assert!(
    PACKET_OVERHEAD_BYTES + crate::limits::DEADLINE_ORDER_BLOCK_BYTES
        <= crate::limits::CONTROL_FRAME_BYTES_MAX
);

/// Sends a PULL of a numbered call that waits: with the calls that have ended.
#[cold]
pub(super) fn pull_in_order<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    order: Order,
) -> Turn {
    let (to, peer) = (client.to(), client.peer());
    let state = client.slot_mut(slot);
    let header = to.words(Kind::Pull, Flags::REPEATS.with(Flags::EXTENDED), 0, state.number());
    let frame = state.pull().encode_in_order(header, order);
    if !out.control.send(out.sink, peer, frame) {
        return Turn::one(false);
    }
    state.note_pull_sent();
    shared.counters.control_frames_sent += 1;
    shared.timers.arm(out.now_ns, id, client, slot);
    Turn::one(true)
}
