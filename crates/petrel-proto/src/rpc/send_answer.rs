//! The server's transmission: CREDITs, and packets of answers (`docs/wire-protocol.md` §6).

use super::Shared;
use super::transmit::{FrameSink, Out, Then, Turn, send_part};
use crate::bitmap::Words;
use crate::buffer::Buffer;
use crate::limits::{CONTROL_FRAME_BYTES_MAX, HEADER_BYTES};
use crate::session::Agreed;
use crate::session::server::{ServerSlot, ServerState};
use crate::wire::{Credit, Destination, Flags, Kind, header_bytes};

impl<B: Buffer> Shared<B> {
    #[inline]
    pub(super) fn turn_of_server<S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        state: &mut ServerSlot<B>,
        agreed: &Agreed,
        to: Destination,
    ) -> Turn {
        match state.state() {
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
        let (cumulative, bitmap) = match (state.state(), &state.parts) {
            (ServerState::Arriving, Some(parts)) => {
                (parts.arrived.cumulative(), *parts.arrived.words())
            }
            _ => (state.request_packets, Words::default()),
        };
        let credit = Credit { cumulative, echo: state.echo, bitmap };
        // Shows which copy of the packet arrived (§5.2).
        let flags = if state.echo_repeats { Flags::REPEATS } else { Flags::NONE };
        let waits = if state.is_waiting() { Flags::WAITS } else { Flags::NONE };
        let flags = state.echo_flags(flags.with(waits));
        let header = to.words(Kind::Credit, flags, 0, state.current);
        let taken = out.control.send(out.sink, agreed.peer, credit.encode(header));
        if taken {
            state.credit_due = false;
            state.marked = false;
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
        agreed: &Agreed,
        to: Destination,
    ) -> Turn {
        let end = state.response_limit.min(state.response_packets);
        let mut turn = Turn::NOTHING;
        while turn.sent < out.budget {
            turn.then = Then::Done;
            let repeated = state.first_to_resend();
            if repeated.is_none() && state.response_sent() >= end {
                break;
            }
            let packet = repeated.unwrap_or(state.response_sent());
            let flags = if repeated.is_some() { Flags::REPEATS } else { Flags::NONE };
            let flags = state.echo_flags(flags);
            if !write_answer_packet(state, agreed, to, packet, flags, out) {
                turn.then = Then::Refused;
                break;
            }
            turn.sent += 1;
            state.marked = false;
            if repeated.is_some() {
                state.note_repeated(packet, &mut self.server_parts);
                self.counters.packets_retransmitted += 1;
            } else {
                state.note_sent();
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

#[inline]
fn write_answer_packet<B: Buffer, S: FrameSink>(
    state: &mut ServerSlot<B>,
    agreed: &Agreed,
    to: Destination,
    packet: u32,
    flags: Flags,
    out: &mut Out<'_, S>,
) -> bool {
    let aux = state.answer_aux();
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

/// Sends a RESPONSE with an error of the core. A text too long for a control frame is cut.
#[cold]
fn send_refusal<B, S: FrameSink>(
    state: &ServerSlot<B>,
    agreed: &Agreed,
    to: Destination,
    flags: Flags,
    out: &mut Out<'_, S>,
) -> bool {
    let text = state.parts.as_ref().and_then(|parts| parts.refusal).unwrap_or_default();
    let aux = state.answer_aux();
    let len = text.len().min(CONTROL_FRAME_BYTES_MAX - HEADER_BYTES);
    let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
    let header = to.words(Kind::Response, flags, aux, state.current);
    bytes[..HEADER_BYTES].copy_from_slice(&header_bytes::<2, HEADER_BYTES>(header));
    bytes[HEADER_BYTES..HEADER_BYTES + len].copy_from_slice(&text.as_bytes()[..len]);
    out.control.send(out.sink, agreed.peer, (bytes, HEADER_BYTES + len))
}
