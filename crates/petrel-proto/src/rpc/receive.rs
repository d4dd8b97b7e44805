//! The receive path: finds the session and the state machine of a frame (`docs/wire-protocol.md` §3.5).

use super::client::by_paths::hear_response;
use super::client::credit::on_credit;
use super::client::response::{on_response, on_response_part};
use super::multicast::{on_announce, on_multicast};
use super::probe::on_probe;
use super::server::abandon::on_cancel;
use super::server::by_paths::note_source;
use super::server::memory::make_room;
use super::server::pull::on_pull;
use super::server::request::{on_request, on_request_part};
use super::{Received, Shared};
use crate::buffer::{Buffer, BufferPool};
use crate::session::{Entry, PeerKey, Role, SOURCE_OF_PATHS, SessionId, SessionTable};
use crate::wire::{Flags, Header, Kind};

#[inline]
pub(super) fn handle_any<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    peer: PeerKey,
    frame: &'f [u8],
    mark: Flags,
    pool: &mut P,
) -> Received<'f, B, T> {
    let Ok((mut header, rest)) = Header::parse(frame) else {
        shared.counters.dropped_malformed += 1;
        return Received::Nothing;
    };
    header.flags = header.flags.with(mark);
    if header.kind == Kind::Multicast {
        return on_multicast(sessions, shared, now_ns, peer, header, rest, pool);
    }
    shared.memory.set_time(now_ns);
    let received = handle_parsed(sessions, shared, now_ns, peer, header, rest, pool);
    match shared.memory.take_wanted() {
        None => received,
        Some(wanted) => {
            make_room(sessions, shared, wanted);
            let received = handle_parsed(sessions, shared, now_ns, peer, header, rest, pool);
            shared.memory.note_handled();
            received
        }
    }
}

fn handle_parsed<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    peer: PeerKey,
    header: Header,
    rest: &'f [u8],
    pool: &mut P,
) -> Received<'f, B, T> {
    let entry = match sessions.at_mut(header.session) {
        Some(entry)
            if entry.origin().token() == header.token && !matches!(entry.role(), Role::Free) =>
        {
            entry
        }
        _ => {
            shared.counters.dropped_unknown_session += 1;
            return Received::Nothing;
        }
    };
    if header.kind == Kind::Probe {
        return on_probe(shared, entry, peer, header, rest);
    }
    if entry.origin().peer() != Some(peer) {
        let Header { kind, flags, aux, request, .. } = header;
        if !enter_by_paths(
            shared,
            now_ns,
            header.session,
            entry,
            peer,
            kind,
            flags,
            aux,
            request,
            rest,
        ) {
            return Received::Nothing;
        }
    }
    let id = SessionId { index: header.session, generation: entry.generation() };
    match (header.kind, entry.role_mut()) {
        (Kind::Request, Role::Server(server)) => {
            on_request(shared, now_ns, id, server, header, rest, pool)
        }
        (Kind::Response, Role::Client(client)) => {
            client.note_heard();
            on_response(shared, now_ns, id, client, header, rest, pool)
        }
        (Kind::RequestPart, Role::Server(server)) => {
            on_request_part(shared, now_ns, id, server, header, rest, pool)
        }
        (Kind::Announce, Role::Server(server)) => {
            on_announce(shared, now_ns, id, server, header, rest, pool)
        }
        (Kind::ResponsePart, Role::Client(client)) => {
            client.note_heard();
            on_response_part(shared, now_ns, id, client, header, rest, pool)
        }
        (Kind::Credit, Role::Client(client)) => {
            client.note_heard();
            on_credit(shared, now_ns, id, client, header, rest);
            Received::Nothing
        }
        (Kind::Pull, Role::Server(server)) => {
            on_pull(shared, id, server, header, rest);
            Received::Nothing
        }
        (Kind::Cancel, Role::Server(server)) => {
            on_cancel(shared, id, server, header, rest);
            Received::Nothing
        }
        _ => {
            shared.counters.dropped_wrong_direction += 1;
            Received::Nothing
        }
    }
}

/// Handles the paths of a frame whose session may have several (§14). Returns true if the frame still needs the usual
/// handling.
#[cold]
#[inline(never)]
#[expect(
    clippy::too_many_arguments,
    reason = "a header as a whole would occupy memory in the common case too"
)]
fn enter_by_paths<B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    index: u32,
    entry: &mut Entry<B, T>,
    peer: PeerKey,
    kind: Kind,
    flags: Flags,
    aux: u16,
    request: u64,
    rest: &[u8],
) -> bool {
    if entry.origin().peer() != Some(SOURCE_OF_PATHS) || entry.source() != Some(peer) {
        shared.counters.dropped_wrong_peer += 1;
        return false;
    }
    let (id, token) = (SessionId { index, generation: entry.generation() }, entry.origin().token());
    let header = Header { kind, flags, session: index, token, aux, request };
    match (kind, entry.role_mut()) {
        (Kind::Credit, Role::Client(client)) => {
            client.note_sign_by_paths();
            on_credit(shared, now_ns, id, client, header, rest);
            false
        }
        (_, Role::Client(client)) => {
            client.note_sign_by_paths();
            hear_response(now_ns, client, header);
            true
        }
        (_, Role::Server(server)) => {
            if !shared.may_answer(server) {
                shared.counters.dropped_wrong_peer += 1;
                return false;
            }
            note_source(shared.frame_source, server, header, rest);
            true
        }
        (_, Role::Free) => unreachable!("a free entry has no source"),
    }
}
