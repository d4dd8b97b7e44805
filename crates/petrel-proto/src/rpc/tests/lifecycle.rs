use super::*;
use crate::limits::{CREDITS_DEFAULT, MESSAGE_BYTES_DEFAULT, SLOTS_DEFAULT};
use crate::recovery::rtt::RtoBounds;

fn failure_of(completion: Completion<HeapBuffer>) -> (u64, Status, Execution) {
    let failure = completion.outcome.unwrap_err();
    (completion.tag, failure.status, failure.execution)
}

#[test]
fn calls_made_while_the_session_opens_go_out_when_it_is_open() {
    let mut client: Core<HeapBuffer> = Core::new(0, Config::default());
    let session = client.open(5, FIRST).unwrap();
    for tag in 0..3 {
        let len = if tag == 1 { 6000 } else { 4 };
        client.call(0, session, 1, buffer(&pattern(len, tag)), HeapBuffer::new(8, 1), tag).unwrap();
    }
    assert!(drain(&mut client, 0).is_empty());
    let shape = Shape { request_bytes_max: 5000, ..Shape::default() };
    client.establish(session, agreed(3, 9, shape)).unwrap();
    assert_eq!(words(&drain(&mut client, 0)), ["REQUEST s3 r832 m1 4 B", "REQUEST s3 r833 m1 4 B"]);
    let Some(Event::Completed(completion)) = client.poll_event() else { panic!("no event") };
    assert_eq!(failure_of(completion), (1, Status::ResourceExhausted, Execution::NotSent));
}

#[test]
fn closing_ends_every_call_and_says_what_may_have_run() {
    let mut pair = Pair::with(Shape { slots: 2, ..Shape::default() });
    pair.call(b"sent", 10, 1);
    pair.client_sends();
    pair.call(b"not sent", 10, 2);
    pair.call(b"queued", 10, 3);
    let closed = pair.client.close(pair.session, Status::Unavailable, "the peer is gone").unwrap();
    assert!(closed.was_client && closed.agreed.is_some());
    let ends: Vec<_> = (0..3).map(|_| failure_of(pair.event())).collect();
    assert_eq!(
        ends,
        [
            (1, Status::Unavailable, Execution::MayHaveExecuted),
            (2, Status::Unavailable, Execution::NotSent),
            (3, Status::Unavailable, Execution::NotSent),
        ]
    );
    assert!(pair.client.poll_event().is_none());
    assert!(pair.client_sends().is_empty(), "nothing is sent for a session that ended");
    let rejected = pair
        .client
        .call(pair.now, pair.session, 1, buffer(b""), HeapBuffer::new(0, 1), 4)
        .unwrap_err();
    assert_eq!(rejected.error, CallError::SessionClosed);
    assert!(pair.client.close(pair.session, Status::Ok, "").is_none());
}

#[test]
fn an_index_is_used_again_under_another_name_and_token() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let request = pair.client_sends().remove(0);
    let (handle, _) = pair.at_server(&request).request();
    pair.server.close(pair.server_session, Status::Unavailable, "").unwrap();
    let accepted = Accepted {
        agreed: agreed(0, 1, Shape::default()),
        token: 77,
        first_request: FIRST,
        request_bytes_max: 100,
    };
    let next = pair.server.accept(accepted).unwrap();
    assert_eq!(next.index, pair.server_session.index);
    assert_ne!(next, pair.server_session);
    pair.at_server(&request).nothing();
    assert_eq!(pair.server.counters().dropped_unknown_session, 1);
    let rejected = pair.server.respond(handle, Status::Ok, buffer(b"late")).unwrap_err();
    assert_eq!(rejected.error, RespondError::Gone);
    assert_eq!(pair.server.find(next.index, 77), Some(next));
    assert_eq!(pair.server.find(next.index, SERVER_TOKEN), None);
}

#[test]
fn the_first_request_of_a_session_is_told_once() {
    for fast_path in [true, false] {
        let mut pair = Pair::by(Shape::default(), fast_path);
        pair.server.close(pair.server_session, Status::Unavailable, "").unwrap();
        let accepted = Accepted {
            agreed: agreed(pair.session.index, CLIENT_TOKEN, Shape::default()),
            token: SERVER_TOKEN,
            first_request: FIRST,
            request_bytes_max: 100,
        };
        pair.server_session = pair.server.accept(accepted).unwrap();
        assert_eq!(pair.server.slots_allocated(pair.server_session), 0);
        assert!(pair.server.poll_event().is_none());
        for tag in 0..3 {
            pair.call(b"x", 10, tag);
            let handle = pair.arrives();
            let told = pair.server.poll_event();
            match tag {
                0 => assert!(
                    matches!(told, Some(Event::SessionUsed(id)) if id == pair.server_session)
                ),
                _ => assert!(told.is_none()),
            }
            pair.respond(handle, b"y");
        }
    }
}

#[test]
fn a_server_closed_in_every_state_leaves_nothing_behind() {
    for frames_taken in 0..=3 {
        let mut pair = Pair::new();
        pair.call(&pattern(3 * P as usize, 0), 10, 1);
        for frame in pair.client_sends().iter().take(frames_taken) {
            pair.at_server(frame);
        }
        assert!(!pair.server.close(pair.server_session, Status::Cancelled, "").unwrap().was_client);
        assert_eq!(pair.server.session_count(), 0);
        assert!(pair.server_sends().is_empty());
    }
}

#[test]
fn the_table_has_a_limit() {
    let config = Config { sessions_max: 2, ..Config::default() };
    let mut core: Core<HeapBuffer> = Core::new(0, config);
    let first = core.open(1, 0).unwrap();
    core.open(2, 0).unwrap();
    assert_eq!(core.open(3, 0), Err(OpenError::TooManySessions { max: 2 }));
    core.close(first, Status::Cancelled, "");
    core.open(4, 0).unwrap();
}

#[test]
fn a_queue_has_a_limit_and_gives_the_buffers_back() {
    let config = Config { backlog_max: 1, ..Config::default() };
    let mut core: Core<HeapBuffer> = Core::new(0, config);
    let session = core.open(1, 0).unwrap();
    core.call(0, session, 1, buffer(b"a"), HeapBuffer::new(0, 1), 0).unwrap();
    let rejected = core.call(0, session, 1, buffer(b"b"), HeapBuffer::new(0, 1), 0).unwrap_err();
    assert_eq!(rejected.error, CallError::QueueFull { max: 1 });
    assert_eq!(rejected.request.message(), b"b");
}

#[test]
fn close__of_most_sessions_tells_once_that_memory_was_given_back() {
    let mut core: Core<HeapBuffer> = Core::new(0, Config::default());
    let sessions: Vec<_> = (0..20_000).map(|token| core.open(token, 0).unwrap()).collect();
    assert!(!core.take_freed());
    for id in sessions {
        core.close(id, Status::Cancelled, "").unwrap();
    }
    assert!(core.take_freed() && !core.take_freed());
}

/// Frames queued in an ended session do not affect the next session with its index, possibly with fewer slots
/// and the other role.
#[test]
fn work_of_a_session_that_ended_is_nothing_to_the_next_in_its_place() {
    for (was_client, is_client) in [(false, false), (false, true), (true, false), (true, true)] {
        for fast_path in [false, true] {
            let mut pair = Pair::by(Shape::default(), fast_path);
            (0..8).for_each(|tag| pair.call(b"x", 10, tag));
            if !was_client {
                for frame in pair.client_sends() {
                    let (handle, _) = pair.at_server(&frame).request();
                    pair.server.respond(handle, Status::Ok, buffer(b"y")).unwrap();
                }
            }
            let (core, id) = match was_client {
                true => (&mut pair.client, pair.session),
                false => (&mut pair.server, pair.server_session),
            };
            assert!(core.has_transmit());
            core.close(id, Status::Unavailable, "").unwrap();
            let agreed = agreed(3, CLIENT_TOKEN, Shape { slots: 1, ..Shape::default() });
            let next = match is_client {
                true => core.open(5, FIRST).unwrap(),
                false => core
                    .accept(Accepted {
                        agreed,
                        token: 5,
                        first_request: FIRST,
                        request_bytes_max: 64,
                    })
                    .unwrap(),
            };
            assert_eq!(next.index, id.index);
            if is_client {
                core.establish(next, agreed).unwrap();
            }
            assert_eq!(words(&drain(core, pair.now)), [""; 0]);
            assert!(!core.has_transmit());
        }
    }
}

/// Several links may share an address: frames arrive from one name and are sent to another (§8.4).
#[test]
fn accept_from__takes_frames_under_the_name_and_sends_to_the_peer() {
    for fast_path in [true, false] {
        let mut pair = Pair::by(Shape::default(), fast_path);
        let source = PeerKey(99);
        assert!(pair.server.accept_from(pair.server_session, source));
        pair.call(b"ping", 100, 5);
        let frame = pair.client_sends().remove(0);
        assert!(matches!(pair.at_server(&frame), Got::Nothing), "not under the peer's own name");
        assert_eq!(pair.server.counters().dropped_wrong_peer, 1);
        let handle = match pair.server.handle_frame(pair.now, source, &frame, &mut POOL.clone()) {
            Received::Request { handle, .. } => handle,
            _ => panic!("not a request"),
        };
        pair.respond(handle, b"pong");
        let mut to = Vec::new();
        pair.server.transmit(pair.now, &mut |peer: PeerKey, _: &[u8], _: &[u8]| {
            to.push(peer);
            true
        });
        assert_eq!(to, [PEER]);
    }
}

#[test]
fn accept_from__of_a_session_that_is_not_open() {
    let mut core: Core<HeapBuffer> = Core::new(0, Config::default());
    let opening = core.open(1, 0).unwrap();
    assert!(!core.accept_from(opening, PEER));
    core.close(opening, Status::Cancelled, "");
    assert!(!core.accept_from(opening, PEER));
}

#[test]
fn accept__takes_values_up_to_each_limit_of_the_protocol_and_none_beyond() {
    use crate::limits::*;
    type Change = fn(&mut Agreed, i64);
    let accepts = |change: Change, value: i64| {
        let mut values = agreed(3, CLIENT_TOKEN, Shape::default());
        change(&mut values, value);
        let mut server: Core<HeapBuffer> = Core::new(0, Config::default());
        let accepted =
            Accepted { agreed: values, token: 1, first_request: 1 << 16, request_bytes_max: 64 };
        let is_taken = server.accept(accepted);
        assert!(matches!(is_taken, Ok(_) | Err(OpenError::Unsound)), "{is_taken:?}");
        is_taken.is_ok()
    };
    let fields: [(&str, Change, i64, i64); 5] = [
        ("slots", |agreed, value| agreed.slots = value as u16, 1, SLOTS_MAX.into()),
        ("credits", |agreed, value| agreed.credits = value as u16, 1, CREDITS_MAX.into()),
        (
            "packet bytes",
            |agreed, value| agreed.packet_bytes = value as u32,
            PACKET_BYTES_MIN.into(),
            PACKET_BYTES_MAX.into(),
        ),
        (
            "session",
            |agreed, value| agreed.peer_session = value as u32,
            0,
            i64::from(SESSIONS_MAX) - 1,
        ),
        (
            "message bytes",
            |agreed, value| agreed.peer_message_bytes_max = value as u32,
            0,
            MESSAGE_BYTES_MAX.into(),
        ),
    ];
    for (name, change, least, most) in fields {
        assert!(accepts(change, least) && accepts(change, most), "{name} within the limits");
        assert!(!accepts(change, most + 1), "{name} beyond the most");
        assert!(least == 0 || !accepts(change, least - 1), "{name} below the least");
    }
    assert!(!accepts(|agreed, value| agreed.slots = value as u16, 3), "no power of two");
    assert!(!accepts(|agreed, value| agreed.slots = value as u16, i64::from(SLOTS_MAX) * 2));
}

/// Otherwise request numbers would not map to their slots.
#[test]
fn accept__begins_with_a_request_of_the_first_slot() {
    for (slots, first_request, is_taken) in [
        (8, 0, true),
        (8, 8, true),
        (8, 832, true),
        (8, 4, false),
        (8, 833, false),
        (16, 8, false),
        (16, 16, true),
        (1, 7, true),
    ] {
        let shape = Shape { slots, ..Shape::default() };
        let agreed = agreed(3, CLIENT_TOKEN, shape);
        let mut server: Core<HeapBuffer> = Core::new(0, Config::default());
        let accepted = Accepted { agreed, token: 1, first_request, request_bytes_max: 64 };
        assert_eq!(server.accept(accepted).is_ok(), is_taken, "{slots} slots, {first_request}");
    }
}

/// `docs/operating.md` lists these values.
#[test]
fn config__has_the_documented_limits_and_all_short_ways() {
    let config = Config::default();
    let RtoBounds { min_ns, max_ns, initial_ns, probe_min_ns } = config.rto;
    assert_eq!((min_ns, max_ns), (1_000_000, 500_000_000));
    assert_eq!((initial_ns, probe_min_ns), (10_000_000, 100_000));
    assert_eq!((config.retries_max, config.recovery), (14, Recovery::Selective));
    assert_eq!(config.call_timeout_ns, 60_000_000_000);
    assert_eq!((config.sessions_max, config.backlog_max), (1 << 20, 65_536));
    assert_eq!(config.memory_bytes, 1 << 30);
    assert!(config.fast_path && config.response_grants);
    let of_a_session = (SLOTS_DEFAULT, CREDITS_DEFAULT, MESSAGE_BYTES_DEFAULT);
    assert_eq!(of_a_session, (2_048, 64, 8 << 20));
}
