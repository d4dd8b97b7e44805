//! The client's half of a session (`docs/wire-protocol.md` §5).

use super::backlog::{Backlog, Expiry, NEVER, PendingCall};
use super::credits::{Credits, HeldCredits};
use super::free_list::{FreeList, Reusable};
use super::order::SendOrder;
use super::turns::SlotQueue;
use super::{Agreed, NO_PEER, PeerKey, fill};
use crate::bitmap::{PacketBits, Window};
use crate::congestion::{Congestion, CongestionControl, Flow};
use crate::limits::{
    CREDITS_SHARED_MIN, FUTURE_ROUNDS_MAX, REQUEST_NUMBER_END, SLOTS_AT_FIRST,
    SLOTS_WITH_RESERVE_MIN, WINDOW_PACKETS,
};
use crate::recovery::rtt::{RtoBounds, RttEstimator};
use crate::timer::{TimerEntry, TimerKey, TimerWheel};
use crate::wire::{Announcement, Destination};

/// A session in the client role. Fields for small calls come first, in this order; see
/// [`Entry`](super::Entry).
#[repr(C)]
pub(crate) struct ClientSession<B, T> {
    /// The free slot for the next call, or [`NO_SLOT`]. Free slots form a list, most recently freed first:
    /// that slot is in a cache.
    pub(crate) free: u16,
    /// The agreed number of slots, a power of two, less one: masks a request number to a slot.
    pub(crate) slot_mask: u16,
    pub(crate) credits: Credits,
    /// The slots that calls have needed until now.
    pub(crate) slots: Box<[ClientSlot<B, T>]>,
    /// The common part of the headers of outgoing frames.
    pub(crate) to: Destination,
    /// Payload bytes of a full packet, as agreed; 0 until then.
    pub(crate) packet_bytes: u32,
    /// Largest request of one packet that the peer accepts, in bytes; 0 until agreed.
    pub(crate) plain_request_bytes_max: u32,
    /// Destination of the session's frames. Frames from there may come under another key (see `Origin`).
    pub(crate) peer: PeerKey,
    /// Slots waiting for a credit or for room in the congestion window, in order of arrival.
    pub(crate) stalled: SlotQueue,
    pub(crate) trips: RoundTrips,
    pub(crate) congestion: Congestion,
    /// Slots waiting for the session's pace.
    pub(crate) held: SlotQueue,
    /// Slots in WAITING that hold a credit: a credit without a packet in flight.
    waiting_slots: u32,
    /// Most credits for one message.
    message_credits_max: u32,
    /// Slots whose request numbers are used up.
    retired: u16,
    /// True while the timer wheel has an entry for the release of a slot in `held`.
    awaits_release: bool,
    /// Calls without a slot.
    pub(crate) backlog: Backlog<B, T>,
    pub(crate) first_request: u64,
    /// True once the server has asked for no further calls (SESSION_DRAIN).
    pub(crate) is_draining: bool,
    /// `None` until the peer accepts: meanwhile calls wait in the backlog.
    pub(crate) agreed: Option<Agreed>,
    /// A lower bound of the calls' expiry times, exact when computed; the call behind the value may have
    /// ended since. [`NEVER`] without calls that expire.
    pub(crate) next_expiry_ns: u64,
    /// The timer wheel's entry for `next_expiry_ns` or an earlier time.
    pub(crate) expiry_timer: Option<TimerEntry>,
    /// Reachability of the server by multicast.
    pub(crate) multicast: Reception,
}

/// Estimates from the last multicast requests whether multicast reaches a server (§12.5).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reception {
    /// Multicast requests in a row with all packets sent again.
    misses: u8,
    /// Requests sent by unicast since then.
    skipped: u8,
}

/// Multicast requests in a row with all packets sent again, after which requests go by unicast.
const MISSES_MAX: u8 = 3;

/// Unicast requests up to the next attempt at multicast: the fault may be over.
const SKIPPED_MAX: u8 = 64;

impl Reception {
    /// Returns true if the next request should go by multicast.
    pub(crate) fn is_likely(&mut self) -> bool {
        if self.misses < MISSES_MAX {
            return true;
        }
        self.skipped = (self.skipped + 1) % SKIPPED_MAX;
        self.skipped == 0
    }

    /// Notes the outcome of a multicast request.
    pub(crate) fn note(&mut self, missed: bool) {
        self.misses = if missed { (self.misses + 1).min(MISSES_MAX) } else { 0 };
    }
}

/// Round-trip measurements of a session, and the times derived from them.
#[repr(C)]
pub(crate) struct RoundTrips {
    /// Time of the last measurement. One measurement per burst is enough: all frames of a burst share one
    /// reading of the clock.
    pub(crate) sampled_ns: u64,
    /// The time from a transmission to the first check for loss, by a probe or the timeout; computed with
    /// every measurement.
    pub(crate) probe_ns: u64,
    /// Doublings of the first timeout of new requests. Kept after a timeout until a round trip is measured
    /// (RFC 6298 §5.7); otherwise a path that became slower would never be measured again.
    pub(crate) backoff: u8,
    /// The shortest measured round trip, in nanoseconds: an estimate of the path without queues.
    pub(crate) shortest_ns: u32,
    pub(crate) rtt: RttEstimator,
}

impl RoundTrips {
    fn new(bounds: &RtoBounds) -> Self {
        let rtt = RttEstimator::new();
        let (probe_ns, shortest_ns) = (rtt.probe_ns(bounds), u32::MAX);
        Self { sampled_ns: u64::MAX, probe_ns, backoff: 0, shortest_ns, rtt }
    }

    /// Uses a round trip measured by other means (§7.2), until the session's first measurement.
    pub(crate) fn expect(&mut self, path_ns: u32, bounds: &RtoBounds) {
        if self.rtt.srtt_ns().is_none() {
            self.rtt.expect(path_ns.into());
            self.probe_ns = self.rtt.probe_ns(bounds);
        }
    }

    /// Adds the round trip of a packet sent at `sent_ns` and answered now.
    #[inline(never)]
    pub(crate) fn sample(&mut self, now_ns: u64, sent_ns: u64, bounds: &RtoBounds) {
        let rtt_ns = now_ns.saturating_sub(sent_ns);
        self.rtt.sample(rtt_ns);
        self.shortest_ns = self.shortest_ns.min(rtt_ns.min(u64::from(u32::MAX)) as u32);
        self.sampled_ns = now_ns;
        self.probe_ns = self.rtt.probe_ns(bounds);
        self.backoff = 0;
    }

    /// Notes a probe sent after `waited_ns`: the probed packet's round trip will not be known. Perhaps the
    /// path became slower, so the next packets are given twice that time, up to [`PROBE_BACKOFF_MAX`], until
    /// a round trip is measured. Otherwise a path that became slower between two calls would never be
    /// measured again.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_probe(&mut self, waited_ns: u64, bounds: &RtoBounds) {
        let most_ns = self.rtt.rto_ns(bounds, PROBE_BACKOFF_MAX);
        self.probe_ns = self.probe_ns.max((2 * waited_ns).min(most_ns));
    }
}

/// Doublings of the timeout up to which probes are delayed. Slow handlers delay probes too, and must not make
/// a later call wait long for the repetition of a lost packet. Beyond the limit, doubled timeouts measure the
/// path.
const PROBE_BACKOFF_MAX: u32 = 2;

/// The caller's part of a call in a slot.
pub(crate) struct SlotCall<B, T> {
    pub(crate) tag: T,
    pub(crate) request: B,
    pub(crate) response: B,
}

impl<B, T> ClientSession<B, T> {
    pub(crate) fn opening(first_request: u64, bounds: &RtoBounds) -> Self {
        Self {
            free: NO_SLOT,
            slot_mask: 0,
            credits: Credits::default(),
            slots: Box::default(),
            to: Destination::default(),
            packet_bytes: 0,
            plain_request_bytes_max: 0,
            peer: NO_PEER,
            stalled: SlotQueue::default(),
            trips: RoundTrips::new(bounds),
            congestion: Congestion::unlimited(),
            held: SlotQueue::default(),
            waiting_slots: 0,
            message_credits_max: 0,
            retired: 0,
            awaits_release: false,
            backlog: Backlog::default(),
            first_request,
            is_draining: false,
            agreed: None,
            next_expiry_ns: NEVER,
            multicast: Reception::default(),
            expiry_timer: None,
        }
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
        let (credits, packet_bytes) = (u32::from(agreed.credits), agreed.packet_bytes);
        self.congestion = control.start(Flow { credits, packet_bytes, base_rtt_ns: 0 });
        self.slot_mask = agreed.slots - 1;
        self.grow(agreed.slots.min(SLOTS_AT_FIRST));
        if self.has_reserve() {
            self.free = self.slots[RESERVED].next_free;
        }
        self.credits = Credits::new(agreed.credits);
        let is_shared = agreed.credits >= CREDITS_SHARED_MIN;
        self.message_credits_max = if is_shared { credits / 2 } else { credits };
        self.packet_bytes = agreed.packet_bytes;
        self.plain_request_bytes_max = agreed.packet_bytes.min(agreed.peer_message_bytes_max);
        self.to = Destination::new(agreed.peer_session, agreed.peer_token);
        self.peer = agreed.peer;
        self.agreed = Some(agreed);
    }

    /// Returns how many new packets the credits and the congestion window allow.
    #[inline]
    pub(crate) fn sendable_packets(&self) -> u32 {
        match self.congestion.window_packets() {
            u32::MAX => self.credits.available(),
            window => {
                assert!(
                    self.waiting_slots <= self.credits.lent(),
                    "each slot counted as waiting holds a credit"
                );
                let in_flight = self.credits.lent() - self.waiting_slots;
                self.credits.available().min(window.saturating_sub(in_flight))
            }
        }
    }

    /// Returns the stride: the number of slots agreed on. Valid once the session is open.
    #[inline(always)]
    pub(crate) fn stride(&self) -> u64 {
        u64::from(self.slot_mask) + 1
    }

    /// Returns true if the session reserves a slot for requests to the endpoint itself (§4).
    pub(crate) fn has_reserve(&self) -> bool {
        self.slot_mask >= SLOTS_WITH_RESERVE_MIN - 1
    }

    /// Returns true for the reserved slot, which needs neither a credit nor a turn.
    #[inline]
    pub(crate) fn is_reserved(&self, slot: usize) -> bool {
        slot == RESERVED && self.has_reserve()
    }

    /// Returns true if a slot is free for another call.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.free != NO_SLOT || self.agreed.is_some() && (self.slots.len() as u64) < self.stride()
    }

    /// Takes a free slot for a call.
    #[inline]
    pub(crate) fn take_slot(&mut self) -> Option<usize> {
        if self.free == NO_SLOT {
            self.make_room();
        }
        let slot = usize::from(self.free);
        self.free = self.slots.get(slot)?.next_free;
        Some(slot)
    }

    /// Takes the reserved slot, if free.
    pub(crate) fn take_reserved_slot(&mut self) -> Option<usize> {
        let is_free = self.has_reserve()
            && self.slots[RESERVED].state == ClientState::Free
            && !self.slots[RESERVED].is_spent();
        is_free.then_some(RESERVED)
    }

    /// Doubles the slots, up to the agreed number. Called when no slot is free.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        let count = (2 * self.slots.len() as u64).min(self.stride());
        self.grow(count as u16);
    }

    /// Allocates slots, `count` in total. No slot is free before; the new slots are free afterwards.
    fn grow(&mut self, count: u16) {
        let is_agreed = u64::from(count) <= self.stride();
        assert!(self.free == NO_SLOT && is_agreed, "a slot is made when none is free");
        let before = self.slots.len() as u16;
        if count <= before {
            return;
        }
        let mut slots = std::mem::take(&mut self.slots).into_vec();
        slots.reserve_exact(usize::from(count - before));
        slots.extend((before..count).map(|slot| {
            let next_free = if slot + 1 < count { slot + 1 } else { NO_SLOT };
            ClientSlot::new(self.first_request + u64::from(slot), next_free)
        }));
        self.slots = slots.into_boxed_slice();
        self.free = before;
    }

    /// Frees the slot of an ended call.
    #[inline(always)]
    pub(crate) fn release(&mut self, slot: usize) {
        assert!(
            self.slots[slot].state == ClientState::Free,
            "a slot is free before it returns to the free slots"
        );
        if self.is_reserved(slot) {
            return;
        }
        assert!(self.free != slot as u16, "a slot returns to the free slots once");
        self.slots[slot].next_free = self.free;
        self.free = slot as u16;
    }

    /// Retires a slot without request numbers left. Returns true if at least half of the slots are retired:
    /// then the session must be closed (§5).
    pub(crate) fn retire(&mut self) -> bool {
        assert!(
            u64::from(self.retired) < self.stride(),
            "no more slots are retired than the session has"
        );
        self.retired += 1;
        2 * u64::from(self.retired) >= self.stride()
    }

    /// Returns true if a slot may take credits now: as the longest waiting, or when no slot waits. With
    /// credits available the slot leaves the queue; to send more than one turn allows, the slot queues again.
    #[inline]
    pub(crate) fn take_turn(&mut self, slot: usize) -> bool {
        match self.stalled.first() {
            None => true,
            Some(first) if first == slot && self.sendable_packets() > 0 => {
                self.stalled.pop();
                true
            }
            Some(_) => self.is_reserved(slot),
        }
    }

    /// Returns how many credits the slot's message may take beyond those already held.
    #[inline]
    pub(crate) fn message_credits(&self, slot: usize) -> u32 {
        self.message_credits_max.saturating_sub(self.slots[slot].held.count())
    }

    /// Returns the number of calls in slots and in the queue.
    pub(crate) fn pending_calls(&self) -> usize {
        self.busy_slots() + self.backlog.len()
    }

    /// Returns the number of slots with a call.
    pub(crate) fn busy_slots(&self) -> usize {
        self.slots.iter().filter(|state| state.state != ClientState::Free).count()
    }

    /// Notes that a slot's request was given up.
    pub(crate) fn note_given_up(&mut self, slot: usize) {
        let stride = self.stride();
        self.slots[slot].note_given_up(stride);
    }

    /// Updates the count of `waiting_slots` when a slot leaves WAITING or returns the last credit in WAITING.
    #[inline]
    pub(crate) fn leave_waiting(&mut self, slot: usize) {
        let state = &self.slots[slot];
        let was_counted = state.state == ClientState::Waiting && state.held.count() > 0;
        assert!(
            self.waiting_slots >= u32::from(was_counted),
            "a slot leaves WAITING that was not counted"
        );
        self.waiting_slots -= u32::from(was_counted);
    }

    /// Notes that the server has the whole request of a slot: the slot enters WAITING.
    pub(crate) fn enter_waiting(&mut self, now_ns: u64, slot: usize) {
        let state = &mut self.slots[slot];
        assert!(state.state == ClientState::Sending, "a slot enters WAITING from SENDING");
        assert!(
            state.acknowledged_below() == state.request_packets,
            "a slot enters WAITING when the whole request is acknowledged"
        );
        state.state = ClientState::Waiting;
        state.timed_packet = NOT_TIMED;
        state.timed_ns = now_ns;
        self.waiting_slots += u32::from(state.held.count() > 0);
    }

    /// Returns the number of slots in WAITING that hold a credit.
    pub(crate) fn waiting_slots(&self) -> u32 {
        self.waiting_slots
    }

    /// Returns true while the timer wheel has an entry for the session's release.
    #[inline]
    pub(crate) fn awaits_release(&self) -> bool {
        self.awaits_release
    }

    /// Notes the entry of the timer wheel for the session's release.
    pub(crate) fn await_release(&mut self) {
        assert!(!self.awaits_release, "a session has one entry for its release");
        self.awaits_release = true;
    }

    /// Notes that the entry for the session's release has come due.
    pub(crate) fn note_release(&mut self) {
        assert!(self.awaits_release, "a session is released that has no entry for its release");
        self.awaits_release = false;
    }

    /// Checks the invariants that span all slots. Takes a step for each slot: called when a session ends, and
    /// by checkers.
    ///
    /// # Panics
    /// If one does not hold.
    pub(crate) fn assert_sound(&self) {
        let (mut held, mut waiting, mut free) = (0, 0, 0);
        for (place, slot) in self.slots.iter().enumerate() {
            held += slot.held.count();
            let is_free = slot.state == ClientState::Free;
            assert!(is_free == slot.call.is_none(), "a slot is free if and only if it has no call");
            assert!(!is_free || slot.held.count() == 0, "a free slot holds no credit");
            assert!(
                !is_free || !self.stalled.contains(place) && !self.held.contains(place),
                "a free slot waits for nothing"
            );
            assert!(
                slot.request_sent <= slot.request_packets,
                "a slot has sent no more packets than its request has"
            );
            waiting += u32::from(slot.state == ClientState::Waiting && slot.held.count() > 0);
            free += usize::from(is_free && !self.is_reserved(place));
        }
        assert_eq!(
            held,
            self.credits.lent(),
            "the credits of a session are free or with its slots"
        );
        assert_eq!(waiting, self.waiting_slots, "the slots in WAITING with a credit are counted");
        let after = |slot: &u16| self.slots.get(usize::from(*slot)).map(|slot| slot.next_free);
        let listed = std::iter::successors(Some(self.free), after);
        let listed = listed.take_while(|slot| *slot != NO_SLOT).take(self.slots.len() + 1).count();
        assert!(
            listed <= free && free <= listed + usize::from(self.retired),
            "each free slot is listed once, or retired"
        );
    }

    /// Ends a slot's measurement. Returns the round trip, if the measured packet was sent once only (Karn).
    #[inline(always)]
    pub(crate) fn note_round_trip(
        &mut self,
        now_ns: u64,
        slot: usize,
        bounds: &RtoBounds,
    ) -> Option<u64> {
        let state = &mut self.slots[slot];
        let was_timed = core::mem::replace(&mut state.timed_packet, NOT_TIMED) < TIMED_REPEAT;
        if !was_timed {
            return None;
        }
        let timed_ns = state.timed_ns;
        if self.trips.sampled_ns != now_ns {
            self.trips.sample(now_ns, timed_ns, bounds);
        }
        Some(now_ns.saturating_sub(timed_ns))
    }
}

/// Names no slot.
pub(crate) const NO_SLOT: u16 = u16::MAX;

/// The slot reserved for requests to the endpoint itself ([`SLOTS_WITH_RESERVE_MIN`]), allocated from the
/// beginning.
const RESERVED: usize = 0;

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

/// The measured packet is the only repetition of a request of one packet; the CREDIT that answers the
/// repetition ends the measurement (§7.1).
pub(crate) const TIMED_REPEAT: u32 = u32::MAX - 1;

/// The place of an outstanding request, in two cache lines, fetched as a pair by processors. State for
/// recovery and for messages of several packets is in [`ClientParts`].
///
/// Fields set together are side by side, for the compiler to merge their stores.
#[repr(C, align(128))]
pub(crate) struct ClientSlot<B, T> {
    /// The number of the request in the slot; in a free slot the next request's number.
    pub(crate) number: u64,
    /// The call, while the slot is in use.
    pub(crate) call: Option<SlotCall<B, T>>,
    pub(crate) parts: Option<Box<ClientParts>>,
    /// When the timer fires, in nanoseconds.
    pub(crate) deadline_ns: u64,
    /// The time at which the measured packet was sent; in WAITING the time at which the slot entered WAITING.
    pub(crate) timed_ns: u64,
    pub(crate) held: HeldCredits,
    /// Packets of the request, and packets sent at least once.
    pub(crate) request_packets: u32,
    request_sent: u32,
    /// Packets of the response that the server may send.
    pub(crate) response_limit: u32,
    /// The packet whose round trip is being measured, sent once so far; or [`NOT_TIMED`], or
    /// [`TIMED_REPEAT`].
    pub(crate) timed_packet: u32,
    state: ClientState,
    /// True if the request was sent by a fast path (see [`SendPath`]) and neither side has acted since. Valid
    /// while the slot is in use.
    pub(crate) awaits_plain: bool,
    pub(crate) send_path: SendPath,
    /// True while the transmit queue has an entry for this slot.
    pub(crate) queued: bool,
    /// Set to send a PULL at the next opportunity, even without raising the limit.
    pub(crate) pull_due: bool,
    /// Doublings of the timeout since the last frame taken.
    pub(crate) backoff: u8,
    /// Timeouts since the last frame taken.
    pub(crate) unanswered: u8,
    /// True if a probe was sent since the last frame taken.
    pub(crate) probed: bool,
    pub(crate) method: u16,
    /// Packets of the response granted by the request.
    pub(crate) grant: u8,
    /// The kind of time limit.
    expires: Expires,
    /// True while the timer wheel has an entry for this slot.
    in_wheel: bool,
    /// True if that entry comes due soon enough for any deadline, the common case. An entry set for a timeout
    /// or for a slower path would fire too late for the next call's probe.
    pub(crate) wakes_soon: bool,
    /// In a free slot the next free slot, or [`NO_SLOT`].
    pub(crate) next_free: u16,
    /// The slot's entry in the timer wheel, while `in_wheel`.
    pub(crate) timer: TimerEntry,
    /// Requests given up in a row without any sign from the server, and the lower half of the last number: a
    /// server follows only so far (§5.4).
    pub(crate) unacknowledged_rounds: u32,
    pub(crate) given_up: u32,
    /// The time limit of the call, unless `expires` is unset.
    pub(crate) expiry_ns: u64,
}

/// The transmit path of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SendPath {
    /// The general path.
    General,
    /// The fast path, the common case: request and response of one packet, and nothing sent yet.
    Plain,
    /// The fast path for a call with a deadline, not inherited.
    Timed,
}

/// The kind of time limit of a slot's call; see [`Expiry`].
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

/// State of a slot for recovery and for messages of several packets.
pub(crate) struct ClientParts {
    /// Packets acknowledged by the server.
    pub(crate) acknowledged: Window,
    /// Packets to send again.
    pub(crate) lost: PacketBits,
    /// Packets and bytes of the response, once known, and the packets received.
    pub(crate) response_packets: u32,
    pub(crate) response_size: u32,
    pub(crate) received: Window,
    /// Packets below this index were already asked for again on loss evidence.
    pub(crate) requested_below: u32,
    /// The `resend_below` of the next PULL.
    pub(crate) resend_below: u32,
    /// The packet that a probe or timeout has asked for since the last loss evidence.
    pub(crate) probed_packet: Option<ProbedPacket>,
    /// Order of transmissions, in requests of several packets.
    pub(crate) order: SendOrder,
    /// The inherited deadline, where the call's own deadline is earlier; or [`NEVER`].
    inherited_ns: u64,
    /// The announcement of a request sent by multicast.
    pub(crate) announced: Option<Announced>,
    /// Repetitions of packets of the request.
    pub(crate) repeated: u32,
}

/// The single packet of a response that a client in need of progress asks for again, and the limit at that
/// time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbedPacket {
    pub(crate) packet: u32,
    pub(crate) limit: u32,
}

/// A request whose packets are sent by multicast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub(crate) announcement: Announcement,
    /// True while an ANNOUNCE is to be sent.
    pub(crate) is_due: bool,
}

impl Reusable for ClientParts {
    fn reset(&mut self) {
        self.acknowledged = Window::new();
        self.lost = PacketBits::new();
        self.response_packets = 0;
        self.response_size = 0;
        self.received = Window::new();
        self.requested_below = 0;
        self.resend_below = 0;
        self.probed_packet = None;
        self.order.reset();
        self.inherited_ns = NEVER;
        self.announced = None;
        self.repeated = 0;
    }

    fn fresh() -> Self {
        Self {
            acknowledged: Window::new(),
            lost: PacketBits::new(),
            response_packets: 0,
            response_size: 0,
            received: Window::new(),
            requested_below: 0,
            resend_below: 0,
            probed_packet: None,
            order: SendOrder::default(),
            inherited_ns: NEVER,
            announced: None,
            repeated: 0,
        }
    }
}

impl<B, T> ClientSlot<B, T> {
    fn new(number: u64, next_free: u16) -> Self {
        Self {
            number,
            call: None,
            parts: None,
            deadline_ns: 0,
            timed_ns: 0,
            timed_packet: NOT_TIMED,
            held: HeldCredits::default(),
            request_packets: 0,
            request_sent: 0,
            response_limit: 0,
            method: 0,
            state: ClientState::Free,
            send_path: SendPath::General,
            awaits_plain: false,
            queued: false,
            timer: TimerEntry::NONE,
            in_wheel: false,
            wakes_soon: false,
            next_free,
            pull_due: false,
            backoff: 0,
            unanswered: 0,
            probed: false,
            grant: 1,
            expires: Expires::Unset,
            unacknowledged_rounds: 0,
            given_up: 0,
            expiry_ns: NEVER,
        }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> ClientState {
        self.state
    }

    /// Returns how many packets of the request were sent at least once.
    #[inline(always)]
    pub(crate) fn request_sent(&self) -> u32 {
        self.request_sent
    }

    /// Returns true while the timer wheel has an entry for this slot.
    #[inline(always)]
    pub(crate) fn in_wheel(&self) -> bool {
        self.in_wheel
    }

    /// Returns true if the slot takes no further call: its request numbers are used up, or the server follows
    /// no further (§5.4).
    pub(crate) fn is_spent(&self) -> bool {
        self.number >= REQUEST_NUMBER_END || self.is_too_far_ahead()
    }

    /// Returns true if so many requests were given up in a row that the server accepts no further one.
    pub(crate) fn is_too_far_ahead(&self) -> bool {
        u64::from(self.unacknowledged_rounds) >= FUTURE_ROUNDS_MAX
    }

    /// Prepares the slot for a call. The response's fields are set when the first packet arrives.
    #[inline(always)]
    pub(crate) fn start(&mut self, call: PendingCall<B, T>, packets: u32, send_path: SendPath) {
        assert!(self.state == ClientState::Free, "a call begins in a free slot");
        assert!(!self.is_spent(), "a retired slot takes no call");
        assert!(self.call.is_none(), "a slot takes one call at a time");
        assert!(self.held.count() == 0, "a slot begins a call without credits");
        assert!(self.parts.is_none(), "a slot begins a call without the state of another");
        assert!(packets > 0, "a request has at least one packet");
        self.begin(call, packets);
        self.note_unsent(send_path);
    }

    /// As [`ClientSlot::start`], except for the fields that depend on the transmission: the caller sets these
    /// at once by [`ClientSlot::note_plain_sent`] or [`ClientSlot::note_unsent`].
    #[inline(always)]
    pub(crate) fn begin(&mut self, call: PendingCall<B, T>, packets: u32) {
        let PendingCall { method, tag, request, response } = call;
        self.hold(SlotCall { tag, request, response });
        self.note_begun(method, packets);
    }

    /// The first part of [`ClientSlot::begin`]: takes the call in.
    #[inline(always)]
    pub(crate) fn hold(&mut self, call: SlotCall<B, T>) {
        fill(&mut self.call, call);
    }

    /// The other part. Next to what follows the sending, the compiler sets most fields together.
    #[inline(always)]
    pub(crate) fn note_begun(&mut self, method: u16, packets: u32) {
        self.state = ClientState::Sending;
        self.pull_due = false;
        self.backoff = 0;
        self.unanswered = 0;
        self.probed = false;
        self.grant = 1;
        self.expires = Expires::Unset;
        self.method = method;
        self.request_packets = packets;
    }

    /// Returns the buffer of the response, while the slot is in use.
    #[inline]
    pub(crate) fn response(&mut self) -> Option<&mut B> {
        self.call.as_mut().map(|call| &mut call.response)
    }

    /// Notes that no packet of the request was sent.
    #[inline(always)]
    pub(crate) fn note_unsent(&mut self, send_path: SendPath) {
        self.send_path = send_path;
        self.awaits_plain = false;
        self.timed_packet = NOT_TIMED;
        self.request_sent = 0;
    }

    /// Notes that the request's only packet was sent, with a grant for one response packet.
    #[inline]
    pub(crate) fn note_plain_sent(&mut self, now_ns: u64) {
        self.awaits_plain = true;
        self.send_path = SendPath::General;
        self.queued = false;
        self.request_sent = 1;
        self.response_limit = 1;
        self.timed_packet = 0;
        self.timed_ns = now_ns;
    }

    /// Notes that the next `count` packets of the request were sent for the first time.
    #[inline]
    pub(crate) fn note_sent(&mut self, count: u32) {
        assert!(self.state == ClientState::Sending, "a packet of a request is sent in SENDING");
        assert!(
            self.request_sent + count <= self.request_packets,
            "no packet is sent beyond the end of a request"
        );
        self.request_sent += count;
    }

    /// Notes that a packet of the request was sent again.
    pub(crate) fn note_repeated(&mut self, packet: u32, spare: &mut FreeList<ClientParts>) {
        assert!(packet < self.request_sent, "only a packet of a request that was sent is repeated");
        let is_single = self.request_packets == 1;
        let parts = self.parts(spare);
        parts.repeated += 1;
        parts.lost.clear(packet);
        if !is_single {
            parts.order.note_repeat(packet);
        }
    }

    /// Notes that the first packet of a response of several packets arrived, with any index: the slot enters
    /// RECEIVING.
    pub(crate) fn enter_receiving(
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
            self.request_sent == self.request_packets,
            "a response in parts begins after the whole request was sent"
        );
        assert!(self.response_limit > 0, "the request allows the first packet of its response");
        self.state = ClientState::Receiving;
        let parts = self.parts(spare);
        parts.response_size = size;
        parts.response_packets = packets;
        self.response_limit = self.response_limit.min(packets);
    }

    /// Allows `count` more packets of the response.
    pub(crate) fn allow(&mut self, count: u32) {
        assert!(self.state == ClientState::Receiving, "a PULL allows packets in RECEIVING");
        self.response_limit += count;
        let Some(parts) = &self.parts else { unreachable!("RECEIVING has its state") };
        assert!(
            self.response_limit <= parts.response_packets,
            "no packet is allowed beyond the end of a response"
        );
        assert!(
            self.response_limit <= parts.received.cumulative() + WINDOW_PACKETS,
            "no packet of a response is allowed beyond the window"
        );
    }

    /// Ends the call. The next call gets another number, unless the server has seen no packet of this one.
    pub(crate) fn end(&mut self, stride: u64) {
        assert!(self.state != ClientState::Free, "a call ends once");
        self.state = ClientState::Free;
        if self.request_sent > 0 {
            self.number += stride;
        }
    }

    /// Ends a call answered by the fast path.
    #[inline(always)]
    pub(crate) fn end_plain(&mut self, stride: u64) {
        self.state = ClientState::Free;
        self.number += stride;
    }

    /// Puts the slot into the timer wheel.
    pub(crate) fn enter_wheel(
        &mut self,
        now_ns: u64,
        key: TimerKey,
        bounds: &RtoBounds,
        timers: &mut TimerWheel,
    ) {
        assert!(!self.in_wheel, "a slot has one entry in the timer wheel");
        self.timer = timers.insert(key, self.deadline_ns);
        self.in_wheel = true;
        self.wakes_soon = self.deadline_ns <= now_ns + bounds.soon_ns();
    }

    /// The slot's entry in the timer wheel has come due.
    #[inline]
    pub(crate) fn note_due(&mut self) {
        assert!(self.in_wheel, "a timer comes due that the slot has not set");
        self.in_wheel = false;
        self.wakes_soon = false;
    }

    /// Removes the slot's entry from the timer wheel, if present: the call has ended, or needs an earlier
    /// timer.
    #[cold]
    #[inline(never)]
    pub(crate) fn leave_wheel(&mut self, timers: &mut TimerWheel) {
        if self.in_wheel {
            timers.remove(self.timer);
            self.note_due();
        }
    }

    /// Returns the state for messages of several packets, allocated on first use.
    #[inline]
    pub(crate) fn parts(&mut self, spare: &mut FreeList<ClientParts>) -> &mut ClientParts {
        self.awaits_plain = false;
        self.parts.get_or_insert_with(|| spare.take())
    }

    /// Returns the cumulative acknowledgement: lower packets of the request were acknowledged.
    #[inline]
    pub(crate) fn acknowledged_below(&self) -> u32 {
        self.parts.as_ref().map_or(0, |parts| parts.acknowledged.cumulative())
    }

    /// Returns the cumulative reception: lower packets of the response were received.
    #[inline]
    pub(crate) fn received_below(&self) -> u32 {
        self.parts.as_ref().map_or(0, |parts| parts.received.cumulative())
    }

    /// Returns the call's time limit, if set.
    #[inline]
    pub(crate) fn expiry(&self) -> Expiry {
        let at_ns = self.expiry_ns;
        match self.expires {
            Expires::Unset => Expiry::NONE,
            Expires::Default => Expiry { at_ns, ..Expiry::NONE },
            Expires::Caller => {
                let inherited_ns = self.parts.as_ref().map_or(NEVER, |parts| parts.inherited_ns);
                Expiry { at_ns, is_on_wire: true, inherited_ns }
            }
            Expires::Inherited => Expiry { at_ns, is_on_wire: true, inherited_ns: at_ns },
        }
    }

    /// Returns true if the request carries the call's deadline to the server.
    #[inline(always)]
    pub(crate) fn is_on_wire(&self) -> bool {
        self.expires as u8 >= Expires::Caller as u8
    }

    /// Sets the caller's deadline, after [`ClientSlot::begin`].
    #[inline(always)]
    pub(crate) fn expire_at(&mut self, deadline_ns: u64) {
        self.expires = Expires::Caller;
        self.expiry_ns = deadline_ns;
    }

    /// Sets the default timeout.
    pub(crate) fn expire_by_default_at(&mut self, at_ns: u64) {
        assert!(!self.is_on_wire(), "a default timeout replaces no deadline");
        self.expires = Expires::Default;
        self.expiry_ns = at_ns;
    }

    /// Sets a deadline that is carried on the wire, the caller's or an inherited one.
    pub(crate) fn set_expiry(&mut self, expiry: Expiry, spare: &mut FreeList<ClientParts>) {
        assert!(expiry.is_on_wire, "a deadline is carried on the wire, a default timeout is not");
        assert!(
            expiry.at_ns <= expiry.inherited_ns,
            "a call ends at its inherited deadline at the latest"
        );
        self.expire_at(expiry.at_ns);
        if expiry.inherited_ns == expiry.at_ns {
            self.expires = Expires::Inherited;
        } else if expiry.inherited_ns != NEVER {
            self.parts(spare).inherited_ns = expiry.inherited_ns;
        }
    }

    /// Notes that the request was given up, and counts requests without any sign from the server. `rounds` is
    /// the stride.
    pub(crate) fn note_given_up(&mut self, stride: u64) {
        assert!(self.state != ClientState::Free, "a slot without a call gives no request up");
        let is_heard = self.state != ClientState::Sending
            || self.parts.as_ref().is_some_and(|parts| parts.acknowledged.count() > 0);
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
    pub(crate) fn note_seen(&mut self, request: u64, stride: u64) {
        assert!(request < self.number, "the server has seen an earlier request of the slot");
        let later = (self.number - request) / stride - 1;
        self.unacknowledged_rounds =
            self.unacknowledged_rounds.min(u32::try_from(later).unwrap_or(u32::MAX));
    }

    /// Returns true if every packet of a multicast request had to be sent again; `None` if the request did
    /// not use multicast.
    #[inline]
    pub(crate) fn missed_multicast(&self) -> Option<bool> {
        let parts = self.parts.as_ref()?;
        parts.announced.map(|_| parts.repeated >= self.request_packets)
    }

    /// Returns true if a loss may be a sign of congestion. Where multicast delivers no packet at all,
    /// multicast does not reach the server, and the losses are no such sign.
    pub(crate) fn is_congestion_loss(&self) -> bool {
        let Some(parts) = &self.parts else { return true };
        parts.announced.is_none() || parts.acknowledged.count() > parts.repeated
    }

    /// Returns the next packet to send again.
    #[inline]
    pub(crate) fn first_lost(&self) -> Option<u32> {
        let parts = self.parts.as_ref()?;
        parts.lost.first_from(parts.acknowledged.cumulative())
    }

    /// Notes that a frame was taken and brought the slot forward.
    #[inline]
    pub(crate) fn heard(&mut self) {
        self.unanswered = 0;
        self.backoff = 0;
        self.probed = false;
    }
}

// With the buffers and continuations of an endpoint.
const _: () = assert!(size_of::<ClientSlot<Box<u8>, [u64; 3]>>() == 128);

#[cfg(test)]
mod tests {
    use super::super::credits::lent;
    use super::*;
    use crate::session::backlog::Queued;

    #[test]
    fn is_likely__until_three_misses_in_a_row_and_then_once_in_64_requests() {
        let mut reception = Reception::default();
        for _ in 0..2 {
            for _ in 1..MISSES_MAX {
                reception.note(true);
                assert!(reception.is_likely());
            }
            // A delivered request resets the count.
            reception.note(false);
        }
        (0..MISSES_MAX).for_each(|_| reception.note(true));
        for _ in 0..2 {
            assert!((1..SKIPPED_MAX).all(|_| !reception.is_likely()));
            assert!(reception.is_likely());
            // Multicast may fail for ever.
            reception.note(true);
        }
        reception.note(false);
        assert!((0..SKIPPED_MAX).all(|_| reception.is_likely()));
    }

    /// Returns an open session with this number of slots.
    fn session(slots: u16) -> ClientSession<Vec<u8>, u64> {
        let mut session = ClientSession::opening(0, &RtoBounds::default());
        let agreed = Agreed {
            peer: PeerKey(1),
            peer_session: 2,
            peer_token: 3,
            slots,
            credits: 8,
            packet_bytes: 1_200,
            peer_message_bytes_max: 1 << 20,
        };
        session.establish(agreed, &CongestionControl::default());
        session
    }

    /// A round trip known from elsewhere counts until one is measured.
    #[test]
    fn expect__counts_until_a_round_trip_is_measured() {
        let bounds = RtoBounds::default();
        let mut trips = RoundTrips::new(&bounds);
        let mut known = RttEstimator::new();
        for path_ns in [300_000, 20_000_000] {
            let before_ns = trips.probe_ns;
            trips.expect(path_ns, &bounds);
            known.expect(path_ns.into());
            assert_eq!(trips.probe_ns, known.probe_ns(&bounds));
            assert_ne!(trips.probe_ns, before_ns);
        }
        trips.sample(2_000_000, 1_000_000, &bounds);
        // Nor does a known round trip end the delay of probes.
        trips.note_probe(trips.probe_ns, &bounds);
        let measured_ns = trips.probe_ns;
        trips.expect(50_000_000, &bounds);
        assert_eq!(trips.probe_ns, measured_ns);
    }

    #[test]
    fn sample__takes_all_of_a_round_trip_in() {
        let bounds = RtoBounds::default();
        let mut trips = RoundTrips::new(&bounds);
        assert_eq!((trips.sampled_ns, trips.backoff, trips.shortest_ns), (u64::MAX, 0, u32::MAX));
        let mut known = RttEstimator::new();
        for (sent_ns, now_ns, shortest_ns) in [
            (0, 10_000_000_000, u32::MAX),
            (5, 1_000_005, 1_000_000),
            (1_000, 3_001_000, 1_000_000),
            (7_000, 507_000, 500_000),
            (9_000, 8_000, 0),
        ] {
            trips.backoff = 3;
            trips.sample(now_ns, sent_ns, &bounds);
            known.sample(now_ns.saturating_sub(sent_ns));
            assert_eq!(trips.shortest_ns, shortest_ns);
            assert_eq!((trips.sampled_ns, trips.backoff), (now_ns, 0));
            assert_eq!(trips.probe_ns, known.probe_ns(&bounds));
            assert_eq!(trips.rtt.srtt_ns(), known.srtt_ns());
        }
    }

    /// Twice the time waited in vain, not less than before, and at most two doublings of the timeout.
    #[test]
    fn note_probe__gives_the_next_ones_twice_the_time() {
        let bounds = RtoBounds::default();
        let mut trips = RoundTrips::new(&bounds);
        trips.sample(1_000_000, 900_000, &bounds);
        let (first_ns, most_ns) = (trips.probe_ns, trips.rtt.rto_ns(&bounds, 2));
        assert!(first_ns * 4 < most_ns, "{first_ns} {most_ns}");
        trips.note_probe(first_ns / 4, &bounds);
        assert_eq!(trips.probe_ns, first_ns);
        trips.note_probe(first_ns, &bounds);
        assert_eq!(trips.probe_ns, 2 * first_ns);
        for waited_ns in [most_ns / 2, most_ns, 100 * most_ns] {
            trips.note_probe(waited_ns, &bounds);
            assert_eq!(trips.probe_ns, (2 * waited_ns).min(most_ns));
        }
    }

    /// The session has neither credits nor slots, and sends no packet.
    #[test]
    fn opening__has_nothing_until_the_peer_has_agreed() {
        let session: ClientSession<Vec<u8>, u64> =
            ClientSession::opening(77, &RtoBounds::default());
        assert_eq!((session.first_request, session.peer, session.agreed), (77, NO_PEER, None));
        assert_eq!((session.free, session.slots.len()), (NO_SLOT, 0));
        assert_eq!(session.credits, Credits::default());
        assert_eq!((session.waiting_slots, session.sendable_packets()), (0, 0));
        assert_eq!((session.packet_bytes, session.plain_request_bytes_max), (0, 0));
        assert_eq!((session.retired, session.pending_calls()), (0, 0));
        assert!(!session.awaits_release && !session.is_draining && !session.backlog.was_used());
        assert!(session.stalled.is_empty() && session.held.is_empty());
        assert!(session.next_expiry_ns == NEVER && session.expiry_timer.is_none());
        assert_eq!((session.multicast.misses, session.multicast.skipped), (0, 0));
    }

    #[test]
    fn establish__takes_all_that_was_agreed() {
        use crate::congestion::{
            CongestionConfig, DcqcnConfig, Flow, Rate, SwiftConfig, TimelyConfig,
        };
        let line = Rate::gbit(25);
        for config in [
            CongestionConfig::Timely(TimelyConfig::for_line(line)),
            CongestionConfig::Dcqcn(DcqcnConfig::for_line(line)),
            CongestionConfig::Swift(SwiftConfig::new()),
        ] {
            let control = CongestionControl::new(config).unwrap();
            for (packet_bytes, message_bytes_max) in
                [(1_200, 1_199), (1_200, 1_200), (1_200, 1_201)]
            {
                let mut session: ClientSession<Vec<u8>, u64> =
                    ClientSession::opening(64, &RtoBounds::default());
                let agreed = Agreed {
                    peer: PeerKey(1),
                    peer_session: 2,
                    peer_token: 3,
                    slots: 32,
                    credits: 8,
                    packet_bytes,
                    peer_message_bytes_max: message_bytes_max,
                };
                session.establish(agreed, &control);
                assert_eq!((session.agreed, session.peer), (Some(agreed), PeerKey(1)));
                assert_eq!(session.to, Destination::new(2, 3));
                assert_eq!((session.stride(), session.slots.len()), (32, SLOTS_AT_FIRST.into()));
                assert_eq!((session.credits, session.message_credits_max), (Credits::new(8), 8));
                let plain = (session.packet_bytes, session.plain_request_bytes_max);
                assert_eq!(plain, (packet_bytes, packet_bytes.min(message_bytes_max)));
                // Nothing is known of the path yet.
                let flow = Flow { credits: 8, packet_bytes, base_rtt_ns: 0 };
                let begun = format!("{:?}", control.start(flow));
                assert_eq!(format!("{:?}", session.congestion), begun);
            }
        }
    }

    /// With many credits a message gets at most half of the credits.
    #[test]
    fn establish__shares_credits_among_messages_where_there_are_many() {
        for (credits, most) in [
            (1, 1),
            (CREDITS_SHARED_MIN - 1, CREDITS_SHARED_MIN - 1),
            (CREDITS_SHARED_MIN, CREDITS_SHARED_MIN / 2),
            (1_000, 500),
        ] {
            let mut session: ClientSession<Vec<u8>, u64> =
                ClientSession::opening(0, &RtoBounds::default());
            let agreed = Agreed {
                peer: PeerKey(1),
                peer_session: 2,
                peer_token: 3,
                slots: 8,
                credits,
                packet_bytes: 1_200,
                peer_message_bytes_max: 1 << 20,
            };
            session.establish(agreed, &CongestionControl::default());
            for held in [0, 1, most] {
                session.slots[0].held = lent(credits, held.into()).1;
                assert_eq!(session.message_credits(0), u32::from(most - held), "of {credits}");
            }
            session.slots[0].held = lent(most + 1, u32::from(most) + 1).1;
            assert_eq!(session.message_credits(0), 0);
            assert_eq!(session.sendable_packets(), credits.into());
        }
    }

    /// Credits in use are packets in flight, except the credits of calls whose handlers run.
    #[test]
    fn sendable_packets__fill_the_window_as_far_as_there_are_credits() {
        use crate::congestion::{CongestionConfig, CongestionCounters, Flow, SwiftConfig};
        let mut session = session(8);
        let control = CongestionControl::new(CongestionConfig::Swift(SwiftConfig::new())).unwrap();
        let flow = Flow { credits: 8, packet_bytes: 1_200, base_rtt_ns: 0 };
        session.congestion = control.start(flow);
        let mut windows = Vec::new();
        for now_ns in 0..100 {
            let window = session.congestion.window_packets();
            windows.push(window);
            for (credits, waiting) in (0..=8).flat_map(|c| (0..=8 - c).map(move |w| (c, w))) {
                session.credits = lent(8, 8 - credits).0;
                session.waiting_slots = waiting;
                let on_the_way = 8 - credits - waiting;
                let sendable = credits.min(window.saturating_sub(on_the_way));
                assert_eq!(session.sendable_packets(), sendable, "{window} {credits} {waiting}");
            }
            session.congestion.on_loss(now_ns, 5, &mut CongestionCounters::default());
        }
        assert!(windows.contains(&u32::MAX) && windows.contains(&1), "{windows:?}");
        assert!(windows.iter().any(|window| (2..8).contains(window)), "{windows:?}");
    }

    #[test]
    fn has_room__until_all_slots_are_taken_that_were_agreed_on() {
        let opening: ClientSession<Vec<u8>, u64> = ClientSession::opening(0, &RtoBounds::default());
        assert!(!opening.has_room());
        for (slots, usable) in [(1, 1), (8, 8), (32, 32), (64, 63), (256, 255)] {
            let mut session = session(slots);
            for taken in 0..usable {
                assert!(session.has_room(), "{taken} of {slots}");
                let slot = session.take_slot().expect("a slot");
                assert!(!session.is_reserved(slot));
                session.slots[slot].state = ClientState::Sending;
                assert_eq!(session.busy_slots(), taken + 1);
            }
            assert!(!session.has_room());
            assert_eq!(session.take_slot(), None);
        }
    }

    /// With credits available the longest waiting slot has its turn; without waiting slots any slot has; the
    /// reserved slot always has.
    #[test]
    fn take_turn__in_the_order_in_which_they_began_to_wait() {
        for slots in [8, 64] {
            let mut session = session(slots);
            assert!((0..4).all(|slot| session.take_turn(slot)));
            session.stalled.push(3);
            session.stalled.push(1);
            session.credits = lent(1, 1).0;
            let is_reserved = |slot| slots == 64 && slot == RESERVED;
            for slot in 0..4 {
                assert_eq!(session.take_turn(slot), is_reserved(slot), "there are no credits");
            }
            session.credits = Credits::new(1);
            for slot in [0, 1, 2] {
                assert_eq!(session.take_turn(slot), is_reserved(slot), "another comes first");
            }
            assert!(session.take_turn(3));
            assert_eq!(session.take_turn(3), is_reserved(3));
            assert!(session.take_turn(1));
            assert!(session.stalled.is_empty());
        }
    }

    #[test]
    fn pending_calls__are_those_in_slots_and_those_that_wait_for_one() {
        let mut session = session(8);
        for (busy, waiting) in [(1, 0), (2, 1), (2, 2), (3, 2)] {
            session.slots[busy - 1].state = ClientState::Sending;
            while session.backlog.len() < waiting {
                let (request, response) = (Vec::new(), Vec::new());
                let call = PendingCall { method: 1, tag: 1, request, response };
                session.backlog.push_back(Queued { call, expiry: Expiry::NONE });
            }
            assert_eq!(session.busy_slots(), busy);
            assert_eq!(session.pending_calls(), busy + waiting);
        }
    }

    /// Nothing of a message is left for the next one.
    #[test]
    fn reset__makes_used_parts_as_good_as_fresh() {
        assert_fresh(ClientParts::fresh());
        let mut parts = ClientParts::fresh();
        let announcement = Announcement { group: 1, sequence: 2 };
        parts.acknowledged.insert(3);
        parts.lost.set_new(4);
        (parts.response_packets, parts.response_size) = (5, 6);
        parts.received.insert(7);
        (parts.requested_below, parts.resend_below) = (8, 9);
        parts.probed_packet = Some(ProbedPacket { packet: 10, limit: 11 });
        parts.order.note_new(0..12);
        parts.order.note_repeat(3);
        parts.inherited_ns = 13;
        parts.announced = Some(Announced { announcement, is_due: true });
        parts.repeated = 14;
        parts.reset();
        assert_fresh(parts);
    }

    fn assert_fresh(parts: ClientParts) {
        // By name, so that the compiler demands new fields here.
        let ClientParts {
            acknowledged,
            lost,
            response_packets,
            response_size,
            received,
            requested_below,
            resend_below,
            probed_packet,
            mut order,
            inherited_ns,
            announced,
            repeated,
        } = parts;
        assert_eq!((acknowledged, received), (Window::new(), Window::new()));
        assert!(lost.is_empty() && probed_packet.is_none() && announced.is_none());
        assert_eq!((response_packets, response_size), (0, 0));
        assert_eq!((requested_below, resend_below, repeated), (0, 0, 0));
        assert_eq!(inherited_ns, NEVER);
        assert!(order.has_no_repetition());
        order.note_new(0..2);
        order.note_repeat(0);
        assert_eq!((order.of(0), order.of(1)), (3, 2), "it counts from the beginning");
    }

    #[test]
    fn new__slots_are_free_and_say_nothing_of_a_call() {
        let session = session(8);
        for (place, slot) in session.slots.iter().enumerate() {
            let next_free = if place == 7 { NO_SLOT } else { place as u16 + 1 };
            // By name, so that the compiler demands new fields here.
            let ClientSlot {
                number,
                call,
                parts,
                deadline_ns,
                timed_ns,
                timed_packet,
                held,
                request_packets,
                request_sent,
                response_limit,
                method,
                state,
                send_path,
                awaits_plain,
                queued,
                timer,
                in_wheel,
                wakes_soon,
                next_free: next,
                pull_due,
                backoff,
                unanswered,
                probed,
                grant,
                expires,
                unacknowledged_rounds,
                given_up,
                expiry_ns,
            } = slot;
            assert_eq!((*number, *state, *next), (place as u64, ClientState::Free, next_free));
            assert!(call.is_none() && parts.is_none() && *timer == TimerEntry::NONE);
            assert_eq!((*deadline_ns, *timed_ns, *timed_packet), (0, 0, NOT_TIMED));
            assert_eq!(
                (held.count(), *request_packets, *request_sent, *response_limit),
                (0, 0, 0, 0)
            );
            assert_eq!((*method, *send_path, *grant), (0, SendPath::General, 1));
            assert!(!awaits_plain && !queued && !in_wheel && !wakes_soon && !pull_due && !probed);
            assert_eq!((*backoff, *unanswered, *unacknowledged_rounds, *given_up), (0, 0, 0, 0));
            assert!(matches!(expires, Expires::Unset) && *expiry_ns == NEVER);
        }
    }

    /// Nothing of the earlier call is left.
    #[test]
    fn start__readies_a_used_slot_for_a_call_of_which_nothing_was_sent() {
        let mut session = session(8);
        let slot = &mut session.slots[0];
        (slot.pull_due, slot.probed, slot.awaits_plain) = (true, true, true);
        (slot.backoff, slot.unanswered, slot.grant) = (3, 4, 5);
        (slot.timed_packet, slot.request_sent, slot.request_packets) = (6, 7, 8);
        slot.expire_at(9);
        let (request, response) = (vec![1], vec![2]);
        slot.start(PendingCall { method: 10, tag: 11, request, response }, 12, SendPath::Plain);
        assert_eq!((slot.state, slot.send_path), (ClientState::Sending, SendPath::Plain));
        assert!(!slot.pull_due && !slot.probed && !slot.awaits_plain && !slot.is_on_wire());
        assert_eq!((slot.backoff, slot.unanswered, slot.grant), (0, 0, 1));
        let packets = (slot.timed_packet, slot.request_sent, slot.request_packets);
        assert_eq!(packets, (NOT_TIMED, 0, 12));
        let SlotCall { tag, request, response } = slot.call.as_ref().expect("a call");
        assert_eq!((slot.method, *tag, &request[..], &response[..]), (10, 11, &[1][..], &[2][..]));
        slot.queued = true;
        Credits::new(1).lend_first(&mut slot.held);
        slot.note_plain_sent(13);
        assert!(slot.awaits_plain && !slot.queued);
        assert_eq!((slot.send_path, slot.held.count()), (SendPath::General, 1));
        assert_eq!((slot.request_sent, slot.response_limit), (1, 1));
        assert_eq!((slot.timed_packet, slot.timed_ns), (0, 13));
    }

    #[test]
    fn enter_wheel__until_the_slot_leaves_it_or_comes_due() {
        let (bounds, now_ns) = (RtoBounds::default(), 5_000_000_000);
        let mut timers = TimerWheel::new(now_ns);
        let key = TimerKey { session: 1, generation: 2, slot: 3 };
        let mut session = session(8);
        let slot = &mut session.slots[0];
        let soon_ns = bounds.soon_ns();
        for (ahead_ns, wakes_soon) in [(1, true), (soon_ns, true), (soon_ns + 1, false)] {
            slot.deadline_ns = now_ns + ahead_ns;
            slot.enter_wheel(now_ns, key, &bounds, &mut timers);
            assert_eq!((slot.in_wheel, slot.wakes_soon), (true, wakes_soon), "{ahead_ns}");
            assert_eq!(timers.entry_count(), 1);
            for _ in 0..2 {
                slot.leave_wheel(&mut timers);
                assert_eq!(
                    (slot.in_wheel, slot.wakes_soon, timers.entry_count()),
                    (false, false, 0)
                );
            }
        }
        slot.deadline_ns = now_ns + 1;
        slot.enter_wheel(now_ns, key, &bounds, &mut timers);
        slot.note_due();
        assert!(!slot.in_wheel && !slot.wakes_soon);
    }

    /// For every kind of deadline: the time, whether the server learns of it, and the inherited deadline.
    #[test]
    fn set_expiry__is_given_back_as_it_was() {
        let mut spare = FreeList::new();
        let mut session = session(8);
        let slot = &mut session.slots[0];
        let told = |at_ns, inherited_ns| Expiry { at_ns, is_on_wire: true, inherited_ns };
        let get = |slot: &ClientSlot<Vec<u8>, u64>| {
            let Expiry { at_ns, is_on_wire, inherited_ns } = slot.expiry();
            assert_eq!(slot.is_on_wire(), is_on_wire);
            (at_ns, is_on_wire, inherited_ns)
        };
        assert_eq!(get(slot), (NEVER, false, NEVER));
        slot.expire_by_default_at(70);
        assert_eq!(get(slot), (70, false, NEVER));
        for (at_ns, inherited_ns, borrows) in [(50, NEVER, false), (50, 50, false), (50, 60, true)]
        {
            slot.set_expiry(told(at_ns, inherited_ns), &mut spare);
            assert_eq!(get(slot), (at_ns, true, inherited_ns));
            assert_eq!(slot.parts.is_some(), borrows, "only a second time needs more room");
        }
    }

    #[test]
    fn acknowledged_and_received_below__are_none_before_there_are_parts() {
        let mut spare = FreeList::new();
        let mut session = session(8);
        let slot = &mut session.slots[0];
        assert_eq!((slot.acknowledged_below(), slot.received_below()), (0, 0));
        let parts = slot.parts(&mut spare);
        (0..3).for_each(|packet| _ = parts.acknowledged.insert(packet));
        [0, 1, 3].into_iter().for_each(|packet| _ = parts.received.insert(packet));
        assert_eq!((slot.acknowledged_below(), slot.received_below()), (3, 2));
    }

    /// Without multicast any loss may be congestion; with multicast only if more packets were acknowledged
    /// than repeated.
    #[test]
    fn is_congestion_loss__unless_multicast_brings_nothing() {
        let announcement = Announcement { group: 1, sequence: 2 };
        let mut spare = FreeList::new();
        let mut session = session(8);
        let slot = &mut session.slots[0];
        assert!(slot.is_congestion_loss());
        assert_eq!(slot.missed_multicast(), None);
        slot.request_packets = 3;
        for (is_announced, acknowledged, repeated, is_lost, missed) in [
            (false, 0, 0, true, None),
            (false, 0, 2, true, None),
            (true, 0, 0, false, Some(false)),
            (true, 1, 0, true, Some(false)),
            (true, 2, 2, false, Some(false)),
            (true, 3, 2, true, Some(false)),
            (true, 0, 3, false, Some(true)),
        ] {
            let parts = slot.parts(&mut spare);
            parts.reset();
            parts.announced = is_announced.then_some(Announced { announcement, is_due: false });
            (0..acknowledged).for_each(|packet| _ = parts.acknowledged.insert(packet));
            parts.repeated = repeated;
            assert_eq!(
                slot.is_congestion_loss(),
                is_lost,
                "{is_announced} {acknowledged} {repeated}"
            );
            assert_eq!(slot.missed_multicast(), missed, "{is_announced} {acknowledged} {repeated}");
        }
    }

    #[test]
    fn heard__begins_the_search_for_what_was_lost_anew() {
        let mut session = session(8);
        let slot = &mut session.slots[0];
        (slot.unanswered, slot.backoff, slot.probed) = (3, 4, true);
        slot.heard();
        assert_eq!((slot.unanswered, slot.backoff, slot.probed), (0, 0, false));
    }

    #[test]
    fn take_reserved_slot__one_that_is_kept_and_free_and_has_numbers_left() {
        for has_reserve in [false, true] {
            let slots =
                if has_reserve { SLOTS_WITH_RESERVE_MIN } else { SLOTS_WITH_RESERVE_MIN / 2 };
            for (state, is_free) in [
                (ClientState::Free, true),
                (ClientState::Sending, false),
                (ClientState::Waiting, false),
                (ClientState::Receiving, false),
            ] {
                for (number, is_left) in
                    [(0, true), (REQUEST_NUMBER_END - 1, true), (REQUEST_NUMBER_END, false)]
                {
                    let mut session = session(slots);
                    session.slots[RESERVED].state = state;
                    session.slots[RESERVED].number = number;
                    let expected = (has_reserve && is_free && is_left).then_some(RESERVED);
                    assert_eq!(
                        session.take_reserved_slot(),
                        expected,
                        "{slots} {state:?} {number}"
                    );
                }
            }
        }
    }

    /// The server has followed up to the request named here: only later requests were unseen.
    #[test]
    fn note_seen__leaves_the_requests_behind_it_unheard() {
        for stride in [1, 8, 64] {
            for (unacknowledged_rounds, behind, left) in
                [(5, 0, 0), (5, 1, 1), (5, 4, 4), (5, 5, 5), (5, 6, 5), (0, 3, 0)]
            {
                let mut session = session(8);
                let slot = &mut session.slots[0];
                (slot.number, slot.unacknowledged_rounds) =
                    (1_000 * stride + 7, unacknowledged_rounds);
                slot.note_seen(slot.number - (behind + 1) * stride, stride);
                assert_eq!(
                    slot.unacknowledged_rounds, left,
                    "{unacknowledged_rounds} unacknowledged_rounds, {behind} behind, {stride}"
                );
            }
        }
    }

    #[test]
    fn note_given_up__counts_requests_in_a_row_of_which_nothing_was_heard() {
        let (stride, mut spare) = (8, FreeList::new());
        let mut session = session(8);
        let slot = &mut session.slots[0];
        let mut give_up = |slot: &mut ClientSlot<_, _>, state, acknowledged: bool| {
            slot.number += stride;
            slot.state = state;
            let parts = slot.parts(&mut spare);
            if acknowledged {
                parts.acknowledged.insert(0);
            }
            slot.note_given_up(stride);
            spare.take_back(&mut slot.parts);
            slot.unacknowledged_rounds
        };
        assert_eq!(give_up(slot, ClientState::Sending, false), 1);
        assert_eq!(give_up(slot, ClientState::Sending, false), 2);
        assert_eq!(give_up(slot, ClientState::Sending, true), 0, "a packet was acknowledged");
        assert_eq!(give_up(slot, ClientState::Sending, false), 1);
        assert_eq!(give_up(slot, ClientState::Waiting, false), 0, "all of it was acknowledged");
        assert_eq!(give_up(slot, ClientState::Sending, false), 1);
        assert_eq!(give_up(slot, ClientState::Sending, false), 2);
        slot.number += stride;
        assert_eq!(give_up(slot, ClientState::Sending, false), 1, "one between them was answered");
    }

    fn call() -> PendingCall<Vec<u8>, u64> {
        PendingCall { method: 1, tag: 2, request: Vec::new(), response: Vec::new() }
    }

    /// Returns a session whose first slot has begun a call with a request of this many packets.
    fn calling(packets: u32) -> ClientSession<Vec<u8>, u64> {
        let mut session = session(8);
        let slot = session.take_slot().expect("the session is open");
        session.slots[slot].start(call(), packets, SendPath::General);
        session
    }

    #[test]
    #[should_panic(expected = "a session is established once")]
    fn establish__twice() {
        let mut session = session(8);
        let agreed = session.agreed.expect("the session is open");
        session.establish(agreed, &CongestionControl::default());
    }

    #[test]
    #[should_panic(expected = "a call begins in a free slot")]
    fn start__of_a_slot_with_a_call() {
        calling(1).slots[0].start(call(), 1, SendPath::General);
    }

    #[test]
    #[should_panic(expected = "a slot takes one call at a time")]
    fn start__of_a_free_slot_with_a_call() {
        let mut session = calling(1);
        session.slots[0].state = ClientState::Free;
        session.slots[0].start(call(), 1, SendPath::General);
    }

    #[test]
    #[should_panic(expected = "a slot begins a call without credits")]
    fn start__of_a_slot_with_credits() {
        let mut session = session(8);
        session.slots[0].held = lent(8, 1).1;
        session.slots[0].start(call(), 1, SendPath::General);
    }

    #[test]
    #[should_panic(expected = "a retired slot takes no call")]
    fn start__of_a_slot_without_request_numbers() {
        let mut session = session(8);
        session.slots[0].number = REQUEST_NUMBER_END;
        session.slots[0].start(call(), 1, SendPath::General);
    }

    #[test]
    #[should_panic(expected = "no packet is sent beyond the end of a request")]
    fn note_sent__beyond_the_end() {
        calling(3).slots[0].note_sent(4);
    }

    #[test]
    #[should_panic(expected = "only a packet of a request that was sent is repeated")]
    fn note_repeated__of_a_packet_that_was_not_sent() {
        let mut session = calling(3);
        session.slots[0].note_sent(1);
        session.slots[0].note_repeated(1, &mut FreeList::new());
    }

    #[test]
    #[should_panic(expected = "a slot enters WAITING when the whole request is acknowledged")]
    fn enter_waiting__with_a_packet_unacknowledged() {
        let mut session = calling(1);
        session.slots[0].note_sent(1);
        session.enter_waiting(1, 0);
    }

    #[test]
    #[should_panic(expected = "a slot leaves WAITING that was not counted")]
    fn leave_waiting__of_a_slot_that_was_not_counted() {
        let mut session = calling(1);
        session.slots[0].state = ClientState::Waiting;
        session.slots[0].held = lent(8, 1).1;
        session.leave_waiting(0);
    }

    #[test]
    #[should_panic(expected = "each slot counted as waiting holds a credit")]
    fn sendable_packets__with_more_waiting_slots_than_lent_credits() {
        use crate::congestion::{CongestionConfig, CongestionCounters, SwiftConfig};
        let mut session = session(8);
        let control = CongestionControl::new(CongestionConfig::Swift(SwiftConfig::new())).unwrap();
        let flow = Flow { credits: 8, packet_bytes: 1_200, base_rtt_ns: 0 };
        session.congestion = control.start(flow);
        session.congestion.on_loss(0, 9, &mut CongestionCounters::default());
        session.waiting_slots = 1;
        session.sendable_packets();
    }

    #[test]
    #[should_panic(expected = "a response in parts begins after the whole request was sent")]
    fn enter_receiving__while_packets_are_left_to_send() {
        let mut session = calling(3);
        session.slots[0].note_sent(2);
        session.slots[0].enter_receiving(5_000, 5, &mut FreeList::new());
    }

    /// Returns a session whose first slot receives a response of five packets.
    fn receiving() -> ClientSession<Vec<u8>, u64> {
        let mut session = calling(1);
        session.slots[0].note_plain_sent(1);
        session.slots[0].enter_receiving(5_000, 5, &mut FreeList::new());
        session
    }

    #[test]
    #[should_panic(expected = "a response begins once")]
    fn enter_receiving__twice() {
        receiving().slots[0].enter_receiving(5_000, 5, &mut FreeList::new());
    }

    #[test]
    #[should_panic(expected = "no packet is allowed beyond the end of a response")]
    fn allow__beyond_the_end() {
        receiving().slots[0].allow(5);
    }

    #[test]
    #[should_panic(expected = "a call ends once")]
    fn end__twice() {
        let mut session = calling(1);
        (0..2).for_each(|_| session.slots[0].end(8));
    }

    #[test]
    #[should_panic(expected = "a slot is free before it returns to the free slots")]
    fn release__of_a_slot_with_a_call() {
        calling(1).release(0);
    }

    #[test]
    #[should_panic(expected = "no more slots are retired than the session has")]
    fn retire__of_more_slots_than_there_are() {
        let mut session = session(8);
        (0..9).for_each(|_| _ = session.retire());
    }

    #[test]
    #[should_panic(expected = "a slot has one entry in the timer wheel")]
    fn enter_wheel__twice() {
        let mut timers = TimerWheel::new(0);
        let mut session = calling(1);
        let key = TimerKey { session: 0, generation: 0, slot: 0 };
        for _ in 0..2 {
            session.slots[0].enter_wheel(0, key, &RtoBounds::default(), &mut timers);
        }
    }

    #[test]
    #[should_panic(expected = "a timer comes due that the slot has not set")]
    fn note_due__without_an_entry() {
        calling(1).slots[0].note_due();
    }

    #[test]
    #[should_panic(expected = "a default timeout replaces no deadline")]
    fn expire_by_default_at__over_a_deadline() {
        let mut session = calling(1);
        session.slots[0].expire_at(5);
        session.slots[0].expire_by_default_at(9);
    }

    #[test]
    #[should_panic(expected = "a session is released that has no entry for its release")]
    fn note_release__without_an_entry() {
        session(8).note_release();
    }

    #[test]
    #[should_panic(expected = "the credits of a session are free or with its slots")]
    fn assert_sound__with_a_credit_lost() {
        let mut session = calling(1);
        session.credits.lend(&mut HeldCredits::default(), 1);
        session.assert_sound();
    }

    #[test]
    #[should_panic(expected = "each free slot is listed once, or retired")]
    fn assert_sound__with_a_free_slot_lost() {
        let mut session = session(8);
        session.assert_sound();
        session.take_slot();
        session.assert_sound();
    }

    #[test]
    #[should_panic(expected = "a paced session sends no packet before its time")]
    fn charge__before_the_time_of_the_next_packet() {
        use crate::congestion::CongestionCounters;
        let mut session = session(8);
        session.congestion.on_loss(0, 64, &mut CongestionCounters::default());
        session.charge(1_000_000, 1, 1_000);
        session.charge(1_000_000, 1, 0);
        session.charge(1_000_000, 1, 1);
    }

    /// The server would take a request that many rounds ahead for a future one.
    #[test]
    fn take_reserved_slot__not_beyond_the_requests_that_the_server_follows() {
        let mut session = session(SLOTS_WITH_RESERVE_MIN);
        for (rounds, slot) in [(FUTURE_ROUNDS_MAX - 1, Some(RESERVED)), (FUTURE_ROUNDS_MAX, None)] {
            session.slots[RESERVED].unacknowledged_rounds = rounds as u32;
            assert_eq!(session.take_reserved_slot(), slot, "after {rounds} rounds");
        }
    }
}
