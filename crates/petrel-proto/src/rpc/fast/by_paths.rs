//! The fast path of small calls in sessions of several paths: as in the [parent module](super), with a path for each frame.
//!
//! Every function is a door of its own, behind the doors of sessions of one path, which pay nothing for the additional
//! doors.

use super::server::begins_plain;
use super::{Parsed, PlainRequest, completion, conclude};
use crate::buffer::{Buffer, Payload};
use crate::limits::HEADER_BYTES;
use crate::rpc::{FrameSink, PlainCompletion, RequestHandle, Shared};
use crate::session::client::{PlainAnswer, PlainPlace, PlainSend};
use crate::session::server::ServerSession;
use crate::session::{Entry, PeerKey, Role, SessionId, SessionTable};
use crate::wire::{Flags, Kind};

/// Sends a queued request of one packet without a deadline on the path that the policy chooses. Returns false if the
/// fast path does not apply, or the medium refused the frame: the choice of the path stays.
#[cold]
#[inline(never)]
pub(super) fn send_request_by_paths<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    now_ns: u64,
    session: u32,
    entry: &mut Entry<B, T>,
    slot: usize,
    sink: &mut S,
) -> bool {
    let id = SessionId { index: session, generation: entry.generation() };
    let Role::Client(client) = entry.role_mut() else { return false };
    let Some((mut place, paths)) = PlainPlace::of_queued_by_paths(client, slot) else {
        return false;
    };
    let Some(path) = paths.choose_plain(now_ns, slot, &mut shared.senders) else { return false };
    let Some(PlainSend { to, number, method, request, .. }) = place.outgoing() else {
        return false;
    };
    let frame = request.frame(to.words(Kind::Request, Flags::NONE, method, number));
    if !sink.send_from(path.index() as u8, paths.peer(), frame, &[]) {
        return false;
    }
    paths.note_plain_sent(now_ns, slot, path);
    place.lend();
    let is_armed = place.note_sent(now_ns);
    shared.counters.packets_sent += 1;
    if !is_armed {
        shared.timers.arm(now_ns, id, client, slot);
    }
    true
}

/// Sends the answer of a slot, one packet not sent yet, on the path of short answers. Returns false if the answer is no message,
/// or the medium refused the frame.
#[cold]
#[inline(never)]
pub(super) fn send_answer_by_paths<B: Buffer, S: FrameSink>(
    shared: &mut Shared<B>,
    server: &mut ServerSession<B>,
    slot: usize,
    sink: &mut S,
) -> bool {
    let (to, peer) = (server.to(), server.agreed().peer);
    let Some((slots, paths)) = server.with_paths() else { return false };
    let Some(state) = slots.get_mut(slot) else { return false };
    assert!(state.is_plain_by_paths(), "the caller has looked at the answer");
    let (aux, number) = (state.answer_aux(), state.current());
    let Some(message) = state.message_mut() else { return false };
    let frame = message.frame(to.words(Kind::Response, Flags::NONE, aux, number));
    if !sink.send_from(paths.short_path().index() as u8, peer, frame, &[]) {
        return false;
    }
    state.note_plain_sent();
    shared.counters.packets_sent += 1;
    true
}

/// [`take_plain`](super::take_plain) in a session of several paths. `source` is the source port of the peer from which the
/// frame came.
#[inline(always)]
pub(in crate::rpc) fn take_plain_from<'f, B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    (peer, source): (PeerKey, u8),
    parsed: Parsed<'f>,
) -> Option<PlainRequest<'f, B>> {
    let entry = sessions.at_mut(parsed.session())?;
    if !entry.is_by_paths(parsed.token()) {
        return None;
    }
    let generation = entry.generation();
    let Role::Server(server) = entry.role_mut() else { return None };
    let (number, payload_bytes) = (parsed.request(), parsed.payload.len());
    let slot = server.slot_index(number);
    let (last_slot, frame_bytes_max) = (server.stride() - 1, server.plain_frame_bytes_max());
    let (slots, paths) = server.with_paths()?;
    let state = slots.get_mut(slot)?;
    let is_short = HEADER_BYTES + payload_bytes <= frame_bytes_max as usize;
    if paths.source() != peer || !is_short || !begins_plain(state, number, last_slot) {
        return None;
    }
    if paths.note_next_source(slot, source).is_none() {
        paths.note_source(slot, source);
    }
    state.begin_plain_by_paths(number, parsed.aux(), payload_bytes as u32);
    let counters = &mut shared.counters;
    counters.frames_accepted += 1;
    counters.requests_received += 1;
    let spare = state.take_message();
    let session = SessionId { index: parsed.session(), generation };
    let handle = RequestHandle { session, number };
    Some(PlainRequest { handle, method: parsed.aux(), payload: parsed.payload, spare })
}

/// [`take_plain_response`](super::take_plain_response) in a session of several paths, to a request that
/// [`send_request_by_paths`] has sent.
#[inline(always)]
pub(in crate::rpc) fn take_plain_response_from<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    peer: PeerKey,
    parsed: Parsed<'_>,
) -> Option<PlainCompletion<B, T>> {
    let entry = sessions.at_mut(parsed.session())?;
    if !entry.is_by_paths(parsed.token()) || parsed.aux() != 0 {
        return None;
    }
    let Role::Client(client) = entry.role_mut() else { return None };
    let (mut answer, paths) = PlainAnswer::find_by_paths(client, parsed.request())?;
    let response = answer.response_mut()?;
    if paths.source() != peer || parsed.payload.len() > response.capacity() {
        return None;
    }
    parsed.payload.fill(response);
    paths.note_plain_answer(now_ns, answer.slot());
    let (slot, ended) = conclude::<B, T, false>(shared, now_ns, answer);
    Some(completion(shared, entry, parsed.session(), slot, ended))
}
