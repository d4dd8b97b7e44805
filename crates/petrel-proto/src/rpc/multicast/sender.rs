//! Packets to groups, and the calls they belong to (`docs/wire-protocol.md` §12.3).

use petrel_planted::planted;

use crate::buffer::Buffer;
use crate::limits::{WINDOW_PACKETS, packets_of};
use crate::rpc::client::call::{call_with, check};
use crate::rpc::client::grant::grant_with;
use crate::rpc::client::start::start;
use crate::rpc::{CallLimits, Events, Shared};
use crate::session::backlog::{PendingCall, Queued};
use crate::session::client::ClientSession;
use crate::session::{SessionId, SessionTable};
use crate::wire::Announcement;

/// Returns true if a request of this length may now be sent to this session's server by multicast. The
/// session must have a slot, and room for all packets at once as if they were sent here, so that credits,
/// window and pace are never exceeded. Mostly false for a session not reached by multicast.
pub(in crate::rpc) fn may_announce<B: Buffer, T>(
    client: &mut ClientSession<B, T>,
    len: usize,
    packet_bytes: u32,
) -> bool {
    let max = client.agreed().map_or(0, |agreed| agreed.peer_message_bytes_max);
    // An announcement has no place in an order.
    if client.order().is_some()
        || client.is_draining()
        || len > max as usize
        || client.packet_bytes() != packet_bytes
    {
        return false;
    }
    let packets = packets_of(len as u32, packet_bytes);
    (2..=WINDOW_PACKETS).contains(&packets)
        && client.has_room()
        && !client.has_stalled()
        && client.credits().0 >= packets
        && !client.congestion().is_limited()
        && client.is_multicast_likely()
}

/// Makes a call whose packets are sent by multicast. The server gets an ANNOUNCE of the packets, and gets missing
/// packets by unicast. [`Core::send_to_group`](crate::rpc::Core::send_to_group) sends the packets once for all members.
///
/// # Panics
/// If [`Core::may_announce`](crate::rpc::Core::may_announce) has not just returned true for this session.
pub(in crate::rpc) fn call_announced<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    events: &mut Events<B, T>,
    now_ns: u64,
    session: SessionId,
    call: PendingCall<B, T>,
    (limits, announcement): (CallLimits, Announcement),
) {
    let expiry = limits.expiry(shared.clock.inherited_ns());
    if expiry.at_ns <= now_ns {
        let called = call_with(sessions, shared, events, now_ns, session, call, limits);
        assert!(called.is_ok(), "an announcement that cannot be called");
        return;
    }
    let Some(client) = sessions.client_mut(session) else {
        panic!("an announcement to a session that has ended");
    };
    let checked = check(client, call.request.wire_len(), shared.config.backlog_max);
    let slot = client.take_slot().filter(|_| checked.is_ok());
    let Some(slot) = slot else { panic!("an announcement without a slot") };
    shared.counters.calls_started += 1;
    start(shared, session.index, client, slot, Queued::unordered(call, expiry));
    count_as_sent(shared, now_ns, client, slot, announcement);
    shared.timers.note_expiry(session, client.expiry_timer(), expiry.at_ns);
}

/// Counts all packets of a request as sent by the session, which neither a window nor a pace limits.
fn count_as_sent<B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    client: &mut ClientSession<B, T>,
    slot: usize,
    announcement: Announcement,
) {
    shared.counters.multicast_announced += 1;
    let packets = client.slot(slot).request_packets();
    assert!(
        (2..=WINDOW_PACKETS).contains(&packets),
        "an announced request has several packets, and all are in flight at once"
    );
    assert!(
        !client.has_stalled() && !client.congestion().is_limited(),
        "an announced request waits neither for credits nor for its pace"
    );
    client.note_sent(now_ns, slot, packets - 1, 0);
    let extra = match shared.config.response_grants {
        true => grant_with(client, slot, packets - 1),
        false => 0,
    };
    let granted = if planted("multicast_grant_is_free") { 0 } else { extra };
    client.note_sent(now_ns, slot, 1, granted);
    let state = client.slot_mut(slot);
    state.note_granted(extra);
    state.timer_mut().measure(packets - 1, now_ns);
    let parts = state.parts_mut(&mut shared.client_parts);
    parts.request_mut().note_run(0..packets);
    parts.announce(announcement);
}
