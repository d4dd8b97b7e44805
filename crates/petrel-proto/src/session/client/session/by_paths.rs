//! A client session of several paths (`docs/wire-protocol.md` §14): which copies are in flight, and which are lost.

use super::super::paths::{ClientPaths, NextCopy, PATH_PACKETS_MAX, SlotPackets};
use super::super::slot::{ClientSlot, ClientState};
use super::ClientSession;
use crate::bitmap::for_each_bit;
use crate::congestion::Congestion;
use crate::limits::WINDOW_PACKETS;
use crate::path::{PathId, PathPolicy};
use crate::recovery::rtt::RtoBounds;
use crate::session::{NO_PEER, PeerKey};
use crate::wire::{Credit, Flags, Marks};

impl<B, T> ClientSession<B, T> {
    /// Gives an open session several paths, before it has sent anything.
    pub(crate) fn use_paths(&mut self, choice: (PathPolicy, usize, u64), source: PeerKey) {
        assert!(
            self.paths.is_none() && self.peer != NO_PEER,
            "an open session gets its paths once"
        );
        assert!(self.credits.lent() == 0, "a session has its paths before its first packet");
        let most = self.credits.agreed().min(PATH_PACKETS_MAX);
        self.paths = Some(Box::new(ClientPaths::new(choice, most, self.peer, source)));
        self.congestion = Congestion::of_paths();
        // The general path finds the destination with the paths.
        self.peer = NO_PEER;
    }

    /// Returns the session's paths, if there are several.
    pub(crate) fn paths(&self) -> Option<&ClientPaths> {
        self.paths.as_deref()
    }

    /// Returns the session's paths, if there are several, for a change.
    pub(crate) fn paths_mut(&mut self) -> Option<&mut ClientPaths> {
        self.paths.as_deref_mut()
    }

    /// Returns a slot, and the paths and packets of its large request, to send several of them.
    pub(crate) fn slot_with_packets(
        &mut self,
        slot: usize,
    ) -> Option<(&mut ClientSlot<B, T>, SlotPackets<'_>)> {
        Some((&mut self.slots[slot], self.paths.as_deref_mut()?.packets_of(slot)))
    }

    /// Returns the destination of a slot's frames, and their path if they are no packets of a request.
    pub(crate) fn destination(&self, slot: usize) -> (PeerKey, PathId) {
        match &self.paths {
            Some(paths) => (paths.peer(), paths.last(slot)),
            None => (self.peer, PathId::FIRST),
        }
    }

    /// Notes that the server has sent a frame.
    pub(crate) fn note_sign_by_paths(&mut self) {
        if let Some(paths) = &mut self.paths {
            paths.note_sign();
        }
    }

    /// Lets a slot wait for its next packet's path. It is released with the session's slots that wait for a pace.
    pub(crate) fn wait_for_path(&mut self, slot: usize) {
        assert!(!self.slots[slot].is_free(), "a slot waits for a path on behalf of a call");
        self.paced.push(slot);
    }

    /// Returns the copy that the slot would send next, without its path; `None` if every packet was sent.
    pub(crate) fn next_copy(&self, slot: usize) -> Option<NextCopy> {
        let state = &self.slots[slot];
        let is_single = state.request_packets() == 1;
        let lost = state.first_lost().map(|packet| (packet, true));
        let new = (!state.is_request_sent()).then(|| (state.request_sent(), false));
        let (packet, repeats) = lost.or(new)?;
        Some(NextCopy { path: PathId::FIRST, packet, repeats, is_single })
    }

    /// Tells the paths which packets a CREDIT newly acknowledges, before the slot knows. If the CREDIT answers the only
    /// repetition of a packet, the session measures its round trip: while a dead way back takes the CREDITs of all first copies,
    /// nothing else ends the doubling of timeouts.
    ///
    /// `in_runs` allows several packets to be noted at once, with the same result.
    pub(crate) fn acknowledge_paths(
        &mut self,
        now_ns: u64,
        slot: usize,
        credit: &Credit,
        (marks, flags): (Option<Marks>, Flags),
        in_runs: bool,
        bounds: &RtoBounds,
    ) {
        let Some(paths) = &mut self.paths else { return };
        let (is_marked, repeats) = (flags.congestion(), flags.repeats());
        let state = &self.slots[slot];
        let sent = state.request_sent();
        if state.request_packets() == 1 {
            if credit.cumulative > 0 {
                paths.note_single_acked(now_ns, slot, is_marked, true);
            }
            return;
        }
        let Some(request) = state.parts().map(|parts| parts.request()) else { return };
        let end = credit_end(credit);
        paths.note_echo(slot, credit.echo);
        // A CREDIT acknowledges a burst, so packets of one burst do not make each other late.
        let (before, known_end) = (request.acknowledged_below(), request.acknowledged_end());
        paths.note_arrival(now_ns, slot, credit.echo, repeats);
        let is_news = |packet: u32| {
            (before..end.min(sent)).contains(&packet)
                && has(credit, packet)
                && !request.is_acknowledged(packet)
        };
        if repeats
            && is_news(credit.echo)
            && let Some(rtt_ns) = paths.note_repeat_acked(now_ns, slot, credit.echo)
        {
            let sent_ns = now_ns.saturating_sub(rtt_ns);
            if !self.trips.is_sampled(sent_ns) {
                self.trips.sample(now_ns, sent_ns, bounds);
            }
        }
        let mut packets = paths.packets_of(slot);
        if in_runs
            && marks.is_none()
            && !repeats
            && !request.has_lost()
            && let Some(news) = request.news(credit.cumulative, &credit.bitmap)
        {
            let echo = (credit.echo >= before && !request.is_acknowledged(credit.echo))
                .then_some(credit.echo)
                .filter(|echo| has(credit, *echo));
            let behind_packets = known_end.saturating_sub(before + 1);
            if packets.note_all_acked(now_ns, (before, &news), echo, behind_packets) {
                return;
            }
        }
        for packet in before..end.min(sent) {
            if !has(credit, packet) || request.is_acknowledged(packet) {
                continue;
            }
            let is_marked = marks.is_some_and(|marks| marks.contains(packet));
            let which = (packet, request.is_lost(packet), packet == credit.echo);
            let behind_packets = known_end.saturating_sub(packet + 1);
            packets.note_acked(now_ns, which, (is_marked, behind_packets));
        }
        // The CREDITs for earlier packets may have been lost long ago, on a dead way back: the time up to this CREDIT,
        // which a timeout has brought, is no round trip.
        let measured = state.timer().measured();
        if repeats && measured.is_some_and(|packet| has(credit, packet)) {
            self.slots[slot].timer_mut().measure_nothing();
        }
    }

    /// Marks the packets of a large request as lost of which the paths have evidence. Returns their number. The packets
    /// below `from` were acknowledged before. After the arrival of a repetition all packets are looked at: packets
    /// behind the last acknowledged packet may have been lost together, long before. Packets that are repeated early count, too.
    pub(crate) fn find_lost_by_paths(
        &mut self,
        now_ns: u64,
        slot: usize,
        from: u32,
        repeats: bool,
    ) -> u32 {
        let Self { paths: Some(paths), slots, .. } = self else { return 0 };
        let state = &mut slots[slot];
        if state.request_packets() == 1 {
            return 0;
        }
        let (sent, has_new) = (state.request_sent(), !state.is_request_sent());
        let Some(parts) = state.known_parts_mut() else { return 0 };
        let request = parts.request_mut();
        request.forget_acknowledged(from..sent);
        let mut found = 0;
        let missing = request.missing();
        let (below, behind) = (request.acknowledged_below(), request.acknowledged_end());
        let mut look_at = |packet: u32| {
            if !request.is_lost(packet) && paths.gives_up(now_ns, slot, packet) {
                request.note_lost(packet);
                found += 1;
            }
        };
        for_each_bit(&missing, |ahead| look_at(below + ahead));
        if repeats {
            (behind..sent).for_each(look_at);
        }
        let waits = !self.stalled.is_empty() || !self.paced.is_empty();
        if !has_new && !waits && !request.has_lost() {
            let early = paths.early_repetitions() as usize;
            let missing = (below..sent).filter(|packet| !request.is_acknowledged(*packet));
            let chosen = missing.filter(|packet| paths.gives_up_early(now_ns, slot, *packet));
            let chosen = chosen.take(early);
            for packet in chosen.collect::<Vec<_>>() {
                request.note_lost(packet);
                found += 1;
            }
        }
        found
    }

    /// Returns the packets of a message from the lowest unacknowledged one on that may be sent.
    pub(crate) fn window_packets(&self) -> u32 {
        self.paths().map_or(WINDOW_PACKETS, ClientPaths::window_packets)
    }

    /// Returns true if the arrival of a repetition shows that packets of the response are lost which the server sent
    /// before. Over several paths they may still be on a slower way.
    pub(crate) fn trusts_repetition(&self, now_ns: u64, slot: usize) -> bool {
        self.paths.as_ref().is_none_or(|paths| paths.is_answer_overdue(now_ns, slot))
    }

    /// Tells the paths that a probe or a timeout of a slot is about to give packets up.
    pub(crate) fn note_path_timeout(&mut self, now_ns: u64, slot: usize) {
        let Self { paths: Some(paths), slots, trips, .. } = self else { return };
        let state = &slots[slot];
        paths.note_silence();
        if state.state() != ClientState::Sending {
            return paths.change_path(now_ns, slot, trips.probe_ns());
        }
        let packet = state.acknowledged_below();
        if state.first_lost() != Some(packet) {
            paths.note_timeout(now_ns, slot, packet);
        }
    }

    /// Takes the copy of a request of one packet out of flight, before a repetition that has another reason than a
    /// loss: it says nothing about the path.
    pub(crate) fn release_single(&mut self, slot: usize) {
        if let Some(paths) = &mut self.paths {
            paths.release_single(slot);
        }
    }

    /// Notes a response, which acknowledges an outstanding request of one packet.
    pub(crate) fn note_response(
        &mut self,
        now_ns: u64,
        request: u64,
        (is_marked, is_immediate): (bool, bool),
    ) {
        let slot = self.slot_index(request);
        let Self { paths: Some(paths), slots, .. } = self else { return };
        if slots.get(slot).is_some_and(|state| state.number() == request && !state.is_free()) {
            paths.note_single_acked(now_ns, slot, is_marked, is_immediate);
        }
    }

    /// Takes the copies of a slot's request out of flight: the response has begun, or the call ends.
    #[inline]
    pub(super) fn settle_paths(&mut self, slot: usize) {
        if self.paths.is_some() {
            self.settle_slot(slot);
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_slot(&mut self, slot: usize) {
        let Some(paths) = &mut self.paths else { return };
        let state = &self.slots[slot];
        paths.settle(slot, in_flight(state));
    }

    /// Checks that the slots account for all copies in flight.
    pub(super) fn assert_paths_sound(&self) {
        let Some(paths) = &self.paths else { return };
        let of_slot =
            |(place, state)| in_flight(state).count() + usize::from(paths.has_single(place));
        let of_slots: usize = self.slots.iter().enumerate().map(of_slot).sum();
        assert_eq!(of_slots, paths.in_flight() as usize, "each copy in flight is a slot's");
    }
}

/// Returns the packets of a large request that are neither acknowledged nor given up.
fn in_flight<B, T>(state: &ClientSlot<B, T>) -> impl Iterator<Item = u32> {
    let is_sending = state.state() == ClientState::Sending && state.request_packets() > 1;
    let parts = state.parts().filter(|_| is_sending);
    parts.into_iter().flat_map(|parts| {
        let request = parts.request();
        (request.acknowledged_below()..state.request_sent())
            .filter(|packet| !request.is_acknowledged(*packet) && !request.is_lost(*packet))
    })
}

/// Returns true if a CREDIT says that a packet has arrived.
fn has(credit: &Credit, packet: u32) -> bool {
    let Some(ahead) = packet.checked_sub(credit.cumulative) else { return true };
    let word = credit.bitmap.get(ahead as usize / 64);
    word.is_some_and(|word| word >> (ahead % 64) & 1 == 1)
}

/// Returns the end of the packets that a CREDIT acknowledges.
fn credit_end(credit: &Credit) -> u32 {
    credit.cumulative + crate::bitmap::words_end(&credit.bitmap)
}
