//! The fast path of a plan.
//!
//! Most frames go where the previous frame went: into its bundle, or as another datagram of its
//! size. For these frames, [`Plan::try_extend`] compares peer and room, and writes the bytes or
//! their address. [`Tip`] holds the necessary state. The added frames are accounted for in queue
//! and message only when a different frame comes. The fast path takes a third of the general path's
//! instructions.
//!
//! A burst whose first frame is small begins with a *loose* bundle: a tip without a queue. If no
//! other frame comes, the bundle is sent without queue, piece and message. The shortcut saves 200
//! instructions. A loose bundle to a sealed peer has room for the head before it, and is sealed in place.

use super::pieces::Run;
use super::{
    Bundle, FRAMING_BYTES, Lane, Load, NO_PEER, NONE, NONE_TO_SEAL, PIECES_MAX, Plan, SEGMENTS_MAX,
    SMALL_FRAME_BYTES_MAX, STAGING_BYTES, Target, untrained_bytes,
};
use crate::bundle::{BUNDLE_MARK, LENGTH_BYTES, MARK_BYTES, framing_bytes, record_bytes};
use crate::copy::ONE_LINE_BYTES;
use crate::seal::{HEAD_BYTES, OVERHEAD_BYTES};
use crate::transport::PeerId;
use crate::udp::addr::RawAddr;

/// The place of the last frame, and the frames that may follow on the fast path.
pub(super) struct Tip {
    /// The peer of the queue, or `NO_PEER`.
    peer: PeerId,
    /// The queue, or `NONE` or `NONE_TO_SEAL` for a loose bundle.
    lane: u32,
    /// Bytes of room in the queue's bundle, never more than the staging area has; 0 if the tip is
    /// not a bundle.
    bundle_room_bytes: usize,
    /// `staged_bytes` when the bundle was last accounted for.
    booked_bytes: usize,
    /// Frames in the bundle not yet accounted for.
    frame_count: usize,
    /// The size of the datagrams that may follow the last message (a *train*).
    train_bytes: usize,
    /// Most datagrams that may follow, with room for two pieces per datagram.
    train_room: usize,
    /// Datagrams of the train not yet accounted for, and the number of pieces before them.
    train_count: usize,
    booked_pieces: usize,
}

impl Tip {
    pub(super) const NOWHERE: Self = Self {
        peer: NO_PEER,
        lane: 0,
        bundle_room_bytes: 0,
        booked_bytes: 0,
        frame_count: 0,
        train_bytes: 0,
        train_room: 0,
        train_count: 0,
        booked_pieces: 0,
    };
}

/// The only datagram of a burst.
pub(in crate::udp) struct Loose<'a> {
    pub(in crate::udp) peer: PeerId,
    pub(in crate::udp) name: &'a RawAddr,
    pub(in crate::udp) piece: libc::iovec,
    pub(in crate::udp) load: Load,
}

impl Plan {
    /// Adds a frame that goes where the last one went. After false, nothing was done, and the
    /// caller adds the frame by [`Plan::add_small`] or [`Plan::add_large`].
    ///
    /// # Safety
    /// As for [`Plan::add_large`].
    // Always, since the compiler inlines a function with several callers into none.
    #[inline(always)]
    pub(in crate::udp) unsafe fn try_extend(
        &mut self,
        peer: PeerId,
        head: &[u8],
        body: &[u8],
    ) -> bool {
        let frame_bytes = head.len() + body.len();
        let tip = &mut self.tip;
        if peer != tip.peer || frame_bytes == 0 {
            return false;
        }
        let record = record_bytes(frame_bytes);
        if record <= tip.bundle_room_bytes && frame_bytes <= SMALL_FRAME_BYTES_MAX {
            tip.bundle_room_bytes -= record;
            tip.frame_count += 1;
            // SAFETY: the record fits into the bundle's room, which is never more than the area's.
            unsafe {
                if body.is_empty() && ONE_LINE_BYTES.contains(&frame_bytes) {
                    self.stage_line(head);
                } else {
                    self.stage(head, body);
                }
            }
            return true;
        }
        if frame_bytes == tip.train_bytes && tip.train_count < tip.train_room {
            tip.train_count += 1;
            self.pieces.push_parts(head, body);
            return true;
        }
        false
    }

    /// Begins the burst with a bundle without a queue: in place of its number is `none`, [`NONE`] or [`NONE_TO_SEAL`].
    #[inline(always)]
    pub(super) fn begin_loose(&mut self, none: u32, target: Target<'_>, head: &[u8], body: &[u8]) {
        self.loose_name = *target.name;
        // If the bundle gets a queue, it is the first.
        *target.lane = 0;
        let before = room_before(none);
        // SAFETY: mark and record fit into the empty area; no piece points there.
        unsafe {
            self.staging.start().add(before).write(BUNDLE_MARK);
            self.staged_bytes = before + MARK_BYTES;
            self.stage(head, body);
        }
        self.tip.peer = target.peer;
        self.tip.lane = none;
        let limit = target.datagram_bytes_max.min(STAGING_BYTES - OVERHEAD_BYTES);
        self.tip.bundle_room_bytes = limit.saturating_sub(self.staged_bytes - before);
        self.tip.frame_count = 1;
    }

    /// The burst as one datagram, if a single bundle or a single small frame, to a peer that is not sealed.
    #[inline]
    pub(in crate::udp) fn loose(&self) -> Option<Loose<'_>> {
        self.loose_of(NONE)
    }

    /// The burst as one datagram, if its bundle has `none` in place of a queue.
    #[inline(always)]
    pub(super) fn loose_of(&self, none: u32) -> Option<Loose<'_>> {
        if self.tip.lane != none {
            return None;
        }
        let (frames, before) = (self.tip.frame_count, room_before(none));
        let skipped = before + if frames == 1 { FRAMING_BYTES } else { 0 };
        let start = self.staging.start().as_ptr().wrapping_add(skipped);
        let piece = libc::iovec { iov_base: start.cast(), iov_len: self.staged_bytes - skipped };
        let load = Load::of(frames, self.staged_bytes - before - framing_bytes(frames));
        Some(Loose { peer: self.tip.peer, name: &self.loose_name, piece, load })
    }

    /// Clears a [loose](Plan::loose) burst that was sent.
    #[inline]
    pub(in crate::udp) fn clear_loose(&mut self) {
        self.staged_bytes = 0;
        self.end_tip();
    }

    /// Allows the next frame into the bundle of this queue. The bundle ends at the end of the
    /// staging area.
    #[inline]
    pub(super) fn point_to_bundle(&mut self, lane: usize, limit: usize) {
        let Lane { peer, bundle: Some(bundle), .. } = &self.lanes[lane] else { return };
        let area_bytes = STAGING_BYTES - self.staged_bytes;
        self.tip.peer = *peer;
        self.tip.lane = lane as u32;
        self.tip.bundle_room_bytes = limit.saturating_sub(bundle.bytes).min(area_bytes);
        self.tip.booked_bytes = self.staged_bytes;
    }

    /// Allows the next frame as another datagram of the last message of this queue.
    #[inline]
    pub(super) fn point_to_train(&mut self, lane: usize, bytes: usize) {
        let Lane { peer, message, .. } = &self.lanes[lane];
        let message = &self.messages[*message as usize];
        let free_bytes = self.message_bytes_max.saturating_sub(message.bytes);
        if bytes != message.segment_bytes || free_bytes < bytes {
            return;
        }
        let by_pieces = (PIECES_MAX - self.pieces.len()) / 2;
        self.tip.peer = *peer;
        self.tip.lane = lane as u32;
        self.tip.train_bytes = bytes;
        self.tip.train_room =
            (free_bytes / bytes).min(SEGMENTS_MAX - message.datagram_count).min(by_pieces);
        self.tip.booked_pieces = self.pieces.len();
    }

    /// Accounts for the frames added on the fast path, and ends it: a different frame comes, or the
    /// peer table changes.
    #[inline]
    pub(in crate::udp) fn settle(&mut self) {
        if self.tip.peer == NO_PEER {
            return;
        }
        if self.tip.lane >= NONE_TO_SEAL {
            self.settle_loose();
        } else if self.tip.frame_count > 0 {
            self.book_frames();
        } else if self.tip.train_count > 0 {
            self.book_train();
        }
        self.end_tip();
    }

    /// Moves a loose bundle into a queue.
    pub(super) fn settle_loose(&mut self) {
        let (frames, before) = (self.tip.frame_count, room_before(self.tip.lane));
        let start = self.staging.start().as_ptr().wrapping_add(before);
        let bytes = self.staged_bytes - before;
        let load = Load::of(frames, bytes - framing_bytes(frames));
        let first = self.pieces.push(start, bytes, frames as u32);
        let run = Run { first, last: first, count: 1 };
        let bundle = Some(Bundle { run, bytes, load });
        let (peer, name) = (self.tip.peer, self.loose_name);
        let untrained_bytes = untrained_bytes(&name);
        self.lanes.push(Lane { peer, name, message: NONE, bundle, untrained_bytes });
    }

    pub(super) fn book_frames(&mut self) {
        let Self { tip, .. } = self;
        let bytes = self.staged_bytes - tip.booked_bytes;
        let Some(bundle) = &mut self.lanes[tip.lane as usize].bundle else { return };
        self.pieces.extend(bundle.run.last, bytes, tip.frame_count as u32);
        bundle.bytes += bytes;
        bundle.load.add(Load::of(tip.frame_count, bytes - tip.frame_count * LENGTH_BYTES));
    }

    pub(super) fn book_train(&mut self) {
        let Self { tip, .. } = self;
        let Lane { message, untrained_bytes, .. } = self.lanes[tip.lane as usize];
        let message = &mut self.messages[message as usize];
        let bytes = tip.train_count * tip.train_bytes;
        let (first, count) = (tip.booked_pieces, self.pieces.len() - tip.booked_pieces);
        let last = (first + count - 1) as u32;
        let run = Run { first: first as u32, last, count: count as u32 };
        self.pieces.join(&mut message.run, run);
        message.bytes += bytes;
        message.datagram_count += tip.train_count;
        message.load.add(Load::of(tip.train_count, bytes));
        self.has_small_trains |= message.bytes <= untrained_bytes;
    }

    /// Closes the fast path until the next general frame.
    #[inline]
    pub(super) fn end_tip(&mut self) {
        self.tip.peer = NO_PEER;
        self.tip.lane = 0;
        self.tip.bundle_room_bytes = 0;
        self.tip.frame_count = 0;
        self.tip.train_bytes = 0;
        self.tip.train_count = 0;
    }
}

/// Bytes before a loose bundle in the staging area, for the head of a sealed datagram.
#[inline(always)]
fn room_before(none: u32) -> usize {
    if none == NONE_TO_SEAL { HEAD_BYTES } else { 0 }
}
