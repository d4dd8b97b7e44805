//! The steps of one turn of the event loop, over a transport and a control plane driven by the test.

pub(crate) mod medium;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::Reason;
use petrel::endpoint::{CallOptions, EndpointConfig, SessionState};
use petrel::unstable::control::{FromNexus, LinkId, ToNexus};
use petrel::{MsgBuf, Status};
use petrel_proto::control::GroupJoin;
use petrel_proto::limits::TRANSMIT_FRAMES_MAX;
use petrel_transport::PeerId;

use medium::World;

const METHOD: u16 = 2;

/// A world whose server answers with the request.
fn world() -> World {
    answering(World::new(&EndpointConfig::default()))
}

fn answering(mut world: World) -> World {
    crate::common::echo(&mut world.server.endpoint, METHOD);
    world
}

/// Makes a call, and returns the place of its outcome.
fn call(world: &mut World, bytes: &[u8]) -> Rc<RefCell<Option<Result<(), Status>>>> {
    let outcome = Rc::new(RefCell::new(None));
    let kept = Rc::clone(&outcome);
    let client = &mut world.client.endpoint;
    let (request, response): (MsgBuf, MsgBuf) =
        (client.alloc_message(bytes).unwrap(), client.alloc(bytes.len()).unwrap());
    client
        .call(world.session, METHOD, request)
        .into_buffer(response)
        .then(move |_, _, reply| {
            *kept.borrow_mut() = Some(reply.outcome.map_err(|failure| failure.status));
        })
        .unwrap();
    outcome
}

/// Each turn reports whether anything happened, and flushes once if any frame may have been pushed. A second flush is a
/// wasted system call; without a flush a frame stays.
#[test]
fn run_once__flushes_once_in_each_turn_that_does_something() {
    let mut world = world();
    let outcome = call(&mut world, b"small");
    assert_eq!(world.client.turn(), (true, 1), "sends the request");
    assert_eq!(world.carry_requests(), 1);
    assert_eq!(world.server.turn(), (true, 1), "takes it and answers");
    assert_eq!(world.carry_answers(), 1);
    assert_eq!(world.client.turn(), (true, 1), "takes the answer, and has nothing to send");
    assert_eq!(*outcome.borrow(), Some(Ok(())));
    // Turns that poll only the receive path, then a turn that polls everything.
    let idle: Vec<_> = (0..17).map(|_| world.client.turn()).collect();
    assert!(idle.iter().all(|(happened, _)| !happened), "{idle:?}");
    assert_eq!(idle.iter().map(|(_, flushes)| flushes).sum::<u32>(), 1, "{idle:?}");
}

/// A turn can send several bursts of frames, with a flush for each.
#[test]
fn run_once__sends_bursts_until_nothing_is_left() {
    let mut world = world();
    let calls = TRANSMIT_FRAMES_MAX + 5;
    let outcomes: Vec<_> = (0..calls).map(|_| call(&mut world, b"small")).collect();
    assert_eq!(world.client.turn(), (true, 2), "a full burst, and the rest");
    assert_eq!(world.carry_requests(), calls);
    while world.server.endpoint.run_once() {}
    assert_eq!(world.carry_answers(), calls);
    while world.client.endpoint.run_once() {}
    assert!(outcomes.iter().all(|outcome| *outcome.borrow() == Some(Ok(()))));
}

/// Packets declared lost by a timer leave in the turn in which the timer fires.
#[test]
fn run_once__sends_when_timers_are_due() {
    let mut world = world();
    let outcome = call(&mut world, b"small");
    world.client.turn();
    assert_eq!(world.client.sent().len(), 1, "and it is lost");
    let looks = |world: &World| {
        let counters = world.client.endpoint.core().counters();
        counters.probes + counters.timeouts
    };
    for round in 1..=3 {
        let due_ns =
            world.client.endpoint.next_due().map(petrel::Time::as_ns).expect("a timer is set");
        world.pass(due_ns - world.client.site.now_ns.get());
        while looks(&world) < round {
            let (happened, _) = world.client.turn();
            let is_due = looks(&world) == round;
            let sent = world.client.sent().len();
            assert_eq!((happened, sent), (is_due, usize::from(is_due)), "round {round}");
            let due_ns =
                world.client.endpoint.next_due().map(petrel::Time::as_ns).expect("a timer is set");
            let now_ns = world.client.site.now_ns.get();
            world.pass(due_ns.saturating_sub(now_ns));
        }
    }
    assert_eq!(*outcome.borrow(), None);
}

/// Messages of the control plane, and calls ended by timers, count in turns without frames.
#[test]
fn run_once__returns_true_for_an_ended_call_and_a_control_message() {
    let mut world = world();
    world.client.site.say(FromNexus::PathMeasured { link: LinkId(1), rtt_ns: 30_000 });
    let turns: Vec<bool> = (0..17).map(|_| world.client.turn().0).collect();
    assert_eq!(turns.iter().filter(|happened| **happened).count(), 1, "{turns:?}");
    let outcome = call(&mut world, b"small");
    while outcome.borrow().is_none() {
        let (happened, _) = world.client.turn();
        let sent = world.client.sent().len();
        let has_ended = outcome.borrow().is_some();
        assert_eq!(happened, sent > 0 || has_ended);
        let now_ns = world.client.site.now_ns.get();
        let due_ns = world.client.endpoint.next_due().map(petrel::Time::as_ns).unwrap_or(now_ns);
        world.pass(due_ns.saturating_sub(now_ns));
    }
    assert!(matches!(&*outcome.borrow(), Some(Err(_))));
    let stats = world.client.endpoint.stats();
    assert_eq!(stats.call_failures.may_have_executed, 1);
    assert_eq!(stats.call_failures.iter().map(|(_, count)| count).sum::<u64>(), 1);
}

/// A sleeping task runs in the turn in which its time is over, and the turn reports work.
#[test]
fn run_once__returns_true_for_a_woken_task() {
    let mut world = world();
    let woke = Rc::new(Cell::new(false));
    let seen = Rc::clone(&woke);
    let handle = world.client.endpoint.handle();
    let sleeper = handle.clone();
    drop(handle.spawn(async move {
        sleeper.sleep(Duration::from_millis(5)).await;
        seen.set(true);
    }));
    assert!(world.client.turn().0, "the task begins");
    assert!(!woke.get());
    world.pass(4_000_000);
    while world.client.turn().0 {}
    assert!(!woke.get());
    world.pass(1_100_000);
    assert!(world.client.turn().0 && woke.get());
}

/// Time spent in a continuation before a call does not count against the call's timeout.
#[test]
fn call_with__counts_from_the_clock_and_not_from_the_turns_begin() {
    let mut world = world();
    let outcome = Rc::new(RefCell::new(None));
    let (kept, site, session) = (Rc::clone(&outcome), Rc::clone(&world.client.site), world.session);
    let client = &mut world.client.endpoint;
    client
        .call(session, METHOD, b"first")
        .then(move |_, cx, _| {
            site.now_ns.set(site.now_ns.get() + 3_000_000);
            cx.call(session, METHOD, b"second")
                .timeout(Duration::from_millis(5))
                .then_cancellable(move |_, _, reply| {
                    *kept.borrow_mut() = Some(reply.outcome.map_err(|failure| failure.status));
                })
                .unwrap();
        })
        .unwrap();
    world.client.turn();
    world.carry_requests();
    world.server.turn();
    world.carry_answers();
    world.client.turn();
    // From here on no packet of the client arrives.
    let mut after = |ns| {
        world.pass(ns);
        for _ in 0..20 {
            world.client.endpoint.run_once();
        }
        *outcome.borrow()
    };
    assert_eq!(after(4_900_000), None);
    assert_eq!(after(1_000_000), Some(Err(Status::DeadlineExceeded)));
}

/// Frames of a link may arrive under a name other than the link's, and then only under that.
#[test]
fn sessions__are_heard_under_the_name_that_the_transport_says() {
    for source in [1, 9] {
        let mut world = answering(World::heard_under(&EndpointConfig::default(), source));
        for bytes in [&[7; 5][..], &[7; 20_000]] {
            let outcome = call(&mut world, bytes);
            world.settle();
            assert_eq!(*outcome.borrow(), Some(Ok(())), "{} bytes", bytes.len());
        }
        for name in [source + 1, 1, 9] {
            world.client.site.source.set(name);
            let outcome = call(&mut world, b"answered under another name");
            world.settle();
            assert_eq!(outcome.borrow().is_some(), name == source, "{name} for {source}");
        }
        world.client.site.source.set(source);
        world.server.site.source.set(source + 1);
        let outcome = call(&mut world, b"asked under another name");
        world.settle();
        assert_eq!(*outcome.borrow(), None);
    }
}

fn join(world: &World, link: u32, group: u32, request: u32) -> GroupJoin {
    let session = world.client.endpoint.core().agreed(world.session).unwrap();
    GroupJoin {
        link,
        request,
        session: session.peer_session,
        token: session.peer_token,
        group,
        key: 77,
        address: SocketAddr::from(([239, 1, 1, group as u8], 4_000)),
        packet_bytes: session.packet_bytes,
    }
}

/// Offers a group to the server, and returns its answer.
fn offer(world: &mut World, link: u64, join: GroupJoin) -> Result<(), Reason> {
    world.server.site.say(FromNexus::GroupOffered { link: LinkId(link), join });
    for _ in 0..20 {
        world.server.endpoint.run_once();
    }
    match &world.server.site.posts()[..] {
        [ToNexus::AnswerGroup { link: answered, request, answer }] => {
            assert_eq!((answered.0, *request), (link, join.request));
            answer.clone()
        }
        other => panic!("expected an answer: {other:?}"),
    }
}

/// A member of several groups leaves an ending group once, and the others with the session.
#[test]
fn groups__are_joined_and_left_one_by_one() {
    let mut world = world();
    let mut addresses = Vec::new();
    for group in [5, 6, 7] {
        let join = join(&world, 1, group, 40 + group);
        offer(&mut world, 1, join).unwrap();
        addresses.push((join.address, PeerId(1)));
    }
    assert_eq!(*world.server.site.joined.borrow(), addresses);
    let leave = |world: &mut World, link: u64, group: u32| {
        world.server.site.say(FromNexus::GroupLeft { link: LinkId(link), group });
        for _ in 0..20 {
            world.server.endpoint.run_once();
        }
        std::mem::take(&mut *world.server.site.left.borrow_mut())
    };
    assert_eq!(leave(&mut world, 2, 6), [], "a group of another link has the same number");
    assert_eq!(leave(&mut world, 1, 9), [], "it never joined that");
    assert_eq!(leave(&mut world, 1, 6), [addresses[1]]);
    assert_eq!(leave(&mut world, 1, 6), [], "once");
    // Offered again, it is left and joined anew.
    let again = join(&world, 1, 5, 60);
    offer(&mut world, 1, again).unwrap();
    assert_eq!(std::mem::take(&mut *world.server.site.left.borrow_mut()), [addresses[0]]);
    let reason = Reason::new(Status::Unavailable, "the link went down");
    world.server.site.say(FromNexus::LinkDown { link: LinkId(1), reason });
    for _ in 0..20 {
        world.server.endpoint.run_once();
    }
    let mut left = std::mem::take(&mut *world.server.site.left.borrow_mut());
    left.sort();
    assert_eq!(left, [addresses[0], addresses[2]]);
}

#[test]
fn groups__that_do_not_fit_are_refused() {
    let mut world = world();
    let good = join(&world, 1, 5, 1);
    for (link, join) in [
        (2, good),
        (1, GroupJoin { session: good.session + 1, ..good }),
        (1, GroupJoin { token: good.token ^ 1, ..good }),
        (1, GroupJoin { packet_bytes: good.packet_bytes - 1, ..good }),
    ] {
        let refused = offer(&mut world, link, join).unwrap_err();
        assert_eq!(refused.status, Status::FailedPrecondition);
    }
    assert!(world.server.site.joined.borrow().is_empty());
    let mut config = EndpointConfig::default();
    config.sessions.accept_multicast = false;
    let mut deaf = World::new(&config);
    let offered = join(&deaf, 1, 5, 1);
    assert_eq!(offer(&mut deaf, 1, offered).unwrap_err().status, Status::FailedPrecondition);
    assert!(deaf.server.site.joined.borrow().is_empty());
}

/// A group joined by the transport but rejected by the core is left again.
#[test]
fn groups__that_are_too_many_are_left_at_once() {
    let mut world = world();
    for group in 0..16 {
        let join = join(&world, 1, group, 40 + group);
        offer(&mut world, 1, join).unwrap();
    }
    let one_more = join(&world, 1, 16, 60);
    let refused = offer(&mut world, 1, one_more).unwrap_err();
    assert_eq!(refused.status, Status::ResourceExhausted);
    let left = std::mem::take(&mut *world.server.site.left.borrow_mut());
    assert_eq!(left, [(one_more.address, PeerId(1))]);
    assert_eq!(world.server.site.joined.borrow().len(), 17);
    assert_eq!(world.server.endpoint.core().memberships().count(), 16);
}

/// Takes turns of the client until it has polled everything.
fn turns(world: &mut World) {
    for _ in 0..20 {
        world.client.endpoint.run_once();
    }
}

/// A client asked to leave makes no further calls, and closes the session after its last call.
#[test]
fn drain__is_over_when_the_last_call_of_each_client_has_ended() {
    let mut world = world();
    let outcome = call(&mut world, b"under way");
    assert_eq!(world.client.turn(), (true, 1));
    world.server.endpoint.begin_drain();
    let posts = world.server.site.posts();
    let [ToNexus::DrainSession { link, peer_session, peer_token, message }] = &posts[..] else {
        panic!("expected an announcement: {posts:?}")
    };
    let (link, session, token) = (*link, *peer_session, *peer_token);
    // Messages about an unknown session, or with another token, are ignored.
    for (session, token) in [(session + 1, token), (session, token ^ 1), (session, token)] {
        assert_eq!(world.client.endpoint.session_state(world.session), SessionState::Open);
        let message = message.clone();
        world.client.site.say(FromNexus::SessionDraining { link, session, token, message });
        turns(&mut world);
    }
    // A server that asks again and again takes no memory here.
    for _ in 0..5 {
        assert_eq!(world.client.endpoint.session_state(world.session), SessionState::Draining);
        assert_eq!(world.client.endpoint.object_counts().leaving, 1);
        let message = message.clone();
        world.client.site.say(FromNexus::SessionDraining { link, session, token, message });
        turns(&mut world);
    }
    // The endpoint checks at intervals, as long as the call takes.
    for _ in 0..5 {
        let now_ns = world.client.site.now_ns.get();
        let due_ns =
            world.client.endpoint.next_due().map(petrel::Time::as_ns).expect("a look is due");
        assert!(now_ns < due_ns && due_ns <= now_ns + 200_000, "{due_ns} at {now_ns}");
        world.pass(200_000);
        turns(&mut world);
        assert!(world.client.site.posts().is_empty() && outcome.borrow().is_none());
    }
    world.settle();
    assert_eq!(*outcome.borrow(), Some(Ok(())));
    world.pass(200_000);
    turns(&mut world);
    assert!(matches!(
        world.client.endpoint.session_state(world.session),
        SessionState::Ended(Some(end)) if end.status == Status::Unavailable
    ));
    let posts = world.client.site.posts();
    let ends = posts.iter().filter_map(|post| match post {
        ToNexus::CloseSession { from_client, .. } => Some(*from_client),
        _ => None,
    });
    assert!(ends.eq([true]), "{posts:?}");
}

/// A link at the end of a connection: the server asks the clients of sessions to leave, and a client leaves.
#[test]
fn drain_link__asks_clients_at_the_server_and_leaves_at_the_client() {
    let mut world = world();
    let outcome = call(&mut world, b"under way");
    assert_eq!(world.client.turn(), (true, 1));
    let link = LinkId(1);
    for _ in 0..2 {
        world.server.site.say(FromNexus::LinkDraining { link });
        for _ in 0..20 {
            world.server.endpoint.run_once();
        }
        let posts = world.server.site.posts();
        let asks = |post: &&ToNexus| matches!(post, ToNexus::DrainSession { .. });
        assert_eq!(posts.iter().filter(asks).count(), 1, "{posts:?}");
    }
    for _ in 0..2 {
        world.client.site.say(FromNexus::LinkDraining { link });
        turns(&mut world);
        assert_eq!(world.client.endpoint.session_state(world.session), SessionState::Draining);
    }
    world.settle();
    assert_eq!(*outcome.borrow(), Some(Ok(())));
    world.pass(200_000);
    turns(&mut world);
    let posts = world.client.site.posts();
    let ended = |post: &ToNexus| matches!(post, ToNexus::CloseLink { .. });
    assert!(posts.iter().any(ended), "the link is left with its last session: {posts:?}");
}

/// Clients that have not left at the drain limit are sent away: the server drops their sessions, and they are notified.
#[test]
fn drain__sends_clients_away_at_the_end_of_the_time() {
    let mut world = world();
    assert_eq!(world.server.endpoint.sessions_served(), 1);
    assert_eq!(world.server.endpoint.drain(Duration::ZERO), 1);
    assert_eq!(world.server.endpoint.sessions_served(), 0);
    let json = world.server.endpoint.stats().to_json();
    assert!(json.contains("\"sessions_ended_drained\":1,"), "{json}");
    let posts = world.server.site.posts();
    let is_asked = posts.iter().any(|post| matches!(post, ToNexus::DrainSession { .. }));
    let ends = posts.iter().filter_map(|post| match post {
        ToNexus::CloseSession { from_client, reason, .. } => Some((*from_client, reason.clone())),
        _ => None,
    });
    let reason = Reason::new(Status::Unavailable, "the server is draining");
    assert!(is_asked && ends.eq([(false, reason)]), "{posts:?}");
    assert_eq!(world.server.endpoint.drain(Duration::ZERO), 0, "nobody is left");
    assert!(world.server.site.posts().is_empty());
}

/// All statistics of a world with one successful call.
#[test]
fn stats__count_the_existing_objects() {
    let mut world = world();
    call(&mut world, b"small");
    world.client.turn();
    let _open = world.client.endpoint.alloc(100).unwrap();
    let json = world.client.endpoint.stats().to_json();
    let fields: Vec<&str> = json.trim_matches(['{', '}']).split(',').collect();
    for field in [
        "\"endpoint\":3",
        "\"sessions\":1",
        "\"links\":1",
        "\"tasks\":0",
        "\"buffers_in_use\":3",
        "\"client_calls_made\":0",
        "\"client_calls_waiting\":0",
        "\"sessions_ended_link_lost\":0",
        "\"calls_failed_answered\":0",
        "\"calls_started\":1",
        "\"packets_sent\":1",
    ] {
        assert!(fields.contains(&field), "{field} is not in {json}");
    }
    let names: std::collections::HashSet<_> =
        fields.iter().map(|field| field.split(':').next().unwrap()).collect();
    assert_eq!(names.len(), fields.len(), "each name stands there once: {json}");
    // The link goes down with the call outstanding.
    let reason = Reason::new(Status::Unavailable, "the link went down");
    world.client.site.say(FromNexus::LinkDown { link: LinkId(1), reason });
    while !matches!(world.client.endpoint.session_state(world.session), SessionState::Ended(_)) {
        world.client.turn();
    }
    world.rest();
    let json = world.client.endpoint.stats().to_json();
    for field in [
        "\"sessions\":0,",
        "\"links\":0,",
        "\"sessions_ended_link_lost\":1,",
        "\"calls_failed_may_have_executed\":1,",
        "\"calls_failed_not_sent\":0,",
    ] {
        assert!(json.contains(field), "{field} is not in {json}");
    }
}

/// A timed loop checks its condition at the end, without a further turn.
#[test]
fn run_for__asks_until_its_time_is_over_or_it_is_done() {
    let mut world = world();
    let site = Rc::clone(&world.client.site);
    for (limit_ms, done_at, expected) in [
        (0, 9, (false, 1)),
        (1, 9, (false, 2)),
        (3, 9, (false, 4)),
        (3, 2, (true, 2)),
        (0, 1, (true, 1)),
    ] {
        let asked = Cell::new(0);
        let done = |_: &mut (), _: &mut petrel::Context<'_>| {
            asked.set(asked.get() + 1);
            assert!(asked.get() <= expected.1, "it goes on after {limit_ms} ms");
            if asked.get() > 1 {
                site.now_ns.set(site.now_ns.get() + 1_000_000);
            }
            asked.get() == done_at
        };
        let is_done = world.client.endpoint.run_for(Duration::from_millis(limit_ms), done);
        assert_eq!((is_done, asked.get()), expected, "{limit_ms} ms");
    }
}

/// An endpoint receives no more of a burst than its caches hold: some 256 KiB of a large message.
#[test]
fn run_once__takes_fewer_frames_behind_large_parts() {
    let all = petrel_transport::RX_BURST_MAX;
    for (frame_bytes, expected) in [(1_472, all), (20_000, 13), (100_000, 2), (400_000, 1)] {
        let mut world = answering(World::with_frames_of(&EndpointConfig::default(), frame_bytes));
        let outcome = call(&mut world, &vec![7; 5 * frame_bytes]);
        world.client.turn();
        let mut frames = world.client.sent();
        assert_eq!(frames.len(), 6, "and the last is short");
        let last = frames.pop().unwrap();
        let server = Rc::clone(&world.server.site);
        server.budgets.borrow_mut().clear();
        // The parts in two turns, and another call in the third.
        for (frame, count) in frames.into_iter().zip(1..) {
            server.to_take.borrow_mut().push_back(frame);
            while (count == 3 || count == 5) && !server.to_take.borrow().is_empty() {
                world.server.turn();
            }
        }
        let small = call(&mut world, b"small");
        world.client.turn();
        world.carry_requests();
        world.server.turn();
        server.to_take.borrow_mut().push_back(last);
        world.server.turn();
        let mut budgets = std::mem::take(&mut *server.budgets.borrow_mut());
        budgets.dedup();
        let mut changes = vec![all, expected, all];
        changes.dedup();
        assert_eq!(budgets, changes, "frames of {frame_bytes} B");
        world.settle();
        assert_eq!((*outcome.borrow(), *small.borrow()), (Some(Ok(())), Some(Ok(()))));
    }
}

/// Whether a request's deadline has passed depends on the clock at its turn, not at the beginning of the burst, on
/// every path.
#[test]
fn requests_whose_time_runs_out_within_a_burst_are_not_run() {
    let slow = |change: fn(&mut EndpointConfig)| {
        let mut config = EndpointConfig::default();
        change(&mut config);
        config
    };
    for config in [
        EndpointConfig::default(),
        #[cfg(feature = "factors")]
        slow(|config| config.optimisations.preallocated_responses = false),
        slow(|config| config.protocol.fast_path = false),
    ] {
        for (len, marked) in [(5, false), (5, true), (3_000, false), (3_000, true)] {
            for (held_up_ns, runs) in [(100_000, true), (3_000_000, false)] {
                let mut world = World::new(&config);
                let ran = Rc::new(Cell::new(false));
                let seen = Rc::clone(&ran);
                world.server.endpoint.on(METHOD, move |_, cx, request| {
                    seen.set(true);
                    request.reply(cx, b"")
                });
                let client = &mut world.client.endpoint;
                let request = client.alloc_message(&vec![7; len]).unwrap();
                let response = client.alloc(10).unwrap();
                let options = CallOptions::new().timeout(Duration::from_millis(2));
                client
                    .call(world.session, METHOD, request)
                    .into_buffer(response)
                    .options(options)
                    .then_cancellable(|_, _, _| {})
                    .unwrap();
                world.client.turn();
                assert!(world.carry_requests() > 0);
                world.server.site.marks.set(marked);
                world.server.site.held_up_ns.set(held_up_ns);
                world.server.turn();
                let what = format!("{len} B, marked {marked}, held up for {held_up_ns} ns");
                assert_eq!(ran.get(), runs, "{what}, {config:?}");
            }
        }
    }
}

/// A task counts from its spawning to its end or abortion.
#[test]
fn stats__count_the_tasks_that_have_not_ended() {
    let mut world = world();
    let handle = world.client.endpoint.handle();
    let tasks: Vec<_> = (1..=3)
        .map(|ms| {
            let sleep = handle.sleep(Duration::from_millis(ms));
            handle.spawn(sleep)
        })
        .collect();
    let count = |world: &World| {
        let (stats, object_counts) = (
            world.client.endpoint.stats().tasks,
            world.client.endpoint.object_counts().local.tasks,
        );
        assert_eq!(stats, object_counts);
        stats
    };
    assert_eq!(count(&world), 3);
    while world.client.turn().0 {}
    assert_eq!(count(&world), 3);
    world.pass(1_500_000);
    while world.client.turn().0 {}
    assert_eq!(count(&world), 2, "the first has slept");
    tasks[2].abort();
    assert_eq!(count(&world), 1);
    world.pass(1_000_000);
    while world.client.turn().0 {}
    assert_eq!(count(&world), 0);
}
