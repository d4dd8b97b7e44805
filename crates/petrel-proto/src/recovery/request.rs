//! The packets of a request at its client: the order of transmissions, acknowledged packets and lost packets
//! (`docs/wire-protocol.md` §5.2, §7.2).

use std::ops::Range;

use super::Recovery;
use super::send_order::SendOrder;
use crate::bitmap::{PacketBits, Window, Words};
use crate::limits::REORDERING_THRESHOLD;

/// The packets of a request at its client. The number of packets sent so far belongs to the slot.
pub(crate) struct RequestPackets {
    /// Packets acknowledged by the server.
    acknowledged: Window,
    /// Packets to send again.
    lost: PacketBits,
    /// Order of transmissions, in requests of several packets.
    order: SendOrder,
    /// Repetitions of packets.
    repeated: u32,
}

impl RequestPackets {
    pub(crate) fn new() -> Self {
        Self {
            acknowledged: Window::new(),
            lost: PacketBits::new(),
            order: SendOrder::default(),
            repeated: 0,
        }
    }

    /// Readies the object for another request. The order is not cleared, only its count.
    pub(crate) fn reset(&mut self) {
        self.acknowledged = Window::new();
        self.lost = PacketBits::new();
        self.order.reset();
        self.repeated = 0;
    }

    /// Returns the cumulative acknowledgement: lower packets were acknowledged.
    #[inline]
    pub(crate) fn acknowledged_below(&self) -> u32 {
        self.acknowledged.cumulative()
    }

    pub(crate) fn acknowledged_count(&self) -> u32 {
        self.acknowledged.count()
    }

    #[inline]
    pub(crate) fn is_acknowledged(&self, packet: u32) -> bool {
        self.acknowledged.contains(packet)
    }

    /// Returns the end of the acknowledged packets: no packet from there on was acknowledged.
    pub(crate) fn acknowledged_end(&self) -> u32 {
        self.acknowledged.end()
    }

    /// Returns the packets that an acknowledgement would add, as bits from [`RequestPackets::acknowledged_below`] on; `None` if
    /// some are beyond the window.
    pub(crate) fn news(&self, cumulative: u32, words: &Words) -> Option<Words> {
        self.acknowledged.news(cumulative, words)
    }

    /// Returns the unacknowledged packets before the last acknowledged packet, as bits from
    /// [`RequestPackets::acknowledged_below`] on.
    pub(crate) fn missing(&self) -> Words {
        self.acknowledged.missing()
    }

    /// Returns true if a packet is to be sent again.
    pub(crate) fn is_lost(&self, packet: u32) -> bool {
        self.lost.is_set(packet)
    }

    /// Marks a packet as lost: its path gave the evidence (§14.4).
    pub(crate) fn note_lost(&mut self, packet: u32) {
        assert!(!self.acknowledged.contains(packet), "no acknowledged packet is lost");
        assert!(self.lost.set_new(packet), "a copy is lost once");
    }

    pub(crate) fn repeated(&self) -> u32 {
        self.repeated
    }

    /// Returns true if a packet is to be sent again.
    #[inline]
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns the next packet to send again.
    #[inline]
    pub(crate) fn first_lost(&self) -> Option<u32> {
        self.lost.first_from(self.acknowledged.cumulative())
    }

    /// Notes new packets, sent in sequence while no packet is to be repeated.
    #[inline]
    pub(crate) fn note_run(&mut self, packets: Range<u32>) {
        self.order.note_new(packets);
    }

    #[inline]
    pub(crate) fn note_new(&mut self, packet: u32) {
        self.lost.clear(packet);
        self.order.note_new(packet..packet + 1);
    }

    /// Notes that a packet was sent again. A request of one packet has no order.
    pub(crate) fn note_repeat(&mut self, packet: u32, is_single: bool) {
        assert!(!is_single || packet == 0, "the packet of a request of one packet is the first");
        assert!(self.lost.is_set(packet), "a packet that is repeated was lost");
        assert!(!self.acknowledged.contains(packet), "no acknowledged packet is repeated");
        self.repeated += 1;
        self.lost.clear(packet);
        if !is_single {
            self.order.note_repeat(packet);
        }
    }

    /// Takes an acknowledgement in. Returns the number of packets that it newly acknowledges, of the `sent`
    /// ones.
    #[inline]
    pub(crate) fn acknowledge(&mut self, cumulative: u32, words: &Words, sent: u32) -> u32 {
        let count = self.acknowledged.merge(cumulative, words);
        assert!(
            self.acknowledged.cumulative() <= sent,
            "only packets that were sent are acknowledged"
        );
        count
    }

    /// Clears the loss marks of acknowledged packets.
    pub(crate) fn forget_acknowledged(&mut self, packets: Range<u32>) {
        let Self { acknowledged, lost, .. } = self;
        if lost.is_empty() {
            return;
        }
        packets
            .filter(|&packet| acknowledged.contains(packet))
            .for_each(|packet| lost.clear(packet));
    }

    /// Marks packets as lost that were sent well before the `echo` packet and are not acknowledged. Clears the marks of
    /// acknowledged packets. Returns the number of new marks.
    #[inline]
    pub(crate) fn find_lost(&mut self, packets: Range<u32>, echo: u32, repeats: bool) -> u32 {
        assert!(echo < packets.end, "a packet that has arrived was sent");
        let Self { acknowledged, lost, order, .. } = self;
        let oldest = acknowledged.cumulative();
        if order.has_no_repetition() && lost.is_empty() && oldest + REORDERING_THRESHOLD > echo {
            // Without repetitions the oldest missing packet was sent first.
            return 0;
        }
        let echo_order = order.arrived(echo, repeats, packets.end).unwrap_or(0);
        let mut found = 0;
        for packet in packets {
            if acknowledged.contains(packet) {
                lost.clear(packet);
            } else if order.of(packet) + REORDERING_THRESHOLD <= echo_order {
                found += u32::from(lost.set_new(packet));
            }
        }
        found
    }

    /// Marks packets as lost after a timeout: the first missing packet, or by go-back-N every sent packet from there
    /// on. Returns true if no packet was ever acknowledged.
    pub(crate) fn lose(&mut self, sent: u32, recovery: Recovery) -> bool {
        let Self { acknowledged, lost, .. } = self;
        let first = acknowledged.cumulative();
        let end = if recovery == Recovery::GoBackN { sent } else { first + 1 };
        assert!(first < end && end <= sent, "a timeout repeats packets that were sent");
        (first..end)
            .filter(|&packet| !acknowledged.contains(packet))
            .for_each(|packet| lost.set(packet));
        acknowledged.count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(packets: &[u32]) -> Words {
        let mut words = Words::default();
        packets.iter().for_each(|packet| words[*packet as usize / 64] |= 1 << (packet % 64));
        words
    }

    fn sent(packets: u32) -> RequestPackets {
        let mut request = RequestPackets::new();
        request.note_run(0..packets);
        request
    }

    /// Nothing of a request is left for the next request.
    #[test]
    fn reset__makes_a_used_object_as_good_as_new() {
        let mut request = sent(12);
        request.acknowledge(1, &bits(&[3]), 12);
        request.lose(12, Recovery::GoBackN);
        request.note_repeat(2, false);
        request.reset();
        // By name, so that the compiler demands new fields here.
        let RequestPackets { acknowledged, lost, mut order, repeated } = request;
        assert_eq!((acknowledged, repeated), (Window::new(), 0));
        assert!(lost.is_empty() && order.has_no_repetition());
        order.note_new(0..2);
        order.note_repeat(0);
        assert_eq!((order.of(0), order.of(1)), (3, 2), "it counts from the beginning");
    }

    #[test]
    fn find_lost__by_a_packet_sent_well_after_the_missing_one() {
        for (echo, lost) in [(REORDERING_THRESHOLD, None), (REORDERING_THRESHOLD + 1, Some(1))] {
            let mut request = sent(8);
            request.acknowledge(1, &bits(&[echo - 1]), 8);
            assert_eq!(request.find_lost(0..8, echo, false), u32::from(lost.is_some()));
            assert_eq!((request.first_lost(), request.has_lost()), (lost, lost.is_some()));
            assert_eq!(request.find_lost(0..8, echo, false), 0, "each is found once");
        }
    }

    #[test]
    fn lose__the_first_missing_packet_or_all() {
        for (recovery, lost) in
            [(Recovery::Selective, &[1][..]), (Recovery::GoBackN, &[1, 2, 4][..])]
        {
            let mut request = sent(5);
            assert_eq!(request.acknowledge(1, &bits(&[2]), 5), 2);
            assert!(!request.lose(5, recovery), "two packets were acknowledged");
            let found: Vec<_> = (0..5).filter(|&packet| request.lost.is_set(packet)).collect();
            assert_eq!(found, lost);
            request.acknowledge(3, &Words::default(), 5);
            request.forget_acknowledged(0..5);
            assert_eq!(request.first_lost(), lost.contains(&4).then_some(4));
        }
        assert!(sent(2).lose(2, Recovery::Selective));
    }

    panics! {
        acknowledge__of_a_packet_that_was_not_sent: "only packets that were sent are acknowledged"
            => sent(2).acknowledge(3, &Words::default(), 2);
        lose__when_all_is_acknowledged: "a timeout repeats packets that were sent" => {
            let mut request = sent(2);
            request.acknowledge(2, &Words::default(), 2);
            request.lose(2, Recovery::Selective);
        };
        note_repeat__of_a_second_packet_where_there_is_one:
            "the packet of a request of one packet is the first"
            => sent(1).note_repeat(1, true);
        note_repeat__of_a_packet_that_was_not_lost: "a packet that is repeated was lost"
            => sent(2).note_repeat(1, false);
        find_lost__by_a_packet_that_was_not_sent: "a packet that has arrived was sent"
            => sent(2).find_lost(0..2, 2, false);
    }
}
