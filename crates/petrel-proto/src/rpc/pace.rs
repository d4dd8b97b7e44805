//! Congestion control in the course of calls: the input to a session's controller, and the transmissions that
//! it delays (`docs/congestion.md`).
//!
//! Only clients have congestion control. An uncongested session pays a comparison for every measured round
//! trip and one for every call; a limited session leaves the fast paths.

use super::{Core, Shared};
use crate::buffer::Buffer;
use crate::session::client::ClientSession;
use crate::session::{Role, SessionId};
use crate::timer::TimerKey;

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
            client.exempt_from_congestion_control();
        }
    }

    /// Sets the round trip of the path to a session's peer: the shortest seen by the control connection.
    /// Later values count only if shorter. Congestion control needs the value to distinguish a long path from
    /// a queue, and the first packets' timeout depends on it.
    pub fn note_path(&mut self, now_ns: u64, id: SessionId, rtt_ns: u32) {
        let bounds = &self.shared.config.rto;
        if let Some(client) = self.sessions.client_mut(id) {
            client.note_path(now_ns, rtt_ns, bounds);
        }
    }

    #[inline(never)]
    fn release_session(&mut self, now_ns: u64, key: TimerKey) {
        let id = SessionId { index: key.session, generation: key.generation };
        let Some(entry) = self.sessions.get_mut(id) else { return };
        let Role::Client(client) = entry.role_mut() else { return };
        client.note_release();
        let at_ns = client.congestion().next_send_ns();
        if client.congestion().is_paced() && at_ns > now_ns {
            // An entry far ahead comes due early.
            self.shared.await_release(now_ns, id, client, at_ns);
            return;
        }
        while let Some(slot) = client.next_held_back() {
            self.shared.queue_client(id.index, slot, client.slot_mut(slot));
            if client.congestion().is_paced() {
                // One packet, then the next slot.
                break;
            }
        }
        if client.has_held_back() {
            // With the next tick: by then the packet has left, and the next packet's time is known.
            self.shared.await_release(now_ns, id, client, now_ns);
        }
    }
}

impl<B> Shared<B> {
    /// Returns true if a slot has to wait for the session's pace. The slot is woken at its time.
    #[inline]
    pub(super) fn must_wait<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) -> bool {
        let Some(at_ns) = client.wait_for_pace(now_ns, slot) else { return false };
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
