//! The credits of a client session (`docs/wire-protocol.md` §4): each is available, or held by a slot.
//!
//! Credits only move between [`Credits`] and the [`HeldCredits`] of slots, so that the available and the held ones
//! always add up to the agreed number.

/// The credits that no slot holds, and how many were agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credits {
    available: u16,
    agreed: u16,
}

/// The credits that a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldCredits(u32);

impl Credits {
    pub(crate) fn new(agreed: u16) -> Self {
        Self { available: agreed, agreed }
    }

    #[inline(always)]
    pub(crate) fn available(self) -> u32 {
        u32::from(self.available)
    }

    #[inline]
    pub(crate) fn agreed(self) -> u32 {
        u32::from(self.agreed)
    }

    /// Returns how many credits all slots hold together.
    #[inline]
    pub(crate) fn lent(self) -> u32 {
        u32::from(self.agreed - self.available)
    }

    /// Lends credits to a slot.
    ///
    /// # Panics
    /// If fewer are available.
    #[inline]
    pub(crate) fn lend(&mut self, held: &mut HeldCredits, count: u32) {
        assert!(count <= self.available(), "a slot borrows more credits than there are");
        self.available -= count as u16;
        held.0 += count;
    }

    /// Lends a credit to a slot without credit. The slot is written and not read: its memory may be far.
    ///
    /// # Panics
    /// If none is available.
    #[inline(always)]
    pub(crate) fn lend_first(&mut self, held: &mut HeldCredits) {
        assert!(self.available > 0, "a slot borrows a credit where there is none");
        self.available -= 1;
        *held = HeldCredits(1);
    }

    /// Takes credits back from a slot.
    ///
    /// # Panics
    /// If the slot holds fewer, or holds credits of another session.
    #[inline]
    pub(crate) fn take_back(&mut self, held: &mut HeldCredits, count: u32) {
        assert!(count <= held.0, "a slot returns more credits than it holds");
        assert!(count <= self.lent(), "a slot returns credits that its session never lent");
        held.0 -= count;
        self.available += count as u16;
    }

    /// Takes the only credit of a slot back.
    ///
    /// # Panics
    /// If the slot does not hold exactly one, or holds a credit of another session.
    #[inline(always)]
    pub(crate) fn take_back_only(&mut self, held: &mut HeldCredits) {
        assert!(held.0 == 1, "the slot of a single packet holds one credit");
        assert!(
            self.available < self.agreed,
            "a slot returns a credit that its session never lent"
        );
        *held = HeldCredits(0);
        self.available += 1;
    }

    /// Takes all credits of a slot back, and returns their number.
    pub(crate) fn take_back_all(&mut self, held: &mut HeldCredits) -> u32 {
        let count = held.0;
        self.take_back(held, count);
        count
    }
}

impl HeldCredits {
    #[inline(always)]
    pub(crate) fn count(self) -> u32 {
        self.0
    }
}

/// Returns the credits of a session in which a slot holds some.
#[cfg(test)]
pub(crate) fn lent(agreed: u16, count: u32) -> (Credits, HeldCredits) {
    let (mut credits, mut held) = (Credits::new(agreed), HeldCredits::default());
    credits.lend(&mut held, count);
    (credits, held)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever slots borrow and return, nothing is lost and nothing is made.
        #[test]
        fn credits__add_up(agreed in 1u16..=64, steps in prop::collection::vec((0usize..4, 0u32..8, any::<bool>()), 0..200)) {
            let mut credits = Credits::new(agreed);
            let mut held = [HeldCredits::default(); 4];
            for (slot, count, borrows) in steps {
                match borrows {
                    true if count == 1 && held[slot].count() == 0 && credits.available() > 0 => {
                        credits.lend_first(&mut held[slot]);
                    }
                    true => {
                        let count = count.min(credits.available());
                        credits.lend(&mut held[slot], count);
                    }
                    false if count == 0 => {
                        let before = held[slot].count();
                        prop_assert_eq!(credits.take_back_all(&mut held[slot]), before);
                    }
                    false if held[slot].count() == 1 => credits.take_back_only(&mut held[slot]),
                    false => {
                        let count = count.min(held[slot].count());
                        credits.take_back(&mut held[slot], count);
                    }
                }
                let lent: u32 = held.iter().map(|held| held.count()).sum();
                prop_assert_eq!((credits.lent(), credits.available() + lent), (lent, u32::from(agreed)));
                prop_assert_eq!(credits.agreed(), u32::from(agreed));
            }
        }
    }

    panics! {
        lend__more_than_there_are: "a slot borrows more credits than there are" => {
            let (mut credits, mut held) = lent(4, 3);
            credits.lend(&mut held, 2);
        };
        lend_first__without_a_credit: "a slot borrows a credit where there is none" => {
            let (mut credits, _) = lent(4, 4);
            credits.lend_first(&mut HeldCredits::default());
        };
        take_back__more_than_the_slot_holds: "a slot returns more credits than it holds" => {
            let (mut credits, mut held) = lent(4, 3);
            credits.take_back(&mut held, 4);
        };
        take_back__credits_of_another_session:
            "a slot returns credits that its session never lent" => {
            let (_, mut held) = lent(4, 3);
            let (mut other, _) = lent(4, 2);
            other.take_back(&mut held, 3);
        };
        take_back_only__of_two: "the slot of a single packet holds one credit" => {
            let (mut credits, mut held) = lent(4, 2);
            credits.take_back_only(&mut held);
        };
        take_back_only__of_another_session:
            "a slot returns a credit that its session never lent" => {
            let (_, mut held) = lent(4, 1);
            Credits::new(4).take_back_only(&mut held);
        };
    }
}
