//! Batched handlers: the requests of one receive burst together, over a medium driven by the test and over real media.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;

use crate::common::{Server, client, over, pattern};
use crate::turns::medium::World;
use petrel::endpoint::{CallKey, CallOptions, EndpointConfig, Handled, PanicPolicy, Responder};
use petrel::{Context, Request, Status};

const METHOD: u16 = 2;
const OTHER: u16 = 4;

/// The outcome of a call: the response, or the status of its failure. `None` until the call ends.
type Outcome = Rc<RefCell<Option<Result<Vec<u8>, Status>>>>;

/// The messages of each batch that a handler got.
type Batches = Rc<RefCell<Vec<Vec<Vec<u8>>>>>;

fn call(
    world: &mut World,
    method: u16,
    message: &[u8],
    options: CallOptions,
) -> (Outcome, CallKey) {
    let outcome = Outcome::default();
    let kept = Rc::clone(&outcome);
    let endpoint = &mut world.client.endpoint;
    let response = endpoint.alloc(4_000).unwrap();
    let request = endpoint.alloc_message(message).unwrap();
    let call = endpoint.call(world.session, method, request).into_buffer(response).options(options);
    let key = call
        .then_cancellable(move |_, _, reply| {
            let result = reply.message().map(<[u8]>::to_vec).map_err(|error| error.status);
            *kept.borrow_mut() = Some(result);
        })
        .unwrap();
    (outcome, key)
}

fn plain(world: &mut World, message: &[u8]) -> Outcome {
    call(world, METHOD, message, CallOptions::new()).0
}

fn has(outcome: &Outcome, expected: &[u8]) -> bool {
    *outcome.borrow() == Some(Ok(expected.to_vec()))
}

/// A world whose server answers with the request, and records its batches.
fn world() -> (World, Batches) {
    world_of(&EndpointConfig::default())
}

fn world_of(config: &EndpointConfig) -> (World, Batches) {
    let mut world = World::new(config);
    let batches = Batches::default();
    let seen = Rc::clone(&batches);
    world.server.endpoint.on_batch(METHOD, move |(), cx, batch| {
        seen.borrow_mut().push(batch.messages().map(<[u8]>::to_vec).collect());
        // Not in the order of arrival.
        for index in (0..batch.len()).rev() {
            batch.reply(cx, index, batch.message(index));
        }
    });
    (world, batches)
}

#[test]
fn on_batch__gets_the_requests_of_a_burst_together() {
    let (mut world, batches) = world();
    world.server.endpoint.on(OTHER, |(), cx, request| request.reply(cx, b"other"));
    let messages: Vec<Vec<u8>> = (0..5).map(|seed| pattern(30 * seed as usize, seed)).collect();
    let outcomes: Vec<_> = messages.iter().map(|message| plain(&mut world, message)).collect();
    let (other, _) = call(&mut world, OTHER, b"", CallOptions::new());
    world.client.turn();
    world.carry_requests();
    world.server.turn();
    assert_eq!(*batches.borrow(), std::slice::from_ref(&messages));
    assert_eq!(world.carry_answers(), 6, "all are answered in the same turn");
    world.client.turn();
    assert!(outcomes.iter().zip(&messages).all(|(outcome, message)| has(outcome, message)));
    assert!(has(&other, b"other"));
    let outcome = plain(&mut world, b"alone");
    world.settle();
    assert!(has(&outcome, b"alone") && batches.borrow().len() == 2, "it waits for no other");
}

#[test]
fn on_batch__gets_a_long_message_alone() {
    let (mut world, batches) = world();
    let messages = [pattern(40, 1), pattern(1_300, 2), pattern(3_000, 3), pattern(900, 4)];
    let outcomes: Vec<_> = messages.iter().map(|message| plain(&mut world, message)).collect();
    world.settle();
    assert!(outcomes.iter().zip(&messages).all(|(outcome, message)| has(outcome, message)));
    let batches = batches.borrow();
    assert!(batches.iter().any(|batch| *batch == [messages[0].clone(), messages[3].clone()]));
    assert!(batches.contains(&vec![messages[1].clone()]));
    assert!(batches.contains(&vec![messages[2].clone()]));
}

#[test]
fn on_batch__a_cancelled_request_is_not_in_it() {
    let (mut world, batches) = world();
    let _kept = plain(&mut world, b"kept");
    let (cancelled, key) = call(&mut world, METHOD, b"cancelled", CallOptions::new());
    world.client.turn();
    assert!(world.client.endpoint.context().cancel(key));
    world.client.turn();
    assert_eq!(*cancelled.borrow(), Some(Err(Status::Cancelled)));
    assert_eq!(world.carry_requests(), 3, "two requests and a CANCEL in one burst");
    world.server.turn();
    assert_eq!(*batches.borrow(), [[b"kept".to_vec()]]);
    assert_eq!(world.carry_answers(), 1);
    assert_eq!(world.server.endpoint.stats().protocol.cancels_received, 1);
}

#[test]
fn on_batch__a_request_that_expires_in_between_is_refused() {
    let (mut world, batches) = world();
    let kept = plain(&mut world, b"kept");
    let options = CallOptions::new().timeout(Duration::from_micros(500));
    let (expired, _) = call(&mut world, METHOD, b"expired", options);
    let outcomes: Vec<_> = (0..3).map(|_| plain(&mut world, b"later")).collect();
    world.client.turn();
    world.carry_requests();
    // The server's thread does not run for a while before each frame.
    world.server.site.held_up_ns.set(200_000);
    world.server.turn();
    let later = vec![b"later".to_vec(); 3];
    assert_eq!(*batches.borrow(), [[vec![b"kept".to_vec()], later].concat()]);
    world.carry_answers();
    world.client.turn();
    assert_eq!(*expired.borrow(), Some(Err(Status::DeadlineExceeded)));
    assert!(has(&kept, b"kept") && outcomes.iter().all(|outcome| has(outcome, b"later")));
}

#[test]
fn answer__calls_inherit_the_deadline_of_their_request() {
    let mut world = World::new(&EndpointConfig::default());
    world.server.endpoint.on_batch(METHOD, |(), cx, batch| {
        assert_eq!(cx.deadline(), None, "requests of a batch have different deadlines");
        batch.answer_each(cx, |cx, request| {
            let has_deadline = request.deadline(cx).is_some();
            request.reply(cx, &[u8::from(has_deadline)])
        });
    });
    let options = CallOptions::new().timeout(Duration::from_secs(1));
    let (with, _) = call(&mut world, METHOD, b"", options);
    let without = plain(&mut world, b"");
    world.settle();
    assert!(has(&with, &[1]) && has(&without, &[0]));
}

#[test]
fn answer__fails_refuses_and_defers_as_a_plain_handler() {
    let mut world = World::new(&EndpointConfig::default());
    let kept = Rc::new(RefCell::new(Vec::<Responder>::new()));
    let keep = Rc::clone(&kept);
    world.server.endpoint.on_batch(METHOD, move |(), cx, batch| {
        assert_eq!((batch.len(), batch.method(), batch.is_empty()), (5, METHOD, false));
        batch.answer(cx, 0, |cx, request| request.fail(cx, Status::NotFound, "no such entry"));
        batch.answer(cx, 1, |cx, request| request.refuse(cx, Status::Unavailable, "not now"));
        batch.answer(cx, 2, |cx, request| {
            let (responder, handled) = request.defer(cx);
            keep.borrow_mut().push(responder);
            handled
        });
        batch.reply_with(cx, 3, 100, |message, out| {
            out[..message.len()].copy_from_slice(message);
            message.len()
        });
        let answered: Vec<_> = (0..5).map(|index| batch.is_answered(index)).collect();
        assert_eq!(answered, [true, true, true, true, false]);
        assert!(batch.peer(cx, 4).is_some() && batch.session(4) == batch.session(0));
    });
    let outcomes: Vec<_> = (0..5).map(|_| plain(&mut world, b"message")).collect();
    world.settle();
    let failed = |index: usize| outcomes[index].borrow().clone().and_then(Result::err);
    assert_eq!(failed(0), Some(Status::NotFound));
    assert_eq!(failed(1), Some(Status::Unavailable));
    assert_eq!(*outcomes[2].borrow(), None);
    assert!(has(&outcomes[3], b"message"));
    assert_eq!(failed(4), Some(Status::Internal), "the handler left it");
    let responder = kept.borrow_mut().pop().unwrap();
    responder.reply(&mut world.server.endpoint.context(), b"late");
    world.settle();
    assert!(has(&outcomes[2], b"late"));
}

#[test]
fn reply__too_large_for_the_caller() {
    let mut config = EndpointConfig::default();
    config.sessions.message_bytes_max = 64 << 10;
    let mut world = World::new(&config);
    world.server.endpoint.on_batch(METHOD, |(), cx, batch| {
        for index in 0..batch.len() {
            let len = if batch.message(index) == b"large" { 65 << 10 } else { 10 };
            batch.reply(cx, index, &vec![7; len]);
        }
    });
    let outcomes: Vec<_> =
        [&b"small"[..], b"large", b"small"].map(|message| plain(&mut world, message)).into();
    world.settle();
    assert!(has(&outcomes[0], &[7; 10]) && has(&outcomes[2], &[7; 10]));
    assert_eq!(*outcomes[1].borrow(), Some(Err(Status::ResourceExhausted)));
}

#[test]
fn on_batch__a_panic_ends_no_other_request_silently() {
    let mut world = World::new(&EndpointConfig::default());
    world.server.endpoint.on_batch(METHOD, |(), cx, batch| {
        for index in 0..batch.len() {
            assert_ne!(batch.message(index), b"wrong", "a request that the handler did not expect");
            batch.reply(cx, index, b"right");
        }
    });
    let outcomes: Vec<_> =
        [&b"first"[..], b"wrong", b"last"].map(|message| plain(&mut world, message)).into();
    world.client.turn();
    world.carry_requests();
    world.settle();
    assert!(has(&outcomes[0], b"right"));
    assert_eq!(*outcomes[1].borrow(), Some(Err(Status::Internal)));
    assert_eq!(*outcomes[2].borrow(), Some(Err(Status::Internal)));
    let next = plain(&mut world, b"next");
    world.settle();
    assert!(has(&next, b"right"), "the endpoint goes on");
}

panics! {
    reply__a_second_time: "answered once" => {
        let mut config = EndpointConfig::default();
        config.panics = PanicPolicy::Unwind;
        let mut world = World::new(&config);
        world.server.endpoint.on_batch(METHOD, |(), cx, batch| {
            batch.reply(cx, 0, b"one");
            batch.reply(cx, 0, b"two");
        });
        plain(&mut world, b"");
        world.settle();
    };
}

/// A bundle of datagrams can hold more than a receive burst.
#[test]
fn on_batch__more_requests_than_a_batch_takes() {
    let mut config = EndpointConfig::default();
    config.sessions.slots = 128;
    config.sessions.credits = 128;
    let (mut world, batches) = world_of(&config);
    let outcomes: Vec<_> = (0..100_u8).map(|number| plain(&mut world, &[number])).collect();
    while world.client.turn().0 {}
    let carried = world.carry_requests();
    assert!((33..64).contains(&carried), "{carried} requests fit the credits");
    world.server.site.beyond_budget.set(100);
    world.server.turn();
    assert_eq!(batches.borrow().iter().map(Vec::len).collect::<Vec<_>>(), [32, carried - 32]);
    world.settle();
    assert!((0..).zip(&outcomes).all(|(number, outcome)| has(outcome, &[number])));
}

#[test]
fn on_batch__over_shared_memory_and_udp() {
    for config in [over(false, true), over(true, false)] {
        let server = Server::start(config.clone(), "127.0.0.1:0", |endpoint| {
            endpoint.on_batch(METHOD, |(), cx, batch| {
                for index in 0..batch.len() {
                    batch.reply(cx, index, batch.message(index));
                }
            });
        });
        let mut client = client(config);
        let session = client.connect_wait(server.address).unwrap();
        let right = Rc::new(Cell::new(0));
        for number in 0..500_u32 {
            let message = pattern(number as usize % 90, number.into());
            let (expected, right) = (message.clone(), Rc::clone(&right));
            let request = client.alloc_message(&message).unwrap();
            let response = client.alloc(100).unwrap();
            client
                .call(session, METHOD, request)
                .into_buffer(response)
                .then(move |_, _, reply| {
                    assert_eq!(reply.message().expect("the call succeeds"), expected);
                    right.set(right.get() + 1);
                })
                .unwrap();
        }
        client.run_until(|_, _| right.get() == 500);
    }
}

/// An answer computed from the request alone, in one of several ways.
fn answer(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let sum =
        request.data().iter().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
    let len = request.data().len();
    match sum % 8 {
        0 => request.fail(cx, Status::NotFound, "nothing"),
        1 => request.refuse(cx, Status::Unavailable, "not now"),
        2 => {
            let (responder, handled) = request.defer(cx);
            responder.reply(cx, &[sum; 3]);
            handled
        }
        3 => request.reply(cx, &vec![sum; 3 * len]),
        _ => request.reply(cx, &[sum; 40]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same calls in the same bursts have the same outcomes with a plain and with a batched handler.
    #[test]
    fn on_batch__answers_as_plain_handlers(
        bursts in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1_500), 1..12), 1..6)
    ) {
        let outcomes = [false, true].map(|is_batched| {
            let mut world = World::new(&EndpointConfig::default());
            match is_batched {
                true => world.server.endpoint.on_batch(METHOD, |(), cx, batch| {
                    batch.answer_each(cx, answer);
                }),
                false => world.server.endpoint.on(METHOD, |(), cx, request| answer(cx, request)),
            }
            let outcomes: Vec<Outcome> = bursts
                .iter()
                .flat_map(|burst| {
                    let outcomes: Vec<_> =
                        burst.iter().map(|message| plain(&mut world, message)).collect();
                    world.settle();
                    outcomes
                })
                .collect();
            outcomes.iter().map(|outcome| outcome.borrow().clone()).collect::<Vec<_>>()
        });
        prop_assert!(outcomes[0].iter().all(Option::is_some));
        prop_assert_eq!(&outcomes[0], &outcomes[1]);
    }
}
