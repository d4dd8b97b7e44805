//! The attempts of a service's call. Each attempt goes to a chosen server; at its end the call ends, or another attempt
//! follows.
//!
//! Continuations of the application run only where the end of an attempt was received. All other ends are kept for
//! [`run_ended`](super::run_ended).

mod end;
mod queues;
mod servers;
mod tables;

use petrel_proto::{PendingCall, SessionId};

use super::call::{Attempt, ServiceCall, Step};
use super::connection::{AttemptPermit, MayBegin};
use super::fit::Suits;
use super::outcome::{NO_SESSION, Outcome};
use super::spec::{CallEnd, CallRequest, CallSpec};
use super::steps::{arm, arm_queue, cancel_attempts, session_of, wait};
use super::{Chosen, Due, Services, unreachable};
use crate::endpoint::HEALTH_METHOD;
use crate::endpoint::context::continuation::Continuation;
use crate::endpoint::context::{CallKind, Context, Local};
use crate::error::Error;
use crate::local::Key;
use crate::local::client_call::state::CallState;
use crate::values::expected::Misfit;
use crate::values::{CallOptions, Marks};
use end::{FirstEnd, HedgeEnd, no_one_session};

pub(crate) use tables::expect_table;

/// The calls of services, in an endpoint: the steps that a call takes by itself, and the steps that follow from the end
/// of another.
pub(super) struct Attempts<'a, 'c> {
    cx: &'a mut Context<'c>,
}

/// Begins a call of a service; `clock_ns` is the time, if its caller has just read the clock.
// Inline in the poll of an awaited call: nothing is left of options that were not set.
#[inline(always)]
pub(crate) fn begin_call_at<R: Into<CallRequest>, E: Into<CallEnd>>(
    cx: &mut Context<'_>,
    service_key: Key,
    spec: CallSpec<'_, R, E>,
    clock_ns: Option<u64>,
) -> Key {
    // The spec is taken apart, and put together where needed: the compiler would keep a whole one in memory.
    let CallSpec { method, request, response, options, end_ns, end } = spec;
    let Local { services, core, hub, pool, now_ns, .. } = &mut *cx.local;
    let inherited_ns = core.inherited_ns();
    let Services { list, connections, calls, calls_made, .. } = &mut **services;
    let service = list.get_mut(service_key).expect("a client has its service");
    service.begin_call();
    let end_ns = inherited_ns.map_or(end_ns, |at_ns| at_ns.min(end_ns));
    let rules = service.attempt_rules();
    // Most calls go to a server at once, and end with its answer.
    let chosen = match options.is_special() {
        true => None,
        false => {
            let is_typed = options.marks.has(Marks::TYPED);
            let of = (method, is_typed, is_outside(method));
            service.choose_at_once(connections, || hub.random(), *now_ns, of)
        }
    };
    let Some(Chosen { key: at, connection, session, measured_ns }) = chosen else {
        let (request, end) = (request.into(), end.into());
        let spec = CallSpec { method, request, response, options, end_ns, end };
        return begin_later(cx, service_key, spec, rules, inherited_ns);
    };
    let vacant = calls.vacant();
    let key = vacant.key();
    let first =
        Some(Attempt::new(key, at, session, AttemptPermit::NONE).measured_from(measured_ns));
    let spec = CallSpec { method, request, response, options, end_ns, end };
    let call = vacant.insert(ServiceCall::begun(service_key, spec, first, rules, inherited_ns));
    call.set_key(key);
    if let Some(permit) = connection.begin_allowed(*now_ns, is_outside(method)) {
        call.set_permit(permit);
    }
    let attempt_end_ns = match rules.has(Marks::ATTEMPT_RULES) {
        true => call.attempt_end_ns(service.config(), || clock_ns.unwrap_or(*now_ns)),
        false => end_ns,
    };
    match call.take_buffers(pool, |bytes| hub.alloc_response(bytes)) {
        Ok((request, response)) => {
            *calls_made += 1;
            let tag = Continuation::numbered::<FirstEnd>(key.to_bits());
            let to_make = PendingCall { method, tag, request, response };
            let kind = CallKind::Until { end_ns: attempt_end_ns, clock_ns };
            if let Err(rejected) = cx.start(session, to_make, kind) {
                let outcome = Outcome::not_taken(cx.local, session, rejected);
                Attempts::of(cx).fail_first(key, outcome);
            }
        }
        Err(error) => {
            let outcome = Outcome::no_buffers(cx.local, session, error);
            Attempts::of(cx).fail_first(key, outcome);
        }
    }
    key
}

/// Returns true for calls to the endpoint itself: a question for its health stands outside of the limit of outstanding calls.
#[inline(always)]
fn is_outside(method: u16) -> bool {
    method == HEALTH_METHOD
}

/// Begins a call that cannot be made at once, or that is hedged, is ordered, or has a key.
#[inline(never)]
fn begin_later(
    cx: &mut Context<'_>,
    service: Key,
    spec: CallSpec<'_, CallRequest, CallEnd>,
    rules: Marks,
    inherited_ns: Option<u64>,
) -> Key {
    let (vacant, options) = (cx.local.services.calls.vacant(), spec.options);
    let key = vacant.key();
    vacant.insert(ServiceCall::begun(service, spec, None, rules, inherited_ns)).set_key(key);
    Attempts::of(cx).begin_later(key, options);
    key
}

/// Cancels a call: it ends with CANCELLED, and the servers of its attempts are notified. Returns false if the call has
/// ended, or is about to.
pub(crate) fn cancel_call(cx: &mut Context<'_>, key: Key) -> bool {
    Attempts::of(cx).cancel(key)
}

/// Cancels a call whose thread no longer waits.
pub(crate) fn cancel_posted(cx: &mut Context<'_>, state: &CallState) {
    if let Some(bits) = state.key() {
        Attempts::of(cx).cancel(Key::from_bits(bits as u64));
    }
}

/// Runs the timers that are due.
pub(crate) fn run_due(cx: &mut Context<'_>) {
    while let Some(due) = cx.local.services.timers.pop_due(cx.local.now_ns) {
        match due {
            Due::Call(key) => Attempts::of(cx).on_timer(key),
            Due::Connection(key) => {
                let connection = cx.local.services.connections.get_mut(key);
                let timer = connection.expect("a timer ends with its connection").take_timer();
                assert!(timer.is_some(), "a timer that is due was set");
                Attempts::of(cx).serve(key);
            }
            Due::Opening(key) => Attempts::of(cx).give_up_opening(key),
        }
    }
}

impl<'a, 'c> Attempts<'a, 'c> {
    #[inline(always)]
    pub(super) fn of(cx: &'a mut Context<'c>) -> Self {
        Self { cx }
    }

    /// Returns a call that has not ended.
    fn call(&mut self, key: Key) -> &mut ServiceCall {
        self.cx.local.services.calls.get_mut(key).expect("an attempt belongs to a call")
    }

    /// Begins a call of the table that cannot be made at once, or that is special.
    fn begin_later(&mut self, key: Key, options: &CallOptions) {
        let now_ns = self.cx.local.now_ns;
        if options.hedge_after_ns().is_some() {
            let call = self.call(key);
            call.copy_message();
            call.restart_hedge_timer(now_ns);
        }
        match self.check(key, options) {
            Ok(()) => self.route(key),
            Err(error) => self.finish(None, key, Outcome::failed(error)),
        }
    }

    /// Checks the options of a call against each other, and against its service.
    fn check(&mut self, key: Key, options: &CallOptions) -> Result<(), Error> {
        let services = &mut *self.cx.local.services;
        let (_, service) = services.service_of(key).expect("a call has its service");
        let has_one_session = service.servers().len() <= 1 && !service.is_judged();
        match options.is_ordered() && (options.hedge_after_ns().is_some() || !has_one_session) {
            true => Err(no_one_session()),
            false => Ok(()),
        }
    }

    /// Begins a further attempt.
    fn attempt(&mut self, key: Key) {
        let now_ns = self.cx.local.now_ns;
        self.call(key).begin_attempt(now_ns);
        self.route(key);
    }

    /// Makes the begun attempt at an available server, or lets it wait.
    fn route(&mut self, key: Key) {
        let now_ns = self.cx.local.now_ns;
        self.wake_endpoint(key);
        let services = &mut *self.cx.local.services;
        let Some(chosen) = services.choose(key) else { return self.wait_for_session(key) };
        let call = services.calls.get(key).expect("a server was chosen for it");
        let (method, is_outside) = (call.typed_method(), is_outside(call.method()));
        let connection = services.connections.get_mut(chosen).expect("it was chosen");
        if connection.fit().of(method) == Some(&Suits::Asked) {
            return self.add_waiting(key);
        }
        if connection.queue().is_empty() || is_outside {
            match connection.begin(now_ns, is_outside) {
                MayBegin::Now(permit) => return self.make(key, chosen, permit),
                MayBegin::Later(at_ns) => arm_queue(self.cx.local, chosen, at_ns),
            }
        }
        let connection = self.cx.local.services.connections.get_mut(chosen);
        connection.expect("it was chosen").queue_mut().push(key);
        wait(self.cx.local, key, Step::InQueue(chosen));
    }

    /// Lets a call wait for a server, or fails it.
    fn wait_for_session(&mut self, key: Key) {
        let call = self.call(key);
        let (service_key, is_patient) = (call.service(), call.is_patient());
        let services = &mut *self.cx.local.services;
        if is_patient || !services.has_failed(service_key) {
            return self.add_waiting(key);
        }
        let failures = services.failures(service_key).expect("all have failed");
        self.fail(None, key, NO_SESSION, unreachable(&failures));
    }

    /// Lets a call wait for a server, or for the methods of a server.
    fn add_waiting(&mut self, key: Key) {
        let services = &mut *self.cx.local.services;
        let (call, service) = services.service_of(key).expect("a call has its service");
        service.add_waiting(key, call.is_patient());
        wait(self.cx.local, key, Step::WaitingForSession);
    }

    /// Makes the first attempt of a round.
    fn make(&mut self, key: Key, connection: Key, permit: AttemptPermit) {
        let session = session_of(self.cx.local, connection);
        let call = self.call(key);
        if call.step() != Step::Outstanding {
            call.resume();
        }
        let began_ns = self.begins_measured(key, connection);
        let call = self.call(key);
        call.set_first(Attempt::new(key, connection, session, permit).measured_from(began_ns));
        if call.has_timer() || call.is_hedged() {
            arm(self.cx.local, key);
        }
        let tag = Continuation::numbered::<FirstEnd>(key.to_bits());
        if let Err(outcome) = self.send(key, (connection, session), tag) {
            self.fail_first(key, outcome);
        }
    }

    /// Ends a first attempt that was not sent.
    #[cold]
    fn fail_first(&mut self, key: Key, outcome: Outcome) {
        let attempt = self.call(key).take_first().expect("it was put there");
        self.end_attempt(None, attempt, outcome, false);
    }

    /// Makes a further attempt while another is outstanding, if a server is available at once and the budget allows it.
    /// The next hedge is due after the same time again.
    fn hedge(&mut self, key: Key) {
        let now_ns = self.cx.local.now_ns;
        let services = &mut *self.cx.local.services;
        let (call, service) = services.service_of(key).expect("a hedge belongs to a call");
        if call.attempts().count() >= service.config().attempts_max {
            call.stop_hedges();
            return arm(self.cx.local, key);
        }
        call.restart_hedge_timer(now_ns);
        let Some((connection, permit)) = services.hedge_at(key, now_ns) else {
            return arm(self.cx.local, key);
        };
        let session = session_of(self.cx.local, connection);
        let services = &mut *self.cx.local.services;
        let hedge = services.hedges.insert(Attempt::new(key, connection, session, permit));
        let (call, service) = services.service_of(key).expect("a hedge belongs to a call");
        service.counters().hedges.increment();
        call.begin_attempt(now_ns);
        call.retry(service.config().retry_backoff).add_hedge(hedge);
        arm(self.cx.local, key);
        let tag = Continuation::numbered::<HedgeEnd>(hedge.to_bits());
        if let Err(outcome) = self.send(key, (connection, session), tag) {
            self.end_hedge(None, hedge, outcome);
        }
    }

    /// Sends an attempt, or returns why it cannot be sent.
    fn send(
        &mut self,
        key: Key,
        (connection, session): (Key, SessionId),
        tag: Continuation,
    ) -> Result<(), Outcome> {
        let Local { services, pool, hub, clock, .. } = &mut *self.cx.local;
        let call = services.calls.get(key).expect("an attempt belongs to a call");
        let at = services.connections.get(connection);
        let (method, is_idempotent) = match at.and_then(|one| one.fit().of(call.typed_method())) {
            None => (call.method(), true),
            Some(&Suits::Known(Misfit::Other { number, is_idempotent })) => (number, is_idempotent),
            Some(suits) => {
                let outcome = Outcome::failed(suits.why_not());
                return Err(Outcome { session, ..outcome });
            }
        };
        let (call, service) = services.service_of(key).expect("an attempt belongs to a call");
        if !is_idempotent {
            call.run_once();
        }
        let end_ns = call.attempt_end_ns(service.config(), || clock.now_ns());
        let inherited_ns = call.inherited_ns();
        let (request, response) = match call.take_buffers(pool, |bytes| hub.alloc_response(bytes)) {
            Ok(buffers) => buffers,
            Err(error) => return Err(Outcome::no_buffers(self.cx.local, session, error)),
        };
        let (timeout_ns, deadline_ns, ordered) = (None, Some(end_ns), call.is_ordered());
        let kind = CallKind::Limited { timeout_ns, deadline_ns, ordered };
        services.calls_made += 1;
        let to_make = PendingCall { method, tag, request, response };
        let start = |cx: &mut Context<'_>| cx.start(session, to_make, kind);
        let sent = self.cx.under_deadline(inherited_ns, start);
        sent.map_err(|rejected| Outcome::not_taken(self.cx.local, session, rejected))
    }

    /// Handles the timer of a call.
    fn on_timer(&mut self, key: Key) {
        let now_ns = self.cx.local.now_ns;
        let services = &mut *self.cx.local.services;
        let call = services.calls.get_mut(key).expect("a timer ends with its call");
        assert!(call.take_timer().is_some(), "a timer that is due was set");
        match call.step() {
            // The core handles the deadlines of outstanding attempts.
            Step::WaitingForSession | Step::InQueue(_) | Step::Pausing(_)
                if call.end_ns() <= now_ns =>
            {
                let outcome = Outcome::failed(services.too_late(key));
                let freed = cancel_attempts(self.cx.local, key, true);
                self.finish(None, key, outcome);
                self.serve_all(freed.unwrap_or_default());
            }
            Step::Pausing(until_ns) if until_ns <= now_ns => {
                call.resume();
                self.attempt(key);
            }
            Step::Outstanding | Step::WaitingForSession | Step::InQueue(_)
                if call.hedge_ns().is_some_and(|at_ns| at_ns <= now_ns) =>
            {
                self.hedge(key);
            }
            _ => arm(self.cx.local, key),
        }
    }

    /// Cancels a call. Returns false if the call has ended, or is about to.
    fn cancel(&mut self, key: Key) -> bool {
        if self.cx.local.services.calls.get(key).is_none() {
            return false;
        }
        let Some(freed) = cancel_attempts(self.cx.local, key, false) else { return false };
        let error = self.call(key).cancelled();
        self.finish(None, key, Outcome::failed(error));
        self.serve_all(freed);
        true
    }
}
