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
#[cfg(feature = "tracing")]
use tracing::field;

use crate::control::{EndpointId, LinkId, PeerName, Reason};
use crate::security::{PeerIdentity, SecurityError};
use crate::values::SessionEnd;

/// Defines a function for each event: `LEVEL name(arguments) { fields } => "text"`. The function emits the event with the
/// target `petrel`, if the feature is on. `LEVEL | LESS if { condition }` has a lower level where the condition is true.
macro_rules! events {
    ($(
        $level:ident $(| $less:ident if $is_less:block)? $name:ident($($argument:ident: $of:ty),*)
        $fields:tt => $text:literal;
    )*) => {
        $(
            pub(crate) fn $name($($argument: $of),*) {
                #[cfg(feature = "tracing")]
                {
                    $(
                        if $is_less {
                            return emit!($less $name $fields $text);
                        }
                    )?
                    emit!($level $name $fields $text);
                }
            }
        )*
    };
}

#[cfg(feature = "tracing")]
macro_rules! emit {
    ($level:ident $name:ident { $($field:tt)* } $text:literal) => {
        tracing::event!(
            name: stringify!($name), target: "petrel", tracing::Level::$level,
            event = stringify!($name), $($field)* $text
        )
    };
}

events! {
    WARN device_off(data_port: SocketAddr, why: &str) { %data_port, why, }
        => "datagrams go by the kernel";
    WARN medium_changed(what: &str) { what, } => "an endpoint's medium has changed";

    DEBUG session_opened(
        endpoint: EndpointId, id: SessionId, peer: Option<PeerName>, transport: &'static str,
        is_server: bool
    ) {
        endpoint = endpoint.0, session = id.index, peer = peer.map(field::display), transport,
        is_client = !is_server,
    } => "a session is open";
    // Of a session that did not open, the caller gets the reason.
    WARN | DEBUG if { end.is_expected() || end == SessionEnd::NotReached } session_ended(
        endpoint: EndpointId, id: SessionId, peer: Option<PeerName>, end: SessionEnd,
        reason: &Reason
    ) {
        endpoint = endpoint.0, session = id.index, peer = peer.map(field::display),
        end = end.name(), status = reason.status.name(), why = reason.message.as_str(),
    } => "a session has ended";
    WARN session_refused(endpoint: EndpointId, peer: Option<PeerName>, reason: &Reason) {
        endpoint = endpoint.0, peer = peer.map(field::display), status = reason.status.name(),
        why = reason.message.as_str(),
    } => "a peer's session was refused";

    WARN not_granted(peer: Option<&dyn Display>, identity: Option<&PeerIdentity>, method: u16)
        { peer = peer.map(field::display), identity = identity.map(field::debug), method, }
        => "a client called a method that it may not call";
    WARN stats_refused(remote: SocketAddr, identity: &PeerIdentity, why: &str)
        { peer = %remote, ?identity, why, } => "a request for counters was refused";
    INFO grants_changed() {} => "the clients of all sessions are judged again";
    ERROR grants_failed(error: &SecurityError) { why = %error, }
        => "a policy cannot be used; the one of before stays";
    WARN untrusted(remote: SocketAddr, error: &SecurityError) { %remote, why = %error, }
        => "a peer was not authenticated";
    WARN distrusted(remote: SocketAddr, identity: Option<&PeerIdentity>, why: &str)
        { %remote, identity = identity.map(field::debug), why, }
        => "a peer is not trusted any more";
    INFO connection_renewed(remote: SocketAddr) { %remote, }
        => "a connection is left for new certificates";
    ERROR credentials_failed(error: &SecurityError) { why = %error, }
        => "the credentials cannot be used";

    DEBUG call_failed(session: SessionId, failure: &CallFailure) {
        session = session.index, status = failure.status.name(), execution = ?failure.execution,
        why = failure.message.as_str(),
    } => "a call failed";
    DEBUG request_refused(session: SessionId, status: Status, why: &str)
        { session = session.index, status = status.name(), why, } => "a request was refused";
    ERROR panic_caught(of: &'static str, why: &str) { of, why, }
        => "a closure of the application panicked";

    DEBUG link_up(endpoint: EndpointId, link: LinkId, peer: PeerName, transport: &'static str)
        { endpoint = endpoint.0, link = link.0, %peer, transport, } => "a link is up";
    INFO link_down(endpoint: EndpointId, link: LinkId, reason: &Reason) {
        endpoint = endpoint.0, link = link.0, status = reason.status.name(),
        why = reason.message.as_str(),
    } => "a link has ended";
    // The caller gets the reason, and clients report unreachable servers.
    DEBUG link_failed(endpoint: EndpointId, remote: SocketAddr, reason: &Reason) {
        endpoint = endpoint.0, %remote, status = reason.status.name(),
        why = reason.message.as_str(),
    } => "no link to a peer";
    WARN link_refused(peer: SocketAddr, reason: &Reason)
        { %peer, status = reason.status.name(), why = reason.message.as_str(), }
        => "a peer's link was refused";
    // Between hosts that is expected.
    INFO | DEBUG if { !peer.ip().to_canonical().is_loopback() }
        shm_not_used(peer: SocketAddr, why: &dyn Display) { %peer, %why, }
        => "shared memory is not used";
    WARN medium_failed(endpoint: EndpointId, medium: &'static str, why: &str)
        { endpoint = endpoint.0, medium, why, }
        => "an agreed medium could not be set up; the link is asked for without it";
    WARN datagrams_unreached(endpoint: EndpointId, peer: PeerName, why: &str)
        { endpoint = endpoint.0, %peer, why, } => "datagrams do not get through";
    INFO | DEBUG if { reason.status == Status::Ok || !was_open }
        connection_ended(peer: SocketAddr, reason: &Reason, was_open: bool)
        { %peer, status = reason.status.name(), why = reason.message.as_str(), }
        => "a control connection has ended";

    DEBUG call_retried(method: u16, attempts: u32, failure: &CallFailure) {
        method, attempts, status = failure.status.name(), execution = ?failure.execution,
        why = failure.message.as_str(),
    } => "a call is tried again";
    WARN retry_denied(method: u16) { method, } => "the retry budget is used up";
    WARN server_avoided(server: SocketAddr, why: &str) { %server, why, }
        => "a server is avoided while others are available";
    INFO server_recovered(server: SocketAddr) { %server, }
        => "a server that was avoided gets calls again";
    // From now on, or still after a minute.
    WARN server_unreachable(server: SocketAddr, why: &str) { %server, why, }
        => "a client cannot reach a server, and tries again";
    INFO server_reachable(server: SocketAddr) { %server, } => "a client reaches a server again";
    DEBUG reconnect(server: SocketAddr, why: &str, pause_ns: u64)
        { %server, why, pause_ms = pause_ns / 1_000_000, }
        => "a client connects again after a pause";
    INFO servers_changed(file: &Path, servers: usize) { file = %file.display(), servers, }
        => "the servers of a file have changed";
    WARN servers_file_failed(file: &Path, why: &str) { file = %file.display(), why, }
        => "a file of servers cannot be used; the servers of before stay";
}
