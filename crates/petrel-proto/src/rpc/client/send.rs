//! The client's transmission: packets of requests, and PULLs (`docs/wire-protocol.md` §5).

use petrel_planted::planted;

use super::grant::grant_with;
use super::order::{pull_in_order, send_first_in_order};
use super::pace::must_wait;
use crate::buffer::Buffer;
use crate::limits::{PACKET_OVERHEAD_BYTES, WINDOW_PACKETS, packet_span};
use crate::rpc::deadline::left_us;
use crate::rpc::multicast::announce;
use crate::rpc::turn::{Out, Then, Turn, send_part};
use crate::rpc::{FrameSink, Shared};
use crate::session::client::{ClientSession, ClientState};
use crate::session::{PeerKey, SessionId};
use crate::wire::{Flags, Kind, Order, Part, deadline_word, header_bytes};

/// Response packets that one PULL allows in a paced session. The packets arrive at the speed of the server's
/// link, so their number must be small.
const PACED_PULL_PACKETS: u32 = 2;

/// Sends packets of the request: first lost packets, then new packets while there are credits.
#[inline]
pub(super) fn send_request<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    peer: PeerKey,
) -> Turn {
    if let Some(turn) = announce(shared, out, id, client, slot, peer) {
        return turn;
    }
    let mut turn = send_run(shared, out, client, slot, peer);
    while turn.sent < out.budget && turn.then != Then::Refused {
        turn.then = Then::Done;
        if must_wait(shared, out.now_ns, id, client, slot) {
            break;
        }
        let next = next_request_packet(shared, client, slot, out.may_take_credits);
        let Some((packet, repeats)) = next else { break };
        let extra = match shared.config.response_grants && !repeats {
            true => grant_with(client, slot, packet),
            false => 0,
        };
        let next = Next { packet, repeats, extra };
        let order = if packet == 0 { order_of(client, slot) } else { None };
        let taken = match order {
            Some(order) => {
                let (flags, grant) = (next.flags(), {
                    let state = client.slot(slot);
                    next.grant(state.request_packets(), state.grant())
                });
                send_first_in_order(client, slot, flags, grant, order, out)
            }
            None => write_request_packet(client, slot, next, out.now_ns, out.sink),
        };
        if !taken {
            turn.then = Then::Refused;
            break;
        }
        if repeats && !planted("proto_repeat_is_not_awaited") {
            out.sink.note_repeat();
        }
        turn.sent += 1;
        client.charge(out.now_ns, slot, 1);
        note_request_packet(shared, out.now_ns, client, slot, next);
        if client.slot(slot).request_packets() == 1 {
            break;
        }
        turn.then = Then::More;
    }
    if turn.sent > 0 {
        shared.timers.arm(out.now_ns, id, client, slot);
    }
    turn
}

/// Without packets to repeat, sends new packets in sequence up to the last but one. Common values are computed once,
/// and the packets are counted together.
fn send_run<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    client: &mut ClientSession<B, T>,
    slot: usize,
    peer: PeerKey,
) -> Turn {
    let is_limited = client.congestion().is_limited();
    let allowed = client.credits().0.min(client.message_credits(slot)).min(out.budget as u32);
    let (to, packet_bytes) = (client.to(), client.packet_bytes() as usize);
    let is_numbered = client.order().is_some();
    let state = client.slot_mut(slot);
    let (first, packets) = (state.request_sent(), state.request_packets());
    let is_short = shared.config.fast_path
        && first + 1 < packets
        && out.may_take_credits
        && !is_limited
        // Packet 0 carries the time left, and the place in the order.
        && !(first == 0 && (state.expiry().is_on_wire || is_numbered));
    if !is_short {
        return Turn::NOTHING;
    }
    let sent = state.parts_mut(&mut shared.client_parts).request();
    if sent.has_lost() {
        return Turn::NOTHING;
    }
    let window_end = sent.acknowledged_below() + WINDOW_PACKETS;
    let end = (first + allowed).min(window_end).min(packets - 1);
    let header = to.words(Kind::RequestPart, Flags::NONE, state.method(), state.number());
    let Some(request) = state.request_mut() else { return Turn::NOTHING };
    let size = request.wire_len() as u32;
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
    client.note_sent(out.now_ns, slot, sent, 0);
    if let Some(parts) = client.slot_mut(slot).known_parts_mut() {
        parts.request_mut().note_run(first..packet);
    }
    shared.counters.packets_sent += u64::from(sent);
    let then = if packet < end { Then::Refused } else { Then::More };
    Turn { sent: sent as usize, then }
}

/// Notes a packet of the request that the medium has accepted.
#[inline]
fn note_request_packet<B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    client: &mut ClientSession<B, T>,
    slot: usize,
    Next { packet, repeats, extra }: Next,
) {
    if repeats {
        shared.counters.packets_retransmitted += 1;
        shared.counters.repeats_paced += u64::from(client.congestion().is_paced());
        client.slot_mut(slot).note_repeated(packet, now_ns, &mut shared.client_parts);
        return;
    }
    shared.counters.packets_sent += 1;
    client.note_sent(now_ns, slot, 1, extra);
    let state = client.slot_mut(slot);
    if state.request_packets() > 1 {
        state.parts_mut(&mut shared.client_parts).request_mut().note_new(packet);
    }
}

/// Sends a PULL, if it allows further packets or is due for another reason.
pub(super) fn pull<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> Turn {
    let allowed = match must_wait(shared, out.now_ns, id, client, slot) {
        true => 0,
        false => allow_more(shared, client, slot, out.may_take_credits),
    };
    client.charge(out.now_ns, slot, allowed);
    if allowed > 0 {
        // If the medium refuses this PULL, the next one carries the raised limit.
        client.slot_mut(slot).timer_mut().ask();
    }
    if !client.slot(slot).timer().is_pull_due() {
        return Turn::NOTHING;
    }
    if allowed == 0
        && client.slot(slot).state() == ClientState::Waiting
        && let Some(order) = order_of(client, slot)
    {
        return pull_in_order(shared, out, id, client, slot, order);
    }
    let flags = if allowed == 0 { Flags::REPEATS } else { Flags::NONE };
    send_pull(shared, out, id, client, slot, flags)
}

pub(super) fn send_pull<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    flags: Flags,
) -> Turn {
    let (to, peer) = (client.to(), client.peer());
    let state = client.slot_mut(slot);
    let pull = state.pull();
    let header = to.words(Kind::Pull, flags, 0, state.number());
    if !out.control.send(out.sink, peer, pull.encode(header)) {
        return Turn::one(false);
    }
    state.note_pull_sent();
    shared.counters.control_frames_sent += 1;
    shared.timers.arm(out.now_ns, id, client, slot);
    Turn::one(true)
}

/// Returns the request's next packet, and true if it is a repetition: a lost packet, or a new one if the
/// window and the credits allow.
#[inline]
fn next_request_packet<B: Buffer, T>(
    shared: &mut Shared<B>,
    client: &mut ClientSession<B, T>,
    slot: usize,
    may_take_credits: bool,
) -> Option<(u32, bool)> {
    let state = client.slot(slot);
    if let Some(packet) = state.first_lost() {
        return Some((packet, true));
    }
    let packet = state.request_sent();
    let window_end = state.acknowledged_below() + client.window_packets();
    if state.is_request_sent() || packet >= window_end {
        return None;
    }
    if client.message_credits(slot) == 0 {
        // The slot continues when some of its packets are acknowledged.
        return None;
    }
    let may_take = may_take_credits && client.sendable_packets() > 0;
    if !may_take && !client.is_reserved(slot) {
        shared.counters.credit_waits += 1;
        client.stall(slot);
        return None;
    }
    Some((packet, false))
}

/// Allows further packets of a response within the credits and the window. Returns their number.
fn allow_more<B: Buffer, T>(
    shared: &mut Shared<B>,
    client: &mut ClientSession<B, T>,
    slot: usize,
    may_take_credits: bool,
) -> u32 {
    let sendable = if may_take_credits { client.sendable_packets() } else { 0 };
    let most = client.message_credits(slot);
    let state = client.slot(slot);
    let (ClientState::Receiving, Some(parts)) = (state.state(), state.parts()) else {
        return 0;
    };
    let window_end = parts.response().received_below() + WINDOW_PACKETS;
    assert!(state.response_limit() > 0, "a response of several packets has begun");
    let packets = parts.response().packets();
    let wanted = packets.min(window_end).saturating_sub(state.response_limit());
    let wanted = wanted.min(most);
    let mut allowed = wanted.min(sendable);
    if client.congestion().is_paced() {
        allowed = allowed.min(PACED_PULL_PACKETS);
    }
    if allowed < wanted {
        shared.counters.credit_waits += 1;
        client.stall(slot);
    }
    client.allow(slot, allowed);
    allowed
}

/// The next packet of a request.
#[derive(Clone, Copy)]
struct Next {
    packet: u32,
    repeats: bool,
    /// Packets of the response allowed beyond the first.
    extra: u32,
}

impl Next {
    #[inline]
    fn flags(self) -> Flags {
        if self.repeats { Flags::REPEATS } else { Flags::NONE }
    }

    /// Returns the grant that the packet carries, of a request that has granted `granted` packets if it was sent.
    /// The last packet carries the request's.
    #[inline]
    fn grant(self, packets: u32, granted: u8) -> u8 {
        match self.packet + 1 == packets {
            true if self.repeats => granted,
            true => self.extra as u8 + 1,
            false => 1,
        }
    }
}

/// Returns the place of a slot's call in the order, in a session that keeps one.
#[inline]
fn order_of<B, T>(client: &ClientSession<B, T>, slot: usize) -> Option<Order> {
    client.order()?.of_slot(slot)
}

/// Writes a packet's header and sends the packet. Returns false if the medium refused it.
#[inline]
fn write_request_packet<B: Buffer, T, S: FrameSink>(
    client: &mut ClientSession<B, T>,
    slot: usize,
    next: Next,
    now_ns: u64,
    sink: &mut S,
) -> bool {
    let packet = next.packet;
    let (to, peer, packet_bytes) = (client.to(), client.peer(), client.packet_bytes());
    let state = client.slot_mut(slot);
    let (deadline_ns, packets) = (state.wire_deadline_ns(), state.request_packets());
    let (method, number, granted) = (state.method(), state.number(), state.grant());
    let Some(request) = state.request_mut() else {
        unreachable!("a slot in use holds its request");
    };
    let (flags, grant) = (next.flags(), next.grant(packets, granted));
    if packet == 0
        && let Some(deadline_ns) = deadline_ns
    {
        let flags = flags.with(Flags::EXTENDED);
        let is_whole = packets == 1 && grant == 1;
        let kind = if is_whole { Kind::Request } else { Kind::RequestPart };
        let header = to.words(kind, flags, method, number);
        let left = deadline_word(left_us(sink.now_ns(now_ns), deadline_ns));
        let part = (!is_whole).then_some(grant);
        return send_first(request, header, part, left, packet_bytes, peer, sink);
    }
    if packets == 1 && grant == 1 {
        let header = to.words(Kind::Request, flags, method, number);
        let (head, body) = request.pieces(header);
        return sink.send(peer, head, body);
    }
    let header = to.words(Kind::RequestPart, flags, method, number);
    send_part(request, header, packet, grant, packet_bytes, peer, sink)
}

/// Sends packet 0 of a request with the deadline behind the header; as a part if it has a grant.
#[cold]
fn send_first<B: Buffer, S: FrameSink>(
    request: &mut B,
    [first, second]: [u64; 2],
    grant: Option<u8>,
    left: u64,
    packet_bytes: u32,
    peer: PeerKey,
    sink: &mut S,
) -> bool {
    let size = request.wire_len() as u32;
    let (offset, len) = packet_span(0, size, packet_bytes);
    let (head, body) = match grant {
        None => request.part(0, [first, second, left], offset, len),
        Some(grant) => {
            let fields = Part { size, packet: 0, grant }.word();
            let header: [u8; PACKET_OVERHEAD_BYTES] = header_bytes([first, second, fields, left]);
            request.write_header(0, &header);
            request.packet(0, PACKET_OVERHEAD_BYTES, offset, len)
        }
    };
    sink.send(peer, head, body)
}
