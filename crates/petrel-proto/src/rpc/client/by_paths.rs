//! The client's part of sessions of several paths (`docs/wire-protocol.md` §14): the path of each frame.

use super::send::{pull, send_request};
use crate::buffer::Buffer;
use crate::path::{PathId, SentUs};
use crate::rpc::turn::{Out, Then, Turn};
use crate::rpc::{FrameSink, Shared};
use crate::session::SessionId;
use crate::session::client::{ClientSession, ClientState, NextCopy};
use crate::wire::{ANSWERED_LATER, Flags, Header, Kind, Part};

/// [`turn_of_client`](super::turn::turn_of_client) for a session of several paths.
#[cold]
#[inline(never)]
pub(super) fn turn_by_paths<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> Turn {
    assert!(client.paths().is_some(), "a request is sent when its session is open");
    match client.slot(slot).state() {
        ClientState::Free => Turn::NOTHING,
        ClientState::Sending => send_by_paths(shared, out, id, client, slot),
        ClientState::Waiting | ClientState::Receiving => {
            let (peer, path) = client.destination(slot);
            out.on_path(path, peer, |out| pull(shared, out, id, client, slot))
        }
    }
}

/// Sends packets of a request, each on a path of its own.
fn send_by_paths<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> Turn {
    if let Some(paths) = client.paths_mut() {
        paths.note_turn(out.now_ns, &mut shared.senders);
    }
    let mut turn = send_run(shared, out, id, client, slot);
    while turn.sent < out.budget && turn.then != Then::Refused {
        let is_announced =
            client.slot(slot).parts().is_some_and(|parts| parts.due_announcement().is_some());
        let next = match client.next_copy(slot).filter(|_| !is_announced) {
            None => None,
            Some(copy) => match choose(shared, out.now_ns, id, client, slot, copy) {
                Some(chosen) => Some(chosen),
                None => {
                    turn.then = Then::Done;
                    break;
                }
            },
        };
        let path = next.map_or(PathId::FIRST, |(copy, _)| copy.path);
        let (peer, _) = client.destination(slot);
        let one = out.on_path(path, peer, |out| {
            out.budget = 1;
            send_request(shared, out, id, client, slot, peer)
        });
        turn.sent += one.sent;
        turn.then = one.then;
        if one.sent > 0
            && let (Some((copy, has_room)), Some(paths)) = (next, client.paths_mut())
        {
            paths.note_sent(out.now_ns, slot, copy, has_room);
        }
        if one.sent == 0 || one.then != Then::More {
            break;
        }
    }
    turn
}

/// Without packets to repeat, sends new packets in sequence up to the last but one, while paths have room. Common values are
/// computed once. Other packets are sent singly.
fn send_run<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> Turn {
    let allowed = client.credits().0.min(client.message_credits(slot)).min(out.budget as u32);
    let (to, packet_bytes) = (client.to(), client.packet_bytes() as usize);
    let window_packets = client.window_packets();
    let (peer, _) = client.destination(slot);
    let state = client.slot(slot);
    let (first, packets) = (state.request_sent(), state.request_packets());
    let is_run = shared.config.fast_path
        && first + 1 < packets
        && out.may_take_credits
        && !client.is_reserved(slot)
        // Packet 0 carries the time left, and the place in the order.
        && !(first == 0 && (state.expiry().is_on_wire || client.order().is_some()));
    if !is_run {
        return Turn::NOTHING;
    }
    let parts = client.slot_mut(slot).parts_mut(&mut shared.client_parts);
    let sent = parts.request();
    if sent.has_lost() || parts.due_announcement().is_some() {
        return Turn::NOTHING;
    }
    let window_end = sent.acknowledged_below() + window_packets;
    let end = (first + allowed).min(window_end).min(packets - 1);
    let Some((state, mut places)) = client.slot_with_packets(slot) else { return Turn::NOTHING };
    let header = to.words(Kind::RequestPart, Flags::NONE, state.method(), state.number());
    let Some(request) = state.request_mut() else { return Turn::NOTHING };
    let size = request.wire_len() as u32;
    let sent_us = SentUs::of(out.now_ns);
    let (mut packet, mut offset) = (first, first as usize * packet_bytes);
    let mut refused = None;
    while packet < end
        && refused.is_none()
        && let Some(mut burst) = places.begin_burst(out.now_ns, end - packet)
    {
        let end = end.min(packet + burst.room());
        while packet < end
            && let Some(path) = burst.choose()
        {
            let part = Part { size, packet, grant: 1 };
            let (head, body) = request.part(packet, part.words(header), offset, packet_bytes);
            if !out.sink.send_from(path.index() as u8, peer, head, body) {
                refused = Some(path);
                break;
            }
            places.note_new(&mut burst, sent_us, packet, path);
            packet += 1;
            offset += packet_bytes;
        }
        places.end_burst(&burst, packet, refused);
    }
    let then = if refused.is_some() { Then::Refused } else { Then::More };
    let sent = packet - first;
    if sent > 0 {
        client.note_sent(out.now_ns, slot, sent, 0);
        if let Some(parts) = client.slot_mut(slot).known_parts_mut() {
            parts.request_mut().note_run(first..packet);
        }
        shared.counters.packets_sent += u64::from(sent);
        shared.timers.arm(out.now_ns, id, client, slot);
    }
    Turn { sent: sent as usize, then }
}

/// Chooses the path of a packet. The result is true if the packet takes room of the windows. Returns `None` if
/// the packet has to wait although the windows have room.
fn choose<B, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    copy: NextCopy,
) -> Option<(NextCopy, bool)> {
    let needs_room = !copy.repeats && !client.is_reserved(slot);
    let paths = client.paths_mut()?;
    let chosen = match needs_room {
        true => paths.choose(now_ns, copy.is_single),
        false => paths.choose_again(now_ns, slot, copy.packet),
    };
    match chosen {
        Ok(path) => Some((NextCopy { path, ..copy }, needs_room)),
        // Without room the packet waits like a packet without a credit.
        Err(_) if needs_room && paths.room() == 0 => Some((copy, true)),
        Err(resume_ns) => {
            client.wait_for_path(slot);
            if !client.awaits_release() {
                shared.timers.await_release(now_ns, id, client, resume_ns.max(now_ns));
            }
            None
        }
    }
}

/// Notes a response for the paths of its request.
pub(in crate::rpc) fn hear_response<B, T>(
    now_ns: u64,
    client: &mut ClientSession<B, T>,
    header: Header,
) {
    if matches!(header.kind, Kind::Response | Kind::ResponsePart) {
        let is_immediate = header.aux & ANSWERED_LATER == 0;
        client.note_response(now_ns, header.request, (header.flags.congestion(), is_immediate));
    }
}
