//! Shared memory, one message at a time: the baseline round trip.
//!
//! A message occupies cache lines of its own, and the number marking the message as new lies on the first line. A
//! single line travels per direction for messages of up to 56 bytes; a ring with a separate index needs more lines.
//!
//! The words are relaxed atomics, which compile to plain loads and stores. The number is stored last
//! (release) and loaded first (acquire), which orders the words.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use petrel_command::output::latency::Latencies;
use petrel_transport::clock;

use super::super::ends::{ClientEnd, ServerEnd};
use super::super::window::Window;
use super::{WindowCounts, message_words};

/// Words of a cache line.
const LINE_WORDS: usize = 8;

/// A cache line, alone on a pair of lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Line([AtomicU64; LINE_WORDS]);

/// One message: its number, then its words.
struct Mailbox {
    lines: Box<[Line]>,
}

/// The calling end.
pub(in super::super) struct Ping {
    request: Arc<Mailbox>,
    response: Arc<Mailbox>,
    words: usize,
    number: u64,
    started_ns: u64,
    end_ns: u64,
    called_ns: u64,
    is_waiting: bool,
    window: WindowCounts,
    latencies: Latencies,
}

/// The answering end.
pub(in super::super) struct Pong {
    request: Arc<Mailbox>,
    response: Arc<Mailbox>,
    words: usize,
    number: u64,
}

/// Returns the two ends, for messages of `size` bytes.
pub(in super::super) fn ends(size: usize) -> (Ping, Pong) {
    let words = message_words(size);
    let [request, response] = [(); 2].map(|()| Arc::new(Mailbox::new(words)));
    let pong =
        Pong { request: Arc::clone(&request), response: Arc::clone(&response), words, number: 0 };
    let ping = Ping {
        request,
        response,
        words,
        number: 0,
        started_ns: 0,
        end_ns: 0,
        called_ns: 0,
        is_waiting: false,
        window: WindowCounts::default(),
        latencies: Latencies::default(),
    };
    (ping, pong)
}

impl Mailbox {
    fn new(words: usize) -> Self {
        let lines = (words + 1).div_ceil(LINE_WORDS);
        let line = || Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { lines: std::iter::repeat_with(line).take(lines).collect() }
    }

    /// Returns the number of the current message.
    #[inline]
    fn number(&self) -> u64 {
        self.lines[0].0[0].load(Ordering::Acquire)
    }

    /// Returns word `index` of the message.
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.lines[(index + 1) / LINE_WORDS].0[(index + 1) % LINE_WORDS]
    }

    /// Writes a message.
    #[inline]
    fn post(&self, number: u64, words: usize, word: impl Fn(usize) -> u64) {
        for index in 0..words {
            self.word(index).store(word(index), Ordering::Relaxed);
        }
        self.lines[0].0[0].store(number, Ordering::Release);
    }
}

impl Ping {
    #[inline]
    fn call(&mut self) {
        self.number += 1;
        self.window.calls += 1;
        let number = self.number;
        self.request.post(number, self.words, |index| number + index as u64);
    }

    /// Returns true if every word of the answer equals the request's.
    #[inline]
    fn is_right(&self) -> bool {
        let right = |index: usize| {
            self.response.word(index).load(Ordering::Relaxed) == self.number + index as u64
        };
        (0..self.words).all(right)
    }
}

impl ClientEnd for Ping {
    fn begin(&mut self, end_ns: u64) {
        self.window = WindowCounts::default();
        self.latencies = Latencies::default();
        self.end_ns = end_ns;
        self.started_ns = clock::now_ns();
        self.called_ns = self.started_ns;
        self.is_waiting = true;
        self.call();
    }

    #[inline]
    fn poll_once(&mut self) {
        if self.response.number() != self.number || !self.is_waiting {
            return;
        }
        self.window.answered += 1;
        self.window.mismatched += u64::from(!self.is_right());
        let now_ns = clock::now_ns();
        self.latencies.record(now_ns - self.called_ns);
        self.called_ns = now_ns;
        if now_ns < self.end_ns {
            self.call();
        } else {
            self.is_waiting = false;
        }
    }

    #[inline]
    fn is_over(&self) -> bool {
        !self.is_waiting
    }

    fn give_up(&mut self, _: Duration) {
        self.window.lost += 1;
        self.is_waiting = false;
    }

    fn finish(&mut self) -> Window {
        let latencies = std::mem::take(&mut self.latencies);
        self.window.finish(self.started_ns, Some(latencies))
    }
}

impl ServerEnd for Pong {
    #[inline]
    fn poll_once(&mut self) {
        let number = self.request.number();
        if number != self.number {
            self.number = number;
            let request = &self.request;
            self.response
                .post(number, self.words, |index| request.word(index).load(Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping__counts_and_times_each_round_trip() {
        for size in [0, 32, 40, 41, 1_000] {
            let (mut ping, mut pong) = ends(size);
            ping.begin(clock::now_ns() + 1_000_000);
            while !ping.is_over() {
                ping.poll_once();
                pong.poll_once();
            }
            let window = ping.finish();
            assert!(window.checked > 0 && window.checked == window.calls);
            assert_eq!((window.mismatched, window.lost), (0, 0));
            assert_eq!(window.latencies.unwrap().summary().unwrap().count, window.calls);
        }
    }

    #[test]
    fn ping__notices_a_wrong_word() {
        let (mut ping, mut pong) = ends(32);
        ping.begin(0);
        pong.poll_once();
        pong.response.word(5).fetch_add(1, Ordering::Relaxed);
        ping.poll_once();
        assert!(ping.is_over());
        assert_eq!(ping.finish().mismatched, 1);
    }
}
