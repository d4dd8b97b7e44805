//! A server of a service: the session, kept open, and the outstanding calls.

use std::fmt;
use std::rc::Rc;

use petrel_planted::planted;
use petrel_proto::{CallFailure, Execution, Status};

use super::fit::Fit;
use super::queue::CallQueue;
use super::servers::Load;
use super::standing::Standing;
use crate::error::Error;
use crate::local::client_call::response::ServerBytes;
use crate::local::{Key, Session, Task, TimerId};
use crate::overload::{ConcurrencyLimit, ConcurrencyLimitConfig, Permit};
use crate::sync::Arc;
use crate::values::SessionState;
use crate::values::client::balance::{hash_of_server, place_of, rank};
use crate::values::client::{ClientConfig, Counters, Target};

/// A server of one service.
pub(super) struct Connection {
    service: Key,
    target: Target,
    /// The address of the target, for responses.
    server: ServerBytes,
    /// The process that named the endpoint, if any; the endpoint's index among the named ones, and their number.
    of_process: Option<(Key, usize, usize)>,
    /// The endpoints of the process, if there are several.
    endpoints: Vec<Key>,
    /// The hash of its name.
    hash: u64,
    /// The service's counters.
    counters: Arc<Counters>,
    session: Option<Session>,
    /// The methods of the session's server.
    fit: Fit,
    /// Why there is no session, after a failed attempt to open one.
    failure: Option<String>,
    load: Rc<Load>,
    /// Whether the server gets no further calls; the connection closes after the last call.
    is_retired: bool,
    /// Whether the server is removed, or the next call is a probe.
    is_special: bool,
    standing: Standing,
    /// The bounds of a limit.
    limit_config: Option<ConcurrencyLimitConfig>,
    /// The limit, once the server has refused a call, unless there is one from the beginning.
    limit: Option<ConcurrencyLimit>,
    /// Calls that wait for a permit here.
    queue: CallQueue,
    /// The timer of the first of them.
    timer: Option<TimerId>,
    /// Keeps the session open, until the connection is closed.
    keeper: Option<Task<()>>,
}

/// The right to have an attempt outstanding at a server; [`Connection::end`] returns it.
#[derive(Debug)]
pub(super) struct AttemptPermit(Option<Permit>);

/// Whether an attempt may be made now.
pub(super) enum MayBegin {
    Now(AttemptPermit),
    /// The attempt may be made after another has ended, or at this time.
    Later(Option<u64>),
}

impl AttemptPermit {
    /// The permit at a server without a limit.
    pub(super) const NONE: Self = Self(None);

    /// Takes the permit out, if the server has a limit.
    #[inline]
    pub(super) fn take(&mut self) -> Self {
        Self(self.0.take())
    }
}

impl Connection {
    pub(super) fn new(
        service: Key,
        target: Target,
        config: &ClientConfig,
        counters: Arc<Counters>,
        load: Rc<Load>,
    ) -> Self {
        Self {
            service,
            target,
            server: target.address.into(),
            of_process: None,
            endpoints: Vec::new(),
            hash: hash_of_server(&target),
            counters,
            session: None,
            fit: Fit::default(),
            failure: None,
            load,
            is_retired: false,
            is_special: false,
            standing: Standing::default(),
            limit_config: config.concurrency,
            limit: config.concurrency.filter(is_limited).map(ConcurrencyLimit::new),
            queue: CallQueue::default(),
            timer: None,
            keeper: None,
        }
    }

    pub(super) fn service(&self) -> Key {
        self.service
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    #[inline(always)]
    pub(super) fn server(&self) -> &ServerBytes {
        &self.server
    }

    /// Returns the calls that wait for a permit here.
    #[inline]
    pub(super) fn queue(&self) -> &CallQueue {
        &self.queue
    }

    pub(super) fn queue_mut(&mut self) -> &mut CallQueue {
        &mut self.queue
    }

    /// Sets the timer of the first queued call.
    pub(super) fn set_timer(&mut self, timer: TimerId) {
        let before = self.timer.replace(timer);
        assert!(before.is_none(), "a queue has one timer");
    }

    /// Takes the timer, which is due or to be removed.
    pub(super) fn take_timer(&mut self) -> Option<TimerId> {
        self.timer.take()
    }

    /// Sets the task that keeps the session open.
    pub(super) fn keep(&mut self, keeper: Task<()>) {
        assert!(self.keeper.is_none(), "a server has one keeper");
        self.keeper = Some(keeper);
    }

    /// Returns the session, if calls may be made on it.
    #[inline]
    pub(super) fn session(&self) -> Option<&Session> {
        self.session.as_ref().filter(|session| session.is_open())
    }

    /// Returns true if there is a session, even without acceptance of further calls.
    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    pub(super) fn fit(&self) -> &Fit {
        &self.fit
    }

    pub(super) fn fit_mut(&mut self) -> &mut Fit {
        &mut self.fit
    }

    /// Returns why there is no session, if the last attempt to open one has failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref().filter(|_| self.session().is_none())
    }

    /// Makes the connection an endpoint named by a process. The connection is dormant: a session opens when a call needs the endpoint.
    pub(super) fn of_process(self, process: (Key, u64), place: (usize, usize)) -> Self {
        Self { of_process: Some((process.0, place.0, place.1)), hash: process.1, ..self }
    }

    /// Updates the endpoint's place.
    pub(super) fn set_place(&mut self, (index, count): (usize, usize)) {
        let of = self.of_process.as_mut().expect("only an endpoint of a process has a place");
        (of.1, of.2) = (index, count);
    }

    /// Returns the process that has named the endpoint.
    pub(super) fn process(&self) -> Option<Key> {
        self.of_process.map(|(process, ..)| process)
    }

    /// Returns the hash of the process's name.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the endpoints of the process, if there are several.
    pub(super) fn endpoints(&self) -> &[Key] {
        &self.endpoints
    }

    pub(super) fn set_endpoints(&mut self, endpoints: Vec<Key>) {
        self.endpoints = endpoints;
    }

    /// Returns true if calls go to the connection, and not to the endpoints of the process.
    pub(super) fn is_called(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Returns true if the connection has no session yet, for lack of need.
    pub(super) fn is_dormant(&self) -> bool {
        self.keeper.is_none()
    }

    /// Returns true if the endpoint owns a key among the endpoints of the process.
    pub(super) fn owns(&self, key: u64) -> bool {
        self.of_process.is_some_and(|(_, index, count)| place_of(key, count) == index)
    }

    /// Returns true if a call with a key may wait here: a session exists, or will.
    pub(super) fn may_be_waited_for(&self) -> bool {
        self.session().is_some() || self.of_process.is_some() && self.failure().is_none()
    }

    /// Returns the rank of the server for a key.
    pub(super) fn rank(&self, key: u64) -> f64 {
        rank(key, self.hash, self.target.weight)
    }

    pub(super) fn standing(&mut self) -> &mut Standing {
        &mut self.standing
    }

    /// Returns true if the server gets calls only as the last resort.
    pub(super) fn is_avoided(&self) -> bool {
        self.standing.is_avoided()
    }

    pub(super) fn load(&self) -> &Rc<Load> {
        &self.load
    }

    /// Updates the server's weight.
    pub(super) fn set_target(&mut self, target: Target) {
        assert!(self.target.is_server(&target), "a connection stays with its server");
        self.load.set_weight(target.weight);
        self.target = target;
    }

    /// Takes a permit for an attempt, if the limit allows another one now, or the attempt is outside of it.
    pub(super) fn begin(&mut self, now_ns: u64, is_outside: bool) -> MayBegin {
        assert!(!self.is_retired, "a removed server gets no further attempts");
        let permit = match self.limit.as_mut().filter(|_| !is_outside) {
            None => None,
            Some(limit) => match limit.try_start(now_ns) {
                Some(permit) => Some(permit),
                None => return MayBegin::Later(limit.next_ns()),
            },
        };
        self.count_begin();
        MayBegin::Now(AttemptPermit(permit))
    }

    /// Counts the begin of an attempt.
    #[inline(always)]
    fn count_begin(&mut self) {
        if self.is_special {
            self.begin_special();
        }
        self.load.add();
    }

    /// Begins the one call that an avoided server gets.
    #[cold]
    #[inline(never)]
    fn begin_special(&mut self) {
        assert!(!self.is_retired, "a removed server gets no further attempts");
        assert!(self.is_avoided(), "only a server that is avoided is probed");
        self.is_special = false;
        self.load.set_avoided(true);
    }

    /// Lets a server that is avoided have one call.
    pub(super) fn probe(&mut self) {
        assert!(self.is_avoided(), "only a server that is avoided is probed");
        self.is_special = true;
        self.load.set_avoided(false);
    }

    /// Avoids the server, or no longer.
    pub(super) fn set_avoided(&mut self, is_avoided: bool) {
        assert_eq!(self.is_avoided(), is_avoided, "the standing decides");
        self.is_special = self.is_retired;
        self.load.set_avoided(is_avoided);
    }

    /// Returns true if the limit allows another attempt now.
    #[inline(always)]
    pub(super) fn may_begin(&self, now_ns: u64) -> bool {
        self.limit.as_ref().is_none_or(|limit| limit.may_start(now_ns))
    }

    /// Begins an attempt that [may begin](Self::may_begin), or is outside of the limit. Returns the permit if the server has a limit.
    #[inline(always)]
    pub(super) fn begin_allowed(&mut self, now_ns: u64, is_outside: bool) -> Option<AttemptPermit> {
        self.count_begin();
        let limit = self.limit.as_mut().filter(|_| !is_outside)?;
        let permit = limit.try_start(now_ns).expect("the limit allows the attempt");
        Some(AttemptPermit(Some(permit)))
    }

    /// Ends an attempt that has succeeded. The permit is taken if the server has a limit.
    #[inline(always)]
    pub(super) fn end_successfully(&mut self, permit: impl FnOnce() -> AttemptPermit, now_ns: u64) {
        self.load.subtract();
        self.standing.succeeds();
        if self.limit.is_some() {
            self.record_success(permit(), now_ns);
        }
    }

    #[inline(never)]
    fn record_success(&mut self, permit: AttemptPermit, now_ns: u64) {
        let Some(limit) = &mut self.limit else { return };
        if let Some(permit) = permit.0 {
            limit.succeeded(permit, now_ns);
        }
        self.try_lift(now_ns);
    }

    /// Forgets a limit that refusals of long ago have set.
    fn try_lift(&mut self, now_ns: u64) {
        let begins_unlimited = self.limit_config.filter(is_limited).is_none();
        if begins_unlimited && self.limit.as_mut().is_some_and(|limit| limit.try_lift(now_ns)) {
            self.limit = None;
        }
    }

    /// Takes back the permit of an ended attempt, with the outcome if it concerns the server. Returns true if the
    /// connection is then over.
    pub(super) fn end(
        &mut self,
        permit: AttemptPermit,
        outcome: Option<Result<(), &Error>>,
        now_ns: u64,
    ) -> bool {
        let busy = self.load.busy();
        self.load.subtract();
        if let Some(Ok(())) = outcome {
            self.standing.succeeds();
        }
        match (&mut self.limit, permit.0, outcome) {
            (Some(_), permit, Some(Ok(()))) => self.record_success(AttemptPermit(permit), now_ns),
            (Some(limit), Some(permit), Some(Err(failure))) => match failure {
                failure if is_too_much(failure) => limit.refused(permit, now_ns),
                failure if is_timeout(failure) => limit.timed_out(permit, now_ns),
                _ => limit.ended(permit, now_ns),
            },
            (Some(limit), Some(permit), None) => limit.ended(permit, now_ns),
            (None, _, Some(Err(failure))) if is_too_much(failure) => {
                let limit = |config| ConcurrencyLimit::after_refusal(config, busy, now_ns);
                self.limit = self.limit_config.map(limit);
            }
            _ => {}
        }
        self.try_lift(now_ns);
        self.is_over()
    }

    /// Stops further calls. Returns true if the connection is then over: it has no calls.
    pub(super) fn retire(&mut self) -> bool {
        assert!(!self.is_retired, "a server is removed once");
        (self.is_retired, self.is_special) = (true, true);
        self.is_over()
    }

    #[inline]
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired
    }

    fn is_over(&self) -> bool {
        self.is_retired && self.load.busy() == 0
    }

    /// Records an open session.
    pub(super) fn open(&mut self, session: Session) {
        let before = self.session.replace(session);
        assert!(before.is_none(), "a connection has one session");
        // A process that has started anew is as good as any.
        self.standing = Standing::default();
        self.set_avoided(false);
        self.load.set_ready(true);
        self.failure = None;
    }

    /// Records that the session accepts no further calls. Whether another can be opened is unknown: calls wait.
    pub(super) fn lose_session(&mut self) {
        assert!(self.session.is_some(), "a session that is lost was open");
        self.load.set_ready(false);
        self.session = None;
        self.fit.forget();
    }

    /// Records that no session can be opened.
    pub(super) fn fail(&mut self, why: String) {
        self.load.set_ready(false);
        self.session = None;
        self.fit.forget();
        self.failure = Some(why);
    }

    /// Ends the connection: closes the session, and opens no other.
    pub(super) fn close(mut self) {
        assert!(self.timer.is_none(), "a timer ends with its connection");
        assert_eq!(self.load.busy(), 0, "a connection stays for its attempts");
        if self.has_session() && self.is_called() {
            self.counters.servers_ready.decrement();
        }
        if let Some(keeper) = self.keeper.take() {
            keeper.abort();
        }
        if let Some(session) = self.session.take() {
            session.close();
        }
    }
}

/// Returns true if there is a limit before the first refusal.
fn is_limited(config: &ConcurrencyLimitConfig) -> bool {
    config.initial < u32::MAX
}

/// Returns true if the server may have begun a call and did not answer in time.
fn is_timeout(failure: &CallFailure) -> bool {
    failure.status == Status::DeadlineExceeded && failure.execution == Execution::MayHaveExecuted
}

/// Returns true if the server refused because of overload.
fn is_too_much(failure: &CallFailure) -> bool {
    if planted("service_every_failure_is_overload") {
        return true;
    }
    failure.execution == Execution::Refused
        && matches!(failure.status, Status::ResourceExhausted | Status::DeadlineExceeded)
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.session.as_ref().map_or(SessionState::Opening, Session::state);
        write!(f, "{}: {state:?}, {} calls", self.target.address, self.load.busy())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::servers::Servers;
    use super::*;

    fn connection() -> Connection {
        let target = Target::from(SocketAddr::from(([127, 0, 0, 1], 5)));
        let config = ClientConfig { concurrency: None, ..ClientConfig::default() };
        let load = Servers::default().new_load(1);
        Connection::new(Key::from_bits(0), target, &config, Arc::default(), load)
    }

    /// Only a server's own refusal lowers the limit of its calls.
    #[test]
    fn is_too_much__of_each_kind_of_failure() {
        let is = |status, execution| is_too_much(&CallFailure::new(status, "", execution));
        for status in [Status::ResourceExhausted, Status::DeadlineExceeded] {
            assert!(is(status, Execution::Refused));
            for execution in [Execution::NotSent, Execution::MayHaveExecuted, Execution::Answered] {
                assert!(!is(status, execution), "{status:?} {execution:?}");
            }
        }
        assert!(!is(Status::Unavailable, Execution::Refused));
        assert!(!is(Status::Internal, Execution::Answered));
    }

    #[test]
    fn end__of_the_last_attempt_ends_a_retired_connection() {
        let mut connection = connection();
        let MayBegin::Now(permit) = connection.begin(0, false) else { panic!("there is no limit") };
        assert!(!connection.retire());
        assert!(connection.end(permit, None, 1));
    }

    panics! {
        begin__at_a_retired_connection: "gets no further attempts" => {
            let mut connection = connection();
            assert!(connection.retire());
            connection.begin(0, false);
        };
        end__without_a_begin: "an attempt that ends has begun" =>
            connection().end(AttemptPermit::NONE, None, 1);
        retire__again: "a server is removed once" => {
            let mut connection = connection();
            (0..2).for_each(|_| assert!(connection.retire()));
        };
        lose_session__before_one_was_open: "a session that is lost was open" =>
            connection().lose_session();
        close__with_an_outstanding_attempt: "a connection stays for its attempts" => {
            let mut connection = connection();
            let MayBegin::Now(_) = connection.begin(0, false) else { panic!("there is no limit") };
            connection.close();
        };
    }
}
