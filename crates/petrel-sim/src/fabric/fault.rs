//! The faults of links.

use crate::rng::{Probability, Rng};
use crate::time::Time;

use super::packet::Frames;

/// The faults of one direction of a link. The default has none.
///
/// A fault plan can be replaced during a run; see [`Action::Faults`](super::Action::Faults).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// A packet is lost.
    pub loss: Probability,
    /// After a lost packet, the next packet is lost with this probability if it is higher than `loss`:
    /// losses come in bursts of 1 / (1 - `loss_continues`) packets on average.
    pub loss_continues: Probability,
    /// A second copy arrives.
    pub duplicate: Probability,
    /// The maximum delay of the copy, in nanoseconds. Long times replay old packets.
    pub duplicate_within_ns: u64,
    /// A single packet is delayed and overtaken.
    pub reorder: Probability,
    /// The maximum delay, in nanoseconds.
    pub reorder_within_ns: u64,
    /// Bits are flipped, bytes replaced, or the packet's end is cut off.
    pub corrupt: Probability,
    /// The link stops delivering for a time; then all held packets arrive, in order.
    pub spike: Probability,
    /// The maximum duration, in nanoseconds.
    pub spike_within_ns: u64,
}

impl FaultPlan {
    /// No faults.
    pub const NONE: Self = Self {
        loss: Probability::NEVER,
        loss_continues: Probability::NEVER,
        duplicate: Probability::NEVER,
        duplicate_within_ns: 0,
        reorder: Probability::NEVER,
        reorder_within_ns: 0,
        corrupt: Probability::NEVER,
        spike: Probability::NEVER,
        spike_within_ns: 0,
    };

    /// The worst plan under which every call of a library with the default timeouts still succeeds.
    pub const RECOVERABLE_MOST: Self = Self {
        loss: Probability::per_million(20_000),
        loss_continues: Probability::per_million(300_000),
        duplicate: Probability::per_million(50_000),
        duplicate_within_ns: 1 << 26,
        reorder: Probability::per_million(100_000),
        reorder_within_ns: 1 << 19,
        corrupt: Probability::per_million(5_000),
        spike: Probability::per_million(300),
        spike_within_ns: 1 << 22,
    };

    /// Draws a plan with each fault in half of the cases, and then less often than in `most`. Times are powers of two, from
    /// 256 ns, for spikes from 4 µs, up to those of `most`. Draws nothing for corruption if `most` has none.
    pub fn draw(rng: &mut Rng, most: &Self) -> Self {
        let mut some = |most: Probability| {
            let is_on = rng.below(2) == 0;
            let parts = u64::from(most.parts_per_million());
            Probability::per_million(if is_on { rng.below(parts) as u32 } else { 0 })
        };
        let (loss, loss_continues) = (some(most.loss), some(most.loss_continues));
        let (duplicate, reorder) = (some(most.duplicate), some(most.reorder));
        let has_corruption = most.corrupt != Probability::NEVER;
        let corrupt = if has_corruption { some(most.corrupt) } else { Probability::NEVER };
        let spike = some(most.spike);
        let mut within_ns =
            |least_log2, most_ns: u64| 1 << rng.between(least_log2, most_ns.max(1).ilog2().into());
        Self {
            loss,
            loss_continues,
            duplicate,
            duplicate_within_ns: within_ns(8, most.duplicate_within_ns),
            reorder,
            reorder_within_ns: within_ns(8, most.reorder_within_ns),
            corrupt,
            spike,
            spike_within_ns: within_ns(12, most.spike_within_ns),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) lost: bool,
    /// A spike begins with this packet.
    pub(super) spike: bool,
    /// The time until which the link holds all packets back.
    pub(super) held_until: Time,
    /// The additional delay of this packet.
    pub(super) reorder_ns: Option<u64>,
    /// The additional delay of the copy.
    pub(super) duplicate_ns: Option<u64>,
    /// The seed of the changes to the bytes.
    pub(super) corrupt_seed: Option<u64>,
}

/// The faults of a link, with their state.
#[derive(Debug)]
pub(super) struct FaultState {
    plan: FaultPlan,
    /// Whether the plan has no fault at all, as for most links: checked for every packet.
    is_fault_free: bool,
    rng: Rng,
    last_was_lost: bool,
    held_until: Time,
}

impl FaultState {
    pub(super) fn new(rng: Rng) -> Self {
        let plan = FaultPlan::NONE;
        Self { plan, is_fault_free: true, rng, last_was_lost: false, held_until: Time::ZERO }
    }

    pub(super) fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
        self.is_fault_free = plan == FaultPlan::NONE;
        self.last_was_lost = false;
    }

    /// Decides the fate of a packet that has left the sender at `now`.
    pub(super) fn decide(&mut self, now: Time) -> Fate {
        if self.is_fault_free {
            return Fate { held_until: self.held_until, ..Fate::default() };
        }
        // Six draws for every packet, whatever the plan: plans that differ in one fault class make equal
        // decisions in the rest.
        let lost = self.rng.chance(self.loss());
        let duplicate = self.rng.chance(self.plan.duplicate);
        let reorder = self.rng.chance(self.plan.reorder);
        let corrupt = self.rng.chance(self.plan.corrupt);
        let spike = self.rng.chance(self.plan.spike);
        let mut amounts = Rng::new(self.rng.next_u64());
        self.last_was_lost = lost;
        if spike {
            let spike_ns = amounts.between(1, self.plan.spike_within_ns);
            self.held_until = self.held_until.max(now.plus_ns(spike_ns));
        }
        let mut upto = |limit_ns| amounts.between(1, limit_ns);
        Fate {
            lost,
            spike,
            held_until: self.held_until,
            reorder_ns: reorder.then(|| upto(self.plan.reorder_within_ns)),
            duplicate_ns: duplicate.then(|| upto(self.plan.duplicate_within_ns)),
            corrupt_seed: corrupt.then(|| amounts.next_u64()),
        }
    }

    fn loss(&self) -> Probability {
        let FaultPlan { loss, loss_continues, .. } = self.plan;
        if self.last_was_lost { loss.max(loss_continues) } else { loss }
    }
}

/// The bytes from a packet's start that half of all corruptions hit: headers are a small part of large
/// packets, but the part in which a change does most damage.
const HEADER_BYTES: u64 = 32;

/// Changes some bytes. Never adds bytes, and never leaves the frames unchanged.
pub(super) fn corrupt(frames: &mut Frames, seed: u64) {
    let mut rng = Rng::new(seed);
    let length = frames.bytes.len() as u64;
    if length == 0 {
        return;
    }
    match rng.below(3) {
        0 => flip_bits(&mut frames.bytes, &mut rng),
        1 => replace_bytes(&mut frames.bytes, &mut rng),
        _ => frames.truncate(rng.below(length) as usize),
    }
}

fn flip_bits(bytes: &mut [u8], rng: &mut Rng) {
    let reach = reach(bytes, rng);
    // Adjacent bits: no two flips hit one bit.
    let first = rng.below(reach * 8);
    for bit in (first..reach * 8).take(1 + rng.below(3) as usize) {
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

fn replace_bytes(bytes: &mut [u8], rng: &mut Rng) {
    let reach = reach(bytes, rng);
    let first = rng.below(reach) as usize;
    for byte in bytes[first..].iter_mut().take(1 + rng.below(8) as usize) {
        // A value different from the current value.
        *byte = byte.wrapping_add(1 + rng.below(255) as u8);
    }
}

fn reach(bytes: &[u8], rng: &mut Rng) -> u64 {
    let length = bytes.len() as u64;
    if rng.chance(Probability::percent(50)) { length.min(HEADER_BYTES) } else { length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, prop_assert_ne, proptest};

    fn fates(plan: FaultPlan, count: usize) -> Vec<Fate> {
        let mut state = FaultState::new(Rng::new(11));
        state.set_plan(plan);
        (0..count).map(|index| state.decide(Time::from_ns(index as u64))).collect()
    }

    #[test]
    fn decide__no_plan_no_fault() {
        assert!(fates(FaultPlan::NONE, 100).iter().all(|&fate| fate == Fate::default()));
    }

    #[test]
    fn decide__one_class_leaves_the_others_alone() {
        let some = FaultPlan {
            loss: Probability::percent(10),
            reorder: Probability::percent(10),
            reorder_within_ns: 50,
            ..FaultPlan::NONE
        };
        let more = FaultPlan { corrupt: Probability::percent(30), ..some };
        let (some, more) = (fates(some, 1_000), fates(more, 1_000));
        assert!(some.iter().zip(&more).all(|(a, b)| a.lost == b.lost));
        assert!(some.iter().zip(&more).all(|(a, b)| a.reorder_ns == b.reorder_ns));
        assert!(more.iter().any(|fate| fate.corrupt_seed.is_some()));
    }

    #[test]
    fn decide__losses_come_in_bursts() {
        let lonely = FaultPlan { loss: Probability::percent(1), ..FaultPlan::NONE };
        let bursts = FaultPlan { loss_continues: Probability::percent(90), ..lonely };
        let pairs = |plan| {
            fates(plan, 20_000).windows(2).filter(|pair| pair[0].lost && pair[1].lost).count()
        };
        assert!(pairs(lonely) < 20);
        assert!(pairs(bursts) > 500);
    }

    #[test]
    fn decide__spike_holds_what_follows() {
        let mut state = FaultState::new(Rng::new(1));
        let spike = Probability::ALWAYS;
        state.set_plan(FaultPlan { spike, spike_within_ns: 1_000, ..FaultPlan::NONE });
        let first = state.decide(Time::ZERO);
        assert!(first.spike && first.held_until > Time::ZERO);
        state.set_plan(FaultPlan::NONE);
        let second = state.decide(Time::from_ns(1));
        assert!(!second.spike && second.held_until == first.held_until);
    }

    proptest! {
        #[test]
        fn corrupt__changes_and_never_grows(length in 1usize..200, seed: u64) {
            let mut frames = Frames::default();
            frames.push(&vec![0x5a; length], &[0x5a; 3]);
            frames.push(&[0x5a], &[]);
            let before = frames.clone();
            corrupt(&mut frames, seed);
            prop_assert_ne!(&frames, &before);
            prop_assert!(frames.bytes.len() <= before.bytes.len());
            prop_assert!(frames.iter().all(|frame| !frame.is_empty()));
        }
    }

    #[test]
    fn corrupt__an_empty_packet_stays() {
        let mut frames = Frames::default();
        corrupt(&mut frames, 1);
        assert_eq!(frames, Frames::default());
    }
}
