//! The server's half of a session (`docs/wire-protocol.md` §6).

use super::backlog::NEVER;
use super::free_list::{FreeList, Reusable};
use super::held::HoldingId;
use super::{Agreed, PeerKey, fill};
use crate::bitmap::{PacketBits, Window};
use crate::limits::{HEADER_BYTES, KEPT_ANSWER_BYTES_MAX, SLOTS_AT_FIRST};
use crate::status::Status;
use crate::wire::{ANSWERED_LATER, Destination, Flags, REFUSED};

/// A session in the server role. Fields for small requests come first, in this order, and end with the first
/// cache line of their [`Entry`](super::Entry).
#[repr(C)]
pub(crate) struct ServerSession<B> {
    /// The slots that requests have needed until now: see [`ServerSession::make_ready`].
    pub(crate) slots: Box<[ServerSlot<B>]>,
    /// The agreed number of slots, a power of two, less one: masks a request number to a slot.
    pub(crate) slot_mask: u32,
    /// The common part of the headers of outgoing frames.
    pub(crate) to: Destination,
    /// Payload bytes of a full packet, as agreed.
    pub(crate) packet_bytes: u32,
    /// Longest frame with a request of one packet, header included.
    pub(crate) plain_frame_bytes_max: u32,
    /// Largest acceptable response of one packet at the peer, in bytes.
    pub(crate) plain_response_bytes_max: u32,
    /// Largest request that the server accepts, in bytes.
    pub(crate) request_bytes_max: u32,
    /// Destination of the session's frames. Frames from there may come under another key (see `Origin`).
    pub(crate) peer: PeerKey,
    /// Largest buffer of an answer that stays in the slot for the next answer, in bytes.
    pub(crate) kept_answer_bytes_max: u32,
    pub(crate) agreed: Agreed,
    first_request: u64,
}

impl<B> ServerSession<B> {
    pub(crate) fn new(agreed: Agreed, first_request: u64, request_bytes_max: u32) -> Self {
        assert!(
            agreed.slots.is_power_of_two(),
            "a mask finds the slot of a request: the slots are a power of two"
        );
        let kept_answer_bytes_max = agreed.packet_bytes.min(KEPT_ANSWER_BYTES_MAX);
        let mut session = Self {
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
        };
        session.grow(usize::from(agreed.slots.min(SLOTS_AT_FIRST)));
        session
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
            Some(state) => state.current,
            None => self.number_before(slot),
        }
    }

    /// Allocates slots up to this one. A client with more outstanding calls names further slots. Called for
    /// accepted requests only, so no other frame makes a server allocate.
    #[inline]
    pub(crate) fn make_ready(&mut self, slot: usize) {
        if slot >= self.slots.len() {
            self.grow((slot + 1).next_power_of_two());
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, count: usize) {
        let before = self.slots.len();
        assert!(before < count && count <= self.stride() as usize, "no more than was agreed on");
        let mut slots = std::mem::take(&mut self.slots).into_vec();
        slots.reserve_exact(count - before);
        slots.extend((before..count).map(|slot| ServerSlot::new(self.number_before(slot))));
        self.slots = slots.into_boxed_slice();
    }

    /// Returns the number one stride below a slot's first number. Wraps, and is compared modulo 2⁶⁴, because
    /// the first number may be 0.
    fn number_before(&self, slot: usize) -> u64 {
        self.first_request.wrapping_sub(self.stride()).wrapping_add(slot as u64)
    }

    /// Returns the slot of a request, if the request runs.
    #[inline]
    pub(crate) fn runs(&self, request: u64) -> Option<usize> {
        let slot = self.slot_index(request);
        let state = self.slots.get(slot)?;
        (state.current == request && state.state == ServerState::Running).then_some(slot)
    }
}

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
    pub(crate) current: u64,
    /// The answer's message in ANSWERED, unless [`ServerParts::refusal`] is the answer. Afterwards a small
    /// message stays for the next answer: the preallocated response of eRPC §4.3.
    pub(crate) message: Option<B>,
    pub(crate) parts: Option<Box<ServerParts<B>>>,
    /// Packets of the request, the packet that arrived last, and the request's bytes.
    pub(crate) request_packets: u32,
    pub(crate) echo: u32,
    pub(crate) request_size: u32,
    /// Packets of the response: allowed, total, and sent at least once.
    pub(crate) response_limit: u32,
    pub(crate) response_packets: u32,
    response_sent: u32,
    state: ServerState,
    /// True if the answer is a message of one packet, not sent yet: the fast path's case.
    pub(crate) is_plain: bool,
    /// Set to send a CREDIT.
    pub(crate) credit_due: bool,
    /// True if the packet that arrived last was a repetition.
    pub(crate) echo_repeats: bool,
    pub(crate) method: u16,
    /// The answer's status.
    pub(crate) status: Status,
    /// True if the slot is ready for a new request by the fast path: no [`ServerParts`], and no message or a
    /// small one. False if not checked yet.
    pub(crate) takes_plain: bool,
    /// True while the transmit queue has an entry for this slot.
    pub(crate) queued: bool,
    /// True if a frame of the request had an ECN mark not yet echoed to the client.
    pub(crate) marked: bool,
    /// Bits of the answer's aux field beside the status. In RUNNING: 0 or [`WATCHED`].
    pub(crate) answer_bits: u16,
    /// The account of the memory held by a half-arrived request or a large answer.
    pub(crate) held: HoldingId,
}

/// A bit in [`ServerSlot::answer_bits`] of a running request: the handler asked for a notice of a
/// cancellation by the client. The answer's bits replace this bit.
const WATCHED: u16 = 1 << 15;

const _: () = assert!(WATCHED & (ANSWERED_LATER | REFUSED) == 0);

/// State of a slot for recovery and for messages of several packets.
pub(crate) struct ServerParts<B> {
    /// Packets of the request that have arrived.
    pub(crate) arrived: Window,
    /// The request while its packets arrive.
    pub(crate) request: Option<B>,
    /// The request's deadline, as known so far; or [`NEVER`].
    pub(crate) deadline_ns: u64,
    /// Packets of the response to send again.
    pub(crate) resend: PacketBits,
    /// The client has all packets below this index, and no PULL makes the server repeat them.
    pub(crate) resend_from: u32,
    /// The text of an error that the core itself answers. No buffer is needed: the pool may be empty.
    pub(crate) refusal: Option<&'static str>,
}

impl<B> Reusable for ServerParts<B> {
    fn fresh() -> Self {
        Self {
            arrived: Window::new(),
            request: None,
            deadline_ns: NEVER,
            resend: PacketBits::new(),
            resend_from: 0,
            refusal: None,
        }
    }

    fn reset(&mut self) {
        *self = Self::fresh();
    }
}

impl<B> ServerParts<B> {
    /// Takes the request, of which all `packets` have arrived.
    pub(crate) fn take_whole(&mut self, packets: u32) -> Option<B> {
        assert!(
            self.arrived.cumulative() == packets && self.arrived.end() == packets,
            "a request is handed over when exactly its packets have arrived"
        );
        self.request.take()
    }
}

impl<B> ServerSlot<B> {
    fn new(current: u64) -> Self {
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
            marked: false,
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

    /// Returns how many packets of the response were sent at least once.
    #[inline]
    pub(crate) fn response_sent(&self) -> u32 {
        self.response_sent
    }

    /// Begins a new request in ARRIVING, and frees the slot's former content, except a message.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        number: u64,
        method: u16,
        size: u32,
        packets: u32,
        spare: &mut FreeList<ServerParts<B>>,
    ) {
        assert!(
            !self.held.is_some(),
            "a new request begins after the memory of the former is released"
        );
        assert!(
            number.wrapping_sub(self.current) as i64 > 0,
            "the request number of a slot only grows"
        );
        assert!(packets > 0, "a request has at least one packet");
        if let Some(parts) = &mut self.parts {
            parts.request = None;
        }
        spare.take_back(&mut self.parts);
        self.state = ServerState::Arriving;
        self.current = number;
        self.method = method;
        self.takes_plain = false;
        self.marked = false;
        self.is_plain = false;
        self.answer_bits = 0;
        self.credit_due = false;
        self.request_size = size;
        self.request_packets = packets;
        self.echo = 0;
        self.echo_repeats = false;
        self.response_limit = 1;
    }

    /// Begins a new request of one packet in RUNNING, without any peculiarity: the fast path's case.
    #[inline(always)]
    pub(crate) fn begin_plain(&mut self, number: u64, method: u16, size: u32) {
        assert!(!self.held.is_some(), "a slot for plain requests holds no memory");
        self.current = number;
        self.request_packets = 1;
        self.echo = 0;
        self.request_size = size;
        self.response_limit = 1;
        self.state = ServerState::Running;
        self.is_plain = false;
        self.credit_due = false;
        self.echo_repeats = false;
        self.method = method;
    }

    /// Starts RUNNING: the caller calls the handler.
    #[inline]
    pub(crate) fn run(&mut self) {
        assert!(
            self.state == ServerState::Arriving,
            "a handler is called once for a request, on the step from ARRIVING to RUNNING"
        );
        assert!(!self.held.is_some(), "a running request is not charged for its arrival");
        assert!(self.parts.is_none(), "a request runs without the state of its arrival");
        self.state = ServerState::Running;
    }

    /// Notes a packet of the request, in ARRIVING the last arrival, in RUNNING a repetition. A CREDIT
    /// acknowledges the packet.
    #[inline]
    pub(crate) fn note_packet(&mut self, packet: u32, repeats: bool) {
        assert!(
            matches!(self.state, ServerState::Arriving | ServerState::Running),
            "a CREDIT is due for a request without an answer"
        );
        assert!(packet < self.request_packets, "a CREDIT names a packet of the request");
        self.credit_due = true;
        self.echo = packet;
        self.echo_repeats = repeats;
    }

    /// Frees the slot's content for a request about to begin.
    pub(crate) fn empty(&mut self) {
        assert!(!self.held.is_some(), "a slot frees its content after its memory is released");
        self.message = None;
        if let Some(parts) = &mut self.parts {
            parts.request = None;
        }
    }

    /// Notes that the client asks for the answer of a running request. The next CREDIT acknowledges the
    /// request, and the answer begins with one packet, whatever was granted (§6.3).
    pub(crate) fn note_asked(&mut self) {
        if self.state == ServerState::Running {
            self.response_limit = 1;
        }
    }

    /// Returns true if the client may take the request's credits back (flag W): the answer begins with one
    /// packet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == ServerState::Running && self.response_limit <= 1
    }

    /// Stores the answer of a running request, to be sent from the first packet on. The slot has no message:
    /// the handler was given the kept one.
    #[inline]
    pub(crate) fn set_answer(&mut self, status: Status, bits: u16, message: B, packets: u32) {
        assert!(self.state == ServerState::Running, "a handler answers a running request");
        assert!(self.message.is_none(), "an answer overwrites no other answer");
        assert!(packets > 0, "an answer has at least one packet");
        self.begin_answer(status, bits, packets);
        self.is_plain = packets == 1 && !self.marked;
        fill(&mut self.message, message);
    }

    /// Stores an answer of `packets` packets without a message.
    pub(crate) fn set_error_answer(&mut self, status: Status, bits: u16, packets: u32) {
        assert!(
            matches!(self.state, ServerState::Arriving | ServerState::Running)
                || self.is_answer_gone(),
            "an error answers a request that has no answer"
        );
        assert!(!self.held.is_some(), "an error answer holds no memory");
        self.begin_answer(status, bits, packets);
        self.message = None;
    }

    #[inline(always)]
    fn begin_answer(&mut self, status: Status, bits: u16, packets: u32) {
        self.state = ServerState::Answered;
        self.credit_due = false;
        self.status = status;
        self.answer_bits = bits;
        self.response_packets = packets;
        self.response_sent = 0;
    }

    /// Returns true if the answer is an error of the core itself.
    pub(crate) fn is_error_answer(&self) -> bool {
        let is_refusal = |parts: &ServerParts<B>| parts.refusal.is_some();
        self.state == ServerState::Answered && self.parts.as_deref().is_some_and(is_refusal)
    }

    /// Begins a request that the client has given up, or ends the current one, and frees the slot's content.
    /// Nothing is sent for the request.
    pub(crate) fn give_up(&mut self, number: u64, spare: &mut FreeList<ServerParts<B>>) {
        assert!(!self.held.is_some(), "a request is given up after its memory is released");
        assert!(
            number.wrapping_sub(self.current) as i64 >= 0,
            "a request before the current one is not given up"
        );
        if let Some(parts) = &mut self.parts {
            parts.request = None;
        }
        spare.take_back(&mut self.parts);
        self.current = number;
        self.begin_answer(Status::Cancelled, 0, 0);
        self.message = None;
        self.response_limit = 0;
        self.marked = false;
        self.takes_plain = true;
    }

    /// Returns true if the client waits for nothing: the request was given up before the answer, or the
    /// client has the whole answer.
    pub(crate) fn is_given_up(&self) -> bool {
        self.state == ServerState::Answered && self.response_packets == 0
    }

    /// Frees a large answer that the client has or no longer wants. Nothing is sent for the request from now
    /// on.
    pub(crate) fn release_answer(&mut self, spare: &mut FreeList<ServerParts<B>>) {
        assert_eq!(self.state, ServerState::Answered, "only an answer can be released");
        self.give_up(self.current, spare);
    }

    /// Frees a large answer that the client may still ask for. The reply to the client is then that the
    /// answer is gone.
    pub(crate) fn drop_answer(&mut self, spare: &mut FreeList<ServerParts<B>>) {
        self.release_answer(spare);
        self.status = Status::DataLoss;
        // As if sent already.
        self.response_packets = 1;
        self.response_sent = 1;
        self.response_limit = 1;
        assert!(self.is_answer_gone());
    }

    /// Returns true if the answer was freed and the client does not know.
    pub(crate) fn is_answer_gone(&self) -> bool {
        let is_bare = self.message.is_none() && self.parts.is_none();
        self.state == ServerState::Answered && self.response_packets > 0 && is_bare
    }

    /// Notes that the answer was sent whole at once. The answer stays for repetitions.
    #[inline(always)]
    pub(crate) fn set_sent_answer(&mut self, message: B) {
        assert!(self.message.is_none(), "a plain answer overwrites no other answer");
        self.answer_bits = 0;
        self.state = ServerState::Answered;
        self.is_plain = false;
        self.credit_due = false;
        self.echo_repeats = false;
        self.status = Status::Ok;
        self.response_packets = 1;
        self.response_sent = 1;
        fill(&mut self.message, message);
    }

    /// Notes that the next packet of the answer was sent.
    #[inline]
    pub(crate) fn note_sent(&mut self) {
        assert!(self.state == ServerState::Answered, "a packet of an answer is sent in ANSWERED");
        assert!(
            self.response_sent < self.response_packets,
            "no packet is sent beyond the end of an answer"
        );
        assert!(
            self.response_sent < self.response_limit,
            "no packet of an answer is sent before the client allows it"
        );
        self.is_plain = false;
        self.response_sent += 1;
    }

    /// Notes that an answer of one packet was sent by the fast path.
    #[inline(always)]
    pub(crate) fn note_plain_sent(&mut self) {
        self.is_plain = false;
        self.queued = false;
        self.response_sent = 1;
    }

    /// Notes that a packet of the answer was sent again.
    #[inline]
    pub(crate) fn note_repeated(&mut self, packet: u32, spare: &mut FreeList<ServerParts<B>>) {
        assert!(
            packet < self.response_sent,
            "only a packet of an answer that was sent is repeated"
        );
        self.parts(spare).resend.clear(packet);
    }

    /// Stores the account of a large answer or of an arriving request.
    pub(crate) fn hold(&mut self, id: HoldingId) {
        assert!(!self.held.is_some(), "a slot has one account at a time");
        self.held = id;
    }

    /// Returns the state for messages of several packets, allocated on first use.
    #[inline]
    pub(crate) fn parts(&mut self, spare: &mut FreeList<ServerParts<B>>) -> &mut ServerParts<B> {
        self.takes_plain = false;
        self.parts.get_or_insert_with(|| spare.take())
    }

    /// Returns the aux field of the answer.
    #[inline(always)]
    pub(crate) fn answer_aux(&self) -> u16 {
        u16::from(self.status.code()) | self.answer_bits
    }

    /// Requests a notice if the client gives the request up before the answer.
    pub(crate) fn watch(&mut self) {
        assert!(self.state == ServerState::Running, "only a running request is watched");
        self.answer_bits = WATCHED;
        // The slot's next request must not bypass the notice.
        self.takes_plain = false;
    }

    /// Returns true if the request runs and its handler asked for a notice.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.state == ServerState::Running && self.answer_bits & WATCHED != 0
    }

    /// Notes the ECN mark of a frame of the request.
    #[inline]
    pub(crate) fn note_mark(&mut self, flags: Flags) {
        self.marked |= flags.congestion();
    }

    /// Returns the flags of the next frame to the client, with a pending ECN echo.
    #[inline]
    pub(crate) fn echo_flags(&self, flags: Flags) -> Flags {
        if self.marked { flags.with(Flags::CONGESTION) } else { flags }
    }

    /// Returns the next packet of the answer to send again.
    #[inline]
    pub(crate) fn first_to_resend(&self) -> Option<u32> {
        let parts = self.parts.as_ref()?;
        parts.resend.first_from(parts.resend_from)
    }
}

const _: () = assert!(size_of::<ServerSlot<Box<u8>>>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bound is the least of the values behind it.
    #[test]
    fn new__takes_all_that_was_agreed() {
        let (spare, header) = (KEPT_ANSWER_BYTES_MAX, HEADER_BYTES as u32);
        for (packet_bytes, request_bytes_max, answer_bytes_max) in [
            (1_200, 8 << 20, 8 << 20),
            (1_200, 1_199, 1_199),
            (1_200, 1_201, 1_201),
            (spare - 1, 8 << 20, 8 << 20),
            (spare, 8 << 20, 8 << 20),
            (spare + 1, 8 << 20, 8 << 20),
            (spare + 1, 8 << 20, spare - 1),
            (1_200, 0, 0),
        ] {
            let agreed = Agreed {
                peer: PeerKey(1),
                peer_session: 2,
                peer_token: 3,
                slots: 32,
                credits: 8,
                packet_bytes,
                peer_message_bytes_max: answer_bytes_max,
            };
            let session: ServerSession<Vec<u8>> = ServerSession::new(agreed, 64, request_bytes_max);
            let what = format!("{packet_bytes} {request_bytes_max} {answer_bytes_max}");
            assert_eq!((session.agreed, session.peer), (agreed, PeerKey(1)));
            assert_eq!(session.to, Destination::new(2, 3));
            assert_eq!((session.stride(), session.first_request), (32, 64));
            assert_eq!(session.slots.len(), usize::from(SLOTS_AT_FIRST));
            let (packet, request) = (session.packet_bytes, session.request_bytes_max);
            assert_eq!((packet, request), (packet_bytes, request_bytes_max), "{what}");
            let plain = session.plain_frame_bytes_max;
            assert_eq!(plain, header + packet_bytes.min(request_bytes_max), "{what}");
            assert_eq!(session.kept_answer_bytes_max, packet_bytes.min(spare), "{what}");
            let plain = session.plain_response_bytes_max;
            assert_eq!(plain, packet_bytes.min(spare).min(answer_bytes_max), "{what}");
        }
    }

    /// All fields of a slot, except owned memory.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Said {
        current: u64,
        /// Bytes, packets, and method.
        request: (u32, u32, u16),
        echo: (u32, bool),
        /// Packets allowed, in total, and sent.
        response: (u32, u32, u32),
        state: ServerState,
        answer: (Status, u16),
        is_plain: bool,
        takes_plain: bool,
        credit_due: bool,
        queued: bool,
        marked: bool,
    }

    impl Said {
        fn by(slot: &ServerSlot<Vec<u8>>) -> Self {
            Self {
                current: slot.current,
                request: (slot.request_size, slot.request_packets, slot.method),
                echo: (slot.echo, slot.echo_repeats),
                response: (slot.response_limit, slot.response_packets, slot.response_sent),
                state: slot.state,
                answer: (slot.status, slot.answer_bits),
                is_plain: slot.is_plain,
                takes_plain: slot.takes_plain,
                credit_due: slot.credit_due,
                queued: slot.queued,
                marked: slot.marked,
            }
        }
    }

    const NEW: Said = Said {
        current: 5,
        request: (0, 0, 0),
        echo: (0, false),
        response: (0, 0, 0),
        state: ServerState::Idle,
        answer: (Status::Ok, 0),
        is_plain: false,
        takes_plain: true,
        credit_due: false,
        queued: false,
        marked: false,
    };

    /// A slot with all fields used.
    const USED: Said = Said {
        current: 5,
        request: (3_000, 3, 4),
        echo: (2, true),
        response: (9, 8, 7),
        state: ServerState::Answered,
        answer: (Status::Internal, WATCHED | ANSWERED_LATER),
        is_plain: true,
        takes_plain: true,
        credit_due: true,
        queued: true,
        marked: true,
    };

    fn used() -> ServerSlot<Vec<u8>> {
        let slot = ServerSlot {
            request_size: USED.request.0,
            request_packets: USED.request.1,
            method: USED.request.2,
            echo: USED.echo.0,
            echo_repeats: USED.echo.1,
            response_limit: USED.response.0,
            response_packets: USED.response.1,
            response_sent: USED.response.2,
            state: USED.state,
            status: USED.answer.0,
            answer_bits: USED.answer.1,
            is_plain: USED.is_plain,
            takes_plain: USED.takes_plain,
            credit_due: USED.credit_due,
            queued: USED.queued,
            marked: USED.marked,
            ..ServerSlot::new(USED.current)
        };
        assert_eq!(Said::by(&slot), USED);
        slot
    }

    #[test]
    fn new__says_nothing() {
        let slot = ServerSlot::<Vec<u8>>::new(5);
        assert_eq!(Said::by(&slot), NEW);
        assert!(slot.message.is_none() && slot.parts.is_none() && !slot.held.is_some());
    }

    #[test]
    fn begin__leaves_nothing_of_the_request_before() {
        let (mut slot, mut spare) = (used(), FreeList::new());
        slot.parts(&mut spare).request = Some(vec![1]);
        slot.message = Some(vec![2]);
        slot.takes_plain = true;
        slot.begin(13, 6, 100, 1, &mut spare);
        let begun = Said {
            current: 13,
            request: (100, 1, 6),
            echo: (0, false),
            // The number of the answer's packets is set with the answer.
            response: (1, 8, 7),
            state: ServerState::Arriving,
            answer: (Status::Internal, 0),
            is_plain: false,
            takes_plain: false,
            credit_due: false,
            marked: false,
            ..USED
        };
        assert_eq!(Said::by(&slot), begun);
        assert!(slot.parts.is_none());
        assert_eq!(slot.message, Some(vec![2]), "for the next answer");
    }

    /// Boxes of parts go to the free list, and must not keep a request's memory.
    #[test]
    fn begin_empty_and_give_up__free_the_request() {
        use std::rc::Rc;
        type End = fn(&mut ServerSlot<Rc<()>>, &mut FreeList<ServerParts<Rc<()>>>);
        let ends: [(&str, End); 3] = [
            ("begin", |slot, spare| slot.begin(13, 6, 100, 1, spare)),
            ("empty", |slot, _| slot.empty()),
            ("give up", |slot, spare| slot.give_up(13, spare)),
        ];
        for (name, end) in ends {
            let (mut slot, mut spare) = (ServerSlot::new(5), FreeList::new());
            let request = Rc::new(());
            slot.parts(&mut spare).request = Some(Rc::clone(&request));
            assert_eq!(Rc::strong_count(&request), 2);
            end(&mut slot, &mut spare);
            assert_eq!(Rc::strong_count(&request), 1, "{name}");
        }
    }

    #[test]
    fn set_answer__begins_with_the_first_packet() {
        for (packets, marked, is_plain) in
            [(1, false, true), (2, false, false), (1, true, false), (2, true, false)]
        {
            let mut slot = ServerSlot { marked, state: ServerState::Running, ..used() };
            slot.set_answer(Status::Ok, ANSWERED_LATER, vec![1], packets);
            let answered = Said {
                response: (9, packets, 0),
                answer: (Status::Ok, ANSWERED_LATER),
                credit_due: false,
                is_plain,
                marked,
                ..USED
            };
            assert_eq!(Said::by(&slot), answered);
            assert_eq!(slot.message, Some(vec![1]));
        }
    }

    #[test]
    fn set_sent_answer__is_one_that_was_sent_whole() {
        let mut slot = used();
        slot.set_sent_answer(vec![1]);
        let answered = Said {
            response: (9, 1, 1),
            answer: (Status::Ok, 0),
            echo: (2, false),
            credit_due: false,
            is_plain: false,
            ..USED
        };
        assert_eq!((Said::by(&slot), slot.message), (answered, Some(vec![1])));
    }

    #[test]
    fn give_up__leaves_nothing_to_send() {
        let (mut slot, mut spare) = (used(), FreeList::new());
        slot.message = Some(vec![1]);
        slot.parts(&mut spare).request = Some(vec![2]);
        slot.give_up(13, &mut spare);
        let given_up = Said {
            current: 13,
            response: (0, 0, 0),
            answer: (Status::Cancelled, 0),
            credit_due: false,
            marked: false,
            ..USED
        };
        assert_eq!(Said::by(&slot), given_up);
        assert!(slot.message.is_none() && slot.parts.is_none());
        assert!(slot.is_given_up() && !slot.is_answer_gone());
    }

    #[test]
    fn drop_answer__is_as_if_one_packet_had_been_sent() {
        let (mut slot, mut spare) = (used(), FreeList::new());
        slot.message = Some(vec![1]);
        slot.drop_answer(&mut spare);
        let dropped = Said {
            response: (1, 1, 1),
            answer: (Status::DataLoss, 0),
            credit_due: false,
            marked: false,
            ..USED
        };
        assert_eq!(Said::by(&slot), dropped);
        assert!(slot.is_answer_gone() && !slot.is_given_up());
    }

    #[test]
    fn is_waiting__of_requests_that_run_and_whose_answer_begins_with_one_packet() {
        let states =
            [ServerState::Idle, ServerState::Arriving, ServerState::Running, ServerState::Answered];
        for state in states {
            for response_limit in [0, 1, 2] {
                let mut slot = ServerSlot { state, response_limit, ..used() };
                let runs = state == ServerState::Running;
                assert_eq!(slot.is_waiting(), runs && response_limit < 2);
                slot.note_asked();
                assert_eq!(slot.response_limit, if runs { 1 } else { response_limit });
                assert_eq!(slot.is_watched(), runs);
            }
        }
    }

    /// Returns a slot in a state, with a request of three packets.
    fn slot_in(state: ServerState) -> ServerSlot<Vec<u8>> {
        ServerSlot { state, request_packets: 3, ..ServerSlot::new(5) }
    }

    /// Returns a slot that holds memory.
    fn holding() -> ServerSlot<Vec<u8>> {
        use crate::session::SessionId;
        use crate::session::held::{Held, Holder, HoldingKind};
        let session = SessionId { index: 0, generation: 0 };
        let holder = Holder { session, slot: 0, peer: PeerKey(1) };
        let mut slot = slot_in(ServerState::Arriving);
        slot.hold(Held::new(0, 1 << 20).add(HoldingKind::Arriving, holder, 1));
        slot
    }

    #[test]
    #[should_panic(expected = "the request number of a slot only grows")]
    fn begin__of_the_current_request() {
        slot_in(ServerState::Answered).begin(5, 1, 2, 1, &mut FreeList::new());
    }

    #[test]
    #[should_panic(expected = "a new request begins after the memory of the former is released")]
    fn begin__while_the_slot_holds_memory() {
        holding().begin(13, 1, 2, 1, &mut FreeList::new());
    }

    #[test]
    #[should_panic(expected = "a slot for plain requests holds no memory")]
    fn begin_plain__while_the_slot_holds_memory() {
        holding().begin_plain(13, 1, 2);
    }

    #[test]
    #[should_panic(expected = "a slot has one account at a time")]
    fn hold__twice() {
        holding().hold(HoldingId::NONE);
    }

    #[test]
    #[should_panic(expected = "a handler is called once for a request")]
    fn run__twice() {
        let mut slot = slot_in(ServerState::Arriving);
        slot.run();
        slot.run();
    }

    #[test]
    #[should_panic(expected = "exactly its packets have arrived")]
    fn take_whole__of_a_request_with_a_packet_missing() {
        let mut parts = ServerParts::<Vec<u8>>::fresh();
        [0, 2].into_iter().for_each(|packet| _ = parts.arrived.insert(packet));
        parts.take_whole(3);
    }

    #[test]
    #[should_panic(expected = "a CREDIT is due for a request without an answer")]
    fn note_packet__after_the_answer() {
        slot_in(ServerState::Answered).note_packet(0, false);
    }

    #[test]
    #[should_panic(expected = "a CREDIT names a packet of the request")]
    fn note_packet__beyond_the_request() {
        slot_in(ServerState::Running).note_packet(3, false);
    }

    #[test]
    #[should_panic(expected = "a handler answers a running request")]
    fn set_answer__of_a_request_that_arrives() {
        slot_in(ServerState::Arriving).set_answer(Status::Ok, 0, vec![1], 1);
    }

    #[test]
    #[should_panic(expected = "an answer overwrites no other answer")]
    fn set_answer__over_another() {
        let mut slot = slot_in(ServerState::Running);
        slot.message = Some(vec![1]);
        slot.set_answer(Status::Ok, 0, vec![2], 1);
    }

    #[test]
    #[should_panic(expected = "an error answers a request that has no answer")]
    fn set_error_answer__of_a_request_that_was_given_up() {
        let mut slot = slot_in(ServerState::Running);
        slot.give_up(5, &mut FreeList::new());
        slot.set_error_answer(Status::Internal, 0, 1);
    }

    #[test]
    #[should_panic(expected = "a request before the current one is not given up")]
    fn give_up__of_an_earlier_request() {
        slot_in(ServerState::Running).give_up(4, &mut FreeList::new());
    }

    #[test]
    #[should_panic(expected = "no packet of an answer is sent before the client allows it")]
    fn note_sent__beyond_the_limit() {
        let mut slot = slot_in(ServerState::Running);
        slot.set_answer(Status::Ok, 0, vec![1], 2);
        slot.response_limit = 1;
        (0..2).for_each(|_| slot.note_sent());
    }

    #[test]
    #[should_panic(expected = "no packet is sent beyond the end of an answer")]
    fn note_sent__beyond_the_end() {
        let mut slot = slot_in(ServerState::Running);
        slot.set_answer(Status::Ok, 0, vec![1], 1);
        slot.response_limit = 9;
        (0..2).for_each(|_| slot.note_sent());
    }

    #[test]
    #[should_panic(expected = "only a packet of an answer that was sent is repeated")]
    fn note_repeated__of_a_packet_that_was_not_sent() {
        let mut slot = slot_in(ServerState::Running);
        slot.set_answer(Status::Ok, 0, vec![1], 1);
        slot.note_repeated(0, &mut FreeList::new());
    }

    #[test]
    #[should_panic(expected = "only a running request is watched")]
    fn watch__of_a_request_that_was_answered() {
        slot_in(ServerState::Answered).watch();
    }
}
