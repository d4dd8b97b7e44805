//! The server's handling of requests (`docs/wire-protocol.md` §6.2).

use super::memory::{hold_request, note_refused, report_answer_gone};
use super::order::{
    complete_in_order, give_up_overtaken, on_whole_in_order, place, place_late, take_order,
};
use super::refuse::{count_stale_or_future, refuse};
use super::run::{Packet, begin, credit_due, make_ready, refuse_expired, run, run_message};
use super::settle::settle;
use crate::bitmap::Insert;
use crate::buffer::{Buffer, BufferPool, Placed};
use crate::limits::{PACKET_OVERHEAD_BYTES, packet_span, packets_of};
use crate::rpc::deadline::deadline_ns;
use crate::rpc::received::malformed;
use crate::rpc::{Received, Recovery, Shared};
use crate::session::SessionId;
use crate::session::backlog::NEVER;
use crate::session::held::{Holder, Shortage};
use crate::session::server::{Age, ServerSession, ServerState};
use crate::status::Status;
use crate::wire::{Flags, Header, Part, read_extensions};

/// Handles a request of one packet.
pub(in crate::rpc) fn on_request<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: Header,
    rest: &'f [u8],
    pool: &mut P,
) -> Received<'f, B, T> {
    let packet_bytes = server.agreed().packet_bytes;
    let (extensions, payload) = match read_extensions(header.flags, rest) {
        Ok((extensions, payload)) if payload.len() <= packet_bytes as usize => {
            (extensions, payload)
        }
        _ => return malformed(shared),
    };
    let order = match header.flags.extended() {
        false => None,
        true => match take_order(shared, id, server, &header, rest) {
            Ok(order) => order,
            Err(_) => return malformed(shared),
        },
    };
    let slot = server.slot_index(header.request);
    match server.age(slot, header.request) {
        Age::New => {}
        Age::Current => return on_repeated_request(shared, id, server, slot, 0, header.flags),
        age => return count_stale_or_future(shared, age),
    }
    if let Some(order) = order
        && give_up_overtaken(shared, id, server, &header, order)
    {
        return Received::Nothing;
    }
    make_ready(shared, id, server, slot);
    if payload.len() > server.request_bytes_max() as usize {
        shared.counters.frames_accepted += 1;
        let refused = refuse_too_large(shared, id, server, slot, header, payload.len() as u32);
        if let Some(order) = order {
            place(shared, id, server, &header, order);
        }
        return refused;
    }
    let part = Part { size: payload.len() as u32, packet: 0, grant: 1 };
    let deadline_ns = deadline_ns(shared.clock.arrival_ns(now_ns), extensions);
    let packet = Packet { now_ns, part, flags: header.flags, deadline_ns, payload };
    if let Some(order) = order {
        return on_whole_in_order(shared, id, server, &header, &packet, order, pool);
    }
    shared.counters.frames_accepted += 1;
    let state = server.slot_mut(slot);
    begin(shared, id, state, header, payload.len() as u32, 1);
    run(shared, id, state, slot, packet_bytes, &packet)
}

pub(in crate::rpc) fn on_request_part<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: Header,
    rest: &'f [u8],
    pool: &mut P,
) -> Received<'f, B, T> {
    let Ok((part, extensions, payload)) = Part::parse(header.flags, rest) else {
        return malformed(shared);
    };
    let packet_bytes = server.agreed().packet_bytes;
    let packets = packets_of(part.size, packet_bytes);
    if part.grant == 0
        || part.packet >= packets
        || payload.len() != packet_span(part.packet, part.size, packet_bytes).1
    {
        return malformed(shared);
    }
    let arrival_ns = shared.clock.arrival_ns(now_ns);
    let deadline_ns = if part.packet == 0 { deadline_ns(arrival_ns, extensions) } else { NEVER };
    let packet = Packet { now_ns, part, flags: header.flags, deadline_ns, payload };
    let slot = server.slot_index(header.request);
    let order = match part.packet == 0 && header.flags.extended() {
        false => None,
        true => match take_order(shared, id, server, &header, rest) {
            Ok(order) => order,
            Err(_) => return malformed(shared),
        },
    };
    let age = server.age(slot, header.request);
    if let Some(order) = order
        && age == Age::New
    {
        if give_up_overtaken(shared, id, server, &header, order) {
            return Received::Nothing;
        }
        if packets == 1 && part.size <= server.request_bytes_max() {
            return on_whole_in_order(shared, id, server, &header, &packet, order, pool);
        }
    }
    match age {
        Age::New => {
            // The bytes of a request with a place in the order may take no effect before all earlier requests have run.
            let first = (part.packet == 0 && order.is_none()).then_some(payload);
            let begun = begin_parts(shared, id, server, slot, header, part, first, pool);
            if let Some(order) = order {
                place(shared, id, server, &header, order);
            }
            if let Err(refused) = begun {
                return refused;
            }
            if packets == 1 {
                // A whole request, sent in this form to carry a grant.
                shared.counters.frames_accepted += 1;
                return run(shared, id, server.slot_mut(slot), slot, packet_bytes, &packet);
            }
        }
        Age::Current => {
            if let Some(order) = order
                && !place_late(shared, id, server, &header, order)
            {
                return Received::Nothing;
            }
        }
        age => return count_stale_or_future(shared, age),
    }
    let state = server.slot_mut(slot);
    // The size of a request cancelled before its first packet is unknown.
    if part.size != state.request_size() && !state.is_given_up() {
        return malformed(shared);
    }
    state.note_mark(header.flags);
    if state.state() != ServerState::Arriving {
        return on_repeated_request(shared, id, server, slot, part.packet, header.flags);
    }
    store_part(shared, id, server, slot, packet_bytes, &packet)
}

/// Begins a new request with any of its packets. `first` is the payload of packet 0, if the destination may depend on it.
#[expect(clippy::too_many_arguments, reason = "the steps of a request share these")]
pub(in crate::rpc) fn begin_parts<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    slot: usize,
    header: Header,
    part: Part,
    first: Option<&[u8]>,
    pool: &mut P,
) -> Result<(), Received<'f, B, T>> {
    make_ready(shared, id, server, slot);
    if part.size > server.request_bytes_max() {
        shared.counters.frames_accepted += 1;
        return Err(refuse_too_large(shared, id, server, slot, header, part.size));
    }
    let packets = packets_of(part.size, server.agreed().packet_bytes);
    let holder = Holder { session: id, slot, peer: server.agreed().peer };
    let state = server.slot_mut(slot);
    if packets == 1 {
        begin(shared, id, state, header, part.size, packets);
        state.grant(part.grant);
        return Ok(());
    }
    // Frees the slot's former content before taking a buffer.
    shared.memory.release(state);
    state.empty();
    let placed = pool.destination(header.aux, part.size as usize, first);
    // A placed request has a buffer for its name only.
    let (len, len_packets) = if placed.is_some() { (0, 1) } else { (part.size as usize, packets) };
    let elsewhere = placed.as_ref().map_or(0, Placed::held_bytes);
    let bytes = (len + elsewhere) as u64 + u64::from(packets) * PACKET_OVERHEAD_BYTES as u64;
    let request = match shared.memory.check(holder, bytes) {
        Ok(()) => pool.take(len, len_packets).ok_or(Shortage::All),
        Err(shortage) => Err(shortage),
    };
    if let Err(shortage) = request
        && shared.memory.ask_for_room(shortage, bytes)
    {
        return Err(Received::Nothing);
    }
    let state = server.slot_mut(slot);
    begin(shared, id, state, header, part.size, packets);
    let request = match request {
        Ok(request) => request,
        Err(shortage) => {
            shared.counters.frames_accepted += 1;
            let text = note_refused(shared, shortage);
            refuse(shared, id, state, slot, Status::ResourceExhausted, text);
            return Err(Received::Nothing);
        }
    };
    assert!(request.capacity() >= len, "a pool lends buffers of the size asked for");
    let is_empty = request.capacity() == 0;
    let bytes = (request.memory_bytes() + elsewhere).max(1) as u64;
    state.begin_buffer(request, &mut shared.server_parts);
    if let Some(placed) = placed {
        // The fast path finds no room for a packet, and leaves the packet to the general path.
        assert!(is_empty, "no packet fits into the buffer of a placed request");
        state.place_in(placed);
    }
    hold_request(shared, holder, state, bytes);
    Ok(())
}

/// Stores a packet of an arriving request, and runs the request with the last packet.
fn store_part<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    slot: usize,
    packet_bytes: u32,
    packet: &Packet<'f>,
) -> Received<'f, B, T> {
    let state = server.slot_mut(slot);
    assert!(state.has_holding(), "a request of several packets is charged while it arrives");
    let go_back_n = shared.config.recovery == Recovery::GoBackN;
    let Packet { now_ns, part, flags, deadline_ns, payload } = *packet;
    if go_back_n && part.packet > state.arrived_below() {
        shared.counters.dropped_out_of_order += 1;
        return Received::Nothing;
    }
    let deadline_ns = state.note_deadline(deadline_ns);
    match state.arrive(part.packet) {
        Insert::New => {}
        Insert::Duplicate => {
            shared.counters.dropped_duplicate += 1;
            credit_due(shared, id.index, slot, state, part.packet, flags.repeats());
            return Received::Nothing;
        }
        Insert::Beyond => {
            shared.counters.dropped_beyond_window += 1;
            return Received::Nothing;
        }
    }
    shared.counters.frames_accepted += 1;
    shared.memory.touch(state.holding());
    if deadline_ns <= shared.clock.latest_ns(now_ns) {
        let refused = refuse_expired(shared, id, state, slot);
        if server.order().is_some() {
            settle(shared, id, server);
        }
        return refused;
    }
    let (offset, _) = packet_span(part.packet, part.size, packet_bytes);
    state.store(offset, payload);
    let is_whole = state.is_whole();
    state.grant(part.grant);
    credit_due(shared, id.index, slot, state, part.packet, flags.repeats());
    match is_whole {
        true if server.order().is_some() => complete_in_order(shared, id, server, slot),
        true => run_message(shared, id, server.slot_mut(slot)),
        false => Received::Nothing,
    }
}

/// Handles a packet of a complete or answered request: the client may lack the acknowledgement or the
/// answer.
#[cold]
pub(in crate::rpc) fn on_repeated_request<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    slot: usize,
    packet: u32,
    flags: Flags,
) -> Received<'f, B, T> {
    shared.counters.dropped_duplicate += 1;
    let state = server.slot_mut(slot);
    match state.state() {
        ServerState::Running => {
            // An ordered request may wait for others.
            shared.memory.touch(state.holding());
            state.note_mark(flags);
            state.note_asked();
            credit_due(shared, id.index, slot, state, packet, flags.repeats());
        }
        ServerState::Answered if state.is_answer_gone() => {
            report_answer_gone(shared, id, state, slot);
        }
        // Packets without flag R were in flight when the request was answered, for instance those of a
        // long refused request.
        ServerState::Answered if state.response_sent() > 0 && flags.repeats() => {
            shared.memory.touch(state.holding());
            if state.repeat_first(&mut shared.server_parts) {
                shared.queue.push_server(id.index, slot, state);
            }
        }
        _ => {}
    }
    Received::Nothing
}

#[cold]
fn refuse_too_large<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    slot: usize,
    header: Header,
    size: u32,
) -> Received<'f, B, T> {
    shared.counters.refused_too_large += 1;
    let packets = packets_of(size, server.agreed().packet_bytes);
    let state = server.slot_mut(slot);
    begin(shared, id, state, header, size, packets);
    let text = "the request exceeds the agreed size";
    refuse(shared, id, state, slot, Status::ResourceExhausted, text);
    Received::Nothing
}
