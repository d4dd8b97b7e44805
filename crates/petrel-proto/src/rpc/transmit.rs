//! The transmit path: chooses the next frames, and writes their bytes (`docs/wire-protocol.md` §4 to §6).
//!
//! The slots with something to send are in a queue. In its turn a slot sends a train of frames directly to
//! the medium. The slot's state changes only when the medium has accepted a frame, so a refused frame has no
//! effect. Two other designs were tried before. A list of frames to send, built first and passed as a whole,
//! caused repeated copies: with smaller slots, omitting the list reduced a small call from 2 600 instructions
//! to 1 690. A queue of refused frames beside the slots was overtaken by new packets, and the changed order
//! looked like loss: with a short transmit queue one lost packet led to thousands of repetitions.

use super::client::cancels::send_cancel;
use super::client::turn::turn_of_client;
use super::fast::{is_timed, send_plain, send_queued_timed, send_woken};
use super::multicast::send_multicast;
use super::probe::send_probe;
use super::queue::Work;
use super::server::by_paths::turn_of_server_by_paths;
use super::server::send::turn_of_server;
use super::turn::{Address, ControlFrames, Out, Then, Turn};
use super::{FrameSink, Shared};
use crate::buffer::Buffer;
use crate::limits::TRANSMIT_FRAMES_MAX;
use crate::session::client::ClientSession;
use crate::session::{NO_PEER, Role, SessionId, SessionTable};

/// Packets that a slot may send in one turn: enough for the transport to send them as one train, few enough
/// not to delay a small call.
const TRAIN_PACKETS: usize = 16;

#[inline]
pub(super) fn transmit_by<B: Buffer, T, S: FrameSink, const SHORT_WAYS: bool>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    control: &mut ControlFrames,
    now_ns: u64,
    sink: &mut S,
) -> usize {
    let mut sent = 0;
    let mut refused = 0;
    let mut first_had_its_turn = false;
    while sent < TRANSMIT_FRAMES_MAX
        && let Some(work) = shared.queue.pop()
    {
        if SHORT_WAYS
            && (send_plain::<B, T, S, false>(sessions, shared, now_ns, work, sink)
                || is_timed(sessions, work)
                    && send_queued_timed(sessions, shared, now_ns, work, sink)
                || send_woken(sessions, shared, now_ns, work, sink))
        {
            sent += 1;
            continue;
        }
        let budget = TRAIN_PACKETS.min(TRANSMIT_FRAMES_MAX - sent);
        let mut out = Out { now_ns, budget, may_take_credits: false, control, sink };
        let turn = take_turn(sessions, shared, &mut out, work);
        assert!(turn.sent <= budget, "a slot sends no more frames than its turn allows");
        sent += turn.sent;
        if turn.then == Then::Done {
            continue;
        }
        shared.queue.push(work);
        if turn.then == Then::More {
            refused = 0;
            continue;
        }
        if refused == 0 {
            first_had_its_turn = turn.sent > 0;
        }
        refused += 1;
        if refused >= shared.queue.len() {
            if first_had_its_turn {
                // Otherwise the slot that took all the room would again come first.
                shared.queue.put_first_last();
            }
            break;
        }
    }
    shared.queue.tidy();
    sent
}

#[inline(never)]
fn take_turn<B: Buffer, T, S: FrameSink>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    work: Work,
) -> Turn {
    match work {
        Work::Cancel => send_cancel(sessions, shared, out.control, out.sink),
        Work::Probe => send_probe(shared, out.control, out.sink),
        Work::Multicast => send_multicast(shared, out.budget, out.sink),
        Work::Client { session, slot } => {
            let Some(entry) = sessions.at_mut(session) else { return Turn::NOTHING };
            let id = SessionId { index: session, generation: entry.generation() };
            match entry.role_mut() {
                Role::Client(client) if usize::from(slot) < client.slots().len() => {
                    out.may_take_credits = client.take_turn(slot.into());
                    take_turn_of_client(shared, out, id, client, slot.into())
                }
                // The session ended after the slot was queued.
                _ => Turn::NOTHING,
            }
        }
        Work::Server { session, slot } => {
            let Some(entry) = sessions.at_mut(session) else { return Turn::NOTHING };
            let Role::Server(server) = entry.role_mut() else { return Turn::NOTHING };
            let (to, peer) = (server.to(), server.peer());
            if peer == NO_PEER {
                return turn_of_server_by_paths(shared, out, server, slot.into());
            }
            let address = Address { to, peer, packet_bytes: server.agreed().packet_bytes };
            let Some(state) = server.slots_mut().get_mut(usize::from(slot)) else {
                return Turn::NOTHING;
            };
            let turn = turn_of_server(shared, out, state, &address);
            state.note_turn(turn.then != Then::Done);
            turn
        }
    }
}

#[inline]
fn take_turn_of_client<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> Turn {
    let turn = turn_of_client(shared, out, id, client, slot);
    client.slot_mut(slot).note_turn(turn.then != Then::Done);
    if turn.then == Then::Refused && out.may_take_credits && client.has_stalled() {
        client.stall_first(slot);
    }
    if client.has_stalled() {
        // The slot was woken for a credit, and may not have needed it.
        shared.queue.wake_stalled(id.index, client);
    }
    turn
}
