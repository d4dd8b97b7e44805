//! The order of the calls of a client session (`docs/wire-protocol.md` §14.6).

use petrel_planted::planted;

use crate::bitmap::PacketBits;
use crate::limits::ORDER_WINDOW_CALLS;
use crate::wire::{Order, SEQUENCE_MASK, sequence_ahead};

/// The place of a slot's call among the calls of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    sequence: u32,
    synchronises: bool,
}

/// The numbers of a session's calls, and which calls have ended.
pub(crate) struct CallOrder {
    /// True once the server is known to keep the order.
    is_agreed: bool,
    next: u32,
    /// All calls below this number have ended.
    ended: u32,
    /// The calls from `ended` on that have ended, by number.
    over: PacketBits,
    /// One more than the last call that was abandoned, until `ended` reaches it.
    abandoned_below: Option<u32>,
    /// The place of each slot's call.
    places: Vec<Option<Place>>,
}

impl CallOrder {
    pub(crate) fn new() -> Self {
        Self {
            is_agreed: false,
            next: 0,
            ended: 0,
            over: PacketBits::new(),
            abandoned_below: None,
            places: Vec::new(),
        }
    }

    /// Notes that the server keeps the order.
    pub(crate) fn agree(&mut self) {
        assert!(!self.is_agreed, "the two ends agree on the order once");
        self.is_agreed = true;
    }

    /// Returns true if another call may be sent: the server remembers a window of calls.
    pub(crate) fn has_room(&self) -> bool {
        sequence_ahead(self.ended, self.next) < ORDER_WINDOW_CALLS
    }

    /// Numbers the call that begins in a slot.
    pub(crate) fn begin(&mut self, slot: usize, synchronises: bool) {
        assert!(self.is_agreed, "calls are numbered for a server that keeps the order");
        assert!(self.has_room(), "a call begins within the window of calls that have not ended");
        if self.places.len() <= slot {
            self.places.resize(slot + 1, None);
        }
        let before = self.places[slot].replace(Place { sequence: self.next, synchronises });
        assert!(before.is_none(), "a slot has one call at a time");
        self.next = (self.next + 1) & SEQUENCE_MASK;
    }

    /// Returns the order of a slot's call, as a frame carries it now; `None` for a call without a number.
    pub(crate) fn of_slot(&self, slot: usize) -> Option<Order> {
        let Place { sequence, synchronises } = (*self.places.get(slot)?)?;
        Some(Order { sequence, synchronises, ended: self.ended })
    }

    /// Notes that the client abandons a slot's call: the server may never see it.
    pub(crate) fn note_abandoned(&mut self, slot: usize) {
        let Some(order) = self.of_slot(slot) else { return };
        let below = (order.sequence + 1) & SEQUENCE_MASK;
        assert!(
            (1..=ORDER_WINDOW_CALLS).contains(&sequence_ahead(self.ended, below)),
            "a call is abandoned before it is counted as ended"
        );
        let is_later =
            |before| sequence_ahead(self.ended, before) < sequence_ahead(self.ended, below);
        let is_noted = |before| is_later(before) && !planted("proto_order_second_abandoned");
        if self.abandoned_below.is_none_or(is_noted) {
            self.abandoned_below = Some(below);
        }
    }

    /// Notes the end of a slot's call. Returns true if the server must learn that all calls before the oldest
    /// have ended: one of them was abandoned.
    pub(crate) fn end(&mut self, slot: usize) -> bool {
        let Some(place) = self.places.get_mut(slot).and_then(Option::take) else { return false };
        assert!(
            sequence_ahead(self.ended, place.sequence) < ORDER_WINDOW_CALLS,
            "a call ends within the window of calls that have not ended"
        );
        assert!(self.over.set_new(place.sequence), "a call ends once");
        while self.ended != self.next && self.over.is_set(self.ended) {
            self.over.clear(self.ended);
            self.ended = (self.ended + 1) & SEQUENCE_MASK;
        }
        assert!(
            sequence_ahead(self.ended, self.next) <= ORDER_WINDOW_CALLS,
            "the calls that have not ended are within their window"
        );
        assert!(
            self.ended != self.next || self.over.is_empty(),
            "no call is over that has not begun"
        );
        let ended = self.ended;
        let is_ahead =
            |below: u32| (1..=ORDER_WINDOW_CALLS).contains(&sequence_ahead(ended, below));
        if planted("proto_order_tells_again") {
            return self.abandoned_below.is_some_and(|below| !is_ahead(below));
        }
        self.abandoned_below.take_if(|below| !is_ahead(*below)).is_some()
    }

    /// Returns the slot of the oldest call that has not ended, if the call synchronises.
    pub(crate) fn oldest(&self) -> Option<usize> {
        let oldest = Some(Place { sequence: self.ended, synchronises: true });
        self.places.iter().position(|place| *place == oldest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn agreed() -> CallOrder {
        let mut order = CallOrder::new();
        order.agree();
        order
    }

    panics! {
        begin__before_the_server_is_known: "for a server that keeps the order"
            => CallOrder::new().begin(0, true);
        begin__beyond_the_window: "within the window" => {
            let mut order = agreed();
            (0..=ORDER_WINDOW_CALLS as usize).for_each(|slot| order.begin(slot, false));
        };
    }

    #[test]
    fn end__tells_of_the_last_abandoned_call_once_all_before_have_ended() {
        let mut order = agreed();
        (0..4).for_each(|slot| order.begin(slot, slot == 3));
        order.note_abandoned(1);
        assert!(!order.end(1), "call 0 runs");
        assert!(!order.end(2), "call 0 runs");
        assert_eq!(order.oldest(), None, "call 0 does not synchronise");
        assert!(order.end(0), "call 3 waits at the server for call 1");
        assert_eq!(order.oldest(), Some(3));
        assert!(!order.end(3), "nothing was abandoned since");
        assert_eq!(order.of_slot(3), None);
    }

    /// A later call that is abandoned waits for the end of all calls before, whatever was abandoned earlier.
    #[test]
    fn end__tells_of_the_second_abandoned_call() {
        let mut order = agreed();
        (0..4).for_each(|slot| order.begin(slot, slot == 3));
        order.note_abandoned(0);
        order.note_abandoned(2);
        assert!(!order.end(0) && !order.end(2), "call 1 runs");
        assert!(order.end(1), "call 3 waits at the server for call 2");
    }

    proptest! {
        /// Compares with a set of the calls that have not ended, across the wrap of the numbers.
        #[test]
        fn end__as_a_set(start in 0u32..8, steps in prop::collection::vec((0u8..3, 0usize..300), 1..400)) {
            let mut order = agreed();
            order.next = (SEQUENCE_MASK - 300 * start % 900) & SEQUENCE_MASK;
            order.ended = order.next;
            let (first, mut made) = (order.next, 0u32);
            let mut open: BTreeSet<u32> = BTreeSet::new();
            let mut slots: Vec<Option<u32>> = vec![None; 300];
            for (kind, slot) in steps {
                match (kind, slots[slot]) {
                    (0, None) if order.has_room() => {
                        order.begin(slot, false);
                        slots[slot] = Some(made);
                        open.insert(made);
                        made += 1;
                    }
                    (_, Some(call)) => {
                        order.end(slot);
                        slots[slot] = None;
                        open.remove(&call);
                    }
                    _ => {}
                }
                let oldest = open.first().copied().unwrap_or(made);
                prop_assert_eq!(order.ended, first.wrapping_add(oldest) & SEQUENCE_MASK);
                prop_assert_eq!(order.has_room(), made - oldest < ORDER_WINDOW_CALLS);
                for (slot, call) in slots.iter().enumerate() {
                    let sequence = call.map(|call| first.wrapping_add(call) & SEQUENCE_MASK);
                    prop_assert_eq!(order.of_slot(slot).map(|order| order.sequence), sequence);
                    prop_assert!(order.of_slot(slot).is_none_or(Order::is_possible));
                }
            }
        }
    }

    panics! {
        end__with_a_later_call_that_is_over: "no call is over that has not begun" => {
            let mut order = agreed();
            order.begin(0, false);
            order.over.set(5);
            order.end(0);
        };
    }
}
