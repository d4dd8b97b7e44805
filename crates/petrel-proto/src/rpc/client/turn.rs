//! The turn of a client slot in the transmit queue.

use super::by_paths::turn_by_paths;
use super::send::{pull, send_pull, send_request};
use crate::buffer::Buffer;
use crate::rpc::turn::{Out, Then, Turn};
use crate::rpc::{FrameSink, Shared};
use crate::session::client::{ClientSession, ClientState};
use crate::session::{NO_PEER, SessionId};
use crate::wire::Flags;

#[inline]
pub(in crate::rpc) fn turn_of_client<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> Turn {
    let peer = client.peer();
    if peer == NO_PEER {
        return turn_by_paths(shared, out, id, client, slot);
    }
    match client.slot(slot).state() {
        ClientState::Free => Turn::NOTHING,
        ClientState::Sending if client.slot(slot).timer().is_pull_due() => {
            let turn = send_pull(shared, out, id, client, slot, Flags::REPEATS);
            // Packets of the request may wait behind the question.
            if turn.then == Then::Done { Turn { then: Then::More, ..turn } } else { turn }
        }
        ClientState::Sending => send_request(shared, out, id, client, slot, peer),
        ClientState::Waiting | ClientState::Receiving => pull(shared, out, id, client, slot),
    }
}
