//! A session in the client role (`docs/wire-protocol.md` §4, §5).

mod by_paths;
mod flow;
mod plain;
mod slots;

pub(crate) use flow::Acknowledged;
pub(crate) use plain::{PlainAnswer, PlainPlace, PlainSend};
pub(crate) use slots::SlotEnd;

use super::order::CallOrder;
use super::paths::ClientPaths;
use super::reception::Reception;
use super::slot::{ClientSlot, ClientState, NO_SLOT, SlotCall};
use crate::congestion::{Congestion, CongestionControl, Flow};
use crate::limits::{CREDITS_SHARED_MIN, SLOTS_AT_FIRST, SLOTS_MAX};
use crate::recovery::round_trips::RoundTrips;
use crate::recovery::rtt::RtoBounds;
use crate::session::backlog::{Backlog, NEVER, PendingCall, Queued};
use crate::session::credits::Credits;
use crate::session::expiry_timer::ExpiryTimer;
use crate::session::turns::SlotQueue;
use crate::session::{Agreed, NO_PEER, PeerKey};
use crate::wire::Destination;
use slots::RESERVED;

/// A session in the client role. Fields for small calls come first, in this order; see
/// [`Entry`](crate::session::Entry).
#[repr(C)]
pub(crate) struct ClientSession<B, T> {
    /// The free slot for the next call, or [`NO_SLOT`]. Free slots form a list, most recently freed first:
    /// that slot is in a cache.
    free: u16,
    /// The agreed number of slots, a power of two, less one: masks a request number to a slot.
    slot_mask: u16,
    credits: Credits,
    /// The slots that calls have needed until now.
    slots: Box<[ClientSlot<B, T>]>,
    /// The common part of the headers of outgoing frames.
    to: Destination,
    /// Payload bytes of a full packet, as agreed; 0 until then.
    packet_bytes: u32,
    /// One more than the largest request that may take the fast path, in bytes; 0 until agreed, and in a session
    /// that keeps an order or drains.
    plain_request_bytes_end: u32,
    /// Destination of the session's frames; [`NO_PEER`] if the session has several paths, which have it. Frames
    /// from there may come under another key (see `Origin`).
    peer: PeerKey,
    /// Slots waiting for a credit or for room in the congestion window, in order of arrival.
    stalled: SlotQueue,
    trips: RoundTrips,
    congestion: Congestion,
    /// Slots waiting for the session's pace.
    paced: SlotQueue,
    /// Slots in WAITING that hold a credit: a credit without a packet in flight.
    waiting_slots: u32,
    message_credits_max: u32,
    /// Slots whose request numbers are used up.
    retired: u16,
    /// True while the timer wheel has an entry for the release of a slot in `paced`.
    awaits_release: bool,
    /// True if the medium loses no frame: silence then means that the server is busy (§7.2).
    is_lossless: bool,
    /// Calls without a slot.
    backlog: Backlog<B, T>,
    first_request: u64,
    /// True once the server has asked for no further calls (SESSION_DRAIN).
    is_draining: bool,
    /// `None` until the peer accepts: meanwhile calls wait in the backlog.
    agreed: Option<Agreed>,
    expiry_timer: ExpiryTimer,
    /// Reachability of the server by multicast.
    multicast: Reception,
    /// The numbers of the calls, in a session that keeps an order (§14.6).
    order: Option<Box<CallOrder>>,
    /// The paths, if there are several.
    paths: Option<Box<ClientPaths>>,
}

/// The session: opening, parameters, end.
impl<B, T> ClientSession<B, T> {
    pub(crate) fn opening(first_request: u64, bounds: &RtoBounds) -> Self {
        Self {
            free: NO_SLOT,
            slot_mask: 0,
            credits: Credits::default(),
            slots: Box::default(),
            to: Destination::default(),
            packet_bytes: 0,
            plain_request_bytes_end: 0,
            peer: NO_PEER,
            stalled: SlotQueue::default(),
            trips: RoundTrips::new(bounds),
            congestion: Congestion::unlimited(),
            paced: SlotQueue::default(),
            waiting_slots: 0,
            message_credits_max: 0,
            retired: 0,
            awaits_release: false,
            is_lossless: false,
            backlog: Backlog::default(),
            first_request,
            is_draining: false,
            agreed: None,
            expiry_timer: ExpiryTimer::new(),
            multicast: Reception::default(),
            order: None,
            paths: None,
        }
    }

    /// Returns the numbers of the calls, in a session that keeps an order.
    #[inline]
    pub(crate) fn order(&self) -> Option<&CallOrder> {
        self.order.as_deref()
    }

    /// Returns the numbers of the calls for a change, in a session that keeps an order.
    #[inline]
    pub(crate) fn order_mut(&mut self) -> Option<&mut CallOrder> {
        self.order.as_deref_mut()
    }

    /// Begins to keep an order of the calls, if the server will.
    pub(crate) fn keep_order(&mut self) {
        assert!(self.agreed.is_none(), "a session numbers all of its calls or none");
        self.order = Some(Box::new(CallOrder::new()));
    }

    /// Gives the order up: the server does not know ordered calls.
    pub(crate) fn forgo_order(&mut self) {
        assert!(self.agreed.is_none(), "a session numbers all of its calls or none");
        self.order = None;
    }

    /// Stores the agreed parameters; from now on calls are sent.
    pub(crate) fn establish(&mut self, agreed: Agreed, control: &CongestionControl) {
        assert!(self.agreed.is_none(), "a session is established once");
        assert!(
            agreed.slots.is_power_of_two(),
            "a mask finds the slot of a request: the slots are a power of two"
        );
        assert!(
            self.first_request.is_multiple_of(u64::from(agreed.slots)),
            "the first request number belongs to slot 0"
        );
        assert!(
            agreed.slots <= SLOTS_MAX && agreed.credits > 0,
            "a session has as many slots as entries can name, and a credit"
        );
        assert!(
            self.slots.is_empty() && self.stalled.is_empty() && self.paced.is_empty(),
            "no slot waits for anything before its session is open"
        );
        let (credits, packet_bytes) = (u32::from(agreed.credits), agreed.packet_bytes);
        self.congestion = control.start(Flow { credits, packet_bytes, base_rtt_ns: 0 });
        self.slot_mask = agreed.slots - 1;
        self.grow(agreed.slots.min(SLOTS_AT_FIRST));
        if self.has_reserve() {
            self.free = self.slots[RESERVED].next_free();
        }
        self.credits = Credits::new(agreed.credits);
        let is_shared = agreed.credits >= CREDITS_SHARED_MIN;
        self.message_credits_max = if is_shared { credits / 2 } else { credits };
        self.packet_bytes = agreed.packet_bytes;
        self.plain_request_bytes_end = match &mut self.order {
            // The fast path does not number calls.
            Some(order) => {
                order.agree();
                0
            }
            // The server has begun to drain before its acceptance arrived.
            None if self.is_draining => 0,
            None => agreed.packet_bytes.min(agreed.peer_message_bytes_max) + 1,
        };
        self.to = Destination::new(agreed.peer_session, agreed.peer_token);
        self.peer = agreed.peer;
        self.agreed = Some(agreed);
    }

    /// Returns the agreed parameters; `None` until the peer accepts.
    #[inline]
    pub(crate) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    pub(crate) fn first_request(&self) -> u64 {
        self.first_request
    }

    /// Returns the common part of the headers of outgoing frames.
    #[inline(always)]
    pub(crate) fn to(&self) -> Destination {
        self.to
    }

    /// Returns the destination of the session's frames; [`NO_PEER`] until agreed, and for a session of several
    /// paths.
    #[inline(always)]
    pub(crate) fn peer(&self) -> PeerKey {
        self.peer
    }

    /// Returns the payload bytes of a full packet, as agreed; 0 until then.
    #[inline(always)]
    pub(crate) fn packet_bytes(&self) -> u32 {
        self.packet_bytes
    }

    /// Returns the stride: the number of slots agreed on. Valid once the session is open.
    #[inline(always)]
    pub(crate) fn stride(&self) -> u64 {
        u64::from(self.slot_mask) + 1
    }

    /// Returns true once the server has asked for no further calls.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Stops further calls; pending calls go on.
    pub(crate) fn begin_drain(&mut self) {
        self.is_draining = true;
        // Keeps the fast path from sending: a separate condition would cost every call.
        self.plain_request_bytes_end = 0;
    }

    /// Returns the calls without a slot.
    #[inline]
    pub(crate) fn backlog(&self) -> &Backlog<B, T> {
        &self.backlog
    }

    /// Returns the calls without a slot, for a change.
    #[inline]
    pub(crate) fn backlog_mut(&mut self) -> &mut Backlog<B, T> {
        &mut self.backlog
    }

    /// Returns the timer for the deadlines of the session's calls.
    #[inline]
    pub(crate) fn expiry_timer(&mut self) -> &mut ExpiryTimer {
        &mut self.expiry_timer
    }

    /// Returns the time at which the first call expires, or [`NEVER`].
    pub(crate) fn first_expiry_ns(&self) -> u64 {
        let busy = self.slots.iter().filter(|state| !state.is_free());
        let in_slots = busy.map(|state| state.expiry().at_ns).min();
        in_slots.unwrap_or(NEVER).min(self.backlog.next_expiry_ns())
    }

    /// Estimates whether the next request should go by multicast.
    pub(crate) fn is_multicast_likely(&mut self) -> bool {
        self.multicast.is_likely()
    }

    /// Ends the session. Calls `each` with every pending call, in slots first, and true if some packet of its
    /// request was sent.
    pub(crate) fn end(mut self, mut each: impl FnMut(Queued<B, T>, bool)) {
        self.assert_sound();
        for slot in self.slots {
            let (is_sent, expiry) = (slot.request_sent() > 0, slot.expiry());
            if let Some((method, SlotCall { tag, request, response })) = slot.into_call() {
                let call = PendingCall { method, tag, request, response };
                each(Queued::unordered(call, expiry), is_sent);
            }
        }
        while let Some(queued) = self.backlog.pop_front() {
            each(queued, false);
        }
    }

    /// Checks the invariants that span all slots. Takes a step for each slot: called when a session ends, and
    /// by checkers.
    ///
    /// # Panics
    /// If one does not hold.
    pub(crate) fn assert_sound(&self) {
        let (mut held, mut waiting, mut free) = (0, 0, 0);
        for (place, slot) in self.slots.iter().enumerate() {
            held += slot.credits();
            let is_free = slot.is_free();
            assert!(
                is_free == slot.call().is_none(),
                "a slot is free if and only if it has no call"
            );
            assert!(!is_free || slot.credits() == 0, "a free slot holds no credit");
            assert!(
                !is_free || !self.stalled.contains(place) && !self.paced.contains(place),
                "a free slot waits for nothing"
            );
            assert!(
                !is_free || slot.parts().is_none(),
                "a free slot has no state of a message of several packets"
            );
            assert!(
                slot.request_sent() <= slot.request_packets(),
                "a slot has sent no more packets than its request has"
            );
            assert!(
                self.slot_index(slot.number()) == place,
                "the numbers of a slot are a stride apart"
            );
            waiting += u32::from(slot.state() == ClientState::Waiting && slot.credits() > 0);
            free += usize::from(is_free && !self.is_reserved(place));
        }
        assert_eq!(
            held,
            self.credits.lent(),
            "the credits of a session are free or with its slots"
        );
        self.assert_paths_sound();
        assert!(
            self.agreed.is_some() || self.slots.is_empty(),
            "a session has slots once it is open"
        );
        assert!(
            self.agreed.is_none_or(|agreed| u32::from(agreed.credits) == self.credits.agreed()),
            "the credits of a session are those agreed on"
        );
        assert!(
            self.stalled.count().max(self.paced.count()) <= self.slots.len(),
            "only slots of the session wait for credits and for the pace"
        );
        assert!(
            self.plain_request_bytes_end == 0 || !self.is_draining && self.order.is_none(),
            "the fast path numbers no calls, and none are made while the server drains"
        );
        assert!(
            u64::from(self.retired) <= self.stride(),
            "no more slots are retired than the session has"
        );
        assert_eq!(waiting, self.waiting_slots, "the slots in WAITING with a credit are counted");
        assert!(
            self.paced.is_empty() || self.awaits_release,
            "the timer wheel releases the slots that wait for the pace"
        );
        let after = |slot: &u16| self.slots.get(usize::from(*slot)).map(ClientSlot::next_free);
        let listed = std::iter::successors(Some(self.free), after);
        let listed = listed.take_while(|slot| *slot != NO_SLOT).take(self.slots.len() + 1).count();
        assert!(
            listed <= free && free <= listed + usize::from(self.retired),
            "each free slot is listed once, or retired"
        );
    }
}

#[cfg(test)]
mod tests;
