//! The request of a server slot, from its first packet to its handler (`docs/wire-protocol.md` §6.2).

use super::super::parts::ServerParts;
use super::{ASKED, BY_PATHS, MARKED, ORDERED, ServerSlot, ServerState, WATCHED};
use crate::bitmap::{Insert, Words};
use crate::buffer::{Buffer, Destination, Placed};
use crate::session::free_list::FreeList;
use crate::session::held::HoldingId;
use crate::wire::{Credit, Flags, Part};

impl<B> ServerSlot<B> {
    #[inline]
    pub(crate) fn request_size(&self) -> u32 {
        self.request_size
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
        self.release_parts(spare);
        self.state = ServerState::Arriving;
        self.current = number;
        self.method = method;
        self.takes_plain = false;
        self.bits &= !MARKED;
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

    /// [`ServerSlot::begin_plain`] in a session of several paths. The answer has a path too, and leaves from the queue.
    #[inline(always)]
    pub(crate) fn begin_plain_by_paths(&mut self, number: u64, method: u16, size: u32) {
        assert!(self.bits & BY_PATHS != 0, "the slots of a session of several paths know it");
        self.begin_plain(number, method, size);
        self.bits = BY_PATHS;
        self.takes_plain = false;
    }

    /// Frees the slot's content for a request about to begin.
    pub(crate) fn empty(&mut self) {
        assert!(!self.held.is_some(), "a slot frees its content after its memory is released");
        self.message = None;
        self.drop_request();
    }

    /// Stores the buffer of a request that begins to arrive.
    pub(crate) fn begin_buffer(&mut self, request: B, spare: &mut FreeList<ServerParts<B>>) {
        assert!(self.state == ServerState::Arriving, "a request arrives in a buffer in ARRIVING");
        assert!(self.request_packets > 1, "a request of one packet needs no buffer");
        self.parts_mut(spare).begin_request(request);
    }

    /// Returns the cumulative arrival: lower packets of the request have arrived.
    #[inline]
    pub(crate) fn arrived_below(&self) -> u32 {
        self.parts.as_ref().map_or(0, |parts| parts.arrived_below())
    }

    /// Notes the deadline that a packet of the arriving request carries, or `NEVER`. Returns the deadline as
    /// known so far.
    #[inline]
    pub(crate) fn note_deadline(&mut self, deadline_ns: u64) -> u64 {
        let parts = self.arriving_parts();
        parts.note_deadline(deadline_ns);
        parts.deadline_ns()
    }

    #[inline]
    pub(crate) fn arrive(&mut self, packet: u32) -> Insert {
        assert!(packet < self.request_packets, "a packet that arrives is part of the request");
        self.arriving_parts().arrive(packet)
    }

    /// Lets the packets of the request, whose buffer was stored, go to memory of the application.
    pub(crate) fn place_in(&mut self, placed: Placed) {
        self.arriving_parts().place_in(placed);
    }

    fn arriving_parts(&mut self) -> &mut ServerParts<B> {
        let Some(parts) = &mut self.parts else {
            unreachable!("a request of several packets arrives with its state");
        };
        parts
    }

    /// Returns true if every packet of the arriving request has come.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.arrived_below() == self.request_packets
    }

    /// Allows packets of the response that the request grants.
    #[inline]
    pub(crate) fn grant(&mut self, packets: u8) {
        self.response_limit = self.response_limit.max(u32::from(packets));
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

    /// Starts RUNNING with a request of several packets, all of which have arrived. Returns the request, the memory of the
    /// application that has its bytes, if any, and the deadline, or `NEVER`.
    pub(crate) fn run_message(
        &mut self,
        spare: &mut FreeList<ServerParts<B>>,
    ) -> (B, Option<Placed>, u64) {
        let packets = self.request_packets;
        let parts = self.arriving_parts();
        let (request, deadline_ns) = (parts.take_whole(packets), parts.deadline_ns());
        let Some(request) = request else {
            unreachable!("a request of several packets arrives in a buffer");
        };
        let placed = parts.take_placed();
        spare.take_back(&mut self.parts);
        self.run();
        (request, placed, deadline_ns)
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

    /// Returns the packet that arrived last, and true if it was a repetition.
    pub(crate) fn echo(&self) -> (u32, bool) {
        (self.echo, self.echo_repeats)
    }

    /// Returns the CREDIT to send and its flags, if one is due.
    #[inline(always)]
    pub(crate) fn due_credit(&self) -> Option<(Credit, Flags)> {
        if !self.credit_due {
            return None;
        }
        let (cumulative, bitmap) = match (self.state, &self.parts) {
            (ServerState::Arriving, Some(parts)) => (parts.arrived_below(), *parts.arrived_words()),
            _ => (self.request_packets, Words::default()),
        };
        let credit = Credit { cumulative, echo: self.echo, bitmap };
        // Shows which copy of the packet arrived (§5.2).
        let flags = if self.echo_repeats { Flags::REPEATS } else { Flags::NONE };
        let waits = if self.is_waiting() { Flags::WAITS } else { Flags::NONE };
        Some((credit, self.echo_flags(flags.with(waits))))
    }

    /// Notes that the CREDIT was sent, and the ECN mark echoed.
    pub(crate) fn note_credit_sent(&mut self) {
        assert!(self.credit_due, "a CREDIT is sent when one is due");
        if self.is_waiting() {
            self.response_limit = 1;
        }
        self.credit_due = false;
        self.bits &= !MARKED;
    }

    /// Notes that the client asks for the answer of a running request. The next CREDIT acknowledges the
    /// request, and from then on the answer begins with one packet, whatever was granted (§6.3). An answer before that
    /// CREDIT has all packets that were granted: the client has not taken their credits back, and asks for none.
    pub(crate) fn note_asked(&mut self) {
        if self.state == ServerState::Running {
            self.answer_bits |= ASKED;
        }
    }

    /// Returns true if the client may take the request's credits back (flag W): the answer begins with one
    /// packet.
    pub(super) fn is_waiting(&self) -> bool {
        self.state == ServerState::Running
            && (self.response_limit <= 1 || self.answer_bits & ASKED != 0)
    }

    /// Notes that the running request has a place in the order.
    pub(crate) fn note_ordered(&mut self) {
        assert!(self.state == ServerState::Running, "a request enters the order's care in RUNNING");
        assert!(!self.takes_plain, "a numbered request does not come by the fast path");
        self.answer_bits |= ORDERED;
    }

    /// Returns true if the running request has a place in the order.
    pub(crate) fn is_ordered(&self) -> bool {
        self.state == ServerState::Running && self.answer_bits & ORDERED != 0
    }

    /// Stores the account of a complete request that waits for earlier requests. The next CREDIT returns its credits,
    /// as if the client had asked for the answer.
    pub(crate) fn hold_early(&mut self, id: HoldingId) {
        assert!(self.is_ordered(), "only a numbered request waits for others");
        assert!(!self.held.is_some(), "a slot has one account at a time");
        self.held = id;
        self.note_asked();
    }

    /// Requests a notice if the client gives the request up before the answer.
    pub(crate) fn watch(&mut self) {
        assert!(self.state == ServerState::Running, "only a running request is watched");
        self.answer_bits = self.answer_bits & (ORDERED | ASKED) | WATCHED;
        // The slot's next request must not bypass the notice.
        self.takes_plain = false;
    }

    /// Returns true if the request runs and its handler asked for a notice.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.state == ServerState::Running && self.answer_bits & WATCHED != 0
    }
}

impl<B: Buffer> ServerSlot<B> {
    /// Stores bytes of the arriving request.
    #[inline]
    pub(crate) fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.arriving_parts().store(offset, bytes);
    }

    /// Accepts the next packet of the arriving request, if the fields match and the packet is not the last.
    /// Returns the place for the payload of `len` bytes, the size of a full packet.
    #[inline(always)]
    pub(crate) fn take_next(&mut self, fields: u64, len: usize) -> Option<&mut [u8]> {
        let (ServerState::Arriving, Some(parts)) = (self.state, &mut self.parts) else {
            return None;
        };
        let packet = parts.next_in_order()?;
        let expected = Part { size: self.request_size, packet, grant: 1 };
        if fields != expected.word() || packet + 1 == self.request_packets {
            return None;
        }
        let place = parts.arrive_in_order(packet as usize * len, len)?;
        self.credit_due = true;
        self.echo = packet;
        self.echo_repeats = false;
        Some(place)
    }

    /// [`ServerSlot::take_next`] for a request that is put together in a destination of this type. Returns the destination,
    /// and the offset at which the caller stores the payload.
    pub(crate) fn take_next_placed<D: Destination>(
        &mut self,
        fields: u64,
        len: usize,
    ) -> Option<(&mut D, usize)> {
        let (ServerState::Arriving, Some(parts)) = (self.state, &mut self.parts) else {
            return None;
        };
        let packet = parts.next_in_order()?;
        let expected = Part { size: self.request_size, packet, grant: 1 };
        if fields != expected.word() || packet + 1 == self.request_packets {
            return None;
        }
        let destination = parts.place_in_order()?;
        self.credit_due = true;
        self.echo = packet;
        self.echo_repeats = false;
        Some((destination, packet as usize * len))
    }

    /// Returns the packet of the arriving request that has these fields, if it is new and the last packet has not arrived: so
    /// it does not complete the request.
    #[inline(always)]
    pub(crate) fn expects_early(&self, fields: u64) -> Option<u32> {
        let (ServerState::Arriving, Some(parts)) = (self.state, &self.parts) else {
            return None;
        };
        let packet = (fields >> 32) as u32 & 0xFF_FFFF;
        let expected = Part { size: self.request_size, packet, grant: 1 };
        let last = self.request_packets - 1;
        let is_expected = fields == expected.word() && packet < last;
        (is_expected && parts.lacks(packet, last)).then_some(packet)
    }

    /// Accepts the packet that [`ServerSlot::expects_early`] returned. Returns the place for the payload of `len` bytes, the
    /// size of a full packet.
    #[inline(always)]
    pub(crate) fn take_early(&mut self, packet: u32, len: usize) -> &mut [u8] {
        self.credit_due = true;
        self.echo = packet;
        self.echo_repeats = false;
        self.arriving_parts().arrive_early(packet, packet as usize * len, len)
    }
}
