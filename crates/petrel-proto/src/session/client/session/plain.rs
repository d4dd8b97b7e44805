//! A client session and one of its slots, borrowed for a small call: every part is looked up once.
//!
//! The fast path of `rpc/fast` composes these steps. All are inlined, and the borrowed parts stay in registers.

use super::super::paths::ClientPaths;
use super::super::slot::{ClientSlot, NO_SLOT, SendPath, SlotCall};
use super::ClientSession;
use super::flow::hear;
use crate::buffer::Buffer;
use crate::congestion::{Ack, Congestion, CongestionCounters};
use crate::recovery::round_trips::RoundTrips;
use crate::recovery::rtt::RtoBounds;
use crate::session::backlog::Backlog;
use crate::session::credits::Credits;
use crate::session::expiry_timer::ExpiryTimer;
use crate::session::turns::SlotQueue;
use crate::session::{NO_PEER, PeerKey};
use crate::timer::TimerWheel;
use crate::wire::Destination;

/// The parts of a session for a call with a request of one packet. Each is read when it is needed: a value read
/// before would occupy a register, or be stored. No operation on them may panic while a caller holds the call:
/// otherwise the compiler would keep the call in memory, to drop it from there.
pub(crate) struct PlainPlace<'a, B, T> {
    peer: &'a PeerKey,
    to: &'a Destination,
    credits: &'a mut Credits,
    stalled: &'a SlotQueue,
    trips: &'a RoundTrips,
    congestion: &'a Congestion,
    expiry_timer: &'a mut ExpiryTimer,
    slot: usize,
    state: &'a mut ClientSlot<B, T>,
}

impl<'a, B: Buffer, T> PlainPlace<'a, B, T> {
    /// Takes a free slot of a session, if the `sizes` of the request and of the response's buffer are at most one
    /// packet each.
    #[inline(always)]
    pub(crate) fn take_free(
        session: &'a mut ClientSession<B, T>,
        sizes: (usize, usize),
    ) -> Option<Self> {
        let is_plain = sizes.0 < session.plain_request_bytes_end as usize
            && sizes.1 <= session.packet_bytes as usize;
        if !is_plain {
            return None;
        }
        let slot = usize::from(session.free);
        // Without a free slot, or before the session is open, the index is beyond the slots.
        let (place, free, _) = Self::at(session, slot)?;
        *free = place.state.next_free();
        Some(place)
    }

    /// Borrows a slot, the first of the list of free slots, and the paths.
    #[inline(always)]
    fn at(
        session: &'a mut ClientSession<B, T>,
        slot: usize,
    ) -> Option<(Self, &'a mut u16, &'a mut Option<Box<ClientPaths>>)> {
        let ClientSession {
            free,
            slots,
            to,
            credits,
            peer,
            stalled,
            trips,
            congestion,
            expiry_timer,
            paths,
            ..
        } = session;
        let state = slots.get_mut(slot)?;
        let place =
            Self { peer, to, credits, stalled, trips, congestion, expiry_timer, slot, state };
        Some((place, free, paths))
    }

    /// Borrows a slot that waits in the transmit queue, if its request may be sent by this path now.
    #[inline(always)]
    pub(crate) fn of_queued(
        session: &'a mut ClientSession<B, T>,
        slot: usize,
        path: SendPath,
    ) -> Option<Self> {
        let (place, ..) = Self::at(session, slot)?;
        let is_first = place.credits.available() > 0 && place.stalled.is_empty();
        let may_send = place.state.path() == path && is_first && !place.congestion.is_limited();
        may_send.then_some(place)
    }

    /// Borrows the slot that has waited longest for a credit, with its path, if its request may be sent now. The slot waits
    /// no longer.
    #[inline(always)]
    pub(crate) fn of_woken(
        session: &'a mut ClientSession<B, T>,
        slot: usize,
    ) -> Option<(Self, SendPath)> {
        let path = session.slots.get(slot)?.path();
        let is_first = session.stalled.first() == Some(slot) && session.credits.available() > 0;
        let may_send = is_first && !session.congestion.is_limited() && session.peer != NO_PEER;
        if !may_send || !matches!(path, SendPath::Plain | SendPath::Timed) {
            return None;
        }
        session.stalled.pop();
        let (place, ..) = Self::at(session, slot)?;
        Some((place, path))
    }

    /// [`PlainPlace::of_queued`] in a session of several paths, with the paths: their windows take the place of the
    /// congestion controller.
    #[inline(always)]
    pub(crate) fn of_queued_by_paths(
        session: &'a mut ClientSession<B, T>,
        slot: usize,
    ) -> Option<(Self, &'a mut ClientPaths)> {
        let (place, _, paths) = Self::at(session, slot)?;
        let is_first = place.credits.available() > 0 && place.stalled.is_empty();
        let may_send = is_first && place.state.path() == SendPath::Plain;
        may_send.then_some((place, paths.as_deref_mut()?))
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    #[inline(always)]
    pub(crate) fn peer(&self) -> PeerKey {
        *self.peer
    }

    /// Returns true if slots of earlier calls wait for a credit.
    #[inline(always)]
    pub(crate) fn others_wait(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Returns true if the session has a credit, and no limit holds the packet back.
    #[inline(always)]
    pub(crate) fn may_send(&self) -> bool {
        self.credits.available() > 0 && !self.congestion.is_limited()
    }

    /// Returns the timer for the deadlines of the session's calls.
    #[inline(always)]
    pub(crate) fn expiry_timer(&mut self) -> &mut ExpiryTimer {
        self.expiry_timer
    }

    #[inline(always)]
    pub(crate) fn hold(&mut self, call: SlotCall<B, T>) {
        self.state.hold(call);
    }

    /// Notes the begun call, and its deadline if one is carried to the server.
    #[inline(always)]
    pub(crate) fn begin(&mut self, method: u16, deadline_ns: Option<u64>) {
        self.state.note_begun(method, 1);
        if let Some(deadline_ns) = deadline_ns {
            self.state.expire_at(deadline_ns);
        }
    }

    /// Notes that the request waits for a turn.
    #[inline(always)]
    pub(crate) fn leave_unsent(&mut self, path: SendPath) {
        self.state.note_unsent(path);
    }

    /// Notes that the slot has an entry in the transmit queue.
    #[inline(always)]
    pub(crate) fn note_queued(&mut self) {
        self.state.note_queued();
    }

    /// Returns the request to send, with its destination and number.
    #[inline(always)]
    pub(crate) fn outgoing(&mut self) -> Option<PlainSend<'_, B>> {
        let (to, number, method) = (*self.to, self.state.number(), self.state.method());
        let deadline_ns = self.state.wire_deadline_ns().unwrap_or(0);
        let request = self.state.request_mut()?;
        Some(PlainSend { to, number, method, deadline_ns, request })
    }

    /// Lends the slot its credit: the request was sent.
    #[inline(always)]
    pub(crate) fn lend(&mut self) {
        self.credits.lend_first(self.state.held_mut());
    }

    /// Notes that the request was sent now. Returns false if the slot's timer must be set by the general
    /// path.
    #[inline(always)]
    pub(crate) fn note_sent(&mut self, now_ns: u64) -> bool {
        self.state.note_plain_sent(now_ns);
        let is_armed = self.trips.backoff() == 0 && self.state.wakes_soon();
        if is_armed {
            self.state.timer_mut().set_deadline(now_ns + self.trips.probe_ns());
        }
        is_armed
    }
}

/// A request of one packet that is ready to be sent.
pub(crate) struct PlainSend<'a, B> {
    pub(crate) to: Destination,
    pub(crate) number: u64,
    pub(crate) method: u16,
    pub(crate) deadline_ns: u64,
    pub(crate) request: &'a mut B,
}

/// The parts of a session for a response of one packet.
pub(crate) struct PlainAnswer<'a, B, T> {
    slot: usize,
    free: &'a mut u16,
    slot_mask: &'a u16,
    stalled: &'a SlotQueue,
    backlog: &'a Backlog<B, T>,
    packet_bytes: &'a u32,
    credits: &'a mut Credits,
    trips: &'a mut RoundTrips,
    congestion: &'a mut Congestion,
    state: &'a mut ClientSlot<B, T>,
}

impl<'a, B: Buffer, T> PlainAnswer<'a, B, T> {
    /// Finds the call that a response of one packet answers, if the request was sent by a fast path.
    #[inline(always)]
    pub(crate) fn find(session: &'a mut ClientSession<B, T>, request: u64) -> Option<Self> {
        if session.congestion.needs_every_ack() {
            return None;
        }
        Self::find_with_paths(session, request).map(|(answer, _)| answer)
    }

    /// [`PlainAnswer::find`] in a session of several paths, with the paths: they hear each answer themselves.
    #[inline(always)]
    pub(crate) fn find_by_paths(
        session: &'a mut ClientSession<B, T>,
        request: u64,
    ) -> Option<(Self, &'a mut ClientPaths)> {
        let (answer, paths) = Self::find_with_paths(session, request)?;
        Some((answer, paths.as_deref_mut()?))
    }

    #[inline(always)]
    fn find_with_paths(
        session: &'a mut ClientSession<B, T>,
        request: u64,
    ) -> Option<(Self, &'a mut Option<Box<ClientPaths>>)> {
        let slot = request as usize & usize::from(session.slot_mask);
        let state = session.slots.get_mut(slot)?;
        if state.path() != SendPath::Sent || state.number() != request {
            return None;
        }
        let answer = Self {
            slot,
            free: &mut session.free,
            slot_mask: &session.slot_mask,
            stalled: &session.stalled,
            backlog: &session.backlog,
            packet_bytes: &session.packet_bytes,
            credits: &mut session.credits,
            trips: &mut session.trips,
            congestion: &mut session.congestion,
            state,
        };
        Some((answer, &mut session.paths))
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Returns the deadline that the request carried.
    #[inline(always)]
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.state.wire_deadline_ns()
    }

    /// Returns the buffer of the response. A call takes this path only with a buffer of at most one packet, so
    /// that a response which fits the buffer is no longer than a packet.
    #[inline(always)]
    pub(crate) fn response_mut(&mut self) -> Option<&mut B> {
        self.state.response_mut()
    }

    /// Takes the slot's credit back.
    #[inline(always)]
    pub(crate) fn take_credit_back(&mut self) {
        self.credits.take_back_only(self.state.held_mut());
    }

    /// Measures the round trip, unless a later packet's was measured, and reports it to congestion control: the round
    /// trip of a later answer without its time, which includes more than the network.
    #[inline(always)]
    pub(crate) fn sample<const LATER: bool>(
        &mut self,
        now_ns: u64,
        bounds: &RtoBounds,
        counters: &mut CongestionCounters,
    ) {
        let since_ns = self.state.timer().since_ns();
        if !self.trips.is_sampled(since_ns) {
            let (trips, congestion) = (&mut *self.trips, &mut *self.congestion);
            let times = (now_ns, since_ns);
            sample::<LATER>(times, *self.packet_bytes, trips, congestion, bounds, counters);
        }
    }

    /// Removes the slot's entry from the timer wheel.
    #[inline(always)]
    pub(crate) fn leave_wheel(&mut self, timers: &mut TimerWheel) {
        self.state.leave_wheel(timers);
    }

    /// Ends the call and frees the slot. Returns `None` if further calls or slots wait for the slot or its
    /// credit, or if the slot's request numbers are used up: then the call stays until
    /// [`ClientSession::take_ended`].
    #[inline(always)]
    pub(crate) fn end(self) -> Option<SlotCall<B, T>> {
        let state = self.state;
        state.end_plain(u64::from(*self.slot_mask) + 1);
        let others_wait = !self.stalled.is_empty() || self.backlog.was_used();
        if !state.has_numbers() || others_wait {
            return None;
        }
        state.set_next_free(*self.free);
        *self.free = self.slot as u16;
        Some(state.take_call())
    }
}

/// Measures a round trip, and reports it to congestion control. Out of line: most responses need no measurement.
#[inline(never)]
fn sample<const LATER: bool>(
    (now_ns, since_ns): (u64, u64),
    packet_bytes: u32,
    trips: &mut RoundTrips,
    congestion: &mut Congestion,
    bounds: &RtoBounds,
    counters: &mut CongestionCounters,
) {
    trips.sample(now_ns, since_ns, bounds);
    let rtt_ns = (!LATER).then(|| now_ns.saturating_sub(since_ns));
    if !congestion.is_bypassed(rtt_ns.unwrap_or(0), false) {
        let (packets, bytes) = (1, packet_bytes);
        let ack = Ack { now_ns, rtt_ns, packets, bytes, ce: false };
        hear(congestion, trips, &ack, counters);
    }
}

const _: () = assert!(NO_SLOT as usize > crate::limits::SLOTS_MAX as usize);
