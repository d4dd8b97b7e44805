//! The order in which a request's packets were transmitted. The client tells lost packets from late packets by this
//! order (`docs/wire-protocol.md` §5.2).

use std::ops::Range;

use crate::bitmap::PacketBits;
use crate::limits::WINDOW_PACKETS;

/// The transmission numbers of a request's packets.
///
/// Until the first repetition packet *i* is transmission *i* + 1, and nothing is recorded.
pub(super) struct SendOrder {
    /// Transmissions so far.
    sent: u32,
    /// True from the first repetition on: transmissions are recorded.
    is_kept: bool,
    /// Number of the last transmission of each packet, by packet modulo the window.
    last: [u32; WINDOW_PACKETS as usize],
    /// Number of each packet's first repetition, likewise.
    first_repeat: [u32; WINDOW_PACKETS as usize],
    /// Packets sent more than once.
    repeated: PacketBits,
}

impl Default for SendOrder {
    fn default() -> Self {
        let none = [0; WINDOW_PACKETS as usize];
        let (last, first_repeat, repeated) = (none, none, PacketBits::new());
        Self { sent: 0, is_kept: false, last, first_repeat, repeated }
    }
}

impl SendOrder {
    /// Readies the object for another request.
    pub(super) fn reset(&mut self) {
        self.sent = 0;
        self.is_kept = false;
    }

    /// Returns true if every packet was sent once only.
    #[inline]
    pub(super) fn has_no_repetition(&self) -> bool {
        !self.is_kept
    }

    /// Notes that new packets were sent in sequence.
    #[inline]
    pub(super) fn note_new(&mut self, packets: Range<u32>) {
        if self.is_kept {
            packets.for_each(|packet| self.note_kept(packet, false));
        } else {
            assert!(packets.start == self.sent, "new packets are sent in sequence");
            self.sent += packets.end - packets.start;
        }
    }

    /// Notes that a packet was sent again.
    #[cold]
    pub(super) fn note_repeat(&mut self, packet: u32) {
        assert!(packet < self.sent, "a packet is repeated after its first transmission");
        if !self.is_kept {
            self.keep();
        }
        self.note_kept(packet, true);
    }

    /// Records the order of the packets sent so far, up to a window.
    fn keep(&mut self) {
        assert!(!self.is_kept, "the order of transmissions is kept from the first repetition on");
        self.is_kept = true;
        self.repeated = PacketBits::new();
        for packet in self.sent.saturating_sub(WINDOW_PACKETS)..self.sent {
            self.last[(packet % WINDOW_PACKETS) as usize] = packet + 1;
        }
    }

    fn note_kept(&mut self, packet: u32, is_repeat: bool) {
        assert!(
            is_repeat || packet < self.sent + 1,
            "a first transmission follows those of the earlier packets"
        );
        let place = (packet % WINDOW_PACKETS) as usize;
        self.sent += 1;
        self.last[place] = self.sent;
        if !is_repeat {
            self.repeated.clear(packet);
        } else if self.repeated.set_new(packet) {
            self.first_repeat[place] = self.sent;
        }
    }

    /// Returns the earliest transmission of `packet` that may have arrived: a first copy or a repetition
    /// (§5.2). Returns `None` if another packet has taken over the entry of `packet`, and for a first copy of
    /// a packet repeated since.
    ///
    /// If a copy were taken for a later copy, every packet sent in between would seem lost and be repeated. Then the
    /// first copies of these packets would arrive and repeat the error, and so on to the message's end.
    pub(super) fn arrived(&self, packet: u32, is_repeat: bool, first_sent: u32) -> Option<u32> {
        let place = (packet % WINDOW_PACKETS) as usize;
        if first_sent > packet + WINDOW_PACKETS {
            return None;
        }
        match (is_repeat, self.is_repeated(packet)) {
            (false, false) => Some(self.of(packet)),
            (true, true) => {
                let first = self.first_repeat[place];
                assert!(first > 0 && first <= self.sent, "a repetition has a number");
                Some(first)
            }
            _ => None,
        }
    }

    fn is_repeated(&self, packet: u32) -> bool {
        self.is_kept && self.repeated.is_set(packet)
    }

    pub(super) fn of(&self, packet: u32) -> u32 {
        if self.is_kept { self.last[(packet % WINDOW_PACKETS) as usize] } else { packet + 1 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// After a window of packets the entry of an old packet belongs to a new packet.
    #[test]
    fn arrived__is_known_of_a_window_of_packets() {
        for is_kept in [false, true] {
            let mut order = SendOrder::default();
            let sent = WINDOW_PACKETS + 5;
            order.note_new(0..sent);
            if is_kept {
                order.note_repeat(sent - 1);
            }
            for (packet, arrived) in [(0, None), (4, None), (5, Some(6)), (6, Some(7))] {
                assert_eq!(order.arrived(packet, false, sent), arrived, "{packet} {is_kept}");
            }
        }
    }

    /// A list of all transmissions.
    #[derive(Default)]
    struct Model(Vec<(u32, bool)>);

    impl Model {
        fn number(&self, found: Option<usize>) -> Option<u32> {
            found.map(|index| index as u32 + 1)
        }

        fn of(&self, packet: u32) -> Option<u32> {
            self.number(self.0.iter().rposition(|sent| sent.0 == packet))
        }

        fn arrived(&self, packet: u32, is_repeat: bool) -> Option<u32> {
            let is_repeated = self.0.contains(&(packet, true));
            let first = self.0.iter().position(|sent| *sent == (packet, is_repeat));
            if is_repeat == is_repeated { self.number(first) } else { None }
        }
    }

    #[test]
    fn default__knows_of_no_repetition() {
        let mut order = SendOrder::default();
        assert!(order.has_no_repetition());
        order.note_new(0..3);
        assert!(order.has_no_repetition());
        assert_eq!((order.sent, order.of(2), order.arrived(2, true, 3)), (3, 3, None));
        order.note_repeat(1);
        assert!(!order.has_no_repetition());
        assert_eq!((order.of(1), order.of(2), order.arrived(1, true, 3)), (4, 3, Some(4)));
    }

    proptest! {
        #[test]
        fn send_order__matches_model(steps in prop::collection::vec((1u32..20, 0u32..6, 0u32..80), 1..60)) {
            // The object served another request before.
            let mut order = SendOrder { last: [5; 256], first_repeat: [7; 256], ..SendOrder::default() };
            order.note_new(0..WINDOW_PACKETS);
            (0..WINDOW_PACKETS).for_each(|packet| order.note_repeat(packet));
            order.reset();
            let mut model = Model::default();
            let mut sent = 0;
            for (count, kind, back) in steps {
                if kind == 0 && sent > 0 {
                    let packet = sent - 1 - back.min(sent - 1);
                    order.note_repeat(packet);
                    model.0.push((packet, true));
                } else {
                    order.note_new(sent..sent + count);
                    model.0.extend((sent..sent + count).map(|packet| (packet, false)));
                    sent += count;
                }
                for packet in sent.saturating_sub(WINDOW_PACKETS)..sent {
                    prop_assert_eq!(Some(order.of(packet)), model.of(packet));
                    for is_repeat in [false, true] {
                        let arrived = order.arrived(packet, is_repeat, sent);
                        prop_assert_eq!(arrived, model.arrived(packet, is_repeat));
                    }
                }
                let repeats = model.0.iter().any(|sent| sent.1);
                prop_assert_eq!(order.has_no_repetition(), !repeats);
            }
        }
    }

    panics! {
        note_new__with_a_gap: "new packets are sent in sequence" => {
            let mut order = SendOrder::default();
            order.note_new(0..2);
            order.note_new(3..4);
        };
        note_repeat__of_a_packet_that_was_not_sent:
            "a packet is repeated after its first transmission" => {
            let mut order = SendOrder::default();
            order.note_new(0..2);
            order.note_repeat(2);
        };
        keep__twice: "the order of transmissions is kept from the first repetition on" => {
            let mut order = SendOrder::default();
            (0..2).for_each(|_| order.keep());
        };
    }
}
