//! A closed loop of echo calls whose replies are compared in every byte: what `ping` runs.
//!
//! A [`Plan`] says what to call and how often; [`run`] keeps so many calls in flight and gives
//! a [`Tally`]. Nothing here prints.
//!
//! There are as many lanes as calls in flight. Each has its two buffers for the whole run: the
//! continuation of a call checks the reply and starts the lane's next call with the same buffers.
//! The run is the state of the endpoint that calls, which lends it to each continuation.

mod lane;
mod tally;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::time::Duration;

use petrel::{Context, Execution, MsgBuf, Reply};
use petrel_transport::clock;

pub(crate) use self::tally::{FailureGroup, Tally, executed};

use self::lane::Lane;
use crate::client::Client;
use crate::failure::Failure;
use crate::methods;

/// How long the event loop runs before progress and time-outs are looked at.
const SLICE: Duration = Duration::from_millis(50);

/// A closed loop of calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    /// Size of the requests in bytes.
    pub(crate) size: usize,
    /// Calls in flight at a time.
    pub(crate) in_flight: u16,
    /// No more calls are started after so many.
    pub(crate) calls: u64,
    /// A call that takes longer has failed, and ends the run.
    pub(crate) timeout: Duration,
}

/// A run that is under way; at first one without calls.
#[derive(Default)]
pub(crate) struct Load {
    plan: Plan,
    lanes: Vec<Lane>,
    /// Lanes that have a call in flight.
    active: usize,
    started_ns: u64,
    is_stopping: bool,
    /// Calls that end from now on have failed by taking too long.
    is_too_late: bool,
    tally: Tally,
}

/// Runs a plan. From time to time `watch` sees how far it is, and may stop it: calls in flight then
/// still end.
pub(crate) fn run(
    client: &mut Client<Load>,
    plan: Plan,
    mut watch: impl FnMut(&Tally) -> ControlFlow<()>,
) -> Result<Tally, Failure> {
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
    let mut tally = client.endpoint.state_mut().finish();
    tally.retransmissions = client.retransmissions() - retransmissions;
    Ok(tally)
}

impl Load {
    fn new(client: &Client<Load>, plan: Plan) -> Result<Self, Failure> {
        let sessions = client.sessions.iter().copied().cycle();
        let lanes = sessions
            .take(usize::from(plan.in_flight))
            .map(|session| Lane::new(&client.endpoint, session, plan.size))
            .collect::<Result<_, _>>()?;
        Ok(Self { plan, lanes, ..Self::default() })
    }

    fn start(&mut self, cx: &mut Context<'_, Self>) {
        self.started_ns = clock::now_ns();
        for index in 0..self.lanes.len() {
            let Some((request, response)) = self.lanes[index].take_buffers() else { continue };
            self.next_call(cx, index, request, response);
        }
    }

    /// The time. With one call in flight it is worth a reading of the clock; with many, the event
    /// loop's own reading at the start of its turn is near enough and costs nothing.
    #[inline]
    fn now_ns(&self, cx: &Context<'_, Self>) -> u64 {
        if self.plan.in_flight == 1 { clock::now_ns() } else { cx.now_ns() }
    }

    #[inline]
    fn wants_more(&self) -> bool {
        self.tally.started < self.plan.calls && !self.is_stopping && !self.is_too_late
    }

    #[inline]
    fn next_call(
        &mut self,
        cx: &mut Context<'_, Self>,
        index: usize,
        mut request: MsgBuf,
        response: MsgBuf,
    ) {
        if !self.wants_more() {
            return;
        }
        let call = self.tally.started;
        self.tally.started += 1;
        self.lanes[index].write(&mut request, call);
        self.lanes[index].started_ns = Some(self.now_ns(cx));
        self.active += 1;
        let session = self.lanes[index].session;
        let called = cx
            .call(session, methods::ECHO, request)
            .into_buffer(response)
            .then(move |load, cx, reply| load.on_reply(cx, reply, index));
        if let Err(rejected) = called {
            self.active -= 1;
            self.lanes[index].started_ns = None;
            self.tally.fail(&rejected.error);
        }
    }

    #[inline]
    fn on_reply(&mut self, cx: &mut Context<'_, Self>, reply: Reply, index: usize) {
        let now_ns = self.now_ns(cx);
        self.active -= 1;
        let started_ns = self.lanes[index].started_ns.take().unwrap_or(now_ns);
        let goes_on = match &reply.outcome {
            Ok(()) => {
                let is_right = self.lanes[index].check(&reply.response, self.plan.size);
                self.tally.answer(now_ns.saturating_sub(started_ns), is_right);
                true
            }
            Err(failure) if self.is_too_late => {
                self.tally.give_up(failure.execution, self.plan.timeout);
                false
            }
            Err(failure) => {
                self.tally.fail(failure);
                // Where the server answered, it can answer the next call too.
                matches!(failure.execution, Execution::Answered | Execution::Refused)
            }
        };
        if goes_on {
            self.next_call(cx, index, reply.request, reply.response);
        }
    }

    /// Whether a call has been in flight for too long.
    fn is_overdue(&self) -> bool {
        let timeout_ns = self.plan.timeout.as_nanos() as u64;
        let now_ns = clock::now_ns();
        let mut started = self.lanes.iter().filter_map(|lane| lane.started_ns);
        !self.is_too_late && started.any(|at_ns| now_ns.saturating_sub(at_ns) > timeout_ns)
    }

    fn progress(&mut self) -> &Tally {
        self.tally.elapsed_ns = clock::now_ns() - self.started_ns;
        &self.tally
    }

    fn finish(&mut self) -> Tally {
        self.progress();
        std::mem::take(&mut self.tally)
    }
}
