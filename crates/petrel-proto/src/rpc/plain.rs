//! The common case, on all four ways: a request of one packet, its answer of one packet, nothing
//! lost, nothing queued (eRPC §4.3, §5.2.2).
//!
//! [`Core::transmit`] and [`Core::handle_frame`] can do all of it. What is here departs from them
//! only in order to be short:
//!
//! 1. One flag of a slot, set when nothing unusual holds and cleared when something does, stands for
//!    all conditions: [`ClientSlot::is_plain`](crate::session::client::ClientSlot::is_plain) before
//!    the request is sent, `awaits_plain` until its answer has come, and a server slot's `is_plain`
//!    for an answer.
//! 2. Version, kind and flags of a header are compared as one number.
//! 3. The results are those of one kind of frame, so that nobody has to tell them apart again.
//!
//! Whatever does not fit gives `None` or false, with nothing changed, and is looked at anew by the
//! general code. `petrel bench factors` tells what they are worth: without them small calls over shared
//! memory reach 0.6 of their rate.

use super::work::Work;
use super::{Completion, Core, FrameSink, RequestHandle, call};
use crate::buffer::Buffer;
use crate::limits::{FUTURE_ROUNDS_MAX, HEADER_BYTES, REQUEST_NUMBER_END};
use crate::session::client::{ClientSession, ClientState, PendingCall};
use crate::session::server::ServerState;
use crate::session::{PeerKey, Role, SessionId};
use crate::wire::{Flags, Kind, first_bits};

/// A request of one packet, still in the receive buffer. It must be answered.
#[derive(Debug)]
pub struct PlainRequest<'f, B> {
    /// To answer by.
    pub handle: RequestHandle,
    /// The method called.
    pub method: u16,
    /// The whole request.
    pub payload: &'f [u8],
    /// The buffer of the slot's former answer, which may serve for this one.
    pub spare: Option<B>,
}

/// The three parts of a frame that are needed here.
struct Parsed<'f> {
    first: u64,
    second: u64,
    payload: &'f [u8],
}

impl Parsed<'_> {
    /// The frame, if it is of this kind and without flags.
    #[inline(always)]
    fn of_kind(kind: Kind, frame: &[u8]) -> Option<Parsed<'_>> {
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
    fn aux(&self) -> u16 {
        self.second as u16
    }

    #[inline(always)]
    fn request(&self) -> u64 {
        self.second >> 16
    }
}

impl<B: Buffer, T> Core<B, T> {
    /// Makes a call whose request and response have one packet each, if the session has a slot for
    /// it; else gives the call back.
    #[inline(always)]
    pub(super) fn call_plain(
        &mut self,
        session: SessionId,
        call: PendingCall<B, T>,
    ) -> Option<PendingCall<B, T>> {
        let Some(entry) = self.sessions.entries.get_mut(session.index as usize) else {
            return Some(call);
        };
        let Role::Client(client) = &mut entry.role else { return Some(call) };
        let slot = client.free_slots.trailing_zeros() as usize;
        // Without a free slot, or before the session is open, this is beyond the slots.
        let Some(state) = client.slots.get_mut(slot) else { return Some(call) };
        let is_plain = entry.generation == session.generation
            && call.request.len() <= client.plain_request_bytes_max as usize
            && call.response.capacity() <= client.packet_bytes as usize;
        if !is_plain {
            return Some(call);
        }
        client.free_slots &= client.free_slots - 1;
        state.start(call, 1, true);
        self.shared.counters.calls_started += 1;
        // Also if the queue has an entry of the slot's former call, which it then serves: to look
        // would be to wait for the slot's memory.
        state.queued = true;
        self.shared.work.push(Work { session: session.index, slot: slot as u8, of_client: true });
        None
    }

    /// Takes a frame if it is a new request of one packet, with nothing unusual about it. `None`
    /// says nothing about the frame: give it to [`Core::handle_plain_response`] or
    /// [`Core::handle_frame`].
    #[inline(always)]
    pub fn handle_plain_request<'f>(
        &mut self,
        peer: PeerKey,
        frame: &'f [u8],
    ) -> Option<PlainRequest<'f, B>> {
        let parsed = Parsed::of_kind(Kind::Request, frame)?;
        let entry = self.sessions.entries.get_mut(parsed.session() as usize)?;
        if entry.token != parsed.token() || entry.peer != Some(peer) {
            return None;
        }
        let Role::Server(server) = &mut entry.role else { return None };
        let number = parsed.request();
        let packet_bytes = server.packet_bytes as usize;
        let rounds = server.slots.len() as u64;
        let state = server.slots.get_mut(number as usize & (rounds as usize).wrapping_sub(1))?;
        // From 0 for the next number on: one that is not newer becomes very large.
        let ahead = number.wrapping_sub(state.current).wrapping_sub(1);
        let is_plain = ahead < FUTURE_ROUNDS_MAX * rounds
            && frame.len() <= server.plain_frame_bytes_max as usize
            && state.parts.is_none()
            && state.message.as_ref().is_none_or(|spare| spare.capacity() <= packet_bytes);
        if !is_plain {
            return None;
        }
        state.current = number;
        state.method = parsed.aux();
        state.credit_due = false;
        state.is_plain = false;
        state.request_size = parsed.payload.len() as u32;
        state.request_packets = 1;
        state.echo = 0;
        state.echo_repeats = false;
        state.response_limit = 1;
        state.state = ServerState::Running;
        let counters = &mut self.shared.counters;
        counters.frames_accepted += 1;
        counters.requests_received += 1;
        let session = SessionId { index: parsed.session(), generation: entry.generation };
        Some(PlainRequest {
            handle: RequestHandle { session, number },
            method: parsed.aux(),
            payload: parsed.payload,
            spare: state.message.take(),
        })
    }

    /// Takes a frame if it is the answer of one packet to a request that was sent once, with
    /// status OK. `None` says nothing about the frame.
    #[inline(always)]
    pub fn handle_plain_response(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        frame: &[u8],
    ) -> Option<Completion<B, T>> {
        let parsed = Parsed::of_kind(Kind::Response, frame)?;
        let entry = self.sessions.entries.get_mut(parsed.session() as usize)?;
        if entry.token != parsed.token() || entry.peer != Some(peer) {
            return None;
        }
        let Role::Client(client) = &mut entry.role else { return None };
        let rounds = client.slots.len();
        let slot = parsed.request() as usize & rounds.wrapping_sub(1);
        let state = client.slots.get_mut(slot)?;
        let payload = parsed.payload;
        let is_plain = state.awaits_plain
            && state.number == parsed.request()
            && parsed.aux() as u8 == 0
            && payload.len() <= client.packet_bytes as usize
            && state.response.as_ref().is_some_and(|buffer| payload.len() <= buffer.capacity());
        if !is_plain {
            return None;
        }
        let (Some(request), Some(mut response), Some(tag)) =
            (state.request.take(), state.response.take(), state.tag.take())
        else {
            unreachable!("a slot in use holds both buffers and the tag of its call");
        };
        response.set_message(payload);
        state.awaits_plain = false;
        state.held = 0;
        state.state = ClientState::Free;
        state.number += rounds as u64;
        if self.shared.timers.is_crowded() {
            state.leave_wheel(&mut self.shared.timers);
        }
        client.credits += 1;
        client.free_slots |= 1 << slot;
        let (number, sent_ns) = (state.number, state.timed_ns);
        if client.sampled_ns != now_ns {
            client.sample(now_ns, sent_ns, &self.shared.config.rto);
        }
        let counters = &mut self.shared.counters;
        counters.frames_accepted += 1;
        counters.calls_succeeded += 1;
        let session = SessionId { index: parsed.session(), generation: entry.generation };
        if client.stalled_slots != 0 || !client.backlog.is_empty() || number >= REQUEST_NUMBER_END {
            call::after_end(&mut self.shared, session, client, slot);
        }
        Some(Completion { session, tag, outcome: Ok(()), request, response })
    }

    /// Sends a plain request or answer; false if it is not plain, or the medium refused it.
    #[inline(always)]
    pub(super) fn send_plain<S: FrameSink>(
        &mut self,
        now_ns: u64,
        work: Work,
        sink: &mut S,
    ) -> bool {
        let Some(entry) = self.sessions.entries.get_mut(work.session as usize) else {
            return false;
        };
        let Some(peer) = entry.peer else { return false };
        match &mut entry.role {
            Role::Client(client) if work.of_client => {
                let ClientSession { to, credits, slots, rto_ns, backoff, .. } = client;
                let Some(state) = slots.get_mut(work.slot as usize) else { return false };
                let (true, Some(request)) = (state.is_plain && *credits > 0, &mut state.request)
                else {
                    return false;
                };
                let header = to.words(Kind::Request, Flags::NONE, state.method, state.number);
                if !sink.send(peer, request.frame(header), &[]) {
                    return false;
                }
                *credits -= 1;
                state.note_plain_sent(now_ns);
                self.shared.counters.packets_sent += 1;
                if *backoff == 0 && state.in_wheel {
                    state.deadline_ns = now_ns + *rto_ns;
                } else {
                    let id = SessionId { index: work.session, generation: entry.generation };
                    self.shared.arm(now_ns, id, client, work.slot as usize);
                }
                true
            }
            Role::Server(server) if !work.of_client => {
                let Some(state) = server.slots.get_mut(work.slot as usize) else { return false };
                let (true, Some(message)) = (state.is_plain, &mut state.message) else {
                    return false;
                };
                let aux = u16::from(state.status.code());
                let header = server.to.words(Kind::Response, Flags::NONE, aux, state.current);
                if !sink.send(peer, message.frame(header), &[]) {
                    return false;
                }
                state.is_plain = false;
                state.queued = false;
                state.response_sent = 1;
                self.shared.counters.packets_sent += 1;
                true
            }
            _ => false,
        }
    }
}
