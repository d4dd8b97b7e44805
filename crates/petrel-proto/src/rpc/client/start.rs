//! The start of a call in a slot, the end of the slot's use, and calls that never got a slot (`docs/wire-protocol.md` §5).

use crate::buffer::Buffer;
use crate::limits::{ENDPOINT_METHOD, packets_of};
use crate::rpc::{CallFailure, Completion, Execution, Shared};
use crate::session::SessionId;
use crate::session::backlog::{Expiry, NEVER, PendingCall, Queued};
use crate::session::client::{ClientSession, SendPath, SlotEnd};
use crate::status::Status;

/// Puts a call into a slot taken for it. The session is open.
#[inline(always)]
pub(in crate::rpc) fn start<B: Buffer, T>(
    shared: &mut Shared<B>,
    index: u32,
    client: &mut ClientSession<B, T>,
    slot: usize,
    Queued { call, expiry, .. }: Queued<B, T>,
) {
    let size = call.request.wire_len();
    assert!(
        client.agreed().is_some_and(|agreed| size <= agreed.peer_message_bytes_max as usize),
        "a request is within the agreed size"
    );
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
        shared.queue.push_client(index, slot, state);
    } else {
        // Slots that already wait for a credit come first.
        shared.counters.credit_waits += 1;
    }
}

/// Returns true for a small request to the endpoint itself.
pub(super) fn is_to_itself<B: Buffer, T>(
    client: &ClientSession<B, T>,
    call: &PendingCall<B, T>,
) -> bool {
    call.method == ENDPOINT_METHOD && call.request.wire_len() <= client.packet_bytes() as usize
}

/// Frees the slot of an ended call, with its credits. Returns true if the slot can be used again.
#[inline]
pub(super) fn free<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> bool {
    let end = client.recycle(slot);
    if end == SlotEnd::Exhausted {
        shared.notices.note_exhausted(id);
    }
    end == SlotEnd::Released
}

/// Returns the completion of a call that never got a slot.
pub(in crate::rpc) fn failed<B: Buffer, T>(
    session: SessionId,
    queued: Queued<B, T>,
    failure: CallFailure,
) -> Completion<B, T> {
    let PendingCall { tag, request, mut response, .. } = queued.call;
    response.set_len(0);
    let inherited_ns = queued.expiry.inherited();
    Completion { session, tag, outcome: Err(Box::new(failure)), request, response, inherited_ns }
}

/// Returns the end of a call that expired before it got a slot.
pub(in crate::rpc) fn expired_unsent<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    queued: Queued<B, T>,
) -> Completion<B, T> {
    shared.counters.calls_failed += 1;
    shared.counters.calls_deadline_exceeded += 1;
    let failure = exceeded(queued.expiry, Execution::NotSent);
    failed(id, queued, failure)
}

#[cold]
pub(in crate::rpc) fn exceeded(expiry: Expiry, execution: Execution) -> CallFailure {
    assert!(expiry.at_ns != NEVER, "a call that expires has a time limit");
    let message = match expiry.is_on_wire {
        true => "the deadline was over before the response came",
        false => "no response within the default timeout",
    };
    CallFailure::new(Status::DeadlineExceeded, message, execution)
}
