//! The client's handling of CREDIT frames (`docs/wire-protocol.md` §5.2).

use super::{Recovery, Shared};
use crate::bitmap::words_end;
use crate::limits::{REORDERING_THRESHOLD, WAITING_PROBE_DIVISOR, WAITING_PROBE_NS_MAX};
use crate::session::SessionId;
use crate::session::client::{ClientParts, ClientSession, ClientSlot, ClientState, TIMED_REPEAT};
use crate::wire::{Credit, Flags, Header};

impl<B> Shared<B> {
    pub(super) fn on_credit<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        header: Header,
        rest: &[u8],
    ) {
        let Ok(credit) = Credit::parse(header.flags, rest) else {
            self.counters.dropped_malformed += 1;
            return;
        };
        let Some(slot) = self.slot_of(client, &header) else { return };
        let state = &mut client.slots[slot];
        if !is_sound(&credit, state.request_sent()) {
            self.counters.dropped_malformed += 1;
            return;
        }
        self.counters.frames_accepted += 1;
        let was_asked = state.probed || state.unanswered > 0;
        state.unanswered = 0;
        if state.state() == ClientState::Sending {
            self.acknowledge(now_ns, id, client, slot, &credit, header.flags);
        }
        if header.flags.waits() && client.slots[slot].state() == ClientState::Waiting {
            self.park(id, client, slot);
            if was_asked {
                self.delay_probe(now_ns, id, client, slot);
            }
        }
    }

    /// Returns a slot's credits: the server has the request, and begins its answer with one packet (flag W,
    /// §4).
    fn park<T>(&mut self, id: SessionId, client: &mut ClientSession<B, T>, slot: usize) {
        client.leave_waiting(slot);
        let state = &mut client.slots[slot];
        state.response_limit = 1;
        let credits = client.credits.take_back_all(&mut state.held);
        if credits > 0 {
            self.counters.calls_parked += 1;
            self.wake_stalled(id.index, client);
        }
    }

    /// Delays the next probe of a request whose handler still runs, in proportion to its time so far (§7.2).
    fn delay_probe<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) {
        let rto_ns = client.trips.rtt.rto_ns(&self.config.rto, client.trips.backoff.into());
        let state = &mut client.slots[slot];
        state.backoff = 0;
        state.probed = false;
        let waited_ns = now_ns.saturating_sub(state.timed_ns);
        let look_ns = (waited_ns / WAITING_PROBE_DIVISOR).min(WAITING_PROBE_NS_MAX);
        state.deadline_ns = now_ns + look_ns.max(rto_ns);
        self.keep_in_wheel(now_ns, id, state, slot);
    }

    fn acknowledge<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
        credit: &Credit,
        flags: Flags,
    ) {
        let state = &mut client.slots[slot];
        let timed_packet = state.timed_packet;
        let parts = state.parts(&mut self.client_parts);
        let before = parts.acknowledged.cumulative();
        let mut returned = parts.acknowledged.merge(credit.cumulative, &credit.bitmap);
        let below = parts.acknowledged.cumulative();
        // No packet has the number `NOT_TIMED`.
        let was_timed = parts.acknowledged.contains(timed_packet);
        let answers_repeat = timed_packet == TIMED_REPEAT && flags.repeats() && returned > 0;
        if returned > 0 {
            state.heard();
        }
        assert!(below <= state.request_sent(), "only packets that were sent are acknowledged");
        let is_whole = below == state.request_packets;
        if is_whole {
            // One credit stays until the response begins, or until flag W (§4).
            returned = returned.min(state.held.count()).saturating_sub(1);
        }
        client.credits.take_back(&mut state.held, returned);
        let rtt_ns = match was_timed {
            true => client.note_round_trip(now_ns, slot, &self.config.rto),
            false => None,
        };
        if answers_repeat && client.trips.sampled_ns != now_ns {
            let sent_ns = client.slots[slot].timed_ns;
            client.trips.sample(now_ns, sent_ns, &self.config.rto);
        }
        if is_whole {
            client.enter_waiting(now_ns, slot);
        }
        self.heard(now_ns, client, rtt_ns, returned, flags);
        let state = &mut client.slots[slot];
        if state.state() == ClientState::Sending {
            let lost = match self.config.recovery {
                Recovery::Selective => find_lost(state, before, credit.echo, flags.repeats()),
                Recovery::GoBackN => {
                    forget_acknowledged(state, before);
                    0
                }
            };
            if lost > 0 {
                self.counters.losses_detected += u64::from(lost);
                if state.is_congestion_loss() {
                    client.congestion.on_loss(now_ns, lost, &mut self.congestion);
                }
            }
            self.queue_client(id.index, slot, state);
        }
        self.wake_stalled(id.index, client);
        self.arm(now_ns, id, client, slot);
    }
}

/// Returns true if a CREDIT is only about packets that were sent.
fn is_sound(credit: &Credit, sent: u32) -> bool {
    credit.echo < sent
        && credit.cumulative <= sent
        && words_end(&credit.bitmap) <= sent - credit.cumulative
}

/// Clears the loss marks of acknowledged packets.
fn forget_acknowledged<B, T>(state: &mut ClientSlot<B, T>, from: u32) {
    let (sent, Some(parts)) = (state.request_sent(), &mut state.parts) else { return };
    let ClientParts { acknowledged, lost, .. } = &mut **parts;
    (from..sent)
        .filter(|&packet| acknowledged.contains(packet))
        .for_each(|packet| lost.clear(packet));
}

/// Marks packets as lost that were sent well before the `echo` packet and are not acknowledged. Clears the
/// marks of acknowledged ones. Returns the number of new marks.
fn find_lost<B, T>(state: &mut ClientSlot<B, T>, from: u32, echo: u32, repeats: bool) -> u32 {
    let sent = state.request_sent();
    let (2.., Some(parts)) = (state.request_packets, &mut state.parts) else { return 0 };
    let ClientParts { acknowledged, lost, order, .. } = &mut **parts;
    let oldest = acknowledged.cumulative();
    if order.has_no_repetition() && lost.is_empty() && oldest + REORDERING_THRESHOLD > echo {
        // Without repetitions the oldest missing packet was sent first.
        return 0;
    }
    let echo_order = order.arrived(echo, repeats, sent).unwrap_or(0);
    let mut found = 0;
    for packet in from..sent {
        if acknowledged.contains(packet) {
            lost.clear(packet);
        } else if order.of(packet) + REORDERING_THRESHOLD <= echo_order {
            found += u32::from(lost.set_new(packet));
        }
    }
    found
}
