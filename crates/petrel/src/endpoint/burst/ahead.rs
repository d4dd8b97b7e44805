//! Lookahead in a burst: prefetches the memory of later frames.

use petrel_proto::{Core, UpcomingFrame};
use petrel_transport::RX_BURST_MAX;
use petrel_transport::prefetch::prefetch;

use crate::endpoint::context::continuation::Continuation;
use crate::msgbuf::MsgBuf;

/// The distance in frames at which each step is taken: four small requests take longer than a cache line takes to
/// arrive from memory.
const ANSWER_AHEAD: usize = 4;
const SLOT_AHEAD: usize = 8;
const SESSION_AHEAD: usize = 12;

/// The most frames remembered: a transport may show somewhat more than a burst.
const SHOWN_MAX: usize = 2 * RX_BURST_MAX;

const _: () = assert!(ANSWER_AHEAD < SLOT_AHEAD && SLOT_AHEAD < SESSION_AHEAD);
const _: () = assert!(SESSION_AHEAD < SHOWN_MAX);

/// The shown frames of the burst, and how many of them were received.
pub(super) struct Ahead {
    shown: Vec<UpcomingFrame>,
    received: usize,
}

impl Ahead {
    pub(super) fn new() -> Self {
        Self { shown: Vec::new(), received: 0 }
    }

    /// Begins a new burst.
    #[inline]
    pub(super) fn restart(&mut self) {
        self.shown.clear();
        self.received = 0;
    }

    /// Records a frame that will be received.
    #[inline]
    pub(super) fn show(&mut self, core: &Core<MsgBuf, Continuation>, frame: &[u8]) {
        if self.received == self.shown.len() {
            self.restart();
        }
        let upcoming = UpcomingFrame::of(frame);
        if self.shown.len() < SESSION_AHEAD {
            prefetch(core.session_address(upcoming));
        }
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(upcoming);
        }
    }

    /// Advances to the next shown frame. Before the first frame, catches up on the steps missed for the frames right
    /// behind it.
    #[inline]
    pub(super) fn step(&mut self, core: &Core<MsgBuf, Continuation>) {
        let at = self.received;
        if at == self.shown.len() {
            return;
        }
        if at == 0 {
            self.shown.iter().take(SLOT_AHEAD).for_each(|next| fetch_slot(core, *next));
            self.shown.iter().take(ANSWER_AHEAD).for_each(|next| fetch_answer(core, *next));
        }
        self.received += 1;
        if let Some(next) = self.shown.get(at + SESSION_AHEAD) {
            prefetch(core.session_address(*next));
        }
        if let Some(next) = self.shown.get(at + SLOT_AHEAD) {
            fetch_slot(core, *next);
        }
        if let Some(next) = self.shown.get(at + ANSWER_AHEAD) {
            fetch_answer(core, *next);
        }
    }
}

#[inline]
fn fetch_slot(core: &Core<MsgBuf, Continuation>, upcoming: UpcomingFrame) {
    prefetch(core.slot_address(upcoming));
}

#[inline]
fn fetch_answer(core: &Core<MsgBuf, Continuation>, upcoming: UpcomingFrame) {
    core.answer_addresses(upcoming).into_iter().for_each(prefetch);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shown frames may be fewer than the received ones: a burst may end early, and may exceed the remembered
    /// number.
    #[test]
    fn step__follows_the_shown_frames_burst_by_burst() {
        let core = Core::new(0, petrel_proto::Config::default());
        let mut ahead = Ahead::new();
        ahead.step(&core);
        assert_eq!((ahead.shown.len(), ahead.received), (0, 0), "nothing was shown");
        for (shown, remembered) in
            [(1, 1), (20, 20), (SHOWN_MAX, SHOWN_MAX), (SHOWN_MAX + 5, SHOWN_MAX)]
        {
            (0..shown).for_each(|_| ahead.show(&core, &[0; 16]));
            assert_eq!(
                (ahead.shown.len(), ahead.received),
                (remembered, 0),
                "those of the former burst are gone"
            );
            for came in 1..=shown + 1 {
                ahead.step(&core);
                assert_eq!(ahead.received, came.min(remembered));
            }
        }
        (0..3).for_each(|_| ahead.show(&core, &[0; 16]));
        ahead.step(&core);
        ahead.restart();
        assert_eq!((ahead.shown.len(), ahead.received), (0, 0));
    }
}
