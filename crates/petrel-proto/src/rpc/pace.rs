//! Congestion control in the course of calls: what a session hears, and what it holds back for
//! (`docs/congestion.md`).
//!
//! Only clients have it. A session that is uncongested pays a comparison for each round trip that is
//! measured and one for each call; one that is limited leaves the short ways.

use super::{Core, Shared};
use crate::buffer::Buffer;
use crate::congestion::{Ack, Congestion, CongestionCounters};
use crate::session::client::{ClientSession, RoundTrips};
use crate::session::{Role, SessionId};
use crate::timer::TimerKey;
use crate::wire::Flags;

/// Response packets that one PULL allows where the session is paced: they come back at once, as fast
/// as the server's link is, so they are to be few.
pub(super) const PACED_PULL_PACKETS: u32 = 2;

/// The slot field of an entry in the timer wheel that is for a whole session.
const WHOLE_SESSION: u16 = 0;

impl<B: Buffer, T> Core<B, T> {
    /// Lets sessions send again whose pace allows it now. [`Core::handle_timeouts`] does so too; where
    /// that has to wait because frames come in, this is to be called before [`Core::transmit`].
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

    /// Takes a session out of congestion control: its packets do not go through a network.
    pub fn exempt_from_congestion_control(&mut self, id: SessionId) {
        if let Some(client) = self.sessions.client_mut(id) {
            client.congestion = Congestion::unlimited();
        }
    }

    /// Tells a session how long the path to its peer is: the shortest round trip that the control
    /// connection has seen. A later one counts if it is shorter. Congestion control needs it to tell a
    /// long path from a queue, and the timeout of the first packets depends on it.
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
        client.awaits_release = false;
        let at_ns = client.congestion.next_send_ns();
        if client.congestion.is_paced() && at_ns > now_ns {
            // An entry far ahead comes due early.
            self.shared.await_release(now_ns, id, client, at_ns);
            return;
        }
        while let Some(slot) = client.held.pop() {
            self.shared.queue_client(id.index, slot, &mut client.slots[slot]);
            if client.congestion.is_paced() {
                // One packet, and then the next slot.
                break;
            }
        }
        if !client.held.is_empty() {
            // With the next tick: by then the packet has left, and it is known when the next one may.
            self.shared.await_release(now_ns, id, client, now_ns);
        }
    }
}

impl<B> Shared<B> {
    /// Tells the session's congestion control of packets that were acknowledged.
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

    /// Whether a slot with something to send has to wait for the session's pace. It is woken then.
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
        if !client.awaits_release {
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
        client.awaits_release = true;
        let SessionId { index: session, generation } = id;
        let key = TimerKey { session, generation, slot: WHOLE_SESSION };
        self.timers.insert_release(now_ns, key, at_ns);
    }
}

/// Tells a congestion control of an acknowledgement that it did not bypass.
#[cold]
#[inline(never)]
pub(super) fn hear(
    congestion: &mut Congestion,
    trips: &RoundTrips,
    ack: &Ack,
    counters: &mut CongestionCounters,
) {
    congestion.lower_bare_rtt(ack.now_ns, trips.shortest_ns);
    congestion.on_ack(ack, counters);
}

impl<B, T> ClientSession<B, T> {
    /// Notes packets that are on their way, of full size or nearly: what a few bytes more or less cost
    /// a pace is not worth working out.
    #[inline]
    pub(crate) fn charge(&mut self, now_ns: u64, packets: u32) {
        if self.congestion.is_paced() {
            self.congestion.charge(now_ns, packets * self.packet_bytes);
        }
    }
}
