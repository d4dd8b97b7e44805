//! A closed loop of echo calls whose replies are compared in every byte, for `petrel ping`.
//!
//! A [`Plan`] states the calls and their number; [`run`] keeps calls in flight and returns the [`Counts`].
//! Nothing here prints.
//!
//! Every call in flight has a slot, with two buffers for the whole run. The continuation of a call
//! checks the reply and starts the slot's next call with the same buffers. The run is the state of the
//! calling endpoint, lent to continuations.

mod counts;
mod slot;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::time::Duration;

use petrel::endpoint::HEALTH_METHOD;
use petrel::{Context, Execution, MsgBuf, Reply};
use petrel_transport::clock;

pub use self::counts::{Counts, FailureGroup, executed};

use self::slot::CallSlot;
use crate::client::Client;
use crate::failure::Failure;

/// How long the event loop runs between two checks of progress and timeouts.
const SLICE: Duration = Duration::from_millis(50);

/// A closed loop of calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Size of the requests in bytes.
    pub size: usize,
    /// Calls in flight at a time.
    pub in_flight: u16,
    /// Most calls to start.
    pub calls: u64,
    /// A call that takes longer has failed, and ends the run.
    pub timeout: Duration,
    /// The method that echoes its requests.
    pub echo: Echo,
}

/// A method that answers with its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echo {
    /// The endpoint's own, of every Petrel server; for requests of [`OWN_ECHO_BYTES_MIN`] or more.
    #[default]
    Own,
    /// A handler of the server.
    Handler(u16),
}

/// Bytes of the shortest request that [`Echo::Own`] answers.
pub const OWN_ECHO_BYTES_MIN: u32 = 3;

/// The state of a run; initially without calls.
#[derive(Default)]
pub struct Load {
    plan: Plan,
    slots: Vec<CallSlot>,
    /// Slots with a call in flight.
    active: usize,
    started_ns: u64,
    is_stopping: bool,
    /// Calls that end from now on have failed by exceeding the timeout.
    is_too_late: bool,
    counts: Counts,
}

/// Runs a plan. `watch` sees the progress repeatedly, and may stop the run: calls in flight then still
/// end.
pub fn run(
    client: &mut Client<Load>,
    plan: Plan,
    mut watch: impl FnMut(&Counts) -> ControlFlow<()>,
) -> Result<Counts, Failure> {
    let retransmissions = client.retransmissions();
    *client.endpoint.state_mut() = Load::new(client, plan)?;
    client.endpoint.with(Load::start);
    while !client.endpoint.run_for(SLICE, |load, _| load.active == 0) {
        let load = client.endpoint.state_mut();
        load.is_stopping |= watch(load.progress()).is_break();
        if load.is_overdue() {
            load.is_too_late = true;
            client.sessions.iter().for_each(|session| client.endpoint.close(*session));
        }
    }
    let mut counts = client.endpoint.state_mut().finish();
    counts.retransmissions = client.retransmissions() - retransmissions;
    Ok(counts)
}

impl Echo {
    fn method(self) -> u16 {
        match self {
            Self::Own => HEALTH_METHOD,
            Self::Handler(method) => method,
        }
    }
}

impl Load {
    fn new(client: &Client<Load>, plan: Plan) -> Result<Self, Failure> {
        let sessions = client.sessions.iter().copied().cycle();
        let slots = sessions
            .take(usize::from(plan.in_flight))
            .map(|session| CallSlot::new(&client.endpoint, session, plan.size))
            .collect::<Result<_, _>>()?;
        Ok(Self { plan, slots, ..Self::default() })
    }

    fn start(&mut self, cx: &mut Context<'_, Self>) {
        self.started_ns = clock::now_ns();
        for index in 0..self.slots.len() {
            let Some((request, response)) = self.slots[index].take_buffers() else { continue };
            self.next_call(cx, index, request, response);
        }
    }

    /// Returns the time. One call in flight is worth a reading of the clock. With many calls, the event
    /// loop's reading at the start of its turn is precise enough and free.
    #[inline]
    fn now_ns(&self, cx: &Context<'_, Self>) -> u64 {
        if self.plan.in_flight == 1 { clock::now_ns() } else { cx.now().as_ns() }
    }

    #[inline]
    fn has_more_calls(&self) -> bool {
        self.counts.started < self.plan.calls && !self.is_stopping && !self.is_too_late
    }

    #[inline]
    fn next_call(
        &mut self,
        cx: &mut Context<'_, Self>,
        index: usize,
        mut request: MsgBuf,
        response: MsgBuf,
    ) {
        if !self.has_more_calls() {
            return;
        }
        let call = self.counts.started;
        self.counts.started += 1;
        self.slots[index].write(&mut request, call, self.plan.echo);
        self.slots[index].started_ns = Some(self.now_ns(cx));
        self.active += 1;
        let session = self.slots[index].session;
        let called = cx
            .call(session, self.plan.echo.method(), request)
            .into_buffer(response)
            .then(move |load, cx, reply| load.on_reply(cx, reply, index));
        if let Err(rejected) = called {
            self.active -= 1;
            self.slots[index].started_ns = None;
            self.counts.fail(&rejected.error);
        }
    }

    #[inline]
    fn on_reply(&mut self, cx: &mut Context<'_, Self>, mut reply: Reply, index: usize) {
        let now_ns = self.now_ns(cx);
        self.active -= 1;
        let started_ns = self.slots[index].started_ns.take().unwrap_or(now_ns);
        let goes_on = match &reply.outcome {
            Ok(()) => {
                let Plan { size, echo, .. } = self.plan;
                let is_right = self.slots[index].check(&mut reply.response, size, echo);
                self.counts.answer(now_ns.saturating_sub(started_ns), is_right);
                true
            }
            Err(failure) if self.is_too_late => {
                self.counts.give_up(failure.execution, self.plan.timeout);
                false
            }
            Err(failure) => {
                self.counts.fail(failure);
                // A server that answered can answer the next call too.
                matches!(failure.execution, Execution::Answered | Execution::Refused)
            }
        };
        if goes_on {
            self.next_call(cx, index, reply.request, reply.response);
        }
    }

    /// Returns true if a call has been in flight for too long.
    fn is_overdue(&self) -> bool {
        let timeout_ns = self.plan.timeout.as_nanos() as u64;
        let now_ns = clock::now_ns();
        let mut started = self.slots.iter().filter_map(|slot| slot.started_ns);
        !self.is_too_late && started.any(|at_ns| now_ns.saturating_sub(at_ns) > timeout_ns)
    }

    fn progress(&mut self) -> &Counts {
        self.counts.elapsed_ns = clock::now_ns() - self.started_ns;
        &self.counts
    }

    fn finish(&mut self) -> Counts {
        self.progress();
        std::mem::take(&mut self.counts)
    }
}
