//! The way out: which frames to send next, and their bytes (`docs/wire-protocol.md` §4 to §6).
//!
//! The slots with something to send stand in a queue. Each in turn sends a train of frames straight
//! into the medium; its state changes only when the medium has taken a frame, so that a refused one
//! is as if it had never been made. Two other ways were tried before. A list of frames to be sent,
//! made first and handed over as a whole, was copied and copied: with smaller slots, leaving it out
//! took a small call from 2 600 instructions to 1 690. A queue of refused frames beside the slots was overtaken by new packets, and what came
//! out of order looked like loss: with a short transmit queue one lost packet led to thousands sent
//! again.

use super::work::{CANCEL, MULTICAST};
use super::{Core, Work};
use crate::buffer::Buffer;
use crate::limits::{CONTROL_FRAME_BYTES_MAX, TRANSMIT_FRAMES_MAX, packet_span};
use crate::session::server::ServerSession;
use crate::session::{PeerKey, Role, SessionId};
use crate::wire::Part;

/// Packets that one slot may send before another gets its turn: long enough for the transport to
/// send them as one train, short enough not to hold up a small call.
const TRAIN_PACKETS: usize = 16;

/// Where frames go: the medium, or a test.
pub trait FrameSink {
    /// Takes a frame, `head` followed by `body`; false if the medium has no room for it now. After
    /// a refusal, frames to the same peer are refused until the next [`Core::transmit`].
    ///
    /// Both slices stay where they are and unchanged until the core's next method is called.
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool;

    /// The time now, for a frame that says what is left until a deadline; `burst_ns` is that of the burst.
    #[inline(always)]
    fn now_ns(&mut self, burst_ns: u64) -> u64 {
        burst_ns
    }

    /// Whether a frame to this peer may be taken at all: false saves to make one.
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

/// What a slot did with its turn.
pub(super) struct Turn {
    /// Frames that were sent.
    pub(super) sent: usize,
    pub(super) then: Then,
}

/// Whether a slot wants another turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Done,
    More,
    /// The medium refused its frame.
    Refused,
}

impl Turn {
    pub(super) const NOTHING: Turn = Turn { sent: 0, then: Then::Done };

    /// After the slot's only frame: taken or not.
    pub(super) fn one(taken: bool) -> Self {
        match taken {
            false => Turn { sent: 0, then: Then::Refused },
            true => Turn { sent: 1, then: Then::Done },
        }
    }
}

/// The bytes of the latest control frames: as many as are kept until the medium has sent them.
pub(super) struct ControlFrames {
    frames: Box<[[u8; CONTROL_FRAME_BYTES_MAX]; TRANSMIT_FRAMES_MAX]>,
    next: usize,
}

impl ControlFrames {
    pub(super) fn new() -> Self {
        Self { frames: Box::new([[0; CONTROL_FRAME_BYTES_MAX]; TRANSMIT_FRAMES_MAX]), next: 0 }
    }

    /// Sends a control frame; false if the medium refused it. One that was taken keeps its place for
    /// the rest of the burst; a refused one does not, or many of them would come round to it.
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
    /// Sends up to [`TRANSMIT_FRAMES_MAX`] frames into `sink`; gives how many it took. When it is
    /// that many there may be more.
    #[inline]
    pub fn transmit<S: FrameSink>(&mut self, now_ns: u64, sink: &mut S) -> usize {
        match self.shared.config.short_ways {
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
                    // Else the slot that took all the room would come first the next time, too.
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
        let Some(entry) = self.sessions.entries.get_mut(work.session as usize) else {
            return Turn::NOTHING;
        };
        let id = SessionId { index: work.session, generation: entry.generation };
        let slot = work.slot as usize;
        let (shared, control) = (&mut self.shared, &mut self.control);
        match &mut entry.role {
            Role::Client(client) if work.of_client && slot < client.slots.len() => {
                let may_take_credits = client.take_turn(slot);
                let mut out = Out { now_ns, budget, may_take_credits, control, sink };
                let turn = shared.turn_of_client(&mut out, id, client, slot);
                client.slots[slot].queued = turn.then != Then::Done;
                if turn.then == Then::Refused && may_take_credits && !client.stalled.is_empty() {
                    client.stalled.push_first(slot);
                }
                if !client.stalled.is_empty() {
                    // It was woken for a credit, and may not have needed it.
                    shared.wake_stalled(id.index, client);
                }
                turn
            }
            Role::Server(server) if !work.of_client && slot < server.slots.len() => {
                let ServerSession { agreed, to, slots, .. } = server;
                let mut out = Out { now_ns, budget, may_take_credits: false, control, sink };
                let state = &mut slots[slot];
                let turn = shared.turn_of_server(&mut out, state, agreed, *to);
                state.queued = turn.then != Then::Done;
                turn
            }
            // The session ended after the slot was queued.
            _ => Turn::NOTHING,
        }
    }
}

/// Where a slot sends in its turn, and how much.
pub(super) struct Out<'a, S> {
    pub(super) now_ns: u64,
    /// Frames that may be sent.
    pub(super) budget: usize,
    /// Whether no other slot comes first.
    pub(super) may_take_credits: bool,
    pub(super) control: &'a mut ControlFrames,
    pub(super) sink: &'a mut S,
}

/// Writes the header of a part into its buffer and sends it; false if the medium refused it.
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
