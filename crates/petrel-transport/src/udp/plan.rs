//! What to send, before any system call: frames into datagrams, datagrams into messages.
//!
//! 1. Frames come one by one. Each peer of the burst has a *lane*. Small frames that follow one
//!    another in a lane are copied into a bundle of up to the peer's largest datagram; a frame that
//!    stays alone, or a large one, goes bare, a large one from where it lies.
//! 2. When the burst ends, the lanes are gone through in order of their first frame. Datagrams that
//!    follow one another and have the same size make one message for segmentation offload (its last
//!    datagram may be shorter). Without offload each datagram is a message.
//!
//! A message is what one entry of `sendmmsg` carries, and succeeds or fails as a whole.
//!
//! A datagram is a list of *pieces*, runs of bytes that the kernel gathers. A bundle whose frames
//! came without others between is one piece; where frames to several peers come by turns, their
//! bundles have more, but no byte is copied twice.
//!
//! # What is kept
//!
//! Where the kernel has no room for a message, the plan itself is the backlog: the large frames
//! that are not yet sent are copied to memory of the plan, and the pieces point there.
//!
//! # Why the unsafe code is sound
//!
//! Pieces point to three places. *The staging area*, which belongs to the plan, is only accessed
//! through its raw pointer, and behind `staged_bytes` only, where no piece points yet. *Large
//! frames* belong to others: who calls [`Plan::add_large`] promises that they stay until the plan
//! is sent or [`Plan::keep`] has copied them. *Kept bytes* are only written before pieces point to
//! them. Pieces are read by the kernel, and by `keep`.

use std::ptr::NonNull;

use super::addr::RawAddr;
use crate::buf::Region;
use crate::bundle::{BUNDLE_MARK, LENGTH_BYTES, MARK_BYTES, record_bytes};
use crate::copy::copy_frame;
use crate::transport::PeerId;

/// Frames up to this size are worth a copy to share a datagram: it costs some 30 ns in cache, and
/// a datagram of its own costs a trip through the network stack, or a packet on the wire.
pub(super) const SMALL_FRAME_BYTES_MAX: usize = 2048;

/// Room for the bundles of a burst. It is sent when this is used up: that is a thousand small
/// frames, or 64 of the largest small ones.
const STAGING_BYTES: usize = 128 << 10;

/// Most pieces of a burst, so that one call carries no more than some megabyte at the default MTU,
/// and that an entry of `sendmmsg` stays below the 1024 pieces that the kernel takes.
pub(super) const PIECES_MAX: usize = 256;

/// Most datagrams in one message: the kernel's `UDP_MAX_SEGMENTS`, which Linux 6.9 doubled.
const SEGMENTS_MAX: u32 = 64;

/// What a lone frame in the staging area has before it, in case that it is not alone.
const FRAMING_BYTES: usize = MARK_BYTES + LENGTH_BYTES;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// No peer has this number: that of a peer that was removed after its frames came.
const NOBODY: PeerId = PeerId(u32::MAX);

/// A run of bytes to send.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: NonNull<u8>,
    bytes: u32,
    /// The next piece of the datagram.
    next: u32,
    /// Whether it is of a large frame, which lies with its owner.
    is_foreign: bool,
}

/// A datagram to send.
#[derive(Clone, Copy, Debug)]
struct Datagram {
    first_piece: u32,
    last_piece: u32,
    bytes: u32,
    frame_count: u32,
    /// Bytes of the frames alone.
    frame_bytes: u32,
    /// The next datagram of the lane.
    next: u32,
}

/// What is to go to one peer, in order.
struct Lane {
    peer: PeerId,
    name: RawAddr,
    first: u32,
    last: u32,
    /// Whether the last datagram is a bundle that takes more.
    is_open: bool,
}

/// Consecutive datagrams of one lane in one entry of `sendmmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    lane: u32,
    first_datagram: u32,
    pub(super) datagram_count: u32,
}

/// What a message carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) frames: u64,
    pub(super) frame_bytes: u64,
}

/// Where a peer's frames go, as [`Plan::add_small`] and [`Plan::add_large`] need it.
pub(super) struct Target<'a> {
    pub(super) peer: PeerId,
    pub(super) name: &'a RawAddr,
    /// The largest datagram. No frame is larger.
    pub(super) datagram_bytes_max: usize,
    /// The peer's lane in this burst or an earlier one, to be stored for the next frame.
    pub(super) lane: &'a mut u32,
}

/// The plan for one burst. Its memory is reused for the next.
pub(super) struct Plan {
    staging: Region,
    staged_bytes: usize,
    pieces: Vec<Piece>,
    datagrams: Vec<Datagram>,
    lanes: Vec<Lane>,
    messages: Vec<Message>,
    /// Large frames of a burst for which the kernel had no room.
    kept: Vec<u8>,
    is_sealed: bool,
}

// SAFETY: the pointers are to memory of the plan's, or of large frames, which stay where they are
// by the contract of `add_large`; neither is bound to a thread.
unsafe impl Send for Plan {}

impl Plan {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            staging: Region::zeroed(STAGING_BYTES, false)?,
            staged_bytes: 0,
            pieces: Vec::with_capacity(PIECES_MAX),
            datagrams: Vec::with_capacity(PIECES_MAX),
            lanes: Vec::with_capacity(PIECES_MAX),
            messages: Vec::with_capacity(PIECES_MAX),
            kept: Vec::new(),
            is_sealed: false,
        })
    }

    /// Whether there is nothing to send.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Whether the messages are made, so that nothing can be added any more.
    #[inline]
    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Whether any frame can be added.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        // A large frame takes two pieces, and there are no more datagrams or lanes than pieces.
        self.staged_bytes + FRAMING_BYTES + SMALL_FRAME_BYTES_MAX <= STAGING_BYTES
            && self.pieces.len() + 2 <= PIECES_MAX
    }

    pub(super) fn clear(&mut self) {
        self.staged_bytes = 0;
        self.pieces.clear();
        self.datagrams.clear();
        self.lanes.clear();
        self.messages.clear();
        self.is_sealed = false;
    }

    /// Copies a frame of at least one and up to [`SMALL_FRAME_BYTES_MAX`] bytes. There must be
    /// [room](Plan::has_room).
    #[inline]
    pub(super) fn add_small(&mut self, target: Target<'_>, head: &[u8], body: &[u8]) {
        let frame_bytes = head.len() + body.len();
        let limit = target.datagram_bytes_max;
        let lane = self.lane_of(target);
        if self.lanes[lane].is_open {
            let last = self.lanes[lane].last as usize;
            if self.datagrams[last].bytes as usize + record_bytes(frame_bytes) <= limit {
                let record = self.stage(false, head, body);
                self.extend(last, record);
                let datagram = &mut self.datagrams[last];
                datagram.frame_count += 1;
                datagram.frame_bytes += frame_bytes as u32;
                return;
            }
        }
        let record = self.stage(true, head, body);
        self.begin_datagram(lane, record, frame_bytes);
        self.lanes[lane].is_open = true;
    }

    /// Notes where a frame of more than [`SMALL_FRAME_BYTES_MAX`] bytes lies. There must be
    /// [room](Plan::has_room).
    ///
    /// # Safety
    /// Both slices stay unchanged where they are until the plan is cleared, or
    /// [`Plan::keep`] has returned.
    pub(super) unsafe fn add_large(&mut self, target: Target<'_>, head: &[u8], body: &[u8]) {
        let lane = self.lane_of(target);
        let mut parts = [head, body].into_iter().filter(|part| !part.is_empty()).map(foreign);
        let Some(first) = parts.next() else { return };
        let datagram = self.begin_datagram(lane, first, head.len() + body.len());
        parts.for_each(|piece| self.extend(datagram, piece));
        self.lanes[lane].is_open = false;
    }

    /// The lane of a peer, new if it has none in this burst.
    #[inline]
    fn lane_of(&mut self, target: Target<'_>) -> usize {
        let known = *target.lane as usize;
        if self.lanes.get(known).is_some_and(|lane| lane.peer == target.peer) {
            return known;
        }
        *target.lane = self.lanes.len() as u32;
        let (peer, name) = (target.peer, *target.name);
        self.lanes.push(Lane { peer, name, first: NONE, last: NONE, is_open: false });
        self.lanes.len() - 1
    }

    /// Copies a record of a bundle to the staging area, with the mark before it if it is the
    /// first.
    #[inline]
    fn stage(&mut self, is_first: bool, head: &[u8], body: &[u8]) -> Piece {
        let frame_bytes = head.len() + body.len();
        let mark_bytes = if is_first { MARK_BYTES } else { 0 };
        let bytes = mark_bytes + record_bytes(frame_bytes);
        assert!(self.staged_bytes + bytes <= STAGING_BYTES, "frames are added while there is room");
        // SAFETY: so many bytes are left of the area, and no piece points to them yet.
        let start = unsafe { self.staging.start().add(self.staged_bytes) };
        let to = start.as_ptr();
        // SAFETY: as above; the parts come from others and do not overlap the area. A first record
        // of a frame begins with a mark, which is written even if it is overwritten.
        unsafe {
            to.write(BUNDLE_MARK);
            let to = to.add(mark_bytes);
            to.cast::<[u8; LENGTH_BYTES]>().write((frame_bytes as u16).to_le_bytes());
            copy_frame(head, to.add(LENGTH_BYTES));
            copy_frame(body, to.add(LENGTH_BYTES + head.len()));
        }
        self.staged_bytes += bytes;
        Piece { start, bytes: bytes as u32, next: NONE, is_foreign: false }
    }

    /// Adds a datagram of one piece and one frame to a lane.
    #[inline]
    fn begin_datagram(&mut self, lane: usize, piece: Piece, frame_bytes: usize) -> usize {
        let (index, first_piece) = (self.datagrams.len(), self.pieces.len() as u32);
        self.datagrams.push(Datagram {
            first_piece,
            last_piece: first_piece,
            bytes: piece.bytes,
            frame_count: 1,
            frame_bytes: frame_bytes as u32,
            next: NONE,
        });
        self.pieces.push(piece);
        let lane = &mut self.lanes[lane];
        match self.datagrams.get_mut(lane.last as usize) {
            Some(last) => last.next = index as u32,
            None => lane.first = index as u32,
        }
        lane.last = index as u32;
        index
    }

    /// Adds bytes to a datagram: to its last piece where they lie behind that.
    #[inline]
    fn extend(&mut self, datagram: usize, piece: Piece) {
        let next_piece = self.pieces.len() as u32;
        let datagram = &mut self.datagrams[datagram];
        datagram.bytes += piece.bytes;
        let last = &mut self.pieces[datagram.last_piece as usize];
        let last_end = last.start.as_ptr().wrapping_add(last.bytes as usize);
        if last_end == piece.start.as_ptr() && !last.is_foreign {
            last.bytes += piece.bytes;
        } else {
            last.next = next_piece;
            datagram.last_piece = next_piece;
            self.pieces.push(piece);
        }
    }

    /// Makes the messages: of up to `message_bytes_max` each, or of one datagram.
    pub(super) fn seal(&mut self, message_bytes_max: usize) {
        self.is_sealed = true;
        self.datagrams.iter_mut().for_each(|datagram| unwrap_lone(datagram, &mut self.pieces));
        for (lane, first) in self.lanes.iter().map(|lane| lane.first).enumerate() {
            let mut at = first;
            while at != NONE {
                let (datagram_count, next) = segment_run(&self.datagrams, at, message_bytes_max);
                let lane = lane as u32;
                self.messages.push(Message { lane, first_datagram: at, datagram_count });
                at = next;
            }
        }
    }

    /// What [`Plan::seal`] made.
    #[inline]
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Where a message goes.
    #[inline]
    pub(super) fn name_of(&self, message: &Message) -> &RawAddr {
        &self.lanes[message.lane as usize].name
    }

    /// Size of a message's datagrams, but for a shorter last one.
    #[inline]
    pub(super) fn segment_bytes(&self, message: &Message) -> usize {
        self.datagrams[message.first_datagram as usize].bytes as usize
    }

    /// The bytes of a message, as the kernel gathers them.
    #[inline]
    pub(super) fn pieces_of(&self, message: &Message) -> impl Iterator<Item = libc::iovec> {
        let pieces = self.datagrams_of(message).flat_map(|datagram| self.list(datagram));
        pieces.map(|piece| libc::iovec {
            iov_base: piece.start.as_ptr().cast(),
            iov_len: piece.bytes as usize,
        })
    }

    /// What a message carries.
    pub(super) fn load_of(&self, message: &Message) -> Load {
        self.datagrams_of(message).fold(Load::default(), |load, datagram| Load {
            frames: load.frames + u64::from(datagram.frame_count),
            frame_bytes: load.frame_bytes + u64::from(datagram.frame_bytes),
        })
    }

    fn datagrams_of(&self, message: &Message) -> impl Iterator<Item = &Datagram> {
        let mut next = message.first_datagram;
        (0..message.datagram_count).map(move |_| {
            let datagram = &self.datagrams[next as usize];
            next = datagram.next;
            datagram
        })
    }

    fn list(&self, datagram: &Datagram) -> impl Iterator<Item = &Piece> {
        let mut next = datagram.first_piece;
        std::iter::from_fn(move || {
            let piece = self.pieces.get(next as usize)?;
            next = piece.next;
            Some(piece)
        })
    }

    /// Takes the messages from `first` on apart, for a kernel that does not segment after all.
    pub(super) fn ungroup(&mut self, first: usize) {
        let grouped = self.messages.len();
        let singles: u32 = self.messages[first..].iter().map(|m| m.datagram_count).sum();
        let mut end = first + singles as usize;
        let Some(&any) = self.messages.last() else { return };
        self.messages.resize(end, any);
        // From behind, so that each message is read before its place is needed.
        for index in (first..grouped).rev() {
            let message = self.messages[index];
            end -= message.datagram_count as usize;
            let mut first_datagram = message.first_datagram;
            for single in &mut self.messages[end..][..message.datagram_count as usize] {
                *single = Message { first_datagram, datagram_count: 1, ..message };
                first_datagram = self.datagrams[first_datagram as usize].next;
            }
        }
    }

    /// Leaves the messages from `first` on for later, and copies what of them others own.
    pub(super) fn keep(&mut self, first: usize) {
        self.messages.drain(..first);
        let owned_by_others = self.pieces.iter().filter(|piece| piece.is_foreign);
        let bytes: usize = owned_by_others.map(|piece| piece.bytes as usize).sum();
        if bytes == 0 {
            return;
        }
        self.kept.resize(bytes, 0);
        let mut to = self.kept.as_mut_ptr();
        for piece in self.pieces.iter_mut().filter(|piece| piece.is_foreign) {
            let bytes = piece.bytes as usize;
            // SAFETY: the piece is as `add_large` got it; the new memory has room for all of them,
            // so that its pointers are not null either.
            unsafe {
                to.copy_from_nonoverlapping(piece.start.as_ptr(), bytes);
                (piece.start, piece.is_foreign) = (NonNull::new_unchecked(to), false);
                to = to.add(bytes);
            }
        }
    }

    /// Leaves the frames of a peer that is removed as they are, but takes no more into its lane,
    /// should its number become another's.
    pub(super) fn close_lane(&mut self, peer: PeerId) {
        self.lanes.iter_mut().filter(|lane| lane.peer == peer).for_each(|lane| lane.peer = NOBODY);
    }
}

fn foreign(part: &[u8]) -> Piece {
    Piece {
        start: NonNull::from(part).cast(),
        bytes: part.len() as u32,
        next: NONE,
        is_foreign: true,
    }
}

/// Takes the framing from a bundle in which a frame stayed alone.
fn unwrap_lone(datagram: &mut Datagram, pieces: &mut [Piece]) {
    if datagram.frame_count == 1 && datagram.bytes > datagram.frame_bytes {
        let piece = &mut pieces[datagram.first_piece as usize];
        // SAFETY: the piece has the framing and a frame, in the staging area.
        piece.start = unsafe { piece.start.add(FRAMING_BYTES) };
        piece.bytes -= FRAMING_BYTES as u32;
        datagram.bytes -= FRAMING_BYTES as u32;
    }
}

/// How many datagrams from `first` on go in one message, and the one that follows: all of one
/// size, but the last may be shorter.
fn segment_run(datagrams: &[Datagram], first: u32, message_bytes_max: usize) -> (u32, u32) {
    let segment_bytes = datagrams[first as usize].bytes;
    let mut total_bytes = segment_bytes as usize;
    let (mut count, mut next) = (1, datagrams[first as usize].next);
    while let Some(datagram) = datagrams.get(next as usize) {
        total_bytes += datagram.bytes as usize;
        let is_too_much = total_bytes > message_bytes_max || count == SEGMENTS_MAX;
        if datagram.bytes > segment_bytes || is_too_much {
            break;
        }
        (count, next) = (count + 1, datagram.next);
        if datagram.bytes < segment_bytes {
            break;
        }
    }
    (count, next)
}

#[cfg(test)]
mod tests;
