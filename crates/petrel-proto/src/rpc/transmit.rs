//! The transmit path: chooses the next frames, and writes their bytes (`docs/wire-protocol.md` §4 to §6).
//!
//! The slots with something to send are in a queue. In its turn a slot sends a train of frames directly to
//! the medium. The slot's state changes only when the medium has accepted a frame, so a refused frame has no
//! effect. Two other designs were tried before. A list of frames to send, built first and passed as a whole,
//! caused repeated copies: with smaller slots, omitting the list reduced a small call from 2 600 instructions
//! to 1 690. A queue of refused frames beside the slots was overtaken by new packets, and the changed order
//! looked like loss: with a short transmit queue one lost packet led to thousands of repetitions.

use super::send_answer::Address;
use super::work::{CANCEL, MULTICAST};
use super::{Core, Work};
use crate::buffer::Buffer;
use crate::limits::{CONTROL_FRAME_BYTES_MAX, TRANSMIT_FRAMES_MAX, packet_span};
use crate::session::{PeerKey, Role, SessionId};
use crate::wire::Part;

/// Packets that a slot may send in one turn: enough for the transport to send them as one train, few enough
/// not to delay a small call.
const TRAIN_PACKETS: usize = 16;

/// The destination of frames: the medium, or a test.
pub trait FrameSink {
    /// Accepts a frame, `head` followed by `body`. Returns false if the medium has no room now. After a
    /// refusal, frames to the same peer are refused until the next [`Core::transmit`].
    ///
    /// Both slices stay in place and unchanged until the core's next method is called.
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool;

    /// Returns the current time, for a frame with the time left until a deadline; `burst_ns` is the burst's
    /// time.
    #[inline(always)]
    fn now_ns(&mut self, burst_ns: u64) -> u64 {
        burst_ns
    }

    /// Returns false if the sink accepts no frames for this peer: the caller need not make any.
    #[inline(always)]
    fn reaches(&self, peer: PeerKey) -> bool {
        let _ = peer;
        true
    }
}

impl<F: FnMut(PeerKey, &[u8], &[u8]) -> bool> FrameSink for F {
    #[inline(always)]
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self(peer, head, body)
    }
}

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
        let place = self.next % TRANSMIT_FRAMES_MAX;
        self.frames[place] = bytes;
        let taken = sink.send(peer, &self.frames[place][..len], &[]);
        self.next = place + usize::from(taken);
        taken
    }
}

impl<B: Buffer, T> Core<B, T> {
    /// Sends up to [`TRANSMIT_FRAMES_MAX`] frames to `sink`. Returns the number of accepted frames; at the
    /// maximum there may be more to send.
    #[inline]
    pub fn transmit<S: FrameSink>(&mut self, now_ns: u64, sink: &mut S) -> usize {
        match self.shared.config.fast_path {
            true => self.transmit_by::<S, true>(now_ns, sink),
            false => self.transmit_by::<S, false>(now_ns, sink),
        }
    }

    #[inline]
    fn transmit_by<S: FrameSink, const SHORT_WAYS: bool>(
        &mut self,
        now_ns: u64,
        sink: &mut S,
    ) -> usize {
        let mut sent = 0;
        let mut refused = 0;
        let mut first_had_its_turn = false;
        while sent < TRANSMIT_FRAMES_MAX
            && let Some(work) = self.shared.work.pop()
        {
            if SHORT_WAYS
                && (self.send_plain::<S, false>(now_ns, work, sink)
                    || self.is_timed(work) && self.send_queued_timed(now_ns, work, sink))
            {
                sent += 1;
                continue;
            }
            let budget = TRAIN_PACKETS.min(TRANSMIT_FRAMES_MAX - sent);
            let turn = self.take_turn(now_ns, work, budget, sink);
            assert!(turn.sent <= budget, "a slot sends no more frames than its turn allows");
            sent += turn.sent;
            if turn.then == Then::Done {
                continue;
            }
            self.shared.work.push(work);
            if turn.then == Then::More {
                refused = 0;
                continue;
            }
            if refused == 0 {
                first_had_its_turn = turn.sent > 0;
            }
            refused += 1;
            if refused >= self.shared.work.len() {
                if first_had_its_turn {
                    // Otherwise the slot that took all the room would again come first.
                    self.shared.work.put_first_last();
                }
                break;
            }
        }
        self.shared.work.tidy();
        sent
    }

    #[inline(never)]
    fn take_turn<S: FrameSink>(
        &mut self,
        now_ns: u64,
        work: Work,
        budget: usize,
        sink: &mut S,
    ) -> Turn {
        if work.slot == CANCEL {
            return self.send_cancel(sink);
        }
        if work.slot == MULTICAST {
            return self.shared.send_multicast(budget, sink);
        }
        let Some(entry) = self.sessions.at_mut(work.session) else {
            return Turn::NOTHING;
        };
        let id = SessionId { index: work.session, generation: entry.generation() };
        let slot = work.slot as usize;
        let (shared, control) = (&mut self.shared, &mut self.control);
        match entry.role_mut() {
            Role::Client(client) if work.of_client && slot < client.slots().len() => {
                let may_take_credits = client.take_turn(slot);
                let mut out = Out { now_ns, budget, may_take_credits, control, sink };
                let turn = shared.turn_of_client(&mut out, id, client, slot);
                client.slot_mut(slot).note_turn(turn.then != Then::Done);
                if turn.then == Then::Refused && may_take_credits && client.has_stalled() {
                    client.stall_first(slot);
                }
                if client.has_stalled() {
                    // The slot was woken for a credit, and may not have needed it.
                    shared.wake_stalled(id.index, client);
                }
                turn
            }
            Role::Server(server) if !work.of_client && slot < server.slots().len() => {
                let (to, peer) = (server.to(), server.peer());
                let address = Address { to, peer, packet_bytes: server.agreed().packet_bytes };
                let mut out = Out { now_ns, budget, may_take_credits: false, control, sink };
                let state = server.slot_mut(slot);
                let turn = shared.turn_of_server(&mut out, state, &address);
                state.note_turn(turn.then != Then::Done);
                turn
            }
            // The session ended after the slot was queued.
            _ => Turn::NOTHING,
        }
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
