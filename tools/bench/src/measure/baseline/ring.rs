//! Shared memory, many small messages: the baseline rate.
//!
//! Two rings of records of whole cache lines, with one index each, published once per batch. The number in flight is
//! below the rings' size, so a producer never has to check for room. Everything else that a ring must do is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use petrel_transport::clock;

use super::super::ends::{ClientEnd, ServerEnd};
use super::super::window::Window;
use super::{WindowCounts, message_words};

/// Records per publication.
const BATCH: u64 = 16;

/// Words of a cache line.
const LINE_WORDS: usize = 8;

#[repr(align(64))]
struct Line([AtomicU64; LINE_WORDS]);

/// An index on cache lines of its own.
#[repr(align(128))]
struct Index(AtomicU64);

/// Records from a writing to a reading side. The words are relaxed atomics, which compile to plain loads
/// and stores; the index orders them.
struct Ring {
    published: Index,
    lines: Box<[Line]>,
    lines_per_record: usize,
    /// A power of two, minus one.
    mask: u64,
}

/// The calling end.
pub(in super::super) struct Caller {
    requests: Arc<Ring>,
    responses: Arc<Ring>,
    in_flight: u64,
    sent: u64,
    received: u64,
    started_ns: u64,
    end_ns: u64,
    is_stopping: bool,
    polls: u64,
    window: WindowCounts,
    size: usize,
}

/// The answering end.
pub(in super::super) struct Echo {
    requests: Arc<Ring>,
    responses: Arc<Ring>,
    done: u64,
}

/// Returns the two ends, for messages of `size` bytes and `in_flight` messages in flight.
pub(in super::super) fn ends(size: usize, in_flight: u16) -> (Caller, Echo) {
    let [requests, responses] = [(); 2].map(|()| Arc::new(Ring::new(size, in_flight)));
    let echo = Echo { requests: Arc::clone(&requests), responses: Arc::clone(&responses), done: 0 };
    let caller = Caller {
        requests,
        responses,
        in_flight: in_flight.into(),
        sent: 0,
        received: 0,
        started_ns: 0,
        end_ns: 0,
        is_stopping: true,
        polls: 0,
        window: WindowCounts::default(),
        size,
    };
    (caller, echo)
}

impl Ring {
    fn new(size: usize, in_flight: u16) -> Self {
        let lines_per_record = message_words(size).div_ceil(LINE_WORDS);
        let records = usize::from(in_flight).next_power_of_two();
        let line = || Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            published: Index(AtomicU64::new(0)),
            lines: std::iter::repeat_with(line).take(records * lines_per_record).collect(),
            lines_per_record,
            mask: records as u64 - 1,
        }
    }

    #[inline]
    fn record(&self, number: u64) -> &[Line] {
        let first = (number & self.mask) as usize * self.lines_per_record;
        &self.lines[first..first + self.lines_per_record]
    }

    #[inline]
    fn published(&self) -> u64 {
        self.published.0.load(Ordering::Acquire)
    }

    #[inline]
    fn publish(&self, count: u64) {
        self.published.0.store(count, Ordering::Release);
    }
}

impl Line {
    #[inline]
    fn fill(&self, word: u64) {
        self.0.iter().for_each(|cell| cell.store(word, Ordering::Relaxed));
    }

    #[inline]
    fn copy_from(&self, other: &Self) {
        for (to, from) in self.0.iter().zip(&other.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns true if the first and the last word equal `word`.
    #[inline]
    fn carries(&self, word: u64) -> bool {
        [&self.0[0], &self.0[LINE_WORDS - 1]]
            .into_iter()
            .all(|cell| cell.load(Ordering::Relaxed) == word)
    }
}

impl Caller {
    #[inline]
    fn send(&mut self, count: u64) {
        for number in self.sent..self.sent + count {
            self.requests.record(number).iter().for_each(|line| line.fill(number));
        }
        self.sent += count;
        self.window.calls += count;
        self.requests.publish(self.sent);
    }
}

impl ClientEnd for Caller {
    fn begin(&mut self, end_ns: u64) {
        self.window = WindowCounts::default();
        (self.end_ns, self.is_stopping) = (end_ns, false);
        self.started_ns = clock::now_ns();
        let mut left = self.in_flight;
        while left > 0 {
            self.send(left.min(BATCH));
            left -= left.min(BATCH);
        }
    }

    #[inline]
    fn poll_once(&mut self) {
        let count = (self.responses.published() - self.received).min(BATCH);
        if count == 0 {
            return;
        }
        for number in self.received..self.received + count {
            let is_right = self.responses.record(number).iter().all(|line| line.carries(number));
            self.window.mismatched += u64::from(!is_right);
        }
        self.received += count;
        self.window.answered += count;
        self.polls += 1;
        if self.polls.is_multiple_of(64) {
            self.is_stopping |= clock::now_ns() >= self.end_ns;
        }
        if !self.is_stopping {
            self.send(count);
        }
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.is_stopping && self.received == self.sent
    }

    fn give_up(&mut self, _: Duration) {
        self.window.lost += self.sent - self.received;
        (self.is_stopping, self.received) = (true, self.sent);
    }

    fn finish(&mut self) -> Window {
        self.window.bytes = self.window.answered * self.size as u64;
        self.window.finish(self.started_ns, None)
    }
}

impl ServerEnd for Echo {
    #[inline]
    fn poll_once(&mut self) {
        let count = (self.requests.published() - self.done).min(BATCH);
        if count == 0 {
            return;
        }
        for number in self.done..self.done + count {
            let lines = self.responses.record(number).iter().zip(self.requests.record(number));
            lines.for_each(|(to, from)| to.copy_from(from));
        }
        self.done += count;
        self.responses.publish(self.done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends__answer_all_that_was_sent() {
        for (size, in_flight) in [(32, 60), (32, 1), (0, 64), (500, 17)] {
            let (mut caller, mut echo) = ends(size, in_flight);
            for _ in 0..2 {
                caller.begin(clock::now_ns() + 1_000_000);
                while !caller.is_over() {
                    caller.poll_once();
                    assert!(caller.sent - caller.received <= u64::from(in_flight));
                    echo.poll_once();
                }
                let window = caller.finish();
                assert!(window.calls >= u64::from(in_flight));
                assert_eq!((window.checked, window.mismatched), (window.calls, 0));
            }
        }
    }

    #[test]
    fn poll_once__notices_a_record_of_another_call() {
        let (mut caller, mut echo) = ends(32, 4);
        caller.begin(u64::MAX);
        echo.poll_once();
        caller.responses.record(2)[0].fill(77);
        caller.poll_once();
        assert_eq!((caller.window.answered, caller.window.mismatched), (4, 1));
    }
}
