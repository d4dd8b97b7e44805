//! Actions of one end do not disturb the peer.

use super::frames::frame;
use super::{EMPTY_POLLS_UNTIL_QUIET, Harness, drain, send_all, send_once};
use crate::transport::{MIN_FRAME_BYTES, RX_BURST_MAX, Transport};

/// Frames sent to a peer that does not receive: more than any medium here holds.
const UNHEARD: u32 = 5_000;

/// The handler's frame does not change during its call, though the sender continues to send. The
/// check is for real media: in virtual time no transport sends while another receives.
///
/// # Panics
/// When the transport breaks the promise, as do all checks.
pub fn frames_stay_while_their_handler_looks<H: Harness>(harness: &mut H) {
    if !harness.medium().can_wait {
        return;
    }
    let [mut a, mut b] = harness.pair();
    for (round, len) in (0..).zip([20, 56, 57, 300, 1_024, 1_025, MIN_FRAME_BYTES].repeat(20)) {
        send_all(harness, &mut a, &[frame(15, 2 * round, len)]);
        let other = frame(15, 2 * round + 1, len);
        let mut polls = 0;
        let mut looks = 0;
        while looks == 0 && polls < EMPTY_POLLS_UNTIL_QUIET {
            b.transport.rx_burst(1, |_, lent| {
                let copy = lent.to_vec();
                send_once(&mut a, &[&other]);
                assert_eq!(lent, copy, "a frame changed while its handler looked");
                looks += 1;
            });
            polls += 1;
            harness.advance();
        }
        // Discards arrived frames from inside the handler; waiting for the rest in every round
        // takes seconds.
        while b.transport.rx_burst(RX_BURST_MAX, |_, _| ()) > 0 {}
    }
    drain(harness, &mut b);
}

/// A sender is not stopped by a peer that neither receives nor sleeps nor wakes.
pub fn sending_goes_on_beside_a_peer_that_does_nothing<H: Harness>(harness: &mut H) {
    let [mut a, mut b] = harness.pair();
    b.transport.wait(Some(0));
    for sequence in 0..UNHEARD {
        send_once(&mut a, &[&frame(15, sequence, 100)]);
    }
    assert!(a.transport.stats().tx_frames > 0);
    drain(harness, &mut b);
}
