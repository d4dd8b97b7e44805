//! The server's half of the fast path.

use super::Parsed;
use crate::buffer::Buffer;
use crate::limits::{FUTURE_ROUNDS_MAX, HEADER_BYTES};
use crate::rpc::{FrameSink, RequestHandle, Shared};
use crate::session::server::{ServerSlot, ServerState};
use crate::session::{PeerKey, Role, SessionId, SessionTable};
use crate::wire::{Flags, Kind};

/// A request of one packet, still in the receive buffer. It must be answered.
#[derive(Debug)]
pub struct PlainRequest<'f, B> {
    /// Names the request in the answer.
    pub handle: RequestHandle,
    /// The method called.
    pub method: u16,
    /// The whole request.
    pub payload: &'f [u8],
    /// The buffer of the slot's former answer, for reuse.
    pub spare: Option<B>,
}

/// Handles a parsed request. `frame_bytes` is the frame's length without an extension block.
#[inline(always)]
pub(in crate::rpc) fn take_plain<'f, B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    peer: PeerKey,
    parsed: Parsed<'f>,
    frame_bytes: usize,
) -> Option<PlainRequest<'f, B>> {
    let entry = sessions.at_mut(parsed.session())?;
    if !entry.is_from(parsed.token(), peer) {
        return None;
    }
    let Role::Server(server) = entry.role_mut() else { return None };
    let number = parsed.request();
    let slot = server.slot_index(number);
    let (last_slot, frame_bytes_max) = (server.stride() - 1, server.plain_frame_bytes_max());
    let state = server.slots_mut().get_mut(slot)?;
    if frame_bytes > frame_bytes_max as usize || !begins_plain(state, number, last_slot) {
        return None;
    }
    state.begin_plain(number, parsed.aux(), (frame_bytes - HEADER_BYTES) as u32);
    let counters = &mut shared.counters;
    counters.frames_accepted += 1;
    counters.requests_received += 1;
    let spare = state.take_message();
    let session = SessionId { index: parsed.session(), generation: entry.generation() };
    let handle = RequestHandle { session, number };
    Some(PlainRequest { handle, method: parsed.aux(), payload: parsed.payload, spare })
}

/// Returns true if a request of one packet with this number may begin in the slot by the fast path.
#[inline(always)]
pub(super) fn begins_plain<B>(state: &ServerSlot<B>, number: u64, last_slot: u64) -> bool {
    // Counted from 0 for the next number; earlier numbers wrap to large values.
    let ahead = number.wrapping_sub(state.current()).wrapping_sub(1);
    ahead / FUTURE_ROUNDS_MAX <= last_slot && state.takes_plain()
}

/// Answers a running request with a message of one packet. Returns the message if `sink` refuses it, or
/// the fast path does not apply.
#[inline(always)]
pub(in crate::rpc) fn respond_plain<B: Buffer, T, S: FrameSink>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    handle: RequestHandle,
    mut message: B,
    sink: &mut S,
) -> Option<B> {
    let RequestHandle { session, number } = handle;
    let Some(entry) = sessions.at_mut(session.index) else { return Some(message) };
    let generation = entry.generation();
    let Role::Server(server) = entry.role_mut() else { return Some(message) };
    let (to, peer) = (server.to(), server.peer());
    let response_bytes_max = server.plain_response_bytes_max();
    let place = server.slot_index(number);
    let Some(state) = server.slots_mut().get_mut(place) else { return Some(message) };
    let is_plain = sink.reaches(peer)
        && generation == session.generation
        && state.current() == number
        && state.state() == ServerState::Running
        && state.takes_plain()
        && message.capacity() <= response_bytes_max as usize;
    if !is_plain {
        return Some(message);
    }
    let header = to.words(Kind::Response, Flags::NONE, 0, number);
    if !sink.send_message(peer, header, &mut message) {
        return Some(message);
    }
    state.set_sent_answer(message);
    let counters = &mut shared.counters;
    counters.responses_sent += 1;
    counters.packets_sent += 1;
    None
}
