//! What the medium could not take is taken back.
//!
//! A frame that was refused counts as never sent: its packet is the next to be sent again, with
//! its credits, its place in the order of transmissions and its round trip. A queue of refused
//! frames beside the slots was tried before. New packets overtook it, and what came out of order
//! looked like loss: with a short transmit queue one lost packet led to thousands sent again.

use super::{Core, Shared, Source, Transmit};
use crate::buffer::Buffer;
use crate::session::Role;
use crate::session::client::{ClientSession, ClientState, NOT_TIMED};
use crate::session::server::{ServerSession, ServerState};
use crate::wire::{Header, Pull};

impl<B: Buffer> Core<B> {
    /// The transport could not take a polled frame: it is polled again later. Call it for the
    /// frames of a burst that were refused, the last one first, before any other method.
    #[cold]
    pub fn blocked(&mut self, transmit: Transmit) {
        let Some(entry) = self.sessions.get_mut(transmit.session) else { return };
        match &mut entry.role {
            Role::Client(client) => {
                let pull = self.control.pull(&transmit);
                self.shared.take_back_from_client(client, &transmit, pull);
            }
            Role::Server(server) => self.shared.take_back_from_server(server, &transmit),
            Role::Free => {}
        }
    }
}

impl super::transmit::ControlFrames {
    /// The PULL that was polled.
    fn pull(&self, transmit: &Transmit) -> Option<Pull> {
        let Source::Control(place) = transmit.source else { return None };
        let (header, rest) = Header::parse(self.bytes(place)).ok()?;
        Pull::parse(header.flags, rest).ok()
    }
}

impl Shared {
    fn take_back_from_client<B: Buffer>(
        &mut self,
        client: &mut ClientSession<B>,
        transmit: &Transmit,
        pull: Option<Pull>,
    ) {
        let (slot, index) = (transmit.slot as usize, transmit.session.index);
        let state = &mut client.slots[slot];
        if state.number != transmit.number || state.state == ClientState::Free {
            return;
        }
        if let Some(pull) = pull {
            // What it allowed stays allowed.
            self.counters.control_frames_sent -= 1;
            state.pull_due = true;
            state.resend_below = state.resend_below.max(pull.resend_below);
        } else if transmit.repeats || transmit.packet + 1 != state.request_sent {
            self.count_taken_back(transmit);
            state.lost.set(transmit.packet);
        } else {
            self.count_taken_back(transmit);
            take_back_new_packet(client, slot);
            self.wake_stalled(index, client);
        }
        self.queue_client(index, slot, &mut client.slots[slot]);
    }

    fn take_back_from_server<B>(&mut self, server: &mut ServerSession<B>, transmit: &Transmit) {
        let (slot, index) = (transmit.slot as usize, transmit.session.index);
        let state = &mut server.slots[slot];
        if state.current != transmit.number {
            return;
        }
        if state.state != ServerState::Answered {
            self.counters.control_frames_sent -= 1;
            state.credit_due = true;
        } else if transmit.repeats || transmit.packet + 1 != state.response_sent {
            self.count_taken_back(transmit);
            state.resend.set(transmit.packet);
        } else {
            self.count_taken_back(transmit);
            state.response_sent -= 1;
        }
        self.queue_server(index, slot, state);
    }

    fn count_taken_back(&mut self, transmit: &Transmit) {
        if transmit.repeats {
            self.counters.packets_retransmitted -= 1;
        } else {
            self.counters.packets_sent -= 1;
        }
    }
}

/// Undoes the sending of the newest packet of a request: its credit, and with the last packet
/// those of the grant.
fn take_back_new_packet<B>(client: &mut ClientSession<B>, slot: usize) {
    let state = &mut client.slots[slot];
    let mut returned = 1;
    if state.request_sent == state.request_packets {
        returned += state.response_limit - 1;
        state.response_limit = 0;
        state.grant = 1;
    }
    state.request_sent -= 1;
    state.held -= returned;
    client.credits += returned;
    if state.timed_packet == state.request_sent {
        state.timed_packet = NOT_TIMED;
    }
    if let Some(order) = &mut state.order {
        order.take_back();
    }
}
