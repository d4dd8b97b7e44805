//! The attempts of a service's calls, and their servers.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use petrel::client::{ClientConfig, Response, Target};
use petrel::endpoint::{CallOptions, EndpointConfig};
use petrel::{Client, Endpoint, Execution, Status};

use super::{FAIL, NAME, NEVER, seconds, server, to_both};
use crate::common::{ECHO, Server, client, keep, keep_with, over, run_until_seen};

/// Follows the server's script by the request's place in the order of arrival.
const SCRIPT: u16 = 5;

/// A handler's reaction to a request.
#[derive(Clone, Copy)]
enum Step {
    /// Keeps the request, and never answers.
    Keep,
    /// Refuses the request, unexecuted.
    Refuse(Status),
    /// Keeps the server busy until this number of requests has reached all servers; then refuses the request, or
    /// answers on the last server.
    WaitFor(u32),
    /// Answers with the server's number.
    Answer,
}

/// Servers with a common script: every request takes the next step, and the last step repeats.
struct Scripted {
    servers: Vec<Server>,
    came: Arc<AtomicU32>,
    /// The server of each request, in the order of arrival.
    places: Arc<std::sync::Mutex<Vec<u8>>>,
    /// Calls of [`NEVER`] that the last server keeps.
    kept: Arc<AtomicU32>,
}

impl Scripted {
    fn start(count: u8, script: &'static [Step]) -> Self {
        let came = Arc::new(AtomicU32::new(0));
        let places = Arc::new(std::sync::Mutex::new(Vec::new()));
        let kept = Arc::new(AtomicU32::new(0));
        let servers = (0..count)
            .map(|number| {
                let (came, places) = (Arc::clone(&came), Arc::clone(&places));
                let kept = (number + 1 == count).then(|| Arc::clone(&kept));
                Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
                    run_script(endpoint, (number, kept.is_some()), script, came, places);
                    if let Some(kept) = kept {
                        keep_all(endpoint, kept);
                    }
                })
            })
            .collect();
        Self { servers, came, places, kept }
    }

    fn came(&self) -> u32 {
        self.came.load(Ordering::SeqCst)
    }

    fn kept(&self) -> u32 {
        self.kept.load(Ordering::SeqCst)
    }

    fn places(&self) -> Vec<u8> {
        self.places.lock().unwrap().clone()
    }

    /// Returns a client connected to all of them.
    fn service(&self, client: &mut Endpoint, config: ClientConfig) -> Client {
        let handle = client.handle();
        let service = client.client(self.servers.iter().map(|server| server.address), config);
        client.block_on(async {
            while service.stats().servers_ready < self.servers.len() as u64 {
                handle.sleep(Duration::from_millis(1)).await;
            }
        });
        service
    }
}

fn run_script(
    endpoint: &mut Endpoint,
    (number, is_last): (u8, bool),
    script: &'static [Step],
    came: Arc<AtomicU32>,
    places: Arc<std::sync::Mutex<Vec<u8>>>,
) {
    let kept = std::cell::RefCell::new(Vec::new());
    endpoint.on(SCRIPT, move |_, cx, request| {
        places.lock().unwrap().push(number);
        let place = came.fetch_add(1, Ordering::SeqCst) as usize;
        match script[place.min(script.len() - 1)] {
            Step::Keep => {
                let (responder, handled) = request.defer(cx);
                kept.borrow_mut().push(responder);
                handled
            }
            Step::Refuse(status) => request.refuse(cx, status, "as the script says"),
            Step::WaitFor(count) => {
                while came.load(Ordering::SeqCst) < count {
                    std::thread::yield_now();
                }
                match is_last {
                    true => request.reply(cx, &[number]),
                    false => request.refuse(cx, Status::Unavailable, "as the script says"),
                }
            }
            Step::Answer => request.reply(cx, &[number]),
        }
    });
}

/// Registers a method whose requests stay unanswered.
fn keep_all(endpoint: &mut Endpoint, count: Arc<AtomicU32>) {
    keep_with(endpoint, NEVER, move |_, _| _ = count.fetch_add(1, Ordering::SeqCst));
}

/// Ends the first server while it has a call. Returns the outcome, the server's number, and the counts of retries and of requests.
fn after_a_loss(script: &'static [Step]) -> (Result<Response, petrel::Error>, u8, u64, u32) {
    let mut scripted = Scripted::start(2, script);
    let mut client = client(EndpointConfig::default());
    let service = scripted.service(&mut client, ClientConfig::default());
    let call = service.call(SCRIPT, b"").options(seconds(60).idempotent()).started();
    run_until_seen(&mut client, || scripted.came() == 1);
    let lost = scripted.places()[0];
    scripted.servers[usize::from(lost)].end();
    let reply = client.block_on(call);
    (reply, lost, service.stats().retries, scripted.came())
}

/// The second attempt was refused: a third cannot do more harm than the second.
#[test]
fn a_call_that_was_lost_and_then_refused_is_tried_again() {
    const SCRIPT_STEPS: &[Step] =
        &[Step::Keep, Step::Refuse(Status::ResourceExhausted), Step::Answer];
    let (reply, lost, retries, came) = after_a_loss(SCRIPT_STEPS);
    assert_eq!(&reply.unwrap()[..], [1 - lost]);
    assert_eq!((retries, came), (2, 3));
}

/// The first attempt may have been executed, whatever the outcome of the last.
#[test]
fn a_call_that_was_lost_and_then_refused_to_the_end_may_have_been_executed() {
    const SCRIPT_STEPS: &[Step] = &[Step::Keep, Step::Refuse(Status::ResourceExhausted)];
    let (reply, _, _, came) = after_a_loss(SCRIPT_STEPS);
    let failure = reply.unwrap_err();
    let why = (failure.status, failure.execution);
    assert_eq!(why, (Status::ResourceExhausted, Execution::MayHaveExecuted), "{failure}");
    assert_eq!(came, 4, "all the attempts that the configuration allows");
}

/// No attempt was executed, and so neither was the call.
#[test]
fn a_call_that_is_refused_to_the_end_was_not_executed() {
    let scripted = Scripted::start(2, &[Step::Refuse(Status::ResourceExhausted)]);
    let mut client = client(EndpointConfig::default());
    let service = scripted.service(&mut client, ClientConfig::default());
    let options = seconds(60).idempotent();
    for options in [options, options.hedge_after(Duration::from_secs(30))] {
        let came = scripted.came();
        let failure = client.block_on(service.call(SCRIPT, b"").options(options)).unwrap_err();
        let why = (failure.status, failure.execution);
        assert_eq!(why, (Status::ResourceExhausted, Execution::Refused), "{failure}");
        assert_eq!(scripted.came() - came, 4, "all the attempts that the configuration allows");
    }
}

/// The clients of a restarted server return all at once, and the server refuses some of them.
#[test]
fn a_restarted_server_that_refuses_its_returning_clients_loses_no_call() {
    const CALLS: u32 = 8;
    const BUSY: &[Step] = &[
        Step::Refuse(Status::ResourceExhausted),
        Step::Refuse(Status::ResourceExhausted),
        Step::Answer,
    ];
    let (mut first, counts) = server("first");
    let address = first.address;
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    // One call may get both refusals.
    config.attempts_max = 8;
    let service = client.client([address], config);
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            service.call(NEVER, b"").options(seconds(60).idempotent().wait_for_ready()).started()
        })
        .collect();
    run_until_seen(&mut client, || counts.came.load(Ordering::SeqCst) == CALLS);
    first.end();
    let came = Arc::new(AtomicU32::new(0));
    let _second = Server::start(over(true, true), &address.to_string(), move |endpoint| {
        endpoint.on(NEVER, move |_, cx, request| {
            let place = came.fetch_add(1, Ordering::SeqCst) as usize;
            match BUSY[place.min(BUSY.len() - 1)] {
                Step::Refuse(status) => request.refuse(cx, status, "busy"),
                _ => request.reply(cx, b"second"),
            }
        });
    });
    for call in calls {
        assert_eq!(&client.block_on(call).unwrap()[..], b"second");
    }
    // At least as many as calls lost with the first server and refusals.
    assert!(service.stats().retries >= u64::from(CALLS) + 2, "{:?}", service.stats());
}

/// Both attempts of a hedged call were refused: the third goes to the server without an attempt.
#[test]
fn the_retry_of_a_hedged_call_goes_to_a_server_that_had_no_attempt() {
    const SCRIPT_STEPS: &[Step] = &[Step::WaitFor(2)];
    let scripted = Scripted::start(3, SCRIPT_STEPS);
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    // A third attempt that takes long is not hedged.
    config.attempts_max = 3;
    let service = scripted.service(&mut client, config);
    let kept = occupy(&mut client, &service, || scripted.kept());
    let options = seconds(60).hedge_after(Duration::from_secs(1));
    let reply = client.block_on(service.call(SCRIPT, b"").options(options)).unwrap();
    let mut places = scripted.places();
    places.sort_unstable();
    assert_eq!((&places[..], &reply[..]), (&[0, 1, 2][..], &[2][..]));
    drop(kept);
}

/// By its weight the hanging server always counts as less busy.
#[test]
fn a_hedge_goes_to_another_server_though_the_one_that_hangs_is_less_busy() {
    let hangs = Server::start(over(true, true), "127.0.0.1:0", |endpoint| keep(endpoint, NAME));
    let servers = [(hangs, Arc::default()), server("answers")];
    let mut client = client(EndpointConfig::default());
    // On a busy machine the hedge itself may take long enough to be hedged, were there a third attempt.
    let mut config = ClientConfig::default();
    config.attempts_max = 2;
    let service = to_both(&mut client, &servers, config);
    let targets = servers.each_ref().map(|(server, _)| Target::from(server.address));
    service.set_targets([targets[0].weighing(1_000), targets[1]]).unwrap();
    client.run_once();
    let options = seconds(60).hedge_after(Duration::from_millis(1));
    let reply = client.block_on(service.call(NAME, b"").options(options)).unwrap();
    assert_eq!(&reply[..], b"answers");
    assert_eq!(service.stats().hedges, 1);
}

/// Starts calls that one server keeps, unknown to the others: in the end only this server is busy.
fn occupy(
    client: &mut Endpoint,
    service: &Client,
    kept: impl Fn() -> u32,
) -> Vec<petrel::task::Task<bool>> {
    const CALLS: u32 = 12;
    let (handle, ended) = (client.handle(), Rc::new(Cell::new(0)));
    let call = || {
        let (service, ended) = (service.clone(), Rc::clone(&ended));
        handle.spawn(async move {
            let is_ok = service.call(NEVER, b"").options(seconds(60)).await.is_ok();
            ended.set(ended.get() + 1);
            is_ok
        })
    };
    let calls = (0..CALLS).map(|_| call()).collect();
    run_until_seen(client, || kept() + ended.get() == CALLS);
    assert!(kept() >= 2, "the calls go to all servers");
    calls
}

/// The answering server is busy with calls that never end.
#[test]
fn a_retry_goes_to_another_server_though_the_one_that_failed_is_less_busy() {
    let refuses = Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
        endpoint.on(NAME, |_, cx, request| request.refuse(cx, Status::Unavailable, "not now"));
    });
    let (answers, counts) = server("answers");
    let servers = [(refuses, Arc::default()), (answers, counts)];
    let mut client = client(EndpointConfig::default());
    let service = to_both(&mut client, &servers, ClientConfig::default());
    let kept = occupy(&mut client, &service, || servers[1].1.came.load(Ordering::SeqCst));
    for _ in 0..4 {
        let reply = client.block_on(service.call(NAME, b"").options(seconds(60))).unwrap();
        assert_eq!(&reply[..], b"answers");
    }
    // Each call began at the idle server.
    assert_eq!(service.stats().retries, 4);
    drop(kept);
}

/// Failures unrelated to the server's load do not lower its limit of calls.
#[test]
fn failures_that_are_answers_do_not_lower_the_limit_of_calls() {
    let (server, counts) = server("only");
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    let limit = 8;
    config.concurrency.as_mut().expect("a limit by default").initial = limit;
    let service = client.client([server.address], config);
    let code = [Status::NotFound.code()];
    for _ in 0..20 {
        let call = service.call(FAIL, code).options(seconds(60).wait_for_ready());
        assert_eq!(client.block_on(call).unwrap_err().status, Status::NotFound);
    }
    let came = counts.came.load(Ordering::SeqCst);
    let calls: Vec<_> =
        (0..limit).map(|_| service.call(NEVER, b"").options(seconds(60)).started()).collect();
    let all_came = |_: &mut (), _: &mut petrel::Context<'_>| {
        counts.came.load(Ordering::SeqCst) - came == limit
    };
    assert!(client.run_for(Duration::from_secs(20), all_came), "some calls were held back");
    drop(calls);
}

/// A server that refuses for overload gets fewer calls: the counterpart of the test above.
#[test]
fn refusals_of_a_busy_server_lower_the_limit_of_calls() {
    const SCRIPT_STEPS: &[Step] = &[Step::Refuse(Status::ResourceExhausted), Step::Keep];
    let scripted = Scripted::start(1, SCRIPT_STEPS);
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    config.attempts_max = 1;
    let limit = 8;
    config.concurrency.as_mut().expect("a limit by default").initial = limit;
    let service = scripted.service(&mut client, config);
    client.block_on(service.call(SCRIPT, b"").options(seconds(60))).unwrap_err();
    let calls: Vec<_> =
        (0..limit).map(|_| service.call(SCRIPT, b"").options(seconds(60)).started()).collect();
    run_until_seen(&mut client, || scripted.came() > limit / 2);
    // A request of the same session arrives after earlier ones.
    let session = client.connect_wait(scripted.servers[0].address).unwrap();
    client.call(session, super::ECHO, b"").wait().unwrap();
    assert_eq!(scripted.came(), 1 + limit / 2);
    drop(calls);
}

/// Successful calls earn retries for failed ones.
#[test]
fn a_retry_budget_that_is_used_up_is_filled_by_calls_that_succeed() {
    let (server, _) = server("only");
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    config.retry_backoff.max = Duration::from_micros(10);
    config.retry_budget.reserve_per_s = 0;
    config.retry_budget.saved_max = 3;
    let earned = 1_000 / config.retry_budget.per_thousand;
    let service = client.client([server.address], config);
    let options = seconds(60).idempotent().wait_for_ready();
    let code = [Status::Unavailable.code()];
    let fail = |client: &mut Endpoint| {
        let before = service.stats().retries;
        client.block_on(service.call(FAIL, code).options(options)).unwrap_err();
        service.stats().retries - before
    };
    assert_eq!((fail(&mut client), fail(&mut client)), (3, 0));
    for _ in 0..2 * earned {
        client.block_on(service.call(NAME, b"").options(options)).unwrap();
    }
    assert_eq!((fail(&mut client), fail(&mut client)), (2, 0));
}

/// A call held back by the limit goes on when another call ends, without any other event.
#[test]
fn calls__beyond_the_limit_begin_when_others_end() {
    let (server, _) = server("only");
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    let limit = config.concurrency.as_mut().expect("a limit by default");
    (limit.initial, limit.max) = (1, 1);
    let service = client.client([server.address], config);
    let calls: Vec<_> = (0..5)
        .map(|_| service.call(NAME, b"").options(seconds(20).wait_for_ready()).started())
        .collect();
    for call in calls {
        client.block_on(call).unwrap();
    }
}

/// Counts the polls of a crowd that waits for a server: a few per call, however many calls.
#[test]
fn calls_that_wait_for_leave_are_not_woken_for_nothing() {
    const CALLS: u64 = 1_000;
    let (server, _) = server("only");
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    let limit = config.concurrency.as_mut().expect("a limit by default");
    (limit.initial, limit.max) = (4, 4);
    let service = client.client([server.address], config);
    let polls = Rc::new(Cell::new(0));
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let (service, polls) = (service.clone(), Rc::clone(&polls));
            client.handle().spawn(async move {
                let options = seconds(60).wait_for_ready();
                let mut call = pin!(service.call(ECHO, b"").options(options));
                poll_fn(|cx| {
                    polls.set(polls.get() + 1);
                    call.as_mut().poll(cx)
                })
                .await
            })
        })
        .collect();
    client.block_on(async {
        for call in calls {
            call.await.unwrap();
        }
    });
    // Once to begin, and once each for the session, the permit, and the answer; and a few in vain.
    assert!(polls.get() <= 6 * CALLS, "{} polls of {CALLS} calls", polls.get());
}

/// A server that hangs keeps its sessions: only the timeout of an attempt shows it.
#[test]
fn a_call_at_a_server_that_hangs_is_answered_by_another() {
    let (hangs, answers) = (Scripted::start(1, &[Step::Keep]), Scripted::start(1, &[Step::Answer]));
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    config.attempt_timeout = Some(Duration::from_millis(200));
    config.attempts_max = u32::MAX;
    config.retry_budget.reserve_per_s = u32::MAX;
    let service = client.client([&hangs, &answers].map(|one| one.servers[0].address), config);
    client.run_until(|_, _| service.stats().servers_ready == 2);
    // The calls take turns. A request that the server meets late is not run.
    while hangs.came() == 0 {
        client.block_on(service.call(SCRIPT, b"").options(seconds(60).idempotent())).unwrap();
    }
    assert!(service.stats().retries > 0);
}

/// A call that must not be executed twice has all of its time for its only attempt.
#[test]
fn a_call_that_is_not_idempotent_has_one_attempt_whatever_the_timeout_of_an_attempt() {
    let scripted = Scripted::start(1, &[Step::Keep]);
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    config.attempt_timeout = Some(Duration::from_micros(1));
    let service = scripted.service(&mut client, config);
    let options = CallOptions::new().timeout(Duration::from_millis(500));
    let failure = client.block_on(service.call(SCRIPT, b"").options(options)).unwrap_err();
    let why = (failure.status, failure.execution);
    assert_eq!(why, (Status::DeadlineExceeded, Execution::MayHaveExecuted), "{failure}");
    assert_eq!(service.stats().retries, 0);
}
