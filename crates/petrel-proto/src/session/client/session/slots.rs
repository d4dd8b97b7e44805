//! The slots of a client session: taken for calls, and freed (`docs/wire-protocol.md` §4, §5).

use petrel_planted::planted;

use super::super::parts::ClientParts;
use super::super::slot::{ClientSlot, NO_SLOT, SendPath, SlotCall};
use super::ClientSession;
use crate::limits::{SLOTS_MAX, SLOTS_WITH_RESERVE_MIN};
use crate::session::backlog::PendingCall;
use crate::session::free_list::FreeList;

/// The slot reserved for requests to the endpoint itself ([`SLOTS_WITH_RESERVE_MIN`]), allocated from the
/// beginning.
pub(super) const RESERVED: usize = 0;

/// An ended call, and the lasting traces of its slot.
pub(crate) struct EndedCall<B, T> {
    pub(crate) call: SlotCall<B, T>,
    pub(crate) inherited_ns: Option<u64>,
    /// True if multicast has brought no packet of the request; `None` if it was not used.
    pub(crate) missed_multicast: Option<bool>,
}

/// The state of the slot after its call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotEnd {
    /// The slot takes another call.
    Released,
    /// The slot's request numbers are used up.
    Retired,
    /// The session has too few slots left, or the server follows no further: the session must be closed (§5).
    Exhausted,
}

/// The slots of the session.
impl<B, T> ClientSession<B, T> {
    /// Returns a slot that a call has needed.
    #[inline(always)]
    pub(crate) fn slot(&self, slot: usize) -> &ClientSlot<B, T> {
        &self.slots[slot]
    }

    /// Returns a slot that a call has needed, for a change.
    #[inline(always)]
    pub(crate) fn slot_mut(&mut self, slot: usize) -> &mut ClientSlot<B, T> {
        &mut self.slots[slot]
    }

    /// Returns the slot that the next call takes, if an allocated one is free.
    #[inline(always)]
    pub(crate) fn next_slot(&self) -> Option<&ClientSlot<B, T>> {
        self.slots.get(usize::from(self.free))
    }

    /// Returns all slots that calls have needed until now.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &[ClientSlot<B, T>] {
        &self.slots
    }

    /// Returns the slot of a request number, allocated or not.
    #[inline(always)]
    pub(crate) fn slot_index(&self, request: u64) -> usize {
        request as usize & usize::from(self.slot_mask)
    }

    /// Returns true if the session reserves a slot for requests to the endpoint itself (§4).
    pub(crate) fn has_reserve(&self) -> bool {
        self.slot_mask >= SLOTS_WITH_RESERVE_MIN - 1
    }

    /// Returns true for the reserved slot, which needs neither a credit nor a turn.
    #[inline]
    pub(crate) fn is_reserved(&self, slot: usize) -> bool {
        slot == RESERVED && self.has_reserve()
    }

    /// Returns true if a slot is free for another call.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.free != NO_SLOT || self.agreed.is_some() && (self.slots.len() as u64) < self.stride()
    }

    /// Takes a free slot for a call.
    #[inline]
    pub(crate) fn take_slot(&mut self) -> Option<usize> {
        if self.free == NO_SLOT {
            self.make_room();
        }
        let slot = usize::from(self.free);
        self.free = self.slots.get(slot)?.next_free();
        Some(slot)
    }

    /// Takes the reserved slot, if free.
    pub(crate) fn take_reserved_slot(&mut self) -> Option<usize> {
        let is_free = self.has_reserve()
            && self.slots[RESERVED].is_free()
            && !self.slots[RESERVED].is_spent();
        assert!(
            !is_free || self.slots[RESERVED].credits() == 0,
            "the reserved slot needs no credit, and keeps none"
        );
        is_free.then_some(RESERVED)
    }

    /// Doubles the slots, up to the agreed number. Called when no slot is free.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        let count = (2 * self.slots.len() as u64).min(self.stride());
        self.grow(count as u16);
    }

    /// Allocates slots, `count` in total. No slot is free before; the new slots are free afterwards.
    pub(super) fn grow(&mut self, count: u16) {
        let is_agreed = u64::from(count) <= self.stride();
        assert!(self.free == NO_SLOT && is_agreed, "a slot is made when none is free");
        assert!(count <= SLOTS_MAX, "a session has as many slots as entries can name");
        let before = self.slots.len() as u16;
        if count <= before {
            return;
        }
        let mut slots = std::mem::take(&mut self.slots).into_vec();
        slots.reserve_exact(usize::from(count - before));
        slots.extend((before..count).map(|slot| {
            let next_free = if slot + 1 < count { slot + 1 } else { NO_SLOT };
            ClientSlot::new(self.first_request + u64::from(slot), next_free)
        }));
        self.slots = slots.into_boxed_slice();
        self.free = before;
    }

    /// Frees the slot of an ended call.
    #[inline(always)]
    pub(super) fn release(&mut self, slot: usize) {
        assert!(self.slots[slot].is_free(), "a slot is free before it returns to the free slots");
        if self.is_reserved(slot) {
            return;
        }
        assert!(self.free != slot as u16, "a slot returns to the free slots once");
        self.slots[slot].set_next_free(self.free);
        self.free = slot as u16;
    }

    /// Retires a slot without request numbers left. Returns true if at least half of the slots are retired:
    /// then the session must be closed (§5).
    pub(super) fn retire(&mut self) -> bool {
        assert!(
            u64::from(self.retired) < self.stride(),
            "no more slots are retired than the session has"
        );
        self.retired += 1;
        2 * u64::from(self.retired) >= self.stride()
    }

    /// Frees the slot of an ended call for another, or retires it.
    pub(crate) fn recycle(&mut self, slot: usize) -> SlotEnd {
        let state = &self.slots[slot];
        let is_too_far_ahead = state.is_too_far_ahead();
        if !state.is_spent() {
            self.release(slot);
            return SlotEnd::Released;
        }
        // The other slots have numbers left: with one call at a time, a single slot has made all calls.
        let is_exhausted = self.retire() || is_too_far_ahead;
        if is_exhausted { SlotEnd::Exhausted } else { SlotEnd::Retired }
    }

    /// Prepares a slot taken for a call. Returns false if the slot must wait behind slots that wait for a credit.
    #[inline(always)]
    pub(crate) fn start(
        &mut self,
        slot: usize,
        call: PendingCall<B, T>,
        packets: u32,
        path: SendPath,
    ) -> bool {
        assert!(self.agreed.is_some(), "a call starts when its session is open");
        self.slots[slot].start(call, packets, path);
        let is_first = self.stalled.is_empty() || self.is_reserved(slot);
        if !is_first {
            self.stalled.push(slot);
        }
        is_first
    }

    /// Ends the call in a slot, in any state, and takes the slot's credits back.
    pub(crate) fn end_call(
        &mut self,
        slot: usize,
        spare: &mut FreeList<ClientParts>,
    ) -> EndedCall<B, T> {
        let stride = self.stride();
        self.leave_waiting(slot);
        self.settle_paths(slot);
        let state = &mut self.slots[slot];
        self.credits.take_back_all(state.held_mut());
        let inherited_ns = state.expiry().inherited();
        let missed_multicast = state.missed_multicast();
        let call = state.end(stride);
        state.release_parts(spare);
        if let Some(missed) = missed_multicast {
            self.multicast.note(missed);
        }
        self.stalled.remove(slot);
        if !planted("proto_held_slot_stays") {
            self.paced.remove(slot);
        }
        EndedCall { call, inherited_ns, missed_multicast }
    }

    /// Takes a call that the fast path has ended without freeing the slot for the next.
    pub(crate) fn take_ended(&mut self, slot: usize) -> SlotCall<B, T> {
        let state = &mut self.slots[slot];
        assert!(state.is_free() && state.credits() == 0, "the fast path has ended the call");
        state.take_call()
    }

    /// Returns the number of calls in slots and in the queue.
    pub(crate) fn pending_calls(&self) -> usize {
        self.busy_slots() + self.backlog.len()
    }

    pub(crate) fn busy_slots(&self) -> usize {
        self.slots.iter().filter(|state| !state.is_free()).count()
    }

    /// Notes that a slot's request, of which packets were sent, was given up.
    pub(crate) fn note_given_up(&mut self, slot: usize) {
        let stride = self.stride();
        self.slots[slot].note_given_up(stride);
    }

    /// Notes that the client abandons a slot's call, sent or not: later ordered calls must not wait for the call (§14.6).
    pub(crate) fn note_abandoned(&mut self, slot: usize) {
        if let Some(order) = &mut self.order {
            order.note_abandoned(slot);
        }
    }

    /// Notes that the server has seen an earlier request of the slot.
    pub(crate) fn note_seen(&mut self, slot: usize, request: u64) {
        let stride = self.stride();
        self.slots[slot].note_seen(request, stride);
    }
}
