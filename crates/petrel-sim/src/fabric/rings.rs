//! The fabric's part in shared-memory rings: wake-ups, and showing frames to the watcher.

use std::cell::RefCell;
use std::rc::Rc;

use crate::ring::RingState;

use super::packet::SimAddr;
use super::trace_line::mix;
use super::{Event, Fabric};

impl Fabric {
    /// Sends wake-ups to the consumer of a ring.
    pub(crate) fn ring(&mut self, ring_state: &Rc<RefCell<RingState>>, delay_ns: u64, count: u64) {
        self.stats.wakes += count;
        ring_state.borrow_mut().send_wakes(count);
        self.queue.push(self.now.plus_ns(delay_ns), Event::Ring(Rc::clone(ring_state), count));
    }

    /// Handles the arrival of wake-ups.
    pub(super) fn handle_ring(&mut self, ring_state: &RefCell<RingState>, count: u64) {
        let to = ring_state.borrow_mut().receive_wakes(count);
        self.note(format_args!("WAKE {to} {count} times"));
        self.wake_owner(to);
    }

    /// Records that the current actor has written a frame to a ring, or taken one out of a ring.
    pub(crate) fn show_ring_frame(
        &mut self,
        from: SimAddr,
        to: SimAddr,
        frame: &[u8],
        is_sent: bool,
    ) {
        self.frames_in_turn += 1;
        let kind = if is_sent { "WRITE" } else { "TAKE" };
        self.note_frame(format_args!("{kind} {from}->{to} {} bytes by a ring", frame.len()), frame);
        self.digest = mix(self.digest, frame.len() as u64);
        if is_sent {
            self.stats.ring_frames += 1;
            self.show_frame_sent(from, to, None, frame);
        } else {
            self.note_step();
            self.forget_reading();
            self.show_frame_taken((from, 0), to, None, frame, false);
        }
    }
}
