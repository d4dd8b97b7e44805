//! The turn of a slot in the transmit queue: its parameters, its result, and the writing of frames.

use super::FrameSink;
use super::sink::OnPath;
use crate::buffer::Buffer;
use crate::limits::{CONTROL_FRAME_BYTES_MAX, HEADER_BYTES, TRANSMIT_FRAMES_MAX, packet_span};
use crate::path::PathId;
use crate::session::PeerKey;
use crate::wire::{Destination, Part};

/// The result of a slot's turn.
pub(super) struct Turn {
    /// Frames sent.
    pub(super) sent: usize,
    pub(super) then: Then,
}

/// Whether the slot needs another turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Done,
    More,
    /// The medium refused the frame.
    Refused,
}

impl Turn {
    pub(super) const NOTHING: Turn = Turn { sent: 0, then: Then::Done };

    /// Returns the turn of a slot's only frame, accepted or refused.
    pub(super) fn one(taken: bool) -> Self {
        match taken {
            false => Turn { sent: 0, then: Then::Refused },
            true => Turn { sent: 1, then: Then::Done },
        }
    }
}

/// The bytes of the latest control frames, kept until the medium has sent them.
pub(super) struct ControlFrames {
    frames: Box<[[u8; CONTROL_FRAME_BYTES_MAX]; TRANSMIT_FRAMES_MAX]>,
    next: usize,
}

impl ControlFrames {
    pub(super) fn new() -> Self {
        Self { frames: Box::new([[0; CONTROL_FRAME_BYTES_MAX]; TRANSMIT_FRAMES_MAX]), next: 0 }
    }

    /// Sends a control frame. Returns false if the medium refused it. An accepted frame keeps its place for
    /// the rest of the burst. A refused one does not; otherwise many refusals would reuse the place of an
    /// accepted frame.
    pub(super) fn send<S: FrameSink>(
        &mut self,
        sink: &mut S,
        peer: PeerKey,
        (bytes, len): ([u8; CONTROL_FRAME_BYTES_MAX], usize),
    ) -> bool {
        self.send_with(sink, peer, (bytes, len), &[])
    }

    /// Like [`ControlFrames::send`], with a payload that stays in place for the rest of the burst.
    #[inline(always)]
    pub(super) fn send_with<S: FrameSink>(
        &mut self,
        sink: &mut S,
        peer: PeerKey,
        (bytes, len): ([u8; CONTROL_FRAME_BYTES_MAX], usize),
        payload: &[u8],
    ) -> bool {
        assert!(len >= HEADER_BYTES, "a control frame has a header");
        let place = self.next % TRANSMIT_FRAMES_MAX;
        self.frames[place] = bytes;
        let taken = sink.send(peer, &self.frames[place][..len], payload);
        self.next = place + usize::from(taken);
        taken
    }
}

/// The parameters of a slot's turn.
pub(super) struct Out<'a, S> {
    pub(super) now_ns: u64,
    /// Most frames to send.
    pub(super) budget: usize,
    /// True if no other slot comes first.
    pub(super) may_take_credits: bool,
    pub(super) control: &'a mut ControlFrames,
    pub(super) sink: &'a mut S,
}

impl<S: FrameSink> Out<'_, S> {
    /// Runs a turn whose frames take a single path of a session of several.
    pub(super) fn on_path<R>(
        &mut self,
        path: PathId,
        peer: PeerKey,
        turn: impl FnOnce(&mut Out<'_, OnPath<'_, S>>) -> R,
    ) -> R {
        let Self { now_ns, budget, may_take_credits, .. } = *self;
        let sink = &mut OnPath::new(self.sink, path, peer);
        turn(&mut Out { now_ns, budget, may_take_credits, control: self.control, sink })
    }
}

/// The destination of a session's frames, and the payload bytes of a full packet.
pub(super) struct Address {
    pub(super) to: Destination,
    pub(super) peer: PeerKey,
    pub(super) packet_bytes: u32,
}

/// Writes the header of a part into its buffer and sends the part. Returns false if the medium refused it.
pub(super) fn send_part<B: Buffer, S: FrameSink>(
    message: &mut B,
    header: [u64; 2],
    packet: u32,
    grant: u8,
    packet_bytes: u32,
    peer: PeerKey,
    sink: &mut S,
) -> bool {
    let size = message.wire_len() as u32;
    let header = Part { size, packet, grant }.words(header);
    let (offset, len) = packet_span(packet, size, packet_bytes);
    let (head, body) = message.part(packet, header, offset, len);
    sink.send(peer, head, body)
}
