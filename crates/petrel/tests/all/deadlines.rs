//! Deadlines and cancellation between two endpoints, over both transports.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::{ECHO, Server, client, nexus, open, over, pattern};
use petrel::endpoint::{CallOptions, EndpointConfig, Handled, Responder, SessionId};
use petrel::{Context, Endpoint, Execution, Reply, Request, Status};

/// Answers with the nanoseconds left, or with an empty message.
const TIME_LEFT: u16 = 2;
/// Keeps the request, and counts cancellations by callers.
const KEEP: u16 = 3;
/// Answers with the numbers of kept requests, of callers that have gone, and of kept requests that report the
/// cancellation.
const COUNT: u16 = 4;
/// Answers all kept requests.
const RELEASE: u16 = 5;

/// Far longer than any test.
const LONG: Duration = Duration::from_secs(1_000);

/// Passes soon.
const SHORT: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Kept {
    responders: RefCell<Vec<Responder>>,
    gone: Cell<u64>,
}

impl Kept {
    fn keep(self: &Rc<Self>, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let (responder, handled) = request.defer(cx);
        // Twice; each must run.
        for _ in 0..2 {
            let kept = Rc::clone(self);
            cx.on_cancel(&responder, move |_, _| kept.gone.set(kept.gone.get() + 1));
        }
        self.responders.borrow_mut().push(responder);
        handled
    }

    fn count(&self, cx: &Context<'_>) -> [u64; 3] {
        let responders = self.responders.borrow();
        let cancelled = responders.iter().filter(|responder| responder.is_cancelled(cx)).count();
        [responders.len() as u64, self.gone.get(), cancelled as u64]
    }
}

fn serve(endpoint: &mut Endpoint) {
    endpoint.on(TIME_LEFT, |_, cx, request| {
        let left_ns = request.time_left(cx).map(|left| (left.as_nanos() as u64).to_le_bytes());
        request.reply(cx, left_ns.as_ref().map_or(&[], |bytes| &bytes[..]))
    });
    let kept = Rc::new(Kept::default());
    let [keep, count, release] = [(); 3].map(|()| Rc::clone(&kept));
    endpoint.on(KEEP, move |_, cx, request| keep.keep(cx, request));
    endpoint.on(COUNT, move |_, cx, request| {
        let counts = count.count(cx).map(u64::to_le_bytes).concat();
        request.reply(cx, &counts)
    });
    endpoint.on(RELEASE, move |_, cx, request| {
        let responders = release.responders.take();
        responders.into_iter().for_each(|responder| responder.reply(cx, b"released"));
        request.reply(cx, b"")
    });
}

struct Pair {
    client: Endpoint,
    session: SessionId,
    server: Server,
}

impl Pair {
    fn new(config: EndpointConfig) -> Self {
        let server = Server::start(config.clone(), "127.0.0.1:0", serve);
        let mut client = client(config);
        let session = client.connect_wait(server.address).unwrap();
        Self { client, session, server }
    }

    fn counts(&mut self) -> [u64; 3] {
        let counts = self.client.call(self.session, COUNT, b"").timeout(LONG).wait().unwrap();
        std::array::from_fn(|at| u64::from_le_bytes(counts[8 * at..8 * at + 8].try_into().unwrap()))
    }

    fn wait_for_counts(&mut self, expected: [u64; 3]) {
        while self.counts() != expected {}
    }

    /// Makes calls that end by their time until the server has kept a request: a request that the server meets late is not run. Returns the
    /// number of calls, and of requests kept once the server has learnt of their ends.
    fn keep_some(&mut self, options: CallOptions) -> (u64, u64) {
        for calls in 1.. {
            let failure = self.fails(KEEP, options);
            assert_eq!(failure.status, Status::DeadlineExceeded);
            if self.counts()[0] > 0 {
                assert_eq!(failure.execution, Execution::MayHaveExecuted);
                loop {
                    let [kept, gone, cancelled] = self.counts();
                    if gone == 2 * kept && cancelled == kept {
                        return (calls, kept);
                    }
                }
            }
        }
        unreachable!("the server keeps a request at some time")
    }

    fn fails(&mut self, method: u16, options: CallOptions) -> petrel::Error {
        match self.client.call(self.session, method, b"x").options(options).wait() {
            Err(failure) => failure,
            other => panic!("expected a failure, got {other:?}"),
        }
    }
}

fn both() -> [Pair; 2] {
    [over(true, false), over(false, true)].map(Pair::new)
}

#[test]
fn deadline__the_handler_sees_the_time_left() {
    for mut pair in both() {
        let options = CallOptions::new().timeout(LONG);
        let left = pair.client.call(pair.session, TIME_LEFT, b"").options(options).wait().unwrap();
        let left_ns = u64::from_le_bytes(left[..].try_into().unwrap());
        assert!(left_ns > 0 && left_ns <= LONG.as_nanos() as u64, "{left_ns}");
        // A large request carries the deadline too, and a large response keeps it.
        let large = pattern(100_000, 7);
        let left =
            pair.client.call(pair.session, TIME_LEFT, &large).options(options).wait().unwrap();
        assert_eq!(left.len(), 8);
        let echoed = pair.client.call(pair.session, ECHO, &large).options(options).wait().unwrap();
        assert!(echoed[..] == large[..]);
        let none = pair.client.call(pair.session, TIME_LEFT, b"").wait().unwrap();
        assert!(none.is_empty());
    }
}

#[test]
fn deadline__ends_a_call_without_an_answer_and_notifies_the_handler() {
    for mut pair in both() {
        let (calls, kept) = pair.keep_some(CallOptions::new().timeout(SHORT));
        // A later answer is dropped, and the session goes on.
        pair.client.call(pair.session, RELEASE, b"").wait().unwrap();
        assert_eq!(pair.counts(), [0, 2 * kept, 0]);
        let counters = pair.client.stats().protocol;
        assert_eq!(counters.calls_deadline_exceeded, calls);
        assert!((kept..=calls).contains(&counters.cancels_sent), "{counters:?}");
    }
}

#[test]
fn deadline__over_before_the_call() {
    for mut pair in both() {
        let failure = pair.fails(ECHO, CallOptions::new().deadline(petrel::Time::from_ns(0)));
        assert_eq!(failure.status, Status::DeadlineExceeded);
        assert_eq!(failure.execution, Execution::NotSent);
        let failure = pair.fails(ECHO, CallOptions::new().timeout(Duration::ZERO));
        assert_eq!(failure.execution, Execution::NotSent);
    }
}

#[test]
fn deadline__while_the_session_opens() {
    let mut client = client(over(true, true));
    // A listener that never accepts.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let session = client.connect(silent.local_addr().unwrap()).unwrap();
    let options = CallOptions::new().timeout(SHORT);
    let Err(failure) = client.call(session, ECHO, b"x").options(options).wait() else {
        panic!("nobody is there");
    };
    assert_eq!(failure.status, Status::DeadlineExceeded);
    assert_eq!(failure.execution, Execution::NotSent);
}

#[test]
fn deadline__by_default_no_call_waits_for_ever() {
    for (udp, shm) in [(true, false), (false, true)] {
        let mut config = over(udp, shm);
        config.protocol.call_timeout_ns = SHORT.as_nanos() as u64;
        let mut pair = Pair::new(config);
        // The server learns of the end by CANCEL.
        pair.keep_some(CallOptions::new());
    }
}

#[test]
fn cancel__ends_the_call_once_and_notifies_the_handler() {
    for mut pair in both() {
        let ends = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&ends);
        let key = pair
            .client
            .call(pair.session, KEEP, b"x")
            .then_cancellable(move |_, _, reply| {
                let failure = reply.outcome.as_ref().unwrap_err();
                seen.borrow_mut().push((failure.status, failure.execution));
                assert_eq!(&reply.request[..], b"x");
            })
            .unwrap();
        pair.wait_for_counts([1, 0, 0]);
        assert!(ends.borrow().is_empty());
        assert!(pair.client.context().cancel(key));
        assert!(!pair.client.context().cancel(key), "it has ended");
        pair.wait_for_counts([1, 2, 1]);
        assert_eq!(*ends.borrow(), [(Status::Cancelled, Execution::MayHaveExecuted)]);
        assert_eq!(pair.client.stats().protocol.calls_cancelled, 1);
    }
}

#[test]
fn cancel__by_function_and_number() {
    for mut pair in both() {
        let all_ends = Rc::new(RefCell::new(Vec::new()));
        let keys = [10, 11, 12].map(|number| {
            let ends = Rc::clone(&all_ends);
            let mut cx = pair.client.context();
            let call = cx.call(pair.session, KEEP, b"x");
            let on_end = move |_: &mut (), _: &mut Context<'_>, reply: Reply| {
                let status = reply.outcome.map_or_else(|failure| failure.status, |()| Status::Ok);
                ends.borrow_mut().push((number, status));
            };
            call.then_cancellable(on_end).unwrap()
        });
        pair.wait_for_counts([3, 0, 0]);
        assert!(pair.client.context().cancel(keys[1]));
        pair.wait_for_counts([3, 2, 1]);
        pair.client.call(pair.session, RELEASE, b"").wait().unwrap();
        pair.client.run_until(|_, _| all_ends.borrow().len() == 3);
        let mut ends = all_ends.take();
        ends.sort_unstable();
        assert_eq!(ends, [(10, Status::Ok), (11, Status::Cancelled), (12, Status::Ok)]);
        assert!(keys.iter().all(|key| !pair.client.context().cancel(*key)));
    }
}

#[test]
fn cancel__a_call_that_waits_for_a_slot() {
    for mut pair in both() {
        let ended = Rc::new(Cell::new(0));
        let slots = u64::from(pair.client.core().agreed(pair.session).unwrap().slots);
        let keys: Vec<_> = (0..slots + 2)
            .map(|_| {
                let ended = Rc::clone(&ended);
                pair.client
                    .call(pair.session, KEEP, b"x")
                    .then_cancellable(move |_, _, reply| {
                        let execution = reply.outcome.unwrap_err().execution;
                        ended.set(ended.get() + u64::from(execution == Execution::NotSent));
                    })
                    .unwrap()
            })
            .collect();
        // All slots are taken: no other call can reach the server.
        for key in &keys[slots as usize..] {
            assert!(pair.client.context().cancel(*key));
        }
        pair.client.run_until(|_, _| ended.get() == 2);
        for key in &keys[..slots as usize] {
            assert!(pair.client.context().cancel(*key));
        }
        // Some requests were kept and their handlers notified; the others were cancelled before arrival.
        loop {
            let [kept, gone, cancelled] = pair.counts();
            if gone == 2 * kept && cancelled == kept {
                break;
            }
        }
        assert_eq!(pair.client.pending_calls(), 0);
    }
}

trait PendingCalls {
    fn pending_calls(&self) -> u64;
}

impl PendingCalls for Endpoint {
    fn pending_calls(&self) -> u64 {
        let counters = self.stats().protocol;
        counters.calls_started - counters.calls_succeeded - counters.calls_failed
    }
}

#[test]
fn on_cancel__the_caller_has_gone() {
    for mut pair in both() {
        let mut other = client(EndpointConfig::default());
        let session = other.connect_wait(pair.server.address).unwrap();
        other.call(session, KEEP, b"x").then(|_, _, _| {}).unwrap();
        while pair.counts() != [1, 0, 0] {
            other.run_once();
        }
        drop(other);
        pair.wait_for_counts([1, 2, 1]);
    }
}

#[test]
fn refused__says_so() {
    for mut pair in both() {
        let failure = pair.fails(999, CallOptions::new());
        let end = (failure.status, failure.execution);
        assert_eq!(end, (Status::Unimplemented, Execution::Refused));
    }
}

/// The front server's handler: passes a request on, then calls again from the continuation.
fn pass_on(endpoint: &mut Endpoint, session: SessionId, method: u16) {
    endpoint.on(ECHO, move |_, cx, request| {
        let (responder, handled) = request.defer(cx);
        let first = move |_: &mut (), cx: &mut Context<'_>, reply: Reply| {
            if let Err(failure) = &reply.outcome {
                let text = format!("first: {}", failure.status);
                return responder.fail(cx, Status::Aborted, &text);
            }
            cx.call(session, method, b"")
                .timeout(LONG)
                .then_cancellable(move |_, cx, second| match second.message() {
                    Ok(left) => {
                        let both = [&reply.response[..], left].concat();
                        responder.reply(cx, &both);
                    }
                    Err(failure) => {
                        let text = format!("second: {}", failure.status);
                        responder.fail(cx, Status::Aborted, &text);
                    }
                })
                .unwrap();
        };
        cx.call(session, method, b"").then(first).unwrap();
        handled
    });
}

/// A client, and a front server with a call to a back server per request.
fn chain(config: EndpointConfig, method: u16) -> (Pair, Server) {
    let back = Server::start(config.clone(), "127.0.0.1:0", serve);
    let address = back.address;
    let front = Server::start(config.clone(), "127.0.0.1:0", move |endpoint| {
        let session = endpoint.connect_wait(address).unwrap();
        pass_on(endpoint, session, method);
    });
    let mut client = client(config);
    let session = client.connect_wait(front.address).unwrap();
    (Pair { client, session, server: front }, back)
}

#[test]
fn nested__calls_and_later_ones_inherit_the_time_left() {
    for config in [over(true, false), over(false, true)] {
        let (mut pair, _back) = chain(config, TIME_LEFT);
        let timeout = Duration::from_secs(500);
        let options = CallOptions::new().timeout(timeout);
        let reply = pair.client.call(pair.session, ECHO, b"x").options(options).wait().unwrap();
        let [first, second] =
            [0, 8].map(|at| u64::from_le_bytes(reply[at..at + 8].try_into().unwrap()));
        assert!(first <= timeout.as_nanos() as u64 && second <= first, "{first} {second}");
        // Without a deadline nothing is inherited, and the second call has only its own.
        let reply = pair.client.call(pair.session, ECHO, b"x").wait().unwrap();
        let second = u64::from_le_bytes(reply[..].try_into().expect("the first has no deadline"));
        assert!(second > timeout.as_nanos() as u64, "{second}");
    }
}

#[test]
fn nested__a_call_ends_with_the_deadline_of_its_request() {
    for config in [over(true, false), over(false, true)] {
        let (mut pair, back) = chain(config, KEEP);
        let (to_middle, to_back) = (pair.session, pair.client.connect_wait(back.address).unwrap());
        // On a busy machine the deadline may pass before the middle server's request leaves.
        let mut came = 0;
        while came == 0 {
            pair.session = to_middle;
            let failure = pair.fails(ECHO, CallOptions::new().timeout(SHORT));
            // The middle server may have had time to answer.
            match failure.status {
                Status::Aborted => assert_eq!(failure.message, "first: DEADLINE_EXCEEDED"),
                status => assert_eq!(status, Status::DeadlineExceeded),
            }
            pair.session = to_back;
            [came, ..] = pair.counts();
        }
        // The middle server passes the cancellation on to the last.
        while !matches!(pair.counts(), [came, gone, ended] if gone == 2 * came && ended == came) {}
    }
}

/// Delays its thread for longer than [`SHORT`].
fn hold_up() {
    let began = std::time::Instant::now();
    while began.elapsed() < 2 * SHORT {
        std::hint::spin_loop();
    }
}

#[test]
fn held_up__what_is_sent_is_what_is_left_then() {
    for mut pair in both() {
        let left = Rc::new(Cell::new(0));
        let (seen, session) = (Rc::clone(&left), pair.session);
        let first = move |_: &mut (), cx: &mut Context<'_>, _: Reply| {
            cx.call(session, TIME_LEFT, b"")
                .timeout(LONG)
                .then_cancellable(move |_, _, reply| {
                    let left = reply.message().unwrap().try_into().unwrap();
                    seen.set(u64::from_le_bytes(left));
                })
                .unwrap();
            hold_up();
        };
        pair.client.call(session, ECHO, b"x").then(first).unwrap();
        pair.client.run_until(|_, _| left.get() > 0);
        // Over shared memory the request leaves at once, with all its time; over UDP when the continuation has
        // returned.
        let is_shm = pair.client.core().agreed(session).unwrap().packet_bytes > 2_000;
        let most = if is_shm { LONG } else { LONG - SHORT };
        assert!(left.get() <= most.as_nanos() as u64, "{} ns are left", left.get());
    }
}

#[test]
fn held_up__a_call_made_late_in_a_turn_has_its_whole_time() {
    for mut pair in both() {
        let mut is_sent = || {
            let ended = Rc::new(Cell::new(None));
            let (end, session) = (Rc::clone(&ended), pair.session);
            let first = move |_: &mut (), cx: &mut Context<'_>, _: Reply| {
                hold_up();
                cx.call(session, KEEP, b"")
                    .timeout(SHORT)
                    .then_cancellable(move |_, _, reply| {
                        end.set(Some(reply.outcome.unwrap_err().execution));
                    })
                    .unwrap();
            };
            pair.client.call(session, ECHO, b"x").then(first).unwrap();
            pair.client.run_until(|_, _| ended.get().is_some());
            ended.get() == Some(Execution::MayHaveExecuted)
        };
        // A thread that loses its CPU for the whole time of the call sends it never.
        assert!((0..10).any(|_| is_sent()), "it was never sent");
    }
}

#[test]
fn held_up__a_response_that_waited_too_long_is_late() {
    for mut pair in both() {
        let ended = Rc::new(Cell::new(None));
        let end = Rc::clone(&ended);
        pair.client
            .call(pair.session, ECHO, b"x")
            .timeout(SHORT)
            .then_cancellable(move |_, _, reply| {
                end.set(Some(reply.outcome.map_err(|failure| failure.status)));
            })
            .unwrap();
        pair.client.run_once();
        // The response arrives meanwhile.
        hold_up();
        pair.client.run_until(|_, _| {
            let now = ended.take();
            let is_over = now.is_some();
            ended.set(now);
            is_over
        });
        assert_eq!(ended.take(), Some(Err(Status::DeadlineExceeded)));
    }
}

#[test]
fn held_up__a_request_that_waited_too_long_is_not_run() {
    const HOLD: u16 = 6;
    let set_up = |endpoint: &mut Endpoint| {
        serve(endpoint);
        endpoint.on(HOLD, |_, cx, request| {
            hold_up();
            request.reply(cx, b"")
        });
    };
    // Over UDP both arrive in a single datagram and burst.
    let server = Server::start(over(true, false), "127.0.0.1:0", set_up);
    let mut client = client(over(true, false));
    let session = client.connect_wait(server.address).unwrap();
    let ended = Rc::new(Cell::new(0));
    for (method, options) in [(HOLD, CallOptions::new()), (KEEP, CallOptions::new().timeout(SHORT))]
    {
        let ended = Rc::clone(&ended);
        client
            .call(session, method, b"")
            .options(options)
            .then_cancellable(move |_, _, _| ended.set(ended.get() + 1))
            .unwrap();
    }
    client.run_until(|_, _| ended.get() == 2);
    let mut pair = Pair { client, session, server };
    assert_eq!(pair.counts(), [0, 0, 0], "nothing was kept");
}

/// A server that stood still while requests came: the time before its poll counts, by the kernel's time stamps or by the length of
/// the pause. Twice in one life.
#[test]
fn deadline__counts_from_the_arrival_and_not_from_the_poll() {
    const PAUSE: Duration = Duration::from_millis(60);
    for (udp, shm) in [(true, false), (false, true)] {
        let nexus = nexus(Some("127.0.0.1:0".parse().unwrap()));
        let mut server = nexus.endpoint(over(udp, shm)).unwrap();
        let runs = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&runs);
        server.on(ECHO, move |_, cx, request| {
            seen.borrow_mut().push((request.data()[0], request.time_left(cx)));
            request.reply(cx, b"")
        });
        let mut client = client(over(udp, shm));
        let session = client.connect(nexus.local_addr().unwrap()).unwrap();
        open(&mut client, &mut server, session);
        let poll = Duration::from_micros(100);
        for round in 0..2 {
            let [late, in_time] = [0, 1].map(|number| 2 * round + number);
            for (number, timeout) in [(late, PAUSE / 2), (in_time, LONG)] {
                client.call(session, ECHO, [number]).timeout(timeout).then(|_, _, _| ()).unwrap();
            }
            client.run_once();
            std::thread::sleep(PAUSE);
            while runs.borrow().last().is_none_or(|(number, _)| *number != in_time) {
                server.run_for(poll, |_, _| false);
                client.run_for(poll, |_, _| false);
            }
            let (_, left) = runs.borrow().last().copied().unwrap();
            assert!(left.unwrap() <= LONG - PAUSE, "{left:?} left, over udp: {udp}");
        }
        let numbers: Vec<u8> = runs.borrow().iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 3], "the calls in time, over udp: {udp}");
        assert_eq!(server.core().counters().requests_expired, 2);
    }
}
