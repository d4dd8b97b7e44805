//! The messages of a client slot: packets of the request, and of the response (`docs/wire-protocol.md` §5.2).

use super::super::parts::ClientParts;
use super::{ClientSlot, ClientState, SendPath};
use crate::bitmap::Words;
use crate::limits::WINDOW_PACKETS;
use crate::recovery::Recovery;
use crate::recovery::response::ResponsePackets;
use crate::session::free_list::FreeList;
use crate::wire::Pull;

/// The request of a slot: packets sent, packets lost.
impl<B, T> ClientSlot<B, T> {
    #[inline(always)]
    pub(crate) fn request_packets(&self) -> u32 {
        self.request_packets
    }

    /// Returns how many packets of the request were sent at least once.
    #[inline(always)]
    pub(crate) fn request_sent(&self) -> u32 {
        self.request_sent
    }

    #[inline]
    pub(crate) fn is_request_sent(&self) -> bool {
        self.request_sent == self.request_packets
    }

    /// Returns how many packets of the response the request grants.
    #[inline]
    pub(crate) fn grant(&self) -> u8 {
        self.grant
    }

    #[inline]
    pub(crate) fn credits(&self) -> u32 {
        self.held.count()
    }

    /// Notes that the next `count` packets of the request were sent for the first time, and measures the round
    /// trip of the first of them.
    #[inline]
    pub(in crate::session::client) fn note_sent(&mut self, count: u32, now_ns: u64) {
        assert!(self.state == ClientState::Sending, "a packet of a request is sent in SENDING");
        assert!(
            self.request_sent + count <= self.request_packets,
            "no packet is sent beyond the end of a request"
        );
        if count > 0 {
            self.timer.measure_next(self.request_sent, now_ns);
        }
        self.request_sent += count;
        self.path = SendPath::General;
    }

    /// Notes that the last packet of the request grants `extra` packets of the response beyond the first.
    pub(crate) fn note_granted(&mut self, extra: u32) {
        assert!(self.is_request_sent(), "the last packet of a request carries the grant");
        self.grant = extra as u8 + 1;
        self.response_limit = extra + 1;
    }

    /// Notes that a packet of the request was sent again.
    pub(crate) fn note_repeated(
        &mut self,
        packet: u32,
        now_ns: u64,
        spare: &mut FreeList<ClientParts>,
    ) {
        assert!(packet < self.request_sent, "only a packet of a request that was sent is repeated");
        let is_single = self.request_packets == 1;
        self.timer.note_repeat(packet, is_single, now_ns);
        self.parts_mut(spare).request_mut().note_repeat(packet, is_single);
    }

    /// Returns the cumulative acknowledgement: lower packets of the request were acknowledged.
    #[inline]
    pub(crate) fn acknowledged_below(&self) -> u32 {
        self.parts().map_or(0, |parts| parts.request().acknowledged_below())
    }

    /// Returns the next packet to send again.
    #[inline]
    pub(crate) fn first_lost(&self) -> Option<u32> {
        self.parts().and_then(|parts| parts.request().first_lost())
    }

    /// Looks for lost packets when the server has acknowledged some beyond `from`, the `echo` packet last. Returns the
    /// number of newly lost packets.
    #[inline]
    pub(crate) fn find_lost(
        &mut self,
        from: u32,
        echo: u32,
        repeats: bool,
        recovery: Recovery,
    ) -> u32 {
        let (sent, packets) = (self.request_sent, self.request_packets);
        let Some(parts) = &mut self.parts else { return 0 };
        match recovery {
            Recovery::Selective if packets == 1 => 0,
            Recovery::Selective => parts.request_mut().find_lost(from..sent, echo, repeats),
            Recovery::GoBackN => {
                parts.request_mut().forget_acknowledged(from..sent);
                0
            }
        }
    }

    /// Returns true if every packet of a multicast request had to be sent again; `None` if the request did
    /// not use multicast.
    #[inline]
    pub(in crate::session::client) fn missed_multicast(&self) -> Option<bool> {
        let parts = self.parts().filter(|parts| parts.is_announced())?;
        Some(parts.request().repeated() >= self.request_packets)
    }

    /// Returns true if a loss may be a sign of congestion. Where multicast delivers no packet at all,
    /// multicast does not reach the server, and the losses are no such sign.
    pub(crate) fn is_congestion_loss(&self) -> bool {
        let Some(parts) = self.parts() else { return true };
        let request = parts.request();
        !parts.is_announced() || request.acknowledged_count() > request.repeated()
    }

    /// Notes that the server has the whole request: the slot enters WAITING.
    pub(in crate::session::client) fn enter_waiting(&mut self, now_ns: u64) {
        assert!(self.state == ClientState::Sending, "a slot enters WAITING from SENDING");
        assert!(
            self.acknowledged_below() == self.request_packets,
            "a slot enters WAITING when the whole request is acknowledged"
        );
        self.state = ClientState::Waiting;
        self.timer.enter_waiting(now_ns);
    }
}

/// The response of a slot: packets allowed, packets received.
impl<B, T> ClientSlot<B, T> {
    /// Returns how many packets of the response the server may send.
    #[inline]
    pub(crate) fn response_limit(&self) -> u32 {
        self.response_limit
    }

    /// Returns the cumulative reception: lower packets of the response were received.
    #[inline]
    pub(crate) fn received_below(&self) -> u32 {
        self.parts().map_or(0, |parts| parts.response().received_below())
    }

    /// Notes that the server begins the answer with one packet, regardless of the grant (flag W, §4).
    pub(in crate::session::client) fn note_parked(&mut self) {
        assert!(self.state == ClientState::Waiting, "the credits of a request that runs return");
        self.response_limit = 1;
    }

    /// Notes that the first packet of a response of several packets arrived, with any index: the slot enters
    /// RECEIVING.
    pub(in crate::session::client) fn enter_receiving(
        &mut self,
        size: u32,
        packets: u32,
        spare: &mut FreeList<ClientParts>,
    ) {
        assert!(
            matches!(self.state, ClientState::Sending | ClientState::Waiting),
            "a response begins once"
        );
        assert!(
            self.is_request_sent(),
            "a response in parts begins after the whole request was sent"
        );
        assert!(self.response_limit > 0, "the request allows the first packet of its response");
        self.state = ClientState::Receiving;
        self.parts_mut(spare).response_mut().begin(size, packets);
        self.response_limit = self.response_limit.min(packets);
    }

    /// Returns true if a packet of the response is new. Takes the packet in.
    #[inline]
    pub(crate) fn receive(&mut self, packet: u32) -> bool {
        assert!(self.state == ClientState::Receiving, "a packet of a response comes in RECEIVING");
        assert!(packet < self.response_limit, "the server sends packets that the client allows");
        let Some(parts) = &mut self.parts else { unreachable!("RECEIVING has its state") };
        parts.response_mut().receive(packet)
    }

    /// Returns true if every packet of the response was received.
    #[inline]
    pub(crate) fn is_response_whole(&self) -> bool {
        self.parts().is_some_and(|parts| parts.response().is_whole())
    }

    /// Allows `count` more packets of the response.
    pub(in crate::session::client) fn allow(&mut self, count: u32) {
        assert!(self.state == ClientState::Receiving, "a PULL allows packets in RECEIVING");
        self.response_limit += count;
        let Some(parts) = &self.parts else { unreachable!("RECEIVING has its state") };
        let response = parts.response();
        assert!(
            self.response_limit <= response.packets(),
            "no packet is allowed beyond the end of a response"
        );
        assert!(
            self.response_limit <= response.received_below() + WINDOW_PACKETS,
            "no packet of a response is allowed beyond the window"
        );
    }

    /// Returns the next PULL: the packets received so far, and those to send again.
    pub(crate) fn pull(&self) -> Pull {
        let is_receiving = self.state == ClientState::Receiving;
        let response = self.parts().map(ClientParts::response);
        let (cumulative, bitmap) = match response {
            Some(response) if is_receiving => {
                (response.received_below(), *response.received_words())
            }
            _ => (0, Words::default()),
        };
        let resend_below = response.map_or(0, ResponsePackets::resend_below);
        // Before the first packet the server has its grant, and may give it up (§6.3).
        let limit = if is_receiving { self.response_limit } else { 1 };
        Pull { cumulative, limit, resend_below, bitmap }
    }

    pub(crate) fn note_pull_sent(&mut self) {
        assert!(
            !self.is_free() && self.request_sent > 0,
            "a client asks about packets that it has sent"
        );
        self.timer.note_asked();
        if let Some(parts) = &mut self.parts {
            parts.response_mut().note_asked();
        }
    }

    /// Returns true if the packet that has arrived is evidence of loss. The next PULL then asks for missing packets.
    #[inline]
    pub(crate) fn is_evidence(&mut self, packet: u32, repeats: bool) -> bool {
        let Some(parts) = &mut self.parts else { unreachable!("RECEIVING has its state") };
        let is_evidence = parts.response_mut().is_evidence(packet, repeats);
        if is_evidence {
            self.timer.ask();
        }
        is_evidence
    }

    /// Returns the state for messages of several packets, if any.
    #[inline(always)]
    pub(crate) fn parts(&self) -> Option<&ClientParts> {
        self.parts.as_deref()
    }

    /// Returns the state for messages of several packets, allocated on first use.
    #[inline]
    pub(crate) fn parts_mut(&mut self, spare: &mut FreeList<ClientParts>) -> &mut ClientParts {
        self.path = SendPath::General;
        self.parts.get_or_insert_with(|| spare.take())
    }

    /// Returns the state for messages of several packets, if any, for a change.
    #[inline]
    pub(crate) fn known_parts_mut(&mut self) -> Option<&mut ClientParts> {
        self.parts.as_deref_mut()
    }

    /// Returns the box of the state to the free list.
    pub(in crate::session::client) fn release_parts(&mut self, spare: &mut FreeList<ClientParts>) {
        assert!(self.is_free(), "a slot keeps its state until its call ends");
        spare.take_back(&mut self.parts);
    }
}
