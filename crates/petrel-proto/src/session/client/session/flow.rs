//! The credits of a client session, and the slots that wait for a credit or for the session's pace
//! (`docs/wire-protocol.md` §4, `docs/congestion.md`).

use super::super::parts::ClientParts;
use super::super::paths::ClientPaths;
use super::super::slot::{ClientSlot, ClientState};
use super::ClientSession;
use crate::congestion::{Ack, Congestion, CongestionCounters};
use crate::recovery::round_trips::RoundTrips;
use crate::recovery::rtt::RtoBounds;
use crate::session::free_list::FreeList;
use crate::wire::Credit;

/// The effect of a CREDIT on a slot in SENDING.
pub(crate) struct Acknowledged {
    /// The cumulative acknowledgement before.
    pub(crate) before: u32,
    pub(crate) credits: u32,
    /// The round trip, if the measured packet was acknowledged.
    pub(crate) rtt_ns: Option<u64>,
}

/// Credits, and the slots waiting for credits.
impl<B, T> ClientSession<B, T> {
    /// Returns the free credits, and the agreed number.
    pub(crate) fn credits(&self) -> (u32, u32) {
        (self.credits.available(), self.credits.agreed())
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
                let room = self.paths().map_or(u32::MAX, ClientPaths::room);
                self.credits.available().min(window.saturating_sub(in_flight)).min(room)
            }
        }
    }

    /// Returns how many credits the slot's message may take beyond those already held.
    #[inline]
    pub(crate) fn message_credits(&self, slot: usize) -> u32 {
        self.message_credits_max.saturating_sub(self.slots[slot].credits())
    }

    /// Returns true if slots wait for a credit or for room in the congestion window.
    #[inline(always)]
    pub(crate) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Lets a slot wait for a credit, behind all waiting slots.
    pub(crate) fn stall(&mut self, slot: usize) {
        assert!(!self.slots[slot].is_free(), "a slot waits for credits on behalf of a call");
        self.stalled.push(slot);
    }

    /// Lets a slot wait for a credit, before all waiting slots: the slot could not use its turn.
    pub(crate) fn stall_first(&mut self, slot: usize) {
        assert!(!self.slots[slot].is_free(), "a slot keeps its turn on behalf of a call");
        self.stalled.push_first(slot);
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

    /// Returns the slot that has waited longest for a credit or for the window, if a credit is free now. The slot stays
    /// at the head of the waiting slots until its turn, to keep later calls from taking the credit.
    #[inline]
    pub(crate) fn next_stalled(&self) -> Option<usize> {
        let slot = self.stalled.first()?;
        if self.sendable_packets() == 0 {
            return None;
        }
        assert!(!self.slots[slot].is_free(), "a slot that waits for a credit has a call");
        Some(slot)
    }

    /// Notes new packets of a slot's request, each of which takes a credit. The last packet of a request also
    /// grants `extra` packets of the response. The reserved slot needs no credit.
    #[inline]
    pub(crate) fn note_sent(&mut self, now_ns: u64, slot: usize, count: u32, extra: u32) {
        let is_reserved = self.is_reserved(slot);
        let state = &mut self.slots[slot];
        state.note_sent(count, now_ns);
        if !is_reserved {
            self.credits.lend(state.held_mut(), count + extra);
        }
        if state.is_request_sent() {
            state.note_granted(extra);
        }
    }

    /// Allows further packets of a slot's response, each of which takes a credit.
    #[inline]
    pub(crate) fn allow(&mut self, slot: usize, count: u32) {
        let state = &mut self.slots[slot];
        state.allow(count);
        self.credits.lend(state.held_mut(), count);
    }

    /// Takes an acknowledgement of a slot in SENDING in: credits, the round trip, and the end of the request.
    #[inline]
    pub(crate) fn acknowledge(
        &mut self,
        now_ns: u64,
        slot: usize,
        credit: &Credit,
        repeats: bool,
        bounds: &RtoBounds,
        spare: &mut FreeList<ClientParts>,
    ) -> Acknowledged {
        let state = &mut self.slots[slot];
        let (sent, packets) = (state.request_sent(), state.request_packets());
        let measured = state.timer().measured();
        let measures_repeat = state.timer().measures_repeat();
        let request = state.parts_mut(spare).request_mut();
        let before = request.acknowledged_below();
        let mut returned = request.acknowledge(credit.cumulative, &credit.bitmap, sent);
        let is_whole = request.acknowledged_below() == packets;
        let was_measured = measured.is_some_and(|packet| request.is_acknowledged(packet));
        let answers_repeat = measures_repeat && repeats && returned > 0;
        if returned > 0 {
            state.timer_mut().note_progress();
        }
        if is_whole {
            // One credit stays until the response begins, or until flag W (§4).
            returned = returned.min(state.credits()).saturating_sub(1);
        }
        self.credits.take_back(state.held_mut(), returned);
        let since_ns = state.timer().since_ns();
        let rtt_ns = match was_measured {
            true => self.note_round_trip(now_ns, slot, bounds),
            false => None,
        };
        if answers_repeat && !self.trips.is_sampled(since_ns) {
            self.trips.sample(now_ns, since_ns, bounds);
        }
        if is_whole {
            self.enter_waiting(now_ns, slot);
        }
        Acknowledged { before, credits: returned, rtt_ns }
    }

    /// Updates the count of `waiting_slots` when a slot leaves WAITING or returns the last credit in WAITING.
    #[inline]
    pub(super) fn leave_waiting(&mut self, slot: usize) {
        let state = &self.slots[slot];
        let was_counted = state.state() == ClientState::Waiting && state.credits() > 0;
        assert!(
            self.waiting_slots >= u32::from(was_counted),
            "a slot leaves WAITING that was not counted"
        );
        self.waiting_slots -= u32::from(was_counted);
    }

    /// Notes that the server has the whole request of a slot: the slot enters WAITING.
    fn enter_waiting(&mut self, now_ns: u64, slot: usize) {
        let state = &mut self.slots[slot];
        state.enter_waiting(now_ns);
        self.waiting_slots += u32::from(state.credits() > 0);
        assert!(
            self.waiting_slots <= self.credits.lent(),
            "a slot that enters WAITING and is counted holds a credit"
        );
    }

    /// Returns the credits of a slot in WAITING: the server has the request, and begins its answer with one
    /// packet (flag W, §4). Returns their number.
    pub(crate) fn park(&mut self, slot: usize) -> u32 {
        self.leave_waiting(slot);
        let state = &mut self.slots[slot];
        state.note_parked();
        self.credits.take_back_all(state.held_mut())
    }

    /// Notes that a response of several packets begins: returns the request's credits, and those for packets beyond the
    /// response's end. A slot in WAITING without a credit has no credit for the first packet either.
    pub(crate) fn enter_receiving(
        &mut self,
        slot: usize,
        size: u32,
        packets: u32,
        spare: &mut FreeList<ClientParts>,
    ) {
        self.leave_waiting(slot);
        self.settle_paths(slot);
        let state = &mut self.slots[slot];
        state.enter_receiving(size, packets, spare);
        let excess = state.credits().saturating_sub(state.response_limit());
        self.credits.take_back(state.held_mut(), excess);
    }

    /// Takes the credit of a received packet back. Only the first packet of a response may come without one.
    #[inline]
    pub(crate) fn take_credit_back(&mut self, slot: usize, packet: u32) {
        let held = self.slots[slot].held_mut();
        assert!(held.count() > 0 || packet == 0, "only the first packet comes without a credit");
        let count = held.count().min(1);
        self.credits.take_back(held, count);
    }

    /// Returns the number of slots in WAITING that hold a credit.
    pub(crate) fn waiting_slots(&self) -> u32 {
        self.waiting_slots
    }

    /// Returns the number of slots that wait for a credit or for the session's pace.
    pub(crate) fn held_back_count(&self) -> usize {
        self.stalled.count() + self.paced.count()
    }
}

/// Round trips, congestion control, and the slots that wait for the session's pace.
impl<B, T> ClientSession<B, T> {
    #[inline(always)]
    pub(crate) fn trips(&self) -> &RoundTrips {
        &self.trips
    }

    /// Returns the session's congestion control.
    #[inline(always)]
    pub(crate) fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    /// Returns the session's congestion control, for a change.
    pub(crate) fn congestion_mut(&mut self) -> &mut Congestion {
        &mut self.congestion
    }

    /// Notes that the session's medium is memory of one host: no network is congested, and no frame is lost.
    pub(crate) fn leave_network(&mut self) {
        assert!(self.agreed.is_some(), "the peer of a session is known before its medium");
        assert!(
            self.paced.is_empty() && self.credits.lent() == 0,
            "a session leaves the network before its first packet"
        );
        self.congestion = Congestion::unlimited();
        self.is_lossless = true;
    }

    /// Returns true if the medium loses no frame.
    pub(crate) fn is_lossless(&self) -> bool {
        self.is_lossless
    }

    /// Uses the round trip of the path, measured by other means.
    pub(crate) fn note_path(&mut self, now_ns: u64, rtt_ns: u32, bounds: &RtoBounds) {
        self.congestion.note_path(now_ns, rtt_ns);
        self.trips.expect(rtt_ns, bounds);
    }

    /// Ends a slot's measurement. Returns the round trip, if the measured packet was sent once only (Karn).
    #[inline(always)]
    pub(crate) fn note_round_trip(
        &mut self,
        now_ns: u64,
        slot: usize,
        bounds: &RtoBounds,
    ) -> Option<u64> {
        let since_ns = self.slots[slot].timer_mut().take_measured()?;
        if !self.trips.is_sampled(since_ns) {
            self.trips.sample(now_ns, since_ns, bounds);
        }
        Some(now_ns.saturating_sub(since_ns))
    }

    /// Notes a packet of a response that may answer a question: a repeated packet, or any packet over a medium that loses nothing.
    /// The round trip of the question shows a way back that is slower than the session's estimate. A shorter time proves nothing: the
    /// packet may answer an earlier PULL.
    pub(crate) fn note_answer(&mut self, now_ns: u64, slot: usize, bounds: &RtoBounds) {
        let Some(since_ns) = self.slots[slot].timer_mut().take_question() else { return };
        if self.trips.srtt_ns().is_none_or(|srtt_ns| now_ns.saturating_sub(since_ns) > srtt_ns) {
            self.trips.sample(now_ns, since_ns, bounds);
        }
    }

    /// Notes a sign of the server other than a measured round trip.
    #[inline(always)]
    pub(crate) fn note_heard(&mut self) {
        self.trips.note_heard();
    }

    /// Returns the question of another slot for whose answer a slot with a due timer waits (§7.2): after a pause of the server, or
    /// of the whole machine, a single question is enough. With `None` the slot asks the server now.
    ///
    /// In a session of several paths each slot asks, since answers tell about paths.
    pub(crate) fn question_of_another(&mut self, now_ns: u64, slot: usize) -> Option<u8> {
        let waited = self.slots[slot].timer_mut().take_put_off();
        let has_answered = waited.is_some_and(|question| self.trips.has_answered(question));
        if self.paths.is_some() || has_answered {
            // The server has answered, though not to this slot, whose packets came before the question: they are lost.
            return None;
        }
        let is_asking = |asker: &ClientSlot<B, T>| {
            let timer = asker.timer();
            !asker.is_free() && timer.is_asking() && now_ns < timer.deadline_ns()
        };
        let asker = self.trips.asker().filter(|asker| *asker != slot);
        if asker.and_then(|asker| self.slots.get(asker)).is_some_and(is_asking) {
            return Some(self.trips.question());
        }
        self.trips.note_question(slot);
        None
    }

    /// Sets the time of a slot's next look for loss. Returns false if the timer wheel may wake the slot too
    /// late.
    #[inline]
    pub(crate) fn restart_timer(&mut self, now_ns: u64, slot: usize, bounds: &RtoBounds) -> bool {
        let state = &mut self.slots[slot];
        state.timer_mut().restart(now_ns, &self.trips, bounds);
        state.wakes_soon()
    }

    /// Notes a probe of a slot: the measured packet's round trip will not be known.
    pub(crate) fn note_probe(&mut self, now_ns: u64, slot: usize, bounds: &RtoBounds) {
        let is_last = self.paths.as_mut().is_none_or(|paths| paths.note_probe(slot));
        let timer = self.slots[slot].timer_mut();
        timer.note_probe(is_last);
        if timer.measured().is_some() {
            let waited_ns = now_ns.saturating_sub(timer.since_ns());
            self.trips.note_probe(waited_ns, is_last, bounds);
        }
    }

    /// Notes a timeout of a slot. In SENDING, the doublings of the slot's timeout pass on to the session's next
    /// requests.
    pub(crate) fn note_timeout(&mut self, slot: usize) {
        let state = &mut self.slots[slot];
        assert!(!state.is_free(), "the timeout of a slot is that of its call");
        state.timer_mut().note_timeout(&self.trips);
        if state.state() == ClientState::Sending {
            self.trips.back_off(state.timer().backoff());
        }
    }

    /// Reports acknowledged packets to the session's congestion control.
    #[inline]
    pub(crate) fn report(
        &mut self,
        now_ns: u64,
        rtt_ns: Option<u64>,
        packets: u32,
        ce: bool,
        counters: &mut CongestionCounters,
    ) {
        if self.congestion.is_bypassed(rtt_ns.unwrap_or(0), ce) {
            return;
        }
        let bytes = packets * self.packet_bytes;
        let ack = Ack { now_ns, rtt_ns, packets, bytes, ce };
        hear(&mut self.congestion, &self.trips, &ack, counters);
    }

    /// Notes packets in flight, counted as full packets: differences of a few bytes do not matter to a pace.
    #[inline]
    pub(crate) fn charge(&mut self, now_ns: u64, slot: usize, packets: u32) {
        if self.congestion.is_paced() {
            assert!(
                packets == 0 || self.congestion.next_send_ns() <= now_ns || self.is_reserved(slot),
                "a paced session sends no packet before its time"
            );
            self.congestion.charge(now_ns, packets * self.packet_bytes);
        }
    }

    /// Returns the time up to which a slot has to wait for the session's pace, if it has to. The slot then stands among
    /// the waiting slots.
    #[inline]
    pub(crate) fn wait_for_pace(&mut self, now_ns: u64, slot: usize) -> Option<u64> {
        if !self.congestion.is_paced() || self.is_reserved(slot) {
            return None;
        }
        let at_ns = self.congestion.next_send_ns();
        if at_ns <= now_ns {
            return None;
        }
        assert!(
            self.awaits_release || self.paced.is_empty(),
            "a slot that waits for the pace is released later"
        );
        assert!(!self.slots[slot].is_free(), "a slot waits for the pace on behalf of a call");
        self.paced.push(slot);
        Some(at_ns)
    }

    /// Returns true if a slot waits for the session's pace.
    #[inline]
    pub(crate) fn is_held_back(&self, slot: usize) -> bool {
        self.paced.contains(slot)
    }

    /// Returns true if slots wait for the session's pace.
    pub(crate) fn has_held_back(&self) -> bool {
        !self.paced.is_empty()
    }

    /// Returns the slot that has waited longest for the session's pace. It waits no longer.
    pub(crate) fn next_held_back(&mut self) -> Option<usize> {
        let slot = self.paced.pop()?;
        assert!(!self.slots[slot].is_free(), "a slot that waits for the pace has a call");
        Some(slot)
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
}

/// Reports an acknowledgement that was not bypassed to a congestion control.
#[cold]
#[inline(never)]
pub(super) fn hear(
    congestion: &mut Congestion,
    trips: &RoundTrips,
    ack: &Ack,
    counters: &mut CongestionCounters,
) {
    congestion.lower_base_rtt(ack.now_ns, trips.shortest_ns());
    congestion.on_ack(ack, counters);
}
