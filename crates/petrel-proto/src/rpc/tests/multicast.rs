//! Requests to groups (`docs/wire-protocol.md` §12). A pair is a group of one member. To the client, further
//! members are sessions like this one, and the medium makes the copies.

use proptest::prelude::*;

use super::*;
use crate::limits::TRANSMIT_FRAMES_MAX;
use crate::wire::{Announcement, Kind};

const GROUP: PeerKey = PeerKey(9);
const NUMBER: u32 = 5;
const KEY: u32 = 0x6E0F_0003;
const LEN: usize = 5 * P as usize + 100;
const PACKETS: u64 = 6;

fn membership(pair: &Pair) -> Membership {
    Membership { peer: PEER, group: NUMBER, key: KEY, session: pair.server_session }
}

/// Returns a pair whose server is a member.
fn joined() -> Pair {
    let config = Config { retries_max: 100, ..Config::default() };
    let mut pair = Pair::with_config(Shape::default(), config);
    assert!(pair.server.join_group(membership(&pair)));
    pair
}

/// Makes a call by multicast with [`LEN`] bytes.
fn call(pair: &mut Pair, sequence: u64, limits: CallLimits) -> Vec<u8> {
    assert!(pair.client.may_announce(pair.session, LEN, P));
    send(pair, sequence, limits)
}

fn send(pair: &mut Pair, sequence: u64, limits: CallLimits) -> Vec<u8> {
    send_for(pair, sequence, limits, 100)
}

/// Makes a call with room for `room` bytes of a response.
fn send_for(pair: &mut Pair, sequence: u64, limits: CallLimits, room: usize) -> Vec<u8> {
    // Seeds far apart, to make all messages differ.
    let message = pattern(LEN, sequence << 56);
    let announcement = Announcement { group: NUMBER, sequence };
    let (request, response) = (buffer(&message), HeapBuffer::new(room, 1));
    let call = PendingCall { method: 3, tag: sequence, request, response };
    pair.client.call_announced(pair.now, pair.session, call, limits, announcement);
    let to = GroupFrames { peer: GROUP, key: KEY, announcement, packet_bytes: P };
    pair.client.send_to_group(to, buffer(&message));
    message
}

fn kind(frame: &[u8]) -> Kind {
    Frame::parse(frame).unwrap().header.kind
}

/// Carries frames both ways except those selected by `loses`, answers requests with their first four bytes,
/// and advances the clock when idle, until the call has ended. Returns the executed requests.
fn run_lossy(pair: &mut Pair, mut loses: impl FnMut(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let mut ran = Vec::new();
    for _ in 0..10_000 {
        let frames = pair.client_sends();
        let is_idle = frames.is_empty();
        for frame in frames {
            if loses(&frame) {
                continue;
            }
            if let Got::Request(handle, request) = pair.at_server(&frame) {
                pair.respond(handle, &request[..4]);
                ran.push(request);
            }
        }
        for frame in pair.server_sends() {
            if !loses(&frame)
                && let Got::Completed(completion) = pair.at_client(&frame)
            {
                completion.outcome.unwrap();
                assert_eq!(completion.response.message(), &ran[0][..4]);
                return ran;
            }
        }
        match is_idle {
            true => {
                pair.now = pair.now.max(pair.client.next_timeout_ns().expect("a timer"));
                pair.client.handle_timeouts(pair.now);
            }
            false => pair.now += 5_000,
        }
    }
    panic!("the call does not end");
}

fn assert_ran_once(pair: &Pair, ran: &[Vec<u8>], message: &[u8]) {
    assert_eq!(ran.len(), 1, "at most once, and once");
    assert!(ran[0] == message, "the bytes differ");
    pair.assert_credits_back();
}

#[test]
fn a_call__is_an_announcement_and_the_packets_for_all() {
    let mut pair = joined();
    let message = call(&mut pair, 70, CallLimits::default());
    let frames = pair.client_sends();
    let lines = words(&frames);
    assert_eq!(lines[0], "ANNOUNCE s0 r832 m3 p0 of 6100 B, 12 B, grant 1");
    assert_eq!(lines[1], "MULTICAST s5 r70 p0 of 6100 B, 1200 B, grant 1");
    assert_eq!(lines[6], "MULTICAST s5 r70 p5 of 6100 B, 100 B, grant 1");
    assert_eq!(lines.len(), 7);
    let (credits, all) = pair.client.credits(pair.session).unwrap();
    assert_eq!(all - credits, 6, "they count as sent on the session");
    let (last, first) = frames.split_last().unwrap();
    first.iter().for_each(|frame| pair.at_server(frame).nothing());
    let (handle, request) = pair.at_server(last).request();
    assert_eq!(request, message);
    pair.respond(handle, b"done");
    let answers = pair.server_sends();
    let completion = pair.at_client(answers.last().unwrap()).completed();
    assert_eq!((completion.tag, completion.response.message()), (70, &b"done"[..]));
    pair.assert_credits_back();
    let (client, server) = (pair.client.counters(), pair.server.counters());
    assert_eq!((client.multicast_sent, client.multicast_announced), (6, 1));
    assert_eq!((server.multicast_adopted, server.multicast_held), (6, 0));
    assert_eq!((client.packets_sent, client.packets_retransmitted), (0, 0));
    assert_eq!((client.calls_started, client.calls_succeeded), (1, 1));
}

/// A mark on a multicast packet is echoed with the answer, even if the packet had to wait for its
/// announcement.
#[test]
fn a_mark__on_a_packet_for_all_comes_back() {
    for announced_last in [false, true] {
        for marked in (1..=PACKETS as usize).map(Some).chain([None]) {
            let mut pair = joined();
            call(&mut pair, 70, CallLimits::default());
            let frames = pair.client_sends();
            let mut order: Vec<_> = (0..frames.len()).collect();
            order.rotate_left(usize::from(announced_last));
            let (last, first) = order.split_last().unwrap();
            let take = |pair: &mut Pair, at: usize| match marked == Some(at) {
                true => pair.marked_at_server(&frames[at]),
                false => pair.at_server(&frames[at]),
            };
            first.iter().for_each(|&at| take(&mut pair, at).nothing());
            let (handle, _) = take(&mut pair, *last).request();
            pair.respond(handle, b"done");
            let answers = words(&pair.server_sends());
            let are_marked = answers.iter().any(|answer| answer.contains("congestion"));
            assert_eq!(are_marked, marked.is_some(), "{marked:?}: {answers:?}");
        }
    }
}

/// With response grants, the announcement allows further packets of the response, like the last packet of
/// other requests.
#[test]
fn announcements__grant_packets_of_the_response() {
    for (response_grants, grant) in [(true, 4), (false, 1)] {
        let config = Config { response_grants, ..Config::default() };
        let mut pair = Pair::with_config(Shape::default(), config);
        assert!(pair.server.join_group(membership(&pair)));
        let message = send_for(&mut pair, 70, CallLimits::default(), 4 * P as usize);
        let frames = pair.client_sends();
        let expected = format!("ANNOUNCE s0 r832 m3 p0 of 6100 B, 12 B, grant {grant}");
        assert_eq!(words(&frames)[0], expected);
        let (credits, all) = pair.client.credits(pair.session).unwrap();
        assert_eq!(all - credits, 6 + grant - 1, "its packets, and those of the response");
        let (last, first) = frames.split_last().unwrap();
        first.iter().for_each(|frame| pair.at_server(frame).nothing());
        let (handle, request) = pair.at_server(last).request();
        assert_eq!(request, message);
        let answer = pattern(4 * P as usize, 1);
        pair.respond(handle, &answer);
        let answers = pair.server_sends();
        let parts = answers.iter().filter(|frame| kind(frame) == Kind::ResponsePart).count();
        assert_eq!(parts as u32, grant, "{:?}", words(&answers));
        // The remaining packets of the response.
        let mut frames = answers;
        let ended = loop {
            let ended = frames.iter().find_map(|frame| match pair.at_client(frame) {
                Got::Completed(completion) => Some(completion),
                _ => None,
            });
            if let Some(ended) = ended {
                break ended;
            }
            pair.client_sends().iter().for_each(|frame| pair.at_server(frame).nothing());
            frames = pair.server_sends();
            assert!(!frames.is_empty(), "nothing more comes");
        };
        assert!(ended.response.message() == answer);
        pair.assert_credits_back();
    }
}

/// A repetition on the session may arrive before or after the announcement: the larger grant counts.
#[test]
fn announcements__grant_packets_whatever_came_before() {
    for repaired_first in [false, true] {
        let mut pair = joined();
        let message = send_for(&mut pair, 70, CallLimits::default(), 4 * P as usize);
        let frames = pair.client_sends();
        let (announcement, packets) = frames.split_first().unwrap();
        let mut repair = frames[1].clone();
        // Packet 0 as sent on the session: the header of the announcement, with another kind.
        repair[..16].copy_from_slice(&announcement[..16]);
        repair[0] = repair[0] & 0xF0 | Kind::RequestPart as u8;
        let order = [&repair, announcement];
        let order = if repaired_first { order } else { [order[1], order[0]] };
        assert_eq!(
            words(&[repair.clone()]),
            ["REQUEST_PART s0 r832 m3 p0 of 6100 B, 1200 B, grant 1"]
        );
        order.into_iter().for_each(|frame| pair.at_server(frame).nothing());
        let (last, others) = packets.split_last().unwrap();
        others.iter().for_each(|frame| pair.at_server(frame).nothing());
        let (handle, request) = pair.at_server(last).request();
        assert_eq!(request, message);
        pair.respond(handle, &pattern(4 * P as usize, 1));
        let answers = pair.server_sends();
        let parts = answers.iter().filter(|frame| kind(frame) == Kind::ResponsePart).count();
        assert_eq!(parts, 4, "{repaired_first}: {:?}", words(&answers));
    }
}

#[test]
fn packets__before_their_announcement_wait_for_it() {
    let mut pair = joined();
    let message = call(&mut pair, 70, CallLimits::default());
    let frames = pair.client_sends();
    frames[1..].iter().for_each(|frame| pair.at_server(frame).nothing());
    assert_eq!(pair.server.counters().multicast_held, 6);
    let (_, request) = pair.at_server(&frames[0]).request();
    assert_eq!(request, message);
    // Repeated frames do not run the request again.
    frames.iter().for_each(|frame| pair.at_server(frame).nothing());
    let counters = pair.server.counters();
    assert_eq!((counters.requests_received, counters.multicast_adopted), (1, PACKETS));
}

#[test]
fn a_lost_packet__is_repaired_alone() {
    for lost in 0..PACKETS as u32 {
        let mut pair = joined();
        let message = call(&mut pair, 70, CallLimits::default());
        let ran = run_lossy(&mut pair, |frame| {
            let is_it = Frame::parse(frame).is_ok_and(|frame| match frame.fields {
                crate::wire::Fields::Part(part) => part.packet == lost,
                _ => false,
            });
            is_it && kind(frame) == Kind::Multicast
        });
        assert_ran_once(&pair, &ran, &message);
        let repeated = pair.client.counters().packets_retransmitted;
        // A probe repeats the missing packet.
        assert_eq!(repeated, 1, "packet {lost}");
        assert_eq!(pair.server.counters().multicast_adopted, PACKETS - 1);
        assert_eq!(pair.client.counters().multicast_missed, 0);
    }
}

/// The order of transmissions holds for multicast as well: packets sent well before an arrived packet are
/// lost, even if that is a repetition.
#[test]
fn lost_packets__are_each_found_by_what_came_after_them() {
    for lost in [vec![1], vec![1, 3], vec![1, 2], vec![0, 2, 4], vec![0, 1, 2]] {
        let mut pair = joined();
        let message = call(&mut pair, 70, CallLimits::default());
        let ran = run_lossy(&mut pair, |frame| {
            kind(frame) == Kind::Multicast
                && Frame::parse(frame).is_ok_and(|frame| match frame.fields {
                    crate::wire::Fields::Part(part) => lost.contains(&part.packet),
                    _ => false,
                })
        });
        assert_ran_once(&pair, &ran, &message);
        let counters = pair.client.counters();
        let (found, repeated) = (counters.losses_detected, counters.packets_retransmitted);
        assert_eq!((found, repeated), (lost.len() as u64, lost.len() as u64), "{lost:?}");
    }
}

#[test]
fn a_lost_announcement__is_said_again_and_what_came_counts() {
    let mut pair = joined();
    let message = call(&mut pair, 70, CallLimits::default());
    let mut announcements = 0;
    let ran = run_lossy(&mut pair, |frame| {
        announcements += u32::from(kind(frame) == Kind::Announce);
        kind(frame) == Kind::Announce && announcements == 1
    });
    assert_ran_once(&pair, &ran, &message);
    assert_eq!(announcements, 2);
    assert_eq!(pair.server.counters().multicast_adopted, PACKETS);
    assert!(pair.client.counters().packets_retransmitted <= 1, "the packet that asked");
}

#[test]
fn no_multicast__means_all_of_it_alone_and_soon_no_attempt() {
    let mut pair = Pair::new();
    for sequence in 0..3 {
        let message = call(&mut pair, sequence, CallLimits::default());
        let ran = run_lossy(&mut pair, |frame| kind(frame) == Kind::Multicast);
        assert_ran_once(&pair, &ran, &message);
        assert_eq!(pair.client.counters().multicast_missed, sequence + 1);
    }
    let may = |pair: &mut Pair| pair.client.may_announce(pair.session, LEN, P);
    assert_eq!((0..63).filter(|_| may(&mut pair)).count(), 0);
    assert!(may(&mut pair), "it is tried again some time");
    assert_eq!((0..63).filter(|_| may(&mut pair)).count(), 0);
    assert!(may(&mut pair));
}

#[test]
fn multicast_that_comes_back__is_used_again() {
    let mut pair = joined();
    for sequence in 0..3 {
        call(&mut pair, sequence, CallLimits::default());
        run_lossy(&mut pair, |frame| kind(frame) == Kind::Multicast);
    }
    while !pair.client.may_announce(pair.session, LEN, P) {}
    let message = send(&mut pair, 9, CallLimits::default());
    let ran = run_lossy(&mut pair, |_| false);
    assert_ran_once(&pair, &ran, &message);
    assert!(pair.client.may_announce(pair.session, LEN, P));
}

#[test]
fn may_announce__only_what_fits_at_once() {
    let mut pair = joined();
    let session = pair.session;
    let mut may = |len: usize| pair.client.may_announce(session, len, P);
    assert!(!may(0) && !may(P as usize), "a single packet gains nothing");
    assert!(may(P as usize + 1) && may(32 * P as usize));
    assert!(!may(32 * P as usize + 1), "more than there are credits");
    assert!(!pair.client.may_announce(session, LEN, P + 8), "packets of another size");
    call(&mut pair, 1, CallLimits::default());
    assert!(pair.client.may_announce(session, 26 * P as usize, P));
    assert!(!pair.client.may_announce(session, 27 * P as usize, P), "six credits are in use");
    let wide = Shape { credits: 1000, ..Shape::default() };
    let mut pair = Pair::with(wide);
    assert!(pair.client.may_announce(pair.session, 256 * P as usize, P));
    assert!(!pair.client.may_announce(pair.session, 257 * P as usize, P), "the window");
    for tag in 0..8 {
        pair.call(&[1], 10, tag);
    }
    assert!(!pair.client.may_announce(pair.session, LEN, P), "no slot");
}

#[test]
fn may_announce__not_what_could_not_be_called() {
    let shape = Shape { request_bytes_max: LEN as u32, ..Shape::default() };
    let mut pair = Pair::with(shape);
    assert!(pair.client.may_announce(pair.session, LEN, P));
    assert!(!pair.client.may_announce(pair.session, LEN + 1, P), "more than the server takes");
    let unknown = SessionId { index: 77, generation: 0 };
    assert!(!pair.client.may_announce(unknown, LEN, P));
    pair.client.begin_drain(pair.session);
    assert!(!pair.client.may_announce(pair.session, LEN, P), "its server takes no more calls");
    let mut limited = super::congestion::timely();
    assert!(limited.client.may_announce(limited.session, LEN, P));
    super::congestion::congest(&mut limited, 2_000_000);
    assert!(!limited.client.may_announce(limited.session, LEN, P), "it is held back");
}

#[test]
fn calls__of_two_packets_are_the_smallest_that_are_announced() {
    for len in [P as usize + 1, 2 * P as usize, 2 * P as usize + 1] {
        let mut pair = joined();
        assert!(pair.client.may_announce(pair.session, len, P));
        let message = pattern(len, 7);
        let announcement = Announcement { group: NUMBER, sequence: 7 };
        let (request, response) = (buffer(&message), HeapBuffer::new(100, 1));
        let call = PendingCall { method: 3, tag: 7, request, response };
        let (now, session) = (pair.now, pair.session);
        let limits = CallLimits::default();
        pair.client.call_announced(now, session, call, limits, announcement);
        let to = GroupFrames { peer: GROUP, key: KEY, announcement, packet_bytes: P };
        pair.client.send_to_group(to, buffer(&message));
        let ran = run_lossy(&mut pair, |_| false);
        assert_ran_once(&pair, &ran, &message);
        assert_eq!(pair.server.counters().dropped_malformed, 0);
    }
}

/// The acknowledgement of the last packet measures the round trip, like that of packets on the session.
#[test]
fn calls__measure_the_round_trip_before_the_answer_comes() {
    let mut pair = joined();
    pair.now += 1_000_000;
    call(&mut pair, 70, CallLimits::default());
    let frames = pair.client_sends();
    let (last, first) = frames.split_last().unwrap();
    first.iter().for_each(|frame| pair.at_server(frame).nothing());
    pair.at_server(last).request();
    let credits = pair.server_sends();
    assert!(!credits.is_empty() && credits.iter().all(|frame| kind(frame) == Kind::Credit));
    pair.now += 50_000;
    credits.iter().for_each(|frame| pair.at_client(frame).nothing());
    assert_eq!(pair.client.srtt_ns(pair.session), Some(50_000));
}

/// A repeated announcement of a running request gets a CREDIT, like any repetition.
#[test]
fn announcements__of_what_runs_are_acknowledged() {
    let mut pair = joined();
    call(&mut pair, 70, CallLimits::default());
    let frames = pair.client_sends();
    let (last, first) = frames.split_last().unwrap();
    first.iter().for_each(|frame| pair.at_server(frame).nothing());
    pair.at_server(last).request();
    pair.server_sends();
    pair.at_server(&frames[0]).nothing();
    let said = words(&pair.server_sends());
    assert!(said.len() == 1 && said[0].starts_with("CREDIT"), "{said:?}");
}

/// A late multicast packet belongs to no later request of its slot.
#[test]
fn packets__of_an_ended_request_are_none_of_the_next() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    assert!(pair.server.join_group(membership(&pair)));
    let first = call(&mut pair, 70, CallLimits::default());
    let late = pair.client_sends();
    let mut ended = None;
    for frame in &late {
        if let Got::Request(handle, request) = pair.at_server(frame) {
            assert_eq!(request, first);
            pair.respond(handle, b"done");
        }
    }
    for frame in pair.server_sends() {
        if let Got::Completed(completion) = pair.at_client(&frame) {
            ended = Some(completion.tag);
        }
    }
    assert_eq!(ended, Some(70));
    let second = call(&mut pair, 71, CallLimits::default());
    assert!(first != second);
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    let before = pair.server.counters().dropped_duplicate;
    late[1..].iter().for_each(|frame| pair.at_server(frame).nothing());
    assert_eq!(pair.server.counters().dropped_duplicate - before, PACKETS);
    let (last, others) = frames[1..].split_last().unwrap();
    others.iter().for_each(|frame| pair.at_server(frame).nothing());
    assert!(pair.at_server(last).request().1 == second);
}

#[test]
fn a_deadline__ends_a_call_that_nobody_hears() {
    let mut pair = joined();
    let deadline_ns = pair.now + 3_000_000;
    call(&mut pair, 70, CallLimits { deadline_ns: Some(deadline_ns), ..CallLimits::default() });
    pair.client_sends();
    while !pair.client.has_events() {
        pair.now = pair.client.next_timeout_ns().expect("a timer");
        assert!(pair.now < deadline_ns + 200_000, "its time is over");
        pair.client.handle_timeouts(pair.now);
        pair.client_sends();
    }
    assert!(pair.now >= deadline_ns);
    assert_eq!(pair.event().outcome.unwrap_err().status, Status::DeadlineExceeded);
}

#[test]
fn a_deadline__that_is_over_leaves_nothing_to_announce() {
    for (left_ns, announced) in [(0, 0), (1, 1)] {
        let mut pair = joined();
        let deadline_ns = Some(pair.now + left_ns);
        call(&mut pair, 70, CallLimits { deadline_ns, ..CallLimits::default() });
        assert_eq!(pair.client.counters().multicast_announced, announced);
    }
}

/// The message stays in the sender's memory until its frames are flushed, and no longer.
#[test]
fn release_sent__lets_go_of_what_was_sent() {
    let mut pair = joined();
    for sequence in 0..3 {
        let announcement = Announcement { group: NUMBER, sequence };
        let to = GroupFrames { peer: GROUP, key: KEY, announcement, packet_bytes: P };
        pair.client.send_to_group(to, buffer(&pattern(LEN, sequence)));
        assert!(pair.client.shared.multicast.sent_count() == 0, "what was sent before is flushed");
        assert_eq!(pair.client_sends().len() as u64, PACKETS);
        assert_eq!(pair.client.shared.multicast.sent_count(), 1);
    }
    pair.client.release_sent();
    assert!(pair.client.shared.multicast.sent_count() == 0);
}

#[test]
fn foreign_packets__are_dropped_and_counted() {
    let mut pair = joined();
    call(&mut pair, 70, CallLimits::default());
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    let mut forged = frames[1].clone();
    forged[4] ^= 1;
    pair.at_server(&forged).nothing();
    let mut other_group = frames[1].clone();
    other_group[2] ^= 1;
    pair.at_server(&other_group).nothing();
    let stranger = PeerKey(8);
    got(pair.server.handle_frame(pair.now, stranger, &frames[1], &mut POOL.clone())).nothing();
    assert_eq!(pair.server.counters().multicast_dropped, 3);
    pair.server.leave_group(pair.server_session, NUMBER).expect("it was a member");
    pair.at_server(&frames[1]).nothing();
    assert_eq!(pair.server.counters().multicast_dropped, 4);
    assert_eq!(pair.server.counters().multicast_adopted, 0);
    // A client drops the packet, too.
    pair.at_client(&frames[1]).nothing();
    assert_eq!(pair.client.counters().multicast_dropped, 1);
}

#[test]
fn join_group__of_sessions_that_are_not_the_peers() {
    let mut pair = Pair::new();
    let of = membership(&pair);
    assert!(!pair.server.join_group(Membership { peer: PeerKey(8), ..of }));
    let unknown = SessionId { index: 77, generation: 0 };
    assert!(!pair.server.join_group(Membership { session: unknown, ..of }));
    let client_session = pair.session;
    assert!(!pair.client.join_group(Membership { session: client_session, ..of }));
    for group in 0..16 {
        assert!(pair.server.join_group(Membership { group, ..of }));
    }
    assert!(!pair.server.join_group(Membership { group: 16, ..of }), "too many");
    assert!(pair.server.join_group(Membership { key: 1, group: 3, ..of }), "in place of one");
    assert_eq!(pair.server.memberships().count(), 16);
    pair.server.close(pair.server_session, Status::Unavailable, "").unwrap();
    assert_eq!(pair.server.memberships().count(), 0);
}

#[test]
fn packets_that_nobody_announces__are_limited() {
    let mut pair = joined();
    for sequence in 0..200 {
        let message = pattern(LEN, sequence);
        let announcement = Announcement { group: NUMBER, sequence };
        let to = GroupFrames { peer: GROUP, key: KEY, announcement, packet_bytes: P };
        pair.client.send_to_group(to, buffer(&message));
        for frame in pair.client_sends() {
            pair.at_server(&frame).nothing();
        }
    }
    let counters = *pair.server.counters();
    assert_eq!(counters.multicast_held, 200 * PACKETS);
    assert_eq!(counters.multicast_dropped, 200 * PACKETS - 512);
}

#[test]
fn a_deadline__comes_with_the_announcement() {
    let mut pair = joined();
    let deadline_ns = Some(pair.now + 3_000_000);
    call(&mut pair, 70, CallLimits { deadline_ns, ..CallLimits::default() });
    let frames = pair.client_sends();
    assert!(words(&frames)[0].starts_with("ANNOUNCE"), "{:?}", words(&frames)[0]);
    frames[..6].iter().for_each(|frame| pair.at_server(frame).nothing());
    let received = pair.server.handle_frame(pair.now, PEER, &frames[6], &mut POOL.clone());
    let Received::Message { deadline_ns: told, .. } = received else { panic!("{received:?}") };
    assert_eq!(told, deadline_ns);

    let mut late = joined();
    let deadline_ns = Some(late.now + 3_000_000);
    call(&mut late, 70, CallLimits { deadline_ns, ..CallLimits::default() });
    let frames = late.client_sends();
    frames[1..].iter().for_each(|frame| late.at_server(frame).nothing());
    late.at_server(&frames[0]).request();
    let mut expired = frames[0].clone();
    // A new request whose deadline has passed: the word behind the request's fields.
    expired[28..32].fill(0);
    expired[10] += 8;
    late.at_server(&expired).nothing();
    assert_eq!(late.server.counters().requests_expired, 1);
}

#[test]
fn announcements__that_make_no_sense() {
    let mut pair = joined();
    call(&mut pair, 70, CallLimits::default());
    let announce = pair.client_sends().swap_remove(0);
    let with = |at: usize, byte: u8| {
        let mut frame = announce.clone();
        frame[at] = byte;
        frame
    };
    // Packet 1; no grant; a single packet; a group number of 21 bits; a sequence of 49; cut short.
    let mut single = announce.clone();
    single[16..20].copy_from_slice(&P.to_le_bytes());
    let cut = announce[..announce.len() - 1].to_vec();
    for frame in [with(20, 1), with(23, 0), single, with(26, 0x10), with(34, 1), cut] {
        pair.at_server(&frame).nothing();
    }
    assert_eq!(pair.server.counters().dropped_malformed, 6);
    assert!(pair.server_sends().is_empty());
    // To a client.
    pair.at_client(&announce).nothing();
}

/// A slot has one request at a time, of one size: an announcement of another size is malformed.
#[test]
fn announcements__of_another_size_than_what_has_arrived() {
    let mut pair = joined();
    let message = call(&mut pair, 70, CallLimits::default());
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    for size in [LEN - 1, LEN + 1, 2 * LEN] {
        let mut other = frames[0].clone();
        other[16..20].copy_from_slice(&(size as u32).to_le_bytes());
        let before = pair.server.counters().dropped_malformed;
        pair.at_server(&other).nothing();
        assert_eq!(pair.server.counters().dropped_malformed, before + 1, "{size}");
    }
    let (last, others) = frames[1..].split_last().unwrap();
    others.iter().for_each(|frame| pair.at_server(frame).nothing());
    assert_eq!(pair.at_server(last).request().1, message);
}

#[test]
fn send_to_group__leaves_nothing_in_the_queue() {
    let mut pair = joined();
    // The packets of one call, to end every message with a call.
    let len = TRANSMIT_FRAMES_MAX * P as usize;
    for messages in 1..4 {
        for sequence in 0..messages {
            let announcement = Announcement { group: NUMBER, sequence };
            let to = GroupFrames { peer: GROUP, key: KEY, announcement, packet_bytes: P };
            pair.client.send_to_group(to, buffer(&pattern(len, sequence)));
        }
        // The messages, and one entry of the queue for all of them.
        assert_eq!(pair.client.object_counts().to_send, messages as usize + 1);
        let mut sent = 0;
        while pair.client.has_transmit() {
            let now_sent =
                pair.client.transmit(pair.now, &mut |_: PeerKey, _: &[u8], _: &[u8]| true);
            assert!(now_sent > 0, "there is nothing to send in the queue");
            sent += now_sent as u64;
        }
        assert_eq!(
            (sent, pair.client.object_counts().to_send),
            (messages * TRANSMIT_FRAMES_MAX as u64, 0)
        );
    }
}

/// Every frame is sent once, wherever the medium begins to refuse, the announcement included.
#[test]
fn calls__that_are_refused_anywhere_are_as_if_they_had_just_begun() {
    for taken in 0..=PACKETS as usize {
        let mut pair = joined();
        let message = call(&mut pair, 70, CallLimits::default());
        let mut frames = refuse_behind(&mut pair.client, pair.now, taken);
        frames.extend(pair.client_sends());
        let kinds: Vec<_> = frames.iter().map(|frame| kind(frame)).collect();
        let announcements = kinds.iter().filter(|kind| **kind == Kind::Announce).count();
        assert_eq!((announcements, kinds.len() as u64), (1, 1 + PACKETS), "{taken} taken");
        let counters = pair.client.counters();
        assert_eq!((counters.control_frames_sent, counters.multicast_sent), (1, PACKETS));
        let mut ran = frames.iter().filter_map(|frame| match pair.at_server(frame) {
            Got::Request(_, request) => Some(request),
            _ => None,
        });
        assert_eq!(ran.next(), Some(message));
        assert!(ran.next().is_none());
    }
}

/// Slots that wait for credits get returned credits first, before these are known to suffice.
#[test]
fn may_announce__not_before_those_that_wait() {
    let shape = Shape { slots: 16, credits: 8, ..Shape::default() };
    let mut pair = Pair::with(shape);
    (0..9).for_each(|tag| pair.call(b"x", 10, tag));
    for request in pair.client_sends() {
        let (handle, _) = pair.at_server(&request).request();
        pair.respond(handle, b"y");
    }
    for answer in pair.server_sends() {
        pair.at_client(&answer).completed();
    }
    assert_eq!(pair.client.credits(pair.session), Some((8, 8)));
    assert!(!pair.client.may_announce(pair.session, LEN, P), "one waits");
    assert_eq!(pair.client_sends().len(), 1);
    assert!(pair.client.may_announce(pair.session, LEN, P));
}

/// A repetition handled by the fast path is acknowledged, although the slot was queued for another reason.
#[test]
fn a_repair__of_what_was_only_announced_is_acknowledged() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    assert!(pair.server.join_group(membership(&pair)));
    pair.call(b"x", 10, 1);
    let request = pair.client_sends().remove(0);
    let (handle, _) = pair.at_server(&request).request();
    pair.respond(handle, b"y");
    let answer = pair.server_sends().remove(0);
    pair.at_client(&answer).completed();
    // The answer is queued for repetition when the next request replaces it.
    pair.at_server(&repeated(&request)).nothing();
    call(&mut pair, 70, CallLimits::default());
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    let mut repair = frames[1].clone();
    repair[..16].copy_from_slice(&frames[0][..16]);
    repair[0] = repair[0] & 0xF0 | Kind::RequestPart as u8;
    assert!(pair.server.handle_next_part(PEER, &repair));
    assert_eq!(words(&pair.server_sends()), ["CREDIT s0 r833 up to 1, echo 0"]);
}

#[test]
fn send_to_group__goes_on_where_the_medium_had_no_room() {
    let mut pair = joined();
    let message = call(&mut pair, 70, CallLimits::default());
    let mut frames = refuse_behind(&mut pair.client, pair.now, 3);
    frames.extend(pair.client_sends());
    assert_eq!(frames.len(), 7);
    let requests: Vec<_> = frames
        .iter()
        .filter_map(|frame| match pair.at_server(frame) {
            Got::Request(_, request) => Some(request),
            _ => None,
        })
        .collect();
    assert_eq!(requests, [message]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// With any loss of announcements, multicasts, repetitions and answers, every request runs once, with its
    /// own bytes, and the credits return.
    #[test]
    fn losses__of_anything(seed in any::<u64>(), per_mille in 0u64..400, calls in 1u64..6) {
        let mut pair = joined();
        let mut state = seed | 1;
        for sequence in 0..calls {
            if !pair.client.may_announce(pair.session, LEN, P) {
                break;
            }
            let message = call(&mut pair, sequence, CallLimits::default());
            let ran = run_lossy(&mut pair, |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % 1000 < per_mille
            });
            assert_ran_once(&pair, &ran, &message);
        }
    }
}
