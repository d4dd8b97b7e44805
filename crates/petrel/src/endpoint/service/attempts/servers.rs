//! The servers of a service: added and removed by the client, or named by responses.

use std::rc::Rc;

use super::Attempts;
use crate::client::Target;
use crate::endpoint::context::{Context, Local};
use crate::endpoint::service::Services;
use crate::endpoint::service::call::{Attempt, Step};
use crate::endpoint::service::connection::Connection;
use crate::endpoint::service::keeper::keep;
use crate::endpoint::service::standing::is_of_server;
use crate::endpoint::service::steps::remove_connection;
use crate::error::Error;
use crate::events;
use crate::local::{Handle, Key};
use crate::panics::Closure;

/// The number of servers of a client, configured or named by responses, from which on no named server is added.
const SERVERS_NAMED_MAX: usize = 64;

impl Attempts<'_, '_> {
    /// Changes the servers of a service.
    pub(in crate::endpoint::service) fn change_targets(&mut self, key: Key, targets: Vec<Target>) {
        assert!(!targets.is_empty(), "a service has a server");
        let service = self.cx.local.services.list.get_mut(key);
        let service = service.expect("its servers change while there is a service");
        let mut before = service.servers_mut().take();
        for target in targets {
            let Services { list, connections, .. } = &mut *self.cx.local.services;
            let is_it = |key: &Key| {
                connections.get(*key).is_some_and(|one| one.target().is_server(&target))
            };
            match before.iter().position(is_it) {
                Some(place) => {
                    let stays = before.remove(place);
                    let connection = connections.get_mut(stays).expect("it is there");
                    connection.set_target(target);
                    let load = Rc::clone(connection.load());
                    let service = list.get_mut(key).expect("it was there");
                    service.servers_mut().push(stays, load);
                }
                None => {
                    self.add_connection(key, target);
                }
            }
        }
        self.remove_servers(key, before);
        // Calls waiting for a removed server try the others.
        self.fail_waiting(key);
    }

    /// Retires connections of a service.
    fn remove_servers(&mut self, key: Key, removed: Vec<Key>) {
        let service = self.cx.local.services.list.get_mut(key).expect("it was there");
        removed.iter().for_each(|gone| service.forget_leader(*gone));
        for connection in removed {
            let retired = self.cx.local.services.connections.get_mut(connection);
            let retired = retired.expect("it was there");
            let (waiting, is_over) = (retired.queue_mut().take_all(), retired.retire());
            if is_over {
                remove_connection(self.cx.local, connection);
            }
            self.reroute(waiting, Step::InQueue(connection));
        }
    }

    /// Adds a server to a service, with a task to keep a session open.
    fn add_connection(&mut self, of: Key, target: Target) -> Key {
        let local = &mut *self.cx.local;
        let Services { list, connections, .. } = &mut *local.services;
        let service = list.get_mut(of).expect("its servers change while there is a service");
        let (config, counters) = (service.config(), service.counters().clone());
        let load = service.servers().new_load(target.weight);
        let key = connections.insert(Connection::new(of, target, config, counters, load));
        let handle = Handle::<()>::new(local.hub.clone());
        let hub = local.hub.clone();
        let report = move |change| {
            Local::of_task(&hub, |local| {
                Attempts::of(&mut Context::new(local)).on_session_change(key, change);
            });
        };
        let keeper = keep(handle.clone(), target, config.connect_backoff, report);
        let keeper = handle.spawn_within(Closure::Task, None, keeper);
        let connection = connections.get_mut(key).expect("it was put there");
        connection.keep(keeper);
        service.servers_mut().push(key, Rc::clone(connection.load()));
        key
    }

    /// Returns the time if an attempt of a call that begins at a server is to be measured; else 0.
    pub(super) fn begins_measured(&mut self, call: Key, at: Key) -> u64 {
        let now_ns = self.cx.local.now_ns;
        let services = &mut *self.cx.local.services;
        let (call, service) = services.service_of(call).expect("an attempt belongs to a call");
        let is_chosen = service.preferred().is_none() && call.key().is_none();
        let connection = services.connections.get_mut(at).expect("it was chosen");
        if is_chosen && connection.standing().begins_measured(now_ns) { now_ns } else { 0 }
    }

    /// Compares the end of an attempt with those at other servers. The server may be avoided from then on, or no longer.
    pub(super) fn measure(
        &mut self,
        of: Key,
        attempt: &Attempt,
        method: u16,
        outcome: Result<(), &Error>,
    ) {
        let now_ns = self.cx.local.now_ns;
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service = list.get_mut(of).expect("a service stays for its calls");
        if service.is_judged() || service.servers().len() < 2 {
            return;
        }
        let Some(connection) = connections.get_mut(attempt.connection()) else { return };
        let is_news = match (outcome, attempt.measured_ns()) {
            (Err(failure), _) if is_of_server(failure) => {
                connection.standing().failed();
                true
            }
            (Ok(()), Some(began_ns)) => {
                service.record_answer(connection, method, (began_ns, now_ns))
            }
            _ => false,
        };
        if is_news {
            self.review(of, attempt.connection());
        }
    }

    /// Records a measured answer, by which its server may be avoided, or no longer.
    #[cold]
    #[inline(never)]
    pub(super) fn record_answer(&mut self, of: Key, at: Key, method: u16, began_ns: u64) {
        let now_ns = self.cx.local.now_ns;
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let (Some(service), Some(connection)) = (list.get_mut(of), connections.get_mut(at)) else {
            return;
        };
        if service.record_answer(connection, method, (began_ns, now_ns)) {
            self.review(of, at);
        }
    }

    /// Decides whether a server is avoided from now on, or no longer, and which avoided servers are tried.
    fn review(&mut self, of: Key, at: Key) {
        let now_ns = self.cx.local.now_ns;
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let Some(service) = list.get_mut(of) else { return };
        let Some(connection) = connections.get_mut(at) else { return };
        let calls = service.counters().calls.get();
        if connection.standing().recovers() {
            connection.set_avoided(false);
            events::server_recovered(connection.target().address);
        } else if let Some(why) = connection.standing().why().filter(|_| !connection.is_avoided()) {
            let is_avoided = |key: &Key| connections.get(*key).is_some_and(Connection::is_avoided);
            let avoided = service.servers().keys().filter(is_avoided).count();
            if 2 * (avoided + 1) <= service.servers().len() {
                let connection = connections.get_mut(at).expect("it is there");
                connection.standing().avoid(now_ns, calls);
                connection.set_avoided(true);
                events::server_avoided(connection.target().address, why.text());
                service.counters().servers_avoided.increment();
                service.set_has_avoided(true);
            }
        }
        if service.has_avoided() {
            self.probe(of, calls);
        }
    }

    /// Lets avoided servers have a call each, if it is time.
    fn probe(&mut self, of: Key, calls: u64) {
        let now_ns = self.cx.local.now_ns;
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service = list.get_mut(of).expect("a service stays for its calls");
        let mut has_avoided = false;
        for key in service.servers().keys() {
            let Some(connection) = connections.get_mut(key) else { continue };
            has_avoided |= connection.is_avoided();
            if connection.standing().is_probe_due(now_ns, calls) {
                connection.probe();
            }
        }
        service.set_has_avoided(has_avoided);
    }

    /// Records the leader named by a response, which may be a further server.
    pub(super) fn hint_leader(&mut self, of: Key, target: Target) {
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service = list.get_mut(of).expect("a service stays for its calls");
        let is_it =
            |key: &Key| connections.get(*key).is_some_and(|one| one.target().is_server(&target));
        let known = service.servers().keys().find(is_it);
        let has_room = service.servers().len() < SERVERS_NAMED_MAX;
        let connection = match known {
            None if has_room => self.add_connection(of, target),
            None => return,
            Some(connection) => connection,
        };
        let service = self.cx.local.services.list.get_mut(of).expect("it was there");
        service.hint_leader(connection);
    }
}
