//! The features of a world: every other world has about half of them.
//!
//! In a world with all features, events hardly ever occur alone: a world with deadlines on all calls shows few calls
//! that wait for ever. So half of the seeds omit about half of the features (swarm testing, Groce et al., ISSTA 2012).
//! One seed in a thousand is a large world instead. A separate random stream makes the choice: seeds on the regression
//! list, which run without it, keep their meaning.

use super::call::Method;
use super::nemesis::FaultAction;
use super::scenario::Scenario;
use crate::fabric::Action;
use crate::rng::{Probability, Rng};

/// A feature that a world may omit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// Messages of several packets.
    Large,
    /// Requests too short for a call number.
    Tiny,
    /// Handlers that fail, drop their request, or are missing.
    Errors,
    Deferred,
    Nested,
    /// Response buffers that are too long or too short.
    Slack,
    /// Deadlines and cancels.
    Timeouts,
    /// Clients, groups and workers.
    ClientCalls,
    Loss,
    Copies,
    Disorder,
    Corruption,
    Spikes,
    Crashes,
    Partitions,
    Pauses,
    Stalls,
    Drains,
    /// Endpoints that are replaced in a running process.
    Replacing,
    HeavyLoss,
    Forging,
    /// Sessions that are closed with outstanding calls.
    Closing,
    /// Sessions that begin with the same numbers.
    Collisions,
    /// Too few sessions, too little memory or too short timeouts.
    Shortage,
    Congestion,
    GoBackN,
    /// Rings in shared memory.
    Rings,
    /// Ordered calls.
    Order,
    /// Sessions of several paths.
    Paths,
    /// Ways that are cut.
    Cuts,
    /// Operations on regions.
    Regions,
    /// Sessions from servers to clients.
    Reverse,
}

/// The omitted features of a world, as bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Swarm {
    off: u32,
}

impl Swarm {
    /// Draws the omitted features. Half of the worlds have all features.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let off = if rng.below(2) == 0 { rng.next_u64() as u32 } else { 0 };
        Self { off }
    }

    pub(super) fn allows(self, feature: Feature) -> bool {
        self.off >> feature as u32 & 1 == 0
    }

    /// Replaces the method of a call if this world omits its feature.
    pub(super) fn method(self, drawn: Method) -> Method {
        let feature = match drawn {
            Method::Echo | Method::Transform => return drawn,
            Method::Deferred => Feature::Deferred,
            Method::Nested => Feature::Nested,
            Method::TinyEcho | Method::TinyGrow => Feature::Tiny,
            Method::Fail | Method::Drop | Method::Huge | Method::Unknown => Feature::Errors,
        };
        if self.allows(feature) { drawn } else { Method::Transform }
    }

    /// Returns true if the world has the feature of a fault action.
    pub(super) fn allows_action(self, action: &FaultAction) -> bool {
        let feature = match action {
            FaultAction::FaultWindow { action: Action::Partition { .. }, .. } => {
                Feature::Partitions
            }
            FaultAction::FaultWindow { action: Action::Pause { .. }, .. } => Feature::Pauses,
            FaultAction::FaultWindow { .. } => Feature::HeavyLoss,
            FaultAction::Stall { .. } => Feature::Stalls,
            FaultAction::Crash { .. } => Feature::Crashes,
            FaultAction::Replace { .. } => Feature::Replacing,
            FaultAction::Drain { .. } | FaultAction::EndDrain { .. } => Feature::Drains,
            FaultAction::Forge { .. } => Feature::Forging,
            FaultAction::Cut { .. } | FaultAction::Mend { .. } => Feature::Cuts,
            FaultAction::Attack { .. } | FaultAction::Restore => return true,
        };
        self.allows(feature)
    }
}

impl Scenario {
    /// Removes the omitted features. Half of the calls and bytes are enough for one world: the saved time
    /// is better spent on another world.
    pub(super) fn omit_features(&mut self, swarm: Swarm) {
        self.swarm = swarm;
        self.calls = (self.calls / 2).max(4);
        self.bytes /= 2;
        let faults = &mut self.faults;
        let all = [
            (Feature::Loss, &mut faults.loss),
            (Feature::Copies, &mut faults.duplicate),
            (Feature::Disorder, &mut faults.reorder),
            (Feature::Corruption, &mut faults.corrupt),
            (Feature::Spikes, &mut faults.spike),
        ];
        for (feature, probability) in all {
            if !swarm.allows(feature) {
                *probability = Probability::NEVER;
            }
        }
        self.is_attacked &= swarm.allows(Feature::Forging);
        self.closes_sessions &= swarm.allows(Feature::Closing);
        self.numbers_collide &= swarm.allows(Feature::Collisions);
        for is_short in
            [&mut self.has_short_timeouts, &mut self.has_few_sessions, &mut self.has_little_memory]
        {
            *is_short &= swarm.allows(Feature::Shortage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw__leaves_each_feature_out_of_about_a_quarter_of_the_worlds() {
        let rng = &mut Rng::new(1);
        let all: Vec<Swarm> = (0..1_000).map(|_| Swarm::draw(rng)).collect();
        for feature in [Feature::Large, Feature::Crashes, Feature::Shortage] {
            let without = all.iter().filter(|swarm| !swarm.allows(feature)).count();
            assert!((200..300).contains(&without), "{feature:?}: {without}");
        }
        assert!(all.iter().filter(|swarm| swarm.off == 0).count() > 450);
    }

    #[test]
    fn method__without_a_feature_is_one_that_all_worlds_have() {
        let swarm = Swarm { off: u32::MAX };
        assert_eq!(swarm.method(Method::Nested), Method::Transform);
        assert_eq!(swarm.method(Method::Echo), Method::Echo);
        assert_eq!(Swarm::default().method(Method::Nested), Method::Nested);
    }
}
