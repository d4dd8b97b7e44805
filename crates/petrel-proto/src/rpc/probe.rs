//! Probes: whether frames get through between the two ends of a session (`docs/wire-protocol.md` §8.10).
//!
//! A client sends probes before the session is established on its side, and calls wait until then. A server answers each probe at once.

use std::collections::VecDeque;

use super::queue::{TransmitQueue, Work};
use super::received::{Received, malformed};
use super::turn::{ControlFrames, Turn};
use super::{Core, FrameSink, Shared};
use crate::buffer::Buffer;
use crate::limits::{CONTROL_FRAME_BYTES_MAX, HEADER_BYTES, PROBES_QUEUED_MAX, REQUEST_NUMBER_END};
use crate::session::{Entry, PeerKey, Role, SessionId};
use crate::wire::{Destination, Flags, Header, Kind, check_probe, header_bytes};

/// Probes and answers to be sent. Each has an entry in the transmit queue.
#[derive(Default)]
pub(super) struct Probes(VecDeque<Probe>);

/// A probe, or the answer to a probe: of the same form.
struct Probe {
    peer: PeerKey,
    to: Destination,
    number: u64,
}

impl Probes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Beyond the limit a probe is omitted, as if the network had lost it.
    fn push(&mut self, queue: &mut TransmitQueue, probe: Probe) {
        assert!(self.0.len() <= PROBES_QUEUED_MAX, "the probes are within their limit");
        if self.0.len() < PROBES_QUEUED_MAX {
            self.0.push_back(probe);
            queue.push(Work::Probe);
        }
    }
}

impl<B: Buffer, T> Core<B, T> {
    /// Sends a probe to the server of a session, which is named by the server's index and token. The answer is an
    /// [`Event::Probed`](super::Event::Probed) with the number, of which 48 bits count.
    pub fn probe(&mut self, peer: PeerKey, (session, token): (u32, u32), number: u64) {
        let to = Destination::new(session, token);
        let number = number % REQUEST_NUMBER_END;
        self.shared.probes.push(&mut self.shared.queue, Probe { peer, to, number });
    }
}

/// Answers a probe at the server. At the client, the answer to a probe is an event until the session is established.
#[cold]
pub(super) fn on_probe<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    entry: &mut Entry<B, T>,
    peer: PeerKey,
    header: Header,
    rest: &[u8],
) -> Received<'f, B, T> {
    if check_probe(header.flags, rest).is_err() {
        return malformed(shared);
    }
    let (number, is_from_peer) = (header.request, entry.source() == Some(peer));
    let session = SessionId { index: header.session, generation: entry.generation() };
    match entry.role_mut() {
        Role::Server(server) if is_from_peer => {
            if !shared.may_answer(server) {
                shared.counters.dropped_wrong_peer += 1;
                return Received::Nothing;
            }
            shared.counters.frames_accepted += 1;
            let agreed = server.agreed();
            let to = Destination::new(agreed.peer_session, agreed.peer_token);
            shared.probes.push(&mut shared.queue, Probe { peer: agreed.peer, to, number });
        }
        Role::Client(client) if client.agreed().is_none() => {
            shared.counters.frames_accepted += 1;
            shared.notices.note_probed(session, peer, number);
        }
        Role::Client(_) => shared.counters.dropped_stale += 1,
        Role::Server(_) | Role::Free => shared.counters.dropped_wrong_peer += 1,
    }
    Received::Nothing
}

/// Sends one probe or answer.
#[cold]
pub(super) fn send_probe<B: Buffer, S: FrameSink>(
    shared: &mut Shared<B>,
    control: &mut ControlFrames,
    sink: &mut S,
) -> Turn {
    let Some(probe) = shared.probes.0.front() else { return Turn::NOTHING };
    let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
    let header = probe.to.words(Kind::Probe, Flags::NONE, 0, probe.number);
    bytes[..HEADER_BYTES].copy_from_slice(&header_bytes::<2, HEADER_BYTES>(header));
    if !control.send(sink, probe.peer, (bytes, HEADER_BYTES)) {
        return Turn::one(false);
    }
    shared.probes.0.pop_front();
    shared.counters.control_frames_sent += 1;
    Turn::one(true)
}
