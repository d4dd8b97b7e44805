//! Timeouts: packets lost without evidence are sent again, and continued silence ends a call
//! (`docs/wire-protocol.md` §7).

use std::mem;

use petrel_planted::planted;

use super::call::finish;
use super::expiry::note_default_expiry;
use crate::buffer::Buffer;
use crate::limits::{QUESTIONS_MAX, SILENCE_NS};
use crate::rpc::{CallFailure, Completion, Event, Events, Execution, Recovery, Shared};
use crate::session::client::ClientSession;
use crate::session::{Role, SessionId, SessionTable};
use crate::status::Status;

/// Sessions whose slots wait for the answer to the question of another slot (§7.2).
#[derive(Default)]
pub(in crate::rpc) struct SilentSessions(Vec<SessionId>);

/// The most sessions that are looked at each time; the slots of others wait until their timers fire.
const SILENT_MAX: usize = 16;

impl SilentSessions {
    #[inline(always)]
    pub(in crate::rpc) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, id: SessionId) {
        if self.0.len() < SILENT_MAX && !self.0.contains(&id) {
            self.0.push(id);
        }
    }
}

/// Lets slots ask that have waited for the answer to another slot's question: since the answer came, a packet is missing.
#[inline(never)]
pub(in crate::rpc) fn ask_after_silence<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    now_ns: u64,
) {
    let mut silent = mem::take(&mut shared.silent.0);
    silent.retain(|&id| {
        let Some(client) = sessions.client_mut(id) else { return false };
        if let Some(asker) = client.trips().asker() {
            // Without the asking call the slots wait for their own timers.
            return client.slots().get(asker).is_some_and(|asker| !asker.is_free());
        }
        for slot in 0..client.slots().len() {
            let state = client.slot(slot);
            let waits = state.timer().is_put_off() && state.is_waiting_for_server();
            if waits && !client.is_held_back(slot) {
                ask_late(shared, now_ns, id, client, slot);
            }
        }
        false
    });
    shared.silent.0 = silent;
}

/// Asks for a slot that has waited.
fn ask_late<B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    client.slot_mut(slot).timer_mut().take_put_off();
    match is_probe_due(shared, client, slot) {
        true => note_probe(shared, now_ns, client, slot),
        // The timeout has been counted by the slot.
        false => shared.counters.timeouts += 1,
    }
    ask_or_repeat(shared, now_ns, id, client, slot);
    shared.timers.arm(now_ns, id, client, slot);
}

#[inline(never)]
pub(in crate::rpc) fn handle_slot_due<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    events: &mut Events<B, T>,
    now_ns: u64,
    id: SessionId,
    slot: usize,
) {
    let Some(entry) = sessions.get_mut(id) else { return };
    let Role::Client(client) = entry.role_mut() else {
        unreachable!("only the slots of clients have timers");
    };
    let state = client.slot_mut(slot);
    state.note_due();
    if state.is_free() {
        return;
    }
    if state.timer().deadline_ns() > now_ns {
        shared.timers.put_back(now_ns, id, state, slot);
    } else if let Some(completion) = on_timeout(shared, now_ns, id, client, slot) {
        events.push_back(Event::Completed(completion));
    }
}

fn on_timeout<B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) -> Option<Completion<B, T>> {
    let is_held_back = client.is_held_back(slot);
    let state = client.slot_mut(slot);
    if is_held_back || !state.is_waiting_for_server() {
        // The slot waits for the session's pace, or for credits held by other slots with timers of their
        // own. The slot's timer is set when it sends; until then a late time is enough.
        state.timer_mut().set_deadline(now_ns + shared.timers.bounds().max_ns);
        shared.timers.put_back(now_ns, id, state, slot);
        return None;
    }
    note_default_expiry(shared, now_ns, id, client, slot);
    let unanswered = client.slot(slot).timer().unanswered();
    assert!(
        unanswered <= shared.config.retries_max,
        "a call ends when its last repetition is not answered"
    );
    let awaited = client.question_of_another(now_ns, slot);
    if awaited.is_some() {
        shared.silent.add(id);
    }
    if is_probe_due(shared, client, slot) {
        if let Some(question) = awaited {
            let soon_ns = now_ns + client.trips().probe_ns() / 2;
            let state = client.slot_mut(slot);
            state.timer_mut().set_deadline(soon_ns.max(now_ns + 1));
            state.timer_mut().put_off(question);
            shared.timers.put_back(now_ns, id, state, slot);
            return None;
        }
        note_probe(shared, now_ns, client, slot);
    } else if unanswered >= shared.config.retries_max {
        shared.counters.calls_timed_out += 1;
        let failure = gave_up(unanswered);
        client.note_given_up(slot);
        client.note_abandoned(slot);
        return Some(finish(shared, id, client, slot, Err(failure)));
    } else {
        shared.counters.timeouts += u64::from(awaited.is_none());
        if client.slot(slot).is_silence() {
            client.congestion_mut().on_timeout(now_ns, &mut shared.congestion);
        }
        client.note_timeout(slot);
    }
    if awaited.is_none() {
        ask_or_repeat(shared, now_ns, id, client, slot);
    }
    shared.timers.arm(now_ns, id, client, slot);
    match awaited {
        Some(question) => client.slot_mut(slot).timer_mut().put_off(question),
        None if client.slot(slot).timer().deadline_ns() >= now_ns + SILENCE_NS
            && !planted("proto_silence_is_not_told") =>
        {
            shared.notices.note_silent(id);
        }
        None => {}
    }
    None
}

fn is_probe_due<B: Buffer, T>(
    shared: &Shared<B>,
    client: &ClientSession<B, T>,
    slot: usize,
) -> bool {
    shared.timers.bounds().has_probes() && client.slot(slot).timer().is_probe_due(client.trips())
}

fn note_probe<B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    shared.counters.probes += 1;
    client.note_probe(now_ns, slot, shared.timers.bounds());
}

/// Asks the server for a slot's answer, or sends the slot's lowest missing packet again.
fn ask_or_repeat<B: Buffer, T>(
    shared: &mut Shared<B>,
    now_ns: u64,
    id: SessionId,
    client: &mut ClientSession<B, T>,
    slot: usize,
) {
    let asks = asks_first(shared, client, slot);
    if !asks {
        client.note_path_timeout(now_ns, slot);
    }
    // The first look for loss comes this long after the slot has sent or come forward.
    let since_ns = now_ns.saturating_sub(client.trips().probe_ns());
    let state = client.slot_mut(slot);
    match asks {
        true => state.ask_server(since_ns),
        false => state.repeat_late(now_ns, shared.config.recovery, &mut shared.client_parts),
    }
    shared.queue.push_client(id.index, slot, state);
}

/// Returns true if the server is asked before anything is repeated: no frame is lost, so that the server is
/// busy, or had no memory for a packet. In the latter case a repetition helps in the end.
fn asks_first<B: Buffer, T>(shared: &Shared<B>, client: &ClientSession<B, T>, slot: usize) -> bool {
    client.is_lossless()
        && shared.config.recovery == Recovery::Selective
        && client.slot(slot).timer().unanswered() <= QUESTIONS_MAX
}

#[cold]
fn gave_up(timeouts: u8) -> Box<CallFailure> {
    let text = format!("no answer from the server after {timeouts} retransmissions");
    Box::new(CallFailure::new(Status::Unavailable, text, Execution::MayHaveExecuted))
}
