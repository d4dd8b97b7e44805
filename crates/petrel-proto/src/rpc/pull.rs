//! The server's handling of PULL frames (`docs/wire-protocol.md` §6.3).

use super::Shared;
use crate::bitmap::{PacketBits, Words};
use crate::limits::WINDOW_PACKETS;
use crate::session::SessionId;
use crate::session::free_list::FreeList;
use crate::session::server::{ServerParts, ServerSession, ServerSlot, ServerState};
use crate::wire::{Header, Pull};

impl<B: crate::buffer::Buffer> Shared<B> {
    pub(super) fn on_pull(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        header: Header,
        rest: &[u8],
    ) {
        let Ok(pull) = Pull::parse(header.flags, rest) else {
            self.counters.dropped_malformed += 1;
            return;
        };
        let slot = server.slot_index(header.request);
        let current = server.current(slot);
        let known = server.slots.get_mut(slot);
        let known = known.filter(|state| state.state() != ServerState::Idle);
        let Some(state) = known.filter(|_| header.request == current) else {
            if header.request > current {
                self.counters.dropped_future += 1;
            } else {
                self.counters.dropped_stale += 1;
            }
            return;
        };
        if state.state() != ServerState::Answered {
            self.counters.frames_accepted += 1;
            state.note_asked();
            let (echo, repeats) = (state.echo, state.echo_repeats);
            self.credit_due(id.index, slot, state, echo, repeats);
            return;
        }
        if state.is_given_up() {
            // Overtaken by the frame with which the client gave up or confirmed the answer.
            self.counters.dropped_stale += 1;
            return;
        }
        if state.is_answer_gone() {
            self.counters.frames_accepted += 1;
            return self.report_answer_gone(id, state, slot);
        }
        if state.is_error_answer() {
            // The client may have packets of the replaced answer; the error is sent for any `cumulative`.
            self.counters.frames_accepted += 1;
            if state.response_sent() > 0 && (pull.resend_below > 0 || pull.cumulative > 0) {
                state.parts(&mut self.server_parts).resend.set(0);
            }
            return self.queue_server(id.index, slot, state);
        }
        if pull.cumulative > state.response_sent() {
            self.counters.dropped_malformed += 1;
            return;
        }
        self.counters.frames_accepted += 1;
        if pull.cumulative == state.response_packets {
            return self.release_answer(state);
        }
        self.held.touch(state.held);
        let limit = pull.limit.min(pull.cumulative.saturating_add(WINDOW_PACKETS));
        state.response_limit = state.response_limit.max(limit);
        // A response of one packet has either arrived whole or not at all.
        if state.response_packets > 1 || pull.resend_below > 0 {
            mark_missing(state, &pull, &mut self.server_parts);
        }
        self.queue_server(id.index, slot, state);
    }
}

/// Computes the packets to send again: asked for now, or asked for before and not yet sent, and still missing
/// at the client.
fn mark_missing<B>(state: &mut ServerSlot<B>, pull: &Pull, spare: &mut FreeList<ServerParts<B>>) {
    let end = state.response_sent().min(pull.cumulative.saturating_add(WINDOW_PACKETS));
    let state = state.parts(spare);
    if pull.cumulative < state.resend_from {
        // An overtaken PULL: packets that it shows missing may have arrived since.
        return;
    }
    let waiting = std::mem::replace(&mut state.resend, PacketBits::new());
    state.resend_from = pull.cumulative;
    if waiting.is_empty() && pull.resend_below <= pull.cumulative {
        return;
    }
    for packet in pull.cumulative..end {
        let asked = packet < pull.resend_below || waiting.is_set(packet);
        if asked && !has(&pull.bitmap, packet - pull.cumulative) {
            state.resend.set(packet);
        }
    }
}

fn has(words: &Words, ahead: u32) -> bool {
    words[ahead as usize / 64] >> (ahead % 64) & 1 == 1
}
