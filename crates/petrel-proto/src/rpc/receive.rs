//! The receive path: finds the session and the state machine of a frame (`docs/wire-protocol.md` §3.5).

use super::memory::Patience;
use super::{Completion, Core, RequestHandle};
use crate::buffer::{Buffer, BufferPool};
use crate::session::{PeerKey, Role, SessionId};
use crate::wire::{Flags, Header, Kind};

/// The meaning of a received frame for the application.
#[derive(Debug)]
pub enum Received<'f, B, T = u64> {
    /// Nothing: the frame was for the core, or was dropped and counted.
    Nothing,
    /// A request of one packet, still in the receive buffer. It must be answered.
    Request {
        /// Names the request in the answer.
        handle: RequestHandle,
        /// The method called.
        method: u16,
        /// The whole request.
        payload: &'f [u8],
        /// The buffer of the slot's former answer, for reuse (eRPC §4.3: the preallocated response).
        spare: Option<B>,
        /// The request's deadline, if any: later than now, on this core's clock.
        deadline_ns: Option<u64>,
    },
    /// A request of several packets, reassembled. It must be answered.
    Message {
        /// Names the request in the answer.
        handle: RequestHandle,
        /// The method called.
        method: u16,
        /// The whole request.
        message: B,
        /// The request's deadline, if any: later than now, on this core's clock.
        deadline_ns: Option<u64>,
    },
    /// A call ended.
    Completed(Completion<B, T>),
}

impl<B: Buffer, T> Core<B, T> {
    /// Handles a frame from `peer`. Any bytes in any order are legal input: unacceptable frames are dropped
    /// and counted. Requests of several packets get their buffers from `pool`.
    pub fn handle_frame<'f, P: BufferPool<Buffer = B>>(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        frame: &'f [u8],
        pool: &mut P,
    ) -> Received<'f, B, T> {
        self.handle_any(now_ns, peer, frame, Flags::NONE, pool)
    }

    /// [`Core::handle_frame`] for a frame with the ECN mark *Congestion Experienced* (RFC 3168).
    #[cold]
    pub fn handle_marked_frame<'f, P: BufferPool<Buffer = B>>(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        frame: &'f [u8],
        pool: &mut P,
    ) -> Received<'f, B, T> {
        self.handle_any(now_ns, peer, frame, Flags::CONGESTION, pool)
    }

    #[inline]
    fn handle_any<'f, P: BufferPool<Buffer = B>>(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        frame: &'f [u8],
        mark: Flags,
        pool: &mut P,
    ) -> Received<'f, B, T> {
        let Ok((mut header, rest)) = Header::parse(frame) else {
            self.shared.counters.dropped_malformed += 1;
            return Received::Nothing;
        };
        if header.kind == Kind::Multicast {
            header.flags = header.flags.with(mark);
            return self.on_multicast(now_ns, peer, header, rest, pool);
        }
        self.shared.held.now_ns = now_ns;
        let received = self.handle_parsed(now_ns, peer, header, mark, rest, pool);
        match self.shared.wanted.take() {
            None => received,
            Some(wanted) => {
                self.make_room(wanted);
                self.shared.patience = Patience::Asked;
                let received = self.handle_parsed(now_ns, peer, header, mark, rest, pool);
                self.shared.patience = Patience::Asks;
                received
            }
        }
    }

    fn handle_parsed<'f, P: BufferPool<Buffer = B>>(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        mut header: Header,
        mark: Flags,
        rest: &'f [u8],
        pool: &mut P,
    ) -> Received<'f, B, T> {
        let shared = &mut self.shared;
        let entry = match self.sessions.at_mut(header.session) {
            Some(entry)
                if entry.origin().token() == header.token
                    && !matches!(entry.role(), Role::Free) =>
            {
                entry
            }
            _ => {
                shared.counters.dropped_unknown_session += 1;
                return Received::Nothing;
            }
        };
        if entry.origin().peer() != Some(peer) {
            shared.counters.dropped_wrong_peer += 1;
            return Received::Nothing;
        }
        header.flags = header.flags.with(mark);
        let id = SessionId { index: header.session, generation: entry.generation() };
        match (header.kind, entry.role_mut()) {
            (Kind::Request, Role::Server(server)) => {
                shared.on_request(now_ns, id, server, header, rest)
            }
            (Kind::Response, Role::Client(client)) => {
                shared.on_response(now_ns, id, client, header, rest, pool)
            }
            (Kind::RequestPart, Role::Server(server)) => {
                shared.on_request_part(now_ns, id, server, header, rest, pool)
            }
            (Kind::Announce, Role::Server(server)) => {
                shared.on_announce(now_ns, id, server, header, rest, pool)
            }
            (Kind::ResponsePart, Role::Client(client)) => {
                shared.on_response_part(now_ns, id, client, header, rest, pool)
            }
            (Kind::Credit, Role::Client(client)) => {
                shared.on_credit(now_ns, id, client, header, rest);
                Received::Nothing
            }
            (Kind::Pull, Role::Server(server)) => {
                shared.on_pull(id, server, header, rest);
                Received::Nothing
            }
            (Kind::Cancel, Role::Server(server)) => {
                shared.on_cancel(id, server, header, rest);
                Received::Nothing
            }
            _ => {
                shared.counters.dropped_wrong_direction += 1;
                Received::Nothing
            }
        }
    }
}
