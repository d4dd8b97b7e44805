//! Calls that wait for a session or a permit, and the changes of sessions that let them go on.

use petrel_planted::planted;

use super::Attempts;
use crate::endpoint::service::call::Step;
use crate::endpoint::service::connection::MayBegin;
use crate::endpoint::service::keeper::SessionChange;
use crate::endpoint::service::outcome::NO_SESSION;
use crate::endpoint::service::steps::{arm_queue, service_at};
use crate::endpoint::service::{Service, Services, unreachable};
use crate::local::Key;
use crate::local::client_call::Response;

impl Attempts<'_, '_> {
    /// Begins as many calls waiting at a connection as possible now.
    pub(super) fn serve(&mut self, key: Key) {
        if planted("service_called_place_lost") {
            return;
        }
        loop {
            let now_ns = self.cx.local.now_ns;
            let Services { connections, calls, .. } = &mut *self.cx.local.services;
            let Some(connection) = connections.get_mut(key) else { return };
            let waits =
                |call| calls.get(call).is_some_and(|call| call.step() == Step::InQueue(key));
            let Some(first) = connection.queue_mut().first(waits) else { return };
            if connection.session().is_none() {
                return self.empty_queue(key);
            }
            match connection.begin(now_ns, false) {
                MayBegin::Now(permit) => {
                    connection.queue_mut().pop();
                    self.make(first, key, permit);
                }
                MayBegin::Later(at_ns) => return arm_queue(self.cx.local, key, at_ns),
            }
        }
    }

    /// Serves several connections.
    pub(super) fn serve_all(&mut self, connections: Vec<Key>) {
        connections.into_iter().for_each(|connection| self.serve(connection));
    }

    /// Moves the calls waiting at a connection to other servers.
    fn empty_queue(&mut self, key: Key) {
        let Some(connection) = self.cx.local.services.connections.get_mut(key) else { return };
        let waiting = connection.queue_mut().take_all();
        self.reroute(waiting, Step::InQueue(key));
    }

    /// Makes the calls of a removed queue look for a server, if still waiting.
    pub(super) fn reroute(&mut self, waiting: impl IntoIterator<Item = Key>, step: Step) {
        for key in waiting {
            let call = self.cx.local.services.calls.get_mut(key);
            if let Some(call) = call.filter(|call| call.step() == step) {
                call.resume();
                self.route(key);
            }
        }
    }

    /// Handles a change of the session to a server.
    pub(super) fn on_session_change(&mut self, key: Key, change: SessionChange) {
        let now_ns = self.cx.local.now_ns;
        let connection = self.cx.local.services.connections.get_mut(key);
        let connection = connection.expect("a keeper ends with its connection");
        match change {
            SessionChange::Opened(session, endpoints) => {
                connection.open(session);
                if connection.process().is_none() && !connection.is_retired() {
                    self.set_endpoints(key, &endpoints);
                }
                self.on_opened(key);
            }
            SessionChange::Lost(why) => {
                match planted("service_gap_is_a_failure") {
                    true => connection.fail(why),
                    false => connection.lose_session(),
                }
                let is_called = connection.is_called();
                let (service_key, service) = service_at(self.cx.local, key);
                service.counters().sessions_left.increment();
                if is_called {
                    service.counters().servers_ready.decrement();
                }
                service.look_up(now_ns);
                self.review_fit(service_key);
                self.wake_another(service_key);
                self.empty_queue(key);
                self.fail_waiting(service_key);
            }
            SessionChange::Failed(why) => {
                connection.fail(why);
                let (service_key, service) = service_at(self.cx.local, key);
                service.counters().connects_failed.increment();
                service.look_up(now_ns);
                self.review_fit(service_key);
                self.wake_another(service_key);
                self.fail_waiting(service_key);
            }
        }
    }

    /// Handles the opening of a connection's session.
    fn on_opened(&mut self, key: Key) {
        self.ask_after_opening(key);
        let connection = self.cx.local.services.connections.get_mut(key);
        let connection = connection.expect("it was opened");
        let (is_called, server) = (connection.is_called(), *connection.server());
        let (_, service) = service_at(self.cx.local, key);
        service.counters().sessions_opened.increment();
        if is_called {
            service.counters().servers_ready.increment();
        }
        let (opened, waiting) = (service.take_opened(), service.take_waiting());
        if let Some(opened) = opened {
            opened.end(Ok(Response::new(b"", &server, Vec::new())));
        }
        self.reroute(waiting, Step::WaitingForSession);
    }

    /// Ends the wait for the first session of a service, whose time is over.
    pub(super) fn give_up_opening(&mut self, key: Key) {
        let services = &mut *self.cx.local.services;
        let failures = services.failures(key);
        let Some(opened) = services.list.get_mut(key).and_then(Service::take_opened) else {
            return;
        };
        let why =
            failures.unwrap_or_else(|| "none has answered within the client's timeout".to_owned());
        opened.end(Err(unreachable(&why)));
    }

    /// Fails the calls that do not wait for a server, if no server of the service can be reached.
    pub(super) fn fail_waiting(&mut self, key: Key) {
        let services = &mut *self.cx.local.services;
        if !services.has_failed(key) {
            return;
        }
        let failures = services.failures(key).expect("all have failed");
        let service = services.list.get_mut(key).expect("a service stays for its servers");
        let (opened, waiting) = (service.take_opened(), service.take_impatient());
        if let Some(opened) = opened {
            opened.end(Err(unreachable(&failures)));
        }
        for call in waiting {
            let waits = self.cx.local.services.calls.get_mut(call);
            if let Some(waits) = waits.filter(|call| call.step() == Step::WaitingForSession) {
                waits.resume();
                self.fail(None, call, NO_SESSION, unreachable(&failures));
            }
        }
    }
}
