//! Whether multicast reaches a server, by its last multicast requests (`docs/wire-protocol.md` §12.5).

/// Estimates from the last multicast requests whether multicast reaches a server (§12.5).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reception {
    /// Multicast requests in a row with all packets sent again.
    misses: u8,
    /// Requests sent by unicast since then.
    skipped: u8,
}

/// Multicast requests in a row with all packets sent again, after which requests go by unicast.
const MISSES_MAX: u8 = 3;

/// Unicast requests up to the next attempt at multicast: the fault may be over.
const SKIPPED_MAX: u8 = 64;

impl Reception {
    /// Returns true if the next request should go by multicast.
    pub(crate) fn is_likely(&mut self) -> bool {
        if self.misses < MISSES_MAX {
            return true;
        }
        self.skipped = (self.skipped + 1) % SKIPPED_MAX;
        self.skipped == 0
    }

    /// Notes the outcome of a multicast request.
    pub(crate) fn note(&mut self, missed: bool) {
        assert!(
            self.misses <= MISSES_MAX && self.skipped < SKIPPED_MAX,
            "misses and skipped messages are counted up to their limits"
        );
        self.misses = if missed { (self.misses + 1).min(MISSES_MAX) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_likely__until_three_misses_in_a_row_and_then_once_in_64_requests() {
        let mut reception = Reception::default();
        assert_eq!((reception.misses, reception.skipped), (0, 0));
        for _ in 0..2 {
            for _ in 1..MISSES_MAX {
                reception.note(true);
                assert!(reception.is_likely());
            }
            // A delivered request resets the count.
            reception.note(false);
        }
        (0..MISSES_MAX).for_each(|_| reception.note(true));
        for _ in 0..2 {
            assert!((1..SKIPPED_MAX).all(|_| !reception.is_likely()));
            assert!(reception.is_likely());
            // Multicast may fail for ever.
            reception.note(true);
        }
        reception.note(false);
        assert!((0..SKIPPED_MAX).all(|_| reception.is_likely()));
    }
}
