//! The frames of a port's user: received ones, and those to send.

use std::collections::VecDeque;

use super::super::ether::frame::{TYPE_V6, V4_BYTES, V6_BYTES};
use super::table::{BURST_MAX, Frame, Table};

/// Most frames that wait for the port, four messages of most datagrams.
const PENDING_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Frames {
    /// Received frames, the oldest first.
    pub(super) ready: VecDeque<Frame>,
    /// Frames to write into.
    spare: Vec<Frame>,
    /// Frames to send.
    pub(super) pending: Vec<Frame>,
}

impl Frames {
    #[inline]
    pub(super) fn has_room(&mut self, table: &Table, frames: usize) -> bool {
        while self.spare.len() < frames {
            if !table.allocate(&mut self.spare, BURST_MAX / 2) {
                return false;
            }
        }
        self.pending.len() + frames <= PENDING_MAX
    }

    #[inline]
    pub(super) fn begin(&mut self, table: &Table, frame_bytes_max: usize) -> Option<&mut [u8]> {
        self.has_room(table, 1).then(|| {
            let frame = self.spare.last_mut().expect("there is room for one");
            &mut frame.room()[..frame_bytes_max]
        })
    }

    /// `completes_sum`: the port completes the UDP checksum of the frame.
    #[inline]
    pub(super) fn commit(&mut self, bytes: usize, completes_sum: bool) {
        let mut frame = self.spare.pop().expect("a frame was begun");
        frame.set_bytes(bytes);
        if completes_sum {
            let is_v6 = frame.bytes()[12..14] == TYPE_V6;
            frame.complete_sum(if is_v6 { V6_BYTES } else { V4_BYTES });
        }
        self.pending.push(frame);
    }

    #[inline]
    pub(super) fn release(&mut self) {
        assert!(self.ready.pop_front().is_some(), "a frame was received");
    }
}
