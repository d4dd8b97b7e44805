//! Responses that redirect a call to another server.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use petrel::client::{ClientConfig, Judge, Verdict};
use petrel::endpoint::EndpointConfig;
use petrel::{Client, Endpoint, Error, Execution, Status};

use super::seconds;
use crate::common::{Server, client, over};

/// Answers whether the server leads, and else names the leader.
const ASK: u16 = 20;

const LEADS: u8 = 0;
const FOLLOWS: u8 = 1;
const BUSY: u8 = 2;
const UNSURE: u8 = 3;

/// No server leads.
const NONE: usize = usize::MAX;

/// Servers with one leader.
struct Group {
    servers: Vec<Server>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    leader: AtomicUsize,
    /// Whether the followers name the leader.
    tells: bool,
    /// The leader's first responses, in order; then it answers.
    refusals: Mutex<Vec<u8>>,
    addresses: Mutex<Vec<SocketAddr>>,
    /// Requests received, by server.
    came: [AtomicU32; 4],
}

impl Group {
    fn start(count: usize, tells: bool) -> Self {
        let shared = Arc::new(Shared { tells, ..Shared::default() });
        let servers: Vec<_> = (0..count)
            .map(|own| {
                let shared = Arc::clone(&shared);
                Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
                    endpoint.on(ASK, move |_, cx, request| {
                        shared.came[own].fetch_add(1, Ordering::SeqCst);
                        request.reply(cx, &shared.answer(own))
                    });
                })
            })
            .collect();
        *shared.addresses.lock().unwrap() = servers.iter().map(|server| server.address).collect();
        Self { servers, shared }
    }

    fn address(&self, place: usize) -> SocketAddr {
        self.servers[place].address
    }

    fn lead(&self, place: usize) {
        self.shared.leader.store(place, Ordering::SeqCst);
    }

    /// Returns the requests received by each server since the last call.
    fn came(&self) -> Vec<u32> {
        let came = &self.shared.came[..self.servers.len()];
        came.iter().map(|came| came.swap(0, Ordering::SeqCst)).collect()
    }
}

impl Shared {
    fn answer(&self, own: usize) -> Vec<u8> {
        let leader = self.leader.load(Ordering::SeqCst);
        if leader == own {
            return vec![self.refusals.lock().unwrap().pop().unwrap_or(LEADS)];
        }
        let mut answer = vec![FOLLOWS];
        if let Some(address) = self.addresses.lock().unwrap().get(leader).filter(|_| self.tells) {
            answer.extend(address.to_string().as_bytes());
        }
        answer
    }
}

fn judge(_: u16, answer: &[u8]) -> Verdict {
    let failed = |execution| {
        Verdict::Fail(Error::new(Status::Unavailable, "as asked for").with_execution(execution))
    };
    match answer {
        [FOLLOWS, leader @ ..] => {
            let address = std::str::from_utf8(leader).ok().and_then(|text| text.parse().ok());
            Verdict::Redirect(address.map(|address: SocketAddr| address.into()))
        }
        [BUSY, ..] => failed(Execution::Refused),
        [UNSURE, ..] => failed(Execution::MayHaveExecuted),
        _ => Verdict::Leads,
    }
}

fn config() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.judge = Some(Judge::new(judge));
    config
}

/// Returns a client of some of the servers, with a session to each.
fn of(endpoint: &mut Endpoint, group: &Group, places: &[usize], config: ClientConfig) -> Client {
    let service = endpoint.client(places.iter().map(|place| group.address(*place)), config);
    let count = places.len() as u64;
    endpoint.run_until(|_, _| service.stats().servers_ready == count);
    service
}

fn ask(endpoint: &mut Endpoint, service: &Client) -> Result<(), Error> {
    let answer = endpoint.block_on(service.call(ASK, "").options(seconds(60)))?;
    assert_eq!(answer, [LEADS]);
    Ok(())
}

#[test]
fn redirects__are_followed_and_the_leader_is_asked_first_from_then_on() {
    let group = Group::start(3, true);
    let mut endpoint = client(EndpointConfig::default());
    let mut config = config();
    // A redirect is not an attempt, and takes nothing from the budget.
    config.attempts_max = 1;
    config.retry_budget.saved_max = 0;
    let service = of(&mut endpoint, &group, &[0, 1, 2], config);
    for leader in [2, 0, 1] {
        group.lead(leader);
        ask(&mut endpoint, &service).unwrap();
        assert!(group.came().iter().sum::<u32>() <= 2, "each says which server leads");
        for _ in 0..5 {
            ask(&mut endpoint, &service).unwrap();
        }
        let mut expected = [0; 3];
        expected[leader] = 5;
        assert_eq!(group.came(), expected);
    }
    let stats = service.stats();
    assert_eq!((stats.calls, stats.retries, stats.budget_exhausted), (18, 0, 0));
    assert!((2..=3).contains(&stats.redirects), "{stats:?}");
}

#[test]
fn redirects__to_a_server_that_was_not_named_before() {
    let group = Group::start(2, true);
    group.lead(1);
    let mut endpoint = client(EndpointConfig::default());
    let service = of(&mut endpoint, &group, &[0], config());
    ask(&mut endpoint, &service).unwrap();
    assert_eq!(service.stats().servers_ready, 2);
    // It goes when the program sets the servers, and comes back with the next redirect.
    service.set_targets([group.address(0)]).unwrap();
    endpoint.run_until(|_, _| service.stats().servers_ready == 1);
    ask(&mut endpoint, &service).unwrap();
    assert_eq!(service.stats().sessions_opened, 3);
}

#[test]
fn redirects__without_a_name_try_each_server_in_turn() {
    let group = Group::start(4, false);
    let mut endpoint = client(EndpointConfig::default());
    let service = of(&mut endpoint, &group, &[0, 1, 2, 3], config());
    for leader in [3, 1, 2, 0] {
        group.lead(leader);
        ask(&mut endpoint, &service).unwrap();
        let came = group.came();
        assert!(came.iter().all(|came| *came <= 1), "{came:?}");
        assert_eq!(came[leader], 1);
    }
}

#[test]
fn redirects__while_no_server_leads_pause_and_the_end_says_why() {
    let group = Group::start(3, true);
    group.lead(NONE);
    let mut endpoint = client(EndpointConfig::default());
    let mut config = config();
    // The first pause is at least 150 s, so that the call's timeout ends the call in that pause.
    config.retry_backoff.first = Duration::from_secs(300);
    config.retry_backoff.max = Duration::from_secs(300);
    let service = of(&mut endpoint, &group, &[0, 1, 2], config);
    let call = service.call(ASK, "").timeout(Duration::from_secs(2));
    let error = endpoint.block_on(call).unwrap_err();
    assert_eq!((error.status, error.execution), (Status::DeadlineExceeded, Execution::NotSent));
    assert!(error.message.contains("no leader: 3 of 3 servers can be called"), "{error}");
    assert!(error.message.contains("it does not lead"), "{error}");
    assert_eq!(group.came().iter().sum::<u32>(), 4, "requests before the first pause");
}

#[test]
fn redirects__pauses_double_while_no_server_leads() {
    let group = Group::start(3, true);
    group.lead(NONE);
    let mut endpoint = client(EndpointConfig::default());
    let mut config = config();
    config.retry_backoff.first = Duration::from_millis(200);
    config.retry_backoff.max = Duration::from_secs(10);
    let service = of(&mut endpoint, &group, &[0, 1, 2], config);
    let call = service.call(ASK, "").timeout(Duration::from_secs(2));
    let error = endpoint.block_on(call).unwrap_err();
    assert_eq!(error.status, Status::DeadlineExceeded);
    // Four requests between pauses, which are drawn evenly from 0 to a bound that doubles from 200 ms to 10 s: nine pauses in 2 s have a
    // probability of 10⁻⁶. With a bound that stays, 80 requests come.
    let came: u32 = group.came().iter().sum();
    assert!((4..=36).contains(&came), "{came} requests in 2 s");
}

#[test]
fn redirects__a_call_that_pauses_goes_on_when_another_finds_the_leader() {
    let group = Group::start(2, true);
    group.lead(NONE);
    let mut endpoint = client(EndpointConfig::default());
    let mut config = config();
    // Far longer than the test.
    config.retry_backoff.first = Duration::from_secs(3_000);
    config.retry_backoff.max = Duration::from_secs(3_000);
    let service = of(&mut endpoint, &group, &[0, 1], config);
    let paused = service.call(ASK, "").options(seconds(600)).started();
    endpoint.run_until(|_, _| service.stats().redirects == 3);
    group.lead(1);
    ask(&mut endpoint, &service).unwrap();
    assert_eq!(endpoint.block_on(paused).unwrap(), [LEADS]);
}

#[test]
fn redirects__calls_with_a_key_have_servers_of_their_own() {
    let group = Group::start(3, true);
    group.lead(1);
    let mut endpoint = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    config.judge = Some(Judge::new(|_, _| Verdict::Leads));
    let service = of(&mut endpoint, &group, &[0, 1, 2], config);
    endpoint.block_on(async {
        for key in 0..30_u8 {
            service.call(ASK, "").options(seconds(60)).key([key]).await.unwrap();
        }
    });
    let came = group.came();
    assert!(came.iter().all(|came| *came > 0), "{came:?}");
    for _ in 0..6 {
        endpoint.block_on(service.call(ASK, "").options(seconds(60))).unwrap();
    }
    let mut came = group.came();
    came.sort_unstable();
    assert_eq!(came, [0, 0, 6], "the first that answers leads, whatever answered calls with a key");
}

#[test]
fn fail__is_as_good_as_a_failure_of_the_call() {
    let group = Group::start(1, true);
    let mut endpoint = client(EndpointConfig::default());
    let service = of(&mut endpoint, &group, &[0], config());
    let refuse = |refusals: &[u8]| *group.shared.refusals.lock().unwrap() = refusals.to_vec();
    refuse(&[BUSY, BUSY]);
    ask(&mut endpoint, &service).unwrap();
    assert_eq!(service.stats().attempts_refused, 2);
    refuse(&[UNSURE]);
    let error = ask(&mut endpoint, &service).unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::MayHaveExecuted));
    assert_eq!(error.message, "as asked for");
    refuse(&[UNSURE]);
    let twice = service.call(ASK, "").options(seconds(60)).idempotent();
    assert_eq!(endpoint.block_on(twice).unwrap(), [LEADS]);
}

/// The server's load shows in its own messages then, too.
#[test]
fn fail__for_overload_lowers_the_number_of_outstanding_calls() {
    const HOLD: u16 = 21;
    const RELEASE: u16 = 22;
    let held_at_once = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&held_at_once);
    let server = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        let (refused, held) = (Cell::new(0), Rc::new(RefCell::new(Vec::new())));
        let released = Rc::clone(&held);
        endpoint.on(HOLD, move |_, cx, request| {
            if refused.replace(refused.get() + 1) < 2 {
                return request.reply(cx, &[BUSY]);
            }
            let (responder, handled) = request.defer(cx);
            held.borrow_mut().push(responder);
            handled
        });
        endpoint.on(RELEASE, move |_, cx, request| {
            seen.lock().unwrap().push(released.borrow().len());
            for responder in released.borrow_mut().drain(..) {
                responder.reply(cx, &[LEADS]);
            }
            request.reply(cx, b"")
        });
    });
    let mut endpoint = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    config.judge = Some(Judge::new(|_, answer| match answer {
        [BUSY] => {
            let error = Error::new(Status::ResourceExhausted, "full");
            Verdict::Fail(error.with_execution(Execution::Refused))
        }
        _ => Verdict::Accept,
    }));
    config.attempts_max = 1;
    let mut limit = config.concurrency.unwrap();
    (limit.initial, limit.max) = (2, 2);
    config.concurrency = Some(limit);
    let service = endpoint.client([server.address], config);
    let other = endpoint.client([server.address], ClientConfig::default());
    endpoint.run_until(|_, _| service.stats().servers_ready + other.stats().servers_ready == 2);
    let hold = || service.call(HOLD, "").options(seconds(60)).started();
    endpoint.block_on(async {
        let both = [hold(), hold()];
        for refused in both {
            assert_eq!(refused.await.unwrap_err().status, Status::ResourceExhausted);
        }
        let both = [hold(), hold()];
        for held in both {
            other.call(RELEASE, "").options(seconds(60)).await.unwrap();
            assert_eq!(held.await.unwrap(), [LEADS]);
        }
    });
    assert_eq!(*held_at_once.lock().unwrap(), [1, 1]);
}

#[test]
fn judge__sees_each_response_once() {
    let group = Group::start(3, true);
    group.lead(2);
    group.shared.refusals.lock().unwrap().extend([BUSY, BUSY]);
    let judged = Arc::new(AtomicU32::new(0));
    let mut endpoint = client(EndpointConfig::default());
    let mut config = config();
    let counted = Arc::clone(&judged);
    config.judge = Some(Judge::new(move |method, answer| {
        counted.fetch_add(1, Ordering::SeqCst);
        judge(method, answer)
    }));
    let service = of(&mut endpoint, &group, &[0, 1, 2], config);
    for _ in 0..3 {
        ask(&mut endpoint, &service).unwrap();
    }
    let came: u32 = group.came().iter().sum();
    assert!(came >= 5, "two refusals and three answers: {came}");
    assert_eq!(judged.load(Ordering::SeqCst), came);
}
