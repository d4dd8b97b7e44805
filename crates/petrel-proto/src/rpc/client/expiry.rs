//! Deadlines of calls, at the client (`docs/wire-protocol.md` §7.3).
//!
//! A call's deadline is in its slot, or beside it in the queue. A session with deadlines has one entry in the
//! timer wheel, for the earliest. A new call with a later deadline compares two numbers. When the entry comes
//! due, the session checks its slots and queue, ends expired calls, and sets the entry for the next deadline.
//!
//! Calls without a deadline must cost nothing. They get the default timeout when the slot's timer first
//! fires, or on entering the queue.

use super::call::{execution, finish, give_up};
use super::start::{exceeded, expired_unsent};
use crate::buffer::Buffer;
use crate::rpc::{Completion, Event, Events, Execution, Shared};
use crate::session::backlog::{Expiry, NEVER};
use crate::session::client::ClientSession;
use crate::session::{Role, SessionId, SessionTable};

/// Handles a due entry: ends the session's expired calls.
#[cold]
#[inline(never)]
pub(in crate::rpc) fn handle_expiries<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    events: &mut Events<B, T>,
    now_ns: u64,
    id: SessionId,
) {
    let Some(entry) = sessions.get_mut(id) else { return };
    let Role::Client(client) = entry.role_mut() else { return };
    if client.expiry_timer().note_due(now_ns) {
        // The queue first: a call that ends in a slot makes room for the next in the queue.
        let mut ended = Vec::new();
        client.backlog_mut().take_expired(now_ns, |queued| ended.push(queued));
        let ended = ended.into_iter().map(|queued| expired_unsent(shared, id, queued));
        events.extend(ended.map(Event::Completed));
        for slot in 0..client.slots().len() {
            let state = client.slot(slot);
            let expiry = state.expiry();
            if !state.is_free() && expiry.at_ns <= now_ns {
                let ended = expire(shared, id, client, slot, expiry);
                events.push_back(Event::Completed(ended));
            }
        }
    }
    let next_ns = client.first_expiry_ns();
    assert!(next_ns > now_ns, "calls that have expired have ended");
    shared.timers.note_expiry(id, client.expiry_timer(), next_ns);
}

/// Sets the default timeout of a call without a time limit, when the slot's timer fires.
pub(in crate::rpc) fn note_default_expiry<B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    let state = client.slot_mut(slot);
    assert!(!state.is_free(), "a default timeout is that of a call");
    let at_ns = state.expiry().at_ns;
    if at_ns != NEVER {
        return;
    }
    let timer = state.timer();
    let since_ns = if timer.is_measuring() { timer.since_ns() } else { now_ns };
    // Saturates to `NEVER` without a default timeout.
    let at_ns = since_ns.saturating_add(shared.config.call_timeout_ns);
    state.expire_by_default_at(at_ns);
    shared.timers.note_expiry(id, client.expiry_timer(), at_ns);
}

/// Ends a call whose response arrived after its deadline.
pub(in crate::rpc) fn too_late<B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    execution: Execution,
) -> Option<Completion<B, T>> {
    let expiry = client.slot(slot).expiry();
    if !expiry.is_on_wire || expiry.at_ns > shared.clock.latest_ns(now_ns) {
        return None;
    }
    shared.counters.calls_deadline_exceeded += 1;
    let failure = Box::new(exceeded(expiry, execution));
    // The server has answered, and needs no CANCEL.
    Some(finish(shared, id, client, slot, Err(failure)))
}

fn expire<B: Buffer, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    expiry: Expiry,
) -> Completion<B, T> {
    shared.counters.calls_deadline_exceeded += 1;
    let execution = execution(client.slot(slot));
    give_up(shared, id, client, slot, exceeded(expiry, execution))
}
