//! The way out: which frames to send next, and their bytes (`docs/wire-protocol.md` §4 to §6).
//!
//! The slots with something to send stand in a queue. Each in turn sends a train of frames straight
//! into the medium; its state changes only when the medium has taken a frame, so that a refused one
//! is as if it had never been made. Two other ways were tried before. A list of frames to be sent,
//! made first and handed over as a whole, cost some 500 instructions for a small call in copies of
//! itself. A queue of refused frames beside the slots was overtaken by new packets, and what came
//! out of order looked like loss: with a short transmit queue one lost packet led to thousands sent
//! again.

use super::{Core, Shared, Work};
use crate::bitmap::Words;
use crate::buffer::Buffer;
use crate::limits::{
    CONTROL_FRAME_BYTES_MAX, HEADER_BYTES, TRANSMIT_FRAMES_MAX, WINDOW_PACKETS, packet_span,
    packets_of,
};
use crate::session::client::{ClientSession, ClientState, NOT_TIMED};
use crate::session::server::{ServerSession, ServerSlot, ServerState};
use crate::session::{Agreed, PeerKey, Role, SessionId};
use crate::wire::{Credit, Destination, Flags, Kind, Part, Pull, header_bytes};

/// Packets that one slot may send before another gets its turn: long enough for the transport to
/// send them as one train, short enough not to hold up a small call.
const TRAIN_PACKETS: usize = 16;

/// Where frames go: the medium, or a test.
pub trait FrameSink {
    /// Takes a frame, `head` followed by `body`; false if the medium has no room for it now. After
    /// a refusal, frames to the same peer are refused until the next [`Core::transmit`].
    ///
    /// Both slices stay where they are and unchanged until the core's next method is called.
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool;
}

impl<F: FnMut(PeerKey, &[u8], &[u8]) -> bool> FrameSink for F {
    #[inline(always)]
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self(peer, head, body)
    }
}

/// What a slot did with its turn.
struct Turn {
    /// Frames that were sent.
    sent: usize,
    then: Then,
}

/// Whether a slot wants another turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Done,
    More,
    /// The medium refused its frame.
    Refused,
}

impl Turn {
    const NOTHING: Turn = Turn { sent: 0, then: Then::Done };

    /// After one frame: taken or not, and the slot's last or not.
    fn one(taken: bool, more: bool) -> Self {
        match (taken, more) {
            (false, _) => Turn { sent: 0, then: Then::Refused },
            (true, false) => Turn { sent: 1, then: Then::Done },
            (true, true) => Turn { sent: 1, then: Then::More },
        }
    }
}

/// The bytes of the latest control frames: as many as are kept until the medium has sent them.
pub(super) struct ControlFrames {
    frames: Box<[[u8; CONTROL_FRAME_BYTES_MAX]; TRANSMIT_FRAMES_MAX]>,
    next: usize,
}

impl ControlFrames {
    pub(super) fn new() -> Self {
        Self { frames: Box::new([[0; CONTROL_FRAME_BYTES_MAX]; TRANSMIT_FRAMES_MAX]), next: 0 }
    }

    fn put(&mut self, (bytes, len): ([u8; CONTROL_FRAME_BYTES_MAX], usize)) -> &[u8] {
        let place = self.next % TRANSMIT_FRAMES_MAX;
        self.next = place + 1;
        self.frames[place] = bytes;
        &self.frames[place][..len]
    }
}

impl<B: Buffer, T> Core<B, T> {
    /// Sends up to [`TRANSMIT_FRAMES_MAX`] frames into `sink`; gives how many it took. When it is
    /// that many there may be more.
    #[inline]
    pub fn transmit<S: FrameSink>(&mut self, now_ns: u64, sink: &mut S) -> usize {
        match self.shared.config.short_ways {
            true => self.transmit_by::<S, true>(now_ns, sink),
            false => self.transmit_by::<S, false>(now_ns, sink),
        }
    }

    #[inline]
    fn transmit_by<S: FrameSink, const SHORT_WAYS: bool>(
        &mut self,
        now_ns: u64,
        sink: &mut S,
    ) -> usize {
        let mut sent = 0;
        let mut refused = 0;
        while sent < TRANSMIT_FRAMES_MAX
            && let Some(work) = self.shared.work.pop()
        {
            if SHORT_WAYS && self.send_plain(now_ns, work, sink) {
                sent += 1;
                continue;
            }
            let budget = TRAIN_PACKETS.min(TRANSMIT_FRAMES_MAX - sent);
            let turn = self.take_turn(now_ns, work, budget, sink);
            sent += turn.sent;
            if turn.then == Then::Done {
                continue;
            }
            self.shared.work.push(work);
            refused = if turn.then == Then::Refused { refused + 1 } else { 0 };
            if refused >= self.shared.work.len() {
                break;
            }
        }
        self.shared.work.tidy();
        sent
    }

    #[inline(never)]
    fn take_turn<S: FrameSink>(
        &mut self,
        now_ns: u64,
        work: Work,
        budget: usize,
        sink: &mut S,
    ) -> Turn {
        let Some(entry) = self.sessions.entries.get_mut(work.session as usize) else {
            return Turn::NOTHING;
        };
        let id = SessionId { index: work.session, generation: entry.generation };
        let slot = work.slot as usize;
        let (shared, control) = (&mut self.shared, &mut self.control);
        match &mut entry.role {
            Role::Client(client) if work.of_client && slot < client.slots.len() => {
                let mut out = Out { now_ns, budget, control, sink };
                let turn = shared.turn_of_client(&mut out, id, client, slot);
                client.slots[slot].queued = turn.then != Then::Done;
                turn
            }
            Role::Server(server) if !work.of_client && slot < server.slots.len() => {
                let ServerSession { agreed, to, slots, .. } = server;
                let mut out = Out { now_ns, budget, control, sink };
                let state = &mut slots[slot];
                let turn = shared.turn_of_server(&mut out, state, agreed, *to);
                state.queued = turn.then != Then::Done;
                turn
            }
            // The session ended after the slot was queued.
            _ => Turn::NOTHING,
        }
    }
}

/// Where a slot sends in its turn, and how much.
struct Out<'a, S> {
    now_ns: u64,
    /// Frames that may be sent.
    budget: usize,
    control: &'a mut ControlFrames,
    sink: &'a mut S,
}

impl<B: Buffer> Shared<B> {
    #[inline]
    fn turn_of_client<T, S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) -> Turn {
        match client.slots[slot].state {
            ClientState::Free => Turn::NOTHING,
            ClientState::Sending => self.send_request(out, id, client, slot),
            ClientState::Waiting | ClientState::Receiving => self.pull(out, id, client, slot),
        }
    }

    /// Packets of the request: those that were lost, then new ones while there are credits.
    #[inline]
    fn send_request<T, S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) -> Turn {
        let Some(peer) = client.agreed.as_ref().map(|agreed| agreed.peer) else {
            return Turn::NOTHING;
        };
        let mut turn = self.send_run(out, client, slot, peer);
        while turn.sent < out.budget && turn.then != Then::Refused {
            turn.then = Then::Done;
            let Some((packet, repeats)) = next_request_packet(client, slot) else { break };
            let extra = match self.config.response_grants && !repeats {
                true => grant_with(client, slot, packet),
                false => 0,
            };
            if !write_request_packet(client, slot, peer, packet, repeats, extra, out.sink) {
                turn.then = Then::Refused;
                break;
            }
            turn.sent += 1;
            self.note_request_packet(out.now_ns, client, slot, packet, repeats, extra);
            let state = &client.slots[slot];
            if state.request_packets == 1 {
                break;
            }
            turn.then = Then::More;
        }
        if turn.sent > 0 {
            self.arm(out.now_ns, id, client, slot);
        }
        turn
    }

    /// New packets one after the other, up to the last but one, if none is to be sent again: what
    /// they have in common is worked out once, and they are counted together.
    fn send_run<T, S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        client: &mut ClientSession<B, T>,
        slot: usize,
        peer: PeerKey,
    ) -> Turn {
        let state = &mut client.slots[slot];
        let first = state.request_sent;
        let is_short = self.config.short_ways && first + 1 < state.request_packets;
        let (Some(request), true) = (&mut state.request, is_short) else { return Turn::NOTHING };
        let parts = state.parts.get_or_insert_with(|| self.client_parts.take());
        if !parts.lost.is_empty() {
            return Turn::NOTHING;
        }
        let allowed = client.credits.min(out.budget as u32);
        let window_end = parts.acknowledged.cumulative() + WINDOW_PACKETS;
        let end = (first + allowed).min(window_end).min(state.request_packets - 1);
        let (size, packet_bytes) = (request.len() as u32, client.packet_bytes as usize);
        let header = client.to.words(Kind::RequestPart, Flags::NONE, state.method, state.number);
        let (mut packet, mut offset) = (first, first as usize * packet_bytes);
        while packet < end {
            let part = Part { size, packet, grant: 1 };
            let (head, body) = request.part(packet, part.words(header), offset, packet_bytes);
            if !out.sink.send(peer, head, body) {
                break;
            }
            packet += 1;
            offset += packet_bytes;
        }
        let sent = packet - first;
        parts.order.note_new(first..packet);
        state.request_sent = packet;
        state.held += sent;
        client.credits -= sent;
        if sent > 0 && state.timed_packet == NOT_TIMED {
            state.timed_packet = first;
            state.timed_ns = out.now_ns;
        }
        self.counters.packets_sent += u64::from(sent);
        let then = if packet < end { Then::Refused } else { Then::More };
        Turn { sent: sent as usize, then }
    }

    /// A packet of the request was taken by the medium.
    #[inline]
    fn note_request_packet<T>(
        &mut self,
        now_ns: u64,
        client: &mut ClientSession<B, T>,
        slot: usize,
        packet: u32,
        repeats: bool,
        extra: u32,
    ) {
        let state = &mut client.slots[slot];
        if repeats {
            state.repeated = true;
            self.counters.packets_retransmitted += 1;
        } else {
            self.counters.packets_sent += 1;
            state.is_plain = false;
            state.request_sent += 1;
            state.held += 1 + extra;
            client.credits -= 1 + extra;
            if packet + 1 == state.request_packets {
                state.grant = extra as u8 + 1;
                state.response_limit = extra + 1;
            }
            if state.timed_packet == NOT_TIMED {
                state.timed_packet = packet;
                state.timed_ns = now_ns;
            }
        }
        if state.request_packets > 1 || repeats {
            let parts = state.parts(&mut self.client_parts);
            parts.lost.clear(packet);
            if repeats {
                parts.order.note_repeat(packet);
            } else {
                parts.order.note_new(packet..packet + 1);
            }
        }
    }

    /// A PULL, if it allows a further packet or is due for another reason.
    fn pull<T, S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) -> Turn {
        let allowed = allow_more(client, slot);
        let (to, peer) = (client.to, client.agreed.as_ref().map(|agreed| agreed.peer));
        let state = &mut client.slots[slot];
        // What a PULL allowed that is refused now is said by the next.
        state.pull_due |= allowed > 0;
        let (true, Some(peer)) = (state.pull_due, peer) else { return Turn::NOTHING };
        let is_receiving = state.state == ClientState::Receiving;
        let parts = state.parts.as_deref();
        let (cumulative, bitmap) = match parts {
            Some(parts) if is_receiving => (parts.received.cumulative(), *parts.received.words()),
            _ => (0, Words::default()),
        };
        let resend_below = parts.map_or(0, |parts| parts.resend_below);
        let pull = Pull { cumulative, limit: state.response_limit, resend_below, bitmap };
        let flags = if allowed == 0 { Flags::REPEATS } else { Flags::NONE };
        let header = to.words(Kind::Pull, flags, 0, state.number);
        if !out.sink.send(peer, out.control.put(pull.encode(header)), &[]) {
            return Turn::one(false, false);
        }
        state.pull_due = false;
        if let Some(parts) = &mut state.parts {
            parts.resend_below = 0;
        }
        self.counters.control_frames_sent += 1;
        self.arm(out.now_ns, id, client, slot);
        Turn::one(true, false)
    }

    #[inline]
    fn turn_of_server<S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        state: &mut ServerSlot<B>,
        agreed: &Agreed,
        to: Destination,
    ) -> Turn {
        match state.state {
            ServerState::Idle => Turn::NOTHING,
            ServerState::Arriving | ServerState::Running => {
                self.send_credit(out, state, agreed, to)
            }
            ServerState::Answered => self.send_answer(out, state, agreed, to),
        }
    }

    fn send_credit<S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        state: &mut ServerSlot<B>,
        agreed: &Agreed,
        to: Destination,
    ) -> Turn {
        if !state.credit_due {
            return Turn::NOTHING;
        }
        let (cumulative, bitmap) = match (state.state, &state.parts) {
            (ServerState::Arriving, Some(parts)) => {
                (parts.arrived.cumulative(), *parts.arrived.words())
            }
            _ => (state.request_packets, Words::default()),
        };
        let credit = Credit { cumulative, echo: state.echo, bitmap };
        // Tells which copy of the packet has arrived (§5.2).
        let flags = if state.echo_repeats { Flags::REPEATS } else { Flags::NONE };
        let header = to.words(Kind::Credit, flags, 0, state.current);
        let taken = out.sink.send(agreed.peer, out.control.put(credit.encode(header)), &[]);
        if taken {
            state.credit_due = false;
            self.counters.control_frames_sent += 1;
        }
        Turn::one(taken, false)
    }

    /// Packets of the answer: those to repeat, then the next ones that are allowed.
    #[inline]
    fn send_answer<S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        state: &mut ServerSlot<B>,
        agreed: &Agreed,
        to: Destination,
    ) -> Turn {
        let end = state.response_limit.min(state.response_packets);
        let mut turn = Turn::NOTHING;
        while turn.sent < out.budget {
            turn.then = Then::Done;
            let repeated = state.first_to_resend();
            if repeated.is_none() && state.response_sent >= end {
                break;
            }
            let packet = repeated.unwrap_or(state.response_sent);
            let flags = if repeated.is_some() { Flags::REPEATS } else { Flags::NONE };
            if !write_answer_packet(state, agreed, to, packet, flags, out) {
                turn.then = Then::Refused;
                break;
            }
            turn.sent += 1;
            if repeated.is_some() {
                state.parts(&mut self.server_parts).resend.clear(packet);
                self.counters.packets_retransmitted += 1;
            } else {
                state.is_plain = false;
                state.response_sent += 1;
                self.counters.packets_sent += 1;
            }
            if state.response_packets == 1 {
                break;
            }
            turn.then = Then::More;
        }
        turn
    }
}

/// Which packet of the request goes next, and whether it was sent before: one that was lost, or a
/// new one if the window and the credits allow.
#[inline]
fn next_request_packet<B, T>(client: &mut ClientSession<B, T>, slot: usize) -> Option<(u32, bool)> {
    let state = &client.slots[slot];
    if let Some(packet) = state.first_lost() {
        return Some((packet, true));
    }
    let packet = state.request_sent;
    if packet == state.request_packets || packet >= state.acknowledged_below() + WINDOW_PACKETS {
        return None;
    }
    if client.credits == 0 {
        client.stalled_slots |= 1 << slot;
        return None;
    }
    Some((packet, false))
}

/// Response packets beyond the first that the last packet of a request allows.
#[inline]
fn grant_with<B: Buffer, T>(client: &ClientSession<B, T>, slot: usize, packet: u32) -> u32 {
    let state = &client.slots[slot];
    let capacity = state.response.as_ref().map_or(0, Buffer::capacity);
    if capacity <= client.packet_bytes as usize || packet + 1 != state.request_packets {
        return 0;
    }
    let wanted = packets_of(capacity.min(u32::MAX as usize) as u32, client.packet_bytes) - 1;
    // Half of what is free: the caller's buffer may be far larger than the response, and other
    // calls should not have to wait for credits that nobody uses.
    wanted.min((client.credits - 1) / 2).min(u32::from(u8::MAX) - 1)
}

/// Writes a packet's header and sends the packet; false if the medium refused it.
#[inline]
fn write_request_packet<B: Buffer, T, S: FrameSink>(
    client: &mut ClientSession<B, T>,
    slot: usize,
    peer: PeerKey,
    packet: u32,
    repeats: bool,
    extra: u32,
    sink: &mut S,
) -> bool {
    let (to, packet_bytes) = (client.to, client.packet_bytes);
    let state = &mut client.slots[slot];
    let Some(request) = &mut state.request else {
        unreachable!("a slot in use holds its request");
    };
    let flags = if repeats { Flags::REPEATS } else { Flags::NONE };
    // The last packet carries the grant.
    let grant = match packet + 1 == state.request_packets {
        true if repeats => state.grant,
        true => extra as u8 + 1,
        false => 1,
    };
    if state.request_packets == 1 && grant == 1 {
        let header = to.words(Kind::Request, flags, state.method, state.number);
        return sink.send(peer, request.frame(header), &[]);
    }
    let header = to.words(Kind::RequestPart, flags, state.method, state.number);
    send_part(request, header, packet, grant, packet_bytes, peer, sink)
}

#[inline]
fn write_answer_packet<B: Buffer, S: FrameSink>(
    state: &mut ServerSlot<B>,
    agreed: &Agreed,
    to: Destination,
    packet: u32,
    flags: Flags,
    out: &mut Out<'_, S>,
) -> bool {
    let aux = u16::from(state.status.code());
    let Some(message) = &mut state.message else {
        return send_refusal(state, agreed, to, flags, out);
    };
    if state.response_packets == 1 {
        let header = to.words(Kind::Response, flags, aux, state.current);
        return out.sink.send(agreed.peer, message.frame(header), &[]);
    }
    let header = to.words(Kind::ResponsePart, flags, aux, state.current);
    send_part(message, header, packet, 0, agreed.packet_bytes, agreed.peer, out.sink)
}

fn send_part<B: Buffer, S: FrameSink>(
    message: &mut B,
    header: [u64; 2],
    packet: u32,
    grant: u8,
    packet_bytes: u32,
    peer: PeerKey,
    sink: &mut S,
) -> bool {
    let size = message.len() as u32;
    let header = Part { size, packet, grant }.words(header);
    let (offset, len) = packet_span(packet, size, packet_bytes);
    let (head, body) = message.part(packet, header, offset, len);
    sink.send(peer, head, body)
}

/// A RESPONSE with an error of the core; a text too long for a control frame is cut.
#[cold]
fn send_refusal<B, S: FrameSink>(
    state: &ServerSlot<B>,
    agreed: &Agreed,
    to: Destination,
    flags: Flags,
    out: &mut Out<'_, S>,
) -> bool {
    let text = state.parts.as_ref().and_then(|parts| parts.refusal).unwrap_or_default();
    let aux = u16::from(state.status.code());
    let len = text.len().min(CONTROL_FRAME_BYTES_MAX - HEADER_BYTES);
    let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
    let header = to.words(Kind::Response, flags, aux, state.current);
    bytes[..HEADER_BYTES].copy_from_slice(&header_bytes::<2, HEADER_BYTES>(header));
    bytes[HEADER_BYTES..HEADER_BYTES + len].copy_from_slice(&text.as_bytes()[..len]);
    out.sink.send(agreed.peer, out.control.put((bytes, HEADER_BYTES + len)), &[])
}

/// Allows further packets of a response, as credits and the window permit; gives how many.
fn allow_more<B, T>(client: &mut ClientSession<B, T>, slot: usize) -> u32 {
    let state = &mut client.slots[slot];
    let (ClientState::Receiving, Some(parts)) = (state.state, &state.parts) else { return 0 };
    let window_end = parts.received.cumulative() + WINDOW_PACKETS;
    let wanted = parts.response_packets.min(window_end).saturating_sub(state.response_limit);
    let allowed = wanted.min(client.credits);
    if allowed < wanted {
        client.stalled_slots |= 1 << slot;
    }
    state.response_limit += allowed;
    state.held += allowed;
    client.credits -= allowed;
    allowed
}
