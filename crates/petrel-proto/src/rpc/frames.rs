//! The doors for frames and for the time: received frames, due timers, and frames to send.
//!
//! [`Core::handle_frame`] and [`Core::transmit`] are enough. The other doors are shorter ways for the common
//! frames (`rpc/fast`), and addresses for prefetching (`rpc/lookahead.rs`).

use super::client::cancels::send_cancel;
use super::client::expiry::handle_expiries;
use super::client::pace::release_due;
use super::client::timeout::{ask_after_silence, handle_slot_due};
use super::fast::{NotNext, Parsed};
use super::lookahead::{LINE_BYTES, SESSIONS_MIN};
use super::receive::handle_any;
use super::server::memory::sweep_held;
use super::timers::Due;
use super::transmit::transmit_by;
use super::turn::Then;
use super::{Core, FrameSink, PlainCompletion, PlainRequest, Received, UpcomingFrame, fast};
use crate::buffer::{Buffer, BufferPool, Destination, Payload};
use crate::limits::{HEADER_BYTES, PART_HEADER_BYTES, TRANSMIT_FRAMES_MAX};
use crate::session::{PeerKey, Role};
use crate::wire::{Flags, Kind};

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
        handle_any(&mut self.sessions, &mut self.shared, now_ns, peer, frame, Flags::NONE, pool)
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
        handle_any(
            &mut self.sessions,
            &mut self.shared,
            now_ns,
            peer,
            frame,
            Flags::CONGESTION,
            pool,
        )
    }

    /// [`Core::handle_frame`] for a frame from a further source port of the peer (`docs/wire-protocol.md` §14):
    /// `source` is the index of the port. `is_marked` is true for a frame with an ECN mark.
    #[cold]
    pub fn handle_frame_from<'f, P: BufferPool<Buffer = B>>(
        &mut self,
        now_ns: u64,
        (peer, source): (PeerKey, u8),
        frame: &'f [u8],
        is_marked: bool,
        pool: &mut P,
    ) -> Received<'f, B, T> {
        self.shared.frame_source = source;
        let mark = if is_marked { Flags::CONGESTION } else { Flags::NONE };
        let Self { sessions, shared, .. } = self;
        let received = handle_any(sessions, shared, now_ns, peer, frame, mark, pool);
        shared.frame_source = 0;
        received
    }

    /// Handles new requests of one packet without any peculiarity. Returns `None` for frames that belong to
    /// [`Core::handle_plain_response`] or [`Core::handle_frame`].
    #[inline(always)]
    pub fn handle_plain_request<'f>(
        &mut self,
        peer: PeerKey,
        frame: &'f [u8],
    ) -> Option<PlainRequest<'f, B>> {
        let parsed = Parsed::of_kind(Kind::Request, frame)?;
        fast::take_plain(&mut self.sessions, &mut self.shared, peer, parsed, frame.len())
    }

    /// [`Core::handle_plain_request`] for a frame whose kind is known.
    #[inline(always)]
    pub fn take_plain_frame<'f>(
        &mut self,
        peer: PeerKey,
        parsed: Parsed<'f>,
    ) -> Option<PlainRequest<'f, B>> {
        let frame_bytes = HEADER_BYTES + parsed.payload.len();
        fast::take_plain(&mut self.sessions, &mut self.shared, peer, parsed, frame_bytes)
    }

    /// [`Core::handle_plain_request`] in a session of several paths: `source` is the index of the peer's source port from
    /// which the frame came.
    #[inline(always)]
    pub fn handle_plain_request_from<'f>(
        &mut self,
        (peer, source): (PeerKey, u8),
        frame: &'f [u8],
    ) -> Option<PlainRequest<'f, B>> {
        let parsed = Parsed::of_kind(Kind::Request, frame)?;
        fast::take_plain_from(&mut self.sessions, &mut self.shared, (peer, source), parsed)
    }

    /// [`Core::handle_plain_request`] for a frame whose payload stays in place; the result has no payload.
    /// `head` are the frame's first bytes, which must not change.
    pub fn take_plain_request(
        &mut self,
        peer: PeerKey,
        head: &[u8; HEADER_BYTES],
        payload_bytes: usize,
    ) -> Option<PlainRequest<'static, B>> {
        let Parsed { first, second, .. } = Parsed::of_kind(Kind::Request, head)?;
        let parsed = Parsed { first, second, payload: &[] };
        fast::take_plain(
            &mut self.sessions,
            &mut self.shared,
            peer,
            parsed,
            HEADER_BYTES + payload_bytes,
        )
    }

    /// Handles new requests of one packet with a future deadline and without any peculiarity. Returns the
    /// request and the deadline, or `None` for other frames: pass these to [`Core::handle_frame`].
    #[inline(always)]
    pub fn handle_timed_request<'f>(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        frame: &'f [u8],
    ) -> Option<(PlainRequest<'f, B>, u64)> {
        fast::take_timed(&mut self.sessions, &mut self.shared, now_ns, peer, frame)
    }

    /// Handles responses of one packet to requests sent once, with status OK. Returns `None` for frames that belong to
    /// [`Core::handle_frame`].
    ///
    /// `clock` reads the clock, only if the call has a deadline within a second; responses after the deadline are not handled
    /// here.
    #[inline(always)]
    pub fn handle_plain_response(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        frame: &[u8],
        clock: impl FnOnce() -> u64,
    ) -> Option<PlainCompletion<B, T>> {
        let (head, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        self.take_plain_response(now_ns, peer, head, payload, clock)
    }

    /// [`Core::handle_plain_response`] for answers that did not follow at once on their requests.
    #[inline(always)]
    pub fn handle_later_response(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        frame: &[u8],
        clock: impl FnOnce() -> u64,
    ) -> Option<PlainCompletion<B, T>> {
        let (head, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let Self { sessions, shared, .. } = self;
        fast::take_plain_response::<_, _, true>(
            sessions, shared, now_ns, peer, head, payload, clock,
        )
    }

    /// [`Core::handle_plain_response`] in a session of several paths. The calls have no deadline.
    #[inline(always)]
    pub fn handle_plain_response_from(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        frame: &[u8],
    ) -> Option<PlainCompletion<B, T>> {
        let parsed = Parsed::of_kind(Kind::Response, frame)?;
        let Self { sessions, shared, .. } = self;
        fast::take_plain_response_from(sessions, shared, now_ns, peer, parsed)
    }

    /// [`Core::handle_plain_response`] for a payload in any kind of memory. `head` are the frame's first
    /// bytes, which must not change.
    #[inline(always)]
    pub fn take_plain_response(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        head: &[u8; HEADER_BYTES],
        payload: impl Payload<B>,
        clock: impl FnOnce() -> u64,
    ) -> Option<PlainCompletion<B, T>> {
        fast::take_plain_response::<_, _, false>(
            &mut self.sessions,
            &mut self.shared,
            now_ns,
            peer,
            head,
            payload,
            clock,
        )
    }

    /// Accepts a frame if it is the expected next packet of an arriving request, neither its last nor the
    /// first of a burst: most packets of a large request without loss. The caller passes any other frame to
    /// [`Core::handle_frame`].
    ///
    /// The method has the effect of `handle_frame`, with fewer checks:
    ///
    /// 1. All of the frame except the payload is known in advance, and compared word by word.
    /// 2. A slot already in the transmit queue need not be queued to send a CREDIT.
    /// 3. The copy comes last, when no other values need to stay in registers.
    /// 4. Only a frame that is not from a session's only path asks whether the session has several: then it is treated as
    ///    by [`Core::handle_part_from`] from port 0.
    #[inline(never)]
    pub fn handle_next_part(&mut self, peer: PeerKey, frame: &[u8]) -> bool {
        let Some((head, payload)) = frame.split_first_chunk::<PART_HEADER_BYTES>() else {
            return false;
        };
        let Self { sessions, shared, .. } = self;
        match fast::next_part_place(sessions, shared, peer, head, payload.len()) {
            Ok(place) => {
                place.copy_from_slice(payload);
                true
            }
            Err(NotNext::OtherPath) => self.handle_part_from_first(peer, frame),
            Err(NotNext::Other) => false,
        }
    }

    /// [`Core::handle_part_from`] port 0. Arguments are in the order of [`Core::handle_next_part`], to save two
    /// instructions there.
    #[inline(never)]
    fn handle_part_from_first(&mut self, peer: PeerKey, frame: &[u8]) -> bool {
        self.handle_part_from((peer, 0), frame)
    }

    /// Accepts a frame from a source port of the peer if it is a packet of an arriving request in a session of several paths,
    /// where packets come in any order. `source` is the index of the port. Returns false for a burst's first packet, for
    /// frames from the request's last packet on, and for all further kinds of frames; the caller passes the frame to
    /// [`Core::handle_frame_from`].
    #[inline(never)]
    pub fn handle_part_from(&mut self, from: (PeerKey, u8), frame: &[u8]) -> bool {
        let Some((head, payload)) = frame.split_first_chunk::<PART_HEADER_BYTES>() else {
            return false;
        };
        let Self { sessions, shared, .. } = self;
        match fast::part_place_from(sessions, shared, from, head, payload.len()) {
            Some(place) => {
                place.copy_from_slice(payload);
                true
            }
            None => false,
        }
    }

    /// Like [`Core::handle_next_part`], but the caller copies the payload to the returned place; everything
    /// else is done. `head` are the frame's first bytes, which must not change.
    #[inline(always)]
    pub fn next_part_place(
        &mut self,
        peer: PeerKey,
        head: &[u8; PART_HEADER_BYTES],
        payload_bytes: usize,
    ) -> Option<&mut [u8]> {
        let Self { sessions, shared, .. } = self;
        fast::next_part_place(sessions, shared, peer, head, payload_bytes).ok()
    }

    /// Like [`Core::next_part_place`], if the request is put together in a [`Destination`] of type `D`. The caller stores the
    /// payload in the returned destination, at the returned offset of the request.
    pub fn next_part_destination<D: Destination>(
        &mut self,
        peer: PeerKey,
        head: &[u8; PART_HEADER_BYTES],
        payload_bytes: usize,
    ) -> Option<(&mut D, usize)> {
        let Self { sessions, shared, .. } = self;
        fast::next_part_destination(sessions, shared, peer, head, payload_bytes)
    }

    /// Handles due timers. To be called after handling all frames received so far.
    #[inline]
    pub fn handle_timeouts(&mut self, now_ns: u64) {
        let Self { sessions, shared, events, .. } = self;
        shared.memory.set_time(now_ns);
        shared.timers.advance(now_ns);
        while let Some(due) = shared.timers.pop_due() {
            match due {
                Due::Slot(id, slot) => handle_slot_due(sessions, shared, events, now_ns, id, slot),
                Due::Expiry(id) => handle_expiries(sessions, shared, events, now_ns, id),
                Due::Sweep => sweep_held(sessions, shared),
            }
        }
        if !shared.silent.is_empty() {
            ask_after_silence(sessions, shared, now_ns);
        }
        self.release_paced(now_ns);
    }

    /// Returns the time for the next call of [`Core::handle_timeouts`], in nanoseconds of the same clock.
    /// Timers may have moved by then.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.shared.timers.next_due_ns()
    }

    /// Resumes sessions whose pace allows it now. [`Core::handle_timeouts`] includes this call; where
    /// timeouts have to wait because frames arrive, call it before [`Core::transmit`].
    #[inline(always)]
    pub fn release_paced(&mut self, now_ns: u64) {
        if self.shared.timers.has_come_due(now_ns) {
            release_due(&mut self.sessions, &mut self.shared, now_ns);
        }
    }

    /// Sends up to [`TRANSMIT_FRAMES_MAX`] frames to `sink`. Returns the number of accepted frames; at the
    /// maximum there may be more to send.
    #[inline]
    pub fn transmit<S: FrameSink>(&mut self, now_ns: u64, sink: &mut S) -> usize {
        let Self { sessions, shared, control, .. } = self;
        match shared.config.fast_path {
            true => transmit_by::<B, T, S, true>(sessions, shared, control, now_ns, sink),
            false => transmit_by::<B, T, S, false>(sessions, shared, control, now_ns, sink),
        }
    }

    /// Sends waiting notices (CANCELs) and nothing else, as [`Core::transmit`] would, at most
    /// [`TRANSMIT_FRAMES_MAX`]. Returns their number. For an owner that is about to end: after the flush it
    /// may call again.
    pub fn transmit_cancels<S: FrameSink>(&mut self, sink: &mut S) -> usize {
        let mut sent = 0;
        while sent < TRANSMIT_FRAMES_MAX && !self.shared.cancels.is_empty() {
            let turn = send_cancel(&mut self.sessions, &mut self.shared, &mut self.control, sink);
            if turn.then == Then::Refused {
                break;
            }
            sent += turn.sent;
        }
        sent
    }

    /// Returns true if enough sessions are open for prefetching to pay.
    #[inline]
    pub fn looks_ahead(&self) -> bool {
        self.sessions.server_count() >= SESSIONS_MIN
    }

    /// First step for a call that will follow: returns the lines of the session's entry that a small call uses.
    #[inline]
    pub fn call_session_addresses(&self, session: crate::SessionId) -> [*const u8; 3] {
        let entry = self.sessions.at(session.index);
        let start = entry.map_or(std::ptr::null(), |entry| std::ptr::from_ref(entry).cast());
        [start, start.wrapping_add(LINE_BYTES), start.wrapping_add(2 * LINE_BYTES)]
    }

    /// Second step, once the entry is cached: returns the two lines of the slot that the session's next call takes.
    #[inline]
    pub fn call_slot_addresses(&self, session: crate::SessionId) -> [*const u8; 2] {
        let slot = match self.sessions.at(session.index).map(|entry| entry.role()) {
            Some(Role::Client(client)) => client.next_slot(),
            _ => None,
        };
        let start = slot.map_or(std::ptr::null(), |slot| std::ptr::from_ref(slot).cast());
        [start, start.wrapping_add(LINE_BYTES)]
    }

    /// First step: returns the line of the session's entry.
    #[inline]
    pub fn session_address(&self, upcoming: UpcomingFrame) -> *const u8 {
        match self.sessions.at(upcoming.session) {
            Some(entry) => std::ptr::from_ref(entry).cast(),
            None => std::ptr::null(),
        }
    }

    /// Second step, once the entry is cached: returns the line of the slot.
    #[inline]
    pub fn slot_address(&self, upcoming: UpcomingFrame) -> *const u8 {
        match self.sessions.at(upcoming.session).map(|entry| entry.role()) {
            Some(Role::Server(server)) => {
                let slot = server.slot_index(upcoming.request.into());
                server
                    .slots()
                    .get(slot)
                    .map_or(std::ptr::null(), |slot| std::ptr::from_ref(slot).cast())
            }
            _ => std::ptr::null(),
        }
    }

    /// Third step, once the slot is cached: returns the two lines of the former answer's buffer.
    #[inline]
    pub fn answer_addresses(&self, upcoming: UpcomingFrame) -> [*const u8; 2] {
        let entry = self.sessions.at(upcoming.session);
        let buffer = match entry.map(|entry| entry.role()) {
            Some(Role::Server(server)) => {
                let slot = server.slot_index(upcoming.request.into());
                server.slots().get(slot).and_then(|state| state.message())
            }
            _ => None,
        };
        let start = buffer.map_or(std::ptr::null(), B::address);
        [start, start.wrapping_add(LINE_BYTES)]
    }
}
