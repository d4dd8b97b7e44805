//! The invariants of the two cores.

use petrel_proto::{SessionId, Status};

use super::steps::{answer_all, deliver_all, handle_timeouts, send_all};
use super::world::{Call, PACKET_BYTES, RETRIES, World};

/// Limit of the rounds until every call ends on a medium without faults: far above the retries of queued
/// calls.
const ROUNDS_MAX: usize = 20_000;

/// Checks after every step: all ended calls were reported, and all credits are accounted for.
pub(super) fn after_step(world: &mut World) {
    for end in [0, 1] {
        world.take_events(end);
        check_counters(world, end);
    }
    for session in &world.sessions {
        check_client(world, session.client, session.ids[session.client]);
    }
}

fn check_counters(world: &World, end: usize) {
    let counters = world.ends[end].core.counters();
    let ended = counters.calls_succeeded + counters.calls_failed;
    assert!(ended <= counters.calls_started);
    assert!(counters.calls_timed_out <= counters.calls_failed);
    assert!(counters.sessions_closed <= counters.sessions_opened);
}

fn check_client(world: &World, end: usize, id: SessionId) {
    let core = &world.ends[end].core;
    // Session names of the two ends may be equal; the calls of a client session belong to its end.
    let is_of_this = |call: &&Call| call.session == id && call.end == end;
    let under_way = world.calls.values().filter(is_of_this).count();
    assert_eq!(core.pending_calls(id), under_way, "calls of {id:?}");
    if let Some((free, all)) = core.credits(id) {
        assert!(free <= all, "{free} of {all} credits are free");
        assert!(under_way > 0 || free == all, "{free} of {all} credits are free at rest");
    }
}

/// Checks after the last step: without forged frames every call ends by itself; with forged frames at
/// the latest when its session is closed.
pub(super) fn at_the_end(mut world: World) {
    if world.is_honest {
        close_half_open(&mut world);
        settle(&mut world, &mut Losses::default());
        call_once_more(&mut world);
    }
    for index in 0..world.sessions.len() {
        let ids = world.sessions[index].ids;
        [0, 1].into_iter().for_each(|end| world.close(end, ids[end]));
    }
    after_step(&mut world);
    assert!(world.calls.is_empty(), "a call ends with its session");
    for end in &world.ends {
        assert!(end.watched.is_empty(), "{:?} were not told of", end.watched);
        let counters = end.core.counters();
        assert_eq!(counters.calls_started, counters.calls_succeeded + counters.calls_failed);
        assert_eq!(counters.sessions_opened, counters.sessions_closed);
        assert_eq!(end.core.session_count(), 0);
    }
}

/// Closes unestablished sessions, because their calls wait for the owner.
fn close_half_open(world: &mut World) {
    for index in 0..world.sessions.len() {
        let session = &world.sessions[index];
        let (end, id) = (session.client, session.ids[session.client]);
        let core = &mut world.ends[end].core;
        if core.is_open(id) && core.agreed(id).is_none() {
            core.close(id, Status::Unavailable, "never opened");
        }
    }
}

/// Checks that a call on any session succeeds if fewer frames are lost than the call has
/// retransmissions, whatever happened to the session before.
fn call_once_more(world: &mut World) {
    if world.retries_max != RETRIES {
        return;
    }
    for index in 0..world.sessions.len() {
        let ids = world.sessions[index].ids;
        if [0, 1].into_iter().all(|end| world.ends[end].core.is_open(ids[end])) {
            let timed_out = calls_timed_out(world);
            world.call(index, 1, 6 * PACKET_BYTES as usize, 60_000);
            settle(world, &mut Losses { mask: world.last_losses, left: RETRIES - 1 });
            assert_eq!(calls_timed_out(world), timed_out);
        }
    }
}

fn calls_timed_out(world: &World) -> u64 {
    world.ends.iter().map(|end| end.core.counters().calls_timed_out).sum()
}

/// The losses while the world settles, and their maximum number.
#[derive(Default)]
struct Losses {
    mask: u64,
    left: u8,
}

impl Losses {
    fn take(&mut self) -> bool {
        let is_lost = self.left > 0 && self.mask & 1 == 1;
        self.mask >>= 1;
        self.left -= u8::from(is_lost);
        is_lost
    }
}

/// Delivers all frames in flight, and lets time pass, until every call has ended.
fn settle(world: &mut World, losses: &mut Losses) {
    for _ in 0..ROUNDS_MAX {
        after_step(world);
        if world.calls.is_empty() {
            return;
        }
        world.now += 5_000;
        if !exchange_once(world, losses) {
            let timers = world.ends.iter().filter_map(|end| end.core.next_timeout_ns());
            world.now = timers.min().expect("a timer runs while a call waits").max(world.now);
            handle_timeouts(world);
        }
    }
    panic!("{} calls do not end", world.calls.len());
}

/// Delivers all frames that the cores can send, and answers all requests. Returns true after any
/// delivery or answer.
fn exchange_once(world: &mut World, losses: &mut Losses) -> bool {
    let mut moved = false;
    for end in [0, 1] {
        send_all(world, end);
    }
    for end in [0, 1] {
        moved |= !world.ends[end].wire.is_empty() || !world.ends[end].requests.is_empty();
        world.ends[end].wire.retain(|_| !losses.take());
        deliver_all(world, end);
        answer_all(world, end);
    }
    moved
}
