//! The choice of the server for an attempt, and the reasons when there is none.

use std::cmp::Ordering;

use petrel_planted::planted;

use super::Services;
use super::call::{ServiceCall, Step};
use super::connection::{AttemptPermit, Connection, MayBegin};
use super::service::Service;
use crate::error::{Error, at_server};
use crate::local::Key;
use crate::values::client::Target;
use crate::values::client::balance::is_less_busy;

impl Services {
    /// Returns a call with its service.
    pub(super) fn service_of(&mut self, call: Key) -> Option<(&mut ServiceCall, &mut Service)> {
        let call = self.calls.get_mut(call)?;
        let service = self.list.get_mut(call.service()).expect("a service stays for its calls");
        Some((call, service))
    }

    /// Returns the server for an attempt of a call: the only server, or the leader; else the ready connection with the
    /// fewest outstanding attempts among servers that the call has not tried; else the one tried longest ago. A server
    /// with an outstanding attempt of the call counts as tried last.
    pub(super) fn choose(&mut self, call: Key) -> Option<Key> {
        let Self { list, connections, calls, hedges, .. } = self;
        let call = calls.get_mut(call).expect("a server is looked for on behalf of a call");
        let service = list.get_mut(call.service()).expect("a service stays for its calls");
        let hedges = call.hedges().iter().filter_map(|hedge| hedges.get(*hedge));
        let attempts = call.first().into_iter().chain(hedges);
        let asked: Vec<Key> = attempts.map(|attempt| attempt.connection()).collect();
        let has_key = call.key().is_some();
        let preferred = service.preferred().filter(|server| {
            let is_ready = connections.get(*server).is_some_and(|one| one.session().is_some());
            is_ready && !has_key && !asked.contains(server)
        });
        if preferred.is_some() {
            return preferred;
        }
        let ready = service.servers_mut().in_turn().filter_map(|key| {
            let connection = connections.get(key)?;
            let is_ready = connection.session().is_some();
            // A call with a key waits for the key's owner.
            (is_ready || has_key && connection.may_be_waited_for()).then_some((key, connection))
        });
        let method = call.typed_method();
        let tried = |(key, connection): (Key, &Connection)| {
            let is_tried = |target: &Target| {
                target.is_server(&connection.target())
                    && !planted("service_retries_where_it_failed")
            };
            let last_tried = call.tried().iter().rposition(is_tried);
            let is_asked = asked.contains(&key) && !planted("service_hedges_are_not_tries");
            (connection.fit().rank(method, has_key), is_asked, last_tried)
        };
        let by_load = |a: &Connection, b: &Connection| match call.key() {
            Some(key) => {
                let by_rank = b.rank(key).total_cmp(&a.rank(key));
                by_rank.then(b.owns(key).cmp(&a.owns(key)))
            }
            None if is_less_busy(a.load().get(), b.load().get()) => Ordering::Less,
            None if is_less_busy(b.load().get(), a.load().get()) => Ordering::Greater,
            None => Ordering::Equal,
        };
        let ranked = ready.map(|one| (tried(one), one));
        let (_, (key, connection)) =
            ranked.min_by(|(tried, (_, one)), (other_tried, (_, other))| {
                tried.cmp(other_tried).then_with(|| by_load(one, other))
            })?;
        connection.session().map(|_| key)
    }

    /// Returns the service of a call, and the endpoints without a session needed by the call: the owner of the key, or a further endpoint if
    /// all sessions are busy. `None` if no endpoint lacks a session.
    pub(super) fn needed_endpoints(&mut self, call: Key) -> Option<(Key, Vec<Key>)> {
        let Self { list, connections, calls, .. } = self;
        let call = calls.get_mut(call)?;
        let service = list.get_mut(call.service()).filter(|service| service.has_dormant())?;
        let all_are_busy = service.servers().least_load().is_some_and(|busy| busy > 0);
        let dormant = service
            .servers()
            .keys()
            .filter(|server| connections.get(*server).is_some_and(Connection::is_dormant));
        let needed = match call.key() {
            Some(key) => {
                let owns = |server: &Key| connections.get(*server).is_some_and(|one| one.owns(key));
                dormant.filter(owns).collect()
            }
            None => dormant.take(usize::from(all_are_busy)).collect(),
        };
        Some((call.service(), needed))
    }

    /// Returns why no server of a service is available, if all have failed.
    pub(super) fn failures(&self, service: Key) -> Option<String> {
        let service = self.list.get(service)?;
        if service.servers().len() == 0 {
            return Some("its servers' names have no address yet".to_owned());
        }
        let asked = |key: &Key| self.connections.get(*key).is_none_or(|one| !one.is_dormant());
        let each = service.servers().keys().filter(asked).map(|key| {
            let connection = self.connections.get(key)?;
            Some(at_server(connection.target().address, connection.failure()?))
        });
        each.collect::<Option<Vec<_>>>().map(|failures| failures.join("; "))
    }

    /// Returns the failure of a call after its deadline. In a service with leaders, an unknown leader is the reason.
    #[cold]
    pub(super) fn too_late(&self, call: Key) -> Error {
        let call = self.calls.get(call).expect("a timer ends with its call");
        let service = self.list.get(call.service()).expect("a service stays for its calls");
        let error = call.too_late();
        // The failure of a waiting call names the reason for the wait. The lack of a leader is no such reason.
        if let (Step::WaitingForSession, Some(failures)) =
            (call.step(), self.failures(call.service()))
        {
            let message = format!("{}; no server can be reached: {failures}", error.message);
            return error.with_message(message);
        }
        if let Some(why) = self.unnamed(call) {
            let message = format!("{}; no server has named its methods: {why}", error.message);
            return error.with_message(message);
        }
        if service.config().judge.is_none() || call.key().is_some() || service.leader().is_some() {
            return error;
        }
        let is_ready = |key: &Key| {
            self.connections.get(*key).is_some_and(|connection| connection.session().is_some())
        };
        let ready = service.servers().keys().filter(is_ready).count();
        let (count, message) = (service.servers().len(), &error.message);
        let message = format!("no leader: {ready} of {count} servers can be called; {message}");
        error.with_message(message)
    }

    /// Returns why a waiting call has no server that has named its methods, if a server failed to.
    fn unnamed(&self, call: &ServiceCall) -> Option<String> {
        call.typed_method().filter(|_| call.step() == Step::WaitingForSession)?;
        let servers = self.list.get(call.service())?.servers();
        servers.keys().find_map(|server| {
            let connection = self.connections.get(server)?;
            Some(at_server(connection.target().address, connection.fit().failure()?))
        })
    }

    /// Returns the calls of a service that pause before their next attempt.
    pub(super) fn pausing(&self, service: Key) -> Vec<Key> {
        let pauses = |key: &Key| {
            let call = self.calls.get(*key).expect("it is in the table");
            call.service() == service && matches!(call.step(), Step::Pausing(_))
        };
        self.calls.keys().into_iter().filter(pauses).collect()
    }

    /// Returns true if [`failures`](Self::failures) returns a reason.
    pub(super) fn has_failed(&self, service: Key) -> bool {
        let Some(service) = self.list.get(service) else { return false };
        let has_failed = |key| {
            let one = self.connections.get(key);
            one.is_some_and(|one| one.is_dormant() || one.failure().is_some())
        };
        service.servers().keys().all(has_failed)
    }

    /// Returns an available server for a hedge, with a permit, if the budget allows it.
    pub(super) fn hedge_at(&mut self, key: Key, now_ns: u64) -> Option<(Key, AttemptPermit)> {
        let chosen = self.choose(key)?;
        let method = self.calls.get(key)?.typed_method();
        let connection = self.connections.get_mut(chosen)?;
        if !connection.queue().is_empty() || !connection.fit().is_callable(method) {
            return None;
        }
        let MayBegin::Now(permit) = connection.begin(now_ns, false) else { return None };
        let (call, service) = self.service_of(key)?;
        if service.may_try_again(call.method(), now_ns) {
            return Some((chosen, permit));
        }
        let connection = self.connections.get_mut(chosen).expect("it was chosen");
        connection.end(permit, None, now_ns);
        None
    }
}
