//! The fast path of packets of large requests, at the server.

use crate::buffer::Buffer;
use crate::limits::PART_HEADER_BYTES;
use crate::rpc::Shared;
use crate::session::{PeerKey, Role, SessionTable};
use crate::wire::{Kind, first_bits, part_words};

/// Like [`Core::handle_next_part`](crate::rpc::Core::handle_next_part), but the caller copies the payload to the
/// returned place; everything else is done. `head` are the frame's first bytes, which must not change.
#[inline(always)]
pub(in crate::rpc) fn next_part_place<'c, B: Buffer, T>(
    sessions: &'c mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    peer: PeerKey,
    head: &[u8; PART_HEADER_BYTES],
    payload_bytes: usize,
) -> Option<&'c mut [u8]> {
    let [first, second, third] = part_words(head);
    if first as u32 & 0xFFF != first_bits(Kind::RequestPart) {
        return None;
    }
    let session = (first >> 12) as u32 & 0xF_FFFF;
    let entry = sessions.at_mut(session)?;
    if !entry.is_from((first >> 32) as u32, peer) {
        return None;
    }
    let Role::Server(server) = entry.role_mut() else { return None };
    let slot = server.slot_index(second >> 16);
    let is_full = payload_bytes == server.agreed().packet_bytes as usize;
    let state = server.slots_mut().get_mut(slot)?;
    if !is_full || state.current() != second >> 16 || !state.is_queued() {
        return None;
    }
    let place = state.take_next(third, payload_bytes)?;
    shared.counters.frames_accepted += 1;
    Some(place)
}
