//! The steps of calls in the tables of the services, with their timers; and the removal of connections and services.

use petrel_proto::SessionId;

use super::call::{ServiceCall, Step};
use super::connection::AttemptPermit;
use super::keeper::Way;
use super::{Due, Service, Services};
use crate::endpoint::context::Local;
use crate::endpoint::context::continuation::{Numbered, Reply};
use crate::error::Error;
use crate::local::Key;

/// Has a call wait for a session or a permit.
pub(super) fn wait(local: &mut Local, key: Key, step: Step) {
    local.services.calls.get_mut(key).expect("only a call has steps").wait(step);
    arm(local, key);
}

/// Has a call pause before its next attempt.
pub(super) fn pause_until(local: &mut Local, key: Key, at_ns: u64) {
    local.services.calls.get_mut(key).expect("only a call has steps").pause_until(at_ns);
    arm(local, key);
}

/// Arms the timer for the call's next step.
pub(super) fn arm(local: &mut Local, key: Key) {
    if let Some(at_ns) = local.services.arm(key) {
        local.hub.ask_at(at_ns);
    }
}

/// Sets the time when the first call of a connection's queue is reconsidered, if not before.
pub(super) fn arm_queue(local: &mut Local, key: Key, at_ns: Option<u64>) {
    let services = &mut *local.services;
    let connection = services.connections.get_mut(key).expect("a call waits at a connection");
    if let Some(timer) = connection.take_timer() {
        services.timers.remove(timer);
    }
    if let Some(at_ns) = at_ns {
        // The time is already over if the next call is due, but another call has to end first.
        let at_ns = at_ns.max(local.now_ns + 1);
        connection.set_timer(services.timers.insert(at_ns, Due::Connection(key)));
        local.hub.ask_at(at_ns);
    }
}

/// Returns the session of a server that is asked.
pub(super) fn session_of(local: &Local, connection: Key) -> SessionId {
    let connection = local.services.connections.get(connection);
    let session = connection.and_then(|connection| connection.session());
    session.expect("a server is asked on its session").id()
}

/// Cancels the outstanding attempts of a call, and returns their connections. `None` if the first attempt has ended and
/// is about to be handled, unless `in_any_case`.
pub(super) fn cancel_attempts(local: &mut Local, key: Key, in_any_case: bool) -> Option<Vec<Key>> {
    let mut freed = Vec::new();
    if let Some(mut first) = call_of(local, key).take_first() {
        match local.cancel_numbered(first.session(), Numbered::FirstAttempt, key.to_bits()) {
            None if !in_any_case => {
                call_of(local, key).set_first(first);
                return None;
            }
            cancelled => record_cancelled(call_of(local, key), cancelled),
        }
        freed.push(first.connection());
        release(local, first.connection(), first.take_permit(), None);
    }
    for hedge in call_of(local, key).take_hedges() {
        let mut hedged = local.services.hedges.remove(hedge).expect("a hedge ends with its call");
        let cancelled = local.cancel_numbered(hedged.session(), Numbered::Hedge, hedge.to_bits());
        record_cancelled(call_of(local, key), cancelled);
        freed.push(hedged.connection());
        release(local, hedged.connection(), hedged.take_permit(), None);
    }
    Some(freed)
}

fn call_of(local: &mut Local, key: Key) -> &mut ServiceCall {
    local.services.calls.get_mut(key).expect("attempts belong to a call")
}

/// Records the outcome of a cancelled attempt, and takes back its buffers. Of an attempt that has ended, and whose end
/// will not be handled, the execution stays unknown.
fn record_cancelled(call: &mut ServiceCall, cancelled: Option<Reply>) {
    let Some(Reply { outcome, request, response, .. }) = cancelled else {
        return call.attempts_mut().record_unknown_end();
    };
    if let Err(failure) = &outcome {
        call.attempts_mut().record(failure);
    }
    call.return_buffers(request, response);
}

/// Takes back the permit of an ended attempt, or of an attempt with an unknown end.
pub(super) fn release(
    local: &mut Local,
    key: Key,
    permit: AttemptPermit,
    outcome: Option<Result<(), &Error>>,
) {
    let now_ns = local.now_ns;
    let connection = local.services.connections.get_mut(key);
    let is_over = connection.expect("a server stays for its attempts").end(permit, outcome, now_ns);
    if is_over {
        remove_connection(local, key);
    }
}

/// Removes a connection without attempts, and closes its session.
pub(super) fn remove_connection(local: &mut Local, key: Key) {
    let services = &mut *local.services;
    let mut connection = services.connections.remove(key).expect("a connection is closed once");
    if let Some(timer) = connection.take_timer() {
        services.timers.remove(timer);
    }
    connection.close();
}

/// Records the end of a call of a service.
pub(super) fn record_end(local: &mut Local, key: Key, has_succeeded: bool) {
    let service = local.services.list.get_mut(key).expect("a service stays for its calls");
    if service.record_end(has_succeeded) {
        remove_service(local, key);
    }
}

/// Removes a service without calls, and its connections.
pub(super) fn remove_service(local: &mut Local, key: Key) {
    let mut service = local.services.list.remove(key).expect("a service is closed once");
    assert_eq!(service.calls(), 0, "a service stays for its calls");
    let mut connections = service.servers_mut().take();
    connections.append(service.processes_mut());
    connections.into_iter().for_each(|connection| remove_connection(local, connection));
    if let Way::To(Some(callbacks)) = service.way() {
        local.remove_callbacks(callbacks);
    }
}

/// Returns the service of a connection.
pub(super) fn service_at(local: &mut Local, connection: Key) -> (Key, &mut Service) {
    let Services { connections, list, .. } = &mut *local.services;
    let key = connections.get(connection).expect("a keeper ends with its connection").service();
    (key, list.get_mut(key).expect("a service stays for its servers"))
}
