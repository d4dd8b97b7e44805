//! The server's transmission: CREDITs, and packets of answers (`docs/wire-protocol.md` §6).

use crate::buffer::Buffer;
use crate::limits::{CONTROL_FRAME_BYTES_MAX, HEADER_BYTES};
use crate::rpc::turn::{Address, Out, Then, Turn, send_part};
use crate::rpc::{FrameSink, Shared};
use crate::session::server::{ServerSlot, ServerState};
use crate::wire::{Flags, Kind, header_bytes};

#[inline]
pub(in crate::rpc) fn turn_of_server<B: Buffer, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    state: &mut ServerSlot<B>,
    address: &Address,
) -> Turn {
    match state.state() {
        ServerState::Idle => Turn::NOTHING,
        ServerState::Arriving | ServerState::Running => send_credit(shared, out, state, address),
        ServerState::Answered => send_answer(shared, out, state, address),
    }
}

fn send_credit<B: Buffer, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    state: &mut ServerSlot<B>,
    address: &Address,
) -> Turn {
    let Some((credit, flags)) = state.due_credit() else { return Turn::NOTHING };
    let header = address.to.words(Kind::Credit, flags, 0, state.current());
    let taken = out.control.send(out.sink, address.peer, credit.encode(header));
    if taken {
        state.note_credit_sent();
        shared.counters.control_frames_sent += 1;
    }
    Turn::one(taken)
}

/// Sends packets of the answer: first repetitions, then further allowed packets.
#[inline]
fn send_answer<B: Buffer, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    state: &mut ServerSlot<B>,
    address: &Address,
) -> Turn {
    let mut turn = Turn::NOTHING;
    while turn.sent < out.budget {
        turn.then = Then::Done;
        let Some((packet, repeats)) = state.next_answer_packet() else { break };
        let flags = if repeats { Flags::REPEATS } else { Flags::NONE };
        let flags = state.echo_flags(flags);
        if !write_answer_packet(state, address, packet, flags, out) {
            turn.then = Then::Refused;
            break;
        }
        turn.sent += 1;
        if repeats {
            state.note_repeated(packet, &mut shared.server_parts);
            shared.counters.packets_retransmitted += 1;
        } else {
            state.note_sent();
            shared.counters.packets_sent += 1;
        }
        if state.response_packets() == 1 {
            break;
        }
        turn.then = Then::More;
    }
    turn
}

#[inline]
fn write_answer_packet<B: Buffer, S: FrameSink>(
    state: &mut ServerSlot<B>,
    address: &Address,
    packet: u32,
    flags: Flags,
    out: &mut Out<'_, S>,
) -> bool {
    let aux = state.answer_aux();
    let (number, packets) = (state.current(), state.response_packets());
    let Some(message) = state.message_mut() else {
        return send_refusal(state, address, flags, out);
    };
    if packets == 1 {
        let header = address.to.words(Kind::Response, flags, aux, number);
        return out.sink.send(address.peer, message.frame(header), &[]);
    }
    let header = address.to.words(Kind::ResponsePart, flags, aux, number);
    send_part(message, header, packet, 0, address.packet_bytes, address.peer, out.sink)
}

/// Sends a RESPONSE with an error of the core. A text too long for a control frame is cut.
#[cold]
fn send_refusal<B, S: FrameSink>(
    state: &ServerSlot<B>,
    address: &Address,
    flags: Flags,
    out: &mut Out<'_, S>,
) -> bool {
    assert!(state.response_packets() == 1, "an error of the core is one packet");
    let text = state.refusal().unwrap_or_default();
    let aux = state.answer_aux();
    let len = text.len().min(CONTROL_FRAME_BYTES_MAX - HEADER_BYTES);
    let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
    let header = address.to.words(Kind::Response, flags, aux, state.current());
    bytes[..HEADER_BYTES].copy_from_slice(&header_bytes::<2, HEADER_BYTES>(header));
    bytes[HEADER_BYTES..HEADER_BYTES + len].copy_from_slice(&text.as_bytes()[..len]);
    out.control.send(out.sink, address.peer, (bytes, HEADER_BYTES + len))
}
