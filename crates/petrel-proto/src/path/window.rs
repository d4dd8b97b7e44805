//! MP-RDMA's controller (§3.2): one window for all paths, moved by every answer.

use super::{Feedback, Random};

/// Units of the window per packet.
const ONE: u32 = 256;

/// A congestion window in 1/256 packet.
///
/// An unmarked answer adds 1/w, a marked one takes 1/2, and a late one takes 1 (§3.2, §3.3). Losses have no effect: in
/// the paper's network only damage loses packets, and congestion marks packets.
#[derive(Debug)]
pub(super) struct SharedWindow {
    window: u32,
    most: u32,
}

impl SharedWindow {
    pub(super) fn new(first_packets: u32, most_packets: u32) -> Self {
        assert!(most_packets > 0, "a session has a packet in flight");
        let most = most_packets * ONE;
        Self { window: (first_packets * ONE).clamp(ONE, most), most }
    }

    /// Returns the packets that may be in flight: at least one.
    #[inline]
    pub(super) fn packets(&self) -> u32 {
        assert!(
            (ONE..=self.most).contains(&self.window),
            "a window is between one packet and the most"
        );
        self.window / ONE
    }

    /// Returns how many packets an answer clocks out while `packets` are in flight: two at most (§3.5).
    ///
    /// An answer in place of which one packet fits clocks one out; a marked one does so in half of the cases, as the paper's
    /// fluid model has it (§3.2.1). With the whole packets of the window alone, paths in a steady rotation met the same
    /// fraction of the window each time: one of them lost all its packets to the others.
    pub(super) fn clocked(&self, packets: u32, is_marked: bool, random: &mut Random) -> u32 {
        let clocked = match self.window.checked_sub(packets * ONE) {
            None => 0,
            Some(room) if room < 2 * ONE => 1,
            Some(_) => 2,
        };
        clocked - u32::from(clocked > 0 && is_marked && random.below(2) == 0)
    }

    #[inline]
    pub(super) fn is_widest(&self) -> bool {
        self.window == self.most
    }

    #[inline]
    pub(super) fn note(&mut self, what: Feedback) {
        match what {
            Feedback::Good if self.is_widest() => {}
            // Rounded up: with 256 packets a step is a single unit.
            Feedback::Good => {
                self.window = (self.window + (ONE * ONE).div_ceil(self.window)).min(self.most);
            }
            Feedback::Marked => self.take(ONE / 2),
            Feedback::Late => self.take(ONE),
            Feedback::Lost | Feedback::TimedOut => {}
        }
    }

    /// Notes that an answer found no packet to send (§3.5).
    pub(super) fn lose(&mut self) {
        self.take(ONE);
    }

    /// Begins anew after a pause (§3.5).
    pub(super) fn restart(&mut self, first_packets: u32) {
        self.window = (first_packets * ONE).clamp(ONE, self.most);
    }

    fn take(&mut self, units: u32) {
        self.window = self.window.saturating_sub(units).max(ONE);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn note__grows_by_a_packet_per_round_trip() {
        let mut window = SharedWindow::new(20, 256);
        (0..21).for_each(|_| window.note(Feedback::Good));
        assert_eq!(window.packets(), 21);
        // Four marks take two packets.
        (0..4).for_each(|_| window.note(Feedback::Marked));
        assert_eq!(window.packets(), 19);
        window.note(Feedback::Late);
        window.note(Feedback::Lost);
        assert_eq!(window.packets(), 18);
        window.restart(20);
        assert_eq!(window.packets(), 20);
    }

    proptest! {
        #[test]
        fn packets__stay_between_one_and_the_most(
            most in 1..256u32,
            steps in prop::collection::vec(0..3u32, 0..500),
        ) {
            let mut window = SharedWindow::new(32, most);
            for step in steps {
                match step {
                    0 => window.note(Feedback::Good),
                    1 => window.note(Feedback::Marked),
                    _ => window.note(Feedback::Late),
                }
                prop_assert!((1..=most).contains(&window.packets()));
            }
        }
    }

    panics! {
        packets__of_a_window_above_the_most: "a window is between one packet and the most" => {
            let _ = SharedWindow { window: 3 * ONE, most: 2 * ONE }.packets();
        };
        new__of_no_packet: "a session has a packet in flight" => SharedWindow::new(1, 0);
    }
}
