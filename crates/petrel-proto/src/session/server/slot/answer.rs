//! The answer of a server slot, from its handler to the last repetition (`docs/wire-protocol.md` §6.3).

use super::super::parts::ServerParts;
use super::{BY_PATHS, MARKED, ServerSlot, ServerState};
use crate::limits::WINDOW_PACKETS;
use crate::session::fill;
use crate::session::free_list::FreeList;
use crate::session::held::HoldingId;
use crate::status::Status;
use crate::wire::Pull;

impl<B> ServerSlot<B> {
    #[inline]
    pub(crate) fn response_packets(&self) -> u32 {
        self.response_packets
    }

    /// Returns how many packets of the answer were sent at least once.
    #[inline]
    pub(crate) fn response_sent(&self) -> u32 {
        self.response_sent
    }

    /// Returns the next packet of the answer, and true if it repeats one; `None` if the client must allow
    /// further packets first.
    #[inline]
    pub(crate) fn next_answer_packet(&self) -> Option<(u32, bool)> {
        if let Some(packet) = self.parts.as_ref().and_then(|parts| parts.resends().first()) {
            assert!(packet < self.response_packets, "a packet that is repeated is in the answer");
            return Some((packet, true));
        }
        let end = self.response_limit.min(self.response_packets);
        (self.response_sent < end).then_some((self.response_sent, false))
    }

    #[inline(always)]
    pub(crate) fn answer_aux(&self) -> u16 {
        u16::from(self.status.code()) | self.answer_bits
    }

    /// Returns true if the answer is a message of one packet, not sent yet: the fast path's case.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// [`ServerSlot::is_plain`] in a session of several paths.
    #[inline(always)]
    pub(crate) fn is_plain_by_paths(&self) -> bool {
        self.state == ServerState::Answered
            && self.response_packets == 1
            && self.response_sent == 0
            && self.bits == BY_PATHS
    }

    /// Returns the text of an error of the core itself.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        self.parts.as_ref().and_then(|parts| parts.refusal())
    }

    /// Stores the answer of a running request, to be sent from the first packet on. The slot has no message: the
    /// handler got the kept message. A large answer is `held`.
    #[inline]
    pub(crate) fn set_answer(
        &mut self,
        (status, bits): (Status, u16),
        message: B,
        packets: u32,
        held: HoldingId,
        spare: &mut FreeList<ServerParts<B>>,
    ) {
        assert!(self.state == ServerState::Running, "a handler answers a running request");
        assert!(self.message.is_none(), "an answer overwrites no other answer");
        assert!(packets > 0, "an answer has at least one packet");
        assert!(!self.held.is_some(), "a slot has one account at a time");
        spare.take_back(&mut self.parts);
        self.held = held;
        self.takes_plain = !held.is_some();
        self.begin_answer(status, bits, packets);
        self.is_plain = packets == 1 && self.bits == 0;
        fill(&mut self.message, message);
    }

    /// Stores an error that needs no buffer as the answer: one packet with a text.
    pub(crate) fn set_error_answer(
        &mut self,
        status: Status,
        bits: u16,
        text: &'static str,
        spare: &mut FreeList<ServerParts<B>>,
    ) {
        assert!(status != Status::Ok, "an error has another status than OK");
        assert!(
            matches!(self.state, ServerState::Arriving | ServerState::Running)
                || self.is_answer_gone(),
            "an error answers a request that has no answer"
        );
        assert!(!self.held.is_some(), "an error answer holds no memory");
        self.begin_answer(status, bits, 1);
        self.message = None;
        self.parts_mut(spare).set_refusal(text);
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

    /// Notes that the next packet of the answer was sent, with the ECN echo.
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
        self.bits &= !MARKED;
        self.response_sent += 1;
    }

    /// Notes that an answer of one packet was sent by the fast path.
    #[inline(always)]
    pub(crate) fn note_plain_sent(&mut self) {
        self.is_plain = false;
        self.queued = false;
        self.response_sent = 1;
    }

    /// Notes that a packet of the answer was sent again, with the ECN echo.
    #[inline]
    pub(crate) fn note_repeated(&mut self, packet: u32, spare: &mut FreeList<ServerParts<B>>) {
        assert!(
            packet < self.response_sent,
            "only a packet of an answer that was sent is repeated"
        );
        self.bits &= !MARKED;
        self.parts_mut(spare).resends_mut().note_sent(packet);
    }

    /// Repeats the first packet of an answer that was sent, unless the client has acknowledged the packet.
    /// Returns true if the packet is to be sent.
    pub(crate) fn repeat_first(&mut self, spare: &mut FreeList<ServerParts<B>>) -> bool {
        assert!(self.response_sent > 0, "only a packet of an answer that was sent is repeated");
        self.parts_mut(spare).resends_mut().repeat_first()
    }

    /// Takes a PULL in: further allowed packets within the window, and packets to send again.
    pub(crate) fn note_pull(&mut self, pull: &Pull, spare: &mut FreeList<ServerParts<B>>) {
        assert!(self.state == ServerState::Answered, "a PULL asks for packets of an answer");
        let limit = pull.limit.min(pull.cumulative.saturating_add(WINDOW_PACKETS));
        self.response_limit = self.response_limit.max(limit);
        // A response of one packet has either arrived whole or not at all.
        if self.response_packets > 1 || pull.resend_below > 0 {
            let sent = self.response_sent;
            let resends = self.parts_mut(spare).resends_mut();
            resends.mark_missing(pull.cumulative, pull.resend_below, &pull.bitmap, sent);
        }
    }

    /// Returns true if the answer is an error of the core itself.
    pub(crate) fn is_error_answer(&self) -> bool {
        self.state == ServerState::Answered && self.refusal().is_some()
    }

    /// Begins a request that the client has given up, or ends the current one, and frees the slot's content.
    /// Nothing is sent for the request.
    pub(crate) fn give_up(&mut self, number: u64, spare: &mut FreeList<ServerParts<B>>) {
        assert!(!self.held.is_some(), "a request is given up after its memory is released");
        assert!(
            number.wrapping_sub(self.current) as i64 >= 0,
            "a request before the current one is not given up"
        );
        self.release_parts(spare);
        self.current = number;
        self.begin_answer(Status::Cancelled, 0, 0);
        self.message = None;
        self.response_limit = 0;
        self.bits &= !MARKED;
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
        assert!(self.is_answer_gone(), "a dropped answer is known to be gone");
    }

    /// Returns true if the answer was freed and the client does not know.
    pub(crate) fn is_answer_gone(&self) -> bool {
        let is_bare = self.message.is_none() && self.parts.is_none();
        self.state == ServerState::Answered && self.response_packets > 0 && is_bare
    }
}
