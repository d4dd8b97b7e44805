//! ANNOUNCEs and packets to groups (`docs/wire-protocol.md` §12.3).

use super::Transmission;
use crate::buffer::Buffer;
use crate::rpc::deadline::left_us;
use crate::rpc::turn::{Out, Then, Turn, send_part};
use crate::rpc::{FrameSink, Shared};
use crate::session::client::ClientSession;
use crate::session::{PeerKey, SessionId};
use crate::wire::{Announcement, Destination, Flags, Kind, deadline_word};

/// Sends a due ANNOUNCE, in a turn of its own.
#[inline]
pub(in crate::rpc) fn announce<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    peer: PeerKey,
) -> Option<Turn> {
    let announcement = client.slot(slot).parts()?.due_announcement()?;
    Some(send_announce(shared, out, id, client, slot, peer, announcement))
}

#[cold]
fn send_announce<B: Buffer, T, S: FrameSink>(
    shared: &mut Shared<B>,
    out: &mut Out<'_, S>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    peer: PeerKey,
    announcement: Announcement,
) -> Turn {
    let (to, state) = (client.to(), client.slot(slot));
    let Some(call) = state.call() else { return Turn::NOTHING };
    let left = |deadline_ns| deadline_word(left_us(out.sink.now_ns(out.now_ns), deadline_ns));
    let left = state.wire_deadline_ns().map(left);
    let flags = if left.is_some() { Flags::EXTENDED } else { Flags::NONE };
    let size = call.request.wire_len() as u32;
    let part = crate::wire::Part { size, packet: 0, grant: state.grant() };
    let header = to.words(Kind::Announce, flags, state.method(), state.number());
    if !out.control.send(out.sink, peer, announcement.encode(header, part, left)) {
        return Turn::one(false);
    }
    if let Some(parts) = client.slot_mut(slot).known_parts_mut() {
        parts.note_announced();
    }
    shared.counters.control_frames_sent += 1;
    shared.timers.arm(out.now_ns, id, client, slot);
    Turn { sent: 1, then: Then::More }
}

/// Sends packets of the oldest message to a group.
#[cold]
pub(in crate::rpc) fn send_multicast<B: Buffer, S: FrameSink>(
    shared: &mut Shared<B>,
    budget: usize,
    sink: &mut S,
) -> Turn {
    let multicast = &mut shared.multicast;
    let Some(transmission) = multicast.outgoing.front_mut() else { return Turn::NOTHING };
    let Transmission { to, message, packets, next } = transmission;
    assert!(*next < *packets, "a message to a group waits while it has packets left to send");
    let destination = Destination::new(to.announcement.group, to.key);
    let header = destination.words(Kind::Multicast, Flags::NONE, 0, to.announcement.sequence);
    let mut turn = Turn { sent: 0, then: Then::More };
    while turn.sent < budget && *next < *packets {
        if !send_part(message, header, *next, 1, to.packet_bytes, to.peer, sink) {
            turn.then = Then::Refused;
            break;
        }
        *next += 1;
        turn.sent += 1;
    }
    assert!(*next <= *packets, "a group gets the packets of a message, and no more");
    shared.counters.multicast_sent += turn.sent as u64;
    if *next == *packets {
        // The frames are part of the message until flushed. No answer proves that a device has read them.
        sink.note_repeat();
        multicast.sent.extend(multicast.outgoing.pop_front().map(|sent| sent.message));
        turn.then = if multicast.outgoing.is_empty() { Then::Done } else { Then::More };
    }
    turn
}
