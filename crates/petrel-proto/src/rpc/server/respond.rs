//! Answers of the application (`docs/wire-protocol.md` §6.3).

use super::memory::keep_answer;
use super::settle::settle_session;
use crate::buffer::Buffer;
use crate::limits::packets_of;
use crate::rpc::{RequestHandle, RespondError, RespondRejected, Shared};
use crate::session::held::HoldingId;
use crate::session::server::ServerSession;
use crate::session::{Role, SessionTable};
use crate::status::Status;

#[inline(never)]
pub(in crate::rpc) fn respond_by_queue<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    handle: RequestHandle,
    (status, bits): (Status, u16),
    mut message: B,
) -> Result<(), RespondRejected<B>> {
    let Some((mut server, slot)) = running(sessions, handle) else {
        if handle.is_in_order() {
            return respond_in_order(sessions, shared, handle, (status, bits), message);
        }
        shared.counters.answers_discarded += 1;
        return Err(RespondRejected { error: RespondError::Gone, message });
    };
    let packet_bytes = server.agreed().packet_bytes;
    if status != Status::Ok {
        cut_text(&mut message, packet_bytes as usize);
    }
    let (len, max) = (message.len(), server.agreed().peer_message_bytes_max);
    if len > max as usize && status == Status::Ok {
        return Err(RespondRejected { error: RespondError::TooLarge { len, max }, message });
    }
    let mut held = HoldingId::NONE;
    let is_large = message.capacity() > server.kept_answer_bytes_max() as usize;
    if is_large {
        match keep_answer(sessions, shared, handle, slot, message.memory_bytes() as u64) {
            Ok(id) => held = id,
            Err(error) => return Err(RespondRejected { error, message }),
        }
        let running = running(sessions, handle);
        (server, _) = running.expect("a request runs until it is answered");
    }
    let state = server.slot_mut(slot);
    let packets = packets_of(len as u32, packet_bytes);
    let spare = &mut shared.server_parts;
    state.set_answer((status, bits), message, packets, held, spare);
    shared.counters.responses_sent += 1;
    shared.queue.push_server(handle.session.index, slot, state);
    Ok(())
}

/// [`respond_by_queue`] for a request with a place in the order.
#[cold]
fn respond_in_order<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    handle: RequestHandle,
    answer: (Status, u16),
    message: B,
) -> Result<(), RespondRejected<B>> {
    let responded = respond_by_queue(sessions, shared, handle.by_number(), answer, message);
    settle_session(sessions, shared, handle.session);
    responded
}

/// Returns the session and slot of a request, if still running and without a place in the order.
#[inline]
pub(in crate::rpc) fn running<B, T>(
    sessions: &mut SessionTable<B, T>,
    handle: RequestHandle,
) -> Option<(&mut ServerSession<B>, usize)> {
    let Role::Server(server) = sessions.get_mut(handle.session)?.role_mut() else { return None };
    let slot = server.runs(handle.number)?;
    Some((server, slot))
}

/// Cuts a text longer than one packet (§3.3), between characters.
fn cut_text<B: Buffer>(message: &mut B, max: usize) {
    if message.len() <= max {
        return;
    }
    let text = message.storage_mut();
    // A character has at most three bytes after the first.
    let is_within = |at: &usize| text[*at] & 0b1100_0000 == 0b1000_0000;
    let end = (max.saturating_sub(3)..=max).rev().find(|at| !is_within(at));
    message.set_len(end.unwrap_or(max));
}
