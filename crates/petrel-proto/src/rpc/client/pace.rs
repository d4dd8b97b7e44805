//! Congestion control in the course of calls: the input to a session's controller, and the transmissions that
//! it delays (`docs/congestion.md`).
//!
//! Only clients have congestion control. An uncongested session pays a comparison for every measured round
//! trip and one for every call; a limited session leaves the fast paths.

use crate::rpc::Shared;
use crate::session::client::ClientSession;
use crate::session::{Role, SessionId, SessionTable};

#[cold]
#[inline(never)]
pub(in crate::rpc) fn release_due<B, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
) {
    shared.timers.advance_releases(now_ns);
    while let Some(id) = shared.timers.pop_release() {
        release_session(sessions, shared, now_ns, id);
    }
}

#[inline(never)]
fn release_session<B, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
) {
    let Some(entry) = sessions.get_mut(id) else { return };
    let Role::Client(client) = entry.role_mut() else { return };
    client.note_release();
    let at_ns = client.congestion().next_send_ns();
    if client.congestion().is_paced() && at_ns > now_ns {
        // An entry far ahead comes due early.
        shared.timers.await_release(now_ns, id, client, at_ns);
        return;
    }
    while let Some(slot) = client.next_held_back() {
        shared.queue.push_client(id.index, slot, client.slot_mut(slot));
        if client.congestion().is_paced() {
            // One packet, then the next slot.
            break;
        }
    }
    if client.has_held_back() {
        // With the next tick: by then the packet has left, and the next packet's time is known.
        shared.timers.await_release(now_ns, id, client, now_ns);
    }
}

/// Returns true if a slot has to wait for the session's pace. The slot is woken at its time.
#[inline]
pub(in crate::rpc) fn must_wait<B, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> bool {
    let Some(at_ns) = client.wait_for_pace(now_ns, slot) else { return false };
    if !client.awaits_release() {
        shared.timers.await_release(now_ns, id, client, at_ns);
    }
    true
}
