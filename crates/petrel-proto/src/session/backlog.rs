//! The queue of calls that wait for a slot, with their expiry times (`docs/wire-protocol.md` §5, §7.3).

use std::collections::VecDeque;

/// A time that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// A call as made by the application.
#[derive(Debug)]
pub struct PendingCall<B, T = u64> {
    /// The method to call.
    pub method: u16,
    /// The caller's tag, returned with the call's end.
    pub tag: T,
    /// The request.
    pub request: B,
    /// The buffer for the response, up to its capacity.
    pub response: B,
}

/// The time limit of a call, in nanoseconds of its core's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    /// The time at which the call ends at the latest, or [`NEVER`].
    pub(crate) at_ns: u64,
    /// True for the caller's deadline, which the requests carry to the server; false for the default timeout.
    pub(crate) is_on_wire: bool,
    /// The deadline inherited from the request on whose behalf the call is made, or [`NEVER`].
    pub(crate) inherited_ns: u64,
}

impl Expiry {
    pub(crate) const NONE: Self = Self { at_ns: NEVER, is_on_wire: false, inherited_ns: NEVER };

    /// Returns the inherited deadline, which the owner gets back with the call's end.
    pub(crate) fn inherited(&self) -> Option<u64> {
        (self.inherited_ns != NEVER).then_some(self.inherited_ns)
    }
}

/// A waiting call and its time limit.
pub(crate) struct Queued<B, T> {
    pub(crate) call: PendingCall<B, T>,
    pub(crate) expiry: Expiry,
    /// True if the call runs only after all earlier calls of its session (§14.6).
    pub(crate) synchronises: bool,
}

impl<B, T> Queued<B, T> {
    /// A call without a demand on its order.
    pub(crate) fn unordered(call: PendingCall<B, T>, expiry: Expiry) -> Self {
        Self { call, expiry, synchronises: false }
    }
}

/// The calls waiting for a slot; one word in a session where no call ever waited.
pub(crate) struct Backlog<B, T>(Option<Box<Waiting<B, T>>>);

struct Waiting<B, T> {
    calls: VecDeque<Queued<B, T>>,
    /// True if the calls expire in queue order: then only the first needs a check.
    is_ordered: bool,
}

impl<B, T> Default for Backlog<B, T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<B, T> Backlog<B, T> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |waiting| waiting.calls.len())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if a call has ever waited here: a cheaper check than for one waiting now.
    #[inline(always)]
    pub(crate) fn was_used(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn push_back(&mut self, queued: Queued<B, T>) {
        assert!(
            queued.expiry.at_ns <= queued.expiry.inherited_ns,
            "a call that waits ends at its inherited deadline at the latest"
        );
        let empty = || Box::new(Waiting { calls: VecDeque::new(), is_ordered: true });
        let Waiting { calls, is_ordered } = &mut **self.0.get_or_insert_with(empty);
        *is_ordered = match calls.back() {
            None => true,
            Some(last) => *is_ordered && last.expiry.at_ns <= queued.expiry.at_ns,
        };
        calls.push_back(queued);
    }

    pub(crate) fn pop_front(&mut self) -> Option<Queued<B, T>> {
        let Waiting { calls, is_ordered } = &mut **self.0.as_mut()?;
        let first = calls.pop_front()?;
        assert!(
            !*is_ordered
                || calls.front().is_none_or(|next| first.expiry.at_ns <= next.expiry.at_ns),
            "the calls of an ordered queue expire in its order"
        );
        Some(first)
    }

    /// Removes the first call whose tag satisfies `is_it`.
    pub(crate) fn take(&mut self, mut is_it: impl FnMut(&T) -> bool) -> Option<Queued<B, T>> {
        let Waiting { calls, .. } = &mut **self.0.as_mut()?;
        let place = calls.iter().position(|queued| is_it(&queued.call.tag))?;
        calls.remove(place)
    }

    /// Moves the calls selected by `goes` to `out`. The order is kept in the queue and in the output.
    pub(crate) fn sift(
        &mut self,
        mut goes: impl FnMut(&Queued<B, T>) -> bool,
        mut out: impl FnMut(Queued<B, T>),
    ) {
        let Some(waiting) = &mut self.0 else { return };
        let (before, mut moved) = (waiting.calls.len(), 0);
        for _ in 0..before {
            let Some(queued) = waiting.calls.pop_front() else { break };
            if goes(&queued) {
                moved += 1;
                out(queued);
            } else {
                waiting.calls.push_back(queued);
            }
        }
        assert_eq!(waiting.calls.len() + moved, before, "a call that waits stays or is moved");
    }

    /// Moves expired calls to `out`.
    pub(crate) fn take_expired(&mut self, now_ns: u64, mut out: impl FnMut(Queued<B, T>)) {
        let Some(waiting) = &mut self.0 else { return };
        if !waiting.is_ordered {
            return self.sift(|queued| queued.expiry.at_ns <= now_ns, out);
        }
        while let Some(first) = waiting.calls.front()
            && first.expiry.at_ns <= now_ns
            && let Some(first) = waiting.calls.pop_front()
        {
            out(first);
        }
    }

    /// Returns the time at which the next call expires, or [`NEVER`].
    pub(crate) fn next_expiry_ns(&self) -> u64 {
        let Some(waiting) = &self.0 else { return NEVER };
        let mut all = waiting.calls.iter().map(|queued| queued.expiry.at_ns);
        let next_ns = if waiting.is_ordered { all.next() } else { all.min() };
        next_ns.unwrap_or(NEVER)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queued(at_ns: u64, tag: u64) -> Queued<(), u64> {
        let call = PendingCall { method: 0, tag, request: (), response: () };
        Queued::unordered(call, Expiry { at_ns, ..Expiry::NONE })
    }

    #[test]
    fn was_used__from_the_first_call_that_waits_on() {
        let mut backlog = Backlog::default();
        assert!(!backlog.was_used() && backlog.is_empty());
        backlog.push_back(queued(5, 1));
        assert!(backlog.was_used() && !backlog.is_empty());
        assert_eq!(backlog.pop_front().map(|queued| queued.call.tag), Some(1));
        assert!(backlog.was_used() && backlog.is_empty());
    }

    proptest! {
        /// Compares with a plain list that is searched from end to end.
        #[test]
        fn backlog__expires_as_a_plain_list(
            steps in prop::collection::vec((0u64..4, 0u64..50, 0u64..20), 0..60),
        ) {
            let mut backlog = Backlog::default();
            let mut model: Vec<(u64, u64)> = Vec::new();
            let mut now_ns = 0;
            for (tag, (kind, ahead, pass)) in steps.into_iter().enumerate() {
                match kind {
                    0 => {
                        let first = (!model.is_empty()).then(|| model.remove(0).1);
                        prop_assert_eq!(backlog.pop_front().map(|queued| queued.call.tag), first);
                    }
                    1 => {
                        now_ns += pass;
                        let mut expired = Vec::new();
                        backlog.take_expired(now_ns, |queued| expired.push(queued.call.tag));
                        let (over, rest): (Vec<_>, Vec<_>) =
                            model.into_iter().partition(|(at_ns, _)| *at_ns <= now_ns);
                        model = rest;
                        prop_assert_eq!(expired, over.into_iter().map(|(_, tag)| tag).collect::<Vec<_>>());
                    }
                    2 if !model.is_empty() => {
                        let (_, tag) = model.remove(ahead as usize % model.len());
                        let taken = backlog.take(|other| *other == tag);
                        prop_assert_eq!(taken.map(|queued| queued.call.tag), Some(tag));
                    }
                    _ => {
                        model.push((now_ns + ahead, tag as u64));
                        backlog.push_back(queued(now_ns + ahead, tag as u64));
                    }
                }
                prop_assert_eq!(backlog.len(), model.len());
                let next_ns = model.iter().map(|(at_ns, _)| *at_ns).min();
                prop_assert_eq!(backlog.next_expiry_ns(), next_ns.unwrap_or(NEVER));
            }
        }
    }

    panics! {
        pop_front__of_a_queue_that_is_not_in_order:
            "the calls of an ordered queue expire in its order" => {
            let mut backlog = Backlog::default();
            [9, 5].into_iter().for_each(|at_ns| backlog.push_back(queued(at_ns, at_ns)));
            backlog.0.as_mut().unwrap().is_ordered = true;
            backlog.pop_front();
        };
        push_back__with_a_later_deadline_than_inherited:
            "a call that waits ends at its inherited deadline at the latest" => {
            let late = Queued {
                expiry: Expiry { at_ns: 9, is_on_wire: true, inherited_ns: 5 },
                ..queued(9, 1)
            };
            Backlog::default().push_back(late);
        };
    }
}
