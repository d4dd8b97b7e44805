//! What the simulation knows of one ring: its frames, and whether its consumer sleeps.

use std::collections::VecDeque;

use petrel_transport::shm::detached::Misdeed;

use crate::fabric::SimAddr;
use crate::time::Time;

/// One direction of a pair of endpoints.
#[derive(Debug)]
pub(crate) struct Lane {
    /// The consumer.
    to: SimAddr,
    /// Frames that were written and not taken.
    frames: VecDeque<Vec<u8>>,
    /// How many of them, at the end, the consumer cannot see yet.
    unpublished: usize,
    /// When the latest of those that it can see were published.
    newest: Time,
    is_asleep: bool,
    /// How often the consumer has said that it sleeps.
    sleeps: u64,
    wakes_on_way: u64,
    rung: u64,
    /// Whether the system refused the wake-up for this sleep.
    was_refused: bool,
    /// Whether the producer, or the consumer, has broken a rule here.
    is_defaced: bool,
    has_bad_header: bool,
    rests: u32,
}

impl Lane {
    pub(super) fn new(to: SimAddr) -> Self {
        Self {
            to,
            frames: VecDeque::new(),
            unpublished: 0,
            newest: Time::ZERO,
            is_asleep: false,
            sleeps: 0,
            wakes_on_way: 0,
            rung: 0,
            was_refused: false,
            is_defaced: false,
            has_bad_header: false,
            rests: 0,
        }
    }

    pub(super) fn write(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
        self.unpublished += 1;
    }

    /// The frames of a burst can be seen from now on, and the consumer knows of it or is told.
    pub(super) fn publish(&mut self, now: Time) {
        if self.unpublished == 0 {
            return;
        }
        self.unpublished = 0;
        self.newest = now;
        // Each refusal is for one burst.
        let was_refused = std::mem::take(&mut self.was_refused);
        let is_told = self.wakes_on_way + self.rung > 0 || was_refused;
        assert!(!self.is_asleep || is_told, "{} sleeps on, and nobody wakes it", self.to);
    }

    /// A frame is given to the consumer.
    pub(super) fn take(&mut self, frame: &[u8]) {
        let to = self.to;
        assert!(self.published() > 0, "{to} is given a frame that nobody has published: {frame:?}");
        let next = self.frames.pop_front();
        assert!(next.as_deref() == Some(frame), "{to} is given another frame than the next");
    }

    /// Frames that the consumer can see, and has not taken.
    pub(super) fn published(&self) -> usize {
        self.frames.len() - self.unpublished
    }

    /// When the latest of them was published; the beginning if there is none.
    pub(super) fn newest(&self) -> Time {
        if self.published() > 0 { self.newest } else { Time::ZERO }
    }

    /// The consumer says that it sleeps; what it does then is another matter.
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

    /// Wake-ups leave. They come to the address that this gives.
    pub(crate) fn send_wakes(&mut self, count: u64) {
        self.wakes_on_way += count;
    }

    /// They arrive.
    pub(crate) fn receive_wakes(&mut self, count: u64) -> SimAddr {
        self.wakes_on_way -= count;
        self.rung += count;
        self.to
    }

    pub(super) fn has_rung(&self) -> bool {
        self.rung > 0
    }

    pub(super) fn take_rung(&mut self) -> u64 {
        std::mem::take(&mut self.rung)
    }

    /// One of the two sides breaks a rule; with a bad header, the consumer is sure to find it.
    pub(super) fn note_misdeed(&mut self, header: Option<Misdeed>) {
        self.is_defaced = true;
        self.has_bad_header |= header.is_some();
    }

    pub(super) fn is_defaced(&self) -> bool {
        self.is_defaced
    }

    /// How often the consumer has come to rest, this time included, with nothing but an impossible header before it.
    pub(super) fn rests_over_bad_header(&mut self) -> u32 {
        self.rests += u32::from(self.has_bad_header && self.published() == 0);
        self.rests
    }
}
