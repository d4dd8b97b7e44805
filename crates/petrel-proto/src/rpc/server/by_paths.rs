//! The server's part of sessions of several paths (`docs/wire-protocol.md` §14): long responses leave on the path of the
//! frame that caused them, short responses on a path that works, CREDITs on all paths in turn, and marks return to the
//! client.

use std::collections::HashSet;

use petrel_planted::planted;

use super::send::turn_of_server;
use crate::buffer::Buffer;
use crate::rpc::sink::OnPath;
use crate::rpc::turn::{Address, Out, Then, Turn};
use crate::rpc::{FrameSink, Shared};
use crate::session::PeerKey;
use crate::session::server::{Age, ServerPaths, ServerSession, ServerSlot, ServerState};
use crate::wire::{Flags, Header, Kind, Part};

/// The links of several paths with a proven port: a frame with the token of a session has come from the offered port. Links are named by
/// the peer of the answers.
#[derive(Default)]
pub(in crate::rpc) struct ProvenPorts(HashSet<PeerKey>);

impl ProvenPorts {
    /// Notes that the port of a link's offer is the client's.
    pub(in crate::rpc) fn note(&mut self, peer: PeerKey) {
        self.0.insert(peer);
    }

    /// Forgets a link that has ended.
    pub(in crate::rpc) fn forget(&mut self, peer: PeerKey) {
        self.0.remove(&peer);
    }
}

impl<B: Buffer> Shared<B> {
    /// Returns true if the session may answer the present frame. Answers go to the port of the client's offer, which may be another
    /// process's: until a frame with a token of the link's sessions has come from there, frames of the link's further ports are
    /// dropped (`docs/wire-protocol.md` §14.1).
    pub(in crate::rpc) fn may_answer(&mut self, server: &mut ServerSession<B>) -> bool {
        let peer = server.agreed().peer;
        let Some((_, paths)) = server.with_paths() else { return true };
        if paths.is_proven() {
            return true;
        }
        let is_from_offer = self.frame_source == 0;
        if is_from_offer {
            self.proven.note(peer);
        }
        let may =
            is_from_offer || self.proven.0.contains(&peer) || planted("proto_ports_need_no_proof");
        if may {
            paths.note_proven();
        }
        may
    }
}

/// Notes the source port of a frame from the client, and its mark.
pub(in crate::rpc) fn note_source<B>(
    source: u8,
    server: &mut ServerSession<B>,
    header: Header,
    rest: &[u8],
) {
    let slot = server.slot_index(header.request);
    if !matches!(server.age(slot, header.request), Age::New | Age::Current) {
        return;
    }
    let is_known = server.age(slot, header.request) == Age::Current;
    let Some((slots, paths)) = server.with_paths() else { return };
    paths.note_source(slot, source);
    let is_complete =
        || slots.get(slot).is_some_and(|state| state.state() != ServerState::Arriving);
    if header.flags.repeats() && is_known && is_complete() {
        paths.note_lost_answer();
    }
    if header.kind == Kind::RequestPart
        && header.flags.congestion()
        && let Ok((part, ..)) = Part::parse(header.flags, rest)
    {
        paths.note_mark(slot, header.request, part.packet);
    }
}

/// [`turn_of_server`] for a session of several paths.
#[cold]
#[inline(never)]
pub(in crate::rpc) fn turn_of_server_by_paths<B: Buffer, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    server: &mut ServerSession<B>,
    slot: usize,
) -> Turn {
    let agreed = server.agreed();
    let (peer, packet_bytes) = (agreed.peer, agreed.packet_bytes);
    let address = Address { to: server.to(), peer, packet_bytes };
    let Some((slots, paths)) = server.with_paths() else { return Turn::NOTHING };
    let Some(state) = slots.get_mut(slot) else { return Turn::NOTHING };
    let path = match state.due_credit() {
        Some(_) => paths.next_turn(slot),
        None if state.response_packets() > 1 => paths.path(slot),
        None => paths.short_path(),
    };
    let turn = out.on_path(path, peer, |out| {
        let marked = match paths.has_marks(slot, state.current()) {
            true => send_marked_credit(shared, out.sink, (state, slot), paths, &address),
            false => None,
        };
        marked.unwrap_or_else(|| turn_of_server(shared, out, state, &address))
    });
    state.note_turn(turn.then != Then::Done);
    turn
}

/// Sends the CREDIT that is due with the marks of the request; `None` if none is due.
fn send_marked_credit<B: Buffer, S: FrameSink>(
    shared: &mut Shared<B>,
    sink: &mut OnPath<'_, S>,
    (state, slot): (&mut ServerSlot<B>, usize),
    paths: &mut ServerPaths,
    address: &Address,
) -> Option<Turn> {
    let (credit, flags) = state.due_credit()?;
    let request = state.current();
    let header = address.to.words(Kind::Credit, flags.with(Flags::EXTENDED), 0, request);
    let frame = paths.marked_credit(slot, request, &credit, header)?;
    let taken = sink.send(address.peer, frame, &[]);
    if taken {
        paths.note_marks_sent(slot);
        state.note_credit_sent();
        shared.counters.control_frames_sent += 1;
    }
    Some(Turn::one(taken))
}
