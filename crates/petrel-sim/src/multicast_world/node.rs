//! An endpoint of a multicast world.

use std::cell::RefCell;
use std::rc::Rc;

use petrel::endpoint::Handled;
use petrel::{Context, Request, Status};

use super::ledger::Ledger;
use crate::check::pattern;
use crate::fabric::SimAddr;
use crate::simulation::Actor;
use crate::world::{SimEndpoint, run_turn};

pub(super) const METHOD: u16 = 3;

pub(super) struct Node {
    pub(super) endpoint: SimEndpoint,
    pub(super) at: SimAddr,
}

impl Node {
    pub(super) fn new(
        mut endpoint: SimEndpoint,
        at: SimAddr,
        ledger: Rc<RefCell<Ledger>>,
        answer_bytes_max: usize,
    ) -> Self {
        endpoint
            .on(METHOD, move |_, cx, request| answer(&ledger, (at, answer_bytes_max), cx, request));
        Self { endpoint, at }
    }

    /// Returns leftover state at the end of the run.
    pub(super) fn left_at_end(&self) -> Option<(&'static str, u64)> {
        let (object_counts, buffers) =
            (self.endpoint.object_counts(), self.endpoint.buffers_in_use().count);
        let sessions = u64::from(self.endpoint.core().session_count());
        let left = object_counts.core.left_at_rest().or(object_counts.left_at_end());
        let left = left.or((sessions > 0).then_some(("sessions", sessions)));
        left.or((buffers > 0).then_some(("buffers", buffers as u64)))
    }
}

/// Records the execution of a request, and answers with bytes that follow from its seed.
fn answer(
    ledger: &RefCell<Ledger>,
    (at, answer_bytes_max): (SimAddr, usize),
    cx: &mut Context<'_>,
    request: Request<'_>,
) -> Handled {
    let executed = ledger.borrow_mut().execute(at.host, request.data());
    let Some(seed) = executed else {
        return request.fail(cx, Status::InvalidArgument, "not a request of a multicast world");
    };
    let len = (seed % answer_bytes_max as u64) as usize;
    request.reply_with(cx, len, |_, out| {
        pattern::fill(seed, out);
        len
    })
}

impl Actor for Node {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let goes_on = run_turn(&mut self.endpoint);
        if goes_on { Some(now_ns) } else { self.endpoint.next_due().map(petrel::Time::as_ns) }
    }
}
