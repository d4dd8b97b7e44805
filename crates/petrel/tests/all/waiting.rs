//! Calls with a wait for an event, thousands by a client with default settings: no further call waits behind the thousands.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use petrel::endpoint::{AllowedTransports, CallOptions, Health};
use petrel::server::RunningServer;
use petrel::workers::WorkerRequest;
use petrel::{Client, Endpoint, Server, Status};

const ECHO: u16 = 1;
const WATCH: u16 = 10;
const ACQUIRE: u16 = 11;
const RELEASE: u16 = 12;

/// A session has 2 047 slots for calls.
const POLLS: u32 = 2_000;

/// Far longer than the test, unless a call waits behind others.
const HANG_GUARD: Duration = Duration::from_secs(30);

fn soon() -> CallOptions {
    CallOptions::new().timeout(HANG_GUARD)
}

/// Starts a server whose clients use one transport.
fn start(udp: bool, set_up: impl Fn(&mut Endpoint) + Clone + Send + 'static) -> RunningServer {
    let server = Server::bind("127.0.0.1:0").transports(AllowedTransports {
        udp,
        shm: !udp,
        stream: false,
        verbs: false,
    });
    server.serve(|_| (), set_up).start().unwrap()
}

/// A server that passes requests of method WATCH to the test.
fn watched(udp: bool) -> (RunningServer, mpsc::Receiver<WorkerRequest>) {
    let (keep, kept) = mpsc::channel();
    let server = start(udp, move |endpoint| {
        let keep = keep.clone();
        crate::common::echo(endpoint, ECHO);
        crate::common::hold(endpoint, WATCH, keep);
    });
    (server, kept)
}

/// The former limit was eight, and health queries were not answered either.
#[test]
fn two_thousand_long_polls__ping_and_health_are_answered_meanwhile() {
    for udp in [true, false] {
        let (server, kept) = watched(udp);
        let client = &Client::connect_wait(server.local_addr()).unwrap();
        let start =
            |number: u32| client.call(WATCH, number.to_le_bytes()).options(soon()).started();
        let mut polls: Vec<_> = (0..POLLS).map(start).collect();
        let take = |_| kept.recv_timeout(HANG_GUARD).expect("a poll waits behind others");
        let mut requests: Vec<WorkerRequest> = (0..POLLS).map(take).collect();

        for number in 0..100_u64 {
            let pong = client.call(ECHO, number.to_le_bytes()).options(soon()).wait();
            assert_eq!(pong.unwrap(), number.to_le_bytes());
        }
        assert_eq!(client.health(None).timeout(HANG_GUARD).wait().unwrap(), Health::Serving);

        // Half of them are cancelled, and the server is notified; the rest are answered.
        let answered = polls.split_off(1_000);
        drop(polls);
        for request in &mut requests {
            let number = u32::from_le_bytes(request.data().try_into().unwrap());
            if number < 1_000 {
                while !request.is_cancelled() {
                    thread::yield_now();
                }
            }
        }
        for mut request in requests {
            let message = request.take_data();
            request.reply_vec(message);
        }
        for (number, poll) in (1_000_u32..).zip(answered) {
            assert_eq!(poll.wait().unwrap(), number.to_le_bytes());
        }
        assert_eq!(client.call(ECHO, b"after").options(soon()).wait().unwrap(), b"after");
    }
}

/// A lock, and its waiting requests. A request is answered when it gets the lock.
#[derive(Default)]
struct Lock {
    is_taken: bool,
    waiting: VecDeque<WorkerRequest>,
}

impl Lock {
    fn acquire(&mut self, request: WorkerRequest) {
        self.waiting.push_back(request);
        self.grant();
    }

    fn release(&mut self) {
        assert!(self.is_taken, "released by who has it");
        self.is_taken = false;
        self.grant();
    }

    fn grant(&mut self) {
        if !self.is_taken
            && let Some(request) = self.waiting.pop_front()
        {
            self.is_taken = true;
            request.reply_vec(Vec::new());
        }
    }
}

/// A typical lock service: many tasks with one client, whose requests for the lock wait at the server. With eight
/// waiting requests, the RELEASE was stuck, and the lock was never free again.
#[test]
fn lock_service__releases_pass_the_requests_that_wait() {
    const TASKS: usize = 90;
    const TURNS: usize = 5;
    let lock = Arc::new(Mutex::new(Lock::default()));
    let server = start(false, move |endpoint| {
        let (acquiring, releasing) = (Arc::clone(&lock), Arc::clone(&lock));
        endpoint.on(ACQUIRE, move |_, cx, request| {
            let (request, handled) = request.detach(cx);
            acquiring.lock().unwrap().acquire(request);
            handled
        });
        endpoint.on(RELEASE, move |_, cx, request| {
            let (request, handled) = request.detach(cx);
            releasing.lock().unwrap().release();
            request.reply_vec(Vec::new());
            handled
        });
    });
    let client = Client::connect_wait(server.local_addr()).unwrap();
    let holders = Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..TASKS {
            let (client, holders) = (client.clone(), &holders);
            scope.spawn(move || {
                for _ in 0..TURNS {
                    client.call(ACQUIRE, []).options(soon()).wait().expect("the lock is granted");
                    *holders.try_lock().expect("nobody else has the lock") += 1;
                    client.call(RELEASE, []).options(soon()).wait().expect("the lock is released");
                }
            });
        }
    });
    assert_eq!(*holders.lock().unwrap(), TASKS * TURNS);
}

/// A refusal sets a limit. Calls that wait for an event hold all of it, and a further call still gets through.
#[test]
fn after_a_refusal_a_call_passes_the_calls_that_wait() {
    const REFUSE: u16 = 13;
    let (keep, kept) = mpsc::channel();
    let server = start(false, move |endpoint| {
        let keep = keep.clone();
        crate::common::hold(endpoint, WATCH, keep);
        endpoint.on(REFUSE, |_, cx, request| request.refuse(cx, Status::ResourceExhausted, "full"));
        endpoint.on(ECHO, |_, cx, request| request.reply(cx, b"echo"));
    });
    let client = Client::connect_wait(server.local_addr()).unwrap();
    let error = client.call(REFUSE, "").timeout(Duration::from_secs(60)).wait().unwrap_err();
    assert_eq!(error.status, Status::ResourceExhausted);
    let polls: Vec<_> = (0..20).map(|_| client.call(WATCH, "").options(soon()).started()).collect();
    let requests: Vec<_> = polls.iter().map(|_| kept.recv_timeout(HANG_GUARD).unwrap()).collect();
    assert_eq!(client.call(ECHO, "").options(soon()).wait().unwrap(), b"echo");
    assert_eq!(client.health(None).timeout(HANG_GUARD).wait().unwrap(), Health::Serving);
    drop(requests);
    for poll in polls {
        assert_eq!(poll.wait().unwrap_err().status, Status::Internal);
    }
}
