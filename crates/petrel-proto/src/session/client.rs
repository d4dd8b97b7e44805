//! The client's half of a session (`docs/wire-protocol.md` §5).

use std::collections::VecDeque;

use super::Agreed;
use crate::bitmap::{PacketBits, Window};
use crate::limits::WINDOW_PACKETS;
use crate::recovery::rtt::RttEstimator;

/// A session in its client role.
pub(crate) struct ClientSession<B> {
    /// `None` until the peer accepted: calls wait in the backlog.
    pub(crate) agreed: Option<Agreed>,
    pub(crate) first_request: u64,
    /// Credits not held by any slot.
    pub(crate) credits: u32,
    /// Bit per slot: free for a call.
    pub(crate) free_slots: u64,
    /// Bit per slot: has packets to send, but found no credit.
    pub(crate) stalled_slots: u64,
    pub(crate) rtt: RttEstimator,
    /// Doublings that new requests begin with: kept after a timeout until a round trip is measured
    /// (RFC 6298 §5.7), or a path that became slower would never be measured again.
    pub(crate) backoff: u8,
    pub(crate) slots: Box<[ClientSlot<B>]>,
    /// Calls that found no free slot.
    pub(crate) backlog: VecDeque<PendingCall<B>>,
}

/// A call as the application gave it.
pub(crate) struct PendingCall<B> {
    pub(crate) method: u16,
    pub(crate) tag: u64,
    pub(crate) request: B,
    pub(crate) response: B,
}

impl<B> ClientSession<B> {
    pub(crate) fn opening(first_request: u64) -> Self {
        Self {
            agreed: None,
            first_request,
            credits: 0,
            free_slots: 0,
            stalled_slots: 0,
            rtt: RttEstimator::new(),
            backoff: 0,
            slots: Box::default(),
            backlog: VecDeque::new(),
        }
    }

    /// Takes what the peer agreed to; from now on calls go out.
    pub(crate) fn establish(&mut self, agreed: Agreed) {
        let slots = u64::from(agreed.slots);
        self.slots = (0..slots).map(|slot| ClientSlot::new(self.first_request + slot)).collect();
        self.free_slots = u64::MAX >> (64 - slots);
        self.credits = u32::from(agreed.credits);
        self.agreed = Some(agreed);
    }

    /// Slots in use, and calls in the queue.
    pub(crate) fn pending_calls(&self) -> usize {
        self.slots.len() - self.free_slots.count_ones() as usize + self.backlog.len()
    }
}

/// State of a client slot (§5.1). RECEIVING begins with the first RESPONSE_PART.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    Free,
    Sending,
    Waiting,
    Receiving,
}

/// No packet is being measured.
pub(crate) const NOT_TIMED: u32 = u32::MAX;

/// A place for one outstanding request.
pub(crate) struct ClientSlot<B> {
    /// The number of the request in the slot, or of the next one when it is free.
    pub(crate) number: u64,
    pub(crate) state: ClientState,
    /// Whether the transmit queue has an entry for this slot.
    pub(crate) queued: bool,
    /// Whether the timer wheel has an entry for this slot.
    pub(crate) in_wheel: bool,
    /// Whether something of this request was sent twice: no round trip is measured then (Karn).
    pub(crate) repeated: bool,
    /// Whether to send a PULL at the next opportunity, whatever it allows.
    pub(crate) pull_due: bool,
    /// Doublings of the timeout since the last frame taken.
    pub(crate) backoff: u8,
    /// Timeouts since the last frame taken.
    pub(crate) unanswered: u8,
    /// Packets of the response that the request allows.
    pub(crate) grant: u8,
    pub(crate) method: u16,
    pub(crate) tag: u64,
    /// When the timer fires, in nanoseconds.
    pub(crate) deadline_ns: u64,
    /// When the packet being measured was sent.
    pub(crate) timed_ns: u64,
    /// The packet whose round trip is being measured, or [`NOT_TIMED`].
    pub(crate) timed_packet: u32,
    /// Credits held.
    pub(crate) held: u32,

    /// Packets of the request, and how many were sent at least once.
    pub(crate) request_packets: u32,
    pub(crate) request_sent: u32,
    /// Packets that the server has.
    pub(crate) acknowledged: Window,
    /// Packets to send again.
    pub(crate) lost: PacketBits,

    /// Packets of the response, once known; their bytes; how many are allowed; and which came.
    pub(crate) response_packets: u32,
    pub(crate) response_size: u32,
    pub(crate) response_limit: u32,
    pub(crate) received: Window,
    /// Packets below this were asked for again already, by evidence.
    pub(crate) asked_below: u32,
    /// What the next PULL asks for again.
    pub(crate) resend_below: u32,

    pub(crate) request: Option<B>,
    pub(crate) response: Option<B>,
    /// Order of transmissions, for requests of several packets. Kept for the next one.
    pub(crate) order: Option<Box<SendOrder>>,
}

impl<B> ClientSlot<B> {
    fn new(number: u64) -> Self {
        Self {
            number,
            state: ClientState::Free,
            queued: false,
            in_wheel: false,
            repeated: false,
            pull_due: false,
            backoff: 0,
            unanswered: 0,
            grant: 1,
            method: 0,
            tag: 0,
            deadline_ns: 0,
            timed_ns: 0,
            timed_packet: NOT_TIMED,
            held: 0,
            request_packets: 0,
            request_sent: 0,
            acknowledged: Window::new(),
            lost: PacketBits::new(),
            response_packets: 0,
            response_size: 0,
            response_limit: 0,
            received: Window::new(),
            asked_below: 0,
            resend_below: 0,
            request: None,
            response: None,
            order: None,
        }
    }

    /// Readies the slot for a call. The response's fields are set when its first packet comes.
    pub(crate) fn start(&mut self, call: PendingCall<B>, packets: u32) {
        self.state = ClientState::Sending;
        self.repeated = false;
        self.pull_due = false;
        self.backoff = 0;
        self.unanswered = 0;
        self.grant = 1;
        self.method = call.method;
        self.tag = call.tag;
        self.timed_packet = NOT_TIMED;
        self.request_packets = packets;
        self.request_sent = 0;
        self.acknowledged = Window::new();
        self.lost = PacketBits::new();
        self.response_limit = 0;
        self.request = Some(call.request);
        self.response = Some(call.response);
        if packets > 1 {
            self.order.get_or_insert_default().sent = 0;
        }
    }

    /// Enters RECEIVING with what the first packet of the response says.
    pub(crate) fn begin_receiving(&mut self, size: u32, packets: u32) {
        self.state = ClientState::Receiving;
        self.response_size = size;
        self.response_packets = packets;
        self.received = Window::new();
        self.asked_below = 0;
        self.resend_below = 0;
    }

    /// Notes that a frame for this slot was taken and brought it forward.
    #[inline]
    pub(crate) fn heard(&mut self) {
        self.unanswered = 0;
        self.backoff = 0;
    }

    /// Ends a measurement: the round trip, if the packet was sent once only (Karn).
    #[inline]
    pub(crate) fn take_round_trip(&mut self, now_ns: u64) -> Option<u64> {
        let timed = core::mem::replace(&mut self.timed_packet, NOT_TIMED) != NOT_TIMED;
        (timed && !self.repeated).then(|| now_ns.saturating_sub(self.timed_ns))
    }
}

/// In which order the packets of a request were last sent.
pub(crate) struct SendOrder {
    /// Transmissions so far.
    pub(crate) sent: u32,
    /// Number of the last transmission of each packet, by packet modulo the window.
    last: [u32; WINDOW_PACKETS as usize],
    /// The same for the first time that it was repeated.
    first_repeat: [u32; WINDOW_PACKETS as usize],
    /// Packets sent more than once.
    repeated: PacketBits,
}

impl Default for SendOrder {
    fn default() -> Self {
        let none = [0; WINDOW_PACKETS as usize];
        Self { sent: 0, last: none, first_repeat: none, repeated: PacketBits::new() }
    }
}

impl SendOrder {
    #[inline]
    pub(crate) fn note(&mut self, packet: u32, is_repeat: bool) {
        let place = (packet % WINDOW_PACKETS) as usize;
        self.sent += 1;
        self.last[place] = self.sent;
        if !is_repeat {
            self.repeated.clear(packet);
        } else if self.repeated.set_new(packet) {
            self.first_repeat[place] = self.sent;
        }
    }

    /// Forgets the latest transmission, the first of its packet.
    pub(crate) fn take_back(&mut self) {
        self.sent -= 1;
    }

    /// The earliest transmission of `packet` that can be the one that has arrived, a repetition or
    /// not (§5.2). `None` if it was so long ago that another packet has its place here, and for the
    /// first transmission of a packet that was repeated since.
    ///
    /// Were one copy taken for a later one, everything sent between the two would seem lost and be
    /// sent again; then the first copies of those arrive, and so on to the message's end.
    #[inline]
    pub(crate) fn arrived(&self, packet: u32, is_repeat: bool, first_sent: u32) -> Option<u32> {
        let place = (packet % WINDOW_PACKETS) as usize;
        if first_sent > packet + WINDOW_PACKETS {
            return None;
        }
        match (is_repeat, self.repeated.is_set(packet)) {
            (false, false) => Some(self.last[place]),
            (true, true) => Some(self.first_repeat[place]),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn of(&self, packet: u32) -> u32 {
        self.last[(packet % WINDOW_PACKETS) as usize]
    }
}
