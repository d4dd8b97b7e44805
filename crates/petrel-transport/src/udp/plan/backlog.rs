//! Handles the kernel's refusals: splits messages that the kernel does not segment, and keeps
//! messages without room.

use std::ops::Range;
use std::ptr::null_mut;

use petrel_planted::planted;

use super::sealing::{NO_SEALED_PEER, Sealing};
use super::{Load, Message, NO_PEER, Plan, STAGING_BYTES};
use crate::seal::OVERHEAD_BYTES;
use crate::transport::PeerId;

impl Plan {
    /// Splits the messages from `first` on into single datagrams, for a kernel that does not
    /// segment after all. The plan groups no more datagrams afterwards.
    pub(in crate::udp) fn ungroup(&mut self, first: usize) {
        self.message_bytes_max = 0;
        for mut message in self.messages.split_off(first) {
            while message.run.count > 0 {
                let single = self.cut_datagram(&mut message);
                self.messages.push(single);
            }
        }
    }

    pub(super) fn cut_datagram(&self, message: &mut Message) -> Message {
        let (run, bytes, frames) = self.pieces.cut(&mut message.run, message.segment_bytes);
        let is_sealed = self.pieces.is_in(run, self.sealed_area());
        let plain_bytes = bytes - if is_sealed { OVERHEAD_BYTES } else { 0 };
        let load = Load::of_datagram(plain_bytes, frames as usize);
        Message { run, load, segment_bytes: bytes, bytes, datagram_count: 1, ..*message }
    }

    /// The place of sealed datagrams.
    fn sealed_area(&self) -> Range<*mut u8> {
        self.sealing.as_ref().map_or(null_mut()..null_mut(), Sealing::own)
    }

    /// Keeps the messages from `first` on for later, and copies their large frames. Sealed datagrams stay as they are.
    pub(in crate::udp) fn keep(&mut self, first: usize) {
        self.messages.drain(..first);
        if std::mem::replace(&mut self.is_kept, true) || planted("udp_kept_frames_not_copied") {
            return;
        }
        let start = self.staging.start().as_ptr();
        let own = [start..start.wrapping_add(STAGING_BYTES), self.sealed_area()];
        let bytes = self.pieces.foreign(own.clone()).map(|piece| piece.iov_len).sum();
        self.kept.resize(bytes, 0);
        let mut to = self.kept.as_mut_ptr();
        for piece in self.pieces.foreign(own) {
            // SAFETY: the piece is as `add_large` got it; the new memory has room for all pieces.
            unsafe {
                to.copy_from_nonoverlapping(piece.iov_base.cast(), piece.iov_len);
                piece.iov_base = to.cast();
                to = to.add(piece.iov_len);
            }
        }
    }

    /// Leaves the frames of a removed peer in place, but adds no more to its queue: another peer
    /// may get the removed peer's id. Frames to be sealed are dropped later, because their keys go with the peer.
    pub(in crate::udp) fn close_lane(&mut self, peer: PeerId, is_sealed: bool) {
        self.settle();
        let removed = if is_sealed { NO_SEALED_PEER } else { NO_PEER };
        self.lanes.iter_mut().filter(|lane| lane.peer == peer).for_each(|lane| lane.peer = removed);
    }
}
