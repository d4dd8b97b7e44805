//! The steps of a request in its slot: its begin, its run, and its refusal after the deadline
//! (`docs/wire-protocol.md` §6.2).

use super::refuse::refuse_arriving;
use super::watched::note_superseded;
use crate::buffer::Buffer;
use crate::limits::KEPT_ANSWER_BYTES_MAX;
use crate::rpc::{Received, RequestHandle, Shared};
use crate::session::SessionId;
use crate::session::backlog::NEVER;
use crate::session::server::{ServerSession, ServerSlot};
use crate::status::Status;
use crate::wire::{Flags, Header, Part};

/// A parsed packet of a request.
pub(in crate::rpc) struct Packet<'f> {
    pub(super) now_ns: u64,
    pub(super) part: Part,
    pub(super) flags: Flags,
    /// The deadline carried by the packet, or [`NEVER`].
    pub(super) deadline_ns: u64,
    pub(super) payload: &'f [u8],
}

/// Prepares the slot of an accepted request, and notes the session's first.
#[inline]
pub(super) fn make_ready<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    slot: usize,
) {
    if server.make_ready(slot) {
        shared.notices.note_used(id);
    }
}

/// Begins a new request, and frees the slot's former content.
#[inline]
pub(super) fn begin<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    state: &mut ServerSlot<B>,
    header: Header,
    size: u32,
    packets: u32,
) {
    note_superseded(shared, id, state);
    shared.memory.release(state);
    state.begin(header.request, header.aux, size, packets, &mut shared.server_parts);
    state.note_mark(header.flags);
}

/// Starts RUNNING. Handlers are called only for the results of `run` and `run_message`, once for each
/// request number.
pub(super) fn run<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    state: &mut ServerSlot<B>,
    slot: usize,
    packet_bytes: u32,
    packet: &Packet<'f>,
) -> Received<'f, B, T> {
    let Packet { now_ns, deadline_ns, payload, .. } = *packet;
    if deadline_ns <= shared.clock.latest_ns(now_ns) {
        return refuse_expired(shared, id, state, slot);
    }
    state.run();
    shared.counters.requests_received += 1;
    let handle = RequestHandle { session: id, number: state.current() };
    // A larger buffer is freed at once: its memory is worth more than the saved time.
    let kept_answer_bytes_max = packet_bytes.min(KEPT_ANSWER_BYTES_MAX) as usize;
    let fits = |spare: &B| spare.capacity() <= kept_answer_bytes_max;
    let spare = state.take_message().filter(fits);
    let deadline_ns = (deadline_ns != NEVER).then_some(deadline_ns);
    Received::Request { handle, method: state.method(), payload, spare, deadline_ns }
}

pub(super) fn run_message<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    state: &mut ServerSlot<B>,
) -> Received<'f, B, T> {
    shared.memory.release(state);
    let (message, placed, deadline_ns) = state.run_message(&mut shared.server_parts);
    shared.counters.requests_received += 1;
    let handle = RequestHandle { session: id, number: state.current() };
    let deadline_ns = (deadline_ns != NEVER).then_some(deadline_ns);
    Received::Message { handle, method: state.method(), message, placed, deadline_ns }
}

/// Requests a CREDIT after this burst.
#[inline]
pub(in crate::rpc) fn credit_due<B: Buffer>(
    shared: &mut Shared<B>,
    session: u32,
    slot: usize,
    state: &mut ServerSlot<B>,
    packet: u32,
    repeats: bool,
) {
    state.note_packet(packet, repeats);
    shared.queue.push_server(session, slot, state);
}

/// Refuses a request whose deadline passed before the handler could be called.
#[cold]
pub(in crate::rpc) fn refuse_expired<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    state: &mut ServerSlot<B>,
    slot: usize,
) -> Received<'f, B, T> {
    shared.counters.requests_expired += 1;
    let text = "too late: the deadline was over on arrival";
    refuse_arriving(shared, id, state, slot, Status::DeadlineExceeded, text);
    Received::Nothing
}
