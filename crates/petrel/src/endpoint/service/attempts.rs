//! The steps of a service's call: a server is chosen, an attempt is made, it ends, and so does the call, or another
//! attempt follows.
//!
//! Continuations of the application run in one place, [`tell`], and only where the end of an attempt was received. All
//! other ends are kept for [`run_ended`].

use std::mem;
use std::rc::Rc;

use petrel_planted::planted;
use petrel_proto::{CallFailure, Execution, PendingCall, SessionId, Status};
use petrel_transport::buf::PoolExhausted;

use super::call::{Asked, Attempt, Call, End, Ending, Step, may_retry, never_left};
use super::connection::{Connection, Leave, MayBegin, keep};
use super::leader::Leader;
use super::servers::Servers;
use super::{Due, Ended, Resolver, Service, Services, unreachable};
use crate::client::state::{self, CallState, Pending};
use crate::client::{ServiceKey, Target, Verdict};
use crate::endpoint::CallOptions;
use crate::endpoint::call::{Continuation, Function, Reply};
use crate::endpoint::context::{Context, Local, NotTaken};
use crate::endpoint::state::State;
use crate::error::Error;
use crate::events;
use crate::inbox_message::OpenService;
use crate::local::{Handle, Key};
use crate::msgbuf::MsgBuf;
use crate::overload::RetryBudget;

/// A single address for all first attempts, by which an attempt is found when cancelled.
const END_FIRST: Function = end_first;

/// The same for hedges.
const END_HEDGE: Function = end_hedge;

/// The number of servers of a client, configured or named by responses, from which on no named server is added.
const SERVERS_NAMED_MAX: usize = 64;

/// The session of a call without any session.
const NO_SESSION: SessionId = SessionId { index: u32::MAX, generation: u32::MAX };

/// Begins a call of a service.
pub(crate) fn begin_call(cx: &mut Context<'_>, service: Key, asked: Asked<'_>) -> Key {
    begin_call_at(cx, service, asked, None)
}

/// Begins a call of a service, at the time that its caller has read from the clock.
// Inline in the poll of an awaited call: nothing is left of options that were not set.
#[inline(always)]
pub(crate) fn begin_call_at(
    cx: &mut Context<'_>,
    service: Key,
    asked: Asked<'_>,
    clock_ns: Option<u64>,
) -> Key {
    let Local { services, core, hub, pool, now_ns, clock, .. } = &mut *cx.local;
    let inherited_ns = core.inherited_ns();
    let Services { list, connections, calls, calls_made, .. } = &mut **services;
    let of = list.get_mut(service).expect("a client has its service");
    of.counters.calls.increment();
    of.calls += 1;
    let end_ns = inherited_ns.map_or(asked.end_ns, |at_ns| at_ns.min(asked.end_ns));
    let is_judged = of.config.judge.is_some();
    // Most calls go to a server at once, and end with its answer.
    let chosen = match asked.options.hedge_after.is_some() || asked.options.key.is_some() {
        true => None,
        false => of.begin_at_once(connections, || hub.random(), *now_ns),
    };
    let session = chosen.as_ref().map(|chosen| chosen.session);
    let options = asked.options;
    let vacant = calls.vacant();
    let key = vacant.key();
    if let End::Posted(pending) = &asked.end {
        pending.set_key(key.to_bits() as usize);
    }
    let first = chosen.map(|Chosen { connection, session, leave }| Attempt {
        call: key,
        connection,
        session,
        leave,
    });
    let call = vacant.insert(Call::begun(service, asked, first, is_judged, end_ns, inherited_ns));
    let Some(session) = session else {
        begin_later(cx, key, options);
        return key;
    };
    match call.buffers(pool, |bytes| hub.alloc_response(bytes)) {
        Ok((request, response)) => {
            if let End::Posted(pending) = &mut call.end {
                pending.was_made = true;
            }
            *calls_made += 1;
            let tag = Continuation::function(END_FIRST, key.to_bits());
            let to_make = PendingCall { method: call.method, tag, request, response };
            let clock_ns = clock_ns.unwrap_or_else(|| clock.now_ns());
            if let Err(rejected) = cx.start_until(session, to_make, end_ns, clock_ns) {
                let outcome = not_taken(cx, session, rejected);
                fail_first(cx, key, outcome);
            }
        }
        Err(error) => {
            let outcome = no_buffers(cx, session, error);
            fail_first(cx, key, outcome);
        }
    }
    key
}

/// Begins a call that cannot be made at once, or that is hedged or has a key.
#[inline(never)]
fn begin_later(cx: &mut Context<'_>, key: Key, options: &CallOptions) {
    let now_ns = cx.local.now_ns;
    let call = cx.local.services.calls.get_mut(key).expect("the call was put there");
    if options.hedge_after.is_some() {
        call.copy_message();
        call.put_off_hedge(now_ns);
    }
    match options.hedge_after.is_none() || options.idempotent {
        true => route(cx, key),
        false => finish(None, cx, key, Outcome::failed(not_idempotent())),
    }
}

/// An available server, and the right to make an attempt there.
pub(super) struct Chosen {
    pub(super) connection: Key,
    pub(super) session: SessionId,
    pub(super) leave: Leave,
}

/// Begins an attempt.
fn attempt(cx: &mut Context<'_>, key: Key) {
    let now_ns = cx.local.now_ns;
    let call = cx.local.services.calls.get_mut(key).expect("an attempt belongs to a call");
    call.begin(now_ns);
    route(cx, key);
}

/// Makes the begun attempt at an available server, or lets it wait.
fn route(cx: &mut Context<'_>, key: Key) {
    let now_ns = cx.local.now_ns;
    let services = &mut *cx.local.services;
    let Some(chosen) = services.choose(key) else { return wait_for_session(cx, key) };
    let connection = services.connections.get_mut(chosen).expect("it was chosen");
    if connection.queue.is_empty() {
        match connection.begin(now_ns) {
            MayBegin::Now(leave) => return make(cx, key, chosen, leave),
            MayBegin::Later(at_ns) => wait_at(cx.local, chosen, at_ns),
        }
    }
    let services = &mut *cx.local.services;
    let connection = services.connections.get_mut(chosen).expect("it was chosen");
    connection.queue.push(key);
    set_step(cx.local, key, Step::InQueue(chosen));
}

/// Lets a call wait for a server, or fails it.
fn wait_for_session(cx: &mut Context<'_>, key: Key) {
    let services = &mut *cx.local.services;
    let call = services.calls.get(key).expect("an attempt belongs to a call");
    let (of, is_patient) = (call.service, call.wait_for_ready);
    if is_patient || !services.has_failed(of) {
        let service = services.list.get_mut(of).expect("a service stays for its calls");
        service.waiting[usize::from(is_patient)].push(key);
        return set_step(cx.local, key, Step::Waiting);
    }
    let failures = services.failures(of).expect("all have failed");
    fail(None, cx, key, NO_SESSION, unreachable(&failures));
}

/// Sets the time when the first call of a connection's queue is reconsidered, if not before.
fn wait_at(local: &mut Local, key: Key, at_ns: Option<u64>) {
    let services = &mut *local.services;
    let connection = services.connections.get_mut(key).expect("a call waits at a connection");
    if let Some(timer) = connection.timer.take() {
        services.timers.remove(timer);
    }
    if let Some(at_ns) = at_ns {
        // Its time may be over already, if another call has to end first, which serves the queue again.
        let at_ns = at_ns.max(local.now_ns + 1);
        connection.timer = Some(services.timers.insert(at_ns, Due::Connection(key)));
        local.hub.ask_at(at_ns);
    }
}

fn set_step(local: &mut Local, key: Key, step: Step) {
    let call = local.services.calls.get_mut(key).expect("only a call has steps");
    call.step = step;
    arm(local, key);
}

/// Arms the timer for the call's next step.
fn arm(local: &mut Local, key: Key) {
    if let Some(at_ns) = local.services.arm(key) {
        local.hub.ask_at(at_ns);
    }
}

/// Makes the first attempt of a round.
fn make(cx: &mut Context<'_>, key: Key, connection: Key, leave: Leave) {
    let session = session_of(cx.local, connection);
    let services = &mut *cx.local.services;
    let call = services.calls.get_mut(key).expect("an attempt belongs to a call");
    let attempt = Attempt { call: key, connection, session, leave };
    assert!(call.first.replace(attempt).is_none(), "a round has one first attempt");
    call.step = Step::Going;
    if call.timer.is_some() || call.is_hedged() {
        arm(cx.local, key);
    }
    send_first(cx, key, session);
}

/// Sends a first attempt, recorded in the call.
fn send_first(cx: &mut Context<'_>, key: Key, session: SessionId) {
    if let Err(outcome) = send(cx, key, session, Continuation::function(END_FIRST, key.to_bits())) {
        fail_first(cx, key, outcome);
    }
}

/// Ends a first attempt that was not sent.
#[cold]
fn fail_first(cx: &mut Context<'_>, key: Key, outcome: Outcome) {
    let call = cx.local.services.calls.get_mut(key).expect("an attempt belongs to a call");
    let attempt = call.first.take().expect("it was put there");
    end_attempt(None, cx, attempt, outcome, false);
}

/// Makes a further attempt while another is outstanding, if a server is available at once and the budget allows it. The
/// next hedge is due after the same time again.
fn hedge(cx: &mut Context<'_>, key: Key) {
    let now_ns = cx.local.now_ns;
    let services = &mut *cx.local.services;
    let (call, service) = services.service_of(key).expect("a hedge belongs to a call");
    if call.attempts() >= service.config.attempts_max {
        call.end_hedges();
        return arm(cx.local, key);
    }
    call.put_off_hedge(now_ns);
    let Some((connection, leave)) = services.hedge_at(key, now_ns) else {
        return arm(cx.local, key);
    };
    let session = session_of(cx.local, connection);
    let services = &mut *cx.local.services;
    let hedge = services.hedges.insert(Attempt { call: key, connection, session, leave });
    let (call, service) = services.service_of(key).expect("a hedge belongs to a call");
    service.counters.hedges.increment();
    call.begin(now_ns);
    call.add_hedge(hedge, service.config.retry_backoff);
    arm(cx.local, key);
    if let Err(outcome) = send(cx, key, session, Continuation::function(END_HEDGE, hedge.to_bits()))
    {
        end_hedge_with(None, cx, hedge, outcome);
    }
}

fn session_of(local: &Local, connection: Key) -> SessionId {
    let connection = local.services.connections.get(connection);
    connection.and_then(Connection::session).expect("a server is asked on its session").id()
}

/// The end of an attempt, with the attempt's buffers, if any.
struct Outcome {
    session: SessionId,
    outcome: Result<(), Error>,
    buffers: Option<(MsgBuf, MsgBuf)>,
}

impl Outcome {
    /// Returns the outcome of a call that ends without an attempt.
    fn failed(error: Error) -> Self {
        Self { session: NO_SESSION, outcome: Err(error), buffers: None }
    }
}

impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        let Reply { session, outcome, request, response } = reply;
        Self { session, outcome, buffers: Some((request, response)) }
    }
}

/// Sends an attempt, or returns why it cannot be sent.
fn send(
    cx: &mut Context<'_>,
    key: Key,
    session: SessionId,
    tag: Continuation,
) -> Result<(), Outcome> {
    let Local { services, pool, hub, .. } = &mut *cx.local;
    let call = services.calls.get_mut(key).expect("an attempt belongs to a call");
    let (method, end_ns, inherited_ns) = (call.method, call.end_ns, call.inherited_ns);
    let (request, response) = match call.buffers(pool, |bytes| hub.alloc_response(bytes)) {
        Ok(buffers) => buffers,
        Err(error) => return Err(no_buffers(cx, session, error)),
    };
    if let End::Posted(pending) = &mut call.end {
        pending.was_made = true;
    }
    services.calls_made += 1;
    let to_make = PendingCall { method, tag, request, response };
    let sent =
        cx.under_deadline(inherited_ns, |cx| cx.start_with(session, to_make, None, Some(end_ns)));
    sent.map_err(|rejected| not_taken(cx, session, rejected))
}

/// Returns the outcome of an attempt for which the endpoint has no memory.
#[cold]
fn no_buffers(cx: &mut Context<'_>, session: SessionId, error: PoolExhausted) -> Outcome {
    cx.local.services.calls_not_made += 1;
    Outcome { session, outcome: Err(error.into()), buffers: None }
}

/// Returns the outcome of an attempt that the core has not taken.
#[cold]
fn not_taken(cx: &mut Context<'_>, session: SessionId, rejected: NotTaken) -> Outcome {
    let NotTaken { error, request, response, .. } = rejected;
    let Local { services, sessions, .. } = &mut *cx.local;
    services.calls_not_made += 1;
    let text = sessions.explain(session, &error);
    let outcome = Err(Error::not_sent(error.status(), text));
    Outcome { session, outcome, buffers: Some((request, response)) }
}

/// The continuation of all first attempts.
fn end_first(state: State<'_>, cx: &mut Context<'_>, reply: Reply, bits: u64) {
    let key = Key::from_bits(bits);
    let Local { services, hub, now_ns, .. } = &mut *cx.local;
    let Services { connections, calls, list, .. } = &mut **services;
    if let Some(call) = calls.get_mut(key)
        && reply.outcome.is_ok()
        && call.is_plain()
        && let End::Posted(pending) = &mut call.end
        && let Some(attempt) = &mut call.first
        && let Some(service) = list.get_mut(call.service)
        && !service.is_closing
        && let Some(connection) = connections.get_mut(attempt.connection)
        && !connection.is_retired()
    {
        // Most awaited calls end like this: only the call itself is over.
        connection.end_well(attempt.leave.take(), *now_ns);
        let waiting = (!connection.queue.is_empty()).then_some(attempt.connection);
        service.note_end(true);
        let (task, memory) = (pending.task(), call.message.take_memory());
        pending.end_now(Ok(copied(&reply.response, memory)));
        // Nothing is left in it: no instruction is spent on dropping it.
        mem::forget(mem::replace(&mut call.end, End::Taken));
        calls.free(key);
        if let Some(task) = task {
            hub.wake_in_order(task);
        }
        if let Some(at) = waiting {
            serve(cx, at);
        }
        return;
    }
    end_other(state, cx, reply, key);
}

/// [`end_first`] in all cases.
#[inline(never)]
fn end_other(state: State<'_>, cx: &mut Context<'_>, reply: Reply, key: Key) {
    // A cancelled attempt that had already ended no longer has a call.
    let Local { services, now_ns, .. } = &mut *cx.local;
    let Services { connections, calls, list, .. } = &mut **services;
    let Some(call) = calls.get_mut(key) else { return };
    let attempt = call.first.take().expect("an attempt that ends was on its way");
    let (at, of) = (attempt.connection, call.service);
    let service = list.get_mut(of).expect("a service stays for its calls");
    let is_settled = reply.outcome.is_ok()
        && call.has_no_trouble()
        && (!call.is_judged || service.is_settled(call, at, &reply.response));
    if !is_settled {
        return end_attempt(Some(state), cx, attempt, reply.into(), false);
    }
    let connection = connections.get_mut(at).expect("a server stays for its attempts");
    let is_over = connection.end(attempt.leave, Some(&Ok(())), *now_ns);
    let others_wait = !connection.queue.is_empty();
    let is_last = service.note_end(true);
    let call = calls.remove(key).expect("a call ends once");
    if is_over {
        remove_connection(cx.local, at);
    }
    if is_last {
        remove_service(cx.local, of);
    }
    tell(Some(state), cx, call, reply.into());
    if others_wait {
        serve(cx, at);
    }
}

/// Records the end of a call of a service.
fn note_end(local: &mut Local, key: Key, has_succeeded: bool) {
    let service = local.services.list.get_mut(key).expect("a service stays for its calls");
    if service.note_end(has_succeeded) {
        remove_service(local, key);
    }
}

/// The continuation of all hedges.
fn end_hedge(state: State<'_>, cx: &mut Context<'_>, reply: Reply, bits: u64) {
    end_hedge_with(Some(state), cx, Key::from_bits(bits), reply.into());
}

fn end_hedge_with(state: Option<State<'_>>, cx: &mut Context<'_>, hedge: Key, outcome: Outcome) {
    let services = &mut *cx.local.services;
    let Some(attempt) = services.hedges.remove(hedge) else { return };
    let call = services.calls.get_mut(attempt.call).expect("a hedge ends with its call");
    call.remove_hedge(hedge);
    end_attempt(state, cx, attempt, outcome, true);
}

/// Handles the end of an attempt: its call ends, too, or goes on.
fn end_attempt(
    state: Option<State<'_>>,
    cx: &mut Context<'_>,
    attempt: Attempt,
    outcome: Outcome,
    is_hedge: bool,
) {
    let Attempt { call: key, connection, leave, .. } = attempt;
    let target = cx.local.services.connections.get(connection);
    let target = target.expect("a server stays for its attempts").target;
    release(cx.local, connection, leave, Some(&outcome.outcome));
    let Outcome { session, outcome, buffers } = outcome;
    let (call, service) = cx.local.services.service_of(key).expect("an attempt belongs to a call");
    let verdict = match (outcome, &buffers) {
        (Err(error), _) => Verdict::Fail(error),
        (Ok(()), Some((_, response))) => service.judge(call.method, response),
        (Ok(()), None) => unreachable!("an answer is in a buffer"),
    };
    match verdict {
        Verdict::Accept | Verdict::Leads => {
            let has_key = call.key().is_some();
            service.counters.hedges_won.add(u64::from(is_hedge));
            let of = call.service;
            let freed = cancel_attempts(cx, key, true).map_or_else(Vec::new, |lost| lost.freed);
            finish(state, cx, key, Outcome { session, outcome: Ok(()), buffers });
            freed.into_iter().for_each(|connection| serve(cx, connection));
            if verdict == Verdict::Leads && !has_key {
                confirm_leader(cx, of, connection);
            }
        }
        Verdict::Fail(error) => {
            count_failure(service, &error);
            call.note_tried(target, &error.message, service.config.retry_backoff);
            if error.execution != Execution::Refused {
                service.leader.forget(connection);
            }
            put_back(call, buffers);
            fail(state, cx, key, session, error);
        }
        Verdict::Redirect(to) => {
            service.counters.redirects.increment();
            call.note_tried(target, "it does not lead", service.config.retry_backoff);
            put_back(call, buffers);
            let of = call.service;
            service.leader.forget(connection);
            if let Some(to) = to.filter(|to| !to.is_server(&target)) {
                suppose_leader(cx.local, of, to);
            }
            redirect(cx, key);
        }
    }
    serve(cx, connection);
}

fn put_back(call: &mut Call, buffers: Option<(MsgBuf, MsgBuf)>) {
    if let Some((request, response)) = buffers {
        call.put_back(request, response);
    }
}

/// Records that a server has answered as the leader. Calls that pause for lack of a leader go on.
fn confirm_leader(cx: &mut Context<'_>, of: Key, connection: Key) {
    let services = &mut *cx.local.services;
    // The client may be gone, and the server, with this call.
    let Some(service) = services.list.get_mut(of) else { return };
    if services.connections.get(connection).is_none() || !service.leader.confirm(connection) {
        return;
    }
    for key in services.pausing(of) {
        // Beginning one call may end others.
        let call = cx.local.services.calls.get_mut(key);
        if let Some(call) = call.filter(|call| matches!(call.step, Step::Pausing(_))) {
            call.step = Step::Going;
            arm(cx.local, key);
            attempt(cx, key);
        }
    }
}

/// Records the leader named by a response.
fn suppose_leader(local: &mut Local, of: Key, target: Target) {
    let Services { list, connections, .. } = &mut *local.services;
    let service = list.get_mut(of).expect("a service stays for its calls");
    let is_it = |key: &Key| connections.get(*key).is_some_and(|one| one.target.is_server(&target));
    let known = service.servers.keys().find(is_it);
    let has_room = service.servers.len() < SERVERS_NAMED_MAX;
    let connection = match known {
        None if has_room => add_connection(local, of, target),
        None => return,
        Some(connection) => connection,
    };
    let service = local.services.list.get_mut(of).expect("it was there");
    service.leader.suppose(connection);
}

/// Handles a redirect without a leader: another server is asked at once, or after a pause if as many as there are have
/// redirected.
fn redirect(cx: &mut Context<'_>, key: Key) {
    let (now_ns, random) = (cx.local.now_ns, cx.local.hub.random());
    let services = &mut *cx.local.services;
    let (call, service) = services.service_of(key).expect("an attempt belongs to a call");
    call.take_back();
    if call.is_tried_otherwise() {
        return;
    }
    let backoff = service.config.retry_backoff;
    if call.note_redirect(backoff) <= service.servers.len() {
        return attempt(cx, key);
    }
    let pause_ns = call.pause_ns(backoff, random);
    set_step(cx.local, key, Step::Pausing(now_ns.saturating_add(pause_ns)));
}

fn count_failure(service: &Service, failure: &CallFailure) {
    let counters = &service.counters;
    let counter = match failure.execution {
        Execution::NotSent => &counters.attempts_not_sent,
        Execution::Refused => &counters.attempts_refused,
        Execution::MayHaveExecuted => &counters.attempts_uncertain,
        Execution::Answered => &counters.attempts_failed,
    };
    counter.increment();
}

/// Handles the failure of an attempt: at a server, or for lack of one, without a session. Other attempts may be
/// outstanding; else the call is retried, or fails.
fn fail(
    state: Option<State<'_>>,
    cx: &mut Context<'_>,
    key: Key,
    session: SessionId,
    failure: Error,
) {
    let call = cx.local.services.calls.get_mut(key).expect("an attempt belongs to a call");
    call.note(&failure);
    if call.is_tried_otherwise() {
        // The end of another attempt counts, unless this end decides: hedged calls are idempotent.
        if may_retry(&failure, true) {
            return;
        }
        // An attempt that has ended already is handled first.
        let Some(lost) = cancel_attempts(cx, key, false) else { return };
        cx.local.services.leave_queue(key);
        lost.freed.into_iter().for_each(|connection| serve(cx, connection));
    }
    let (now_ns, random) = (cx.local.now_ns, cx.local.hub.random());
    let services = &mut *cx.local.services;
    let (call, service) = services.service_of(key).expect("an attempt belongs to a call");
    let was_asked = session != NO_SESSION;
    // The attempt's own outcome decides: an earlier attempt may have run, but its possible execution was known when
    // this attempt was allowed.
    let goes_on = if was_asked && never_left(call, &failure) {
        call.take_back();
        true
    } else {
        call.may_retry(&failure, service.config.attempts_max)
            && service.may_try_again(call.method, now_ns)
    };
    if !goes_on {
        let failure = call.conclude(failure);
        let outcome = Outcome { session, outcome: Err(failure), buffers: None };
        return finish(state, cx, key, outcome);
    }
    service.counters.retries.increment();
    events::call_retried(call.method, call.attempts(), &failure);
    let pause_ns = call.pause_ns(service.config.retry_backoff, random);
    set_step(cx.local, key, Step::Pausing(now_ns.saturating_add(pause_ns)));
}

/// Cancelled attempts.
struct Lost {
    /// The connections of the attempts.
    freed: Vec<Key>,
}

/// Cancels the outstanding attempts of a call. `None` if the first attempt has ended and is about to be handled, unless
/// `in_any_case`.
fn cancel_attempts(cx: &mut Context<'_>, key: Key, in_any_case: bool) -> Option<Lost> {
    let call = cx.local.services.calls.get_mut(key).expect("attempts belong to a call");
    let mut freed = Vec::new();
    if let Some(first) = call.first.take() {
        let cancelled = cx.local.cancel_fn(first.session, END_FIRST, key.to_bits());
        let call = cx.local.services.calls.get_mut(key).expect("attempts belong to a call");
        match cancelled {
            None if !in_any_case => {
                call.first = Some(first);
                return None;
            }
            None => call.note_lost(),
            Some(reply) => note_cancelled(call, reply),
        }
        freed.push(first.connection);
        release(cx.local, first.connection, first.leave, None);
    }
    let call = cx.local.services.calls.get_mut(key).expect("attempts belong to a call");
    for hedge in call.take_hedges() {
        let hedged = cx.local.services.hedges.remove(hedge).expect("a hedge ends with its call");
        let cancelled = cx.local.cancel_fn(hedged.session, END_HEDGE, hedge.to_bits());
        let call = cx.local.services.calls.get_mut(key).expect("attempts belong to a call");
        match cancelled {
            None => call.note_lost(),
            Some(reply) => note_cancelled(call, reply),
        }
        freed.push(hedged.connection);
        release(cx.local, hedged.connection, hedged.leave, None);
    }
    Some(Lost { freed })
}

/// Records the outcome of a cancelled attempt, and takes back its buffers.
fn note_cancelled(call: &mut Call, reply: Reply) {
    let Reply { outcome, request, response, .. } = reply;
    if let Err(failure) = &outcome {
        call.note(failure);
    }
    call.put_back(request, response);
}

/// Returns the permit of an ended attempt, or of an attempt with an unknown end.
fn release(local: &mut Local, key: Key, leave: Leave, outcome: Option<&Result<(), Error>>) {
    let now_ns = local.now_ns;
    let connection = local.services.connections.get_mut(key);
    let is_over = connection.expect("a server stays for its attempts").end(leave, outcome, now_ns);
    if is_over {
        remove_connection(local, key);
    }
}

fn remove_connection(local: &mut Local, key: Key) {
    let services = &mut *local.services;
    let connection = services.connections.remove(key).expect("a connection is closed once");
    if let Some(timer) = connection.timer {
        services.timers.remove(timer);
    }
    if connection.has_session() {
        connection.counters.servers_ready.decrement();
    }
    connection.close();
}

/// Begins as many calls waiting at a connection as possible now.
fn serve(cx: &mut Context<'_>, key: Key) {
    if planted("service_called_place_lost") {
        return;
    }
    loop {
        let now_ns = cx.local.now_ns;
        let Services { connections, calls, .. } = &mut *cx.local.services;
        let Some(connection) = connections.get_mut(key) else { return };
        let waits = |call| calls.get(call).is_some_and(|call| call.step == Step::InQueue(key));
        let Some(first) = connection.queue.first(waits) else { return };
        if connection.session().is_none() {
            return empty_queue(cx, key);
        }
        match connection.begin(now_ns) {
            MayBegin::Now(leave) => {
                connection.queue.pop();
                make(cx, first, key, leave);
            }
            MayBegin::Later(at_ns) => return wait_at(cx.local, key, at_ns),
        }
    }
}

/// Moves the calls waiting at a connection to other servers.
fn empty_queue(cx: &mut Context<'_>, key: Key) {
    let Some(connection) = cx.local.services.connections.get_mut(key) else { return };
    let waiting = connection.queue.take_all();
    go_on(cx, waiting, Step::InQueue(key));
}

/// Makes the calls of a removed queue look for a server, if still waiting.
fn go_on(cx: &mut Context<'_>, waiting: impl IntoIterator<Item = Key>, step: Step) {
    for key in waiting {
        let call = cx.local.services.calls.get_mut(key).filter(|call| call.step == step);
        if let Some(call) = call {
            call.step = Step::Going;
            route(cx, key);
        }
    }
}

/// Handles the opening of a connection's session.
pub(super) fn connection_opened(cx: &mut Context<'_>, key: Key) {
    let (_, service) = service_at(cx.local, key);
    service.counters.sessions_opened.increment();
    service.counters.servers_ready.increment();
    let (opened, waiting) = (service.opened.take(), service.take_waiting());
    if let Some(opened) = opened {
        opened.end(Ok(Vec::new()));
    }
    go_on(cx, waiting, Step::Waiting);
}

/// Handles the end of calls on a connection's session.
pub(super) fn connection_left(cx: &mut Context<'_>, key: Key) {
    let now_ns = cx.local.now_ns;
    let (of, service) = service_at(cx.local, key);
    service.counters.sessions_left.increment();
    service.counters.servers_ready.decrement();
    service.look_up(now_ns);
    empty_queue(cx, key);
    fail_waiting(cx, of);
}

/// Handles a failure to open a session to a server.
pub(super) fn connection_failed(cx: &mut Context<'_>, key: Key) {
    let now_ns = cx.local.now_ns;
    let (of, service) = service_at(cx.local, key);
    service.counters.connects_failed.increment();
    service.look_up(now_ns);
    fail_waiting(cx, of);
}

fn service_at(local: &mut Local, connection: Key) -> (Key, &mut Service) {
    let Services { connections, list, .. } = &mut *local.services;
    let key = connections.get(connection).expect("a keeper ends with its connection").service;
    (key, list.get_mut(key).expect("a service stays for its servers"))
}

/// Fails the calls that do not wait for a server, if no server of the service can be reached.
fn fail_waiting(cx: &mut Context<'_>, key: Key) {
    let services = &mut *cx.local.services;
    if !services.has_failed(key) {
        return;
    }
    let failures = services.failures(key).expect("all have failed");
    let service = services.list.get_mut(key).expect("a service stays for its servers");
    let (opened, waiting) = (service.opened.take(), service.waiting[0].take_all());
    if let Some(opened) = opened {
        opened.end(Err(unreachable(&failures)));
    }
    for call in waiting {
        let waits = cx.local.services.calls.get_mut(call).filter(|call| call.step == Step::Waiting);
        if let Some(waits) = waits {
            waits.step = Step::Going;
            fail(None, cx, call, NO_SESSION, unreachable(&failures));
        }
    }
}

/// Ends a call, and notifies its caller.
fn finish(state: Option<State<'_>>, cx: &mut Context<'_>, key: Key, outcome: Outcome) {
    let services = &mut *cx.local.services;
    services.leave_queue(key);
    let call = services.calls.remove(key).expect("a call ends once");
    if let Some(timer) = call.timer {
        services.timers.remove(timer);
    }
    note_end(cx.local, call.service, outcome.outcome.is_ok());
    tell(state, cx, call, outcome);
}

/// Notifies the caller of a call's end.
fn tell(state: Option<State<'_>>, cx: &mut Context<'_>, call: Call, outcome: Outcome) {
    let inherited_ns = call.inherited_ns;
    let Outcome { session, outcome, buffers } = outcome;
    match call.into_end(buffers) {
        Ending::Posted(pending, response, memory) => {
            let outcome = outcome.map(|()| copied(&response.expect("a success has one"), memory));
            end_posted(cx.local, pending, outcome);
        }
        Ending::Then(continuation, request, response) => {
            let reply = Reply { session, outcome, request, response };
            match state {
                Some(state) => continuation.run(state, cx, reply),
                None => {
                    let ended = Ended { continuation, reply, inherited_ns };
                    cx.local.services.ended.push_back(ended);
                    cx.local.hub.ask();
                }
            }
        }
    }
}

/// Ends a call for its waiter: a task of the endpoint, or any other.
#[inline]
fn end_posted(local: &Local, pending: Pending, outcome: state::Outcome) {
    let task = pending.task();
    pending.end(outcome);
    if let Some(task) = task {
        local.hub.wake_in_order(task);
    }
}

/// Returns the response, copied into existing memory.
#[inline(always)]
fn copied(response: &[u8], mut memory: Vec<u8>) -> Vec<u8> {
    memory.clear();
    memory.extend_from_slice(response);
    memory
}

/// Cancels a call: it ends with CANCELLED, and the servers of its attempts are notified. Returns false if the call has
/// ended, or is about to.
pub(crate) fn cancel_call(cx: &mut Context<'_>, key: Key) -> bool {
    if cx.local.services.calls.get(key).is_none() {
        return false;
    }
    let Some(lost) = cancel_attempts(cx, key, false) else { return false };
    let call = cx.local.services.calls.get(key).expect("it was there");
    let outcome = Outcome::failed(call.cancelled());
    finish(None, cx, key, outcome);
    lost.freed.into_iter().for_each(|connection| serve(cx, connection));
    true
}

/// Cancels a call whose thread no longer waits.
pub(crate) fn cancel_posted(cx: &mut Context<'_>, state: &CallState) {
    if let Some(bits) = state.key() {
        cancel_call(cx, Key::from_bits(bits as u64));
    }
}

/// Runs the timers that are due.
pub(crate) fn run_due(cx: &mut Context<'_>) {
    while let Some(due) = cx.local.services.timers.pop_due(cx.local.now_ns) {
        match due {
            Due::Call(key) => run_call(cx, key),
            Due::Connection(key) => {
                let connection = cx.local.services.connections.get_mut(key);
                connection.expect("a timer ends with its connection").timer = None;
                serve(cx, key);
            }
        }
    }
}

/// Handles the timer of a call.
fn run_call(cx: &mut Context<'_>, key: Key) {
    let now_ns = cx.local.now_ns;
    let call = cx.local.services.calls.get_mut(key).expect("a timer ends with its call");
    call.timer = None;
    match call.step {
        // The core handles the deadlines of outstanding attempts.
        Step::Waiting | Step::InQueue(_) | Step::Pausing(_) if call.end_ns <= now_ns => {
            let outcome = Outcome::failed(cx.local.services.too_late(key));
            let freed = cancel_attempts(cx, key, true).map_or_else(Vec::new, |lost| lost.freed);
            finish(None, cx, key, outcome);
            freed.into_iter().for_each(|connection| serve(cx, connection));
        }
        Step::Pausing(until_ns) if until_ns <= now_ns => {
            call.step = Step::Going;
            attempt(cx, key);
        }
        Step::Going | Step::Waiting | Step::InQueue(_)
            if call.hedge_ns().is_some_and(|at_ns| at_ns <= now_ns) =>
        {
            hedge(cx, key);
        }
        _ => arm(cx.local, key),
    }
}

/// Runs the continuations left by calls that ended where none could run.
pub(crate) fn run_ended(mut state: State<'_>, cx: &mut Context<'_>) {
    // Calls made in these that end at once have their turn the next time.
    for Ended { continuation, reply, inherited_ns } in mem::take(&mut cx.local.services.ended) {
        cx.under_deadline(inherited_ns, |cx| continuation.run(state.reborrow(), cx, reply));
    }
}

/// Opens the service of a new client.
pub(crate) fn open_service(cx: &mut Context<'_>, open: OpenService) {
    let OpenService { service, targets, look_up, config, opened } = open;
    let Some(client) = service.upgrade() else { return };
    let now_ns = cx.local.now_ns;
    let services = &mut *cx.local.services;
    let service = Service {
        number: client.key(),
        budget: RetryBudget::new(config.retry_budget, now_ns),
        config,
        servers: Servers::default(),
        leader: Leader::default(),
        waiting: Default::default(),
        calls: 0,
        is_closing: false,
        resolver: look_up.map(|look_up| Resolver { look_up, next_ns: 0 }),
        counters: client.counters().clone(),
        opened: Some(opened),
    };
    let index = service.number.index();
    let key = services.list.insert(service);
    if services.by_number.len() <= index {
        services.by_number.resize_with(index + 1, || None);
    }
    let before = services.by_number[index].replace(key);
    assert!(before.is_none(), "the number of a service is used once at a time");
    change_targets(cx, key, targets);
}

/// Changes the servers of a client.
pub(crate) fn set_targets(cx: &mut Context<'_>, number: ServiceKey, targets: Vec<Target>) {
    if let Some(key) = cx.local.services.find(number) {
        change_targets(cx, key, targets);
    }
}

fn change_targets(cx: &mut Context<'_>, key: Key, targets: Vec<Target>) {
    assert!(!targets.is_empty(), "a service has a server");
    let service = cx.local.services.list.get_mut(key);
    let service = service.expect("its servers change while there is a service");
    let mut before = service.servers.take();
    for target in targets {
        let connections = &mut cx.local.services.connections;
        let is_it =
            |key: &Key| connections.get(*key).is_some_and(|one| one.target.is_server(&target));
        match before.iter().position(is_it) {
            Some(place) => {
                let stays = before.remove(place);
                let connection = connections.get_mut(stays).expect("it is there");
                connection.set_target(target);
                let load = Rc::clone(connection.load());
                let service = cx.local.services.list.get_mut(key).expect("it was there");
                service.servers.push(stays, load);
            }
            None => {
                add_connection(cx.local, key, target);
            }
        }
    }
    let service = cx.local.services.list.get_mut(key).expect("it was there");
    before.iter().for_each(|gone| service.leader.forget(*gone));
    for connection in before {
        let retired = cx.local.services.connections.get_mut(connection).expect("it was there");
        let (waiting, is_over) = (retired.queue.take_all(), retired.retire());
        if is_over {
            remove_connection(cx.local, connection);
        }
        go_on(cx, waiting, Step::InQueue(connection));
    }
    // Calls waiting for a removed server try the others.
    fail_waiting(cx, key);
}

/// Adds a server to a service, with a task to keep a session open.
fn add_connection(local: &mut Local, of: Key, target: Target) -> Key {
    let Services { list, connections, .. } = &mut *local.services;
    let service = list.get(of).expect("its servers change while there is a service");
    let (config, counters) = (&service.config, service.counters.clone());
    let connection = connections.insert(Connection::new(of, target, config, counters));
    let handle = Handle::<()>::new(local.hub.clone());
    let keeper = keep(handle.clone(), connection, target, config.connect_backoff);
    let keeper = handle.spawn_within(None, keeper);
    let kept = connections.get_mut(connection).expect("it was put there");
    kept.keep(keeper);
    let load = Rc::clone(kept.load());
    list.get_mut(of).expect("it was there").servers.push(connection, load);
    connection
}

/// Handles the drop of a client's last handle: the sessions are closed after the last call.
pub(crate) fn close_service(local: &mut Local, number: ServiceKey) {
    let services = &mut *local.services;
    let Some(key) = services.by_number.get_mut(number.index()).and_then(Option::take) else {
        return;
    };
    let service = services.list.get_mut(key).expect("a number is that of a service");
    service.is_closing = true;
    if service.calls == 0 {
        remove_service(local, key);
    }
}

fn remove_service(local: &mut Local, key: Key) {
    let mut service = local.services.list.remove(key).expect("a service is closed once");
    service.servers.take().into_iter().for_each(|connection| remove_connection(local, connection));
}

#[cold]
fn not_idempotent() -> Error {
    let message = "a hedged call may be executed twice: it has to be marked idempotent";
    Error::not_sent(Status::InvalidArgument, message)
}
