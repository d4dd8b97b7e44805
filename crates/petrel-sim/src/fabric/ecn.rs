//! Explicit congestion notification (RFC 3168): codepoints of packets, and when switches mark them.

use crate::rng::Rng;

use super::config::EcnConfig;

/// The codepoint of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not react to marks; switches never mark the packet.
    #[default]
    NotEct = 0b00,
    /// The sender reacts to marks: ECT(0).
    Ect0 = 0b10,
    /// A switch on the path was congested: CE.
    Ce = 0b11,
}

impl EcnConfig {
    /// Returns true if a packet is marked on arrival at a queue of this length.
    ///
    /// Draws only if the answer is open: a queue that never fills leaves the stream unchanged.
    #[inline]
    pub(super) fn marks(&self, queued_bytes: u64, rng: &mut Rng) -> bool {
        if queued_bytes <= self.k_min_bytes {
            return false;
        }
        if queued_bytes >= self.k_max_bytes {
            return true;
        }
        let above = queued_bytes - self.k_min_bytes;
        let range = self.k_max_bytes - self.k_min_bytes;
        // A draw below `range` millions, and the chance as a part of this range: exact, in integers.
        let parts = above.saturating_mul(u64::from(self.p_max.parts_per_million()));
        rng.below(range.saturating_mul(1_000_000)) < parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Probability;

    const ECN: EcnConfig =
        EcnConfig { k_min_bytes: 10_000, k_max_bytes: 50_000, p_max: Probability::percent(20) };

    #[test]
    fn marks__never_below_always_above() {
        let mut rng = Rng::new(1);
        let before = rng.clone();
        assert!(!(0..=10_000).any(|queued| ECN.marks(queued, &mut rng)));
        assert!((50_000..60_000).all(|queued| ECN.marks(queued, &mut rng)));
        assert_eq!(rng, before, "nothing was drawn");
    }

    #[test]
    fn marks__a_step_where_both_limits_meet() {
        let step = EcnConfig { k_min_bytes: 100, k_max_bytes: 100, ..ECN };
        let mut rng = Rng::new(1);
        assert!(!step.marks(100, &mut rng) && step.marks(101, &mut rng));
    }

    #[test]
    fn marks__grow_linearly_between() {
        const DRAWS: u32 = 200_000;
        let mut rng = Rng::new(2);
        for queued in [12_000, 20_000, 30_000, 49_999] {
            let p = 0.2 * (queued - 10_000) as f64 / 40_000.0;
            let marked = (0..DRAWS).filter(|_| ECN.marks(queued, &mut rng)).count() as f64;
            let (mean, deviation) =
                (f64::from(DRAWS) * p, (f64::from(DRAWS) * p * (1.0 - p)).sqrt());
            assert!((marked - mean).abs() < 4.0 * deviation, "{queued}: {marked} of {mean}");
        }
    }
}
