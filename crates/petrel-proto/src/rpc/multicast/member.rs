//! Packets from groups, and the requests they belong to (`docs/wire-protocol.md` §12.4).

use super::members::Request;
use crate::buffer::{Buffer, BufferPool};
use crate::limits::packets_of;
use crate::rpc::deadline::deadline_ns;
use crate::rpc::received::malformed;
use crate::rpc::server::refuse::count_stale_or_future;
use crate::rpc::server::request::{begin_parts, on_repeated_request, on_request_part};
use crate::rpc::server::run::refuse_expired;
use crate::rpc::{Received, Shared};
use crate::session::server::{Age, ServerSession, ServerState};
use crate::session::{PeerKey, Role, SessionId, SessionTable};
use crate::wire::{Announcement, Flags, Header, Kind, Part};

#[cold]
pub(in crate::rpc) fn on_multicast<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    peer: PeerKey,
    header: Header,
    rest: &'f [u8],
    pool: &mut P,
) -> Received<'f, B, T> {
    let members = &mut shared.multicast.members;
    let Some(member) = members.find(peer, header.session, header.token) else {
        shared.counters.multicast_dropped += 1;
        return Received::Nothing;
    };
    let Some(request) = member.request(header.request) else {
        shared.counters.multicast_held += 1;
        let dropped = member.hold(header.request, header.flags, rest, pool);
        shared.counters.multicast_dropped += dropped;
        return Received::Nothing;
    };
    let id = member.session();
    let Some(entry) = sessions.get_mut(id) else { return Received::Nothing };
    let Role::Server(server) = entry.role_mut() else { return Received::Nothing };
    let header = as_part(header.flags, request);
    adopt(shared, now_ns, id, server, header, rest, pool)
}

/// Returns the header that the packet would have on the session.
fn as_part(flags: Flags, request: Request) -> Header {
    let Request { number: request, method: aux, .. } = request;
    // Session and token have been checked.
    Header { kind: Kind::RequestPart, flags, session: 0, token: 0, aux, request }
}

/// Handles a packet of an announced request.
fn adopt<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: Header,
    rest: &'f [u8],
    pool: &mut P,
) -> Received<'f, B, T> {
    let slot = server.slot_index(header.request);
    let state = server.slots().get(slot);
    // The request is complete or has ended: repetitions arrive on the session itself.
    if state.is_none_or(|state| {
        state.current() != header.request || state.state() != ServerState::Arriving
    }) {
        shared.counters.dropped_duplicate += 1;
        return Received::Nothing;
    }
    shared.counters.multicast_adopted += 1;
    on_request_part(shared, now_ns, id, server, header, rest, pool)
}

/// Handles the announcement of a request whose packets are sent by multicast.
#[cold]
pub(in crate::rpc) fn on_announce<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: Header,
    rest: &[u8],
    pool: &mut P,
) -> Received<'f, B, T> {
    let parsed = Part::parse(header.flags, rest).ok().and_then(|(part, extensions, payload)| {
        Some((part, extensions, Announcement::parse(payload).ok()?))
    });
    let Some((part, extensions, announcement)) = parsed else { return malformed(shared) };
    let packets = packets_of(part.size, server.agreed().packet_bytes);
    if part.packet != 0 || part.grant == 0 || packets < 2 {
        return malformed(shared);
    }
    let slot = server.slot_index(header.request);
    match server.age(slot, header.request) {
        Age::New => {
            if let Err(refused) = begin_parts(shared, id, server, slot, header, part, None, pool) {
                return refused;
            }
        }
        Age::Current => {}
        age => return count_stale_or_future(shared, age),
    }
    let state = server.slot_mut(slot);
    if part.size != state.request_size() {
        return malformed(shared);
    }
    if state.state() != ServerState::Arriving {
        let (echo, _) = state.echo();
        return on_repeated_request(shared, id, server, slot, echo, header.flags);
    }
    shared.counters.frames_accepted += 1;
    let ends_ns = deadline_ns(shared.clock.arrival_ns(now_ns), extensions);
    state.grant(part.grant);
    state.note_deadline(ends_ns);
    if ends_ns <= shared.clock.latest_ns(now_ns) {
        return refuse_expired(shared, id, state, slot);
    }
    adopt_held(shared, now_ns, id, server, header, announcement, pool)
}

/// Handles the packets of an announced request that arrived earlier.
fn adopt_held<'f, B: Buffer, T, P: BufferPool<Buffer = B>>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: Header,
    announcement: Announcement,
    pool: &mut P,
) -> Received<'f, B, T> {
    let Announcement { group, sequence } = announcement;
    let Some(member) = shared.multicast.members.of_session(id, group) else {
        // The client sends the packets to this member alone.
        return Received::Nothing;
    };
    let request = Request { sequence, number: header.request, method: header.aux };
    member.note(request);
    let mut whole = Received::Nothing;
    for mut held in member.take_held(sequence) {
        let header = as_part(held.flags(), request);
        let rest = held.rest();
        let received = adopt::<B, T, P>(shared, now_ns, id, server, header, rest, pool);
        if let Received::Message { handle, method, message, placed, deadline_ns } = received {
            whole = Received::Message { handle, method, message, placed, deadline_ns };
        }
    }
    whole
}
