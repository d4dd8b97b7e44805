//! The transmit queue: slots with something to send.

/// Entries taken before the room in front of the others is reused.
const TAKEN_MAX: usize = 1024;

/// A slot number that stands for the first waiting CANCEL.
pub(super) const CANCEL: u16 = u16::MAX;

/// A slot number that stands for packets of the first waiting message to a group.
pub(super) const MULTICAST: u16 = u16::MAX - 1;

/// A slot with something to send.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) session: u32,
    pub(super) slot: u16,
    pub(super) of_client: bool,
}

/// A first-in, first-out queue. The queue is usually emptied at once, so a list with a mark is enough, at
/// half the instructions of a ring.
pub(super) struct WorkQueue {
    list: Vec<Work>,
    /// Entries taken from the front.
    taken: usize,
}

impl WorkQueue {
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

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Work> {
        let work = *self.list.get(self.taken)?;
        self.taken += 1;
        Some(work)
    }

    /// Moves the first entry to the end.
    pub(super) fn put_first_last(&mut self) {
        self.list[self.taken..].rotate_left(1);
    }

    /// Reuses the room of taken entries. Call this method at intervals.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.is_empty() {
            self.list.clear();
            self.taken = 0;
        } else if self.taken >= TAKEN_MAX {
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
            let mut queue = WorkQueue::new();
            let mut model = VecDeque::new();
            let mut next = 0;
            for (pushes, pops) in steps {
                for _ in 0..pushes {
                    queue.push(Work { session: next, slot: 0, of_client: true });
                    model.push_back(next);
                    next += 1;
                }
                for _ in 0..pops {
                    prop_assert_eq!(queue.pop().map(|work| work.session), model.pop_front());
                }
                queue.tidy();
                prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }
}
