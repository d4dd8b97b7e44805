//! One peer of the transport: the rings to and from it.

use super::link::{Doorbell, OpenLink};
use super::mapping::RingMemory;
use super::ring::{Consumer, Producer, PushError, Received};
use crate::transport::{TransportStats, TxFrame};

/// The state that a peer is in during one burst of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxBurst {
    /// No frame of the burst was for it.
    Untouched,
    /// It got frames that are not published yet.
    Written,
    /// Its ring is full; later frames of the burst must not overtake the one refused.
    Full,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It was written, or dropped and counted.
    Done,
    /// The ring is full.
    Blocked,
}

/// One peer of the transport.
#[derive(Debug)]
pub(super) struct Peer {
    outgoing: Producer<RingMemory>,
    incoming: Consumer<RingMemory>,
    doorbell: Doorbell,
    max_frame_bytes: usize,
    tx_burst: TxBurst,
    is_broken: bool,
}

impl Peer {
    pub(super) fn new(link: OpenLink, never_sleeps: bool) -> Self {
        let OpenLink { outgoing, mut incoming, doorbell, max_frame_bytes } = link;
        if never_sleeps {
            incoming.declare_polling();
        }
        let tx_burst = TxBurst::Untouched;
        Self { outgoing, incoming, doorbell, max_frame_bytes, tx_burst, is_broken: false }
    }

    #[inline]
    pub(super) fn max_frame_bytes(&self) -> usize {
        self.max_frame_bytes
    }

    /// Whether this is the first frame for this peer in the current burst.
    #[inline]
    pub(super) fn is_untouched(&self) -> bool {
        self.tx_burst == TxBurst::Untouched
    }

    #[inline]
    pub(super) fn push(&mut self, frame: &TxFrame<'_>, stats: &mut TransportStats) -> Pushed {
        let length = frame.len();
        if length > self.max_frame_bytes {
            stats.tx_dropped_oversize += 1;
            return Pushed::Done;
        }
        if self.is_broken {
            stats.tx_dropped_error += 1;
            return Pushed::Done;
        }
        if self.tx_burst == TxBurst::Full {
            stats.tx_blocked += 1;
            return Pushed::Blocked;
        }
        match self.outgoing.push(frame.head, frame.body) {
            Ok(()) => {
                self.tx_burst = TxBurst::Written;
                stats.tx_frames += 1;
                stats.tx_bytes += length as u64;
                Pushed::Done
            }
            Err(error) => self.refuse(error, stats),
        }
    }

    #[cold]
    fn refuse(&mut self, error: PushError, stats: &mut TransportStats) -> Pushed {
        match error {
            PushError::Full => {
                self.tx_burst = TxBurst::Full;
                stats.tx_blocked += 1;
                return Pushed::Blocked;
            }
            PushError::Broken => self.give_up(stats),
            PushError::Length => {}
        }
        stats.tx_dropped_error += 1;
        Pushed::Done
    }

    /// Shows the peer the frames of the burst. Returns whether it may have to be woken.
    #[inline]
    pub(super) fn publish(&mut self, stats: &mut TransportStats) -> bool {
        self.tx_burst = TxBurst::Untouched;
        stats.tx_datagrams += u64::from(self.outgoing.publish());
        self.outgoing.consumer_may_sleep()
    }

    /// Wakes the peer if it sleeps; after a [`sleep_fence`](super::ring::sleep_fence).
    #[inline]
    pub(super) fn wake_sleeper(&mut self, stats: &mut TransportStats) {
        if self.outgoing.take_sleeper() {
            stats.tx_syscalls += 1;
            self.doorbell.ring();
        }
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        budget: usize,
        stats: &mut TransportStats,
        on_frame: impl FnMut(&[u8]),
    ) -> Received {
        if self.is_broken {
            return Received { is_broken: true, ..Received::default() };
        }
        let received = self.incoming.receive(budget, on_frame);
        stats.rx_frames += received.frames as u64;
        stats.rx_bytes += received.bytes as u64;
        stats.rx_datagrams += u64::from(received.is_new);
        if received.is_broken {
            self.give_up(stats);
        }
        received
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

    /// Uses neither ring again: a peer that breaks the rules of one cannot be trusted with the
    /// other.
    #[cold]
    fn give_up(&mut self, stats: &mut TransportStats) {
        if !self.is_broken {
            self.is_broken = true;
            stats.rx_broken_rings += 1;
        }
    }
}
