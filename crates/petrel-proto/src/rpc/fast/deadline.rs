//! The fast path of small calls with a deadline: as in the [parent module](super), with one more word behind the
//! header (`docs/wire-protocol.md` §3.4). Their responses use the fast path of all calls.
//!
//! The code is separate to save calls without a deadline its cost.

use super::{Parsed, PlainRequest, send_plain, start_plain, take_plain};
use crate::buffer::Buffer;
use crate::limits::{DEADLINE_BLOCK_BYTES, PART_HEADER_BYTES};
use crate::rpc::deadline::deadline_ns;
use crate::rpc::queue::Work;
use crate::rpc::{CallLimits, FrameSink, PendingCall, Shared};
use crate::session::backlog::NEVER;
use crate::session::client::SendPath;
use crate::session::{PeerKey, Role, SessionId, SessionTable};
use crate::wire::{Extensions, Flags, Kind, deadline_word, first_bits, part_words, word_left_us};

/// The lowest twelve bits of a REQUEST with an extension block and no other flag.
const FIRST_BITS: u32 = first_bits(Kind::Request) | (Flags::EXTENDED.0 as u32) << 8;

/// Returns the method and the message of a request of one packet with a deadline and without any peculiarity.
#[inline]
pub(in crate::rpc) fn peek_timed(frame: &[u8]) -> Option<(u16, &[u8])> {
    let (head, payload) = frame.split_first_chunk::<PART_HEADER_BYTES>()?;
    let [first, second, block] = part_words(head);
    let is_timed = first as u32 & 0xFFF == FIRST_BITS && word_left_us(block).is_some();
    is_timed.then_some((second as u16, payload))
}

/// Makes a call like [`call_plain`], if the call has its own deadline and inherits none. Otherwise
/// returns the call.
#[inline(always)]
pub(in crate::rpc) fn call_timed<B: Buffer, T, S: FrameSink>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    session: SessionId,
    call: PendingCall<B, T>,
    limits: CallLimits,
    sink: &mut S,
) -> Option<PendingCall<B, T>> {
    let at_ns = limits.deadline_ns.unwrap_or(NEVER);
    // A message in shared memory is not contiguous with its header.
    let is_own = call.request.wire_len() == call.request.len();
    if at_ns <= shared.clock.latest_ns(now_ns) || at_ns == NEVER || !is_own {
        return Some(call);
    }
    start_plain::<B, T, S, true>(sessions, shared, now_ns, session, call, at_ns, sink)
}

/// Returns true if a slot has a request with a deadline to send by the fast path.
#[inline(always)]
pub(in crate::rpc) fn is_timed<B, T>(sessions: &SessionTable<B, T>, work: Work) -> bool {
    let Work::Client { session, slot } = work else { return false };
    let role = sessions.at(session).map(|entry| entry.role());
    let Some(Role::Client(client)) = role else { return false };
    let slot = client.slots().get(usize::from(slot));
    slot.is_some_and(|state| state.path() == SendPath::Timed)
}

/// [`send_plain`] of a request with a deadline.
#[inline(never)]
pub(in crate::rpc) fn send_queued_timed<B: Buffer, T, S: FrameSink>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    work: Work,
    sink: &mut S,
) -> bool {
    send_plain::<B, T, S, true>(sessions, shared, now_ns, work, sink)
}

/// Handles new requests of one packet with a future deadline and without any peculiarity. Returns the
/// request and the deadline, or `None` for other frames: pass these to the general path.
#[inline(always)]
pub(in crate::rpc) fn take_timed<'f, B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
    peer: PeerKey,
    frame: &'f [u8],
) -> Option<(PlainRequest<'f, B>, u64)> {
    let (head, payload) = frame.split_first_chunk::<PART_HEADER_BYTES>()?;
    let [first, second, block] = part_words(head);
    if first as u32 & 0xFFF != FIRST_BITS {
        return None;
    }
    let deadline_us = Some(word_left_us(block)?);
    let arrival_ns = shared.clock.arrival_ns(now_ns);
    let deadline_ns = deadline_ns(arrival_ns, Extensions { deadline_us });
    if deadline_ns <= shared.clock.latest_ns(now_ns) {
        return None;
    }
    let parsed = Parsed { first, second, payload };
    let request = take_plain(sessions, shared, peer, parsed, frame.len() - DEADLINE_BLOCK_BYTES)?;
    Some((request, deadline_ns))
}

/// Sends a request of one packet with the time left until the deadline.
#[inline(always)]
pub(super) fn send_timed<B: Buffer, S: FrameSink>(
    request: &mut B,
    [first, second]: [u64; 2],
    left_us: u32,
    peer: PeerKey,
    sink: &mut S,
) -> bool {
    sink.send(peer, request.timed_frame([first, second, deadline_word(left_us)]), &[])
}
