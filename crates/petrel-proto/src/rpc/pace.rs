//! Congestion control in the course of calls: the input to a session's controller, and the transmissions that
//! it delays (`docs/congestion.md`).
//!
//! Only clients have congestion control. An uncongested session pays a comparison for every measured round
//! trip and one for every call; a limited session leaves the fast paths.

use super::{Core, Shared};
use crate::buffer::Buffer;
use crate::congestion::{Ack, Congestion, CongestionCounters};
use crate::session::client::{ClientSession, RoundTrips};
use crate::session::{Role, SessionId};
use crate::timer::TimerKey;
use crate::wire::Flags;

/// Response packets that one PULL allows in a paced session. The packets arrive at the speed of the server's
/// link, so their number must be small.
pub(super) const PACED_PULL_PACKETS: u32 = 2;

/// The slot field of a timer entry for a whole session.
const WHOLE_SESSION: u16 = 0;

impl<B: Buffer, T> Core<B, T> {
    /// Resumes sessions whose pace allows it now. [`Core::handle_timeouts`] includes this call; where
    /// timeouts have to wait because frames arrive, call it before [`Core::transmit`].
    #[inline(always)]
    pub fn release_paced(&mut self, now_ns: u64) {
        if self.shared.timers.has_come_due(now_ns) {
            self.release_due(now_ns);
        }
    }

    #[cold]
    #[inline(never)]
    fn release_due(&mut self, now_ns: u64) {
        self.shared.timers.advance_releases(now_ns);
        while let Some(key) = self.shared.timers.pop_release() {
            self.release_session(now_ns, key);
        }
    }

    /// Takes a session out of congestion control, because its packets do not use a network.
    pub fn exempt_from_congestion_control(&mut self, id: SessionId) {
        if let Some(client) = self.sessions.client_mut(id) {
            client.congestion = Congestion::unlimited();
        }
    }

    /// Sets the round trip of the path to a session's peer: the shortest seen by the control connection.
    /// Later values count only if shorter. Congestion control needs the value to distinguish a long path from
    /// a queue, and the first packets' timeout depends on it.
    pub fn note_path(&mut self, now_ns: u64, id: SessionId, rtt_ns: u32) {
        let bounds = &self.shared.config.rto;
        if let Some(client) = self.sessions.client_mut(id) {
            client.congestion.note_path(now_ns, rtt_ns);
            client.trips.expect(rtt_ns, bounds);
        }
    }

    #[inline(never)]
    fn release_session(&mut self, now_ns: u64, key: TimerKey) {
        let id = SessionId { index: key.session, generation: key.generation };
        let Some(entry) = self.sessions.get_mut(id) else { return };
        let Role::Client(client) = &mut entry.role else { return };
        client.note_release();
        let at_ns = client.congestion.next_send_ns();
        if client.congestion.is_paced() && at_ns > now_ns {
            // An entry far ahead comes due early.
            self.shared.await_release(now_ns, id, client, at_ns);
            return;
        }
        while let Some(slot) = client.held.pop() {
            self.shared.queue_client(id.index, slot, &mut client.slots[slot]);
            if client.congestion.is_paced() {
                // One packet, then the next slot.
                break;
            }
        }
        if !client.held.is_empty() {
            // With the next tick: by then the packet has left, and the next packet's time is known.
            self.shared.await_release(now_ns, id, client, now_ns);
        }
    }
}

impl<B> Shared<B> {
    /// Reports acknowledged packets to the session's congestion control.
    #[inline]
    pub(super) fn heard<T>(
        &mut self,
        now_ns: u64,
        client: &mut ClientSession<B, T>,
        rtt_ns: Option<u64>,
        packets: u32,
        flags: Flags,
    ) {
        let ce = flags.congestion();
        if client.congestion.is_bypassed(rtt_ns.unwrap_or(0), ce) {
            return;
        }
        let bytes = packets * client.packet_bytes;
        let ack = Ack { now_ns, rtt_ns, packets, bytes, ce };
        hear(&mut client.congestion, &client.trips, &ack, &mut self.congestion);
    }

    /// Returns true if a slot has to wait for the session's pace. The slot is woken at its time.
    #[inline]
    pub(super) fn must_wait<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) -> bool {
        if !client.congestion.is_paced() || client.is_reserved(slot) {
            return false;
        }
        let at_ns = client.congestion.next_send_ns();
        if at_ns <= now_ns {
            return false;
        }
        client.held.push(slot);
        if !client.awaits_release() {
            self.await_release(now_ns, id, client, at_ns);
        }
        true
    }

    fn await_release<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        at_ns: u64,
    ) {
        client.await_release();
        let SessionId { index: session, generation } = id;
        let key = TimerKey { session, generation, slot: WHOLE_SESSION };
        self.timers.insert_release(now_ns, key, at_ns);
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
    congestion.lower_base_rtt(ack.now_ns, trips.shortest_ns);
    congestion.on_ack(ack, counters);
}

impl<B, T> ClientSession<B, T> {
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
}
