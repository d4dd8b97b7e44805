//! Requests that wait until all earlier ones of their session have run (`docs/wire-protocol.md` §14.6).
//!
//! A complete request that comes early is RUNNING for its slot: repetitions and PULLs are answered by CREDITs, and it
//! can be cancelled. Its message is with the session's [`RequestOrder`](crate::session::server::RequestOrder), and
//! the handler is called once, when the owner of the core takes [`Event::Request`]. The handle of a numbered request
//! has a bit of its own, so the answers of all others need no check.

use petrel_planted::planted;

use super::memory::note_refused;
use super::refuse::refuse;
use super::run::{Packet, begin, credit_due, make_ready, run, run_message};
use super::settle::settle;
use super::watched::note_superseded;
use crate::buffer::{Buffer, BufferPool, Placed};
use crate::limits::{HEADER_BYTES, PACKET_OVERHEAD_BYTES, PART_HEADER_BYTES};
use crate::rpc::{Event, Received, RequestHandle, Shared};
use crate::session::backlog::NEVER;
use crate::session::held::{Holder, HoldingKind, Shortage};
use crate::session::server::{Early, ServerSession, ServerState};
use crate::session::{Role, SessionId, SessionTable};
use crate::status::Status;
use crate::wire::{Header, Kind, Malformed, Order};

/// Reads the order from an extended REQUEST, REQUEST_PART of packet 0, or PULL, and notes the calls that have ended.
/// Returns `None` for a frame without the record, and on a link that has not agreed on it.
#[cold]
pub(in crate::rpc) fn take_order<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: &Header,
    rest: &[u8],
) -> Result<Option<Order>, Malformed> {
    if !server.knows_order() {
        return Ok(None);
    }
    let fields = match header.kind {
        Kind::RequestPart => PART_HEADER_BYTES - HEADER_BYTES,
        Kind::Pull => 16,
        _ => 0,
    };
    let block = rest.get(fields..).ok_or(Malformed("shorter than its fields"))?;
    let order = Order::read(header.flags, block)?;
    if let Some(order) = order {
        server.order_mut().note_ended(order.ended);
        give_up_ended(shared, id, server);
        settle(shared, id, server);
    }
    Ok(order)
}

/// Gives up the requests that arrive or wait, and whose calls have ended at the client: later calls may run from now on,
/// and an earlier call must not run afterwards.
fn give_up_ended<B: Buffer>(shared: &mut Shared<B>, id: SessionId, server: &mut ServerSession<B>) {
    while let Some((slot, number)) = server.take_ended()
        && !planted("proto_order_ended_runs")
    {
        shared.counters.requests_overtaken += 1;
        let state = server.slot_mut(slot);
        note_superseded(shared, id, state);
        shared.memory.release(state);
        state.give_up(number, &mut shared.server_parts);
    }
}

/// Gives up a request that is new here, and that the client has abandoned already: later requests may have run. Returns
/// false for any other request.
#[cold]
pub(in crate::rpc) fn give_up_overtaken<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: &Header,
    order: Order,
) -> bool {
    if !server.order_mut().is_over(order.sequence) {
        return false;
    }
    let slot = server.slot_index(header.request);
    make_ready(shared, id, server, slot);
    let state = server.slot_mut(slot);
    shared.counters.frames_accepted += 1;
    shared.counters.requests_overtaken += 1;
    note_superseded(shared, id, state);
    shared.memory.release(state);
    state.give_up(header.request, &mut shared.server_parts);
    settle(shared, id, server);
    true
}

/// Gives the request in a slot its place, if the request has begun.
#[cold]
pub(in crate::rpc) fn place<B>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: &Header,
    order: Order,
) {
    let slot = server.slot_index(header.request);
    // The request may wait for memory, and is then handled again.
    if server.current(slot) == header.request {
        server.order_mut().begin(slot, header.request, order.sequence, order.synchronises);
        settle(shared, id, server);
    }
}

/// Gives a place to an arriving request that came after other packets. Returns false if its client has abandoned it
/// meanwhile.
#[cold]
pub(in crate::rpc) fn place_late<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: &Header,
    order: Order,
) -> bool {
    let slot = server.slot_index(header.request);
    if server.slot_mut(slot).state() != ServerState::Arriving {
        return true;
    }
    let is_over = give_up_overtaken(shared, id, server, header, order);
    if !is_over {
        place(shared, id, server, header, order);
    }
    !is_over
}

/// Handles a new numbered request of one packet, within the agreed size.
#[cold]
pub(in crate::rpc) fn on_whole_in_order<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: &Header,
    packet: &Packet<'f>,
    order: Order,
    pool: &mut P,
) -> Received<'f, B, T> {
    let slot = server.slot_index(header.request);
    make_ready(shared, id, server, slot);
    let waits = order.synchronises && !server.order_mut().may_run(order.sequence);
    let message = match waits {
        false => None,
        true => match buffer_for(shared, id, server, slot, packet, pool) {
            Some(message) => Some(message),
            None => return Received::Nothing,
        },
    };
    let packet_bytes = server.agreed().packet_bytes;
    let state = server.slot_mut(slot);
    begin(shared, id, state, *header, packet.part.size, 1);
    state.grant(packet.part.grant);
    shared.counters.frames_accepted += 1;
    place(shared, id, server, header, order);
    let state = server.slot_mut(slot);
    let received = match message {
        None => run(shared, id, state, slot, packet_bytes, packet),
        Some(Err(shortage)) => {
            let text = note_refused(shared, shortage);
            refuse(shared, id, state, slot, Status::ResourceExhausted, text);
            Received::Nothing
        }
        Some(Ok(mut message)) => {
            message.storage_mut()[..packet.payload.len()].copy_from_slice(packet.payload);
            state.run();
            let early = Early { message, placed: None, deadline_ns: packet.deadline_ns };
            hold(shared, id, server, slot, early);
            let state = server.slot_mut(slot);
            credit_due(shared, id.index, slot, state, 0, packet.flags.repeats());
            return Received::Nothing;
        }
    };
    let received = mark(server, slot, received);
    settle(shared, id, server);
    received
}

/// Takes a buffer for a request of one packet that comes early. Returns `None` if the frame is to be handled again.
fn buffer_for<B: Buffer, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    slot: usize,
    packet: &Packet<'_>,
    pool: &mut P,
) -> Option<Result<B, Shortage>> {
    let holder = Holder { session: id, slot, peer: server.peer() };
    let state = server.slot_mut(slot);
    // Frees the slot's former content before taking a buffer.
    shared.memory.release(state);
    state.empty();
    let len = packet.payload.len();
    let bytes = (len + PACKET_OVERHEAD_BYTES) as u64;
    let message = match shared.memory.check(holder, bytes) {
        Ok(()) => pool.take(len, 1).ok_or(Shortage::All),
        Err(shortage) => Err(shortage),
    };
    match message {
        Err(shortage) if shared.memory.ask_for_room(shortage, bytes) => None,
        message => Some(message),
    }
}

/// Runs a request of several packets that is complete, or keeps it until the earlier ones have run.
#[cold]
pub(in crate::rpc) fn complete_in_order<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    slot: usize,
) -> Received<'f, B, T> {
    let number = server.current(slot);
    let Some((sequence, synchronises)) = server.order_mut().place(slot, number) else {
        return run_message(shared, id, server.slot_mut(slot));
    };
    if !synchronises || server.order_mut().may_run(sequence) {
        let received = run_message(shared, id, server.slot_mut(slot));
        return mark(server, slot, received);
    }
    let state = server.slot_mut(slot);
    shared.memory.release(state);
    let (message, placed, deadline_ns) = state.run_message(&mut shared.server_parts);
    hold(shared, id, server, slot, Early { message, placed, deadline_ns });
    Received::Nothing
}

/// Keeps a complete request until its turn, and charges the session for the bytes.
fn hold<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    slot: usize,
    early: Early<B>,
) {
    shared.counters.requests_held_for_order += 1;
    let holder = Holder { session: id, slot, peer: server.peer() };
    let placed_bytes = early.placed.as_ref().map_or(0, Placed::held_bytes);
    let bytes = (early.message.memory_bytes() + placed_bytes).max(1) as u64;
    let state = server.slot_mut(slot);
    state.note_ordered();
    state.hold_early(shared.memory.hold(HoldingKind::Early, holder, bytes, &mut shared.timers));
    let number = state.current();
    server.order_mut().hold(slot, number, early);
}

/// Marks the handle of a numbered request that runs.
fn mark<'f, B, T>(
    server: &mut ServerSession<B>,
    slot: usize,
    mut received: Received<'f, B, T>,
) -> Received<'f, B, T> {
    if let Received::Request { handle, .. } | Received::Message { handle, .. } = &mut received {
        server.slot_mut(slot).note_ordered();
        *handle = handle.in_order();
    }
    received
}

/// Returns the next request of a session that waited and may run now. The owner calls the handler.
#[cold]
pub(in crate::rpc) fn take_ready<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    id: SessionId,
) -> Option<Event<B, T>> {
    let Role::Server(server) = sessions.get_mut(id)?.role_mut() else { return None };
    server.order()?;
    // A request may have been cancelled since the notice.
    server.settle_order();
    let (slot, number, Early { message, placed, deadline_ns }) = server.order_mut().take_ready()?;
    let state = server.slot_mut(slot);
    assert!(state.current() == number && state.is_ordered(), "a request that waits is in its slot");
    assert!(state.state() == ServerState::Running, "a complete request that waits is RUNNING");
    shared.memory.release(state);
    if deadline_ns <= shared.clock.latest_ns(0) {
        shared.counters.requests_expired += 1;
        let text = "too late: the deadline was over before the earlier calls had run";
        refuse(shared, id, state, slot, Status::DeadlineExceeded, text);
        settle(shared, id, server);
        return None;
    }
    shared.counters.requests_received += 1;
    let handle = RequestHandle { session: id, number }.in_order();
    let deadline_ns = (deadline_ns != NEVER).then_some(deadline_ns);
    Some(Event::Request { handle, method: state.method(), message, placed, deadline_ns })
}
