//! The ends of attempts, and their effects on calls.

use petrel_proto::{CallFailure, Execution, SessionId, Status};

use super::Attempts;
use crate::endpoint::context::continuation::{Numbered, NumberedEnd, Reply};
use crate::endpoint::context::{Context, Local};
use crate::endpoint::service::call::{Attempt, Step};
use crate::endpoint::service::outcome::{NO_SESSION, Outcome, notify};
use crate::endpoint::service::retry::{is_transparent, may_retry};
use crate::endpoint::service::steps::{
    arm, cancel_attempts, pause_until, record_end, release, remove_connection, remove_service,
};
use crate::endpoint::service::{Service, Services};
use crate::error::Error;
use crate::events;
use crate::local::Key;
use crate::values::State;
use crate::values::client::{Target, Verdict};

/// The continuation of all first attempts.
pub(super) struct FirstEnd;

/// The continuation of all hedges.
pub(super) struct HedgeEnd;

impl NumberedEnd for FirstEnd {
    const KIND: Numbered = Numbered::FirstAttempt;

    #[inline(always)]
    fn end(state: State<'_>, cx: &mut Context<'_>, reply: Reply, number: u64) {
        end_first(state, cx, reply, Key::from_bits(number));
    }
}

impl NumberedEnd for HedgeEnd {
    const KIND: Numbered = Numbered::Hedge;

    fn end(state: State<'_>, cx: &mut Context<'_>, reply: Reply, number: u64) {
        Attempts::of(cx).end_hedge(Some(state), Key::from_bits(number), reply.into());
    }
}

/// Ends a first attempt: here if its success ends an awaited call, else by [`Attempts::end_first`].
#[inline(always)]
fn end_first(state: State<'_>, cx: &mut Context<'_>, reply: Reply, key: Key) {
    // The reply is taken apart, and put together where needed: the compiler would keep a whole one in memory.
    let Reply { session, outcome, request, response } = reply;
    let Local { services, hub, now_ns, .. } = &mut *cx.local;
    let Services { connections, calls, list, .. } = &mut **services;
    if let Some(mut place) = calls.occupied(key)
        && let call = place.get_mut()
        && outcome.is_ok()
        && let Some((service_key, attempt)) = call.simple_attempt()
        && let Some(service) = list.get_mut(service_key)
        && !service.is_closing()
        && let Some(connection) = connections.get_mut(attempt.connection())
        && !connection.is_retired()
    {
        // Most awaited calls end like this: only the call itself is over.
        let at = attempt.connection();
        connection.end_successfully(|| attempt.take_permit(), *now_ns);
        let measured_ns = attempt.measured_ns();
        service.record_end(true);
        let (task, method) = (call.end_posted(&response, connection.server()), call.method());
        place.forget();
        match task {
            Some(task) => hub.wake(task),
            None => hub.note_answered(calls.len() == 0),
        }
        let others_wait = !connection.queue().is_empty();
        if let Some(began_ns) = measured_ns {
            Attempts::of(cx).record_answer(service_key, at, method, began_ns);
        }
        if others_wait {
            Attempts::of(cx).serve(at);
        }
        return;
    }
    Attempts::of(cx).end_first(state, Reply { session, outcome, request, response }, key);
}

impl Attempts<'_, '_> {
    /// Handles the end of a first attempt in all cases.
    #[inline(never)]
    fn end_first(&mut self, state: State<'_>, reply: Reply, key: Key) {
        // A cancelled attempt that had already ended no longer has a call.
        let Local { services, .. } = &mut *self.cx.local;
        let Services { calls, list, .. } = &mut **services;
        let Some(call) = calls.get_mut(key) else { return };
        let mut attempt = call.take_first().expect("an attempt that ends was outstanding");
        let (at, service_key) = (attempt.connection(), call.service());
        let service = list.get_mut(service_key).expect("a service stays for its calls");
        let mut reply = Outcome::from(reply);
        let verdict = service.verdict(call, &mut reply);
        if !call.is_simple() || !service.is_settled(call, at, &verdict) {
            return self.end_judged(Some(state), attempt, reply, verdict, false);
        }
        let method = call.method();
        self.measure(service_key, &attempt, method, Ok(()));
        let Local { services, now_ns, .. } = &mut *self.cx.local;
        let Services { connections, calls, list, .. } = &mut **services;
        let connection = connections.get_mut(at).expect("a server stays for its attempts");
        let is_over = connection.end(attempt.take_permit(), Some(Ok(())), *now_ns);
        let others_wait = !connection.queue().is_empty();
        reply.server = Some(*connection.server());
        let service = list.get_mut(service_key).expect("a service stays for its calls");
        let is_last = service.record_end(true);
        let call = calls.remove(key).expect("a call ends once");
        if is_over {
            remove_connection(self.cx.local, at);
        }
        if is_last {
            remove_service(self.cx.local, service_key);
        }
        notify(Some(state), self.cx, call, reply);
        if others_wait {
            self.serve(at);
        }
    }

    /// Handles the end of a hedge.
    pub(super) fn end_hedge(&mut self, state: Option<State<'_>>, hedge: Key, outcome: Outcome) {
        let Some(attempt) = self.cx.local.services.hedges.remove(hedge) else { return };
        self.call(attempt.call()).remove_hedge(hedge);
        self.end_attempt(state, attempt, outcome, true);
    }

    /// Handles the end of an attempt: its call ends, too, or goes on.
    pub(super) fn end_attempt(
        &mut self,
        state: Option<State<'_>>,
        attempt: Attempt,
        mut outcome: Outcome,
        is_hedge: bool,
    ) {
        let services = &mut *self.cx.local.services;
        let of_call = services.service_of(attempt.call());
        let (call, service) = of_call.expect("an attempt belongs to a call");
        let verdict = service.verdict(call, &mut outcome);
        self.end_judged(state, attempt, outcome, verdict, is_hedge);
    }

    /// Handles the end of an attempt with this verdict.
    fn end_judged(
        &mut self,
        state: Option<State<'_>>,
        mut attempt: Attempt,
        outcome: Outcome,
        verdict: Verdict,
        is_hedge: bool,
    ) {
        let (key, connection) = (attempt.call(), attempt.connection());
        let server = self.cx.local.services.connections.get(connection);
        let server = server.expect("a server stays for its attempts");
        let (target, server) = (server.target(), *server.server());
        // A failure that the service's own answer reports tells as much about the server's load as another.
        let of_server = match &verdict {
            Verdict::Fail(error) => Err(error),
            _ => Ok(()),
        };
        let call = self.call(key);
        let (service_key, method) = (call.service(), call.method());
        self.measure(service_key, &attempt, method, of_server);
        release(self.cx.local, connection, attempt.take_permit(), Some(of_server));
        let services = &mut *self.cx.local.services;
        let (call, service) = services.service_of(key).expect("an attempt belongs to a call");
        let Outcome { session, buffers, .. } = outcome;
        let failure = match &verdict {
            Verdict::Fail(error) => Some(&*error.message),
            Verdict::Redirect(_) => Some("it does not lead"),
            Verdict::Accept | Verdict::Leads => None,
        };
        if let Some(why) = failure {
            call.retry(service.config().retry_backoff).record_failure_at(target, why);
            if let Some((request, response)) = buffers {
                call.return_buffers(request, response);
            }
            match verdict {
                Verdict::Fail(error) => {
                    count_failure(service, &error);
                    if error.execution != Execution::Refused {
                        service.forget_leader(connection);
                    }
                    self.fail(state, key, session, error);
                }
                Verdict::Redirect(to) => self.redirect(key, connection, target, to),
                Verdict::Accept | Verdict::Leads => unreachable!("no failure"),
            }
        } else {
            service.counters().hedges_won.add(u64::from(is_hedge));
            let outcome = Outcome { session, server: Some(server), outcome: Ok(()), buffers };
            self.succeed(state, key, connection, outcome, verdict == Verdict::Leads);
        }
        self.serve(connection);
    }

    /// Ends a call with a response; `leads` if only the leader sends it.
    fn succeed(
        &mut self,
        state: Option<State<'_>>,
        key: Key,
        connection: Key,
        outcome: Outcome,
        leads: bool,
    ) {
        let call = self.call(key);
        let (service_key, has_key) = (call.service(), call.key().is_some());
        let freed = cancel_attempts(self.cx.local, key, true).unwrap_or_default();
        self.finish(state, key, outcome);
        self.serve_all(freed);
        if leads && !has_key {
            self.confirm_leader(service_key, connection);
        }
    }

    /// Records that a server has answered as the leader. Calls that pause for lack of a leader go on.
    fn confirm_leader(&mut self, service_key: Key, connection: Key) {
        let services = &mut *self.cx.local.services;
        // The end of this call may have removed the client or the server.
        let Some(service) = services.list.get_mut(service_key) else { return };
        if !service.confirm_leader(connection) {
            return;
        }
        for key in services.pausing(service_key) {
            // Beginning one call may end others.
            let call = self.cx.local.services.calls.get_mut(key);
            if let Some(call) = call.filter(|call| matches!(call.step(), Step::Pausing(_))) {
                call.resume();
                arm(self.cx.local, key);
                self.attempt(key);
            }
        }
    }

    /// Handles a redirect by a server that does not lead: the call tries another at once, or after a pause if there were as many redirects
    /// as servers.
    fn redirect(&mut self, key: Key, connection: Key, target: Target, to: Option<Target>) {
        let services = &mut *self.cx.local.services;
        let (call, service) = services.service_of(key).expect("an attempt belongs to a call");
        service.counters().redirects.increment();
        service.forget_leader(connection);
        let service_key = call.service();
        if let Some(to) = to.filter(|to| !to.is_server(&target)) {
            self.hint_leader(service_key, to);
        }
        let (now_ns, random) = (self.cx.local.now_ns, self.cx.local.hub.random());
        let services = &mut *self.cx.local.services;
        let (call, service) = services.service_of(key).expect("an attempt belongs to a call");
        call.attempts_mut().uncount();
        if call.has_other_attempt() {
            return;
        }
        let retry = call.retry(service.config().retry_backoff);
        if retry.count_redirect() <= service.servers().len() {
            return self.attempt(key);
        }
        let pause_ns = retry.pause_ns(random);
        pause_until(self.cx.local, key, now_ns.saturating_add(pause_ns));
    }

    /// Handles the failure of an attempt: at a server, or for lack of one, without a session. Other attempts may be
    /// outstanding; else the call is retried, or fails.
    pub(super) fn fail(
        &mut self,
        state: Option<State<'_>>,
        key: Key,
        session: SessionId,
        failure: Error,
    ) {
        let now_ns = self.cx.local.now_ns;
        let services = &mut *self.cx.local.services;
        let (call, service) = services.service_of(key).expect("an attempt belongs to a call");
        let failure = call.attempt_failure(failure, service.config(), now_ns);
        call.attempts_mut().record(&failure);
        if session == NO_SESSION {
            call.attempts_mut().record_unreached();
        }
        if call.has_other_attempt() {
            // The end of another attempt counts, unless this end decides: hedged calls are idempotent.
            if may_retry(&failure, true) {
                return;
            }
            // An attempt that has ended already is handled first.
            let Some(freed) = cancel_attempts(self.cx.local, key, false) else { return };
            self.cx.local.services.leave_queue(key);
            self.serve_all(freed);
        }
        let random = self.cx.local.hub.random();
        let services = &mut *self.cx.local.services;
        let (call, service) = services.service_of(key).expect("an attempt belongs to a call");
        let was_asked = session != NO_SESSION;
        // The attempt's own outcome decides: an earlier attempt may have run, but its possible execution was known when
        // this attempt was allowed.
        let goes_on = if call.is_ordered() {
            // A further attempt would come behind calls that were made later.
            false
        } else if was_asked && is_transparent(&failure, call.is_hedged()) {
            call.attempts_mut().uncount();
            true
        } else {
            call.may_retry(&failure, service.config().attempts_max)
                && service.may_try_again(call.method(), now_ns)
        };
        if !goes_on {
            let failure = call.attempts().conclude(failure);
            let outcome = Outcome { session, ..Outcome::failed(failure) };
            return self.finish(state, key, outcome);
        }
        service.counters().retries.increment();
        events::call_retried(call.method(), call.attempts().count(), &failure);
        let pause_ns = call.retry(service.config().retry_backoff).pause_ns(random);
        pause_until(self.cx.local, key, now_ns.saturating_add(pause_ns));
    }

    /// Ends a call, and notifies its caller.
    pub(super) fn finish(&mut self, state: Option<State<'_>>, key: Key, outcome: Outcome) {
        let services = &mut *self.cx.local.services;
        services.leave_queue(key);
        let mut call = services.calls.remove(key).expect("a call ends once");
        if let Some(timer) = call.take_timer() {
            services.timers.remove(timer);
        }
        assert!(call.first().is_none(), "a call ends after its attempts");
        assert!(call.hedges().is_empty(), "a call ends after its hedges");
        record_end(self.cx.local, call.service(), outcome.outcome.is_ok());
        notify(state, self.cx, call, outcome);
    }
}

fn count_failure(service: &Service, failure: &CallFailure) {
    let counters = service.counters();
    let counter = match failure.execution {
        Execution::NotSent => &counters.attempts_not_sent,
        Execution::Refused => &counters.attempts_refused,
        Execution::MayHaveExecuted => &counters.attempts_uncertain,
        Execution::Answered => &counters.attempts_failed,
    };
    counter.increment();
}

#[cold]
pub(super) fn no_one_session() -> Error {
    let message = "an ordered call needs a client of one server, without hedges and redirects";
    Error::not_sent(Status::FailedPrecondition, message)
}
