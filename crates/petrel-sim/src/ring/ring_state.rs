//! The simulation's state of a ring: frames, and sleep of the consumer.

use std::collections::VecDeque;

use petrel_transport::shm::detached::RingViolation;

use crate::fabric::SimAddr;
use crate::time::Time;

/// One direction of a pair of endpoints.
#[derive(Debug)]
pub(crate) struct RingState {
    to: SimAddr,
    /// Frames that were written and not taken.
    frames: VecDeque<Vec<u8>>,
    /// The number of frames at the end that are not published yet.
    unpublished: usize,
    /// When the latest published frame was published.
    newest: Time,
    is_asleep: bool,
    /// The number of times that the consumer has announced sleep.
    sleeps: u64,
    wakes_in_flight: u64,
    wakes_arrived: u64,
    /// Whether the system refused the wake-up for this sleep.
    was_refused: bool,
    /// Whether producer or consumer has broken a rule here.
    is_corrupted: bool,
    has_bad_header: bool,
    rests: u32,
}

impl RingState {
    pub(super) fn new(to: SimAddr) -> Self {
        Self {
            to,
            frames: VecDeque::new(),
            unpublished: 0,
            newest: Time::ZERO,
            is_asleep: false,
            sleeps: 0,
            wakes_in_flight: 0,
            wakes_arrived: 0,
            was_refused: false,
            is_corrupted: false,
            has_bad_header: false,
            rests: 0,
        }
    }

    pub(super) fn write(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
        self.unpublished += 1;
    }

    /// Publishes the frames of a burst. The consumer is awake, or a wake-up is in flight to it.
    pub(super) fn publish(&mut self, now: Time) {
        if self.unpublished == 0 {
            return;
        }
        self.unpublished = 0;
        self.newest = now;
        // Each refusal covers one burst.
        let was_refused = std::mem::take(&mut self.was_refused);
        let is_notified = self.wakes_in_flight + self.wakes_arrived > 0 || was_refused;
        assert!(!self.is_asleep || is_notified, "{} sleeps on, and nobody wakes it", self.to);
    }

    /// Checks a frame that is delivered to the consumer.
    pub(super) fn take(&mut self, frame: &[u8]) {
        let to = self.to;
        assert!(self.published() > 0, "{to} is given a frame that nobody has published: {frame:?}");
        let next = self.frames.pop_front();
        assert!(next.as_deref() == Some(frame), "{to} is given another frame than the next");
    }

    /// Returns the number of frames that the consumer can see and has not taken.
    pub(super) fn published(&self) -> usize {
        self.frames.len() - self.unpublished
    }

    /// Returns when the latest of these frames was published; time zero without one.
    pub(super) fn newest(&self) -> Time {
        if self.published() > 0 { self.newest } else { Time::ZERO }
    }

    /// Records an announcement of sleep by the consumer, with or without sleep afterwards.
    pub(super) fn note_sleep(&mut self) {
        self.sleeps += 1;
    }

    pub(super) fn set_asleep(&mut self, is_asleep: bool) {
        self.is_asleep = is_asleep;
    }

    pub(super) fn sleeps(&self) -> u64 {
        self.sleeps
    }

    pub(super) fn note_refusal(&mut self) {
        self.was_refused = true;
    }

    /// Records departing wake-ups.
    pub(crate) fn send_wakes(&mut self, count: u64) {
        self.wakes_in_flight += count;
    }

    /// Records arriving wake-ups. Returns the consumer's address.
    pub(crate) fn receive_wakes(&mut self, count: u64) -> SimAddr {
        self.wakes_in_flight -= count;
        self.wakes_arrived += count;
        self.to
    }

    pub(super) fn has_arrived_wakes(&self) -> bool {
        self.wakes_arrived > 0
    }

    pub(super) fn take_arrived_wakes(&mut self) -> u64 {
        std::mem::take(&mut self.wakes_arrived)
    }

    /// Records that a side breaks a rule. With a bad header, the consumer is sure to find out.
    pub(super) fn note_violation(&mut self, header: Option<RingViolation>) {
        self.is_corrupted = true;
        self.has_bad_header |= header.is_some();
    }

    pub(super) fn is_corrupted(&self) -> bool {
        self.is_corrupted
    }

    /// Counts and returns the consumer's rests with nothing but an impossible header left to read.
    pub(super) fn rests_over_bad_header(&mut self) -> u32 {
        self.rests += u32::from(self.has_bad_header && self.published() == 0);
        self.rests
    }
}
