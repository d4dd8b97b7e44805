//! The packets of a response that a request allows beyond the first (`docs/wire-protocol.md` §5.2).

use crate::buffer::Buffer;
use crate::limits::packets_of;
use crate::session::client::ClientSession;

/// Returns the number of response packets beyond the first that the last packet of a request allows.
#[inline]
pub(in crate::rpc) fn grant_with<B: Buffer, T>(
    client: &ClientSession<B, T>,
    slot: usize,
    packet: u32,
) -> u32 {
    if client.is_reserved(slot) {
        return 0;
    }
    let state = client.slot(slot);
    let capacity = state.call().map_or(0, |call| call.response.capacity());
    if capacity <= client.packet_bytes() as usize
        || packet + 1 != state.request_packets()
        // The server would send granted packets at the speed of its link.
        || client.congestion().is_limited()
    {
        return 0;
    }
    let wanted = packets_of(capacity.min(u32::MAX as usize) as u32, client.packet_bytes()) - 1;
    // Half of the free credits: the caller's buffer may be far larger than the response, and other calls
    // should not wait for unused credits.
    wanted.min((client.credits().0 - 1) / 2).min(u32::from(u8::MAX) - 1)
}
