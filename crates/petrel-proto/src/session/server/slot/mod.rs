//! A server slot: the place of one request and its answer (`docs/wire-protocol.md` §6.1).

mod answer;
mod arrival;

use super::parts::ServerParts;
use crate::session::free_list::FreeList;
use crate::session::held::{Held, HoldingId};
use crate::status::Status;
use crate::wire::{ANSWERED_LATER, Flags, REFUSED};

/// State of a server slot (§6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerState {
    Idle,
    Arriving,
    Running,
    Answered,
}

/// The server's state of an outstanding request, in a single cache line. State for recovery and for messages
/// of several packets is in [`ServerParts`].
///
/// Fields set together are side by side, for the compiler to merge their stores.
#[repr(C, align(64))]
pub(crate) struct ServerSlot<B> {
    /// Number of the request in the slot; never decreases.
    current: u64,
    /// The answer's message in ANSWERED, unless a refusal is the answer. Afterwards a small message stays for
    /// the next answer: the preallocated response of eRPC §4.3.
    message: Option<B>,
    parts: Option<Box<ServerParts<B>>>,
    /// Packets of the request, the packet that arrived last, and the request's bytes.
    request_packets: u32,
    echo: u32,
    request_size: u32,
    /// Packets of the response: allowed, total, and sent at least once.
    response_limit: u32,
    response_packets: u32,
    response_sent: u32,
    state: ServerState,
    /// True if the answer is a message of one packet, not sent yet: the fast path's case.
    is_plain: bool,
    /// Set to send a CREDIT.
    credit_due: bool,
    /// True if the packet that arrived last was a repetition.
    echo_repeats: bool,
    method: u16,
    /// The answer's status.
    status: Status,
    /// True if the slot is ready for a new request by the fast path: no [`ServerParts`], and no message or a
    /// small one. False if not checked yet.
    takes_plain: bool,
    /// True while the transmit queue has an entry for this slot.
    queued: bool,
    /// [`MARKED`], [`BY_PATHS`].
    bits: u8,
    /// Bits of the answer's aux field beside the status. In RUNNING: [`WATCHED`], [`ORDERED`] and [`ASKED`] count.
    answer_bits: u16,
    /// The account of the memory held by a half-arrived request or a large answer.
    held: HoldingId,
}

/// A bit in [`ServerSlot::answer_bits`] of a running request: the handler asked for a notice of a
/// cancellation by the client. The answer's bits replace this bit.
const WATCHED: u16 = 1 << 15;

/// A bit in [`ServerSlot::answer_bits`] of a running request: the request has a place in the order.
const ORDERED: u16 = 1 << 14;

/// A bit in [`ServerSlot::answer_bits`] of a running request: the next CREDIT has flag W, whatever was granted.
const ASKED: u16 = 1 << 13;

/// A bit in [`ServerSlot::bits`]: a frame of the request had an ECN mark not yet echoed to the client.
const MARKED: u8 = 1;

/// A bit in [`ServerSlot::bits`]: the session has several paths, of which each answer takes one.
const BY_PATHS: u8 = 2;

const _: () = assert!((WATCHED | ORDERED | ASKED) & (ANSWERED_LATER | REFUSED) == 0);

const _: () = assert!(size_of::<ServerSlot<Box<u8>>>() == 64);

impl<B> ServerSlot<B> {
    pub(super) fn new(current: u64) -> Self {
        Self {
            current,
            message: None,
            parts: None,
            request_size: 0,
            request_packets: 0,
            echo: 0,
            response_packets: 0,
            response_sent: 0,
            response_limit: 0,
            method: 0,
            state: ServerState::Idle,
            status: Status::Ok,
            takes_plain: true,
            bits: 0,
            answer_bits: 0,
            is_plain: false,
            queued: false,
            credit_due: false,
            echo_repeats: false,
            held: HoldingId::NONE,
        }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> ServerState {
        self.state
    }

    /// Returns the number of the request in the slot.
    #[inline(always)]
    pub(crate) fn current(&self) -> u64 {
        self.current
    }

    #[inline(always)]
    pub(crate) fn method(&self) -> u16 {
        self.method
    }

    /// Returns the answer's message, or the message kept for the next answer.
    #[inline(always)]
    pub(crate) fn message(&self) -> Option<&B> {
        self.message.as_ref()
    }

    /// Returns the answer's message, for its headers.
    #[inline(always)]
    pub(crate) fn message_mut(&mut self) -> Option<&mut B> {
        self.message.as_mut()
    }

    /// Takes the message kept for the next answer.
    #[inline(always)]
    pub(crate) fn take_message(&mut self) -> Option<B> {
        self.message.take()
    }

    /// Notes that the slot has an entry in the transmit queue. Returns false if it had one before.
    #[inline]
    pub(crate) fn enter_queue(&mut self) -> bool {
        !std::mem::replace(&mut self.queued, true)
    }

    /// Notes the end of the slot's turn: true if the transmit queue has an entry for another.
    #[inline]
    pub(crate) fn note_turn(&mut self, is_queued: bool) {
        self.queued = is_queued;
    }

    /// Returns true while the transmit queue has an entry for this slot.
    #[inline(always)]
    pub(crate) fn is_queued(&self) -> bool {
        self.queued
    }

    /// Notes that the session has several paths.
    pub(super) fn use_paths(&mut self) {
        self.bits |= BY_PATHS;
    }

    /// Returns true if the slot is ready for a new request, and a running request for its answer, by the fast
    /// path.
    #[inline(always)]
    pub(crate) fn takes_plain(&self) -> bool {
        self.takes_plain
    }

    /// Stores the account of an arriving request.
    pub(crate) fn hold(&mut self, id: HoldingId) {
        assert!(self.state == ServerState::Arriving, "a request is charged while it arrives");
        assert!(!self.held.is_some(), "a slot has one account at a time");
        self.held = id;
    }

    /// Returns true if the slot holds memory for a half-arrived request or a large answer.
    #[inline(always)]
    pub(crate) fn has_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the slot's account, or [`HoldingId::NONE`].
    #[inline]
    pub(crate) fn holding(&self) -> HoldingId {
        self.held
    }

    #[inline]
    pub(crate) fn release_holding(&mut self, held: &mut Held) {
        if self.held.is_some() {
            held.remove(&mut self.held);
        }
    }

    /// Returns true if packets of the arriving request have had an effect.
    pub(crate) fn has_effect(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.has_effect())
    }

    /// Frees the buffer of a request whose packets arrive.
    pub(crate) fn drop_request(&mut self) {
        assert!(!self.held.is_some(), "a buffer is freed after its memory is released");
        if let Some(parts) = &mut self.parts {
            parts.drop_request();
        }
    }

    /// Frees the buffer of the request, and returns the box of the state to the free list.
    #[inline]
    fn release_parts(&mut self, spare: &mut FreeList<ServerParts<B>>) {
        if let Some(parts) = &mut self.parts {
            parts.drop_request();
        }
        spare.take_back(&mut self.parts);
    }

    /// Returns the state for messages of several packets, allocated on first use.
    #[inline]
    fn parts_mut(&mut self, spare: &mut FreeList<ServerParts<B>>) -> &mut ServerParts<B> {
        self.takes_plain = false;
        self.parts.get_or_insert_with(|| spare.take())
    }

    /// Returns true if the slot has a box for messages of several packets; the second is true if a request
    /// arrives in it.
    pub(crate) fn boxes(&self) -> (bool, bool) {
        (self.parts.is_some(), self.parts.as_ref().is_some_and(|parts| parts.has_request()))
    }

    /// Notes the ECN mark of a frame of the request.
    #[inline]
    pub(crate) fn note_mark(&mut self, flags: Flags) {
        self.bits |= u8::from(flags.congestion()) * MARKED;
    }

    /// Returns the flags of the next frame to the client, with a pending ECN echo.
    #[inline]
    pub(crate) fn echo_flags(&self, flags: Flags) -> Flags {
        if self.bits & MARKED != 0 { flags.with(Flags::CONGESTION) } else { flags }
    }
}

#[cfg(test)]
mod tests;
