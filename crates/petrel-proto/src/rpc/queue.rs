//! The transmit queue: slots with something to send.

use crate::session::client::{ClientSession, ClientSlot};
use crate::session::server::ServerSlot;

/// Entries taken before the room in front of the others is reused.
const TAKEN_MAX: usize = 1024;

/// Something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A slot of a client session.
    Client { session: u32, slot: u16 },
    /// A slot of a server session.
    Server { session: u32, slot: u16 },
    /// The first waiting CANCEL.
    Cancel,
    /// The first waiting PROBE.
    Probe,
    /// Packets of the first waiting message to a group.
    Multicast,
}

const _: () = assert!(size_of::<Work>() == 8);

/// A first-in, first-out queue. The queue is usually emptied at once, so a list with a mark is enough, at
/// half the instructions of a ring.
pub(super) struct TransmitQueue {
    list: Vec<Work>,
    /// Entries taken from the front.
    taken: usize,
}

impl TransmitQueue {
    pub(super) fn new() -> Self {
        Self { list: Vec::with_capacity(256), taken: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.list.len() - self.taken
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.list.len() == self.taken
    }

    #[inline]
    pub(super) fn push(&mut self, work: Work) {
        self.list.push(work);
    }

    /// Appends a client slot, unless already queued.
    #[inline]
    pub(super) fn push_client<B, T>(
        &mut self,
        session: u32,
        slot: usize,
        state: &mut ClientSlot<B, T>,
    ) {
        if state.enter_queue() {
            self.push(Work::Client { session, slot: slot as u16 });
        }
    }

    /// Appends a server slot, unless already queued.
    #[inline]
    pub(super) fn push_server<B>(&mut self, session: u32, slot: usize, state: &mut ServerSlot<B>) {
        if state.enter_queue() {
            self.push(Work::Server { session, slot: slot as u16 });
        }
    }

    /// Appends the slot that has waited longest for a credit or for the window, if a credit is free. Then
    /// `Core::transmit` wakes the next slot.
    #[inline]
    pub(super) fn wake_stalled<B, T>(&mut self, session: u32, client: &mut ClientSession<B, T>) {
        if let Some(slot) = client.next_stalled() {
            self.push_client(session, slot, client.slot_mut(slot));
        }
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Work> {
        let work = *self.list.get(self.taken)?;
        self.taken += 1;
        Some(work)
    }

    /// Moves the first entry to the end.
    pub(super) fn put_first_last(&mut self) {
        assert!(!self.is_empty(), "an entry that moves to the end is in the queue");
        self.list[self.taken..].rotate_left(1);
    }

    /// Reuses the room of taken entries. Call this method at intervals.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.is_empty() {
            self.list.clear();
            self.taken = 0;
        } else if self.taken >= TAKEN_MAX {
            assert!(self.taken < self.list.len(), "no more entries are taken than were queued");
            // Under this load the queue never runs empty.
            self.list.drain(..self.taken);
            self.taken = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a plain queue, also when the queue never runs empty.
        #[test]
        fn is_first_in_first_out(steps in prop::collection::vec((0usize..40, 0usize..40), 0..300)) {
            let mut queue = TransmitQueue::new();
            let mut model = VecDeque::new();
            let mut next = 0;
            for (pushes, pops) in steps {
                for _ in 0..pushes {
                    queue.push(Work::Client { session: next, slot: 0 });
                    model.push_back(next);
                    next += 1;
                }
                for _ in 0..pops {
                    let expected = model.pop_front().map(|session| Work::Client { session, slot: 0 });
                    prop_assert_eq!(queue.pop(), expected);
                }
                queue.tidy();
                prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }

    panics! {
        put_first_last__of_an_empty_queue: "an entry that moves to the end is in the queue"
            => TransmitQueue::new().put_first_last();
    }
}
