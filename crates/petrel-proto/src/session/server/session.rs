//! A session in the server role (`docs/wire-protocol.md` §6).

use super::order::RequestOrder;
use super::paths::ServerPaths;
use super::slot::{ServerSlot, ServerState};
use crate::limits::{
    FUTURE_ROUNDS_MAX, HEADER_BYTES, KEPT_ANSWER_BYTES_MAX, SLOTS_AT_FIRST, SLOTS_MAX,
};
use crate::session::{Agreed, NO_PEER, PeerKey};
use crate::wire::Destination;

/// The relation of a request number to its slot's current request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Stale,
    Current,
    New,
    Future,
}

/// A session in the server role. Fields for small requests come first, in this order, and end with the first
/// cache line of their [`Entry`](crate::session::Entry).
#[repr(C)]
pub(crate) struct ServerSession<B> {
    /// The slots that requests have needed until now: see [`ServerSession::make_ready`].
    slots: Box<[ServerSlot<B>]>,
    /// The agreed number of slots, a power of two, less one: masks a request number to a slot.
    slot_mask: u32,
    /// The common part of the headers of outgoing frames.
    to: Destination,
    /// Payload bytes of a full packet, as agreed.
    packet_bytes: u32,
    /// Longest frame with a request of one packet, header included.
    plain_frame_bytes_max: u32,
    /// Largest acceptable response of one packet at the peer, in bytes.
    plain_response_bytes_max: u32,
    /// Largest request that the server accepts, in bytes.
    request_bytes_max: u32,
    /// Destination of the session's frames; [`NO_PEER`] if the session has several paths. Frames from there may
    /// come under another key (see `Origin`).
    peer: PeerKey,
    /// Largest buffer of an answer that stays in the slot for the next answer, in bytes.
    kept_answer_bytes_max: u32,
    agreed: Agreed,
    first_request: u64,
    /// True if the client may number its calls (§14.6).
    knows_order: bool,
    /// The order of the requests, once the client has numbered a request.
    order: Option<Box<RequestOrder<B>>>,
    /// The paths, if there are several.
    paths: Option<Box<ServerPaths>>,
}

impl<B> ServerSession<B> {
    pub(crate) fn new(agreed: Agreed, first_request: u64, request_bytes_max: u32) -> Self {
        assert!(
            agreed.slots.is_power_of_two(),
            "a mask finds the slot of a request: the slots are a power of two"
        );
        assert!(agreed.slots <= SLOTS_MAX, "a session has as many slots as entries can name");
        let kept_answer_bytes_max = agreed.packet_bytes.min(KEPT_ANSWER_BYTES_MAX);
        Self {
            slots: Box::default(),
            slot_mask: u32::from(agreed.slots) - 1,
            to: Destination::new(agreed.peer_session, agreed.peer_token),
            packet_bytes: agreed.packet_bytes,
            plain_frame_bytes_max: HEADER_BYTES as u32 + agreed.packet_bytes.min(request_bytes_max),
            plain_response_bytes_max: kept_answer_bytes_max.min(agreed.peer_message_bytes_max),
            request_bytes_max,
            peer: agreed.peer,
            kept_answer_bytes_max,
            agreed,
            first_request,
            knows_order: false,
            order: None,
            paths: None,
        }
    }

    /// Gives the session several paths, before its first request. The side has this number of source `ports`.
    pub(crate) fn use_paths(&mut self, ports: u8, source: PeerKey) {
        assert!(self.paths.is_none(), "a session gets its paths once");
        assert!(self.peer != NO_PEER, "a session of one path has a peer before it gets more");
        assert!(
            self.slots.iter().all(|state| state.state() == ServerState::Idle),
            "a session has its paths before its first request"
        );
        self.paths = Some(Box::new(ServerPaths::new(ports, source)));
        self.slots.iter_mut().for_each(ServerSlot::use_paths);
        self.peer = NO_PEER;
    }

    /// Returns the session's paths, if there are several.
    pub(crate) fn paths(&self) -> Option<&ServerPaths> {
        self.paths.as_deref()
    }

    /// Returns the session's slots and paths, if there are several paths, for a change.
    #[inline]
    pub(crate) fn with_paths(&mut self) -> Option<(&mut [ServerSlot<B>], &mut ServerPaths)> {
        Some((&mut self.slots, self.paths.as_deref_mut()?))
    }

    #[inline(always)]
    pub(crate) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Returns the common part of the headers of outgoing frames.
    #[inline(always)]
    pub(crate) fn to(&self) -> Destination {
        self.to
    }

    /// Returns the destination of the session's frames; [`NO_PEER`] if the session has several paths.
    #[inline(always)]
    pub(crate) fn peer(&self) -> PeerKey {
        self.peer
    }

    /// Returns the longest frame with a request of one packet, header included.
    #[inline(always)]
    pub(crate) fn plain_frame_bytes_max(&self) -> u32 {
        self.plain_frame_bytes_max
    }

    /// Returns the largest acceptable response of one packet at the peer, in bytes.
    #[inline(always)]
    pub(crate) fn plain_response_bytes_max(&self) -> u32 {
        self.plain_response_bytes_max
    }

    /// Returns the largest request that the server accepts, in bytes.
    #[inline]
    pub(crate) fn request_bytes_max(&self) -> u32 {
        self.request_bytes_max
    }

    /// Returns the largest buffer of an answer that stays in the slot for the next answer, in bytes.
    #[inline]
    pub(crate) fn kept_answer_bytes_max(&self) -> u32 {
        self.kept_answer_bytes_max
    }

    /// Returns the slots that requests have needed until now.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &[ServerSlot<B>] {
        &self.slots
    }

    /// Returns the slots that requests have needed until now, for a change.
    #[inline(always)]
    pub(crate) fn slots_mut(&mut self) -> &mut [ServerSlot<B>] {
        &mut self.slots
    }

    /// Returns a slot that a request has needed.
    #[inline(always)]
    pub(crate) fn slot_mut(&mut self, slot: usize) -> &mut ServerSlot<B> {
        &mut self.slots[slot]
    }

    /// Returns the slot of a request number. The slot may not be allocated yet.
    #[inline]
    pub(crate) fn slot_index(&self, request: u64) -> usize {
        request as usize & self.slot_mask as usize
    }

    /// Returns the stride: the number of slots agreed on.
    #[inline]
    pub(crate) fn stride(&self) -> u64 {
        u64::from(self.slot_mask) + 1
    }

    /// Returns the number of the request in a slot; before the first request, one stride below the first
    /// number.
    #[inline]
    pub(crate) fn current(&self, slot: usize) -> u64 {
        match self.slots.get(slot) {
            Some(state) => state.current(),
            None => self.number_before(slot),
        }
    }

    /// Returns the relation of a request number to its slot's current request.
    #[inline]
    pub(crate) fn age(&self, slot: usize, request: u64) -> Age {
        // The numbers are below 2^48 (or one stride below 0), and thus the wrapped difference has the right
        // sign.
        let ahead = request.wrapping_sub(self.current(slot)) as i64;
        match ahead {
            ..0 => Age::Stale,
            // A slot not allocated yet has had no request, and this number precedes its first.
            0 if slot >= self.slots.len() => Age::Stale,
            0 => Age::Current,
            _ if ahead as u64 <= FUTURE_ROUNDS_MAX * self.stride() => Age::New,
            _ => Age::Future,
        }
    }

    /// Allocates slots up to `slot`, and more at first. A client with more outstanding calls names further slots. Called
    /// for accepted requests only: no other frame makes a server allocate. Returns true for the session's first request.
    #[inline]
    pub(crate) fn make_ready(&mut self, slot: usize) -> bool {
        assert!(slot as u64 <= u64::from(self.slot_mask), "a request number names an agreed slot");
        if slot < self.slots.len() {
            return false;
        }
        let is_first = self.slots.is_empty();
        let count = (slot + 1).next_power_of_two();
        self.grow(count.max(usize::from(SLOTS_AT_FIRST).min(self.stride() as usize)));
        is_first
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, count: usize) {
        let before = self.slots.len();
        assert!(count.is_power_of_two(), "the slots of a session are a power of two");
        assert!(before < count && count <= self.stride() as usize, "no more than was agreed on");
        let mut slots = std::mem::take(&mut self.slots).into_vec();
        slots.reserve_exact(count - before);
        slots.extend((before..count).map(|slot| ServerSlot::new(self.number_before(slot))));
        if self.paths.is_some() {
            slots[before..].iter_mut().for_each(ServerSlot::use_paths);
        }
        self.slots = slots.into_boxed_slice();
    }

    /// Returns the number one stride below a slot's first number. Wraps, and is compared modulo 2⁶⁴, because
    /// the first number may be 0.
    fn number_before(&self, slot: usize) -> u64 {
        self.first_request.wrapping_sub(self.stride()).wrapping_add(slot as u64)
    }

    /// Returns the slot of a request, if the request runs and has no place in the order.
    #[inline]
    pub(crate) fn runs(&self, request: u64) -> Option<usize> {
        let slot = self.slot_index(request);
        let state = self.slots.get(slot)?;
        (state.current() == request && state.state() == ServerState::Running).then_some(slot)
    }

    /// Accepts the extension *order* from the client.
    pub(crate) fn know_order(&mut self) {
        assert!(!self.knows_order, "the two ends agree on the order once");
        assert!(
            self.slots.iter().all(|state| state.state() == ServerState::Idle),
            "a session numbers all of its requests or none"
        );
        self.knows_order = true;
    }

    /// Returns true if the client may number its calls.
    pub(crate) fn knows_order(&self) -> bool {
        self.knows_order
    }

    /// Returns the order of the requests, if the client has numbered a request.
    #[inline]
    pub(crate) fn order(&self) -> Option<&RequestOrder<B>> {
        self.order.as_deref()
    }

    /// Returns the order of the requests, which begins with the first numbered request.
    pub(crate) fn order_mut(&mut self) -> &mut RequestOrder<B> {
        assert!(self.knows_order, "a client numbers its calls if both ends have agreed");
        self.order.get_or_insert_with(|| Box::new(RequestOrder::new()))
    }

    /// Takes a request that arrives or waits out of the order, if its call has ended at the client.
    pub(crate) fn take_ended(&mut self) -> Option<(usize, u64)> {
        let Self { order: Some(order), slots, .. } = self else { return None };
        order.take_ended(|slot, number, waits| {
            let state = &slots[slot];
            state.current() == number
                && (waits || state.state() == ServerState::Arriving)
                && state.state() != ServerState::Answered
        })
    }

    /// Takes ended requests out of the order. Returns true, once for each notice, if a request that waited may run.
    pub(crate) fn settle_order(&mut self) -> bool {
        let Self { order: Some(order), slots, .. } = self else { return false };
        order.settle(|slot, number| {
            let state = &slots[slot];
            state.current() == number
                && matches!(state.state(), ServerState::Arriving | ServerState::Running)
        });
        order.note_ready()
    }
}

#[cfg(test)]
mod tests;
