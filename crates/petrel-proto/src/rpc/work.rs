//! The queue of slots that have something to send.

/// Entries taken before the room in front of the others is used again.
const TAKEN_MAX: usize = 1024;

/// In place of a slot: a CANCEL, of whichever session comes first.
pub(super) const CANCEL: u16 = u16::MAX;

/// In place of a slot: packets of a message to a group, whichever comes first.
pub(super) const MULTICAST: u16 = u16::MAX - 1;

/// A slot that has something to send.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) session: u32,
    pub(super) slot: u16,
    pub(super) of_client: bool,
}

/// First in, first out. Mostly it is emptied at once, so that a list with a mark is enough, and
/// costs half the instructions of a ring.
pub(super) struct WorkQueue {
    list: Vec<Work>,
    /// Entries at the front that were taken.
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

    /// Puts the first entry behind the others.
    pub(super) fn put_first_last(&mut self) {
        self.list[self.taken..].rotate_left(1);
    }

    /// Uses the room of the entries that were taken again. To be called now and then.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.is_empty() {
            self.list.clear();
            self.taken = 0;
        } else if self.taken >= TAKEN_MAX {
            // A load that never lets the queue run empty.
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
        /// The naive queue agrees, also when the queue never runs empty.
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
