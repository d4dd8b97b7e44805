//! The packets of an answer that its server sends again (`docs/wire-protocol.md` §6.3).

use crate::bitmap::{PacketBits, Words};
use crate::limits::WINDOW_PACKETS;

/// The packets of an answer that its server sends again.
pub(crate) struct Resends {
    /// Packets to send again.
    wanted: PacketBits,
    /// The client has all packets below this index, and no PULL makes the server repeat them.
    base: u32,
}

impl Resends {
    pub(crate) fn new() -> Self {
        Self { wanted: PacketBits::new(), base: 0 }
    }

    /// Returns the next packet to send again.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        self.wanted.first_from(self.base)
    }

    /// Notes that a packet was sent again.
    #[inline]
    pub(crate) fn note_sent(&mut self, packet: u32) {
        assert!(self.wanted.is_set(packet), "a packet that is sent again was asked for");
        self.wanted.clear(packet);
    }

    /// Repeats the first packet, unless the client has acknowledged it by a higher base. Returns true if the
    /// packet is to be sent.
    pub(crate) fn repeat_first(&mut self) -> bool {
        if self.base == 0 {
            self.wanted.set(0);
        }
        self.base == 0
    }

    /// Computes the packets to send again from a PULL: asked for now, or asked for before and not yet sent, and
    /// still missing at the client. `sent` packets were sent so far.
    pub(crate) fn mark_missing(
        &mut self,
        cumulative: u32,
        resend_below: u32,
        received: &Words,
        sent: u32,
    ) {
        assert!(cumulative <= sent, "a client has received packets that were sent");
        if cumulative < self.base {
            // An overtaken PULL: packets that it shows missing may have arrived since.
            return;
        }
        let end = sent.min(cumulative.saturating_add(WINDOW_PACKETS));
        let waiting = std::mem::replace(&mut self.wanted, PacketBits::new());
        self.base = cumulative;
        if waiting.is_empty() && resend_below <= cumulative {
            return;
        }
        for packet in cumulative..end {
            let asked = packet < resend_below || waiting.is_set(packet);
            if asked && !has(received, packet - cumulative) {
                self.wanted.set(packet);
            }
        }
        assert!(
            self.first().is_none_or(|first| first < sent),
            "a packet is sent again after its first transmission"
        );
    }
}

fn has(words: &Words, ahead: u32) -> bool {
    words[ahead as usize / 64] >> (ahead % 64) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(resends: &Resends) -> Vec<u32> {
        (0..20).filter(|&packet| resends.wanted.is_set(packet)).collect()
    }

    #[test]
    fn mark_missing__what_is_asked_for_and_has_not_come() {
        let mut resends = Resends::new();
        let mut received = Words::default();
        received[0] = 0b100;
        resends.mark_missing(2, 6, &received, 10);
        assert_eq!((wanted(&resends), resends.first()), (vec![2, 3, 5], Some(2)));
        resends.note_sent(2);
        // An overtaken PULL changes nothing, a later one keeps the packets that wait.
        resends.mark_missing(1, 10, &Words::default(), 10);
        assert_eq!(wanted(&resends), [3, 5]);
        resends.mark_missing(4, 0, &Words::default(), 10);
        assert_eq!((wanted(&resends), resends.repeat_first()), (vec![5], false));
    }

    #[test]
    fn mark_missing__only_what_was_sent() {
        let mut resends = Resends::new();
        resends.mark_missing(0, u32::MAX, &Words::default(), 3);
        assert_eq!(wanted(&resends), [0, 1, 2]);
    }

    #[test]
    fn repeat_first__until_the_client_has_it() {
        let mut resends = Resends::new();
        assert!(resends.repeat_first());
        assert_eq!(resends.first(), Some(0));
        resends.mark_missing(1, 0, &Words::default(), 1);
        assert!(!resends.repeat_first() && resends.first().is_none());
    }

    panics! {
        mark_missing__of_packets_that_were_not_sent: "a client has received packets that were sent"
            => Resends::new().mark_missing(4, 0, &Words::default(), 3);
        note_sent__of_a_packet_that_was_not_asked_for: "a packet that is sent again was asked for"
            => Resends::new().note_sent(1);
    }
}
