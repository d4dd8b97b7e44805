//! The fast path of packets of large requests, at the server.

use crate::buffer::{Buffer, Destination};
use crate::limits::PART_HEADER_BYTES;
use crate::rpc::Shared;
use crate::session::{PeerKey, Role, SessionTable};
use crate::wire::{Kind, first_bits, part_words};

/// Why [`next_part_place`] has no place for a packet.
pub(in crate::rpc) enum NotNext {
    /// The frame is not from the only path of an open session, which may have several: [`part_place_from`] may take it.
    OtherPath,
    /// The fast path does not apply.
    Other,
}

/// Like [`Core::handle_next_part`](crate::rpc::Core::handle_next_part), but the caller copies the payload to the
/// returned place; everything else is done. `head` are the frame's first bytes, which must not change.
#[inline(always)]
pub(in crate::rpc) fn next_part_place<'c, B: Buffer, T>(
    sessions: &'c mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    peer: PeerKey,
    head: &[u8; PART_HEADER_BYTES],
    payload_bytes: usize,
) -> Result<&'c mut [u8], NotNext> {
    let [first, second, third] = part_words(head);
    if first as u32 & 0xFFF != first_bits(Kind::RequestPart) {
        return Err(NotNext::Other);
    }
    let session = (first >> 12) as u32 & 0xF_FFFF;
    let Some(entry) = sessions.at_mut(session) else { return Err(NotNext::Other) };
    if !entry.is_from((first >> 32) as u32, peer) {
        return Err(NotNext::OtherPath);
    }
    let Role::Server(server) = entry.role_mut() else { return Err(NotNext::Other) };
    let slot = server.slot_index(second >> 16);
    let is_full = payload_bytes == server.agreed().packet_bytes as usize;
    let Some(state) = server.slots_mut().get_mut(slot) else { return Err(NotNext::Other) };
    if !is_full || state.current() != second >> 16 || !state.is_queued() {
        return Err(NotNext::Other);
    }
    let Some(place) = state.take_next(third, payload_bytes) else { return Err(NotNext::Other) };
    shared.counters.frames_accepted += 1;
    Ok(place)
}

/// Like [`next_part_place`], for a request that is put together in a destination of this type. Returns the destination and
/// the offset of the payload. A function of its own: with a common part, packets to buffers took 3 to 12 instructions more.
pub(in crate::rpc) fn next_part_destination<'c, B: Buffer, T, D: Destination>(
    sessions: &'c mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    peer: PeerKey,
    head: &[u8; PART_HEADER_BYTES],
    payload_bytes: usize,
) -> Option<(&'c mut D, usize)> {
    let [first, second, third] = part_words(head);
    let entry = sessions.at_mut((first >> 12) as u32 & 0xF_FFFF)?;
    let is_part = first as u32 & 0xFFF == first_bits(Kind::RequestPart);
    if !is_part || !entry.is_from((first >> 32) as u32, peer) {
        return None;
    }
    let Role::Server(server) = entry.role_mut() else { return None };
    let (slot, packet_bytes) = (server.slot_index(second >> 16), server.agreed().packet_bytes);
    let state = server.slots_mut().get_mut(slot)?;
    let is_next = state.current() == second >> 16 && state.is_queued();
    if !is_next || payload_bytes != packet_bytes as usize {
        return None;
    }
    let placed = state.take_next_placed(third, payload_bytes)?;
    shared.counters.frames_accepted += 1;
    Some(placed)
}

/// Like [`next_part_place`], for a packet of an arriving request in a session of several paths. Packets of different
/// paths overtake each other, so the packet need not be the next in order.
#[inline(always)]
pub(in crate::rpc) fn part_place_from<'c, B: Buffer, T>(
    sessions: &'c mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    (peer, source): (PeerKey, u8),
    head: &[u8; PART_HEADER_BYTES],
    payload_bytes: usize,
) -> Option<&'c mut [u8]> {
    let [first, second, third] = part_words(head);
    if first as u32 & 0xFFF != first_bits(Kind::RequestPart) {
        return None;
    }
    let entry = sessions.at_mut((first >> 12) as u32 & 0xF_FFFF)?;
    if !entry.is_by_paths((first >> 32) as u32) {
        return None;
    }
    let Role::Server(server) = entry.role_mut() else { return None };
    let slot = server.slot_index(second >> 16);
    let is_full = payload_bytes == server.agreed().packet_bytes as usize;
    let (slots, paths) = server.with_paths()?;
    let state = slots.get_mut(slot)?;
    let is_known = paths.source() == peer && state.current() == second >> 16;
    if !is_full || !is_known || !state.is_queued() {
        return None;
    }
    let packet = state.expects_early(third)?;
    paths.note_next_source(slot, source)?;
    shared.counters.frames_accepted += 1;
    Some(state.take_early(packet, payload_bytes))
}
