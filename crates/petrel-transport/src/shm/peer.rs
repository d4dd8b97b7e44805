//! One peer of the transport: the rings in either direction.

use std::any::Any;

use petrel_planted::planted;

use super::bell::{Bell, Bells, Doorbell, Heard};
use super::link::OpenLink;
use super::mapping::RingMemory;
use super::ring::{Consumer, Producer, PushError, RECORD_ALIGN, RingFrame, TakeFrames};
use crate::clock;
use crate::transport::{LinkError, PeerProcess, ReturnPath, TransportStats};

/// Bytes of large frames after which a part of the burst is published, to let the peer copy the
/// first frames out while the last are copied in. Between 16 and 64 KiB it makes no difference;
/// with the whole burst at once, 8 MiB requests had 73 Gbit/s where they have 120.
const PUBLISH_BYTES: usize = 64 << 10;

/// A protocol violation by a peer in the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingViolation {
    /// A head in the middle of a line.
    HeadOffTheLines,
    /// A head beyond every byte ever written.
    HeadBeyond,
    /// The header of a record for another position.
    HeaderOfElsewhere,
    /// The header of a record without a frame.
    HeaderOfNothing,
    /// The header of a frame longer than agreed.
    HeaderTooLong,
    /// The header of a record that leaves the ring.
    HeaderBeyondTheEnd,
    /// A record that is written and never published.
    HalfRecord,
}

/// A peer's state during one burst of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxBurst {
    /// The burst has no frame for the peer yet.
    Untouched,
    /// The burst has frames for the peer.
    Open,
    /// The ring is full, and later frames of the burst must not overtake the refused frame; or the
    /// rings are abandoned.
    Closed,
}

/// The ring to a peer: the return path of frames from this peer.
#[derive(Debug)]
pub struct Outgoing {
    ring: Producer<RingMemory>,
}

impl Outgoing {
    /// Writes a frame of one line into the ring, if nothing else has to be done.
    #[inline(always)]
    pub(crate) fn push_line(&mut self, frame: &[u8]) -> bool {
        self.ring.push_line(frame)
    }

    /// Writes a frame of one line, as the two words of its header in little-endian order and its
    /// message, if nothing else has to be done. Returns false otherwise.
    #[inline(always)]
    pub fn push_message(&mut self, header: [u64; 2], message: &[u8]) -> bool {
        self.ring.push_message(header, message)
    }

    /// The position of the next frame.
    pub(crate) fn position(&self) -> u64 {
        self.ring.position()
    }

    /// Shows the frames written from `position` on, all still unpublished.
    pub(crate) fn look_back(&self, position: u64, on_frame: impl FnMut(RingFrame<'_>)) {
        self.ring.look_back(position, on_frame);
    }

    /// Writes a frame into the ring, if nothing else has to be done.
    #[inline]
    pub(crate) fn push_at_once(&mut self, head: &[u8], body: &[u8]) -> bool {
        self.ring.push_at_once(head, body)
    }
}

impl Outgoing {
    /// Returns a return path if it is a ring: for code compiled once for all transports, as the
    /// handlers of requests are. A pointer to any kind of path would cost two instructions for each
    /// frame; without a path, answers wait for the end of the burst.
    #[inline(always)]
    pub fn of<R: ReturnPath>(path: Option<&mut R>) -> Option<&mut Self> {
        // The compiler knows whether the types are the same.
        path.and_then(|path| (path as &mut dyn Any).downcast_mut())
    }
}

impl ReturnPath for Outgoing {
    #[inline(always)]
    fn push(&mut self, frame: &[u8]) -> bool {
        self.push_line(frame) || push_small(self, frame)
    }
}

/// Out of line, so [`ReturnPath::push`] stays short enough to inline.
#[inline(never)]
fn push_small(to: &mut Outgoing, frame: &[u8]) -> bool {
    to.push_at_once(frame, &[])
}

/// Notes that the rings of a peer are abandoned, and counts it once.
#[cold]
fn note_broken(is_broken: &mut bool, stats: &mut TransportStats) {
    if !std::mem::replace(is_broken, true) {
        stats.rx_broken_rings += 1;
    }
}

/// One peer of the transport.
#[derive(Debug)]
pub(super) struct Peer<B> {
    outgoing: Outgoing,
    incoming: Consumer<RingMemory>,
    bell: B,
    max_frame_bytes: usize,
    tx_burst: TxBurst,
    is_broken: bool,
}

impl<B: Doorbell> Peer<B> {
    pub(super) fn new(link: OpenLink<B>, never_sleeps: bool) -> Self {
        let OpenLink { outgoing, mut incoming, bell, max_frame_bytes } = link;
        if never_sleeps {
            incoming.declare_polling();
        }
        let outgoing = Outgoing { ring: outgoing };
        let tx_burst = TxBurst::Untouched;
        Self { outgoing, incoming, bell, max_frame_bytes, tx_burst, is_broken: false }
    }

    #[inline]
    pub(super) fn max_frame_bytes(&self) -> usize {
        self.max_frame_bytes
    }

    /// Notes a frame of the current burst for this peer. Returns true for the first frame.
    #[inline]
    pub(super) fn touch(&mut self) -> bool {
        let is_first = self.tx_burst == TxBurst::Untouched;
        if is_first {
            self.tx_burst = TxBurst::Open;
            if self.is_broken {
                self.close();
            }
        }
        is_first
    }

    /// The return path, unless the burst refuses further frames. The peer must be touched in the burst.
    #[inline]
    pub(super) fn path(&mut self) -> Option<&mut Outgoing> {
        (self.tx_burst == TxBurst::Open).then_some(&mut self.outgoing)
    }

    /// Refuses or drops all further frames of this burst.
    #[cold]
    fn close(&mut self) {
        self.tx_burst = TxBurst::Closed;
        self.outgoing.ring.forget_room();
    }

    /// [`Outgoing::push_line`]; fails while the ring is closed. The peer must be touched in the
    /// burst.
    #[inline(always)]
    pub(super) fn push_line(&mut self, frame: &[u8]) -> bool {
        self.outgoing.push_line(frame)
    }

    /// Writes a frame into the ring. Returns false if the ring is full. A frame that cannot be sent
    /// at all is dropped and counted.
    #[inline(never)]
    pub(super) fn push(&mut self, head: &[u8], body: &[u8], stats: &mut TransportStats) -> bool {
        let length = head.len() + body.len();
        if self.tx_burst == TxBurst::Closed {
            return self.refuse(length, stats);
        }
        let ring = &mut self.outgoing.ring;
        match ring.push(head, body) {
            Ok(()) => {
                if ring.unpublished_bytes() >= PUBLISH_BYTES {
                    ring.publish_part();
                }
                true
            }
            Err(error) => self.fail(error, length, stats),
        }
    }

    /// Refuses or drops a frame for a ring that is abandoned or was full before.
    #[cold]
    fn refuse(&mut self, length: usize, stats: &mut TransportStats) -> bool {
        if length > self.max_frame_bytes {
            stats.tx_dropped_oversize += 1;
            return true;
        }
        if self.is_broken {
            stats.tx_dropped_error += 1;
            return true;
        }
        stats.tx_blocked += 1;
        false
    }

    #[cold]
    fn fail(&mut self, error: PushError, length: usize, stats: &mut TransportStats) -> bool {
        match error {
            PushError::Full => self.close(),
            PushError::Broken => {
                self.close();
                self.give_up(stats);
            }
            PushError::Length if length == 0 => {
                stats.tx_dropped_error += 1;
                return true;
            }
            PushError::Length => {}
        }
        self.refuse(length, stats)
    }

    /// Publishes the frames of the burst to the peer. Returns true if the peer may sleep.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.tx_burst = TxBurst::Untouched;
        self.outgoing.ring.publish();
        self.outgoing.ring.consumer_may_sleep()
    }

    /// The frames, bytes and bursts that went through the two rings.
    pub(super) fn stats(&self) -> TransportStats {
        let (sent, received) = (self.outgoing.ring.counts(), self.incoming.counts());
        let are_counted = !planted("shm_bursts_not_counted");
        TransportStats {
            tx_frames: sent.frames,
            tx_bytes: sent.bytes,
            tx_datagrams: sent.publications,
            rx_frames: received.frames,
            rx_bytes: received.bytes,
            rx_datagrams: if are_counted { received.publications } else { 0 },
            ..TransportStats::default()
        }
    }

    /// Wakes the peer if it sleeps; after a [`sleep_fence`](super::ring::sleep_fence).
    #[inline]
    pub(super) fn wake_sleeper(&mut self, stats: &mut TransportStats) {
        if self.outgoing.ring.take_sleeper() {
            stats.tx_syscalls += 1;
            self.outgoing.ring.note_wake(clock::shared_ns());
            if !self.bell.ring() {
                self.outgoing.ring.forget_sleeper();
            }
        }
    }

    /// Returns how long ago the peer sent its latest wake-up, if frames are there and that is at most `pause_ns`.
    pub(super) fn rung_since(&self, pause_ns: u64) -> Option<u64> {
        let rung_ns = self.incoming.rung_ns();
        let since_ns = clock::shared_ns().checked_sub(rung_ns)?;
        (self.incoming.has_data() && since_ns <= pause_ns).then_some(since_ns)
    }

    /// Returns true if [`Peer::receive`] has frames to deliver or a break to report.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.is_broken || self.incoming.has_data()
    }

    /// Returns the budget for the next [`Peer::receive`], at most `budget`.
    #[inline]
    pub(super) fn begin_burst(&self, budget: usize) -> usize {
        self.incoming.begin_burst(budget)
    }

    /// Delivers up to `budget` frames to the taker that `to` makes with the return path to the
    /// peer. Returns their number, and true if the rings are abandoned.
    #[inline(always)]
    pub(super) fn receive<'p, F: TakeFrames>(
        &'p mut self,
        budget: usize,
        stats: &mut TransportStats,
        to: impl FnOnce(&'p mut Outgoing) -> F,
    ) -> (usize, bool) {
        if self.is_broken {
            return (0, true);
        }
        let Self { incoming, outgoing, is_broken, .. } = self;
        let received = incoming.receive_by(budget, &mut to(outgoing));
        if received.1 {
            note_broken(is_broken, stats);
        }
        received
    }

    #[inline]
    pub(super) fn has_unpublished(&self) -> bool {
        self.outgoing.ring.unpublished_bytes() > 0
    }

    /// Shows the next frames, up to `budget`, and leaves them in the ring.
    #[inline]
    pub(super) fn look_ahead(&mut self, budget: usize, on_frame: impl FnMut(RingFrame<'_>)) {
        if !self.is_broken {
            self.incoming.look_ahead(budget, on_frame);
        }
    }

    #[inline]
    pub(super) fn has_data(&self) -> bool {
        !self.is_broken && self.incoming.has_data()
    }

    pub(super) fn declare_sleep(&mut self) {
        if !self.is_broken {
            self.incoming.declare_sleep();
        }
    }

    pub(super) fn declare_awake(&mut self) {
        if !self.is_broken {
            self.incoming.declare_awake();
        }
    }

    /// Receives pending wake-ups. Returns false if no more may come; the caller then hangs up.
    pub(super) fn answer(&mut self, stats: &mut TransportStats) -> bool {
        let heard = self.bell.answer(self.incoming.sleep_count());
        if heard == Heard::Misuse {
            self.give_up(stats);
        }
        heard == Heard::Rings
    }

    /// Returns true if the rings are abandoned.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_broken
    }

    /// Breaks a rule on purpose; see [`RingViolation`].
    pub(super) fn misbehave(&mut self, violation: RingViolation) -> bool {
        let Self { outgoing: Outgoing { ring }, incoming, max_frame_bytes, .. } = self;
        match violation {
            RingViolation::HeadOffTheLines => incoming.lie_about_head(|head, _| head + 8),
            RingViolation::HeadBeyond => {
                incoming.lie_about_head(|head, capacity| head + 2 * capacity as u64);
            }
            RingViolation::HeaderOfElsewhere => return ring.forge_header(RECORD_ALIGN as u64, 1),
            RingViolation::HeaderOfNothing => return ring.forge_header(0, 0),
            RingViolation::HeaderTooLong => return ring.forge_header(0, *max_frame_bytes + 1),
            RingViolation::HeaderBeyondTheEnd => {
                let to_end = ring.bytes_to_end();
                return to_end <= *max_frame_bytes && ring.forge_header(0, to_end);
            }
            RingViolation::HalfRecord => return ring.push(&[0xa5; 200], &[]).is_ok(),
        }
        true
    }

    /// Abandons the two rings: a peer that breaks the rules of one cannot be trusted with the
    /// second.
    fn give_up(&mut self, stats: &mut TransportStats) {
        note_broken(&mut self.is_broken, stats);
    }
}

impl Peer<Bell> {
    /// Adds the peer's bell to `bells`.
    pub(super) fn listen(&self, bells: &Bells, index: u32) -> Result<(), LinkError> {
        bells.add(&self.bell, index)
    }

    /// The process at the other end.
    pub(super) fn process(&self) -> Option<PeerProcess> {
        self.bell.process()
    }

    /// Hangs up; no more wake-ups come.
    pub(super) fn hang_up(&mut self, bells: &Bells) {
        bells.remove(&mut self.bell);
    }
}
