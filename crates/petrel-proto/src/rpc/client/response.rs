//! The client's handling of responses (`docs/wire-protocol.md` §5.2).

use super::call::finish;
use super::expiry::too_late;
use crate::buffer::{Buffer, BufferPool};
use crate::limits::{
    CONFIRMED_RESPONSE_BYTES_MIN, MESSAGE_BYTES_MAX, PACKET_BYTES_MIN, packet_span, packets_of,
};
use crate::rpc::received::malformed;
use crate::rpc::{CallFailure, Completion, Execution, Received, Recovery, Shared};
use crate::session::SessionId;
use crate::session::client::{ClientSession, ClientSlot, ClientState};
use crate::status::Status;
use crate::wire::{ANSWERED_LATER, Flags, Header, Part, REFUSED, skip_extensions};

/// Returns the slot of a frame from the server, if the frame is about the slot's request.
#[inline]
pub(in crate::rpc) fn slot_of<B, T>(
    shared: &mut Shared<B>,
    client: &mut ClientSession<B, T>,
    header: &Header,
) -> Option<usize> {
    // An entry with a peer has slots: the opening of the session sets both.
    let slot = client.slot_index(header.request);
    let Some(state) = client.slots().get(slot) else {
        // No call has needed the slot yet.
        shared.counters.dropped_future += 1;
        return None;
    };
    if header.request == state.number() && !state.is_free() {
        return Some(slot);
    }
    if header.request >= state.number() {
        shared.counters.dropped_future += 1;
    } else {
        shared.counters.dropped_stale += 1;
        client.note_seen(slot, header.request);
    }
    None
}

/// Handles a response of one packet.
pub(in crate::rpc) fn on_response<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    header: Header,
    rest: &'f [u8],
    pool: &mut P,
) -> Received<'f, B, T> {
    let payload = match skip_extensions(header.flags, rest) {
        Ok(payload) if payload.len() <= client.packet_bytes() as usize => payload,
        _ => return malformed(shared),
    };
    let Some(slot) = slot_of(shared, client, &header) else { return Received::Nothing };
    let state = client.slot(slot);
    // A server answers once, in one packet or in several; but it may have given up an answer's missing
    // packets.
    let is_ok = header.aux as u8 == 0;
    if state.request_sent() == 0 || is_ok && state.state() == ClientState::Receiving {
        return malformed(shared);
    }
    shared.counters.frames_accepted += 1;
    let rtt_ns = client.note_round_trip(now_ns, slot, shared.timers.bounds());
    // The round trip of a later answer includes more than the network.
    let rtt_ns = rtt_ns.filter(|_| header.aux & ANSWERED_LATER == 0);
    let packets = client.slot(slot).credits();
    client.report(now_ns, rtt_ns, packets, header.flags.congestion(), &mut shared.congestion);
    let refused = header.aux & REFUSED != 0 && !is_ok;
    let execution = if refused { Execution::Refused } else { Execution::MayHaveExecuted };
    if let Some(late) = too_late(shared, now_ns, id, client, slot, execution) {
        return Received::Completed(late);
    }
    let outcome = match client.slot_mut(slot).response_mut() {
        Some(response) if is_ok => copy_whole(response, payload, pool),
        _ => Err(server_failure(header.aux, payload)),
    };
    Received::Completed(finish(shared, id, client, slot, outcome))
}

pub(in crate::rpc) fn on_response_part<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    header: Header,
    rest: &'f [u8],
    pool: &mut P,
) -> Received<'f, B, T> {
    let Ok((part, _, payload)) = Part::parse(header.flags, rest) else {
        return malformed(shared);
    };
    let Some(slot) = slot_of(shared, client, &header) else { return Received::Nothing };
    let packet_bytes = client.packet_bytes();
    if !is_sound(client.slot(slot), part, packet_bytes, payload.len()) {
        return malformed(shared);
    }
    if part.packet >= client.slot(slot).response_limit() {
        shared.counters.dropped_beyond_window += 1;
        return Received::Nothing;
    }
    if shared.config.recovery == Recovery::GoBackN
        && part.packet > client.slot(slot).received_below()
    {
        shared.counters.dropped_out_of_order += 1;
        return Received::Nothing;
    }
    if client.slot(slot).state() != ClientState::Receiving {
        let rtt_ns = client.note_round_trip(now_ns, slot, shared.timers.bounds());
        let rtt_ns = rtt_ns.filter(|_| header.aux & ANSWERED_LATER == 0);
        client.report(now_ns, rtt_ns, 0, header.flags.congestion(), &mut shared.congestion);
        if let Err(completion) = begin_response(shared, id, client, slot, part, pool) {
            return Received::Completed(completion);
        }
    }
    store_response_part(shared, now_ns, id, client, slot, part, packet_bytes, header.flags, payload)
}

/// Handles the first packet of a response, with any index: the request is acknowledged.
fn begin_response<B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    part: Part,
    pool: &mut P,
) -> Result<(), Completion<B, T>> {
    let packets = packets_of(part.size, client.packet_bytes());
    let response = client.slot_mut(slot).response_mut();
    let room = response.map_or(Ok(()), |to| make_room(to, part.size as usize, pool));
    if let Err(failure) = room {
        shared.counters.frames_accepted += 1;
        return Err(finish(shared, id, client, slot, Err(failure)));
    }
    let response = client.slot_mut(slot).response_mut();
    assert!(
        response.is_some_and(|to| part.size as usize <= to.capacity()),
        "a response is received into a buffer with room for it"
    );
    client.enter_receiving(slot, part.size, packets, &mut shared.client_parts);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the parts of one packet, parsed")]
fn store_response_part<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    part: Part,
    packet_bytes: u32,
    flags: Flags,
    payload: &[u8],
) -> Received<'f, B, T> {
    if flags.repeats() || client.is_lossless() {
        client.note_answer(now_ns, slot, shared.timers.bounds());
    }
    let state = client.slot_mut(slot);
    if !state.receive(part.packet) {
        shared.counters.dropped_duplicate += 1;
        return Received::Nothing;
    }
    shared.counters.frames_accepted += 1;
    let (offset, len) = packet_span(part.packet, part.size, packet_bytes);
    if let Some(response) = state.response_mut() {
        response.storage_mut()[offset..offset + len].copy_from_slice(payload);
    }
    state.timer_mut().note_progress();
    client.take_credit_back(slot, part.packet);
    if client.congestion().is_limited() || flags.congestion() {
        client.report(now_ns, None, 1, flags.congestion(), &mut shared.congestion);
    }
    let trusted = flags.repeats() && client.trusts_repetition(now_ns, slot);
    let state = client.slot_mut(slot);
    if state.is_response_whole() {
        if let Some(response) = state.response_mut() {
            response.set_len(part.size as usize);
        }
        if part.size >= CONFIRMED_RESPONSE_BYTES_MIN {
            let packets = packets_of(part.size, packet_bytes);
            shared.cancels.confirm(&mut shared.queue, id, state.number(), packets);
        }
        let late = too_late(shared, now_ns, id, client, slot, Execution::MayHaveExecuted);
        let ended = late.unwrap_or_else(|| finish(shared, id, client, slot, Ok(())));
        return Received::Completed(ended);
    }
    if state.is_evidence(part.packet, trusted) {
        shared.counters.losses_detected += 1;
        client.congestion_mut().on_loss(now_ns, 1, &mut shared.congestion);
    }
    let state = client.slot_mut(slot);
    shared.queue.push_client(id.index, slot, state);
    shared.queue.wake_stalled(id.index, client);
    shared.timers.arm(now_ns, id, client, slot);
    Received::Nothing
}

/// Returns true if a packet fits the known size of the response.
fn is_sound<B, T>(state: &ClientSlot<B, T>, part: Part, packet_bytes: u32, len: usize) -> bool {
    part.size <= MESSAGE_BYTES_MAX
        && part.packet < packets_of(part.size, packet_bytes)
        && len == packet_span(part.packet, part.size, packet_bytes).1
        && match (state.state(), state.parts()) {
            (ClientState::Receiving, Some(parts)) => part.size == parts.response().size(),
            // A server cannot answer before the whole request was sent.
            _ => state.is_request_sent(),
        }
}

/// Ensures that a response has room for `len` bytes, by a larger buffer if the caller allows one.
#[inline]
fn make_room<B: Buffer, P: BufferPool<Buffer = B>>(
    response: &mut B,
    len: usize,
    pool: &mut P,
) -> Result<(), Box<CallFailure>> {
    if len > response.capacity() { grow(response, len, pool) } else { Ok(()) }
}

#[cold]
fn grow<B: Buffer, P: BufferPool<Buffer = B>>(
    response: &mut B,
    len: usize,
    pool: &mut P,
) -> Result<(), Box<CallFailure>> {
    let (capacity, growth) = (response.capacity(), response.growth());
    if len > growth {
        return Err(too_large(len, capacity.max(growth)));
    }
    // With room for the headers of the smallest packets, because the caller may forward the message.
    match pool.take(len, packets_of(len as u32, PACKET_BYTES_MIN)) {
        Some(mut larger) => {
            assert!(larger.capacity() >= len, "a pool lends buffers of the size asked for");
            larger.set_growth(growth);
            *response = larger;
        }
        None => return Err(no_memory(len)),
    }
    Ok(())
}

#[inline]
fn copy_whole<B: Buffer, P: BufferPool<Buffer = B>>(
    response: &mut B,
    payload: &[u8],
    pool: &mut P,
) -> Result<(), Box<CallFailure>> {
    make_room(response, payload.len(), pool)?;
    response.set_len(payload.len());
    response.storage_mut()[..payload.len()].copy_from_slice(payload);
    Ok(())
}

#[cold]
fn too_large(len: usize, capacity: usize) -> Box<CallFailure> {
    let text = format!("the response has {len} bytes, and the caller's buffer holds {capacity}");
    Box::new(CallFailure::new(Status::ResourceExhausted, text, Execution::Answered))
}

#[cold]
fn no_memory(len: usize) -> Box<CallFailure> {
    let text = format!("no memory here for the response of {len} bytes");
    Box::new(CallFailure::new(Status::ResourceExhausted, text, Execution::Answered))
}

#[cold]
fn server_failure(aux: u16, payload: &[u8]) -> Box<CallFailure> {
    let execution = if aux & REFUSED == 0 { Execution::Answered } else { Execution::Refused };
    Box::new(CallFailure::read(Status::from_code(aux as u8), payload, execution))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{HeapBuffer, HeapPool};

    /// A buffer with an allowed larger replacement.
    struct Growing(HeapBuffer, usize);

    impl Buffer for Growing {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn capacity(&self) -> usize {
            self.0.capacity()
        }

        fn growth(&self) -> usize {
            self.1
        }

        fn set_growth(&mut self, bytes_max: usize) {
            self.1 = bytes_max;
        }

        fn set_len(&mut self, len: usize) {
            self.0.set_len(len);
        }

        fn storage_mut(&mut self) -> &mut [u8] {
            self.0.storage_mut()
        }

        fn write_header(&mut self, index: u32, header: &[u8]) {
            self.0.write_header(index, header);
        }

        fn frame(&mut self, header: [u64; 2]) -> &[u8] {
            self.0.frame(header)
        }

        fn packet(&self, at: u32, header: usize, offset: usize, len: usize) -> (&[u8], &[u8]) {
            self.0.packet(at, header, offset, len)
        }
    }

    struct GrowingPool(HeapPool);

    impl BufferPool for GrowingPool {
        type Buffer = Growing;

        fn take(&mut self, len: usize, packets: u32) -> Option<Growing> {
            Some(Growing(self.0.take(len, packets)?, 0))
        }
    }

    /// The buffer stays up to its capacity, and is replaced up to its growth if there is memory. Longer
    /// responses are refused.
    #[test]
    fn make_room__up_to_what_the_caller_allows() {
        let said = |failure: Box<CallFailure>| {
            assert_eq!(failure.status, Status::ResourceExhausted);
            assert_eq!(failure.execution, Execution::Answered);
            failure.message
        };
        for (len, growth, memory, expected) in [
            (0, 0, 0, Ok(100)),
            (100, 0, 0, Ok(100)),
            (101, 0, 1_000, Err(too_large(101, 100))),
            (101, 50, 1_000, Err(too_large(101, 100))),
            (200, 200, 1_000, Ok(200)),
            (150, 200, 1_000, Ok(150)),
            (201, 200, 1_000, Err(too_large(201, 200))),
            (200, 200, 200, Ok(200)),
            (200, 200, 199, Err(no_memory(200))),
        ] {
            let mut response = Growing(HeapBuffer::new(100, 1), growth);
            let mut pool = GrowingPool(HeapPool { len_max: memory });
            let made = make_room(&mut response, len, &mut pool);
            let found = made.map(|()| response.capacity()).map_err(said);
            assert_eq!(found, expected.map_err(said), "{len} {growth} {memory}");
            assert_eq!(response.growth(), growth, "also of a replacement");
        }
    }

    #[test]
    fn server_failure__has_details_behind_a_zero_byte() {
        let cases: [(&[u8], &str, &[u8]); 6] = [
            (b"late", "late", b""),
            (b"late\0", "late", b""),
            (b"late\0\xff\0\x01", "late", b"\xff\0\x01"),
            (b"\0x", "", b"x"),
            (b"", "", b""),
            (b"\xff\0x", "\u{fffd}", b"x"),
        ];
        for (payload, text, details) in cases {
            let failure = server_failure(REFUSED | 10, payload);
            assert_eq!((&*failure.message, &*failure.details), (text, details));
            assert_eq!((failure.status, failure.execution), (Status::Aborted, Execution::Refused));
        }
    }
}
