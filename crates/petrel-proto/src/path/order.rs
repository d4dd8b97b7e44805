//! The path of each packet of a message, and the order of the transmissions on it
//! (`docs/wire-protocol.md` §14.4).

use super::{PathId, PathTally};
use crate::bitmap::{PacketBits, Words, for_each_bit, words_end};
use crate::limits::{PATHS_MAX, WINDOW_PACKETS};

const WINDOW: usize = WINDOW_PACKETS as usize;

/// The paths of the packets in flight of one message, in about 1.4 KiB: only for messages of several packets on
/// sessions of several paths.
///
/// The record keeps the last copy of a repeated packet. An acknowledgement does not name the copy that came, so the
/// paths of the copies stay unproven, but acknowledgements of further packets still show whether the last copy is lost.
#[derive(Debug)]
pub struct PacketPaths {
    /// The path of each packet's last copy, by packet modulo the window.
    path: [PathId; WINDOW],
    /// The number of that copy among the transmissions on its path, modulo 2^16.
    order: [u16; WINDOW],
    /// The time of that copy in microseconds, modulo 2^16: 65 ms, more than a round trip. An older copy may
    /// seem young; then the timeout finds it.
    sent_us: [u16; WINDOW],
    /// Packets sent more than once.
    repeated: PacketBits,
    /// Of these, the packets sent more than twice. The bits of other packets say nothing.
    repeated_again: PacketBits,
    /// Transmissions on each path, modulo 2^16.
    count: [u16; PATHS_MAX],
    /// The last of them known to have arrived.
    newest: [u16; PATHS_MAX],
    /// The time of the latest transmission, on any path, that is known to have arrived, in microseconds.
    arrived_us: u64,
    /// The first packet that was not sent yet.
    next: u32,
    threshold: u16,
}

const _: () =
    assert!(size_of::<PacketPaths>() <= 1_536, "a large request has 1.5 KiB for its paths");

/// A time of sending, in microseconds modulo 2^16.
#[derive(Clone, Copy)]
pub(crate) struct SentUs(u16);

impl SentUs {
    pub(crate) fn of(now_ns: u64) -> Self {
        Self(micros(now_ns))
    }
}

/// The last copy of an acknowledged packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCopy {
    /// The path of this copy.
    pub path: PathId,
    /// The time since this copy was sent, in nanoseconds with a step of 1 µs, if it is the only one: a round
    /// trip of its path.
    pub rtt_ns: Option<u64>,
}

impl LastCopy {
    /// Returns true if the packet was sent once: only then the acknowledgement is evidence about the path.
    pub const fn is_only(self) -> bool {
        self.rtt_ns.is_some()
    }
}

/// Why a copy counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A later packet of the same path is acknowledged.
    Overtaken,
    /// A copy is acknowledged, on any path, that was sent long after.
    Overdue,
}

impl PacketPaths {
    /// Makes the record of a message. A copy is lost when a packet sent `threshold` transmissions later on the
    /// same path was acknowledged: 1 where a path keeps the order, 3 where the hosts' kernels may swap packets.
    pub fn new(threshold: u16) -> Self {
        assert!(
            (1..=WINDOW_PACKETS as u16).contains(&threshold),
            "1 to 256 later packets are evidence"
        );
        Self {
            path: [PathId::FIRST; WINDOW],
            order: [0; WINDOW],
            sent_us: [0; WINDOW],
            repeated: PacketBits::new(),
            repeated_again: PacketBits::new(),
            count: [0; PATHS_MAX],
            newest: [0; PATHS_MAX],
            arrived_us: 0,
            next: 0,
            threshold,
        }
    }

    /// Readies the record for another message.
    pub(crate) fn reset(&mut self) {
        // The entries of packets are written before they are read.
        self.repeated = PacketBits::new();
        (self.count, self.newest) = ([0; PATHS_MAX], [0; PATHS_MAX]);
        (self.arrived_us, self.next) = (0, 0);
    }

    /// Notes that the next packet was sent for the first time.
    pub fn note_new(&mut self, now_ns: u64, packet: u32, path: PathId) {
        assert!(packet == self.next, "new packets are sent in sequence");
        self.next += 1;
        self.repeated.clear(packet);
        self.note_copy(micros(now_ns), packet, path);
    }

    /// [`PacketPaths::note_new`] of a packet of a burst, but for [`PacketPaths::end_burst`].
    #[inline(always)]
    pub(crate) fn note_in_burst(&mut self, sent_us: SentUs, packet: u32, path: PathId) {
        self.note_copy(sent_us.0, packet, path);
    }

    /// Notes that `count` packets up to `end` were sent for the first time, in a burst.
    pub(crate) fn end_burst(&mut self, end: u32, count: u32) {
        let packets = self.next..end;
        assert!(self.next + count == end, "new packets are sent in sequence");
        self.next = end;
        if !self.repeated.is_empty() {
            packets.for_each(|packet| self.repeated.clear(packet));
        }
    }

    /// Notes that a packet was sent again.
    pub fn note_repeat(&mut self, now_ns: u64, packet: u32, path: PathId) {
        assert!(packet < self.next, "a packet is repeated after its first transmission");
        if self.repeated.is_set(packet) {
            self.repeated_again.set(packet);
        } else {
            self.repeated.set(packet);
            self.repeated_again.clear(packet);
        }
        self.note_copy(micros(now_ns), packet, path);
    }

    #[inline(always)]
    fn note_copy(&mut self, sent_us: u16, packet: u32, path: PathId) {
        let place = place(packet);
        let count = &mut self.count[path.index() % PATHS_MAX];
        *count = count.wrapping_add(1);
        (self.path[place], self.order[place], self.sent_us[place]) = (path, *count, sent_us);
    }

    /// Returns true if a packet was sent more than once, and none took over its entry.
    pub fn was_repeated(&self, packet: u32) -> bool {
        packet < self.next && packet + WINDOW_PACKETS >= self.next && self.repeated.is_set(packet)
    }

    /// Returns the path of a packet's last copy, if the packet was sent and is no window behind.
    pub(crate) fn path_of_sent(&self, packet: u32) -> Option<PathId> {
        let is_kept = packet < self.next && self.next - packet <= WINDOW_PACKETS;
        is_kept.then(|| self.path[place(packet)])
    }

    /// Returns the path of a packet's last copy.
    ///
    /// # Panics
    /// If the packet was not sent, or is a window behind.
    pub fn path(&self, packet: u32) -> PathId {
        assert!(packet < self.next, "a packet has a path once it is sent");
        assert!(self.next - packet <= WINDOW_PACKETS, "the record has the packets of one window");
        self.path[place(packet)]
    }

    /// Notes that a packet is acknowledged.
    pub fn note_acked(&mut self, now_ns: u64, packet: u32) -> LastCopy {
        let path = self.path(packet);
        if self.repeated.is_set(packet) {
            return LastCopy { path, rtt_ns: None };
        }
        let order = self.order[place(packet)];
        let newest = &mut self.newest[path.index()];
        if order.wrapping_sub(*newest).cast_signed() > 0 {
            *newest = order;
        }
        let rtt_us = self.age_us(now_ns, packet);
        self.note_arrived(now_ns, rtt_us);
        LastCopy { path, rtt_ns: Some(rtt_us * 1_000) }
    }

    /// Returns true if no packet of the record was sent more than once.
    pub(crate) fn has_no_repetition(&self) -> bool {
        self.repeated.is_empty()
    }

    /// [`PacketPaths::note_acked`] of several packets, while none was repeated: packet `base + i` for each bit *i*. Returns
    /// their number by path.
    pub(crate) fn note_all_acked(&mut self, now_ns: u64, base: u32, packets: &Words) -> PathTally {
        assert!(self.has_no_repetition(), "the acknowledgement of a repetition is no evidence");
        let end = base + words_end(packets);
        assert!(
            end <= self.next && self.next - base <= WINDOW_PACKETS,
            "the record has the packets of one window that were sent"
        );
        let mut tally = PathTally::default();
        let (now_us, mut youngest_us) = (micros(now_ns), u16::MAX);
        for_each_bit(packets, |ahead| {
            let place = place(base + ahead);
            let path = self.path[place].index() % PATHS_MAX;
            tally[path] += 1;
            let (order, newest) = (self.order[place], &mut self.newest[path]);
            if order.wrapping_sub(*newest).cast_signed() > 0 {
                *newest = order;
            }
            youngest_us = youngest_us.min(now_us.wrapping_sub(self.sent_us[place]));
        });
        if end > base {
            self.note_arrived(now_ns, youngest_us.into());
        }
        tally
    }

    /// Returns the path of a packet's only copy, and the time since it was sent in nanoseconds, with a step of 1 µs.
    pub(crate) fn only_copy(&self, now_ns: u64, packet: u32) -> (PathId, u64) {
        (self.path(packet), self.age_us(now_ns, packet) * 1_000)
    }

    /// Notes that a repetition of a packet has arrived, `rtt_least_ns` or longer after it was sent: the last
    /// repetition, or an earlier one.
    pub fn note_repeat_arrived(&mut self, now_ns: u64, packet: u32, rtt_least_ns: u64) {
        if self.was_repeated(packet) {
            let since_us = self.age_us(now_ns, packet).max(rtt_least_ns.div_ceil(1_000));
            self.note_arrived(now_ns, since_us);
        }
    }

    /// Returns the path of a packet's repetition, and the time since it was sent in nanoseconds, with a step of 1 µs, if the
    /// packet was repeated once. An acknowledgement of a repetition then answers this copy, and the time is a round trip.
    pub fn only_repeat(&self, now_ns: u64, packet: u32) -> Option<(PathId, u64)> {
        let is_only = self.was_repeated(packet) && !self.repeated_again.is_set(packet);
        is_only.then(|| (self.path(packet), self.age_us(now_ns, packet) * 1_000))
    }

    fn note_arrived(&mut self, now_ns: u64, since_us: u64) {
        self.arrived_us = self.arrived_us.max((now_ns / 1_000).saturating_sub(since_us));
    }

    fn age_us(&self, now_ns: u64, packet: u32) -> u64 {
        micros(now_ns).wrapping_sub(self.sent_us[place(packet)]).into()
    }

    /// Returns evidence that the last copy of an unacknowledged packet is lost; `None` without evidence. A copy on path *i*
    /// is overdue when a copy has arrived that was sent more than `lead_ns(i)` after it.
    ///
    /// The times of sending decide, not the age of the copy: an acknowledgement may take a slower way back than earlier
    /// acknowledgements, and then says nothing about copies that have arrived since.
    pub fn lost(
        &self,
        now_ns: u64,
        packet: u32,
        lead_ns: impl FnOnce(PathId) -> Option<u64>,
    ) -> Option<Evidence> {
        let path = self.path(packet);
        let behind =
            self.newest[path.index()].wrapping_sub(self.order[place(packet)]).cast_signed();
        if behind >= self.threshold.cast_signed() {
            return Some(Evidence::Overtaken);
        }
        let since_us = (now_ns / 1_000).saturating_sub(self.arrived_us);
        let later_us = self.age_us(now_ns, packet).saturating_sub(since_us);
        if later_us == 0 {
            return None;
        }
        (later_us * 1_000 > lead_ns(path)?).then_some(Evidence::Overdue)
    }
}

fn place(packet: u32) -> usize {
    (packet % WINDOW_PACKETS) as usize
}

fn micros(time_ns: u64) -> u16 {
    (time_ns / 1_000) as u16
}

#[cfg(test)]
mod tests;
