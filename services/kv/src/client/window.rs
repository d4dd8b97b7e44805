//! The writes of a client session that have no answer yet.

use std::collections::VecDeque;

use crate::limits::PENDING_WRITES_MAX;

/// The writes from the first one without an answer on.
#[derive(Debug)]
pub(super) struct Window {
    first_pending: u64,
    /// Whether they have ended, from the first pending one on.
    ended: VecDeque<bool>,
}

impl Window {
    pub(super) fn new() -> Self {
        Self { first_pending: 1, ended: VecDeque::new() }
    }

    /// How many more writes may begin.
    pub(super) fn room(&self) -> usize {
        PENDING_WRITES_MAX as usize - self.ended.len()
    }

    /// Begins a write, if there is room: its sequence, and the first pending one.
    pub(super) fn begin(&mut self) -> Option<(u64, u64)> {
        if self.room() == 0 {
            return None;
        }
        let sequence = self.first_pending + self.ended.len() as u64;
        self.ended.push_back(false);
        Some((sequence, self.first_pending))
    }

    /// Nobody asks for this write's result any more.
    pub(super) fn end(&mut self, sequence: u64) {
        self.ended[(sequence - self.first_pending) as usize] = true;
        while self.ended.front() == Some(&true) {
            self.ended.pop_front();
            self.first_pending += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin__numbers_from_one_and_names_the_first_pending() {
        let mut window = Window::new();
        assert_eq!(window.begin(), Some((1, 1)));
        assert_eq!(window.begin(), Some((2, 1)));
        window.end(1);
        assert_eq!(window.begin(), Some((3, 2)));
        window.end(3);
        assert_eq!(window.begin(), Some((4, 2)), "the second is still pending");
        window.end(2);
        window.end(4);
        assert_eq!(window.begin(), Some((5, 5)));
    }

    #[test]
    fn begin__never_goes_further_ahead_than_the_service_allows() {
        let mut window = Window::new();
        for _ in 0..PENDING_WRITES_MAX {
            let (sequence, first_pending) = window.begin().unwrap();
            assert!(sequence - first_pending < PENDING_WRITES_MAX);
        }
        assert_eq!(window.begin(), None);
        window.end(2);
        assert_eq!(window.begin(), None, "the first one holds the others up");
        window.end(1);
        assert_eq!(window.room(), 2);
        assert_eq!(window.begin(), Some((PENDING_WRITES_MAX + 1, 3)));
    }
}
