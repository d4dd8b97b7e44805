//! The steps of an input.

use petrel_proto::limits::{CREDITS_MAX, FIRST_REQUEST_END, MESSAGE_BYTES_MAX, REQUEST_NUMBER_END};
use petrel_proto::{Accepted, Agreed, SessionId, Status};

use super::forge;
use super::world::{BURST, PACKET_BYTES, PEER, Request, Session, World};
use crate::input::Input;

/// Most sessions that an input may open.
const SESSIONS_MAX: usize = 8;

/// Executes one step.
pub(super) fn take(world: &mut World, input: &mut Input<'_>) {
    if world.sessions.is_empty() {
        return open(world, input);
    }
    match input.below(24) {
        0 => open(world, input),
        1..=4 => call(world, input),
        5..=7 => send(world, input),
        8..=10 => arrive(world, input),
        11..=13 => storm(world, input),
        14 => exchange(world, input),
        15 | 16 => answer(world, input),
        17 | 18 => pass_time(world, input),
        19 => change_session(world, input),
        _ if world.is_honest => exchange(world, input),
        20 => forge::spoil(world, input),
        21 => forge::any_bytes(world, input),
        _ => forge::frame(world, input),
    }
}

fn open(world: &mut World, input: &mut Input<'_>) {
    if world.sessions.len() >= SESSIONS_MAX {
        return;
    }
    let client = input.below(2);
    let slots = [8, 1, 2, 64][input.below(4)];
    let credits = [32, 1, 2, 3, 7, 300, CREDITS_MAX][input.below(7)];
    let first_request = first_request(input);
    let message_bytes_max = [8 << 20, MESSAGE_BYTES_MAX, 8 << 20, 500_000, 3_000, 0];
    let maxima = [0, 1].map(|_| message_bytes_max[input.below(6)]);
    let is_established = input.below(8) != 1;
    let number = world.sessions.len() as u32;
    let tokens = [0xA000_0000 + number, 0xB000_0000 + number];
    let (here, there) = (client, 1 - client);
    let Ok(client_id) = world.ends[here].core.open(tokens[here], first_request) else { return };
    let agreed = |peer_session, peer: usize| Agreed {
        peer: PEER,
        peer_session,
        peer_token: tokens[peer],
        slots,
        credits,
        packet_bytes: PACKET_BYTES,
        peer_message_bytes_max: maxima[peer],
    };
    let accepted = world.ends[there].core.accept(Accepted {
        agreed: agreed(client_id.index, here),
        token: tokens[there],
        first_request,
        request_bytes_max: maxima[there],
    });
    let Ok(server_id) = accepted else { return world.close(here, client_id) };
    world.trace(|| format!("{here} opens session {number}: {slots} slots, {credits} credits"));
    let mut ids = [client_id; 2];
    ids[there] = server_id;
    let terms = agreed(server_id.index, there);
    let (acknowledged, number) = ([0; 2], first_request);
    world.sessions.push(Session { client, ids, tokens, terms, acknowledged, number });
    assert!(!is_established || world.establish(world.sessions.len() - 1));
}

/// Returns a multiple of 64, arbitrary or close to the end of the number range.
fn first_request(input: &mut Input<'_>) -> u64 {
    match input.below(4) {
        0 => 832,
        1 => 0,
        2 => (input.word() % FIRST_REQUEST_END) & !63,
        _ => REQUEST_NUMBER_END - 64 * (1 + input.below(4) as u64),
    }
}

pub(super) fn session(world: &World, input: &mut Input<'_>) -> usize {
    input.below(world.sessions.len())
}

fn call(world: &mut World, input: &mut Input<'_>) {
    let index = session(world, input);
    let len = size(world, input);
    let room = [60_000, 60_000, 400_000, size(world, input)][input.below(4)];
    world.trace(|| format!("call on session {index}: {len} B, room for {room} B"));
    world.call(index, input.byte().into(), len, room);
}

/// Returns the size of a message: small, close to one or several packets, or occasionally larger than
/// the window.
fn size(world: &World, input: &mut Input<'_>) -> usize {
    let packet = PACKET_BYTES as usize;
    match input.below(8) {
        0..=2 => input.below(64),
        3 => packet - 2 + input.below(5),
        4 | 5 => packet * input.below(12) + input.below(7),
        6 => packet * input.below(80),
        _ if world.budget_bytes > 1 << 20 => packet * (250 + input.below(12)),
        _ => 0,
    }
}

fn send(world: &mut World, input: &mut Input<'_>) {
    let (end, count) = (input.below(2), 1 + input.below(BURST));
    let taken = if input.below(4) == 0 { input.below(BURST) } else { count };
    world.send(end, count, taken);
}

/// Delivers a frame, loses a frame, or delivers a copy of a frame.
fn arrive(world: &mut World, input: &mut Input<'_>) {
    let end = input.below(2);
    let wire = &mut world.ends[end].wire;
    if wire.is_empty() {
        return;
    }
    let index = input.below(256) % wire.len();
    let (is_lost, stays) = [(false, false), (true, false), (false, true)][input.below(3)];
    let frame = if stays { wire.get(index).cloned() } else { wire.remove(index) };
    if let (Some(frame), false) = (frame, is_lost) {
        world.deliver(end, PEER, &frame);
    }
}

/// Delivers the frames in flight to one end, out of order. Some frames are lost, and some stay in
/// flight.
fn storm(world: &mut World, input: &mut Input<'_>) {
    let (end, fates, shift) = (input.below(2), input.word(), input.below(8));
    let mut frames = std::mem::take(&mut world.ends[end].wire);
    frames.rotate_left(shift % frames.len().max(1));
    for (index, frame) in frames.into_iter().enumerate() {
        match fates >> (2 * (index % 32)) & 3 {
            0 | 1 => world.deliver(end, PEER, &frame),
            2 => {}
            _ => world.ends[end].wire.push_back(frame),
        }
    }
}

/// Delivers all frames that the cores can send, in several rounds.
fn exchange(world: &mut World, input: &mut Input<'_>) {
    let rounds = 1 + input.below(4);
    let answers = input.below(2) == 0;
    for _ in 0..rounds {
        world.now += 5_000;
        [0, 1].into_iter().for_each(|end| send_all(world, end));
        [0, 1].into_iter().for_each(|end| deliver_all(world, end));
        if answers {
            [0, 1].into_iter().for_each(|end| answer_all(world, end));
        }
    }
}

/// Sends until a core has nothing left to send, which must happen.
pub(super) fn send_all(world: &mut World, end: usize) {
    let mut sent = 0;
    while world.ends[end].core.has_transmit() {
        sent += world.send(end, BURST, BURST);
        // 8 sessions of 64 slots, with a window of new packets and a window of retransmissions per slot.
        assert!(sent < 8 * 64 * 2 * 257, "frames without end");
    }
}

pub(super) fn deliver_all(world: &mut World, end: usize) {
    for frame in std::mem::take(&mut world.ends[end].wire) {
        world.deliver(end, PEER, &frame);
    }
}

pub(super) fn answer_all(world: &mut World, end: usize) {
    for request in std::mem::take(&mut world.ends[end].requests) {
        let len = (request.hash % 5_000) as usize;
        world.respond(end, request, Status::Ok, len);
    }
}

fn answer(world: &mut World, input: &mut Input<'_>) {
    let end = input.below(2);
    if world.ends[end].requests.is_empty() {
        return;
    }
    let index = input.below(256) % world.ends[end].requests.len();
    let request = world.ends[end].requests.swap_remove(index);
    let len = size(world, input);
    match input.below(8) {
        0 => {
            world.forget_watch(end, request);
            world.ends[end].core.respond_error(request.handle, Status::NotFound, "not here");
        }
        3 => {
            world.forget_watch(end, request);
            world.ends[end].core.refuse(request.handle, Status::Unavailable, "not now");
        }
        1 => world.respond(end, request, Status::Aborted, len),
        2 => {
            answer_another(world, end, request, input.below(48));
            world.ends[end].requests.push(request);
        }
        _ => world.respond(end, request, Status::Ok, len),
    }
}

/// Answers a request that never existed, or has ended.
fn answer_another(world: &mut World, end: usize, mut request: Request, bit: usize) {
    request.handle.number ^= 1 << bit;
    if world.ends[end].requests.iter().all(|open| open.handle != request.handle) {
        world.respond(end, request, Status::Ok, 10);
    }
}

fn pass_time(world: &mut World, input: &mut Input<'_>) {
    let next = |world: &World| {
        world.ends.iter().filter_map(|end| end.core.next_timeout_ns()).min().unwrap_or(0)
    };
    world.now = match input.below(3) {
        0 => world.now.max(next(world)),
        1 => world.now + u64::from(input.number()) * 1_000,
        _ => world.now + (u64::from(input.byte()) << 22),
    };
    handle_timeouts(world);
}

pub(super) fn handle_timeouts(world: &mut World) {
    world.trace(|| "timeouts".to_owned());
    let now = world.now;
    world.ends.iter_mut().for_each(|end| end.core.handle_timeouts(now));
}

/// Establishes a session late, cancels a call, or ends a session or all, at either end or at the two
/// ends.
fn change_session(world: &mut World, input: &mut Input<'_>) {
    let index = session(world, input);
    let (end, choice) = (input.below(2), input.below(8));
    let ids = world.sessions[index].ids;
    match choice {
        0 => drop(world.establish(index)),
        1 | 2 => world.cancel(index),
        3 => establish_unsound(world, index),
        4 => close_all(world, end),
        5 => world.close(end, SessionId { generation: ids[end].generation + 1, ..ids[end] }),
        6 => world.close(end, ids[end]),
        _ => [0, 1].into_iter().for_each(|end| world.close(end, ids[end])),
    }
}

fn close_all(world: &mut World, end: usize) {
    let ids: Vec<_> = world.sessions.iter().map(|session| session.ids[end]).collect();
    ids.into_iter().for_each(|id| world.close(end, id));
}

fn establish_unsound(world: &mut World, index: usize) {
    let Session { client: end, ids, terms, .. } = world.sessions[index];
    let core = &mut world.ends[end].core;
    let before = core.agreed(ids[end]).copied();
    core.establish(ids[end], Agreed { slots: 3, ..terms }).expect_err("three slots");
    assert_eq!(core.agreed(ids[end]).copied(), before);
}
