//! A service of a client, on one or several servers.

use std::mem;
use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::SessionId;

use super::call::ServiceCall;
use super::connection::Connection;
use super::keeper::Way;
use super::leader::Leader;
use super::outcome::Outcome;
use super::queue::CallQueue;
use super::servers::Servers;
use super::standing::UsualTimes;
use crate::events;
use crate::inbox_message::LookUp;
use crate::local::client_call::state::Pending;
use crate::local::{Key, Slab};
use crate::overload::RetryBudget;
use crate::sync::Arc;
use crate::time::as_ns;
use crate::values::Marks;
use crate::values::client::{Balance, ClientConfig, Counters, Verdict};
use crate::values::expected::Expected;

/// A service, on one or several servers.
pub(super) struct Service {
    config: ClientConfig,
    way: Way,
    servers: Servers,
    usual_times: UsualTimes,
    /// Whether a server may be avoided.
    has_avoided: bool,
    /// Processes represented by their endpoints among the servers.
    processes: Vec<Key>,
    /// The circumstances in which calls look closer at their servers: [`DORMANT`] and [`MISFITS`].
    detours: u8,
    /// The methods that the client expects at its servers.
    tables: Vec<Arc<Expected>>,
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
    /// [`Marks::ATTEMPT_RULES`] if the end of an attempt may depend on the client's configuration: on its judge, or its timeout of
    /// attempts. Few clients have either.
    attempt_rules: Marks,
    resolver: Option<Resolver>,
    counters: Arc<Counters>,
    /// The waiter for the first session.
    opened: Option<Pending>,
}

/// A server where an attempt may be made now.
pub(super) struct Chosen<'a> {
    pub(super) key: Key,
    pub(super) connection: &'a mut Connection,
    pub(super) session: SessionId,
    /// The time, if the attempt is measured; else 0.
    pub(super) measured_ns: u64,
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

/// An endpoint of a process may have no session yet.
const DORMANT: u8 = 1;

/// A server may have a method by another number, or lack the method.
const MISFITS: u8 = 2;

/// The time between two lookups of the servers.
const LOOK_UP_PAUSE: Duration = Duration::from_secs(5);

impl Service {
    /// Creates a service without servers.
    pub(super) fn new(
        (counters, look_up): (Arc<Counters>, Option<LookUp>),
        config: ClientConfig,
        way: Way,
        opened: Pending,
        now_ns: u64,
    ) -> Self {
        Self {
            budget: RetryBudget::new(config.retry_budget, now_ns),
            attempt_rules: match config.judge.is_some() || config.attempt_timeout.is_some() {
                true => Marks::ATTEMPT_RULES,
                false => Marks::default(),
            },
            config,
            way,
            servers: Servers::default(),
            usual_times: UsualTimes::default(),
            has_avoided: false,
            processes: Vec::new(),
            detours: 0,
            tables: Vec::new(),
            leader: Leader::default(),
            waiting: Default::default(),
            calls: 0,
            is_closing: false,
            resolver: look_up.map(|look_up| Resolver { look_up, next_ns: 0 }),
            counters,
            opened: Some(opened),
        }
    }

    pub(super) fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Returns how the servers are reached.
    pub(super) fn way(&self) -> Way {
        self.way
    }

    #[inline(always)]
    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns true if its client is gone.
    #[inline(always)]
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing
    }

    pub(super) fn servers(&self) -> &Servers {
        &self.servers
    }

    pub(super) fn servers_mut(&mut self) -> &mut Servers {
        &mut self.servers
    }

    /// Takes the waiter for the first session: it is notified once.
    pub(super) fn take_opened(&mut self) -> Option<Pending> {
        self.opened.take()
    }

    /// Returns the server that leads, as far as known.
    pub(super) fn leader(&self) -> Option<Key> {
        self.leader.get()
    }

    /// Records that a server has answered as the leader. Returns true if that is new. The answer of a server that the
    /// client has left meanwhile makes no leader.
    pub(super) fn confirm_leader(&mut self, connection: Key) -> bool {
        self.servers.contains(connection) && self.leader.set_confirmed(connection)
    }

    /// Records a server named as the leader by another, unless a confirmed leader is known.
    pub(super) fn hint_leader(&mut self, connection: Key) {
        assert!(self.servers.contains(connection), "a leader is a server of the service");
        self.leader.hint(connection);
    }

    /// Forgets a server that does not lead, or does not answer.
    pub(super) fn forget_leader(&mut self, connection: Key) {
        self.leader.forget(connection);
    }

    /// Returns the number of calls that have not ended.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// Counts the begin of a call.
    #[inline(always)]
    pub(super) fn begin_call(&mut self) {
        self.counters.calls.increment();
        self.calls += 1;
    }

    /// Returns true if responses may redirect calls.
    pub(super) fn is_judged(&self) -> bool {
        self.config.judge.is_some()
    }

    #[inline(always)]
    pub(super) fn attempt_rules(&self) -> Marks {
        self.attempt_rules
    }

    /// Begins to end the service, whose client is gone. Returns true if it has no calls.
    pub(super) fn close(&mut self) -> bool {
        assert!(!self.is_closing, "a client ends once");
        self.is_closing = true;
        self.calls == 0
    }

    /// Adds a call that waits for a session to any server.
    pub(super) fn add_waiting(&mut self, call: Key, is_patient: bool) {
        assert!(self.calls > 0, "a call that waits has begun");
        self.waiting[usize::from(is_patient)].push(call);
    }

    /// Records that a call no longer waits for a session.
    pub(super) fn remove_waiting(&mut self, is_patient: bool, waits: impl Fn(Key) -> bool) {
        self.waiting[usize::from(is_patient)].leave(waits);
    }

    /// Takes the calls that fail when no server can be reached.
    pub(super) fn take_impatient(&mut self) -> impl Iterator<Item = Key> + use<> {
        self.waiting[0].take_all().into_iter()
    }

    /// Interprets the outcome of an attempt of a call, and takes its error. The judge sees a response once.
    pub(super) fn verdict(&self, call: &ServiceCall, outcome: &mut Outcome) -> Verdict {
        match (mem::replace(&mut outcome.outcome, Ok(())), &self.config.judge) {
            (Err(error), _) => Verdict::Fail(error),
            (Ok(()), None) => Verdict::Accept,
            (Ok(()), Some(judge)) => {
                let (_, response) = outcome.buffers.as_ref().expect("an answer is in a buffer");
                judge.judge(call.method(), response)
            }
        }
    }

    /// Takes all calls that wait for a session.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = Key> + use<> {
        let [first, second] = &mut self.waiting;
        first.take_all().into_iter().chain(second.take_all())
    }

    /// Returns the processes represented by their endpoints among the servers.
    pub(super) fn processes_mut(&mut self) -> &mut Vec<Key> {
        &mut self.processes
    }

    pub(super) fn has_dormant(&self) -> bool {
        self.detours & DORMANT != 0
    }

    /// Adds a table of the client. Returns false if it is there already.
    pub(super) fn add_table(&mut self, expected: &Arc<Expected>) -> bool {
        let is_new = !self.tables.iter().any(|table| Arc::ptr_eq(table, expected));
        if is_new {
            self.tables.push(Arc::clone(expected));
        }
        is_new
    }

    pub(super) fn tables(&self) -> &[Arc<Expected>] {
        &self.tables
    }

    /// Sets whether a server may have a method by another number, or lack the method.
    pub(super) fn set_has_misfits(&mut self, has_misfits: bool) {
        self.detours = self.detours & !MISFITS | if has_misfits { MISFITS } else { 0 };
    }

    pub(super) fn set_has_dormant(&mut self, has_dormant: bool) {
        self.detours = self.detours & !DORMANT | if has_dormant { DORMANT } else { 0 };
    }

    /// Records the time of a measured answer. Returns true if servers are to be [reviewed](super::attempts).
    pub(super) fn record_answer(
        &mut self,
        connection: &mut Connection,
        method: u16,
        (began_ns, now_ns): (u64, u64),
    ) -> bool {
        let ns = now_ns.saturating_sub(began_ns);
        let excess = self.usual_times.add(method, ns);
        connection.standing().answered(excess, ns);
        self.has_avoided || connection.standing().why().is_some()
    }

    /// Returns true if a server may be avoided.
    pub(super) fn has_avoided(&self) -> bool {
        self.has_avoided
    }

    pub(super) fn set_has_avoided(&mut self, has_avoided: bool) {
        self.has_avoided = has_avoided;
    }

    /// Returns the server that calls without a key ask first, if there is one: the only server, or the leader.
    #[inline(always)]
    pub(super) fn preferred(&self) -> Option<Key> {
        self.servers.only().or_else(|| self.leader.get())
    }

    /// Returns a server for a new call, if available at once. A call that has to wait, or that has a key, takes the
    /// general path. A call outside of the limit does not wait for others.
    #[inline(always)]
    pub(super) fn choose_at_once<'a>(
        &mut self,
        connections: &'a mut Slab<Connection>,
        random: impl FnOnce() -> u64,
        now_ns: u64,
        (method, is_typed, is_outside): (u16, bool, bool),
    ) -> Option<Chosen<'a>> {
        let preferred = self.preferred();
        let key = match (preferred, self.config.balance) {
            (Some(preferred), _) => preferred,
            (None, Balance::LeastBusy) => self.servers.least_busy()?,
            (None, Balance::TwoChoices) => match self.servers.better_of_two(random()) {
                Some(key) => key,
                None => self.servers.least_busy()?,
            },
        };
        let connection = connections.get_mut(key)?;
        let session = connection.session()?.id();
        let may_begin = connection.queue().is_empty() && connection.may_begin(now_ns) || is_outside;
        let is_measured = preferred.is_none() && connection.standing().begins_measured(now_ns);
        // Calls need the next endpoint of a process when all sessions are busy.
        if self.detours != 0 {
            let typed = Some(method).filter(|_| is_typed && self.detours & MISFITS != 0);
            let is_busy = preferred.is_none() && connection.load().busy() > 0;
            let needs_another = self.has_dormant() && is_busy;
            if needs_another || connection.fit().of(typed).is_some() {
                return None;
            }
        }
        let measured_ns = if is_measured { now_ns } else { 0 };
        may_begin.then_some(Chosen { key, connection, session, measured_ns })
    }

    /// Returns true if a response goes to the caller, and carries no news about its server.
    pub(super) fn is_settled(
        &self,
        call: &ServiceCall,
        connection: Key,
        verdict: &Verdict,
    ) -> bool {
        match verdict {
            Verdict::Accept => true,
            Verdict::Leads => call.key().is_some() || self.leader.is_confirmed(connection),
            Verdict::Redirect(_) | Verdict::Fail(_) => false,
        }
    }

    /// Records the end of a call. Returns true if it was the last one of a service that closes.
    #[inline(always)]
    pub(super) fn record_end(&mut self, has_succeeded: bool) -> bool {
        assert!(self.calls > 0, "a call that ends has begun");
        self.calls -= 1;
        if has_succeeded {
            self.record_success();
        }
        self.is_closing && self.calls == 0
    }

    /// Records the success of a call.
    #[inline]
    fn record_success(&mut self) {
        if !planted("service_budget_never_filled") {
            self.budget.on_success();
        }
    }

    /// Takes a retry or a hedge from the budget.
    pub(super) fn may_try_again(&mut self, method: u16, now_ns: u64) -> bool {
        let may = self.budget.try_retry(now_ns);
        if !may {
            self.counters.budget_exhausted.increment();
            events::retry_denied(method);
        }
        may
    }

    /// Looks up the servers after the loss of one: it may have moved.
    pub(super) fn look_up(&mut self, now_ns: u64) {
        if let Some(resolver) = &mut self.resolver
            && resolver.is_due(now_ns)
        {
            (resolver.look_up)();
        }
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

    fn service() -> Service {
        let (_, opened) = crate::local::client_call::state::CallState::new(None);
        Service::new((Arc::default(), None), ClientConfig::default(), Way::To(None), opened, 0)
    }

    #[test]
    fn confirm_leader__only_of_a_server_that_the_client_has() {
        let mut service = service();
        let [left, known] = [7, 8].map(Key::from_bits);
        let load = service.servers().new_load(1);
        service.servers_mut().push(known, load);
        assert!(!service.confirm_leader(left));
        assert_eq!(service.leader(), None);
        assert!(service.confirm_leader(known));
        assert_eq!(service.leader(), Some(known));
    }

    #[test]
    fn record_end__of_the_last_call_ends_a_service_that_closes() {
        let mut service = service();
        (0..2).for_each(|_| service.begin_call());
        assert!(!service.close());
        assert_eq!([true, false].map(|succeeded| service.record_end(succeeded)), [false, true]);
    }

    panics! {
        hint_leader__of_a_server_that_the_client_has_left: "a leader is a server of the service" =>
            service().hint_leader(Key::from_bits(7));
        record_end__without_a_call: "a call that ends has begun" => service().record_end(true);
    }
}
