//! The way out: which frames to send next, and their bytes (`docs/wire-protocol.md` §4 to §6).

use super::{Core, Shared, Work};
use crate::bitmap::Words;
use crate::buffer::Buffer;
use crate::limits::{
    CONTROL_FRAME_BYTES_MAX, HEADER_BYTES, PART_HEADER_BYTES, WINDOW_PACKETS, packet_span,
    packets_of,
};
use crate::session::client::{ClientSession, ClientSlot, ClientState, NOT_TIMED};
use crate::session::server::{Answer, ServerSession, ServerSlot, ServerState};
use crate::session::{Agreed, PeerKey, Role, SessionId};
use crate::status::Status;
use crate::wire::{Credit, Flags, Header, Kind, Part, Pull};

/// Packets that one slot may send before another gets its turn: long enough for the transport to
/// send them as one train, short enough not to hold up a small call.
const TRAIN_PACKETS: u8 = 16;

/// Control frames that are kept: as many as an owner may poll before it asks for the bytes.
const CONTROL_FRAMES: usize = 64;

/// A frame to send. [`Core::frame`] gives its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub peer: PeerKey,
    pub(super) session: SessionId,
    pub(super) number: u64,
    pub(super) packet: u32,
    pub(super) slot: u8,
    header_len: u8,
    /// Whether the packet was sent before.
    pub(super) repeats: bool,
    pub(super) source: Source,
}

/// Whose bytes a frame consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Request,
    Response,
    /// A control frame, in this place of [`ControlFrames`].
    Control(u8),
}

/// What a slot has to send.
enum Step {
    Nothing,
    Last(Transmit),
    More(Transmit),
}

impl Step {
    fn of(transmit: Transmit, more: bool) -> Self {
        if more { Step::More(transmit) } else { Step::Last(transmit) }
    }
}

/// The bytes of the latest control frames.
pub(super) struct ControlFrames {
    frames: Box<[([u8; CONTROL_FRAME_BYTES_MAX], usize); CONTROL_FRAMES]>,
    next: usize,
}

impl ControlFrames {
    pub(super) fn new() -> Self {
        Self { frames: Box::new([([0; CONTROL_FRAME_BYTES_MAX], 0); CONTROL_FRAMES]), next: 0 }
    }

    fn put(&mut self, frame: ([u8; CONTROL_FRAME_BYTES_MAX], usize)) -> u8 {
        let place = self.next;
        self.frames[place] = frame;
        self.next = (place + 1) % CONTROL_FRAMES;
        place as u8
    }

    pub(super) fn bytes(&self, place: u8) -> &[u8] {
        let (bytes, len) = &self.frames[place as usize];
        &bytes[..*len]
    }
}

impl<B: Buffer> Core<B> {
    /// The next frame to send, or `None` when there is nothing to send now.
    ///
    /// At most 64 frames may be polled before their bytes are taken by [`Core::frame`], and no
    /// other method may come in between.
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<Transmit> {
        while let Some(&work) = self.shared.work.front() {
            match self.step(now_ns, work) {
                Step::More(transmit) => {
                    self.train += 1;
                    if self.train >= TRAIN_PACKETS {
                        self.train = 0;
                        self.shared.work.rotate_left(1);
                    }
                    return Some(transmit);
                }
                Step::Last(transmit) => {
                    self.pop_work();
                    return Some(transmit);
                }
                Step::Nothing => self.pop_work(),
            }
        }
        None
    }

    /// The bytes of a polled frame, in two parts; `None` if its buffer has gone since, which
    /// cannot be when the rules of [`Core::poll_transmit`] are kept.
    #[inline]
    pub fn frame(&self, transmit: &Transmit) -> Option<(&[u8], &[u8])> {
        if let Source::Control(place) = transmit.source {
            return Some((self.control.bytes(place), &[]));
        }
        let slot = transmit.slot as usize;
        let (buffer, packet_bytes) = match &self.sessions.get(transmit.session)?.role {
            Role::Client(client) => {
                (client.slots[slot].request.as_ref()?, client.agreed.as_ref()?.packet_bytes)
            }
            Role::Server(server) => match &server.slots[slot].answer {
                Answer::Message(_, message) => (message, server.agreed.packet_bytes),
                _ => return None,
            },
            Role::Free => return None,
        };
        let (offset, len) = packet_span(transmit.packet, buffer.len() as u32, packet_bytes);
        Some(buffer.packet(transmit.packet, transmit.header_len.into(), offset, len))
    }

    fn pop_work(&mut self) {
        self.train = 0;
        self.shared.work.pop_front();
    }

    #[inline]
    fn step(&mut self, now_ns: u64, work: Work) -> Step {
        let Some(entry) = self.sessions.entries.get_mut(work.session as usize) else {
            return Step::Nothing;
        };
        let id = SessionId { index: work.session, generation: entry.generation };
        let slot = work.slot as usize;
        match &mut entry.role {
            Role::Client(client) if work.of_client && slot < client.slots.len() => {
                client.slots[slot].queued = false;
                let step = self.shared.step_client(now_ns, id, client, slot, &mut self.control);
                client.slots[slot].queued |= matches!(step, Step::More(_));
                step
            }
            Role::Server(server) if !work.of_client && slot < server.slots.len() => {
                let step = self.shared.step_server(id, server, slot, &mut self.control);
                server.slots[slot].queued = matches!(step, Step::More(_));
                step
            }
            // The session ended after the slot was queued.
            _ => Step::Nothing,
        }
    }
}

impl Shared {
    #[inline]
    fn step_client<B: Buffer>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B>,
        slot: usize,
        control: &mut ControlFrames,
    ) -> Step {
        let Some(agreed) = client.agreed else { return Step::Nothing };
        match client.slots[slot].state {
            ClientState::Free => Step::Nothing,
            ClientState::Sending => self.step_sending(now_ns, id, client, slot, &agreed),
            ClientState::Waiting | ClientState::Receiving => {
                self.step_pulling(now_ns, id, client, slot, &agreed, control)
            }
        }
    }

    /// A packet of the request: one that was lost, or the next new one if there is a credit.
    #[inline]
    fn step_sending<B: Buffer>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B>,
        slot: usize,
        agreed: &Agreed,
    ) -> Step {
        let state = &mut client.slots[slot];
        let base = state.acknowledged.cumulative();
        let (packet, flags) = match state.lost.first_from(base) {
            Some(packet) => {
                state.lost.clear(packet);
                state.repeated = true;
                self.counters.packets_retransmitted += 1;
                (packet, Flags::REPEATS)
            }
            None if state.request_sent == state.request_packets => return Step::Nothing,
            None if state.request_sent >= base + WINDOW_PACKETS => return Step::Nothing,
            None if client.credits == 0 => {
                client.stalled_slots |= 1 << slot;
                return Step::Nothing;
            }
            None => {
                let packet = take_new_packet(now_ns, client, slot, agreed);
                self.counters.packets_sent += 1;
                (packet, Flags::NONE)
            }
        };
        let state = &mut client.slots[slot];
        if let Some(order) = &mut state.order {
            order.note(packet, flags.repeats());
        }
        let header_len = write_request_header(state, agreed, packet, flags);
        let more = state.request_sent < state.request_packets || !state.lost.is_empty();
        let number = state.number;
        self.arm(now_ns, id, client, slot);
        let transmit = Transmit {
            peer: agreed.peer,
            session: id,
            number,
            packet,
            slot: slot as u8,
            header_len,
            repeats: flags.repeats(),
            source: Source::Request,
        };
        Step::of(transmit, more)
    }

    /// A PULL, if it allows a further packet or is due for another reason.
    fn step_pulling<B>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B>,
        slot: usize,
        agreed: &Agreed,
        control: &mut ControlFrames,
    ) -> Step {
        let allowed = allow_more(client, slot);
        let state = &mut client.slots[slot];
        if allowed == 0 && !state.pull_due {
            return Step::Nothing;
        }
        let (cumulative, bitmap) = match state.state {
            ClientState::Receiving => (state.received.cumulative(), *state.received.words()),
            _ => (0, Words::default()),
        };
        let pull = Pull {
            cumulative,
            limit: state.response_limit,
            resend_below: std::mem::take(&mut state.resend_below),
            bitmap,
        };
        state.pull_due = false;
        let flags = if allowed == 0 { Flags::REPEATS } else { Flags::NONE };
        let header = request_header(state.number, agreed, Kind::Pull, flags, 0);
        let place = control.put(pull.encode(&header));
        let number = state.number;
        self.counters.control_frames_sent += 1;
        self.arm(now_ns, id, client, slot);
        Step::Last(Transmit {
            peer: agreed.peer,
            session: id,
            number,
            packet: 0,
            slot: slot as u8,
            header_len: 0,
            repeats: false,
            source: Source::Control(place),
        })
    }

    #[inline]
    fn step_server<B: Buffer>(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        slot: usize,
        control: &mut ControlFrames,
    ) -> Step {
        let ServerSession { agreed, slots, .. } = server;
        let state = &mut slots[slot];
        match state.state {
            ServerState::Idle => Step::Nothing,
            ServerState::Arriving | ServerState::Running => {
                self.step_credit(id, state, slot, agreed, control)
            }
            ServerState::Answered => self.step_answer(id, state, slot, agreed, control),
        }
    }

    fn step_credit<B>(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
        agreed: &Agreed,
        control: &mut ControlFrames,
    ) -> Step {
        if !std::mem::take(&mut state.credit_due) {
            return Step::Nothing;
        }
        let (cumulative, bitmap) = match state.state {
            ServerState::Running => (state.request_packets, Words::default()),
            _ => (state.arrived.cumulative(), *state.arrived.words()),
        };
        let credit = Credit { cumulative, echo: state.echo, bitmap };
        // Tells which copy of the packet has arrived (§5.2).
        let flags = if state.echo_repeats { Flags::REPEATS } else { Flags::NONE };
        let header = request_header(state.current, agreed, Kind::Credit, flags, 0);
        let place = control.put(credit.encode(&header));
        self.counters.control_frames_sent += 1;
        Step::Last(control_transmit(id, state, slot, agreed, Flags::NONE, place))
    }

    /// A packet of the answer: one to repeat, or the next one that is allowed.
    #[inline]
    fn step_answer<B: Buffer>(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
        agreed: &Agreed,
        control: &mut ControlFrames,
    ) -> Step {
        let end = state.response_limit.min(state.response_packets);
        let (packet, flags) = match state.resend.first_from(state.resend_from) {
            Some(packet) => {
                state.resend.clear(packet);
                self.counters.packets_retransmitted += 1;
                (packet, Flags::REPEATS)
            }
            None if state.response_sent < end => {
                state.response_sent += 1;
                self.counters.packets_sent += 1;
                (state.response_sent - 1, Flags::NONE)
            }
            None => return Step::Nothing,
        };
        let more = state.response_sent < end || !state.resend.is_empty();
        let fixed = match &mut state.answer {
            Answer::Message(status, message) => {
                let aux = u16::from(status.code());
                let single = state.response_packets == 1;
                let kind = if single { Kind::Response } else { Kind::ResponsePart };
                let header = request_header(state.current, agreed, kind, flags, aux);
                let header_len = write_header(message, &header, packet, 0, single);
                let transmit = Transmit {
                    peer: agreed.peer,
                    session: id,
                    number: state.current,
                    packet,
                    slot: slot as u8,
                    header_len,
                    repeats: flags.repeats(),
                    source: Source::Response,
                };
                return Step::of(transmit, more);
            }
            Answer::Fixed(status, text) => (*status, *text),
            Answer::None => return Step::Nothing,
        };
        let place = control.put(fixed_response(state.current, agreed, flags, fixed));
        Step::of(control_transmit(id, state, slot, agreed, flags, place), more)
    }
}

fn control_transmit<B>(
    id: SessionId,
    state: &ServerSlot<B>,
    slot: usize,
    agreed: &Agreed,
    flags: Flags,
    place: u8,
) -> Transmit {
    Transmit {
        peer: agreed.peer,
        session: id,
        number: state.current,
        packet: 0,
        slot: slot as u8,
        header_len: 0,
        repeats: flags.repeats(),
        source: Source::Control(place),
    }
}

/// Takes a credit for the next packet of a request, and for the last packet those of its grant.
#[inline]
fn take_new_packet<B: Buffer>(
    now_ns: u64,
    client: &mut ClientSession<B>,
    slot: usize,
    agreed: &Agreed,
) -> u32 {
    let state = &mut client.slots[slot];
    let packet = state.request_sent;
    state.request_sent += 1;
    state.held += 1;
    client.credits -= 1;
    if state.timed_packet == NOT_TIMED {
        state.timed_packet = packet;
        state.timed_ns = now_ns;
    }
    if state.request_sent == state.request_packets {
        let capacity = state.response.as_ref().map_or(0, Buffer::capacity);
        let wanted = packets_of(capacity.min(u32::MAX as usize) as u32, agreed.packet_bytes) - 1;
        // Half of what is free: the caller's buffer may be far larger than the response, and other
        // calls should not have to wait for credits that nobody uses.
        let extra = wanted.min(client.credits / 2).min(u32::from(u8::MAX) - 1);
        state.grant = extra as u8 + 1;
        state.response_limit = extra + 1;
        state.held += extra;
        client.credits -= extra;
    }
    packet
}

/// Allows further packets of a response, as credits and the window permit; gives how many.
fn allow_more<B>(client: &mut ClientSession<B>, slot: usize) -> u32 {
    let state = &mut client.slots[slot];
    if state.state != ClientState::Receiving {
        return 0;
    }
    let window_end = state.received.cumulative() + WINDOW_PACKETS;
    let wanted = state.response_packets.min(window_end) - state.response_limit;
    let allowed = wanted.min(client.credits);
    if allowed < wanted {
        client.stalled_slots |= 1 << slot;
    }
    state.response_limit += allowed;
    state.held += allowed;
    client.credits -= allowed;
    allowed
}

/// The header of a frame of this session to its other end.
#[inline]
fn request_header(number: u64, agreed: &Agreed, kind: Kind, flags: Flags, aux: u16) -> Header {
    Header {
        kind,
        flags,
        session: agreed.peer_session,
        token: agreed.peer_token,
        aux,
        request: number,
    }
}

#[inline]
fn write_request_header<B: Buffer>(
    state: &mut ClientSlot<B>,
    agreed: &Agreed,
    packet: u32,
    flags: Flags,
) -> u8 {
    let last = packet + 1 == state.request_packets;
    let grant = if last { state.grant } else { 1 };
    let single = state.request_packets == 1 && grant == 1;
    let kind = if single { Kind::Request } else { Kind::RequestPart };
    let header = request_header(state.number, agreed, kind, flags, state.method);
    match &mut state.request {
        Some(request) => write_header(request, &header, packet, grant, single),
        None => unreachable!("a slot in use holds its request"),
    }
}

/// Writes a packet's header into its buffer and gives its length.
#[inline]
fn write_header<B: Buffer>(
    buffer: &mut B,
    header: &Header,
    packet: u32,
    grant: u8,
    single: bool,
) -> u8 {
    if single {
        buffer.write_header(packet, &header.encode());
        return HEADER_BYTES as u8;
    }
    let part = Part { size: buffer.len() as u32, packet, grant };
    buffer.write_header(packet, &part.encode(header));
    PART_HEADER_BYTES as u8
}

/// A RESPONSE with an error of the core; a text too long for a control frame is cut.
fn fixed_response(
    number: u64,
    agreed: &Agreed,
    flags: Flags,
    (status, text): (Status, &'static str),
) -> ([u8; CONTROL_FRAME_BYTES_MAX], usize) {
    let aux = u16::from(status.code());
    let header = request_header(number, agreed, Kind::Response, flags, aux);
    let len = text.len().min(CONTROL_FRAME_BYTES_MAX - HEADER_BYTES);
    let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    bytes[HEADER_BYTES..HEADER_BYTES + len].copy_from_slice(&text.as_bytes()[..len]);
    (bytes, HEADER_BYTES + len)
}
