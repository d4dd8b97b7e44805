//! The layout of a burst, before any system call: frames into datagrams, datagrams into messages.
//!
//! 1. Each peer of the burst has a queue of its own (a [`Lane`]). Consecutive small frames of a
//!    queue are copied into a bundle of up to the peer's largest datagram. A single frame, or a
//!    large one, goes without framing; a large frame is sent in place.
//! 2. Consecutive datagrams of a queue with equal sizes make one message for segmentation offload
//!    (the last datagram may be shorter). Without offload, every datagram is a message.
//!
//! A message is one entry of `sendmmsg`, and succeeds or fails as a whole.
//!
//! A message is a run of *pieces*, which the kernel gathers. A bundle is a single piece if no
//! frames to other peers came between its frames. If frames to several peers alternate, the bundles
//! have more pieces, but no byte is copied twice.
//!
//! Most frames go where the previous frame went, by a fast path: see `tip`.
//!
//! # The backlog
//!
//! If the kernel has no room for a message, the plan itself is the backlog. Unsent large frames are
//! copied to the plan's memory, and the pieces point there.
//!
//! # Why the unsafe code is sound
//!
//! Pieces point to four places. *The staging area* belongs to the plan. The area is only accessed
//! through its raw pointer, and only behind `staged_bytes`, where no piece points yet. *Large
//! frames* belong to callers: by the contract of [`Plan::add_large`], the frames stay until the
//! plan is sent or [`Plan::keep`] has copied them. *Kept bytes* are only written before pieces
//! point to them. *Sealed datagrams* are in an area of their own, or alone in the staging area, and each is written before a
//! piece points to it. The kernel reads pieces, and so do `keep` and the sealing.

mod backlog;
mod pieces;
mod sealing;
#[cfg(test)]
mod tests;
mod tip;

use std::net::SocketAddr;

use petrel_planted::planted;

use super::addr::RawAddr;
use crate::buf::Region;
use crate::bundle::{BUNDLE_MARK, LENGTH_BYTES, MARK_BYTES, record_bytes};
use crate::copy::{copy_frame, copy_one_line};
use crate::device::xdp::PACKET_BYTES_MAX;
use crate::transport::PeerId;

pub(super) use pieces::PIECES_MAX;
use pieces::{Pieces, Run};
use sealing::Sealing;
pub(super) use tip::Loose;
use tip::Tip;

/// Frames up to this size are worth a copy to share a datagram. The copy costs some 30 ns in cache;
/// a separate datagram costs a trip through the network stack, or a packet on the wire.
pub(super) const SMALL_FRAME_BYTES_MAX: usize = 2048;

/// Room for the bundles of a burst: a thousand small frames, or 64 of the largest small ones. The
/// burst is sent when the room is used up.
const STAGING_BYTES: usize = 128 << 10;

/// Most datagrams in a message: the kernel's `UDP_MAX_SEGMENTS` before Linux 6.9 doubled the limit.
const SEGMENTS_MAX: usize = 64;

/// Framing before the first frame in the staging area, needed if a second frame follows.
const FRAMING_BYTES: usize = MARK_BYTES + LENGTH_BYTES;

/// The message of a queue without messages, and the queue of a loose bundle.
const NONE: u32 = u32::MAX;

/// The queue of a loose bundle to a sealed peer. No queue has this number or a greater one.
const NONE_TO_SEAL: u32 = NONE - 1;

/// An id without a peer. Queues of a removed peer get it.
const NO_PEER: PeerId = PeerId(u32::MAX);

/// A bundle that accepts more frames.
struct Bundle {
    run: Run,
    load: Load,
    bytes: usize,
}

/// The frames for one peer, in order.
struct Lane {
    peer: PeerId,
    name: RawAddr,
    /// The last message, or [`NONE`].
    message: u32,
    /// The open bundle behind the last message.
    bundle: Option<Bundle>,
    /// A message of several datagrams has more bytes: see [`Plan::cut_small_trains`].
    untrained_bytes: usize,
}

/// Consecutive datagrams of a queue in an entry of `sendmmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    lane: u32,
    run: Run,
    load: Load,
    /// Size of every datagram except the last, which may be shorter.
    segment_bytes: usize,
    bytes: usize,
    pub(super) datagram_count: usize,
}

impl Message {
    /// Returns true if a datagram of this size may follow.
    #[inline]
    fn takes(&self, bytes: usize, message_bytes_max: usize) -> bool {
        let is_regular = self.bytes == self.segment_bytes * self.datagram_count;
        bytes <= self.segment_bytes
            && (is_regular || planted("udp_short_segment_in_the_middle"))
            && self.datagram_count < SEGMENTS_MAX
            && self.bytes + bytes <= message_bytes_max
    }
}

/// The contents of a message or a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) frames: u64,
    /// Bytes of the frames without framing.
    pub(super) frame_bytes: u64,
}

impl Load {
    #[inline]
    fn of(frames: usize, frame_bytes: usize) -> Self {
        Self { frames: frames as u64, frame_bytes: frame_bytes as u64 }
    }

    #[inline]
    fn add(&mut self, other: Self) {
        self.frames += other.frames;
        self.frame_bytes += other.frame_bytes;
    }
}

/// Returns the most bytes for which datagrams to a peer are not joined: 0 on loopback, where no peer has a device.
#[inline]
fn untrained_bytes(name: &RawAddr) -> usize {
    if name.is_loopback() { 0 } else { PACKET_BYTES_MAX }
}

/// The destination of a frame, for [`Plan::add_small`] and [`Plan::add_large`].
pub(super) struct Target<'a> {
    pub(super) peer: PeerId,
    pub(super) name: &'a RawAddr,
    /// The largest datagram. No frame is larger.
    pub(super) datagram_bytes_max: usize,
    /// The peer's queue in this or an earlier burst; the plan updates the number for the next
    /// frame.
    pub(super) lane: &'a mut u32,
}

/// The plan for one burst. The next burst reuses the memory.
pub(super) struct Plan {
    tip: Tip,
    /// The destination of a loose bundle.
    loose_name: RawAddr,
    staging: Region,
    staged_bytes: usize,
    pieces: Pieces,
    lanes: Vec<Lane>,
    messages: Vec<Message>,
    /// Most bytes of a message of several datagrams.
    message_bytes_max: usize,
    /// Whether a message of several datagrams may be [too small](Plan::cut_small_trains).
    has_small_trains: bool,
    /// The messages before the cut; empty between two.
    uncut: Vec<Message>,
    /// Large frames of a burst for which the kernel had no room.
    kept: Vec<u8>,
    is_kept: bool,
    state: State,
    /// For sealed datagrams, once there was a sealed peer.
    sealing: Option<Sealing>,
}

/// Whether frames can be added to a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No frame is to be sealed.
    Open,
    /// Some frames are to be sealed.
    OpenToSeal,
    Closed,
}

// SAFETY: the pointers lead to the plan's own memory, or to large frames, which stay in place by
// the contract of `add_large`; neither is bound to a thread.
unsafe impl Send for Plan {}

impl Plan {
    /// Creates a plan for messages of up to `message_bytes_max` bytes, or (0) of one datagram.
    pub(super) fn new(message_bytes_max: usize) -> std::io::Result<Self> {
        Ok(Self {
            tip: Tip::NOWHERE,
            loose_name: RawAddr::from(SocketAddr::from(([0, 0, 0, 0], 0))),
            staging: Region::zeroed(STAGING_BYTES, false)?,
            staged_bytes: 0,
            pieces: Pieces::new(),
            lanes: Vec::with_capacity(PIECES_MAX),
            messages: Vec::with_capacity(PIECES_MAX),
            message_bytes_max,
            has_small_trains: false,
            uncut: Vec::with_capacity(PIECES_MAX),
            kept: Vec::new(),
            is_kept: false,
            state: State::Open,
            sealing: None,
        })
    }

    /// Returns true if there is nothing to send.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.len() == 0 && self.staged_bytes == 0
    }

    /// Returns true if the messages are made; no frame can then be added.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Returns true if frames can be added, and none is to be sealed.
    #[inline]
    pub(super) fn is_open_and_plain(&self) -> bool {
        self.state == State::Open
    }

    /// Returns true if any frame can be added.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        // A large frame takes two pieces, and there are no more messages or queues than pieces.
        self.staged_bytes + FRAMING_BYTES + SMALL_FRAME_BYTES_MAX <= STAGING_BYTES
            && self.pieces.len() + 2 <= PIECES_MAX
    }

    pub(super) fn clear(&mut self) {
        self.staged_bytes = 0;
        self.pieces.clear();
        self.lanes.clear();
        self.messages.clear();
        (self.state, self.is_kept, self.has_small_trains) = (State::Open, false, false);
    }

    /// Copies a frame of at least one and up to [`SMALL_FRAME_BYTES_MAX`] bytes. There must be
    /// [room](Plan::has_room).
    #[inline]
    pub(super) fn add_small(&mut self, target: Target<'_>, head: &[u8], body: &[u8]) {
        if self.is_empty() {
            self.begin_loose(NONE, target, head, body);
        } else {
            self.add_small_behind(target, head, body);
        }
    }

    /// [`Plan::add_small`] of a frame that is not the first of the burst.
    fn add_small_behind(&mut self, target: Target<'_>, head: &[u8], body: &[u8]) {
        self.settle();
        let limit = target.datagram_bytes_max;
        let lane = self.lane_of(target);
        let record = record_bytes(head.len() + body.len());
        if self.lanes[lane].bundle.as_ref().is_some_and(|b| b.bytes + record <= limit) {
            self.continue_bundle(lane, head, body);
        } else {
            self.close_bundle(lane);
            self.begin_bundle(lane, head, body);
        }
        self.point_to_bundle(lane, limit);
    }

    /// Adds a frame of more than [`SMALL_FRAME_BYTES_MAX`] bytes by its address. There must be
    /// [room](Plan::has_room).
    ///
    /// # Safety
    /// The bytes of `head` and `body` stay in place, unchanged, until the plan is cleared, or
    /// [`Plan::keep`] has returned.
    pub(super) unsafe fn add_large(&mut self, target: Target<'_>, head: &[u8], body: &[u8]) {
        self.settle();
        let lane = self.lane_of(target);
        self.close_bundle(lane);
        let bytes = head.len() + body.len();
        let first = self.pieces.len() as u32;
        self.pieces.push_parts(head, body);
        let count = self.pieces.len() as u32 - first;
        let run = Run { first, last: first + count - 1, count };
        self.add_datagram(lane, run, bytes, Load::of(1, bytes));
        self.point_to_train(lane, bytes);
    }

    /// Returns the queue of a peer, new at the peer's first frame of the burst.
    #[inline]
    fn lane_of(&mut self, target: Target<'_>) -> usize {
        let known = *target.lane as usize;
        if self.lanes.get(known).is_some_and(|lane| lane.peer == target.peer) {
            return known;
        }
        *target.lane = self.lanes.len() as u32;
        let (peer, name) = (target.peer, *target.name);
        let untrained_bytes = untrained_bytes(&name);
        self.lanes.push(Lane { peer, name, message: NONE, bundle: None, untrained_bytes });
        self.lanes.len() - 1
    }

    /// Copies a record of a bundle to the end of the staging area.
    ///
    /// # Safety
    /// The area has room for the record.
    #[inline(never)]
    unsafe fn stage(&mut self, head: &[u8], body: &[u8]) {
        // SAFETY: by this function's contract.
        unsafe {
            let to = self.stage_length(head.len() + body.len());
            copy_frame(head, to);
            if !body.is_empty() {
                copy_frame(body, to.add(head.len()));
            }
        }
    }

    /// [`Plan::stage`] of a frame in one part, of a length for [`copy_one_line`]. Saves 20
    /// instructions, since there is no call.
    ///
    /// # Safety
    /// As for [`Plan::stage`].
    #[inline(always)]
    unsafe fn stage_line(&mut self, frame: &[u8]) {
        // SAFETY: by this function's contract.
        unsafe { copy_one_line(frame, self.stage_length(frame.len())) }
    }

    /// Adds a record to the staging area, and returns the address for its frame.
    ///
    /// # Safety
    /// As for [`Plan::stage`].
    #[inline(always)]
    unsafe fn stage_length(&mut self, frame_bytes: usize) -> *mut u8 {
        // SAFETY: by this function's contract; no piece points behind the end yet. Frames belong to
        // callers and do not overlap the area.
        unsafe {
            let record = self.staging.start().add(self.staged_bytes).as_ptr();
            record.cast::<[u8; LENGTH_BYTES]>().write((frame_bytes as u16).to_le_bytes());
            self.staged_bytes += record_bytes(frame_bytes);
            record.add(LENGTH_BYTES)
        }
    }

    #[inline]
    fn begin_bundle(&mut self, lane: usize, head: &[u8], body: &[u8]) {
        let frame_bytes = head.len() + body.len();
        let bytes = FRAMING_BYTES + frame_bytes;
        assert!(self.staged_bytes + bytes <= STAGING_BYTES, "frames are added while there is room");
        // SAFETY: mark and record fit, as just checked; no piece points to them yet.
        let start = unsafe {
            let start = self.staging.start().add(self.staged_bytes).as_ptr();
            start.write(BUNDLE_MARK);
            self.staged_bytes += MARK_BYTES;
            self.stage(head, body);
            start
        };
        let first = self.pieces.push(start, bytes, 1);
        let run = Run { first, last: first, count: 1 };
        self.lanes[lane].bundle = Some(Bundle { run, bytes, load: Load::of(1, frame_bytes) });
    }

    /// Adds a record to the open bundle of a queue, behind records of other peers.
    fn continue_bundle(&mut self, lane: usize, head: &[u8], body: &[u8]) {
        let frame_bytes = head.len() + body.len();
        let bytes = record_bytes(frame_bytes);
        assert!(self.staged_bytes + bytes <= STAGING_BYTES, "frames are added while there is room");
        let start = self.staging.start().as_ptr().wrapping_add(self.staged_bytes);
        // SAFETY: the room was just checked.
        unsafe { self.stage(head, body) };
        let piece = self.pieces.push(start, bytes, 1);
        let Some(bundle) = &mut self.lanes[lane].bundle else { return };
        self.pieces.join(&mut bundle.run, Run { first: piece, last: piece, count: 1 });
        bundle.bytes += bytes;
        bundle.load.add(Load::of(1, frame_bytes));
    }

    /// Closes the open bundle of a queue, if any, to a datagram. A single frame loses its framing.
    #[inline]
    fn close_bundle(&mut self, lane: usize) {
        let Some(Bundle { run, load, mut bytes }) = self.lanes[lane].bundle.take() else { return };
        if load.frames == 1 {
            self.pieces.trim(run.first, FRAMING_BYTES);
            bytes -= FRAMING_BYTES;
        }
        self.add_datagram(lane, run, bytes, load);
    }

    /// Adds a datagram to the last message of a queue if there is room, or else to a new message.
    #[inline]
    fn add_datagram(&mut self, lane: usize, run: Run, bytes: usize, load: Load) {
        let last = self.messages.get_mut(self.lanes[lane].message as usize);
        if let Some(last) = last
            && last.takes(bytes, self.message_bytes_max)
        {
            self.pieces.join(&mut last.run, run);
            last.bytes += bytes;
            last.datagram_count += 1;
            last.load.add(load);
            self.has_small_trains |= last.bytes <= self.lanes[lane].untrained_bytes;
            return;
        }
        self.lanes[lane].message = self.messages.len() as u32;
        let (lane, segment_bytes) = (lane as u32, bytes);
        self.messages.push(Message { lane, run, load, segment_bytes, bytes, datagram_count: 1 });
    }

    /// Ends the burst.
    #[inline]
    pub(super) fn close(&mut self) {
        self.settle();
        self.state = State::Closed;
        (0..self.lanes.len()).for_each(|lane| self.close_bundle(lane));
        if self.has_small_trains {
            self.cut_small_trains();
        }
    }

    /// Cuts messages of several datagrams that fit into a packet of a device (`docs/wire-protocol.md` §2). A receiver with a device on the same host
    /// gets the joined datagrams of a larger message from its kernel, and would take those of a small one for one datagram.
    #[cold]
    fn cut_small_trains(&mut self) {
        self.has_small_trains = false;
        let mut messages = std::mem::take(&mut self.uncut);
        std::mem::swap(&mut messages, &mut self.messages);
        for mut message in messages.drain(..) {
            let is_small = message.bytes <= self.lanes[message.lane as usize].untrained_bytes;
            if message.datagram_count == 1 || !is_small {
                self.messages.push(message);
                continue;
            }
            while message.run.count > 0 {
                let single = self.cut_datagram(&mut message);
                self.messages.push(single);
            }
        }
        self.uncut = messages;
    }

    /// The messages that [`Plan::close`] made.
    #[inline]
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The destination of a message.
    #[inline]
    pub(super) fn name_of(&self, message: &Message) -> &RawAddr {
        &self.lanes[message.lane as usize].name
    }

    /// The peer of a message; [`NO_PEER`] if removed meanwhile.
    #[inline]
    pub(super) fn peer_of(&self, message: &Message) -> PeerId {
        self.lanes[message.lane as usize].peer
    }

    /// Size of a message's datagrams, except a shorter last one.
    #[inline]
    pub(super) fn segment_bytes(&self, message: &Message) -> usize {
        message.segment_bytes
    }

    /// Size of all datagrams of a message.
    pub(super) fn bytes(&self, message: &Message) -> usize {
        message.bytes
    }

    /// The bytes of a message, as the kernel gathers them, if their pieces are contiguous in the
    /// list.
    #[inline]
    pub(super) fn slice_of(&self, message: &Message) -> Option<&[libc::iovec]> {
        self.pieces.slice(message.run)
    }

    /// The bytes of a message, as the kernel gathers them.
    pub(super) fn pieces_of(&self, message: &Message) -> impl Iterator<Item = libc::iovec> {
        self.pieces.list(message.run)
    }

    /// The contents of a message.
    #[inline]
    pub(super) fn load_of(&self, message: &Message) -> Load {
        message.load
    }
}
