//! The client takes CREDIT frames (`docs/wire-protocol.md` §5.2).

use super::{Recovery, Shared};
use crate::bitmap::words_end;
use crate::limits::REORDERING_THRESHOLD;
use crate::session::SessionId;
use crate::session::client::{ClientParts, ClientSession, ClientSlot, ClientState};
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
        if !is_sound(&credit, state.request_sent) {
            self.counters.dropped_malformed += 1;
            return;
        }
        self.counters.frames_accepted += 1;
        state.unanswered = 0;
        if state.state == ClientState::Sending {
            self.acknowledge(now_ns, id, client, slot, &credit, header.flags);
        }
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
        // No packet has the number that stands for none.
        let was_timed = parts.acknowledged.contains(timed_packet);
        if returned > 0 {
            state.heard();
        }
        if below == state.request_packets {
            state.state = ClientState::Waiting;
            client.waiting_slots += 1;
            // One credit stays until the response begins (§4).
            returned -= 1;
        }
        state.held -= returned;
        client.credits += returned;
        let rtt_ns = match was_timed {
            true => client.note_round_trip(now_ns, slot, &self.config.rto),
            false => None,
        };
        self.heard(now_ns, client, rtt_ns, returned, flags);
        let state = &mut client.slots[slot];
        if state.state == ClientState::Sending {
            let lost = match self.config.recovery {
                Recovery::Selective => find_lost(state, before, credit.echo, flags.repeats()),
                Recovery::GoBackN => {
                    forget_acknowledged(state, before);
                    0
                }
            };
            if lost > 0 {
                self.counters.losses_detected += u64::from(lost);
                if state.is_lost_on_the_way() {
                    client.congestion.on_loss(now_ns, lost, &mut self.congestion);
                }
            }
            self.queue_client(id.index, slot, state);
        }
        self.wake_stalled(id.index, client);
        self.arm(now_ns, id, client, slot);
    }
}

/// A CREDIT can only be about packets that were sent.
fn is_sound(credit: &Credit, sent: u32) -> bool {
    credit.echo < sent
        && credit.cumulative <= sent
        && words_end(&credit.bitmap) <= sent - credit.cumulative
}

/// Forgets the marks of packets that are there.
fn forget_acknowledged<B, T>(state: &mut ClientSlot<B, T>, from: u32) {
    let (sent, Some(parts)) = (state.request_sent, &mut state.parts) else { return };
    let ClientParts { acknowledged, lost, .. } = &mut **parts;
    (from..sent)
        .filter(|&packet| acknowledged.contains(packet))
        .for_each(|packet| lost.clear(packet));
}

/// Marks the packets that were sent well before the one that came last, and are not there; forgets
/// the marks of those that are. Gives how many are newly marked.
fn find_lost<B, T>(state: &mut ClientSlot<B, T>, from: u32, echo: u32, repeats: bool) -> u32 {
    let (2.., Some(parts)) = (state.request_packets, &mut state.parts) else { return 0 };
    let ClientParts { acknowledged, lost, order, .. } = &mut **parts;
    let oldest = acknowledged.cumulative();
    if order.has_no_repetition() && lost.is_empty() && oldest + REORDERING_THRESHOLD > echo {
        // Nothing was sent twice, so the oldest packet that is missing was the first sent.
        return 0;
    }
    let echo_order = order.arrived(echo, repeats, state.request_sent).unwrap_or(0);
    let mut found = 0;
    for packet in from..state.request_sent {
        if acknowledged.contains(packet) {
            lost.clear(packet);
        } else if order.of(packet) + REORDERING_THRESHOLD <= echo_order {
            found += u32::from(lost.set_new(packet));
        }
    }
    found
}
