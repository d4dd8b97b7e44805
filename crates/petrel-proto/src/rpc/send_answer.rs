//! The server's transmission: CREDITs, and packets of answers (`docs/wire-protocol.md` §6).

use super::Shared;
use super::transmit::{FrameSink, Out, Then, Turn, send_part};
use crate::buffer::Buffer;
use crate::limits::{CONTROL_FRAME_BYTES_MAX, HEADER_BYTES};
use crate::session::PeerKey;
use crate::session::server::{ServerSlot, ServerState};
use crate::wire::{Destination, Flags, Kind, header_bytes};

/// The destination of a session's frames, and the payload bytes of a full packet.
pub(super) struct Address {
    pub(super) to: Destination,
    pub(super) peer: PeerKey,
    pub(super) packet_bytes: u32,
}

impl<B: Buffer> Shared<B> {
    #[inline]
    pub(super) fn turn_of_server<S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        state: &mut ServerSlot<B>,
        address: &Address,
    ) -> Turn {
        match state.state() {
            ServerState::Idle => Turn::NOTHING,
            ServerState::Arriving | ServerState::Running => self.send_credit(out, state, address),
            ServerState::Answered => self.send_answer(out, state, address),
        }
    }

    fn send_credit<S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        state: &mut ServerSlot<B>,
        address: &Address,
    ) -> Turn {
        let Some((credit, flags)) = state.due_credit() else { return Turn::NOTHING };
        let header = address.to.words(Kind::Credit, flags, 0, state.current());
        let taken = out.control.send(out.sink, address.peer, credit.encode(header));
        if taken {
            state.note_credit_sent();
            self.counters.control_frames_sent += 1;
        }
        Turn::one(taken)
    }

    /// Sends packets of the answer: first repetitions, then further allowed packets.
    #[inline]
    fn send_answer<S: FrameSink>(
        &mut self,
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
                state.note_repeated(packet, &mut self.server_parts);
                self.counters.packets_retransmitted += 1;
            } else {
                state.note_sent();
                self.counters.packets_sent += 1;
            }
            if state.response_packets() == 1 {
                break;
            }
            turn.then = Then::More;
        }
        turn
    }
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
    let text = state.refusal().unwrap_or_default();
    let aux = state.answer_aux();
    let len = text.len().min(CONTROL_FRAME_BYTES_MAX - HEADER_BYTES);
    let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
    let header = address.to.words(Kind::Response, flags, aux, state.current());
    bytes[..HEADER_BYTES].copy_from_slice(&header_bytes::<2, HEADER_BYTES>(header));
    bytes[HEADER_BYTES..HEADER_BYTES + len].copy_from_slice(&text.as_bytes()[..len]);
    out.control.send(out.sink, address.peer, (bytes, HEADER_BYTES + len))
}
