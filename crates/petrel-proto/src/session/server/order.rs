//! The order of the requests of a server session (`docs/wire-protocol.md` §14.6).

use petrel_planted::planted;

use crate::bitmap::PacketBits;
use crate::buffer::Placed;
use crate::limits::ORDER_WINDOW_CALLS;
use crate::wire::{SEQUENCE_MASK, sequence_ahead};

/// A complete request that waits for earlier requests.
pub(crate) struct Early<B> {
    pub(crate) message: B,
    /// The memory of the application that has the request's bytes, if any.
    pub(crate) placed: Option<Placed>,
    /// The request's deadline, or `NEVER`.
    pub(crate) deadline_ns: u64,
}

/// A request that arrives, waits or runs.
struct OpenRequest<B> {
    slot: usize,
    number: u64,
    sequence: u32,
    synchronises: bool,
    early: Option<Early<B>>,
}

/// The requests of a session that have not run, and the later requests that have run.
///
/// A slot has one open request at most, so their number is bounded by the slots.
pub(crate) struct RequestOrder<B> {
    /// All requests below this number have ended at the client.
    ended: u32,
    /// The requests from `ended` on that have run, by number.
    ran: PacketBits,
    open: Vec<OpenRequest<B>>,
    /// True while the owner of the core has a notice that a request may run.
    is_noted: bool,
}

impl<B> RequestOrder<B> {
    pub(crate) fn new() -> Self {
        Self { ended: 0, ran: PacketBits::new(), open: Vec::new(), is_noted: false }
    }

    /// Notes the calls that have ended at the client. A lower number than before was overtaken.
    pub(crate) fn note_ended(&mut self, ended: u32) {
        let ahead = sequence_ahead(self.ended, ended);
        if ahead > SEQUENCE_MASK / 2 {
            return;
        }
        if ahead >= ORDER_WINDOW_CALLS {
            self.ran = PacketBits::new();
        } else if !planted("proto_order_ran_stays") {
            (0..ahead).for_each(|passed| self.ran.clear(self.ended.wrapping_add(passed)));
        }
        self.ended = ended;
    }

    /// Returns true if the client has abandoned the call with this number.
    pub(crate) fn is_over(&self, sequence: u32) -> bool {
        sequence_ahead(self.ended, sequence) > SEQUENCE_MASK / 2
    }

    /// Returns true if all requests before this number have run.
    pub(crate) fn may_run(&self, sequence: u32) -> bool {
        self.is_next(sequence, self.ran_in_a_row())
    }

    /// Returns true if a request may run when `in_a_row` requests from `ended` on have run.
    fn is_next(&self, sequence: u32, in_a_row: u32) -> bool {
        self.is_over(sequence)
            || sequence_ahead(self.ended, sequence) <= in_a_row
            || planted("proto_ordered_call_runs_early")
    }

    fn ran_in_a_row(&self) -> u32 {
        let has_run = |passed: &u32| self.ran.is_set(self.ended.wrapping_add(*passed));
        (0..ORDER_WINDOW_CALLS).take_while(has_run).count() as u32
    }

    /// Notes a request whose place is known now.
    pub(crate) fn begin(&mut self, slot: usize, number: u64, sequence: u32, synchronises: bool) {
        assert!(
            sequence_ahead(self.ended, sequence) < ORDER_WINDOW_CALLS,
            "a request begins within the window of calls that have not ended"
        );
        if self.find(slot, number).is_none() {
            self.open.push(OpenRequest { slot, number, sequence, synchronises, early: None });
        }
    }

    /// Returns the number of an open request in the order, and whether the request waits for all earlier requests.
    pub(crate) fn place(&self, slot: usize, number: u64) -> Option<(u32, bool)> {
        let request = &self.open[self.find(slot, number)?];
        Some((request.sequence, request.synchronises))
    }

    /// Keeps a complete request until it may run.
    pub(crate) fn hold(&mut self, slot: usize, number: u64, early: Early<B>) {
        let Some(at) = self.find(slot, number) else {
            unreachable!("a request that waits has a place in the order");
        };
        let before = self.open[at].early.replace(early);
        assert!(before.is_none(), "a request is complete once");
    }

    /// Removes the requests that are no longer `open`: they have run.
    pub(crate) fn settle(&mut self, mut is_open: impl FnMut(usize, u64) -> bool) {
        let Self { ended, ran, open, .. } = self;
        open.retain(|request| {
            let stays = is_open(request.slot, request.number);
            if !stays && sequence_ahead(*ended, request.sequence) < ORDER_WINDOW_CALLS {
                ran.set(request.sequence);
            }
            stays
        });
    }

    /// Removes a request whose call has ended at the client, if its handler was not called. `is_idle` tells this from
    /// the slot, the number, and whether the request waits.
    pub(crate) fn take_ended(
        &mut self,
        is_idle: impl Fn(usize, u64, bool) -> bool,
    ) -> Option<(usize, u64)> {
        let is_ended = |open: &OpenRequest<B>| {
            self.is_over(open.sequence) && is_idle(open.slot, open.number, open.early.is_some())
        };
        let at = self.open.iter().position(is_ended)?;
        let OpenRequest { slot, number, .. } = self.open.remove(at);
        Some((slot, number))
    }

    /// Returns true, once for each notice, if a request that waited may run.
    pub(crate) fn note_ready(&mut self) -> bool {
        !self.is_noted && self.next_ready().is_some() && {
            self.is_noted = true;
            true
        }
    }

    /// Takes a request that waited and may run: slot, number and message. The notice is over.
    pub(crate) fn take_ready(&mut self) -> Option<(usize, u64, Early<B>)> {
        self.is_noted = planted("proto_order_notes_one");
        let at = self.next_ready()?;
        let request = &mut self.open[at];
        let early = request.early.take()?;
        Some((request.slot, request.number, early))
    }

    fn next_ready(&self) -> Option<usize> {
        // Found once for all: a peer may have many requests wait behind a long run.
        let in_a_row = self.ran_in_a_row();
        let is_ready = |request: &OpenRequest<B>| {
            request.early.is_some() && self.is_next(request.sequence, in_a_row)
        };
        self.open.iter().position(is_ready)
    }

    fn find(&self, slot: usize, number: u64) -> Option<usize> {
        self.open.iter().position(|request| (request.slot, request.number) == (slot, number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::WINDOW_PACKETS;
    use crate::session::backlog::NEVER;

    const fn early(message: u32) -> Early<u32> {
        Early { message, placed: None, deadline_ns: NEVER }
    }

    #[test]
    fn take_ready__when_the_last_earlier_request_has_run() {
        let mut order = RequestOrder::new();
        order.begin(5, 105, 2, true);
        order.hold(5, 105, early(2));
        order.begin(3, 103, 0, true);
        assert!(order.may_run(0) && !order.may_run(2) && !order.note_ready());
        order.settle(|slot, _| slot == 5);
        assert!(!order.note_ready(), "request 1 was never seen");
        order.note_ended(1);
        assert!(!order.note_ready(), "request 1 has not ended at the client");
        order.note_ended(2);
        assert!(order.note_ready() && !order.note_ready(), "one notice");
        assert!(matches!(order.take_ready(), Some((5, 105, Early { message: 2, .. }))));
        assert!(order.take_ready().is_none());
    }

    #[test]
    fn note_ended__that_was_overtaken_counts_for_nothing() {
        let mut order = RequestOrder::<u32>::new();
        order.note_ended(7);
        order.note_ended(3);
        assert!(order.is_over(6) && !order.is_over(7));
        order.note_ended(SEQUENCE_MASK / 2 + 7);
        assert!(order.is_over(7), "the numbers go round");
    }

    panics! {
        begin__of_an_abandoned_call: "within the window" => {
            let mut order = RequestOrder::<u32>::new();
            order.note_ended(7);
            order.begin(0, 0, 6, true);
        };
    }

    /// A place of the window is used again by a later request, which has not run.
    #[test]
    fn may_run__in_a_second_lap_of_the_window() {
        let mut order = RequestOrder::<u32>::new();
        for sequence in 0..WINDOW_PACKETS {
            order.note_ended(sequence);
            order.begin(0, sequence.into(), sequence, true);
            order.settle(|_, _| false);
        }
        order.note_ended(WINDOW_PACKETS);
        assert!(order.may_run(WINDOW_PACKETS) && !order.may_run(WINDOW_PACKETS + 1));
    }

    proptest! {
        /// All requests synchronise, arrive in any order, and run in the order of their numbers, each once.
        #[test]
        fn take_ready__in_order(
            start in prop::sample::select(vec![0, SEQUENCE_MASK - 20]),
            arrivals in Just((0usize..40).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut order = RequestOrder::new();
            order.note_ended(start / 2);
            order.note_ended(start);
            let mut ran = Vec::new();
            for at in arrivals {
                let sequence = (start + at as u32) & SEQUENCE_MASK;
                order.begin(at, at as u64, sequence, true);
                order.hold(at, at as u64, early(at as u32));
                while order.note_ready() {
                    let (slot, _, Early { message, .. }) = order.take_ready().unwrap();
                    ran.push(message as usize);
                    order.settle(|other, _| other != slot);
                }
            }
            prop_assert_eq!(ran, (0..40).collect::<Vec<_>>());
            prop_assert!(order.open.is_empty());
        }
    }
}
