//! The server's half of a session (`docs/wire-protocol.md` §6).

use super::Agreed;
use crate::bitmap::{PacketBits, Window};
use crate::status::Status;

/// A session in its server role.
pub(crate) struct ServerSession<B> {
    pub(crate) agreed: Agreed,
    /// Largest request that is taken, in bytes.
    pub(crate) request_bytes_max: u32,
    pub(crate) slots: Box<[ServerSlot<B>]>,
}

impl<B> ServerSession<B> {
    pub(crate) fn new(agreed: Agreed, first_request: u64, request_bytes_max: u32) -> Self {
        let slots = u64::from(agreed.slots);
        // One round before the first: wrapping, and compared so, because the first may be 0.
        let before = first_request.wrapping_sub(slots);
        let slots = (0..slots).map(|slot| ServerSlot::new(before.wrapping_add(slot))).collect();
        Self { agreed, request_bytes_max, slots }
    }

    /// The slot of a request number.
    #[inline]
    pub(crate) fn slot_index(&self, request: u64) -> usize {
        request as usize & (self.slots.len() - 1)
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

/// What a slot answers.
pub(crate) enum Answer<B> {
    /// Nothing yet.
    None,
    /// A message from the handler, or an error's text.
    Message(Status, B),
    /// An error of the core itself, which needs no buffer: there may be none left.
    Fixed(Status, &'static str),
}

/// The server's side of one outstanding request.
pub(crate) struct ServerSlot<B> {
    /// Number of the request that the slot holds; never goes back.
    pub(crate) current: u64,
    pub(crate) state: ServerState,
    /// Whether the transmit queue has an entry for this slot.
    pub(crate) queued: bool,
    /// Whether to send a CREDIT.
    pub(crate) credit_due: bool,
    pub(crate) method: u16,

    /// Bytes of the request, its packets, which came, and which came last.
    pub(crate) request_size: u32,
    pub(crate) request_packets: u32,
    pub(crate) arrived: Window,
    pub(crate) echo: u32,
    /// Whether that was a repetition.
    pub(crate) echo_repeats: bool,
    /// The request while its packets arrive.
    pub(crate) request: Option<B>,

    pub(crate) answer: Answer<B>,
    /// Packets of the response; how many were sent once, how many are allowed; which to repeat.
    pub(crate) response_packets: u32,
    pub(crate) response_sent: u32,
    pub(crate) response_limit: u32,
    pub(crate) resend: PacketBits,
    /// No packet below this is to be repeated: the client has them.
    pub(crate) resend_from: u32,
}

impl<B> ServerSlot<B> {
    fn new(current: u64) -> Self {
        Self {
            current,
            state: ServerState::Idle,
            queued: false,
            credit_due: false,
            method: 0,
            request_size: 0,
            request_packets: 0,
            arrived: Window::new(),
            echo: 0,
            echo_repeats: false,
            request: None,
            answer: Answer::None,
            response_packets: 0,
            response_sent: 0,
            response_limit: 0,
            resend: PacketBits::new(),
            resend_from: 0,
        }
    }

    /// Steps to a new request and frees what the slot held. The caller sets the state.
    pub(crate) fn begin(&mut self, number: u64, method: u16, size: u32, packets: u32) {
        self.current = number;
        self.method = method;
        self.credit_due = false;
        self.request_size = size;
        self.request_packets = packets;
        self.arrived = Window::new();
        self.echo = 0;
        self.echo_repeats = false;
        self.request = None;
        self.answer = Answer::None;
        self.response_limit = 1;
    }

    /// Keeps an answer, to be sent from its first packet on.
    pub(crate) fn set_answer(&mut self, answer: Answer<B>, packets: u32) {
        self.state = ServerState::Answered;
        self.credit_due = false;
        self.answer = answer;
        self.response_packets = packets;
        self.response_sent = 0;
        self.resend = PacketBits::new();
        self.resend_from = 0;
    }
}
