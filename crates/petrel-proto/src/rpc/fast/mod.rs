//! The fast path in all four directions, for the common case: request and response of one packet, without
//! loss or queueing (eRPC §4.3, §5.2.2).
//!
//! [`Core::transmit`] and [`Core::handle_frame`] can handle all these frames. The fast path differs only to
//! be shorter:
//!
//! 1. One flag of a slot replaces all conditions: set while nothing unusual holds, cleared otherwise. The
//!    flag is [`ClientSlot::send_path`](crate::session::client::ClientSlot::send_path) before the request is
//!    sent, `awaits_plain` until the response has arrived, and a server slot's `is_plain` for an answer.
//! 2. Version, kind and flags of a header are compared as one number.
//! 3. The results are for one kind of frame, to save callers from distinguishing kinds again.
//!
//! Other frames and calls return `None` or false without any change, and take the general path. `petrel bench
//! factors` measures the gain: without the fast path small calls over shared memory reach half of their rate (`PERFORMANCE.md`).

mod deadline;
mod server;

pub use server::PlainRequest;

use super::call::{self, PlainCompletion};
use super::pace::hear;
use super::send_request::left_us;
use super::work::Work;
use super::{Core, FrameSink};
use crate::buffer::{Buffer, Payload};
use crate::congestion::Ack;
use crate::limits::{ENDPOINT_METHOD, HEADER_BYTES, REQUEST_NUMBER_END};
use crate::session::backlog::{NEVER, PendingCall};
use crate::session::client::{ClientSession, ClientSlot, RoundTrips, SendPath, SlotCall};
use crate::session::credits::Credits;
use crate::session::{Origin, PeerKey, Role, SessionId, SessionTable};
use crate::wire::{Destination, Flags, Kind, first_bits};
use deadline::send_timed;

/// The parts of a frame for the fast path.
pub(in crate::rpc) struct Parsed<'f> {
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) payload: &'f [u8],
}

impl Parsed<'_> {
    /// Returns the frame's parts, if the frame has this kind and no flags.
    #[inline(always)]
    pub(in crate::rpc) fn of_kind(kind: Kind, frame: &[u8]) -> Option<Parsed<'_>> {
        let (head, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let (first, second) = crate::wire::header_words(head);
        let is_plain = first as u32 & 0xFFF == first_bits(kind);
        is_plain.then_some(Parsed { first, second, payload })
    }

    #[inline(always)]
    fn session(&self) -> u32 {
        (self.first >> 12) as u32 & 0xF_FFFF
    }

    #[inline(always)]
    fn token(&self) -> u32 {
        (self.first >> 32) as u32
    }

    #[inline(always)]
    pub(in crate::rpc) fn aux(&self) -> u16 {
        self.second as u16
    }

    #[inline(always)]
    fn request(&self) -> u64 {
        self.second >> 16
    }
}

/// The state for a call on the fast path, every part looked up once. No operation on this state may panic
/// while a caller holds the call: otherwise the compiler would keep the call in memory, to drop it from
/// there.
struct PlainPlace<'a, B, T> {
    peer: PeerKey,
    to: Destination,
    credits: &'a mut Credits,
    others_wait: bool,
    trips: &'a RoundTrips,
    is_limited: bool,
    slot: usize,
    state: &'a mut ClientSlot<B, T>,
}

impl<'a, B, T> PlainPlace<'a, B, T> {
    /// Takes a free slot of a session, if the `sizes` of the request and of the response's buffer are at most
    /// one packet each.
    #[inline(always)]
    fn find(
        sessions: &'a mut SessionTable<B, T>,
        session: SessionId,
        sizes: (usize, usize),
    ) -> Option<Self> {
        let entry = sessions.entries.get_mut(session.index as usize)?;
        let Role::Client(client) = &mut entry.role else { return None };
        let is_plain = entry.generation == session.generation
            && sizes.0 <= client.plain_request_bytes_max as usize
            && sizes.1 <= client.packet_bytes as usize;
        if !is_plain {
            return None;
        }
        let ClientSession { free, slots, to, credits, peer, stalled, trips, congestion, .. } =
            client;
        let is_limited = congestion.is_limited();
        let slot = usize::from(*free);
        // Without a free slot, or before the session is open, the index is beyond the slots.
        let state = slots.get_mut(slot)?;
        *free = state.next_free;
        let peer = *peer;
        let others_wait = !stalled.is_empty();
        Some(Self { peer, to: *to, credits, others_wait, trips, is_limited, slot, state })
    }
}

impl<B: Buffer, T> Core<B, T> {
    /// Makes a call with a request and a response of one packet. The request is sent at once if `sink`
    /// accepts it. Returns the call if the session has no free slot, or the fast path does not apply.
    #[inline(always)]
    pub(in crate::rpc) fn call_plain<S: FrameSink>(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        sink: &mut S,
    ) -> Option<PendingCall<B, T>> {
        self.start_plain::<S, false>(now_ns, session, call, NEVER, sink)
    }

    /// [`Core::call_plain`], with a deadline if `TIMED`. The two variants are compiled separately.
    #[inline(always)]
    pub(in crate::rpc) fn start_plain<S: FrameSink, const TIMED: bool>(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        deadline_ns: u64,
        sink: &mut S,
    ) -> Option<PendingCall<B, T>> {
        // The call is taken apart and put together again where needed as a whole: otherwise the compiler
        // keeps it in memory throughout.
        let PendingCall { method, tag, request, response } = call;
        // Requests to the endpoint itself use the reserved slot.
        if self.shared.inherits || method == ENDPOINT_METHOD {
            return Some(PendingCall { method, tag, request, response });
        }
        let sizes = (request.len(), response.capacity());
        let Some(place) = PlainPlace::find(&mut self.sessions, session, sizes) else {
            return Some(PendingCall { method, tag, request, response });
        };
        let PlainPlace { peer, to, credits, others_wait, trips, is_limited, slot, state } = place;
        state.hold(SlotCall { tag, request, response });
        self.shared.counters.calls_started += 1;
        let send_path = if TIMED { SendPath::Timed } else { SendPath::Plain };
        let note_begun = |state: &mut ClientSlot<B, T>| {
            state.note_begun(method, 1);
            if TIMED {
                state.expire_at(deadline_ns);
            }
        };
        if others_wait {
            note_begun(state);
            state.note_unsent(send_path);
            self.stall_slot(session, slot);
            return None;
        }
        if sink.reaches(peer)
            && credits.available() > 0
            && !is_limited
            && let Some(SlotCall { request, .. }) = &mut state.call
        {
            let taken = if TIMED {
                let header = to.words(Kind::Request, Flags::EXTENDED, method, state.number);
                let left_us = left_us(sink.now_ns(now_ns), deadline_ns);
                send_timed(request, header, left_us, peer, sink)
            } else {
                let header = to.words(Kind::Request, Flags::NONE, method, state.number);
                sink.send(peer, request.frame(header), &[])
            };
            if taken {
                credits.lend_first(&mut state.held);
                note_begun(state);
                state.note_plain_sent(now_ns);
                self.shared.counters.packets_sent += 1;
                if trips.backoff == 0 && state.wakes_soon {
                    state.deadline_ns = now_ns + trips.probe_ns;
                } else {
                    self.arm_slot(now_ns, session, slot);
                }
                return None;
            }
        }
        note_begun(state);
        state.note_unsent(send_path);
        // Also if the queue has an entry of the slot's former call, usable for the new call: a check would
        // wait for the slot's memory.
        state.queued = true;
        self.shared.work.push(Work { session: session.index, slot: slot as u16, of_client: true });
        None
    }

    #[cold]
    fn arm_slot(&mut self, now_ns: u64, session: SessionId, slot: usize) {
        if let Some(client) = self.sessions.client_mut(session) {
            self.shared.arm(now_ns, session, client, slot);
        }
    }

    /// Slots that already wait for a credit come first.
    #[cold]
    fn stall_slot(&mut self, session: SessionId, slot: usize) {
        if let Some(client) = self.sessions.client_mut(session) {
            self.shared.counters.credit_waits += 1;
            client.stalled.push(slot);
        }
    }

    /// Handles responses of one packet to requests sent once, with status OK. Returns `None` for other
    /// frames: pass these to [`Core::handle_frame`].
    ///
    /// `clock` reads the clock, only if the call has a deadline; later responses are not handled here.
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
        let parsed = Parsed::of_kind(Kind::Response, head)?;
        let entry = self.sessions.entries.get_mut(parsed.session() as usize)?;
        if entry.origin != Origin::new(parsed.token(), Some(peer)) {
            return None;
        }
        let Role::Client(client) = &mut entry.role else { return None };
        let slot = parsed.request() as usize & usize::from(client.slot_mask);
        let state = client.slots.get_mut(slot)?;
        let is_plain = state.awaits_plain
            && state.number == parsed.request()
            && parsed.aux() == 0
            && !client.congestion.needs_every_ack()
            && payload.len() <= client.packet_bytes as usize
            && state.call.as_ref().is_some_and(|call| payload.len() <= call.response.capacity());
        if !is_plain || state.is_on_wire() && state.expiry_ns <= clock() {
            return None;
        }
        if let Some(call) = &mut state.call {
            payload.fill(&mut call.response);
        }
        client.credits.take_back_only(&mut state.held);
        if client.trips.sampled_ns != now_ns {
            client.trips.sample(now_ns, state.timed_ns, &self.shared.config.rto);
            let rtt_ns = now_ns.saturating_sub(state.timed_ns);
            if !client.congestion.is_bypassed(rtt_ns, false) {
                let ClientSession { congestion, trips, packet_bytes, .. } = client;
                let ack = Ack {
                    now_ns,
                    rtt_ns: Some(rtt_ns),
                    packets: 1,
                    bytes: *packet_bytes,
                    ce: false,
                };
                hear(congestion, trips, &ack, &mut self.shared.congestion);
            }
        }
        if self.shared.timers.is_crowded() {
            state.leave_wheel(&mut self.shared.timers);
        }
        let counters = &mut self.shared.counters;
        counters.frames_accepted += 1;
        counters.calls_succeeded += 1;
        let session = SessionId { index: parsed.session(), generation: entry.generation };
        state.end_plain(u64::from(client.slot_mask) + 1);
        let others_wait = !client.stalled.is_empty() || client.backlog.was_used();
        if state.number >= REQUEST_NUMBER_END || others_wait {
            return Some(call::ended_before_others(&mut self.shared, session, client, slot));
        }
        state.next_free = client.free;
        client.free = slot as u16;
        let Some(SlotCall { tag, request, response }) = state.call.take() else {
            unreachable!("a slot in use holds its call");
        };
        Some(PlainCompletion { session, tag, request, response })
    }

    /// Sends a request or answer by the fast path. Returns false if the fast path does not apply, or the
    /// medium refused the frame. If `TIMED`, sends only requests with a deadline.
    #[inline(always)]
    pub(in crate::rpc) fn send_plain<S: FrameSink, const TIMED: bool>(
        &mut self,
        now_ns: u64,
        work: Work,
        sink: &mut S,
    ) -> bool {
        let Some(entry) = self.sessions.entries.get_mut(work.session as usize) else {
            return false;
        };
        match &mut entry.role {
            Role::Client(client) if work.of_client => {
                let ClientSession { to, credits, peer, stalled, slots, trips, congestion, .. } =
                    client;
                let peer = *peer;
                let Some(state) = slots.get_mut(work.slot as usize) else { return false };
                let is_first = credits.available() > 0 && stalled.is_empty();
                let send_path = if TIMED { SendPath::Timed } else { SendPath::Plain };
                let may_send = state.send_path == send_path && is_first && !congestion.is_limited();
                let (true, Some(SlotCall { request, .. })) = (may_send, &mut state.call) else {
                    return false;
                };
                let taken = if TIMED {
                    let header =
                        to.words(Kind::Request, Flags::EXTENDED, state.method, state.number);
                    let left_us = left_us(sink.now_ns(now_ns), state.expiry_ns);
                    send_timed(request, header, left_us, peer, sink)
                } else {
                    let header = to.words(Kind::Request, Flags::NONE, state.method, state.number);
                    sink.send(peer, request.frame(header), &[])
                };
                if !taken {
                    return false;
                }
                credits.lend_first(&mut state.held);
                state.note_plain_sent(now_ns);
                self.shared.counters.packets_sent += 1;
                if trips.backoff == 0 && state.wakes_soon {
                    state.deadline_ns = now_ns + trips.probe_ns;
                } else {
                    let id = SessionId { index: work.session, generation: entry.generation };
                    self.shared.arm(now_ns, id, client, work.slot as usize);
                }
                true
            }
            Role::Server(server) if !work.of_client && !TIMED => {
                let Some(state) = server.slots.get_mut(work.slot as usize) else { return false };
                let aux = state.answer_aux();
                let (true, Some(message)) = (state.is_plain, &mut state.message) else {
                    return false;
                };
                let header = server.to.words(Kind::Response, Flags::NONE, aux, state.current);
                if !sink.send(server.peer, message.frame(header), &[]) {
                    return false;
                }
                state.note_plain_sent();
                self.shared.counters.packets_sent += 1;
                true
            }
            _ => false,
        }
    }
}
