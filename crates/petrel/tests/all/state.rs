//! The application's state, owned by an endpoint and lent to closures.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::{EndpointConfig, Handled, SessionId};
use petrel::{Context, Endpoint, Request};

use crate::common::{ECHO, Server, nexus, over};

const COUNT: u16 = 10;
const NEVER: u16 = 11;

/// The state shared by handlers and continuations.
#[derive(Default)]
struct Tally {
    requests: u64,
    replies: Vec<u64>,
}

impl Tally {
    fn count(&mut self, cx: &mut Context<'_, Tally>, request: Request<'_>) -> Handled {
        self.requests += 1;
        request.reply(cx, &self.requests.to_le_bytes())
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// An endpoint with a state, and a session to itself.
fn own() -> (Endpoint<Tally>, SessionId) {
    let nexus = nexus(Some("127.0.0.1:0".parse().unwrap()));
    let mut endpoint = nexus.endpoint_with(over(false, true), Tally::default()).unwrap();
    let session = endpoint.connect_wait(nexus.local_addr().unwrap()).unwrap();
    (endpoint, session)
}

#[test]
fn state__is_lent_to_handlers_continuations_and_tasks() {
    let (mut endpoint, session) = own();
    endpoint.on(COUNT, Tally::count);
    endpoint.on_async(ECHO, |handle, request| async move {
        let requests = handle.with(|tally: &mut Tally| {
            tally.requests += 1;
            tally.requests
        });
        assert_eq!(number(request.data()), 7);
        Ok(requests.to_le_bytes())
    });
    for method in [COUNT, ECHO, COUNT] {
        let call = endpoint.call(session, method, 7u64.to_le_bytes());
        call.then(|tally, _, reply| tally.replies.push(number(reply.message().unwrap()))).unwrap();
    }
    endpoint.run_until(|tally, _| tally.replies.len() == 3);
    let mut replies = endpoint.state().replies.clone();
    replies.sort_unstable();
    assert_eq!((replies, endpoint.state().requests), (vec![1, 2, 3], 3));

    let handle = endpoint.handle();
    let last = endpoint.block_on(async move { handle.with(|tally| tally.replies.pop()) });
    assert!(last.is_some_and(|last| last <= 3));
    endpoint.state_mut().requests = 100;
    let counted = endpoint.call(session, COUNT, "").wait().unwrap();
    assert_eq!(number(&counted), 101);
}

/// The closures are stored differently: in the call itself, or in a box.
#[test]
fn then__keeps_closures_of_any_size_and_lets_each_go_once() {
    #[repr(align(16))]
    #[derive(Clone, Copy)]
    struct Aligned(u64);

    let server = Server::start(over(false, true), "127.0.0.1:0", |endpoint| {
        crate::common::keep(endpoint, NEVER)
    });
    let nexus = nexus(None);
    let mut endpoint = nexus.endpoint_with(over(false, true), Tally::default()).unwrap();
    let session = endpoint.connect_wait(server.address).unwrap();
    let held = Rc::new(());
    let begin = |endpoint: &mut Endpoint<Tally>, method: u16| {
        let one = Rc::clone(&held);
        let end = endpoint.call(session, method, "");
        end.then(move |tally, _, _| {
            drop(one);
            tally.replies.push(1);
        })
        .unwrap();
        let (two, number) = (Rc::clone(&held), 2);
        let end = endpoint.call(session, method, "");
        end.then(move |tally, _, _| {
            drop(two);
            tally.replies.push(number);
        })
        .unwrap();
        let (many, numbers) = (Rc::clone(&held), [3, 4, 5]);
        let end = endpoint.call(session, method, "");
        end.then(move |tally, _, _| {
            drop(many);
            tally.replies.extend(numbers);
        })
        .unwrap();
        let aligned = Aligned(6);
        let end = endpoint.call(session, method, "");
        end.then(move |tally, _, _| {
            assert_eq!((&raw const aligned).addr() % 16, 0);
            tally.replies.push(aligned.0);
        })
        .unwrap();
        endpoint.call(session, method, "").then(|tally, _, _| tally.replies.push(7)).unwrap();
    };
    begin(&mut endpoint, ECHO);
    assert_eq!(Rc::strong_count(&held), 4);
    endpoint.run_until(|tally, _| tally.replies.len() == 7);
    endpoint.state_mut().replies.sort_unstable();
    assert_eq!(endpoint.state().replies, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(Rc::strong_count(&held), 1, "each was run, and is gone");

    // With the endpoint, closures that never ran are dropped.
    begin(&mut endpoint, NEVER);
    endpoint.run_for(Duration::from_millis(5), |_, _| false);
    assert_eq!(Rc::strong_count(&held), 4);
    drop(endpoint);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn then__of_a_call_that_is_not_made_lets_the_closure_go() {
    let (mut endpoint, session) = own();
    endpoint.close(session);
    let held = Rc::new(());
    let (kept, also_kept) = (Rc::clone(&held), Rc::clone(&held));
    let message = endpoint.alloc_message(b"a message").unwrap();
    let call = endpoint.call(session, COUNT, message);
    let rejected = call.then(move |_, _, _| drop(kept)).unwrap_err();
    assert_eq!(&rejected.request.unwrap()[..], b"a message");
    let call = endpoint.call(session, COUNT, "");
    call.then_cancellable(move |_, _, _| drop(also_kept)).unwrap_err();
    assert_eq!(Rc::strong_count(&held), 1);
}

/// A call on a session has one server and one attempt.
#[test]
fn options__that_a_session_cannot_honour_are_refused() {
    let (mut endpoint, id) = own();
    endpoint.on(COUNT, Tally::count);
    let hedged = petrel::endpoint::CallOptions::new().hedge_after(Duration::from_millis(1));
    let ready = petrel::endpoint::CallOptions::new().wait_for_ready();
    for options in [hedged, ready] {
        let error = endpoint.call(id, COUNT, "").options(options).wait().unwrap_err();
        assert_eq!(error.status, petrel::Status::InvalidArgument);
        let session = endpoint.session(id);
        let error =
            endpoint.block_on(async move { session.call(COUNT, "").options(options).await });
        assert_eq!(error.unwrap_err().status, petrel::Status::InvalidArgument);
        // Both buffers come back.
        let (request, room) =
            (endpoint.alloc_message(b"kept").unwrap(), endpoint.alloc(77).unwrap());
        let call = endpoint.call(id, COUNT, request).into_buffer(room).options(options);
        let rejected = call.then(|_, _, _| {}).unwrap_err();
        assert_eq!(&rejected.request.unwrap()[..], b"kept");
        assert_eq!(rejected.response.unwrap().capacity(), 77);
    }
    let idempotent = petrel::endpoint::CallOptions::new().idempotent();
    assert!(endpoint.call(id, COUNT, "").options(idempotent).wait().is_ok());
    assert_eq!(endpoint.state().requests, 1);
}

/// The state may hold a value that owns the endpoint's internals.
#[test]
fn state__goes_with_its_endpoint() {
    let nexus = nexus(None);
    let held = Rc::new(());
    let state: Vec<Box<dyn std::any::Any>> = vec![Box::new(Rc::clone(&held))];
    let mut endpoint = nexus.endpoint_with(EndpointConfig::default(), state).unwrap();
    let handle = endpoint.handle();
    endpoint.state_mut().push(Box::new(handle));
    drop(endpoint);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn with__outside_of_the_endpoints_tasks_is_a_mistake() {
    let (endpoint, _) = own();
    let handle = endpoint.handle();
    let outside = catch_unwind(AssertUnwindSafe(|| handle.with(|tally| tally.requests)));
    assert!(outside.is_err());
}

/// A panic of a task passes through the event loop; the endpoint still gets its state back.
#[test]
fn state__comes_back_when_a_task_panics() {
    let (mut endpoint, _) = own();
    let handle = endpoint.handle();
    let panics = catch_unwind(AssertUnwindSafe(|| {
        endpoint
            .block_on(async move { handle.with(|tally| -> () { panic!("{}", tally.requests) }) })
    }));
    assert!(panics.is_err());
    endpoint.state_mut().requests = 5;
    assert_eq!(endpoint.state().requests, 5);
}

/// While an endpoint's tasks are polled, its task runs another endpoint, whose task panics. Calls of a client begin at
/// the endpoint whose tasks are polled: afterwards the first endpoint again.
#[test]
fn state__of_endpoints_that_run_within_each_other_comes_back() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |_| {});
    let (mut outer, _) = own();
    let client = outer.client([server.address], Default::default());
    let handle = outer.handle();
    outer.block_on(async move {
        handle.with(|tally| tally.requests = 1);
        let nexus = nexus(None);
        let mut inner = nexus.endpoint_with(EndpointConfig::default(), vec![1u8]).unwrap();
        let inner_handle = inner.handle();
        let panics = catch_unwind(AssertUnwindSafe(|| {
            inner.block_on(async move {
                inner_handle.with(|bytes| -> () {
                    bytes.push(2);
                    panic!("as it should");
                })
            })
        }));
        assert!(panics.is_err());
        assert_eq!(inner.into_state(), [1, 2]);
        handle.with(|tally| tally.requests += 1);
        assert_eq!(client.call(ECHO, "of the first").await.unwrap(), b"of the first");
    });
    assert_eq!(outer.state().requests, 2);
}

/// Returns true if handlers, continuations and tasks borrow this state in place.
fn is_lent_in_place<S: Default + 'static>() -> bool {
    let nexus = nexus(Some("127.0.0.1:0".parse().unwrap()));
    let mut endpoint = nexus.endpoint_with(over(false, true), S::default()).unwrap();
    let place = |state: &S| std::ptr::from_ref(state).addr();
    endpoint.on(COUNT, move |state, cx, request| {
        request.reply(cx, &(place(state) as u64).to_le_bytes())
    });
    let session = endpoint.connect_wait(nexus.local_addr().unwrap()).unwrap();
    let places = Rc::new(RefCell::new(Vec::new()));
    let keep = Rc::clone(&places);
    let then = move |state: &mut S, _: &mut Context<'_, S>, reply: petrel::endpoint::Reply| {
        keep.borrow_mut().extend([number(reply.message().unwrap()), place(state) as u64]);
    };
    endpoint.call(session, COUNT, "").then(then).unwrap();
    endpoint.run_until(|_, _| !places.borrow().is_empty());
    let handle = endpoint.handle();
    let in_task = endpoint.block_on(async move { handle.with(|state| place(state)) });
    let expected = place(endpoint.state());
    expected.is_multiple_of(align_of::<S>())
        && in_task == expected
        && places.take() == [expected as u64; 2]
}

#[test]
fn state__of_any_size_and_alignment_is_lent_where_it_lies() {
    #[derive(Default)]
    #[repr(align(128))]
    struct Aligned(#[expect(dead_code, reason = "its size matters")] [u64; 32]);

    assert!(is_lent_in_place::<()>());
    assert!(is_lent_in_place::<u8>());
    assert!(is_lent_in_place::<Aligned>());
    assert!(is_lent_in_place::<String>());
}

/// A handler registers for the cancellation of an already cancelled request.
#[test]
fn on_cancel__that_comes_too_late_runs_all_the_same() {
    let (mut endpoint, session) = own();
    let kept = Rc::new(RefCell::new(None));
    let keep = Rc::clone(&kept);
    endpoint.on(NEVER, move |_, cx, request| {
        let (responder, handled) = request.defer(cx);
        *keep.borrow_mut() = Some(responder);
        handled
    });
    let key = endpoint.call(session, NEVER, "").then_cancellable(|_, _, _| {}).unwrap();
    endpoint.run_until(|_, _| kept.borrow().is_some());
    assert!(endpoint.context().cancel(key));
    let responder = kept.take().unwrap();
    endpoint.run_until(|_, cx| responder.is_cancelled(cx));
    endpoint.context().on_cancel(&responder, |tally, _| tally.requests = 9);
    endpoint.run_until(|tally, _| tally.requests == 9);
}
