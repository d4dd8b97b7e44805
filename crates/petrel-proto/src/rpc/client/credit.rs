//! The client's handling of CREDIT frames (`docs/wire-protocol.md` §5.2).

use super::response::slot_of;
use crate::bitmap::words_end;
use crate::limits::{WAITING_PROBE_DIVISOR, WAITING_PROBE_NS_MAX};
use crate::rpc::Shared;
use crate::session::SessionId;
use crate::session::client::{Acknowledged, ClientSession, ClientState};
use crate::wire::{Credit, Flags, Header, Marks};

pub(in crate::rpc) fn on_credit<B, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    header: Header,
    rest: &[u8],
) {
    let flags = header.flags;
    let marks = match client.paths() {
        Some(_) => Marks::read(flags, rest),
        None => Ok(None),
    };
    let (Ok(credit), Ok(marks)) = (Credit::parse(flags, rest), marks) else {
        shared.counters.dropped_malformed += 1;
        return;
    };
    let Some(slot) = slot_of(shared, client, &header) else { return };
    let state = client.slot_mut(slot);
    if !is_sound(&credit, state.request_sent()) {
        shared.counters.dropped_malformed += 1;
        return;
    }
    shared.counters.frames_accepted += 1;
    let was_asked = state.timer_mut().note_sign();
    if state.state() == ClientState::Sending {
        if client.paths().is_some() {
            let (marks, in_runs) = ((marks, flags), shared.config.fast_path);
            client.acknowledge_paths(now_ns, slot, &credit, marks, in_runs, shared.timers.bounds());
        }
        let returned = acknowledge(shared, now_ns, id, client, slot, &credit, flags);
        if was_asked && returned == 0 {
            repeat_dropped(shared, id, client, slot);
        }
    }
    if flags.waits() && client.slot(slot).state() == ClientState::Waiting {
        park(shared, id, client, slot);
        if was_asked {
            delay_probe(shared, now_ns, id, client, slot);
        }
    }
}

/// Returns a slot's credits: the server has the request, and begins its answer with one packet (flag W,
/// §4).
fn park<B, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    if client.park(slot) > 0 {
        shared.counters.calls_parked += 1;
        shared.queue.wake_stalled(id.index, client);
    }
}

/// Delays the next probe of a request whose handler still runs, in proportion to its time so far (§7.2).
fn delay_probe<B, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    let rto_ns = client.trips().rto_ns(shared.timers.bounds(), client.trips().backoff());
    let state = client.slot_mut(slot);
    let waited_ns = now_ns.saturating_sub(state.timer().since_ns());
    let look_ns = (waited_ns / WAITING_PROBE_DIVISOR).min(WAITING_PROBE_NS_MAX);
    state.timer_mut().look_again(now_ns + look_ns.max(rto_ns));
    shared.timers.keep(now_ns, id, state, slot);
}

/// Returns the number of returned credits.
fn acknowledge<B, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
    credit: &Credit,
    flags: Flags,
) -> u32 {
    let acknowledged = client.acknowledge(
        now_ns,
        slot,
        credit,
        flags.repeats(),
        shared.timers.bounds(),
        &mut shared.client_parts,
    );
    let Acknowledged { before, credits, rtt_ns } = acknowledged;
    client.report(now_ns, rtt_ns, credits, flags.congestion(), &mut shared.congestion);
    if client.slot(slot).state() == ClientState::Sending {
        let (lost, is_congestion) =
            find_lost(shared, now_ns, client, slot, before, (credit, flags));
        shared.queue.push_client(id.index, slot, client.slot_mut(slot));
        shared.counters.losses_detected += u64::from(lost);
        if is_congestion {
            client.congestion_mut().on_loss(now_ns, lost, &mut shared.congestion);
        }
    }
    shared.queue.wake_stalled(id.index, client);
    shared.timers.arm(now_ns, id, client, slot);
    credits
}

/// Looks for lost packets of which a CREDIT is evidence. Returns their number, and whether the congestion controller has to hear of
/// them: the windows of several paths have their own account.
fn find_lost<B, T>(
    shared: &Shared<B>,
    now_ns: u64,
    client: &mut ClientSession<B, T>,
    slot: usize,
    before: u32,
    (credit, flags): (&Credit, Flags),
) -> (u32, bool) {
    let repeats = flags.repeats();
    if client.paths().is_some() {
        return (client.find_lost_by_paths(now_ns, slot, before, repeats), false);
    }
    let state = client.slot_mut(slot);
    let lost = state.find_lost(before, credit.echo, repeats, shared.config.recovery);
    (lost, lost > 0 && state.is_congestion_loss())
}

/// Repeats the lowest packet that the server does not have when it is asked. The question has come after the
/// packet, so that the server had no memory for the packet (§7.2).
fn repeat_dropped<B, T>(
    shared: &mut Shared<B>,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    let is_lossless = client.is_lossless();
    let state = client.slot_mut(slot);
    let is_missing = state.state() == ClientState::Sending && state.is_waiting_for_server();
    if is_lossless && is_missing {
        state.repeat(shared.config.recovery, &mut shared.client_parts);
        shared.queue.push_client(id.index, slot, state);
    }
}

/// Returns true if a CREDIT is only about packets that were sent.
fn is_sound(credit: &Credit, sent: u32) -> bool {
    credit.echo < sent
        && credit.cumulative <= sent
        && words_end(&credit.bitmap) <= sent - credit.cumulative
}
