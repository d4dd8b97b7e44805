//! The timeout policy of callers: deadlines and cancellations of calls. The policy follows from a call's
//! number and the world without draws: seeds on the regression list keep their meaning.

use petrel::endpoint::{CallKey, CallOptions};
use std::time::Duration;

use super::node::{Node, Phase, Shared};
use super::pattern;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeoutPolicy {
    deadline_after_ns: Option<u64>,
    /// The time from the call to its cancellation.
    pub(super) cancel_after_ns: Option<u64>,
    /// Whether the option is an absolute deadline rather than a timeout.
    is_absolute: bool,
}

impl TimeoutPolicy {
    /// Without limits.
    const ENDLESS: Self =
        Self { deadline_after_ns: None, cancel_after_ns: None, is_absolute: false };

    fn of(id: u32, salt: u64) -> Self {
        let word = pattern::mix(pattern::mix(salt, u64::from(id)), 0x6b79);
        let [kind, cancel, scale, other] = [0, 16, 32, 48].map(|at| word >> at & 0xffff);
        let deadline_after_ns = match kind % 16 {
            0 => Some(0),
            1..=3 => Some(1_000 + scale * 30),
            4 | 5 => Some(scale * 400),
            6 => Some(scale * 20_000),
            _ => None,
        };
        let cancel_after_ns =
            (cancel % 8 == 0).then_some(other * [10, 300][cancel as usize / 8 % 2]);
        Self { deadline_after_ns, cancel_after_ns, is_absolute: other % 2 == 0 }
    }

    pub(super) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        self.deadline_after_ns.map(|after_ns| now_ns + after_ns)
    }

    /// Returns the options of the call, if any are needed.
    pub(super) fn options(&self, now_ns: u64) -> Option<CallOptions> {
        let options = CallOptions::new();
        match self.deadline_after_ns {
            None => self.cancel_after_ns.map(|_| options),
            Some(after_ns) if self.is_absolute => {
                Some(options.deadline(petrel::Time::from_ns(now_ns + after_ns)))
            }
            Some(after_ns) => Some(options.timeout(Duration::from_nanos(after_ns))),
        }
    }
}

/// A call to be cancelled later.
pub(super) struct ToCancel {
    pub(super) at_ns: u64,
    pub(super) key: CallKey,
    pub(super) id: u32,
}

impl Shared {
    pub(super) fn timeout_policy(&self, id: u32) -> TimeoutPolicy {
        let scenario = &self.common.scenario;
        if !scenario.uses_timeouts() || self.common.phase.get() != Phase::Active {
            return TimeoutPolicy::ENDLESS;
        }
        TimeoutPolicy::of(id, scenario.active_ns)
    }
}

impl Node {
    pub(super) fn cancel_due(&mut self, now_ns: u64) {
        let is_due = |to_cancel: &mut ToCancel| to_cancel.at_ns <= now_ns;
        let due: Vec<_> = self.shared.to_cancel.borrow_mut().extract_if(.., is_due).collect();
        for ToCancel { key, id, .. } in due {
            let was_there = self.endpoint.context().cancel(key);
            let session = self.shared.ledger().cancel(id, was_there);
            if was_there {
                // The call's credits are back at once, and the CANCEL leaves at its turn (§5.4).
                let wire_checker = &mut self.shared.common.wire_checker.borrow_mut();
                wire_checker.lose_count(self.shared.at, session.index);
            }
        }
    }

    pub(super) fn next_cancel_ns(&self) -> Option<u64> {
        self.shared.to_cancel.borrow().iter().map(|to_cancel| to_cancel.at_ns).min()
    }
}
