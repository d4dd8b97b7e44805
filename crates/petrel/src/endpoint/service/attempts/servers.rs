//! The servers of a service: added and removed by the client, or named by responses.

use std::rc::Rc;

use super::Attempts;
use crate::control::EndpointId;
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
use crate::values::client::Target;

/// The number of servers of a client, configured or named by responses, from which on no named server is added.
const SERVERS_NAMED_MAX: usize = 64;

impl Attempts<'_, '_> {
    /// Changes the servers of a service.
    pub(in crate::endpoint::service) fn change_targets(&mut self, key: Key, targets: Vec<Target>) {
        let service = self.cx.local.services.list.get_mut(key);
        let service = service.expect("its servers change while there is a service");
        let mut before = service.servers_mut().take();
        before.append(service.processes_mut());
        let connections = &self.cx.local.services.connections;
        let is_own = |key: &Key| connections.get(*key).is_none_or(|one| one.process().is_none());
        before.retain(is_own);
        for target in targets {
            let services = &mut *self.cx.local.services;
            let is_target = |key: &Key| {
                let connection = services.connections.get(*key);
                connection.is_some_and(|one| one.target().is_server(&target))
            };
            match before.iter().position(is_target) {
                Some(place) => restore_server(services, before.remove(place), target),
                None => {
                    let connection = self.add_connection(key, target);
                    self.keep(connection);
                }
            }
        }
        let connections = &self.cx.local.services.connections;
        let endpoints =
            before.iter().flat_map(|key| connections.get(*key)).flat_map(|one| one.endpoints());
        let endpoints: Vec<Key> = endpoints.copied().collect();
        before.extend(endpoints);
        self.remove_servers(key, before);
        self.review_fit(key);
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

    /// Puts the endpoints named by a process among the servers, in place of the process. Without named endpoints the process is a server.
    pub(super) fn set_endpoints(&mut self, process: Key, named: &[EndpointId]) {
        let services = &mut *self.cx.local.services;
        let entry = services.connections.get(process).expect("a keeper ends with its connection");
        let (service_key, load) = (entry.service(), Rc::clone(entry.load()));
        let before = entry.endpoints().to_vec();
        // A process with one endpoint is reached at its own address.
        let named = if named.len() > 1 { named } else { &[] };
        if named.is_empty() && before.is_empty() {
            return;
        }
        let places = named.iter().zip(0..);
        let kept: Vec<Key> = places
            .map(|(id, index)| find_or_add(services, process, *id, (index, named.len())))
            .collect();
        let Services { list, connections, .. } = services;
        let service = list.get_mut(service_key).expect("a service stays for its servers");
        let gone: Vec<Key> = before.into_iter().filter(|key| !kept.contains(key)).collect();
        gone.iter().for_each(|key| service.servers_mut().remove(*key));
        service.processes_mut().retain(|key| *key != process);
        service.servers_mut().remove(process);
        match kept.is_empty() {
            true => service.servers_mut().push(process, load),
            false => service.processes_mut().push(process),
        }
        service.set_has_dormant(!kept.is_empty());
        connections.get_mut(process).expect("it was there").set_endpoints(kept.clone());
        self.remove_servers(service_key, gone);
        let connections = &self.cx.local.services.connections;
        let is_dormant = |key: &Key| connections.get(*key).is_some_and(Connection::is_dormant);
        if !kept.is_empty() && kept.iter().all(is_dormant) {
            // Clients with few calls share the endpoints.
            let random = self.cx.local.hub.random() % kept.len() as u64;
            self.keep(kept[random as usize]);
        }
    }

    /// Opens a session to a further endpoint of a process, after the loss of a server.
    pub(super) fn wake_another(&mut self, service_key: Key) {
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let Some(service) = list.get_mut(service_key).filter(|service| service.has_dormant())
        else {
            return;
        };
        let is_dormant = |key: &Key| connections.get(*key).is_some_and(Connection::is_dormant);
        let dormant = service.servers().keys().find(is_dormant);
        match dormant {
            Some(dormant) => self.keep(dormant),
            None => service.set_has_dormant(false),
        }
    }

    /// Opens a session to a further endpoint of a process, if a call needs the endpoint: as the owner of the call's key, or because all
    /// sessions are busy.
    pub(super) fn wake_endpoint(&mut self, call: Key) {
        let Some((service_key, needed)) = self.cx.local.services.needed_endpoints(call) else {
            return;
        };
        needed.into_iter().for_each(|server| self.keep(server));
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service = list.get_mut(service_key).expect("it was there");
        let is_dormant = |key: Key| connections.get(key).is_some_and(Connection::is_dormant);
        let has_dormant = service.servers().keys().any(is_dormant);
        service.set_has_dormant(has_dormant);
    }

    /// Adds a server to a service.
    fn add_connection(&mut self, service_key: Key, target: Target) -> Key {
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service =
            list.get_mut(service_key).expect("its servers change while there is a service");
        let (config, counters) = (service.config(), service.counters().clone());
        let load = service.servers().new_load(target.weight);
        let key = connections.insert(Connection::new(service_key, target, config, counters, load));
        let connection = connections.get_mut(key).expect("it was put there");
        service.servers_mut().push(key, Rc::clone(connection.load()));
        key
    }

    /// Starts the task that keeps a session to a server open.
    fn keep(&mut self, key: Key) {
        let local = &mut *self.cx.local;
        let Services { list, connections, .. } = &mut *local.services;
        let connection = connections.get_mut(key).expect("a server that is kept is there");
        let target = connection.target();
        let service = list.get_mut(connection.service()).expect("a service stays for its servers");
        let (backoff, wanted) =
            (service.config().connect_backoff, service.config().service.clone());
        let way = service.way();
        let handle = Handle::<()>::new(local.hub.clone());
        let hub = local.hub.clone();
        let report = move |change| {
            Local::of_task(&hub, |local| {
                Attempts::of(&mut Context::new(local)).on_session_change(key, change);
            });
        };
        let keeper = keep(handle.clone(), (target, way), (backoff, wanted), report);
        connection.keep(handle.spawn_within(Closure::Task, None, keeper));
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

    /// Compares the time of an attempt that has ended with the usual time. The server may be avoided from then on, or no longer.
    pub(super) fn measure(
        &mut self,
        service_key: Key,
        attempt: &Attempt,
        method: u16,
        outcome: Result<(), &Error>,
    ) {
        let now_ns = self.cx.local.now_ns;
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service = list.get_mut(service_key).expect("a service stays for its calls");
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
            self.review(service_key, attempt.connection());
        }
    }

    /// Records a measured answer. The server may be avoided from then on, or no longer.
    #[cold]
    #[inline(never)]
    pub(super) fn record_answer(&mut self, service_key: Key, at: Key, method: u16, began_ns: u64) {
        let now_ns = self.cx.local.now_ns;
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let (Some(service), Some(connection)) =
            (list.get_mut(service_key), connections.get_mut(at))
        else {
            return;
        };
        if service.record_answer(connection, method, (began_ns, now_ns)) {
            self.review(service_key, at);
        }
    }

    /// Decides whether a server is avoided from now on, or no longer, and which avoided servers are tried.
    fn review(&mut self, service_key: Key, at: Key) {
        let now_ns = self.cx.local.now_ns;
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let Some(service) = list.get_mut(service_key) else { return };
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
            self.probe(service_key, calls);
        }
    }

    /// Lets avoided servers have a call each, if it is time.
    fn probe(&mut self, service_key: Key, calls: u64) {
        let now_ns = self.cx.local.now_ns;
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service = list.get_mut(service_key).expect("a service stays for its calls");
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
    pub(super) fn hint_leader(&mut self, service_key: Key, target: Target) {
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service = list.get_mut(service_key).expect("a service stays for its calls");
        let is_target =
            |key: &Key| connections.get(*key).is_some_and(|one| one.target().is_server(&target));
        let known = service.servers().keys().find(is_target);
        let has_room = service.servers().len() < SERVERS_NAMED_MAX;
        let connection = match known {
            None if has_room => {
                let connection = self.add_connection(service_key, target);
                self.keep(connection);
                connection
            }
            None => return,
            Some(connection) => connection,
        };
        let service = self.cx.local.services.list.get_mut(service_key).expect("it was there");
        service.hint_leader(connection);
    }
}

/// Puts a server that stays, or the endpoints that it named, back among the servers of its service.
fn restore_server(services: &mut Services, key: Key, target: Target) {
    let Services { list, connections, .. } = services;
    let connection = connections.get_mut(key).expect("it is there");
    connection.set_target(target);
    let service = list.get_mut(connection.service()).expect("it was there");
    let mut servers = connection.endpoints().to_vec();
    if servers.is_empty() {
        servers.push(key);
    } else {
        service.processes_mut().push(key);
    }
    for server in servers {
        let load = connections.get(server).expect("it is there").load();
        load.set_weight(target.weight);
        service.servers_mut().push(server, Rc::clone(load));
    }
}

/// Returns the connection to an endpoint named by a process. A new one opens its session when needed.
fn find_or_add(
    services: &mut Services,
    process: Key,
    id: EndpointId,
    place: (usize, usize),
) -> Key {
    let Services { list, connections, .. } = services;
    let entry = connections.get(process).expect("a keeper ends with its connection");
    let is_named =
        |key: &&Key| connections.get(**key).is_some_and(|one| one.target().endpoint == id);
    if let Some(&known) = entry.endpoints().iter().find(is_named) {
        connections.get_mut(known).expect("it is there").set_place(place);
        return known;
    }
    let (service_key, hash) = (entry.service(), entry.hash());
    let target = Target { endpoint: id, ..entry.target() };
    let service = list.get_mut(service_key).expect("a service stays for its servers");
    let load = service.servers().new_load(target.weight);
    let (config, counters) = (service.config(), service.counters().clone());
    let dormant = Connection::new(service_key, target, config, counters, Rc::clone(&load))
        .of_process((process, hash), place);
    let key = connections.insert(dormant);
    service.servers_mut().push(key, load);
    key
}
