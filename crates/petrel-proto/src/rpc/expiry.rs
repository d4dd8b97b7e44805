//! Deadlines of calls, at the client (`docs/wire-protocol.md` §7.3).
//!
//! A call's deadline is in its slot, or beside it in the queue. A session with deadlines has one entry in the
//! timer wheel, for the earliest. A new call with a later deadline compares two numbers. When the entry comes
//! due, the session checks its slots and queue, ends expired calls, and sets the entry for the next deadline.
//!
//! Calls without a deadline must cost nothing. They get the default timeout when the slot's timer first
//! fires, or on entering the queue.

use super::call::{CallFailure, Execution, failed, finish};
use super::{Completion, Core, Event, Shared};
use crate::buffer::Buffer;
use crate::session::backlog::{Expiry, NEVER, Queued};
use crate::session::client::ClientSession;
use crate::session::{Role, SessionId};
use crate::status::Status;
use crate::timer::TimerKey;
use crate::wire::Extensions;

/// The slot field of a timer entry for a session's deadlines.
pub(super) const EXPIRY: u16 = u16::MAX;

/// Returns the deadline of a frame on this core's clock.
#[inline]
pub(super) fn deadline_ns(now_ns: u64, extensions: Extensions) -> u64 {
    match extensions.deadline_us {
        None => NEVER,
        Some(left_us) => now_ns + u64::from(left_us) * 1_000,
    }
}

impl<B: Buffer, T> Core<B, T> {
    /// Sets the deadline that calls inherit from now on: the current request's, or in a continuation that of
    /// the request the finished call was made for. Calls end at this deadline at the latest. Returns the
    /// former value.
    pub fn inherit(&mut self, deadline_ns: Option<u64>) -> Option<u64> {
        let before = self.inherited_ns();
        self.shared.inherited_ns = deadline_ns.unwrap_or(NEVER);
        self.shared.inherits = deadline_ns.is_some();
        before
    }

    /// Returns the deadline that calls inherit.
    pub fn inherited_ns(&self) -> Option<u64> {
        (self.shared.inherited_ns != NEVER).then_some(self.shared.inherited_ns)
    }

    /// Handles a due entry: ends the session's expired calls.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_expiries(&mut self, now_ns: u64, id: SessionId) {
        let Some(entry) = self.sessions.get_mut(id) else { return };
        let Role::Client(client) = entry.role_mut() else { return };
        if client.expiry_timer().note_due(now_ns) {
            let Self { shared, events, .. } = self;
            // The queue first: a call that ends in a slot makes room for the next in the queue.
            let mut ended = Vec::new();
            client.backlog_mut().take_expired(now_ns, |queued| ended.push(queued));
            let ended = ended.into_iter().map(|queued| shared.expired_unsent(id, queued));
            events.extend(ended.map(Event::Completed));
            for slot in 0..client.slots().len() {
                let state = client.slot(slot);
                let expiry = state.expiry();
                if !state.is_free() && expiry.at_ns <= now_ns {
                    let ended = shared.expire(id, client, slot, expiry);
                    events.push_back(Event::Completed(ended));
                }
            }
        }
        let next_ns = client.first_expiry_ns();
        self.shared.note_expiry(id, client, next_ns);
    }
}

impl<B: Buffer> Shared<B> {
    /// Notes that a call of the session ends at this time at the latest.
    #[inline]
    pub(super) fn note_expiry<T>(
        &mut self,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        at_ns: u64,
    ) {
        if client.expiry_timer().is_later_than(at_ns) {
            self.wake_at(id, client, at_ns);
        }
    }

    #[inline(never)]
    fn wake_at<T>(&mut self, id: SessionId, client: &mut ClientSession<B, T>, at_ns: u64) {
        let SessionId { index: session, generation } = id;
        let key = TimerKey { session, generation, slot: EXPIRY };
        client.expiry_timer().set(at_ns, key, &mut self.timers);
    }

    /// Sets the default timeout of a call without a time limit, when the slot's timer fires.
    pub(super) fn note_default_expiry<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) {
        let state = client.slot_mut(slot);
        let at_ns = state.expiry().at_ns;
        if at_ns != NEVER {
            return;
        }
        let timer = state.timer();
        let since_ns = if timer.is_measuring() { timer.since_ns() } else { now_ns };
        // Saturates to `NEVER` without a default timeout.
        let at_ns = since_ns.saturating_add(self.config.call_timeout_ns);
        state.expire_by_default_at(at_ns);
        self.note_expiry(id, client, at_ns);
    }

    /// Returns the end of a call that expired before it got a slot.
    pub(super) fn expired_unsent<T>(
        &mut self,
        id: SessionId,
        queued: Queued<B, T>,
    ) -> Completion<B, T> {
        self.counters.calls_failed += 1;
        self.counters.calls_deadline_exceeded += 1;
        let failure = exceeded(queued.expiry, Execution::NotSent);
        failed(id, queued, failure)
    }

    /// Ends a call whose response arrived after its deadline.
    pub(super) fn too_late<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
        execution: Execution,
    ) -> Option<Completion<B, T>> {
        let expiry = client.slot(slot).expiry();
        if !expiry.is_on_wire || expiry.at_ns > self.latest_ns(now_ns) {
            return None;
        }
        self.counters.calls_deadline_exceeded += 1;
        let failure = Box::new(exceeded(expiry, execution));
        // The server has answered, and needs no CANCEL.
        Some(finish(self, id, client, slot, Err(failure)))
    }

    fn expire<T>(
        &mut self,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
        expiry: Expiry,
    ) -> Completion<B, T> {
        self.counters.calls_deadline_exceeded += 1;
        let execution = client.slot(slot).execution();
        self.give_up(id, client, slot, exceeded(expiry, execution))
    }
}

#[cold]
fn exceeded(expiry: Expiry, execution: Execution) -> CallFailure {
    let message = match expiry.is_on_wire {
        true => "the deadline was over before the response came",
        false => "no response within the default timeout",
    };
    CallFailure { status: Status::DeadlineExceeded, message: message.to_owned(), execution }
}
