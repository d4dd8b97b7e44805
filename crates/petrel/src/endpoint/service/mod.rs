//! Services: the endpoint's side of its clients.
//!
//! A [`Session`](crate::task::Session) is to a process and ends with it. A [`Client`](crate::Client) has a service on
//! one or several equivalent servers. The endpoint keeps a session to each, reopens sessions with back-off, and leaves
//! draining servers. For a call it chooses the session with the fewest outstanding calls. The endpoint also retries a
//! call where safe, or where the caller allows it:
//!
//! | outcome of the attempt | retried |
//! | --- | --- |
//! | UNAVAILABLE, and not sent, or refused by the server unexecuted | always |
//! | RESOURCE_EXHAUSTED, and refused by the server unexecuted | always |
//! | UNAVAILABLE, and it may have been executed | only a call that is [idempotent](crate::endpoint::CallOptions::idempotent) |
//! | any other | never: the server has answered, or the deadline has passed |
//!
//! Each attempt is judged by its own outcome: a call whose first attempt was lost and whose second was refused gets a
//! third. The execution reported for a call covers all attempts. The call's deadline, the attempts of
//! [`ClientConfig::attempts_max`], and the [`RetryBudget`] bound the retries: when most calls fail, retries stop,
//! because they would become the larger part of the load. A server that refuses for overload gets fewer calls
//! ([`ConcurrencyLimit`](crate::overload::ConcurrencyLimit)).
//!
//! A call is an entry in a table and goes from [step](call::Step) to step; a waiting call costs its entry and a place
//! in a queue. Only `attempts` makes, cancels and ends calls; the other files do not depend on the endpoint.

mod attempts;
mod call;
mod connection;
mod leader;
mod queue;
mod reconnect;
mod servers;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::Status;

pub(crate) use attempts::{
    begin_call, begin_call_at, cancel_call, cancel_posted, close_service, open_service, run_due,
    run_ended, set_targets,
};
pub(crate) use call::{Asked, End, Message};

use crate::client::balance::is_less_busy;
use crate::client::state::Pending;
use crate::client::{Balance, ClientConfig, Counters, ServiceKey, Target, Verdict};
use crate::endpoint::call::{Continuation, Reply};
use crate::error::Error;
use crate::inbox_message::LookUp;
use crate::local::{Key, Slab, Timers};
use crate::overload::RetryBudget;
use crate::sync::Arc;
use crate::time::as_ns;
use attempts::Chosen;
use call::{Attempt, Call, Step};
use connection::{Connection, Leave, MayBegin};
use leader::Leader;
use queue::CallQueue;
use servers::Servers;

/// The services of an endpoint's clients, and their calls.
#[derive(Default)]
pub(crate) struct Services {
    /// By the numbers that clients know.
    by_number: Vec<Option<Key>>,
    list: Slab<Service>,
    connections: Slab<Connection>,
    calls: Slab<Call>,
    hedges: Slab<Attempt>,
    timers: Timers<Due>,
    /// Calls that have ended where no continuation can run.
    ended: VecDeque<Ended>,
    calls_made: u64,
    calls_not_made: u64,
}

/// The subject of a timer.
#[derive(Clone, Copy, Debug)]
enum Due {
    Call(Key),
    /// The first call in the queue of a connection.
    Connection(Key),
}

/// A continuation to run, and its inherited deadline.
struct Ended {
    continuation: Continuation,
    reply: Reply,
    inherited_ns: Option<u64>,
}

/// A service, on one or several servers.
struct Service {
    number: ServiceKey,
    config: ClientConfig,
    servers: Servers,
    budget: RetryBudget,
    /// Asked first by calls without a key.
    leader: Leader,
    /// Calls waiting for a session to any server: first the calls that fail when no server can be reached, then the
    /// patient ones.
    waiting: [CallQueue; 2],
    /// Calls that have not ended.
    calls: usize,
    /// Whether its client is gone.
    is_closing: bool,
    resolver: Option<Resolver>,
    counters: Arc<Counters>,
    /// The waiter for the first session.
    opened: Option<Pending>,
}

/// Looks up the servers again, as they may have moved.
struct Resolver {
    look_up: LookUp,
    /// The earliest time of the next lookup.
    next_ns: u64,
}

impl Resolver {
    /// Returns true if the servers may be looked up now, which delays the next lookup.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.next_ns <= now_ns;
        if is_due {
            self.next_ns = now_ns.saturating_add(as_ns(LOOK_UP_PAUSE));
        }
        is_due
    }
}

/// The time between two lookups of the servers.
const LOOK_UP_PAUSE: Duration = Duration::from_secs(5);

impl Services {
    /// Returns the service with this number at clients.
    pub(crate) fn find(&self, number: ServiceKey) -> Option<Key> {
        *self.by_number.get(number.index())?
    }

    /// Returns the number of services.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the number of unfinished calls and continuations.
    pub(crate) fn calls_len(&self) -> usize {
        self.calls.len() + self.ended.len()
    }

    /// Returns the numbers of sent and of unsendable calls.
    pub(crate) fn calls_made(&self) -> (u64, u64) {
        (self.calls_made, self.calls_not_made)
    }

    /// Returns when a timer is due next; [`u64::MAX`] without one.
    pub(crate) fn next_due_ns(&mut self) -> u64 {
        self.timers.next_ns()
    }

    fn service_of(&mut self, call: Key) -> Option<(&mut Call, &mut Service)> {
        let call = self.calls.get_mut(call)?;
        let service = self.list.get_mut(call.service).expect("a service stays for its calls");
        Some((call, service))
    }

    /// Returns the server for an attempt of a call: the leader; else the ready connection with the fewest outstanding
    /// attempts among servers that the call has not tried; else the one tried longest ago. A server with an outstanding
    /// attempt of the call counts as tried last.
    fn choose(&mut self, call: Key) -> Option<Key> {
        let Self { list, connections, calls, hedges, .. } = self;
        let call = calls.get_mut(call).expect("a server is looked for on behalf of a call");
        let service = list.get_mut(call.service).expect("a service stays for its calls");
        if let Some(only) = service.servers.only() {
            return connections.get(only)?.session().map(|_| only);
        }
        let under_way: Vec<Key> = call.first.iter().map(|attempt| attempt.connection).collect();
        let hedged = call.hedges().iter().filter_map(|hedge| hedges.get(*hedge));
        let under_way = [under_way, hedged.map(|attempt| attempt.connection).collect()].concat();
        let leader = service.leader.get().filter(|leader| {
            let is_ready = connections.get(*leader).is_some_and(|one| one.session().is_some());
            is_ready && call.key().is_none() && !under_way.contains(leader)
        });
        if leader.is_some() {
            return leader;
        }
        let ready = service.servers.in_turn().filter_map(|key| {
            let connection = connections.get(key)?;
            connection.session().map(|_| (key, connection))
        });
        let tried = |(key, connection): &(Key, &Connection)| {
            let is_tried = |target: &Target| {
                target.is_server(&connection.target) && !planted("service_retries_where_it_failed")
            };
            let last_tried = call.tried().iter().rposition(is_tried);
            let is_asked = under_way.contains(key) && !planted("service_hedges_are_not_tries");
            (is_asked, last_tried)
        };
        let by_load = |a: &(Key, &Connection), b: &(Key, &Connection)| {
            let order = match call.key() {
                Some(key) => b.1.rank(key).total_cmp(&a.1.rank(key)),
                None if is_less_busy(a.1.load().get(), b.1.load().get()) => Ordering::Less,
                None if is_less_busy(b.1.load().get(), a.1.load().get()) => Ordering::Greater,
                None => Ordering::Equal,
            };
            tried(a).cmp(&tried(b)).then(order)
        };
        ready.min_by(by_load).map(|(key, _)| key)
    }

    /// Returns why no server of a service is available, if all have failed.
    fn failures(&self, service: Key) -> Option<String> {
        let service = self.list.get(service)?;
        let each = service.servers.keys().map(|key| {
            let connection = self.connections.get(key)?;
            Some(format!("{}: {}", connection.target.address, connection.failure()?))
        });
        each.collect::<Option<Vec<_>>>().map(|failures| failures.join("; "))
    }

    /// Returns the failure of a call after its deadline. In a service with leaders, an unknown leader is the reason.
    #[cold]
    fn too_late(&self, call: Key) -> Error {
        let call = self.calls.get(call).expect("a timer ends with its call");
        let service = self.list.get(call.service).expect("a service stays for its calls");
        let error = call.too_late();
        if service.config.judge.is_none() || call.key().is_some() || service.leader.get().is_some()
        {
            return error;
        }
        let is_ready = |key: &Key| {
            self.connections.get(*key).is_some_and(|connection| connection.session().is_some())
        };
        let ready = service.servers.keys().filter(is_ready).count();
        let (count, message) = (service.servers.len(), &error.message);
        let message = format!("no leader: {ready} of {count} servers can be called; {message}");
        error.with_message(message)
    }

    /// Returns the calls of a service that pause before their next attempt.
    fn pausing(&self, service: Key) -> Vec<Key> {
        let pauses = |key: &Key| {
            let call = self.calls.get(*key).expect("it is in the table");
            call.service == service && matches!(call.step, Step::Pausing(_))
        };
        self.calls.keys().into_iter().filter(pauses).collect()
    }

    /// Returns true if [`failures`](Self::failures) returns a reason.
    fn has_failed(&self, service: Key) -> bool {
        let Some(service) = self.list.get(service) else { return false };
        let has_failed = |key| self.connections.get(key).is_some_and(|one| one.failure().is_some());
        service.servers.keys().all(has_failed)
    }

    /// Removes a call from its queue.
    fn leave_queue(&mut self, key: Key) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let step = std::mem::replace(&mut call.step, Step::Going);
        let (service, is_patient) = (call.service, call.wait_for_ready);
        let calls = &self.calls;
        let waits = |call: Key| calls.get(call).is_some_and(|call| call.step == step);
        match step {
            Step::Going | Step::Pausing(_) => {}
            Step::Waiting => {
                let service = self.list.get_mut(service).expect("a service stays for its calls");
                service.waiting[usize::from(is_patient)].leave(waits);
            }
            Step::InQueue(connection) => {
                if let Some(connection) = self.connections.get_mut(connection) {
                    connection.queue.leave(waits);
                }
            }
        }
    }

    /// Rearms the timer of a call for its current step.
    fn arm(&mut self, key: Key) -> Option<u64> {
        let Self { calls, timers, .. } = self;
        let call = calls.get_mut(key)?;
        if let Some(timer) = call.timer.take() {
            timers.remove(timer);
        }
        let at_ns = call.due_ns()?;
        call.timer = Some(timers.insert(at_ns, Due::Call(key)));
        Some(at_ns)
    }
}

impl Services {
    /// Returns an available server for a hedge, with a permit, if the budget allows it.
    fn hedge_at(&mut self, key: Key, now_ns: u64) -> Option<(Key, Leave)> {
        let chosen = self.choose(key)?;
        let connection = self.connections.get_mut(chosen)?;
        if !connection.queue.is_empty() {
            return None;
        }
        let MayBegin::Now(leave) = connection.begin(now_ns) else { return None };
        let (call, service) = self.service_of(key)?;
        if service.may_try_again(call.method, now_ns) {
            return Some((chosen, leave));
        }
        let connection = self.connections.get_mut(chosen).expect("it was chosen");
        connection.end(leave, None, now_ns);
        None
    }
}

impl Service {
    /// Interprets the response to a call.
    fn judge(&self, method: u16, answer: &[u8]) -> Verdict {
        match &self.config.judge {
            Some(judge) => judge.judge(method, answer),
            None => Verdict::Accept,
        }
    }

    /// Takes all calls that wait for a session.
    fn take_waiting(&mut self) -> impl Iterator<Item = Key> + use<> {
        let [first, second] = &mut self.waiting;
        first.take_all().into_iter().chain(second.take_all())
    }

    /// Returns a server for a new call, if available at once. A call that has to wait, or that has a key, takes the
    /// general path.
    #[inline(always)]
    fn begin_at_once(
        &mut self,
        connections: &mut Slab<Connection>,
        random: impl FnOnce() -> u64,
        now_ns: u64,
    ) -> Option<Chosen> {
        let key = match (self.servers.only(), self.leader.get(), self.config.balance) {
            (Some(only), ..) => only,
            (_, Some(leader), _) => leader,
            (.., Balance::LeastBusy) => self.servers.least_busy()?,
            (.., Balance::TwoChoices) => match self.servers.better_of_two(random()) {
                Some(key) => key,
                None => self.servers.least_busy()?,
            },
        };
        let connection = connections.get_mut(key)?;
        let session = connection.session()?.id();
        if !connection.queue.is_empty() {
            return None;
        }
        let MayBegin::Now(leave) = connection.begin(now_ns) else { return None };
        Some(Chosen { connection: key, session, leave })
    }

    /// Returns true if a response goes to the caller, and carries no news about its server.
    fn is_settled(&self, call: &Call, connection: Key, answer: &[u8]) -> bool {
        match self.judge(call.method, answer) {
            Verdict::Accept => true,
            Verdict::Leads => call.key().is_some() || self.leader.is_confirmed(connection),
            Verdict::Redirect(_) | Verdict::Fail(_) => false,
        }
    }

    /// Records the end of a call. Returns true if it was the last one of a service that closes.
    #[inline]
    fn note_end(&mut self, has_succeeded: bool) -> bool {
        self.calls -= 1;
        if has_succeeded {
            self.note_success();
        }
        self.is_closing && self.calls == 0
    }

    /// Records the success of a call.
    #[inline]
    fn note_success(&mut self) {
        if !planted("service_budget_never_filled") {
            self.budget.on_success();
        }
    }

    /// Takes a retry or a hedge from the budget.
    fn may_try_again(&mut self, method: u16, now_ns: u64) -> bool {
        let may = self.budget.try_retry(now_ns);
        if !may {
            self.counters.budget_exhausted.increment();
            crate::events::retry_denied(method);
        }
        may
    }

    /// Looks up the servers after the loss of one: it may have moved.
    fn look_up(&mut self, now_ns: u64) {
        if let Some(resolver) = &mut self.resolver
            && resolver.is_due(now_ns)
        {
            (resolver.look_up)();
        }
    }
}

#[cold]
fn unreachable(failures: &str) -> Error {
    Error::not_sent(Status::Unavailable, format!("no server can be reached: {failures}"))
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Services({}, {} calls)", self.list.len(), self.calls.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_due__at_once_and_then_after_each_pause() {
        let pause_ns = as_ns(LOOK_UP_PAUSE);
        for begin_ns in [0, 1, 7 * pause_ns, u64::MAX - pause_ns] {
            let mut resolver = Resolver { look_up: Box::new(|| {}), next_ns: 0 };
            assert!(resolver.is_due(begin_ns));
            for early_ns in [0, 1, pause_ns - 1] {
                assert!(!resolver.is_due(begin_ns + early_ns));
            }
            assert!(resolver.is_due(begin_ns + pause_ns));
            assert_eq!(resolver.next_ns, (begin_ns + pause_ns).saturating_add(pause_ns));
        }
    }
}
