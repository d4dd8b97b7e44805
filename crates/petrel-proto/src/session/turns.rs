//! The queue of slots that wait for credits, first come, first served (`docs/wire-protocol.md` §4).
//!
//! A woken slot keeps its place at the head until its turn: else the next call takes the credit.

use std::collections::VecDeque;

use crate::limits::SLOTS_MAX;

/// Slots in the order of their requests, without duplicates. An empty queue is a word and a count.
#[derive(Debug, Default)]
pub(crate) struct SlotQueue {
    /// The length of `order`: one load tells the fast path that the queue is empty.
    len: u32,
    order: Option<Box<Order>>,
}

#[derive(Debug, Default)]
struct Order {
    slots: VecDeque<u16>,
    /// A bit per slot: set while the slot is in the queue.
    members: Vec<u64>,
}

impl SlotQueue {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn count(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn contains(&self, slot: usize) -> bool {
        self.len > 0 && self.order.as_ref().is_some_and(|order| order.has(slot))
    }

    /// Returns the slot whose turn is next.
    #[inline]
    pub(crate) fn first(&self) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        self.order.as_ref()?.slots.front().map(|slot| usize::from(*slot))
    }

    /// Appends a slot, unless already queued.
    #[cold]
    pub(crate) fn push(&mut self, slot: usize) {
        let order = self.order.get_or_insert_default();
        if order.has(slot) {
            return;
        }
        let word = slot / 64;
        if order.members.len() <= word {
            order.members.resize(word + 1, 0);
        }
        assert!(slot < usize::from(SLOTS_MAX), "only a slot waits for its turn");
        order.members[word] |= 1 << (slot % 64);
        order.slots.push_back(slot as u16);
        self.len += 1;
        assert_eq!(
            order.slots.len(),
            self.len as usize,
            "a slot that waits stands in the queue once"
        );
    }

    /// Puts a slot at the head, unless already queued: the slot could not use its turn.
    #[cold]
    pub(crate) fn push_first(&mut self, slot: usize) {
        let before = self.len;
        self.push(slot);
        if let Some(order) = &mut self.order
            && self.len > before
        {
            order.slots.rotate_right(1);
            assert_eq!(self.first(), Some(slot), "the slot has the next turn");
        }
    }

    /// Removes the slot whose turn is next.
    pub(crate) fn pop(&mut self) -> Option<usize> {
        let order = self.order.as_mut()?;
        let slot = usize::from(order.slots.pop_front()?);
        assert!(order.has(slot), "a slot leaves a queue that it had entered");
        order.members[slot / 64] &= !(1 << (slot % 64));
        self.len -= 1;
        assert_eq!(
            order.slots.len(),
            self.len as usize,
            "a slot that leaves the queue was counted"
        );
        Some(slot)
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: usize) {
        if self.contains(slot) {
            self.take_out(slot);
        }
    }

    #[cold]
    fn take_out(&mut self, slot: usize) {
        let Some(order) = &mut self.order else { return };
        let place = order.slots.iter().position(|other| usize::from(*other) == slot);
        let Some(place) = place else { unreachable!("a member stands in the queue") };
        order.slots.remove(place);
        order.members[slot / 64] &= !(1 << (slot % 64));
        self.len -= 1;
        assert_eq!(
            order.slots.len(),
            self.len as usize,
            "the length of a queue is the number of its slots"
        );
    }
}

impl Order {
    fn has(&self, slot: usize) -> bool {
        self.members.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a plain list.
        #[test]
        fn slot_queue__is_as_a_plain_list(steps in prop::collection::vec((0u8..5, 0usize..300), 0..200)) {
            let mut queue = SlotQueue::default();
            let mut model: Vec<usize> = Vec::new();
            for (kind, slot) in steps {
                match kind {
                    0 => {
                        let first = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(queue.pop(), first);
                    }
                    1 => {
                        queue.remove(slot);
                        model.retain(|other| *other != slot);
                    }
                    2 => {
                        queue.push_first(slot);
                        if !model.contains(&slot) {
                            model.insert(0, slot);
                        }
                    }
                    _ => {
                        queue.push(slot);
                        if !model.contains(&slot) {
                            model.push(slot);
                        }
                    }
                }
                prop_assert_eq!(queue.first(), model.first().copied());
                prop_assert_eq!((queue.count(), queue.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(queue.contains(slot), model.contains(&slot));
            }
        }
    }

    panics! {
        push__of_a_number_beyond_all_slots: "only a slot waits for its turn"
            => SlotQueue::default().push(usize::from(SLOTS_MAX));
        pop__of_a_slot_that_is_no_member: "a slot leaves a queue that it had entered" => {
            let mut queue = SlotQueue::default();
            queue.push(3);
            queue.order.as_mut().expect("it has a slot").members[0] = 0;
            queue.pop();
        };
        pop__of_a_queue_with_another_count: "a slot that leaves the queue was counted" => {
            let mut queue = SlotQueue::default();
            (0..3).for_each(|slot| queue.push(slot));
            queue.len = 2;
            queue.pop();
        };
    }
}
