//! The server's handling of requests (`docs/wire-protocol.md` §6.2).

use super::expiry::deadline_ns;
use super::{Core, Received, Recovery, RequestHandle, Shared};
use crate::bitmap::Insert;
use crate::buffer::{Buffer, BufferPool};
use crate::limits::{
    KEPT_ANSWER_BYTES_MAX, PACKET_OVERHEAD_BYTES, PART_HEADER_BYTES, packet_span, packets_of,
};
use crate::session::backlog::NEVER;
use crate::session::held::{Holder, Shortage};
use crate::session::server::{Age, ServerSession, ServerSlot, ServerState};
use crate::session::{PeerKey, Role, SessionId};
use crate::status::Status;
use crate::wire::{
    ANSWERED_LATER, Flags, Header, Kind, Part, REFUSED, first_bits, part_words, read_extensions,
};

impl<B: Buffer, T> Core<B, T> {
    /// Accepts a frame if it is the expected next packet of an arriving request, neither its last nor the
    /// first of a burst: most packets of a large request without loss. Returns false for any other frame,
    /// which the caller passes to [`Core::handle_frame`].
    ///
    /// The method has the effect of `handle_frame`, with fewer checks:
    ///
    /// 1. All of the frame except the payload is known in advance, and compared word by word.
    /// 2. A slot already in the transmit queue need not be queued to send a CREDIT.
    /// 3. The copy comes last, when no other values need to stay in registers.
    #[inline(never)]
    pub fn handle_next_part(&mut self, peer: PeerKey, frame: &[u8]) -> bool {
        let Some((head, payload)) = frame.split_first_chunk::<PART_HEADER_BYTES>() else {
            return false;
        };
        match self.next_part_place(peer, head, payload.len()) {
            Some(place) => {
                place.copy_from_slice(payload);
                true
            }
            None => false,
        }
    }

    /// Like [`Core::handle_next_part`], but the caller copies the payload to the returned place; everything
    /// else is done. `head` are the frame's first bytes, which must not change.
    #[inline(always)]
    pub fn next_part_place(
        &mut self,
        peer: PeerKey,
        head: &[u8; PART_HEADER_BYTES],
        payload_bytes: usize,
    ) -> Option<&mut [u8]> {
        let [first, second, third] = part_words(head);
        if first as u32 & 0xFFF != first_bits(Kind::RequestPart) {
            return None;
        }
        let session = (first >> 12) as u32 & 0xF_FFFF;
        let entry = self.sessions.at_mut(session)?;
        if !entry.is_from((first >> 32) as u32, peer) {
            return None;
        }
        let Role::Server(server) = entry.role_mut() else { return None };
        let slot = server.slot_index(second >> 16);
        let is_full = payload_bytes == server.agreed().packet_bytes as usize;
        let state = server.slots_mut().get_mut(slot)?;
        if !is_full || state.current() != second >> 16 || !state.is_queued() {
            return None;
        }
        let place = state.take_next(third, payload_bytes)?;
        self.shared.counters.frames_accepted += 1;
        Some(place)
    }
}

/// A parsed packet of a request.
struct Packet<'f> {
    now_ns: u64,
    part: Part,
    flags: Flags,
    /// The deadline carried by the packet, or [`NEVER`].
    deadline_ns: u64,
    payload: &'f [u8],
}

impl<B: Buffer> Shared<B> {
    /// Handles a request of one packet.
    pub(super) fn on_request<'f, T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        server: &mut ServerSession<B>,
        header: Header,
        rest: &'f [u8],
    ) -> Received<'f, B, T> {
        let packet_bytes = server.agreed().packet_bytes;
        let (extensions, payload) = match read_extensions(header.flags, rest) {
            Ok((extensions, payload)) if payload.len() <= packet_bytes as usize => {
                (extensions, payload)
            }
            _ => return self.malformed(),
        };
        let slot = server.slot_index(header.request);
        match server.age(slot, header.request) {
            Age::New => {}
            Age::Current => return self.on_repeated_request(id, server, slot, 0, header.flags),
            count_stale_or_future => return self.count_stale_or_future(count_stale_or_future),
        }
        self.counters.frames_accepted += 1;
        server.make_ready(slot);
        if payload.len() > server.request_bytes_max() as usize {
            return self.refuse_too_large(id, server, slot, header, payload.len() as u32);
        }
        let state = server.slot_mut(slot);
        self.begin(id, state, header, payload.len() as u32, 1);
        let part = Part { size: payload.len() as u32, packet: 0, grant: 1 };
        let deadline_ns = deadline_ns(now_ns, extensions);
        let packet = Packet { now_ns, part, flags: header.flags, deadline_ns, payload };
        self.run(id, state, slot, packet_bytes, &packet)
    }

    /// Begins a new request, and frees the slot's former content.
    #[inline]
    fn begin(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        header: Header,
        size: u32,
        packets: u32,
    ) {
        self.note_superseded(id, state);
        self.release_holding(state);
        state.begin(header.request, header.aux, size, packets, &mut self.server_parts);
        state.note_mark(header.flags);
    }

    /// Handles a packet of a request.
    pub(super) fn on_request_part<'f, T, P: BufferPool<Buffer = B>>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        server: &mut ServerSession<B>,
        header: Header,
        rest: &'f [u8],
        pool: &mut P,
    ) -> Received<'f, B, T> {
        let Ok((part, extensions, payload)) = Part::parse(header.flags, rest) else {
            return self.malformed();
        };
        let packet_bytes = server.agreed().packet_bytes;
        let packets = packets_of(part.size, packet_bytes);
        if part.grant == 0
            || part.packet >= packets
            || payload.len() != packet_span(part.packet, part.size, packet_bytes).1
        {
            return self.malformed();
        }
        let deadline_ns = if part.packet == 0 { deadline_ns(now_ns, extensions) } else { NEVER };
        let packet = Packet { now_ns, part, flags: header.flags, deadline_ns, payload };
        let slot = server.slot_index(header.request);
        match server.age(slot, header.request) {
            Age::New => {
                if let Err(refused) = self.begin_parts(id, server, slot, header, part, pool) {
                    return refused;
                }
                if packets == 1 {
                    // A whole request, sent in this form to carry a grant.
                    self.counters.frames_accepted += 1;
                    return self.run(id, server.slot_mut(slot), slot, packet_bytes, &packet);
                }
            }
            Age::Current => {}
            count_stale_or_future => return self.count_stale_or_future(count_stale_or_future),
        }
        let state = server.slot_mut(slot);
        // The size of a request cancelled before its first packet is unknown.
        if part.size != state.request_size() && !state.is_given_up() {
            return self.malformed();
        }
        state.note_mark(header.flags);
        if state.state() != ServerState::Arriving {
            return self.on_repeated_request(id, server, slot, part.packet, header.flags);
        }
        self.store_part(id, state, slot, packet_bytes, &packet)
    }

    /// Begins a new request with any of its packets.
    pub(super) fn begin_parts<'f, T, P: BufferPool<Buffer = B>>(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        slot: usize,
        header: Header,
        part: Part,
        pool: &mut P,
    ) -> Result<(), Received<'f, B, T>> {
        server.make_ready(slot);
        if part.size > server.request_bytes_max() {
            self.counters.frames_accepted += 1;
            return Err(self.refuse_too_large(id, server, slot, header, part.size));
        }
        let packets = packets_of(part.size, server.agreed().packet_bytes);
        let holder = Holder { session: id, slot, peer: server.peer() };
        let state = server.slot_mut(slot);
        if packets == 1 {
            self.begin(id, state, header, part.size, packets);
            state.grant(part.grant);
            return Ok(());
        }
        // Frees the slot's former content before taking a buffer.
        self.release_holding(state);
        state.empty();
        let bytes = u64::from(part.size) + u64::from(packets) * PACKET_OVERHEAD_BYTES as u64;
        let request = match self.held.check(holder, bytes) {
            Ok(()) => pool.take(part.size as usize, packets).ok_or(Shortage::All),
            Err(shortage) => Err(shortage),
        };
        if let Err(shortage) = request
            && self.ask_for_room(shortage, bytes)
        {
            return Err(Received::Nothing);
        }
        let state = server.slot_mut(slot);
        self.begin(id, state, header, part.size, packets);
        let request = match request {
            Ok(request) => request,
            Err(shortage) => {
                self.counters.frames_accepted += 1;
                let text = self.note_refused(shortage);
                self.refuse(id, state, slot, Status::ResourceExhausted, text);
                return Err(Received::Nothing);
            }
        };
        let bytes = request.memory_bytes() as u64;
        state.begin_buffer(request, &mut self.server_parts);
        self.hold_request(holder, state, bytes);
        Ok(())
    }

    /// Stores a packet of an arriving request, and runs the request with the last packet.
    fn store_part<'f, T>(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
        packet_bytes: u32,
        packet: &Packet<'f>,
    ) -> Received<'f, B, T> {
        let go_back_n = self.config.recovery == Recovery::GoBackN;
        let Packet { now_ns, part, flags, deadline_ns, payload } = *packet;
        if go_back_n && part.packet > state.arrived_below() {
            self.counters.dropped_out_of_order += 1;
            return Received::Nothing;
        }
        let deadline_ns = state.note_deadline(deadline_ns);
        match state.arrive(part.packet) {
            Insert::New => {}
            Insert::Duplicate => {
                self.counters.dropped_duplicate += 1;
                self.credit_due(id.index, slot, state, part.packet, flags.repeats());
                return Received::Nothing;
            }
            Insert::Beyond => {
                self.counters.dropped_beyond_window += 1;
                return Received::Nothing;
            }
        }
        self.counters.frames_accepted += 1;
        self.held.touch(state.holding());
        if deadline_ns <= self.latest_ns(now_ns) {
            return self.refuse_expired(id, state, slot);
        }
        if let Some(buffer) = state.arriving_request_mut() {
            let (offset, len) = packet_span(part.packet, part.size, packet_bytes);
            buffer.storage_mut()[offset..offset + len].copy_from_slice(payload);
        }
        let is_whole = state.is_whole();
        state.grant(part.grant);
        self.credit_due(id.index, slot, state, part.packet, flags.repeats());
        if is_whole { self.run_message(id, state) } else { Received::Nothing }
    }

    /// Starts RUNNING. Handlers are called only for the results of `run` and `run_message`, once for each
    /// request number.
    fn run<'f, T>(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
        packet_bytes: u32,
        packet: &Packet<'f>,
    ) -> Received<'f, B, T> {
        let Packet { now_ns, deadline_ns, payload, .. } = *packet;
        if deadline_ns <= self.latest_ns(now_ns) {
            return self.refuse_expired(id, state, slot);
        }
        state.run();
        self.counters.requests_received += 1;
        let handle = RequestHandle { session: id, number: state.current() };
        // A larger buffer is freed at once: its memory is worth more than the saved time.
        let kept_answer_bytes_max = packet_bytes.min(KEPT_ANSWER_BYTES_MAX) as usize;
        let fits = |spare: &B| spare.capacity() <= kept_answer_bytes_max;
        let spare = state.take_message().filter(fits);
        let deadline_ns = (deadline_ns != NEVER).then_some(deadline_ns);
        Received::Request { handle, method: state.method(), payload, spare, deadline_ns }
    }

    fn run_message<'f, T>(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
    ) -> Received<'f, B, T> {
        self.release_holding(state);
        let (message, deadline_ns) = state.run_message(&mut self.server_parts);
        self.counters.requests_received += 1;
        let handle = RequestHandle { session: id, number: state.current() };
        let deadline_ns = (deadline_ns != NEVER).then_some(deadline_ns);
        Received::Message { handle, method: state.method(), message, deadline_ns }
    }

    /// Handles a packet of a complete or answered request: the client may lack the acknowledgement or the
    /// answer.
    #[cold]
    pub(super) fn on_repeated_request<'f, T>(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        slot: usize,
        packet: u32,
        flags: Flags,
    ) -> Received<'f, B, T> {
        self.counters.dropped_duplicate += 1;
        let state = server.slot_mut(slot);
        match state.state() {
            ServerState::Running => {
                state.note_mark(flags);
                state.note_asked();
                self.credit_due(id.index, slot, state, packet, flags.repeats());
            }
            ServerState::Answered if state.is_answer_gone() => {
                self.report_answer_gone(id, state, slot);
            }
            // Packets without flag R were in flight when the request was answered, for instance those of a
            // long refused request.
            ServerState::Answered if state.response_sent() > 0 && flags.repeats() => {
                self.held.touch(state.holding());
                if state.repeat_first(&mut self.server_parts) {
                    self.queue_server(id.index, slot, state);
                }
            }
            _ => {}
        }
        Received::Nothing
    }

    /// Requests a CREDIT after this burst.
    #[inline]
    pub(super) fn credit_due(
        &mut self,
        session: u32,
        slot: usize,
        state: &mut ServerSlot<B>,
        packet: u32,
        repeats: bool,
    ) {
        state.note_packet(packet, repeats);
        self.queue_server(session, slot, state);
    }

    #[cold]
    fn refuse_too_large<'f, T>(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        slot: usize,
        header: Header,
        size: u32,
    ) -> Received<'f, B, T> {
        self.counters.refused_too_large += 1;
        let packets = packets_of(size, server.agreed().packet_bytes);
        let state = server.slot_mut(slot);
        self.begin(id, state, header, size, packets);
        let text = "the request exceeds the agreed size";
        self.refuse(id, state, slot, Status::ResourceExhausted, text);
        Received::Nothing
    }

    /// Refuses a request whose deadline passed before the handler could be called.
    #[cold]
    pub(super) fn refuse_expired<'f, T>(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
    ) -> Received<'f, B, T> {
        assert!(
            state.state() == ServerState::Arriving,
            "a deadline refuses a request whose handler was not called"
        );
        self.counters.requests_expired += 1;
        let text = "too late: the deadline was over on arrival";
        self.release_holding(state);
        state.drop_request();
        self.refuse(id, state, slot, Status::DeadlineExceeded, text);
        Received::Nothing
    }

    /// Answers with an error, marked as refused: the handler was not called.
    pub(super) fn refuse(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
        status: Status,
        text: &'static str,
    ) {
        self.answer_by_text(id, state, slot, status, REFUSED, text);
    }

    /// Answers with an error that needs no buffer, and with these aux bits beside the status.
    pub(super) fn answer_by_text(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
        status: Status,
        bits: u16,
        text: &'static str,
    ) {
        // Marked as answered later even if immediate: the round trip of an error is not needed.
        let bits = bits | ANSWERED_LATER;
        state.set_error_answer(status, bits, text, &mut self.server_parts);
        self.counters.responses_sent += 1;
        self.queue_server(id.index, slot, state);
    }

    #[cold]
    pub(super) fn malformed<'f, T>(&mut self) -> Received<'f, B, T> {
        self.counters.dropped_malformed += 1;
        Received::Nothing
    }

    #[cold]
    pub(super) fn count_stale_or_future<'f, T>(&mut self, age: Age) -> Received<'f, B, T> {
        match age {
            Age::Stale => self.counters.dropped_stale += 1,
            _ => self.counters.dropped_future += 1,
        }
        Received::Nothing
    }
}
