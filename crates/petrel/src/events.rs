//! Events for operators of a process: why a session ended, why shared memory is not used, why a call failed.
//!
//! With the cargo feature `tracing` they go to the subscriber set by the application; without it the functions here are
//! empty. None of them is called for a plain successful call: they concern connections, links, sessions, and failed
//! calls. `docs/operating.md` lists them.

// Without the feature the arguments are unused.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables))]

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;

use petrel_proto::{CallFailure, SessionId, Status};

use crate::control::{EndpointId, LinkId, PeerName, Reason};
use crate::security::{PeerIdentity, SecurityError};
use crate::values::SessionEnd;

/// Emits an event with the target `petrel`, if the feature is on.
macro_rules! emit {
    ($level:ident, $name:literal, $($rest:tt)*) => {
        #[cfg(feature = "tracing")]
        tracing::event!(
            name: $name, target: "petrel", tracing::Level::$level, event = $name, $($rest)*
        );
    };
}

/// An endpoint starts without the device of its settings.
pub(crate) fn device_off(data_port: std::net::SocketAddr, why: &str) {
    emit!(
        WARN,
        "device_off",
        data_port = tracing::field::display(data_port),
        why,
        "datagrams go by the kernel"
    );
}

/// Something has happened to an endpoint's medium.
pub(crate) fn medium_changed(what: &str) {
    emit!(WARN, "medium_changed", what, "an endpoint's medium has changed");
}

/// A session is open.
pub(crate) fn session_opened(
    endpoint: EndpointId,
    id: SessionId,
    peer: Option<PeerName>,
    transport: &'static str,
    is_server: bool,
) {
    emit!(
        DEBUG,
        "session_opened",
        endpoint = endpoint.0,
        session = id.index,
        peer = peer.map(tracing::field::display),
        transport,
        is_client = !is_server,
        "a session is open"
    );
}

/// A session has ended, or could not be opened.
pub(crate) fn session_ended(
    endpoint: EndpointId,
    id: SessionId,
    peer: Option<PeerName>,
    end: SessionEnd,
    reason: &Reason,
) {
    let (status, why) = (reason.status.name(), reason.message.as_str());
    // The caller gets the reason if the session did not open.
    if end.is_expected() || end == SessionEnd::NotReached {
        emit!(
            DEBUG,
            "session_ended",
            endpoint = endpoint.0,
            session = id.index,
            peer = peer.map(tracing::field::display),
            end = end.name(),
            status,
            why,
            "a session has ended"
        );
    } else {
        emit!(
            WARN,
            "session_ended",
            endpoint = endpoint.0,
            session = id.index,
            peer = peer.map(tracing::field::display),
            end = end.name(),
            status,
            why,
            "a session has ended"
        );
    }
}

/// This endpoint refuses a session proposed by a peer.
pub(crate) fn session_refused(endpoint: EndpointId, peer: Option<PeerName>, reason: &Reason) {
    emit!(
        WARN,
        "session_refused",
        endpoint = endpoint.0,
        peer = peer.map(tracing::field::display),
        status = reason.status.name(),
        why = reason.message.as_str(),
        "a peer's session was refused"
    );
}

/// A request was refused: its client may not call the method.
pub(crate) fn not_granted(
    peer: Option<&dyn Display>,
    identity: Option<&PeerIdentity>,
    method: u16,
) {
    emit!(
        WARN,
        "not_granted",
        peer = peer.map(tracing::field::display),
        identity = identity.map(tracing::field::debug),
        method,
        "a client called a method that it may not call"
    );
}

/// A request for the counters of this process was refused.
pub(crate) fn stats_refused(remote: SocketAddr, identity: &PeerIdentity, why: &str) {
    emit!(
        WARN,
        "stats_refused",
        peer = %remote,
        identity = ?identity,
        why,
        "a request for counters was refused"
    );
}

/// The decisions about callers have changed.
pub(crate) fn grants_changed() {
    emit!(INFO, "grants_changed", "the clients of all sessions are judged again");
}

/// New decisions about callers cannot be used; the former stay.
pub(crate) fn grants_failed(error: &SecurityError) {
    emit!(ERROR, "grants_failed", why = %error, "a policy cannot be used; the one of before stays");
}

/// A peer is not to be trusted: its connection ends.
pub(crate) fn untrusted(remote: SocketAddr, error: &SecurityError) {
    emit!(WARN, "untrusted", remote = %remote, why = %error, "a peer was not authenticated");
}

/// A connection ends, since the peer is not trusted any more.
pub(crate) fn distrusted(remote: SocketAddr, identity: Option<&PeerIdentity>, why: &str) {
    emit!(
        WARN,
        "distrusted",
        remote = %remote,
        identity = identity.map(tracing::field::debug),
        why,
        "a peer is not trusted any more"
    );
}

/// A connection is left for a new one, since a certificate ends.
pub(crate) fn connection_renewed(remote: SocketAddr) {
    emit!(INFO, "connection_renewed", remote = %remote, "a connection is left for new certificates");
}

/// The credentials of this process cannot be used: no peer can connect.
pub(crate) fn credentials_failed(error: &SecurityError) {
    emit!(ERROR, "credentials_failed", why = %error, "the credentials cannot be used");
}

/// A call of this endpoint ended with a failure.
pub(crate) fn call_failed(session: SessionId, failure: &CallFailure) {
    emit!(
        DEBUG,
        "call_failed",
        session = session.index,
        status = failure.status.name(),
        execution = ?failure.execution,
        why = failure.message.as_str(),
        "a call failed"
    );
}

/// A request of a peer was refused, unexecuted.
pub(crate) fn request_refused(session: SessionId, status: Status, why: &str) {
    emit!(
        DEBUG,
        "request_refused",
        session = session.index,
        status = status.name(),
        why,
        "a request was refused"
    );
}

/// A closure of the application panicked, and the event loop goes on.
pub(crate) fn panic_caught(of: &'static str, why: &str) {
    emit!(ERROR, "panic_caught", of, why, "a closure of the application panicked");
}

/// A link is up over this transport.
pub(crate) fn link_up(endpoint: EndpointId, link: LinkId, peer: PeerName, transport: &'static str) {
    emit!(DEBUG, "link_up", endpoint = endpoint.0, link = link.0, %peer, transport, "a link is up");
}

/// A link that was up has ended.
pub(crate) fn link_down(endpoint: EndpointId, link: LinkId, reason: &Reason) {
    emit!(
        INFO,
        "link_down",
        endpoint = endpoint.0,
        link = link.0,
        status = reason.status.name(),
        why = reason.message.as_str(),
        "a link has ended"
    );
}

/// A link requested by an endpoint failed.
pub(crate) fn link_failed(endpoint: EndpointId, remote: SocketAddr, reason: &Reason) {
    // The caller gets the reason, and clients report unreachable servers.
    emit!(
        DEBUG,
        "link_failed",
        endpoint = endpoint.0,
        %remote,
        status = reason.status.name(),
        why = reason.message.as_str(),
        "no link to a peer"
    );
}

/// A link requested by a peer was refused.
pub(crate) fn link_refused(peer: SocketAddr, reason: &Reason) {
    emit!(
        WARN,
        "link_refused",
        %peer,
        status = reason.status.name(),
        why = reason.message.as_str(),
        "a peer's link was refused"
    );
}

/// A link does without a medium that is missed: shared memory. Between hosts that is expected.
pub(crate) fn medium_missed(peer: SocketAddr, why: &dyn Display) {
    if peer.ip().to_canonical().is_loopback() {
        emit!(INFO, "shm_not_used", %peer, %why, "shared memory is not used");
    } else {
        emit!(DEBUG, "shm_not_used", %peer, %why, "shared memory is not used");
    }
}

/// A medium was agreed on, and could not be set up.
pub(crate) fn medium_failed(endpoint: EndpointId, medium: &'static str, why: &str) {
    emit!(
        WARN,
        "medium_failed",
        endpoint = endpoint.0,
        medium,
        why,
        "an agreed medium could not be set up; the link is asked for without it"
    );
}

/// Datagrams to a peer do not get through.
pub(crate) fn datagrams_unreached(endpoint: EndpointId, peer: PeerName, why: &str) {
    emit!(WARN, "datagrams_unreached", endpoint = endpoint.0, %peer, why, "datagrams do not get through");
}

/// A control connection has ended.
pub(crate) fn connection_ended(peer: SocketAddr, reason: &Reason, was_open: bool) {
    let (status, why) = (reason.status.name(), reason.message.as_str());
    if reason.status == Status::Ok || !was_open {
        emit!(DEBUG, "connection_ended", %peer, status, why, "a control connection has ended");
    } else {
        emit!(INFO, "connection_ended", %peer, status, why, "a control connection has ended");
    }
}

/// A client makes another attempt.
pub(crate) fn call_retried(method: u16, attempts: u32, failure: &CallFailure) {
    emit!(
        DEBUG,
        "call_retried",
        method,
        attempts,
        status = failure.status.name(),
        execution = ?failure.execution,
        why = failure.message.as_str(),
        "a call is tried again"
    );
}

/// A client's retry budget denies another attempt.
pub(crate) fn retry_denied(method: u16) {
    emit!(WARN, "retry_denied", method, "the retry budget is used up");
}

/// A client avoids a server.
pub(crate) fn server_avoided(server: SocketAddr, why: &str) {
    emit!(WARN, "server_avoided", %server, why, "a server is avoided while others are available");
}

/// A client no longer avoids a server.
pub(crate) fn server_recovered(server: SocketAddr) {
    emit!(INFO, "server_recovered", %server, "a server that was avoided gets calls again");
}

/// A client cannot reach a server: from now on, or still after a minute.
pub(crate) fn server_unreachable(server: SocketAddr, why: &str) {
    emit!(WARN, "server_unreachable", %server, why, "a client cannot reach a server, and tries again");
}

/// A client reaches a server that it could not reach.
pub(crate) fn server_reachable(server: SocketAddr) {
    emit!(INFO, "server_reachable", %server, "a client reaches a server again");
}

/// A client without a session to a server connects again.
pub(crate) fn reconnect(server: SocketAddr, why: &str, pause_ns: u64) {
    emit!(
        DEBUG,
        "reconnect",
        %server,
        why,
        pause_ms = pause_ns / 1_000_000,
        "a client connects again after a pause"
    );
}

/// A client's servers file has changed.
pub(crate) fn servers_changed(file: &Path, servers: usize) {
    emit!(
        INFO,
        "servers_changed",
        file = %file.display(),
        servers,
        "the servers of a file have changed"
    );
}

/// A client's servers file cannot be used; the client keeps its servers.
pub(crate) fn servers_file_failed(file: &Path, why: &str) {
    emit!(
        WARN,
        "servers_file_failed",
        file = %file.display(),
        why,
        "a file of servers cannot be used; the servers of before stay"
    );
}
