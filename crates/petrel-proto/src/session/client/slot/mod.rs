//! A client slot: the place of one outstanding call (`docs/wire-protocol.md` §5.1).

mod messages;
mod timers;

use super::parts::ClientParts;
use crate::limits::{FUTURE_ROUNDS_MAX, REQUEST_NUMBER_END};
use crate::recovery::loss_timer::LossTimer;
use crate::session::backlog::{NEVER, PendingCall};
use crate::session::credits::HeldCredits;
use crate::session::fill;
use crate::timer::TimerEntry;

/// Names no slot.
pub(super) const NO_SLOT: u16 = u16::MAX;

/// State of a client slot (§5.1). RECEIVING begins with the first RESPONSE_PART.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ClientState {
    Free,
    Sending,
    Waiting,
    Receiving,
}

/// The path of a slot's call through the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SendPath {
    /// The general path.
    General,
    /// The fast path, the common case: request and response of one packet, and nothing sent yet.
    Plain,
    /// The fast path for a call with a deadline, not inherited, and nothing sent yet.
    Timed,
    /// The request was sent by a fast path, and neither side has acted since: the response may take the fast
    /// path too.
    Sent,
}

/// The kind of time limit of a slot's call; see [`Expiry`](crate::session::backlog::Expiry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Expires {
    /// No limit is set yet.
    Unset,
    /// The default timeout.
    Default,
    /// The caller's deadline, earlier than an inherited deadline in [`ClientParts`].
    Caller,
    /// The inherited deadline.
    Inherited,
}

/// The slot's entry in the timer wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum WheelEntry {
    Absent,
    /// The entry was set for a timeout or for a slower path, and would fire too late for the next call's
    /// probe.
    Late,
    /// The entry comes due soon enough for any deadline, the common case.
    Soon,
}

/// The caller's part of a call in a slot.
pub(crate) struct SlotCall<B, T> {
    pub(crate) tag: T,
    pub(crate) request: B,
    pub(crate) response: B,
}

/// The place of an outstanding request, in two cache lines, fetched as a pair by processors. State for
/// recovery and for messages of several packets is in [`ClientParts`].
///
/// Fields set together are side by side, for the compiler to merge their stores.
#[repr(C, align(128))]
pub(crate) struct ClientSlot<B, T> {
    /// The number of the request in the slot; in a free slot the next request's number.
    number: u64,
    /// The call, while the slot is in use.
    call: Option<SlotCall<B, T>>,
    parts: Option<Box<ClientParts>>,
    held: HeldCredits,
    /// Packets of the request, and packets sent at least once.
    request_packets: u32,
    request_sent: u32,
    /// Packets of the response that the server may send.
    response_limit: u32,
    timer: LossTimer,
    state: ClientState,
    path: SendPath,
    /// True while the transmit queue has an entry for this slot.
    queued: bool,
    /// Packets of the response granted by the request.
    grant: u8,
    method: u16,
    /// The kind of time limit.
    expires: Expires,
    wheel: WheelEntry,
    /// In a free slot the next free slot, or [`NO_SLOT`].
    next_free: u16,
    /// The slot's entry in the timer wheel, unless absent.
    entry: TimerEntry,
    /// Requests given up in a row without any sign from the server, and the lower half of the last number: a
    /// server follows only so far (§5.4).
    unacknowledged_rounds: u32,
    given_up: u32,
    /// The time limit of the call, unless `expires` is unset.
    expiry_ns: u64,
}

// With the buffers and continuations of an endpoint.
const _: () = assert!(size_of::<ClientSlot<Box<u8>, [u64; 3]>>() == 128);

/// The call of a slot: what it is, and how it begins and ends.
impl<B, T> ClientSlot<B, T> {
    pub(super) fn new(number: u64, next_free: u16) -> Self {
        Self {
            number,
            call: None,
            parts: None,
            held: HeldCredits::default(),
            request_packets: 0,
            request_sent: 0,
            response_limit: 0,
            timer: LossTimer::new(),
            state: ClientState::Free,
            path: SendPath::General,
            queued: false,
            grant: 1,
            method: 0,
            expires: Expires::Unset,
            wheel: WheelEntry::Absent,
            next_free,
            entry: TimerEntry::NONE,
            unacknowledged_rounds: 0,
            given_up: 0,
            expiry_ns: NEVER,
        }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> ClientState {
        self.state
    }

    #[inline(always)]
    pub(crate) fn is_free(&self) -> bool {
        self.state == ClientState::Free
    }

    /// Returns the number of the request in the slot; in a free slot the next request's number.
    #[inline(always)]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the slot behind this one among the free slots, or [`NO_SLOT`].
    #[inline(always)]
    pub(super) fn next_free(&self) -> u16 {
        self.next_free
    }

    #[inline(always)]
    pub(super) fn set_next_free(&mut self, next_free: u16) {
        self.next_free = next_free;
    }

    /// Returns the credits of the slot, for the session that lends them.
    #[inline(always)]
    pub(super) fn held_mut(&mut self) -> &mut HeldCredits {
        &mut self.held
    }

    #[inline(always)]
    pub(crate) fn method(&self) -> u16 {
        self.method
    }

    #[inline(always)]
    pub(crate) fn path(&self) -> SendPath {
        self.path
    }

    /// Returns the call, while the slot is in use.
    #[inline]
    pub(crate) fn call(&self) -> Option<&SlotCall<B, T>> {
        self.call.as_ref()
    }

    /// Returns the buffer of the request, while the slot is in use.
    #[inline(always)]
    pub(crate) fn request_mut(&mut self) -> Option<&mut B> {
        self.call.as_mut().map(|call| &mut call.request)
    }

    /// Returns the buffer of the response, while the slot is in use.
    #[inline(always)]
    pub(crate) fn response_mut(&mut self) -> Option<&mut B> {
        self.call.as_mut().map(|call| &mut call.response)
    }

    /// Returns true if the slot's call has the wanted tag.
    pub(crate) fn holds(&self, is_it: &mut impl FnMut(&T) -> bool) -> bool {
        !self.is_free() && self.call.as_ref().is_some_and(|call| is_it(&call.tag))
    }

    /// Returns true if the slot takes no further call: its request numbers are used up, or the server follows
    /// no further (§5.4).
    pub(crate) fn is_spent(&self) -> bool {
        !self.has_numbers() || self.is_too_far_ahead()
    }

    /// Returns true if the slot has a number for another request.
    #[inline(always)]
    pub(super) fn has_numbers(&self) -> bool {
        self.number < REQUEST_NUMBER_END
    }

    /// Returns true if too many requests in a row were given up for the server to accept a further request.
    pub(crate) fn is_too_far_ahead(&self) -> bool {
        u64::from(self.unacknowledged_rounds) >= FUTURE_ROUNDS_MAX
    }

    /// Prepares the slot for a call. The response's fields are set when the first packet arrives.
    #[inline(always)]
    pub(crate) fn start(&mut self, call: PendingCall<B, T>, packets: u32, path: SendPath) {
        assert!(self.is_free(), "a call begins in a free slot");
        assert!(!self.is_spent(), "a retired slot takes no call");
        assert!(self.call.is_none(), "a slot takes one call at a time");
        assert!(self.held.count() == 0, "a slot begins a call without credits");
        assert!(self.parts.is_none(), "a slot begins a call without the state of another");
        assert!(packets > 0, "a request has at least one packet");
        let PendingCall { method, tag, request, response } = call;
        self.hold(SlotCall { tag, request, response });
        self.note_begun(method, packets);
        self.note_unsent(path);
    }

    /// Takes a call in, without the checks of [`ClientSlot::start`]: the fast path has taken the slot from the
    /// free ones.
    #[inline(always)]
    pub(crate) fn hold(&mut self, call: SlotCall<B, T>) {
        fill(&mut self.call, call);
    }

    /// The other part of a call's start. Next to what follows the sending, the compiler sets most fields
    /// together.
    #[inline(always)]
    pub(crate) fn note_begun(&mut self, method: u16, packets: u32) {
        self.state = ClientState::Sending;
        self.timer.begin();
        self.grant = 1;
        self.expires = Expires::Unset;
        self.method = method;
        self.request_packets = packets;
    }

    /// Keeps a call that was not sent off the fast path.
    pub(crate) fn use_general_path(&mut self) {
        assert!(self.request_sent == 0, "the path of a request is chosen before it is sent");
        self.path = SendPath::General;
    }

    /// Notes that no packet of the request was sent.
    #[inline(always)]
    pub(crate) fn note_unsent(&mut self, path: SendPath) {
        self.path = path;
        self.timer.measure_nothing();
        self.request_sent = 0;
    }

    /// Notes that the request's only packet was sent, with a grant for one response packet.
    #[inline(always)]
    pub(crate) fn note_plain_sent(&mut self, now_ns: u64) {
        self.path = SendPath::Sent;
        self.queued = false;
        self.request_sent = 1;
        self.response_limit = 1;
        self.timer.measure(0, now_ns);
    }

    /// Ends the call. The next call gets a new number, unless the server has seen no packet of this call. The slot's
    /// credits must be returned before.
    pub(super) fn end(&mut self, stride: u64) -> SlotCall<B, T> {
        assert!(!self.is_free(), "a call ends once");
        assert!(self.held.count() == 0, "a call ends after its credits are returned");
        self.state = ClientState::Free;
        self.path = SendPath::General;
        if self.request_sent > 0 {
            self.number += stride;
        }
        let Some(call) = self.call.take() else { unreachable!("a slot in use holds its call") };
        call
    }

    /// Ends a call answered by the fast path. The call stays until taken.
    #[inline(always)]
    pub(crate) fn end_plain(&mut self, stride: u64) {
        self.state = ClientState::Free;
        self.number += stride;
    }

    /// Takes the call of a slot freed by [`ClientSlot::end_plain`].
    #[inline(always)]
    pub(crate) fn take_call(&mut self) -> SlotCall<B, T> {
        let Some(call) = self.call.take() else { unreachable!("a slot in use holds its call") };
        call
    }

    /// Takes the call of a slot whose session ends, if any.
    pub(super) fn into_call(self) -> Option<(u16, SlotCall<B, T>)> {
        self.call.map(|call| (self.method, call))
    }

    /// Notes that the request was given up, and counts requests without any sign from the server. `stride` is
    /// the distance of the slot's request numbers.
    pub(super) fn note_given_up(&mut self, stride: u64) {
        assert!(!self.is_free(), "a slot without a call gives no request up");
        assert!(self.request_sent > 0, "a request that is given up was sent");
        let is_heard = self.state != ClientState::Sending
            || self.parts().is_some_and(|parts| parts.request().acknowledged_count() > 0);
        let follows = self.given_up == self.number.wrapping_sub(stride) as u32;
        self.unacknowledged_rounds = match (is_heard, follows) {
            (true, _) => 0,
            (false, true) => self.unacknowledged_rounds + 1,
            (false, false) => 1,
        };
        self.given_up = self.number as u32;
    }

    /// Notes that the server has seen an earlier request of the slot.
    #[cold]
    pub(super) fn note_seen(&mut self, request: u64, stride: u64) {
        assert!(request < self.number, "the server has seen an earlier request of the slot");
        let later = (self.number - request) / stride - 1;
        self.unacknowledged_rounds =
            self.unacknowledged_rounds.min(u32::try_from(later).unwrap_or(u32::MAX));
    }

    /// Notes that the slot has an entry in the transmit queue. Returns false if it had one before.
    #[inline]
    pub(crate) fn enter_queue(&mut self) -> bool {
        !std::mem::replace(&mut self.queued, true)
    }

    /// Notes that the slot has an entry in the transmit queue, perhaps that of its former call.
    #[inline(always)]
    pub(crate) fn note_queued(&mut self) {
        self.queued = true;
    }

    /// Notes the end of the slot's turn: true if the transmit queue has an entry for another.
    #[inline]
    pub(crate) fn note_turn(&mut self, is_queued: bool) {
        self.queued = is_queued;
    }

    /// Returns true while the transmit queue has an entry for this slot.
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.queued
    }
}

/// States that tests of the session begin with.
#[cfg(test)]
impl<B, T> ClientSlot<B, T> {
    pub(super) fn set_state(&mut self, state: ClientState) {
        self.state = state;
    }

    pub(super) fn set_number(&mut self, number: u64) {
        self.number = number;
    }

    pub(super) fn set_unacknowledged_rounds(&mut self, rounds: u32) {
        self.unacknowledged_rounds = rounds;
    }
}

#[cfg(test)]
mod tests;
