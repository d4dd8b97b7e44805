//! The methods of typed services: each server is asked for its tables once per session.

use std::time::Duration;

use petrel_proto::{SessionId, Status};

use super::Attempts;
use crate::endpoint::HEALTH_METHOD;
use crate::endpoint::context::{Context, Local};
use crate::endpoint::service::Services;
use crate::endpoint::service::call::Step;
use crate::local::{Handle, Key, Session};
use crate::panics::Closure;
use crate::sync::Arc;
use crate::values::client::ServiceKey;
use crate::values::expected::{Expected, Served};
use crate::values::method_table::{TABLES, parse};

/// How long a server with an open session may take to name its methods, and the pause after a failure.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);

/// Expects the methods of a table at the servers of a client.
pub(crate) fn expect_table(cx: &mut Context<'_>, number: ServiceKey, expected: Arc<Expected>) {
    if let Some(key) = cx.local.services.find(number) {
        Attempts::of(cx).expect_table(key, expected);
    }
}

impl Attempts<'_, '_> {
    /// Adds a table to a service, unless it is there, and asks the servers with a session.
    fn expect_table(&mut self, key: Key, expected: Arc<Expected>) {
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service = list.get_mut(key).expect("a client has its service");
        let servers: Vec<Key> = service.servers().keys().collect();
        if !service.add_table(&expected) {
            return;
        }
        let mut to_ask = Vec::new();
        for server in servers {
            let Some(connection) = connections.get_mut(server) else { continue };
            let Some(session) = connection.session().cloned() else { continue };
            if connection.fit_mut().add(&expected, session.id()) {
                to_ask.push((server, session));
            }
        }
        expected.set_known();
        self.review_fit(key);
        to_ask.into_iter().for_each(|(server, session)| self.ask_tables(server, session));
    }

    /// Asks a server with a new session for its tables, if the client has any.
    pub(super) fn ask_after_opening(&mut self, server: Key) {
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let connection = connections.get_mut(server).expect("it was opened");
        if !connection.is_called() {
            return;
        }
        let service_key = connection.service();
        let service = list.get_mut(service_key).expect("a service stays for its servers");
        let Some(session) = connection.session().cloned() else { return };
        let mut is_to_ask = false;
        for expected in service.tables() {
            is_to_ask |= connection.fit_mut().add(expected, session.id());
        }
        if is_to_ask {
            self.review_fit(service_key);
            self.ask_tables(server, session);
        }
    }

    /// Lets calls take the short way if every method has its own number at every server.
    pub(super) fn review_fit(&mut self, key: Key) {
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let service = list.get_mut(key).expect("a service stays for its servers");
        let is_perfect =
            |server: Key| connections.get(server).is_none_or(|one| one.fit().is_perfect());
        let is_perfect = service.servers().keys().all(is_perfect);
        service.set_has_misfits(!is_perfect);
    }

    fn ask_tables(&mut self, server: Key, session: Session) {
        let hub = self.cx.local.hub.clone();
        let handle = Handle::<()>::new(hub.clone());
        let ask = {
            let handle = handle.clone();
            async move {
                let id = session.id();
                let note = |why: String| {
                    Local::of_task(&hub, |local| {
                        let connection = local.services.connections.get_mut(server);
                        if let Some(one) = connection {
                            one.fit_mut().failed(id, why);
                        }
                    });
                };
                let Some(served) = ask(&handle, session, note).await else { return };
                Local::of_task(&hub, |local| {
                    Attempts::of(&mut Context::new(local)).told(server, id, served);
                });
            }
        };
        // The task ends with its session.
        drop(handle.spawn_within(Closure::Task, None, ask));
    }

    /// Compares the server's methods with the client's. Calls that waited for the answer go on.
    fn told(&mut self, server: Key, session: SessionId, served: Served) {
        let Services { list, connections, .. } = &mut *self.cx.local.services;
        let Some(connection) = connections.get_mut(server) else { return };
        if !connection.fit_mut().told(session, served) {
            return;
        }
        let service_key = connection.service();
        let service = list.get_mut(service_key).expect("a service stays for its servers");
        for expected in service.tables() {
            let is_to_ask = connection.fit_mut().add(expected, session);
            assert!(!is_to_ask, "a server is asked once in a session");
        }
        let waiting = service.take_waiting();
        self.review_fit(service_key);
        self.reroute(waiting, Step::WaitingForSession);
    }
}

/// Asks a server for its tables until there is an answer, and notes each failure. Returns `None` if the session ends before.
async fn ask(handle: &Handle, session: Session, note: impl Fn(String)) -> Option<Served> {
    while session.is_open() {
        match session.call(HEALTH_METHOD, TABLES).timeout(ANSWER_TIMEOUT).await {
            Ok(answer) => return Some(parse(&answer).map_or(Served::Malformed, Served::Services)),
            // A server of another kind or version does not know the request.
            Err(error) if error.status == Status::InvalidArgument => return Some(Served::Nothing),
            Err(error) => note(error.message.clone()),
        }
        handle.sleep(PAUSE).await;
    }
    None
}
