//! Functions of the application that find the memory of a request's handler, and fetch it ahead.

use petrel_transport::RX_BURST_MAX;
use petrel_transport::prefetch::prefetch;

use crate::values::State;

/// The distance in requests at which a second step is taken: as for the lines of a session, four small requests take
/// longer than a cache line takes to arrive from memory.
const STEP_AHEAD: usize = 4;

/// The most second steps remembered: a transport may show somewhat more than a burst.
const DUE_MAX: usize = 2 * RX_BURST_MAX;

/// Returns the address that a request's handler will access first, and a word for the second step.
type Locate = Box<dyn Fn(&[u8]) -> (*const u8, u64)>;

/// Fetches further memory, whose address stands at the first.
type Then = Box<dyn Fn(State<'_>, u64)>;

/// The functions of a method.
struct Locator {
    locate: Locate,
    then: Option<Then>,
}

/// The functions by method, and the second steps of shown requests.
#[derive(Default)]
pub(in crate::endpoint) struct Locators {
    /// Empty if no method has one.
    by_method: Vec<Option<Locator>>,
    /// The methods of the requests shown in this burst, and their words for the second step, in order.
    due: Vec<(u16, u64)>,
    /// How many of the steps were taken.
    taken: usize,
}

impl Locators {
    pub(in crate::endpoint) fn set(&mut self, method: u16, locate: Locate, then: Option<Then>) {
        let index = usize::from(method);
        if self.by_method.len() <= index {
            self.by_method.resize_with(index + 1, || None);
        }
        self.by_method[index] = Some(Locator { locate, then });
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_method.is_empty()
    }

    /// Begins a new burst.
    #[inline]
    pub(super) fn restart(&mut self) {
        self.due.clear();
        self.taken = 0;
    }

    /// Locates and prefetches the first memory of a request that will be received.
    #[inline]
    pub(super) fn show(&mut self, method: u16, message: &[u8]) {
        let Some(Some(locator)) = self.by_method.get(usize::from(method)) else { return };
        let (address, word) = (locator.locate)(message);
        prefetch(address);
        if locator.then.is_some() {
            self.note_due(method, word);
        }
    }

    #[inline]
    fn note_due(&mut self, method: u16, word: u64) {
        if self.taken == self.due.len() {
            self.restart();
        }
        if self.due.len() < DUE_MAX {
            self.due.push((method, word));
        }
    }

    /// Takes the second step for the request some places behind the next one. Before the first request, catches up on
    /// the requests right behind it.
    #[inline]
    pub(in crate::endpoint) fn step(&mut self, state: State<'_>) {
        if self.taken < self.due.len() {
            self.take_steps(state);
        }
    }

    #[inline(never)]
    fn take_steps(&mut self, mut state: State<'_>) {
        let steps = if self.taken == 0 { 1 + STEP_AHEAD } else { 1 };
        let end = self.due.len().min(self.taken + steps);
        for &(method, word) in &self.due[self.taken..end] {
            if let Some(Some(Locator { then: Some(then), .. })) =
                self.by_method.get(usize::from(method))
            {
                then(state.reborrow(), word);
            }
        }
        self.taken = end;
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use super::*;

    const CHAINED: u16 = 2;

    fn locators() -> Locators {
        let mut locators = Locators::default();
        let locate = |message: &[u8]| (message.as_ptr(), message[0].into());
        let then = |state: State<'_>, word| {
            // SAFETY: `followed` lends a `Vec<u64>`.
            unsafe { state.get::<Vec<u64>>() }.push(word);
        };
        locators.set(CHAINED, Box::new(locate), Some(Box::new(then)));
        locators.set(0, Box::new(locate), None);
        locators
    }

    /// The words of the second steps that one step takes.
    fn followed(locators: &mut Locators) -> Vec<u64> {
        let mut state: Box<dyn Any> = Box::new(Vec::<u64>::new());
        locators.step(State::of(&mut *state));
        *state.downcast().unwrap()
    }

    #[test]
    fn step__is_some_requests_ahead_and_takes_each_request_once() {
        let mut locators = locators();
        assert!(!locators.is_empty());
        for first in [10, 50] {
            assert_eq!(followed(&mut locators), [0; 0], "nothing was shown");
            (first..first + 7).for_each(|word| locators.show(CHAINED, &[word]));
            locators.show(0, &[1]);
            locators.show(1, &[1]);
            locators.show(9, &[1]);
            let first = u64::from(first);
            assert_eq!(followed(&mut locators), [0, 1, 2, 3, 4].map(|at| first + at));
            assert_eq!(followed(&mut locators), [first + 5]);
            assert_eq!(followed(&mut locators), [first + 6]);
        }
    }

    #[test]
    fn show__remembers_no_more_than_a_burst_and_none_of_a_former_one() {
        let mut locators = locators();
        (0..DUE_MAX + 5).for_each(|_| locators.show(CHAINED, &[1]));
        assert_eq!(locators.due.len(), DUE_MAX);
        locators.restart();
        assert_eq!(followed(&mut locators), [0; 0]);
        locators.show(CHAINED, &[3]);
        assert_eq!(followed(&mut locators), [3]);
    }
}
