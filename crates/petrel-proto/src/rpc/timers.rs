//! The timers of a core: the timer wheel, and the owners of its entries (`docs/wire-protocol.md` §7).

use crate::limits::SLOTS_MAX;
use crate::recovery::rtt::RtoBounds;
use crate::session::SessionId;
use crate::session::client::{ClientSession, ClientSlot};
use crate::session::expiry_timer::ExpiryTimer;
use crate::timer::{TimerKey, TimerWheel};

/// The slot field of a timer entry for a session's deadlines.
const EXPIRY: u16 = u16::MAX;

/// The session field of a timer entry for the search for idle holdings.
const SWEEP: u32 = u32::MAX;

/// The slot field of a timer entry for the release of a paced session.
const WHOLE_SESSION: u16 = 0;

const _: () = assert!(EXPIRY > SLOTS_MAX);
const _: () = assert!(SWEEP > crate::limits::SESSIONS_MAX);

/// The owner of a due timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// A client slot looks for lost packets.
    Slot(SessionId, usize),
    /// A call of the session may have expired.
    Expiry(SessionId),
    /// The endpoint looks for idle holdings.
    Sweep,
}

/// The timer wheel, and the bounds of its timeouts.
pub(super) struct Timers {
    wheel: TimerWheel,
    bounds: RtoBounds,
}

impl Timers {
    pub(super) fn new(now_ns: u64, bounds: RtoBounds) -> Self {
        Self { wheel: TimerWheel::new(now_ns), bounds }
    }

    /// Returns the bounds of the retransmission timeout.
    #[inline(always)]
    pub(super) fn bounds(&self) -> &RtoBounds {
        &self.bounds
    }

    /// Sets the timer of a slot, starting now.
    #[inline]
    pub(super) fn arm<B, T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) {
        if !client.restart_timer(now_ns, slot, &self.bounds) {
            self.keep(now_ns, id, client.slot_mut(slot), slot);
        }
    }

    /// Ensures that the timer wheel wakes a slot by its deadline.
    #[inline]
    pub(super) fn keep<B, T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        state: &mut ClientSlot<B, T>,
        slot: usize,
    ) {
        state.keep_in_wheel(now_ns, key(id, slot as u16), &self.bounds, &mut self.wheel);
    }

    /// Puts a slot whose timer came due into the wheel again: its deadline has moved.
    pub(super) fn put_back<B, T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        state: &mut ClientSlot<B, T>,
        slot: usize,
    ) {
        assert!(state.timer().deadline_ns() > now_ns, "a timer is put back for a later time");
        state.enter_wheel(now_ns, key(id, slot as u16), &self.bounds, &mut self.wheel);
    }

    /// Returns true if calls that end should remove their entries; see [`TimerWheel::is_crowded`].
    #[inline(always)]
    pub(super) fn is_crowded(&self) -> bool {
        self.wheel.is_crowded()
    }

    /// Returns the wheel, for a slot that leaves it.
    #[inline(always)]
    pub(super) fn wheel(&mut self) -> &mut TimerWheel {
        &mut self.wheel
    }

    /// Notes that a call of the session with this timer ends at this time at the latest.
    #[inline]
    pub(super) fn note_expiry(&mut self, id: SessionId, timer: &mut ExpiryTimer, at_ns: u64) {
        if timer.is_later_than(at_ns) {
            self.wake_at(id, timer, at_ns);
        }
    }

    #[inline(never)]
    fn wake_at(&mut self, id: SessionId, timer: &mut ExpiryTimer, at_ns: u64) {
        timer.set(at_ns, key(id, EXPIRY), &mut self.wheel);
    }

    /// Releases the paced slots of a session at a time.
    pub(super) fn await_release<B, T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        at_ns: u64,
    ) {
        assert!(at_ns >= now_ns, "the slots of a session are released at a time to come");
        client.await_release();
        self.wheel.insert_release(now_ns, key(id, WHOLE_SESSION), at_ns);
    }

    /// Wakes the endpoint for a search for idle holdings.
    pub(super) fn sweep_at(&mut self, at_ns: u64) {
        let key = TimerKey { session: SWEEP, generation: 0, slot: 0 };
        self.wheel.insert(key, at_ns);
    }

    /// Handles the time that has passed.
    #[inline]
    pub(super) fn advance(&mut self, now_ns: u64) {
        self.wheel.advance(now_ns);
    }

    /// Returns the next due timer. To be called until the result is `None`.
    #[inline]
    pub(super) fn pop_due(&mut self) -> Option<Due> {
        let TimerKey { session, generation, slot } = self.wheel.pop_due()?;
        if session == SWEEP {
            assert!(
                (generation, slot) == (0, 0),
                "the search for idle holdings is the timer of no session"
            );
            return Some(Due::Sweep);
        }
        assert!(slot == EXPIRY || slot < SLOTS_MAX, "a timer of a session belongs to a slot");
        let id = SessionId { index: session, generation };
        Some(if slot == EXPIRY { Due::Expiry(id) } else { Due::Slot(id, slot.into()) })
    }

    #[inline(always)]
    pub(super) fn has_come_due(&self, now_ns: u64) -> bool {
        self.wheel.has_come_due(now_ns)
    }

    /// Handles the time that has passed for paced sessions.
    pub(super) fn advance_releases(&mut self, now_ns: u64) {
        self.wheel.advance_releases(now_ns);
    }

    /// Returns the next session whose pace allows another packet. To be called until the result is `None`.
    pub(super) fn pop_release(&mut self) -> Option<SessionId> {
        let TimerKey { session, generation, slot } = self.wheel.pop_release()?;
        assert!(slot == WHOLE_SESSION, "a paced session is released as a whole");
        Some(SessionId { index: session, generation })
    }

    /// Returns the time of the next timer, in nanoseconds.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.wheel.next_due_ns()
    }

    pub(super) fn entry_count(&self) -> usize {
        self.wheel.entry_count()
    }
}

fn key(id: SessionId, slot: u16) -> TimerKey {
    TimerKey { session: id.index, generation: id.generation, slot }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a timer with this key come due.
    fn pop_due(key: TimerKey) -> Option<Due> {
        let mut timers = Timers::new(0, RtoBounds::default());
        timers.wheel.insert(key, 1_000);
        timers.advance(1_000_000_000);
        timers.pop_due()
    }

    #[test]
    fn pop_due__names_the_owner_of_the_timer() {
        let id = SessionId { index: 3, generation: 7 };
        assert_eq!(pop_due(key(id, 9)), Some(Due::Slot(id, 9)));
        assert_eq!(pop_due(key(id, EXPIRY)), Some(Due::Expiry(id)));
        let sweep = TimerKey { session: SWEEP, generation: 0, slot: 0 };
        assert_eq!(pop_due(sweep), Some(Due::Sweep));
    }

    panics! {
        pop_due__of_a_slot_that_no_session_has: "a timer of a session belongs to a slot" => {
            pop_due(TimerKey { session: 3, generation: 7, slot: SLOTS_MAX });
        };
        pop_due__of_a_search_with_a_slot:
            "the search for idle holdings is the timer of no session" => {
            pop_due(TimerKey { session: SWEEP, generation: 0, slot: 1 });
        };
    }
}
