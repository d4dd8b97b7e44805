//! Seals the datagrams of a burst (`docs/wire-protocol.md` §17.3).
//!
//! A burst with frames to sealed peers is planned like any other. When the plan is closed, the datagrams of these peers are copied
//! into a second staging area, one behind the other, and sealed there. Their messages are made anew, since datagrams have grown: the
//! kernel's limits count sealed bytes. A datagram is sealed once. Later attempts to send it, and a backlog, have its sealed bytes.
//!
//! A loose bundle (see `tip`) is sealed where it was staged, and sent without copy and message: a third of the instructions.
//!
//! Without such frames nothing here runs: the plan's state tells the two kinds of bursts apart where an open plan is told from a
//! closed one anyway.

use std::ops::Range;

use super::pieces::Run;
use super::{
    Lane, Load, Loose, Message, NO_PEER, NONE, NONE_TO_SEAL, PIECES_MAX, Plan, STAGING_BYTES,
    State, Target,
};
use crate::LinkError;
use crate::buf::Region;
use crate::bundle::framing_bytes;
use crate::seal::{HEAD_BYTES, OVERHEAD_BYTES, Sender, TAG_BYTES};
use crate::transport::PeerId;
use crate::udp::IP_PACKET_BYTES_MAX;
use crate::udp::peers::PeerTable;

/// Bytes of large frames to sealed peers after which a burst is sent: four of the largest messages, which stay in the second-level
/// cache between the cipher and the kernel.
const LARGE_BYTES_MAX: usize = 256 << 10;

/// Room for the sealed datagrams of a burst: bundles, large frames, of which the last may begin just below the limit, and what sealing
/// adds.
const AREA_BYTES: usize = 512 << 10;

const _: () = assert!(
    AREA_BYTES
        >= STAGING_BYTES + LARGE_BYTES_MAX + IP_PACKET_BYTES_MAX + PIECES_MAX * OVERHEAD_BYTES
);

/// The peer of frames to a removed sealed peer, whose keys are gone.
pub(super) const NO_SEALED_PEER: PeerId = PeerId(NO_PEER.0 - 1);

/// The second staging area, and the state of a burst.
pub(super) struct Sealing {
    area: Region,
    used_bytes: usize,
    /// Bytes of large frames to sealed peers.
    large_bytes: usize,
    /// The messages before sealing.
    planned: Vec<Message>,
}

impl Sealing {
    /// The whole area.
    pub(super) fn own(&self) -> Range<*mut u8> {
        let start = self.area.start().as_ptr();
        start..start.wrapping_add(AREA_BYTES)
    }
}

impl Plan {
    /// Makes room for sealed datagrams, before the first sealed peer is added.
    pub(in crate::udp) fn prepare_to_seal(&mut self) -> Result<(), LinkError> {
        if self.sealing.is_none() {
            self.sealing = Some(Sealing {
                area: Region::zeroed(AREA_BYTES, false)?,
                used_bytes: 0,
                large_bytes: 0,
                planned: Vec::with_capacity(PIECES_MAX),
            });
        }
        Ok(())
    }

    /// [`Plan::add_small`] of a frame to a sealed peer.
    pub(in crate::udp) fn add_sealed_small(
        &mut self,
        target: Target<'_>,
        head: &[u8],
        body: &[u8],
    ) {
        self.state = State::OpenToSeal;
        if self.is_empty() {
            self.begin_loose(NONE_TO_SEAL, target, head, body);
        } else {
            self.add_small_behind(target, head, body);
        }
    }

    /// [`Plan::add_large`] of a frame to a sealed peer. Returns true if the burst should be sent.
    ///
    /// The frame goes the general way, because a message of sealed datagrams has room for fewer of them than the plan has.
    ///
    /// # Safety
    /// That of [`Plan::add_large`].
    pub(in crate::udp) unsafe fn add_sealed_large(
        &mut self,
        target: Target<'_>,
        head: &[u8],
        body: &[u8],
    ) -> bool {
        self.state = State::OpenToSeal;
        // SAFETY: by the function's contract.
        unsafe { self.add_large(target, head, body) };
        self.end_tip();
        let sealing = self.sealing.as_mut().expect("prepared for sealed peers");
        sealing.large_bytes += head.len() + body.len();
        sealing.large_bytes >= LARGE_BYTES_MAX
    }

    /// Seals the burst where it was staged, if a single bundle or a single small frame to a sealed peer. Then the burst is sent, or
    /// [closed](Plan::close_and_seal).
    #[inline]
    pub(in crate::udp) fn seal_loose(&mut self, peers: &mut PeerTable) -> Option<Loose<'_>> {
        let Loose { peer, piece, .. } = self.sealed_loose()?;
        let sender = peers.sender_of(peer)?;
        // SAFETY: the piece lies in the area, which is initialised; no piece of a message points there.
        sender
            .seal(unsafe { std::slice::from_raw_parts_mut(piece.iov_base.cast(), piece.iov_len) });
        // Not before, lest a panic of the key leaves plain bytes that pass for sealed ones.
        self.state = State::Open;
        self.sealed_loose()
    }

    /// The loose bundle to a sealed peer, with its head and its tag.
    #[inline]
    fn sealed_loose(&self) -> Option<Loose<'_>> {
        let mut loose = self.loose_of(NONE_TO_SEAL)?;
        loose.piece.iov_base = loose.piece.iov_base.wrapping_byte_sub(HEAD_BYTES);
        loose.piece.iov_len += OVERHEAD_BYTES;
        Some(loose)
    }

    /// Closes the burst of a sealed loose bundle, whose message has the sealed bytes.
    fn close_sealed(&mut self) {
        let Some(Loose { peer, name: &name, piece, load }) = self.sealed_loose() else { return };
        let bytes = piece.iov_len;
        let first = self.pieces.push(piece.iov_base.cast(), bytes, load.frames as u32);
        self.lanes.push(Lane { peer, name, message: NONE, bundle: None, untrained_bytes: 0 });
        self.add_datagram(0, Run { first, last: first, count: 1 }, bytes, load);
        self.end_tip();
        self.state = State::Closed;
    }

    /// Ends a burst with frames to sealed peers, and seals their datagrams. Returns the number of frames that are dropped, because
    /// their peers were removed.
    pub(in crate::udp) fn close_and_seal(&mut self, peers: &mut PeerTable) -> u64 {
        if self.state == State::Open {
            self.close_sealed();
            return 0;
        }
        assert!(self.state == State::OpenToSeal, "a burst is sealed once");
        self.close();
        let sealing = self.sealing_mut();
        // The datagrams of the burst before are sent: no piece is left.
        (sealing.used_bytes, sealing.large_bytes) = (0, 0);
        let mut planned = std::mem::take(&mut sealing.planned);
        std::mem::swap(&mut planned, &mut self.messages);
        assert!(self.messages.is_empty(), "all messages are made anew");
        self.lanes.iter_mut().for_each(|lane| lane.message = NONE);
        let mut dropped = 0;
        for message in planned.drain(..) {
            let lane = &self.lanes[message.lane as usize];
            if let Some(sender) = peers.sender_of(lane.peer) {
                self.seal_message(message, sender);
            } else if lane.peer == NO_SEALED_PEER {
                dropped += message.load.frames;
                self.pieces.blank(message.run);
            } else {
                let is_plain = lane.peer == NO_PEER || peers.target(lane.peer).is_some();
                assert!(is_plain, "a frame to a sealed peer is never sent in clear");
                self.messages.push(message);
            }
        }
        self.sealing_mut().planned = planned;
        if self.has_small_trains {
            self.cut_small_trains();
        }
        dropped
    }

    fn sealing_mut(&mut self) -> &mut Sealing {
        self.sealing.as_mut().expect("prepared for sealed peers")
    }

    fn seal_message(&mut self, mut message: Message, sender: &mut Sender) {
        while message.run.count > 0 {
            let (run, bytes, frames) = self.pieces.cut(&mut message.run, message.segment_bytes);
            let start = self.seal_datagram(run, bytes, sender);
            self.pieces.blank(run);
            let piece = self.pieces.push(start, bytes + OVERHEAD_BYTES, frames);
            let run = Run { first: piece, last: piece, count: 1 };
            let load = Load::of_datagram(bytes, frames as usize);
            self.add_datagram(message.lane as usize, run, bytes + OVERHEAD_BYTES, load);
        }
    }

    /// Copies a datagram behind those in the second area, and seals it there. Returns its start.
    fn seal_datagram(&mut self, run: Run, bytes: usize, sender: &mut Sender) -> *const u8 {
        let Self { sealing, pieces, .. } = self;
        let sealing = sealing.as_mut().expect("prepared for sealed peers");
        let sealed_bytes = bytes + OVERHEAD_BYTES;
        assert!(sealing.used_bytes + sealed_bytes <= AREA_BYTES, "bursts are sent before");
        let start = sealing.area.start().as_ptr().wrapping_add(sealing.used_bytes);
        sealing.used_bytes += sealed_bytes;
        let mut to = start.wrapping_add(HEAD_BYTES);
        for piece in pieces.list(run) {
            // SAFETY: the piece is as the plan got it, in the first area or by the contract of `add_large`; the second area, which none of
            // them overlaps, has room for the pieces of a datagram, `bytes` in total, as was just checked.
            unsafe {
                to.copy_from_nonoverlapping(piece.iov_base.cast(), piece.iov_len);
                to = to.add(piece.iov_len);
            }
        }
        assert!(to == start.wrapping_add(sealed_bytes - TAG_BYTES), "the pieces are the datagram");
        // SAFETY: the range is in the area, as was checked, which is initialised; no piece points there yet.
        sender.seal(unsafe { std::slice::from_raw_parts_mut(start, sealed_bytes) });
        start
    }
}

impl Load {
    /// The contents of a datagram of this size, before sealing.
    pub(super) fn of_datagram(bytes: usize, frames: usize) -> Self {
        let framing = if frames > 1 { framing_bytes(frames) } else { 0 };
        Self::of(frames, bytes - framing)
    }
}
