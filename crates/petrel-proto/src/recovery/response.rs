//! The packets of a response at its client: received packets, and packets requested again (`docs/wire-protocol.md`
//! §5.2, §7.2).

use super::Recovery;
use crate::bitmap::{Insert, Window, Words};
use crate::limits::REORDERING_THRESHOLD;

/// The packets of a response at its client.
pub(crate) struct ResponsePackets {
    /// Packets and bytes of the response; 0 until the first packet has arrived.
    packets: u32,
    size: u32,
    received: Window,
    /// Packets below this index were already asked for again on loss evidence.
    requested_below: u32,
    /// The `resend_below` of the next PULL.
    resend_below: u32,
    /// The packet that a probe or timeout has asked for since the last loss evidence.
    probed: Option<ProbedPacket>,
}

/// The single packet of a response that a client in need of progress asks for again, and the limit at that
/// time.
#[derive(Clone, Copy, Debug)]
struct ProbedPacket {
    packet: u32,
    limit: u32,
}

impl ResponsePackets {
    pub(crate) const fn new() -> Self {
        Self {
            packets: 0,
            size: 0,
            received: Window::new(),
            requested_below: 0,
            resend_below: 0,
            probed: None,
        }
    }

    /// Notes the size of the response, known from any of its packets.
    pub(crate) fn begin(&mut self, size: u32, packets: u32) {
        assert!(self.packets == 0, "the size of a response is learned once");
        assert!(packets > 0, "a response has at least one packet");
        self.size = size;
        self.packets = packets;
    }

    /// Returns the bytes of the response, once known.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Returns the packets of the response, once known.
    #[inline]
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    /// Returns the cumulative reception: lower packets were received.
    #[inline]
    pub(crate) fn received_below(&self) -> u32 {
        self.received.cumulative()
    }

    pub(crate) fn received_count(&self) -> u32 {
        self.received.count()
    }

    /// Returns the received packets from the cumulative reception on.
    #[inline]
    pub(crate) fn received_words(&self) -> &Words {
        self.received.words()
    }

    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.received.cumulative() == self.packets
    }

    #[inline]
    pub(crate) fn resend_below(&self) -> u32 {
        self.resend_below
    }

    /// Notes that a PULL has asked for the missing packets.
    #[inline]
    pub(crate) fn note_asked(&mut self) {
        self.resend_below = 0;
    }

    /// Notes a packet below the limit. Returns true if it is new.
    #[inline]
    pub(crate) fn receive(&mut self, packet: u32) -> bool {
        assert!(packet < self.packets, "a received packet is part of the response");
        let inserted = self.received.insert(packet);
        assert!(inserted != Insert::Beyond, "packets below the limit are within the window");
        inserted == Insert::New
    }

    /// Detects losses: a packet sent later has arrived (§5.2). Every packet is asked for once by this evidence.
    /// After that the timer asks for the first missing packet; when its repetition arrives, all further packets
    /// allowed by then are late too, having been sent before. Returns true if a PULL is to ask again.
    pub(crate) fn is_evidence(&mut self, packet: u32, repeats: bool) -> bool {
        let probed = self.probed.filter(|probed| repeats && probed.packet == packet);
        let (from, below) = match probed {
            Some(ProbedPacket { limit, .. }) => (0, limit.min(self.packets)),
            None => (self.requested_below, (packet + 1).saturating_sub(REORDERING_THRESHOLD)),
        };
        let from = from.max(self.received.cumulative());
        if (from..below).all(|earlier| self.received.contains(earlier)) {
            return false;
        }
        self.requested_below = self.requested_below.max(below);
        self.resend_below = self.resend_below.max(below);
        true
    }

    /// Asks for packets again after a timeout: the first missing packet, or by go-back-N all packets up to the limit.
    pub(crate) fn ask_again(&mut self, limit: u32, recovery: Recovery) {
        let first = self.received.cumulative();
        let end = if recovery == Recovery::GoBackN { limit } else { first + 1 };
        assert!(first < end && end <= limit, "a timeout asks for packets that the server may send");
        self.resend_below = self.resend_below.max(end);
        self.probed = Some(ProbedPacket { packet: first, limit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests which packets are evidence of loss, and which packets the next PULL asks for.
    #[test]
    fn is_evidence__by_what_came_and_whether_it_was_looked_for() {
        const N: u32 = REORDERING_THRESHOLD;
        // Received, asked for below, looked for, the packet that arrives, whether it repeats; then the
        // result.
        for (received, requested_below, probed, packet, repeats, resend_below) in [
            // Too few packets behind a gap, and just enough.
            (&[0, 1][..], 0, None, N + 1, false, None),
            (&[0, 1][..], 0, None, N + 2, false, Some(3)),
            // Nothing is missing below, or it was asked for.
            (&[0, 1, 2][..], 0, None, N + 2, false, None),
            (&[0, 1][..], 3, None, N + 2, false, None),
            (&[0, 1][..], 3, None, N + 3, false, Some(4)),
            // The repetition of the packet looked for shows the loss of all packets allowed then, up to the
            // response's end.
            (&[0, 1][..], 0, Some((2, 6)), 2, true, Some(6)),
            (&[0, 1][..], 0, Some((2, 90)), 2, true, Some(20)),
            // A first copy is no evidence, nor is the repetition of another packet.
            (&[0, 1][..], 0, Some((2, 6)), 2, false, None),
            (&[0, 1][..], 0, Some((2, 6)), 3, true, None),
        ] {
            let mut response = ResponsePackets::new();
            response.begin(20_000, 20);
            response.requested_below = requested_below;
            response.probed = probed.map(|(packet, limit)| ProbedPacket { packet, limit });
            for received in received.iter().chain([&packet]) {
                assert!(response.receive(*received));
            }
            let case = (received, requested_below, probed, packet, repeats);
            assert_eq!(response.is_evidence(packet, repeats), resend_below.is_some(), "{case:?}");
            assert_eq!(response.resend_below(), resend_below.unwrap_or(0), "{case:?}");
            assert_eq!(response.requested_below, requested_below.max(resend_below.unwrap_or(0)));
        }
    }

    #[test]
    fn ask_again__for_the_first_missing_packet_or_all() {
        for (recovery, resend_below) in [(Recovery::Selective, 2), (Recovery::GoBackN, 5)] {
            let mut response = ResponsePackets::new();
            response.begin(9_000, 9);
            assert!(response.receive(0) && response.receive(2) && !response.receive(2));
            response.ask_again(5, recovery);
            assert_eq!(response.resend_below(), resend_below);
            assert!(matches!(response.probed, Some(ProbedPacket { packet: 1, limit: 5 })));
            response.note_asked();
            assert_eq!(response.resend_below(), 0);
        }
    }

    panics! {
        begin__twice: "the size of a response is learned once" => {
            let mut response = ResponsePackets::new();
            (0..2).for_each(|_| response.begin(2_000, 2));
        };
        receive__beyond_the_end: "a received packet is part of the response" => {
            let mut response = ResponsePackets::new();
            response.begin(2_000, 2);
            response.receive(2);
        };
        ask_again__when_all_that_was_allowed_has_arrived:
            "a timeout asks for packets that the server may send" => {
            let mut response = ResponsePackets::new();
            response.begin(2_000, 2);
            response.receive(0);
            response.ask_again(1, Recovery::Selective);
        };
    }
}
