//! The server takes requests (`docs/wire-protocol.md` §6.2).

use super::{Received, RequestHandle, Shared};
use crate::bitmap::Insert;
use crate::buffer::{Buffer, BufferPool};
use crate::limits::{FUTURE_ROUNDS_MAX, packet_span, packets_of};
use crate::session::SessionId;
use crate::session::server::{Answer, ServerSession, ServerSlot, ServerState};
use crate::status::Status;
use crate::wire::{Flags, Header, Part, skip_extensions};

/// How a request number stands to its slot.
enum Age {
    Stale,
    Current,
    New,
    Future,
}

#[inline]
fn age<B>(server: &ServerSession<B>, slot: usize, request: u64) -> Age {
    // Both are below 2^48 (or one round below 0), so the wrapped difference has the right sign.
    let ahead = request.wrapping_sub(server.slots[slot].current) as i64;
    match ahead {
        ..0 => Age::Stale,
        0 => Age::Current,
        _ if ahead as u64 <= FUTURE_ROUNDS_MAX * server.slots.len() as u64 => Age::New,
        _ => Age::Future,
    }
}

impl Shared {
    /// A request of one packet.
    #[inline]
    pub(super) fn on_request<'f, B: Buffer>(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        header: Header,
        rest: &'f [u8],
    ) -> Received<'f, B> {
        let payload = match skip_extensions(header.flags, rest) {
            Ok(payload) if payload.len() <= server.agreed.packet_bytes as usize => payload,
            _ => return self.malformed(),
        };
        let slot = server.slot_index(header.request);
        match age(server, slot, header.request) {
            Age::New => {}
            Age::Current => return self.on_repeated_request(id, server, slot, 0, header.flags),
            not_now => return self.not_now(not_now),
        }
        self.counters.frames_accepted += 1;
        if payload.len() > server.request_bytes_max as usize {
            return self.refuse_too_large(id, server, slot, header, payload.len() as u32);
        }
        let state = &mut server.slots[slot];
        state.begin(header.request, header.aux, payload.len() as u32, 1);
        self.run(id, state, payload)
    }

    /// A packet of a request.
    pub(super) fn on_request_part<'f, B: Buffer, P: BufferPool<Buffer = B>>(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        header: Header,
        rest: &'f [u8],
        pool: &mut P,
    ) -> Received<'f, B> {
        let Ok((part, payload)) = Part::parse(header.flags, rest) else { return self.malformed() };
        let packet_bytes = server.agreed.packet_bytes;
        let packets = packets_of(part.size, packet_bytes);
        if part.grant == 0
            || part.packet >= packets
            || payload.len() != packet_span(part.packet, part.size, packet_bytes).1
        {
            return self.malformed();
        }
        let slot = server.slot_index(header.request);
        match age(server, slot, header.request) {
            Age::New => {
                if let Err(refused) = self.begin_parts(id, server, slot, header, part, pool) {
                    return refused;
                }
            }
            Age::Current => {}
            not_now => return self.not_now(not_now),
        }
        let state = &mut server.slots[slot];
        if part.size != state.request_size {
            return self.malformed();
        }
        if state.state != ServerState::Arriving {
            return self.on_repeated_request(id, server, slot, part.packet, header.flags);
        }
        self.store_part(id, state, slot, part, header.flags, packet_bytes, payload)
    }

    /// The first packet of a new request has come, whichever it is.
    fn begin_parts<'f, B: Buffer, P: BufferPool<Buffer = B>>(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        slot: usize,
        header: Header,
        part: Part,
        pool: &mut P,
    ) -> Result<(), Received<'f, B>> {
        if part.size > server.request_bytes_max {
            self.counters.frames_accepted += 1;
            return Err(self.refuse_too_large(id, server, slot, header, part.size));
        }
        let packets = packets_of(part.size, server.agreed.packet_bytes);
        let state = &mut server.slots[slot];
        // Frees the buffers of the slot's former request before a new one is taken.
        state.begin(header.request, header.aux, part.size, packets);
        state.state = ServerState::Arriving;
        if packets > 1 {
            state.request = pool.take(part.size as usize, packets);
            if state.request.is_none() {
                self.counters.frames_accepted += 1;
                self.counters.refused_no_memory += 1;
                let text = "the server has no memory for the request";
                self.refuse(id, state, slot, Status::ResourceExhausted, text);
                return Err(Received::Nothing);
            }
        }
        Ok(())
    }

    /// Stores a packet of an arriving request, and runs the request if it is the last.
    #[expect(clippy::too_many_arguments, reason = "the parts of one packet, parsed")]
    fn store_part<'f, B: Buffer>(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
        part: Part,
        flags: Flags,
        packet_bytes: u32,
        payload: &'f [u8],
    ) -> Received<'f, B> {
        match state.arrived.insert(part.packet) {
            Insert::New => {}
            Insert::Duplicate => {
                self.counters.dropped_duplicate += 1;
                self.credit_due(id, slot, state, part.packet, flags.repeats());
                return Received::Nothing;
            }
            Insert::Beyond => {
                self.counters.dropped_beyond_window += 1;
                return Received::Nothing;
            }
        }
        self.counters.frames_accepted += 1;
        state.response_limit = state.response_limit.max(u32::from(part.grant));
        if state.request_packets == 1 {
            return self.run(id, state, payload);
        }
        self.credit_due(id, slot, state, part.packet, flags.repeats());
        if let Some(buffer) = &mut state.request {
            let (offset, len) = packet_span(part.packet, part.size, packet_bytes);
            buffer.storage_mut()[offset..offset + len].copy_from_slice(payload);
        }
        if state.arrived.cumulative() < state.request_packets {
            return Received::Nothing;
        }
        self.run_message(id, state)
    }

    /// RUNNING: the only places from which a handler is called, once for each request number.
    #[inline]
    fn run<'f, B>(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        payload: &'f [u8],
    ) -> Received<'f, B> {
        state.state = ServerState::Running;
        self.counters.requests_received += 1;
        let handle = RequestHandle { session: id, number: state.current };
        Received::Request { handle, method: state.method, payload }
    }

    fn run_message<'f, B>(&mut self, id: SessionId, state: &mut ServerSlot<B>) -> Received<'f, B> {
        let Some(message) = state.request.take() else {
            unreachable!("a request of several packets arrives in a buffer");
        };
        state.state = ServerState::Running;
        self.counters.requests_received += 1;
        let handle = RequestHandle { session: id, number: state.current };
        Received::Message { handle, method: state.method, message }
    }

    /// A packet of a request that is complete already: the client has not heard of it.
    #[cold]
    fn on_repeated_request<'f, B>(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        slot: usize,
        packet: u32,
        flags: Flags,
    ) -> Received<'f, B> {
        self.counters.dropped_duplicate += 1;
        let state = &mut server.slots[slot];
        match state.state {
            ServerState::Running => self.credit_due(id, slot, state, packet, flags.repeats()),
            // With a higher base the client has told that it has the first packets.
            ServerState::Answered if state.resend_from == 0 && state.response_sent > 0 => {
                state.resend.set(0);
                self.queue_server(id.index, slot, state);
            }
            _ => {}
        }
        Received::Nothing
    }

    /// Has a CREDIT sent after this burst.
    pub(super) fn credit_due<B>(
        &mut self,
        id: SessionId,
        slot: usize,
        state: &mut ServerSlot<B>,
        packet: u32,
        repeats: bool,
    ) {
        state.credit_due = true;
        state.echo = packet;
        state.echo_repeats = repeats;
        self.queue_server(id.index, slot, state);
    }

    #[cold]
    fn refuse_too_large<'f, B: Buffer>(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        slot: usize,
        header: Header,
        size: u32,
    ) -> Received<'f, B> {
        self.counters.refused_too_large += 1;
        let packets = packets_of(size, server.agreed.packet_bytes);
        let state = &mut server.slots[slot];
        state.begin(header.request, header.aux, size, packets);
        let text = "the request exceeds the agreed size";
        self.refuse(id, state, slot, Status::ResourceExhausted, text);
        Received::Nothing
    }

    /// Answers in place of the application.
    fn refuse<B>(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
        status: Status,
        text: &'static str,
    ) {
        state.set_answer(Answer::Fixed(status, text), 1);
        self.counters.responses_sent += 1;
        self.queue_server(id.index, slot, state);
    }

    #[cold]
    pub(super) fn malformed<'f, B>(&mut self) -> Received<'f, B> {
        self.counters.dropped_malformed += 1;
        Received::Nothing
    }

    #[cold]
    fn not_now<'f, B>(&mut self, age: Age) -> Received<'f, B> {
        match age {
            Age::Stale => self.counters.dropped_stale += 1,
            _ => self.counters.dropped_future += 1,
        }
        Received::Nothing
    }
}
