//! A call of a service: the state between its begin and its end.

use std::mem;
use std::time::Duration;

use petrel_proto::{CallFailure, Execution, SessionId, Status};
use petrel_transport::buf::{BufPool, PoolExhausted};

use super::connection::AttemptPermit;
use super::retry::{AttemptRecord, RetryState, may_retry};
use super::spec::{CallEnd, CallRequest, CallSpec, RareOptions};
use crate::endpoint::context::continuation::Continuation;
use crate::error::Error;
use crate::local::client_call::Response;
use crate::local::client_call::response::ServerBytes;
use crate::local::client_call::state::Pending;
use crate::local::{Key, TimerId};
use crate::msgbuf::MsgBuf;
use crate::overload::BackoffConfig;
use crate::time::as_ns;
use crate::values::Marks;
use crate::values::client::{ClientConfig, Target};

/// A call that has not ended.
pub(super) struct ServiceCall {
    service: Key,
    method: u16,
    marks: Marks,
    rare: Option<Box<RareOptions>>,
    /// The end of all attempts, whenever they are made.
    end_ns: u64,
    /// The deadline inherited by its continuation and later attempts.
    inherited_ns: Option<u64>,
    end: CallEnd,
    request: CallRequest,
    /// The buffer for the response, while no attempt has it.
    response: Option<MsgBuf>,
    step: Step,
    /// The timer of the call's next step.
    timer: Option<TimerId>,
    /// The outstanding attempt that is not a hedge.
    first: Option<Attempt>,
    attempts: AttemptRecord,
    /// None for most calls: their first attempt has not failed, and they have no hedges.
    retry: Option<Box<RetryState>>,
}

/// The end of a call: the receiver, and its arguments.
pub(super) enum Ending {
    /// The waiting thread; the response, and memory for its copy.
    Posted(Pending, Option<MsgBuf>, Vec<u8>),
    /// A continuation, which gets both buffers.
    Then(Continuation, MsgBuf, MsgBuf),
}

/// The current step of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An attempt is outstanding, or about to be.
    Outstanding,
    /// The call waits for a session to any server.
    WaitingForSession,
    /// The call waits for a permit at a server.
    InQueue(Key),
    /// The call pauses before the next attempt, until this time.
    Pausing(u64),
}

/// An outstanding attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    call: Key,
    connection: Key,
    session: SessionId,
    permit: AttemptPermit,
    /// The begin of an attempt that is measured; else 0.
    measured_ns: u64,
}

impl Attempt {
    #[inline(always)]
    pub(super) fn new(
        call: Key,
        connection: Key,
        session: SessionId,
        permit: AttemptPermit,
    ) -> Self {
        Self { call, connection, session, permit, measured_ns: 0 }
    }

    /// Measures the attempt from now on.
    #[inline(always)]
    pub(super) fn measured_from(mut self, now_ns: u64) -> Self {
        self.measured_ns = now_ns;
        self
    }

    /// Returns when the attempt began, if it is measured.
    #[inline(always)]
    pub(super) fn measured_ns(&self) -> Option<u64> {
        Some(self.measured_ns).filter(|began_ns| *began_ns != 0)
    }

    pub(super) fn call(&self) -> Key {
        self.call
    }

    #[inline(always)]
    pub(super) fn connection(&self) -> Key {
        self.connection
    }

    pub(super) fn session(&self) -> SessionId {
        self.session
    }

    /// Takes the permit of an attempt that ends.
    #[inline(always)]
    pub(super) fn take_permit(&mut self) -> AttemptPermit {
        self.permit.take()
    }
}

impl ServiceCall {
    /// Creates a call whose first attempt begins.
    #[inline(always)]
    pub(super) fn begun<R: Into<CallRequest>, E: Into<CallEnd>>(
        service: Key,
        spec: CallSpec<'_, R, E>,
        first: Option<Attempt>,
        rules: Marks,
        inherited_ns: Option<u64>,
    ) -> Self {
        let CallSpec { method, request, response, options, end_ns, end } = spec;
        Self {
            service,
            method,
            marks: options.marks.with(rules),
            rare: RareOptions::of(options),
            end_ns,
            inherited_ns,
            end: end.into(),
            request: request.into(),
            response,
            step: Step::Outstanding,
            timer: None,
            first,
            attempts: AttemptRecord::first(),
            retry: None,
        }
    }

    /// Records the permit of the first attempt.
    #[inline(always)]
    pub(super) fn set_permit(&mut self, permit: AttemptPermit) {
        self.first.as_mut().expect("an attempt has a permit").permit = permit;
    }

    /// Tells the waiting thread the key of the call.
    #[inline(always)]
    pub(super) fn set_key(&self, key: Key) {
        if let CallEnd::Posted(pending) = &self.end {
            pending.set_key(key.to_bits() as usize);
        }
    }

    #[inline(always)]
    pub(super) fn service(&self) -> Key {
        self.service
    }

    #[inline(always)]
    pub(super) fn method(&self) -> u16 {
        self.method
    }

    /// Returns the client's number of a typed method, which the server's table may replace.
    pub(super) fn typed_method(&self) -> Option<u16> {
        self.marks.has(Marks::TYPED).then_some(self.method)
    }

    /// Lets the call run once: the server's table does not declare the method idempotent. A caller that asks for hedges knows better.
    pub(super) fn run_once(&mut self) {
        if !self.is_hedged() {
            self.marks = self.marks.without(Marks::IDEMPOTENT);
        }
    }

    fn is_idempotent(&self) -> bool {
        self.marks.has(Marks::IDEMPOTENT)
    }

    pub(super) fn is_patient(&self) -> bool {
        self.marks.has(Marks::WAIT_FOR_READY)
    }

    /// Returns when the call ends, whatever its attempts do.
    #[inline(always)]
    pub(super) fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Returns the deadline inherited by the call's continuation and later attempts.
    pub(super) fn inherited_ns(&self) -> Option<u64> {
        self.inherited_ns
    }

    pub(super) fn step(&self) -> Step {
        self.step
    }

    /// Has the call wait for a session or a permit.
    pub(super) fn wait(&mut self, step: Step) {
        assert!(self.first.is_none(), "a call waits before its first attempt");
        assert!(matches!(step, Step::WaitingForSession | Step::InQueue(_)), "a step of waiting");
        self.step = step;
    }

    /// Has the call pause before its next attempt.
    pub(super) fn pause_until(&mut self, at_ns: u64) {
        assert!(!self.has_attempts(), "a call pauses after the end of all attempts");
        self.step = Step::Pausing(at_ns);
    }

    /// Ends the wait or the pause.
    pub(super) fn resume(&mut self) {
        assert!(self.step != Step::Outstanding, "a call that goes on was waiting");
        self.step = Step::Outstanding;
    }

    /// Returns the step of a call that ends, which does not wait any more.
    pub(super) fn take_step(&mut self) -> Step {
        mem::replace(&mut self.step, Step::Outstanding)
    }

    /// Sets the timer of the call's next step.
    pub(super) fn set_timer(&mut self, timer: TimerId) {
        let before = self.timer.replace(timer);
        assert!(before.is_none(), "a call has one timer");
    }

    /// Takes the timer, which is due or to be removed.
    pub(super) fn take_timer(&mut self) -> Option<TimerId> {
        self.timer.take()
    }

    pub(super) fn has_timer(&self) -> bool {
        self.timer.is_some()
    }

    /// Records the first attempt of a round.
    pub(super) fn set_first(&mut self, attempt: Attempt) {
        assert_eq!(self.step, Step::Outstanding, "an attempt is made by a call that does not wait");
        let before = self.first.replace(attempt);
        assert!(before.is_none(), "a round has one first attempt");
    }

    /// Takes the first attempt, if it is outstanding.
    pub(super) fn take_first(&mut self) -> Option<Attempt> {
        self.first.take()
    }

    pub(super) fn first(&self) -> Option<&Attempt> {
        self.first.as_ref()
    }

    /// Returns the service and the only attempt of a call that a task or thread awaits, if the success of the attempt
    /// ends the call, and nothing else is to be done.
    #[inline(always)]
    pub(super) fn simple_attempt(&mut self) -> Option<(Key, &mut Attempt)> {
        if self.marks.has(Marks::ATTEMPT_RULES)
            || !self.is_simple()
            || !matches!(self.end, CallEnd::Posted(_))
        {
            return None;
        }
        Some((self.service, self.first.as_mut()?))
    }

    /// Gives the response to the waiter of a call with a [simple attempt](Self::simple_attempt). Returns the task of the
    /// endpoint to be woken, if it waits. Afterwards there is nothing to drop.
    #[inline(always)]
    pub(super) fn end_posted(&mut self, response: &[u8], server: &ServerBytes) -> Option<Key> {
        self.rare = None;
        let CallEnd::Posted(pending) = &mut self.end else { return None };
        let (task, memory) = (pending.task(), self.request.take_memory());
        pending.end_now(Ok(Response::new(response, server, memory)));
        task
    }

    /// Returns true if success of the first attempt leaves nothing to undo.
    #[inline]
    pub(super) fn is_simple(&self) -> bool {
        self.timer.is_none() && self.retry.is_none()
    }

    /// Copies the message, for several attempts at a time.
    pub(super) fn copy_message(&mut self) {
        let request = mem::replace(&mut self.request, CallRequest::Buffer(None));
        self.request = request.copied();
    }

    /// Returns the buffers for an attempt that is sent now.
    #[inline(always)]
    pub(super) fn take_buffers(
        &mut self,
        pool: &BufPool,
        alloc_response: impl FnOnce(Option<usize>) -> Result<MsgBuf, PoolExhausted>,
    ) -> Result<(MsgBuf, MsgBuf), PoolExhausted> {
        let response = match self.response.take() {
            Some(response) => response,
            None => alloc_response(self.rare.as_ref().and_then(|rare| rare.response_bytes()))?,
        };
        match self.request.take_to_send(pool) {
            Ok(request) => {
                if let CallEnd::Posted(pending) = &mut self.end {
                    pending.was_made = true;
                }
                Ok((request, response))
            }
            Err(error) => {
                self.response = Some(response);
                Err(error)
            }
        }
    }

    /// Takes back the buffers of a failed attempt.
    pub(super) fn return_buffers(&mut self, request: MsgBuf, response: MsgBuf) {
        self.request.return_buffer(request);
        self.response.get_or_insert(response);
    }

    /// Returns the end of the call, with the buffers of the successful attempt, if any.
    pub(super) fn into_end(self, buffers: Option<(MsgBuf, MsgBuf)>) -> Ending {
        let (request, response) = buffers.unzip();
        match self.end {
            CallEnd::Posted(pending) => {
                Ending::Posted(pending, response, self.request.into_memory())
            }
            CallEnd::Then(continuation) => {
                let (request, response) =
                    (self.request.into_buffer().or(request), response.or(self.response));
                let kept = "a continuation's buffers come back from each attempt";
                Ending::Then(continuation, request.expect(kept), response.expect(kept))
            }
        }
    }

    /// Returns the timeout of this call's attempts, if its client has one: only calls that may be repeated, in any order, have one.
    fn attempt_timeout(&self, config: &ClientConfig) -> Option<Duration> {
        config.attempt_timeout.filter(|_| self.is_idempotent() && !self.is_ordered())
    }

    /// Returns when an attempt ends that begins now.
    #[inline(never)]
    pub(super) fn attempt_end_ns(
        &self,
        config: &ClientConfig,
        clock_ns: impl FnOnce() -> u64,
    ) -> u64 {
        let Some(timeout) = self.attempt_timeout(config) else { return self.end_ns };
        let attempt_ns =
            self.retry.as_ref().map_or_else(|| as_ns(timeout), |retry| retry.attempt_ns(timeout));
        self.end_ns.min(clock_ns().saturating_add(attempt_ns))
    }

    /// Returns the failure of an attempt as it concerns the call. An attempt whose own time is over is lost, as with a
    /// session: the call has time for another.
    pub(super) fn attempt_failure(
        &mut self,
        failure: Error,
        config: &ClientConfig,
        now_ns: u64,
    ) -> Error {
        let is_late = failure.status == Status::DeadlineExceeded
            && failure.execution != Execution::Answered
            && now_ns < self.end_ns;
        if !is_late || self.attempt_timeout(config).is_none() {
            return failure;
        }
        self.retry(config.retry_backoff).count_timeout();
        let execution = failure.execution;
        Error::of(Status::Unavailable, "no answer within the attempt's time", execution)
    }

    /// Begins a further attempt.
    pub(super) fn begin_attempt(&mut self, now_ns: u64) {
        self.attempts.begin();
        self.restart_hedge_timer(now_ns);
    }

    /// Restarts the time until the next hedge.
    pub(super) fn restart_hedge_timer(&mut self, now_ns: u64) {
        if let Some(rare) = &mut self.rare {
            rare.restart_hedge_timer(now_ns);
        }
    }

    /// Makes no further hedges.
    pub(super) fn stop_hedges(&mut self) {
        self.rare.as_mut().expect("a call with hedges has the option").stop_hedges();
    }

    /// Returns when the next hedge is due.
    pub(super) fn hedge_ns(&self) -> Option<u64> {
        self.rare.as_ref()?.hedge_ns()
    }

    /// Returns true if the call is hedged.
    pub(super) fn is_hedged(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.is_hedged())
    }

    /// Returns true if the call runs after all earlier ones of its session.
    pub(super) fn is_ordered(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.is_ordered())
    }

    /// Returns the hash of the key, for the choice of a server.
    pub(super) fn key(&self) -> Option<u64> {
        self.rare.as_ref()?.key()
    }

    /// Returns when the call's timer is due.
    pub(super) fn due_ns(&self) -> Option<u64> {
        let (step_ns, hedge_ns) = match self.step {
            Step::Outstanding => (None, self.hedge_ns()),
            Step::WaitingForSession | Step::InQueue(_) => (Some(self.end_ns), self.hedge_ns()),
            Step::Pausing(until_ns) => (Some(until_ns.min(self.end_ns)), None),
        };
        [step_ns, hedge_ns].into_iter().flatten().min()
    }

    /// Returns true if an attempt is outstanding.
    fn has_attempts(&self) -> bool {
        self.first.is_some() || !self.hedges().is_empty()
    }

    /// Returns true if an attempt is outstanding or waits for a permit, beside a failed one.
    pub(super) fn has_other_attempt(&self) -> bool {
        matches!(self.step, Step::WaitingForSession | Step::InQueue(_)) || self.has_attempts()
    }

    pub(super) fn attempts(&self) -> &AttemptRecord {
        &self.attempts
    }

    pub(super) fn attempts_mut(&mut self) -> &mut AttemptRecord {
        &mut self.attempts
    }

    /// Returns true if the call allows another attempt after a failure.
    pub(super) fn may_retry(&self, failure: &CallFailure, attempts_max: u32) -> bool {
        self.attempts.count() < attempts_max && may_retry(failure, self.is_idempotent())
    }

    /// Returns the failure of the call after its deadline. Outstanding attempts may be executed.
    #[cold]
    pub(super) fn too_late(&self) -> Error {
        let execution = match self.attempts.may_have_executed() || self.has_attempts() {
            true => Execution::MayHaveExecuted,
            false => Execution::NotSent,
        };
        // An attempt that waits for a server has not reached one.
        let waits = matches!(self.step, Step::WaitingForSession | Step::InQueue(_));
        let reached = self.attempts.reached().saturating_sub(u32::from(waits));
        let attempts = match reached {
            0 => String::new(),
            1 => ", in 1 attempt".to_owned(),
            attempts => format!(", in {attempts} attempts"),
        };
        let last = match self.retry.as_ref().map_or("", |retry| retry.last()) {
            "" => String::new(),
            last => format!("; the last: {last}"),
        };
        let message = format!("no answer within the call's time{attempts}{last}");
        Error::of(Status::DeadlineExceeded, message, execution)
    }

    /// Returns the failure of a cancelled call.
    #[cold]
    pub(super) fn cancelled(&self) -> Error {
        let execution = match self.attempts.may_have_executed() {
            true => Execution::MayHaveExecuted,
            false => Execution::NotSent,
        };
        Error::of(Status::Cancelled, "the call was cancelled", execution)
    }

    /// Returns the servers with failed attempts, each once, in the order of their last failure.
    pub(super) fn tried(&self) -> &[Target] {
        self.retry.as_ref().map_or(&[], |retry| retry.tried())
    }

    pub(super) fn hedges(&self) -> &[Key] {
        self.retry.as_ref().map_or(&[], |retry| retry.hedges())
    }

    /// Removes a hedge that has ended.
    pub(super) fn remove_hedge(&mut self, attempt: Key) {
        self.retry.as_mut().expect("a call with hedges records them").remove_hedge(attempt);
    }

    pub(super) fn take_hedges(&mut self) -> Vec<Key> {
        self.retry.as_mut().map_or_else(Vec::new, |retry| retry.take_hedges())
    }

    /// Returns the state for retries and hedges, created for the first.
    pub(super) fn retry(&mut self, backoff: BackoffConfig) -> &mut RetryState {
        self.retry.get_or_insert_with(|| Box::new(RetryState::new(backoff)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::client_call::state::CallState;
    use crate::values::CallOptions;

    fn key(bits: u64) -> Key {
        Key::from_bits(bits)
    }

    fn attempt() -> Attempt {
        let session = SessionId { index: 0, generation: 0 };
        Attempt::new(key(1), key(2), session, AttemptPermit::NONE)
    }

    fn call() -> ServiceCall {
        let options = CallOptions::new();
        let spec = CallSpec {
            method: 1,
            request: CallRequest::Buffer(None),
            response: None,
            options: &options,
            end_ns: 9,
            end: CallState::new(None).1,
        };
        ServiceCall::begun(key(0), spec, None, Marks::default(), None)
    }

    #[test]
    fn attempt_failure__of_an_attempt_without_an_answer_in_time_lets_the_call_go_on() {
        let timeout = Some(Duration::from_nanos(2));
        let config = ClientConfig { attempt_timeout: timeout, ..ClientConfig::default() };
        let late = |execution| Error::of(Status::DeadlineExceeded, "late", execution);
        let status = |call: &mut ServiceCall, execution, now_ns| {
            call.attempt_failure(late(execution), &config, now_ns).status
        };
        let mut call = call();
        assert_eq!(call.attempt_end_ns(&config, || 3), 9, "it may not be repeated");
        assert_eq!(status(&mut call, Execution::MayHaveExecuted, 5), Status::DeadlineExceeded);
        call.marks = call.marks.with(Marks::IDEMPOTENT);
        assert_eq!(call.attempt_end_ns(&config, || 3), 5);
        assert_eq!(status(&mut call, Execution::MayHaveExecuted, 5), Status::Unavailable);
        assert_eq!(call.attempt_end_ns(&config, || 3), 7, "the next one has twice the time");
        assert_eq!(call.attempt_end_ns(&config, || 6), 9, "and no more than the call");
        assert_eq!(status(&mut call, Execution::Answered, 5), Status::DeadlineExceeded);
        assert_eq!(status(&mut call, Execution::MayHaveExecuted, 9), Status::DeadlineExceeded);
    }

    panics! {
        set_first__beside_another: "a round has one first attempt" => {
            let mut call = call();
            (0..2).for_each(|_| call.set_first(attempt()));
        };
        set_first__of_a_call_that_pauses: "made by a call that does not wait" => {
            let mut call = call();
            call.pause_until(5);
            call.set_first(attempt());
        };
        wait__with_an_attempt: "a call waits before its first attempt" => {
            let mut call = call();
            call.set_first(attempt());
            call.wait(Step::WaitingForSession);
        };
        pause_until__with_a_hedge: "a call pauses after the end of all attempts" => {
            let mut call = call();
            call.retry(BackoffConfig::default()).add_hedge(key(3));
            call.pause_until(5);
        };
        resume__without_a_wait: "a call that goes on was waiting" => call().resume();
    }
}
