//! Calls that wait for an event, thousands on one session with default settings, from one client: no further call waits
//! behind them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::remote::Caller;
use crate::common::{ECHO, Server, over};
use petrel::endpoint::{CallOptions, HEALTH_METHOD, Health};
use petrel::workers::WorkerRequest;

const WATCH: u16 = 10;
const ACQUIRE: u16 = 11;
const RELEASE: u16 = 12;

/// Far longer than the test, unless a call waits behind others.
const HANG_GUARD: Duration = Duration::from_secs(30);

fn soon() -> CallOptions {
    CallOptions::new().timeout(HANG_GUARD)
}

/// A server that passes requests of method WATCH to the test.
fn watched(udp: bool) -> (Server, mpsc::Receiver<WorkerRequest>) {
    let (keep, kept) = mpsc::channel();
    let server = Server::start(over(udp, !udp), "127.0.0.1:0", move |endpoint| {
        endpoint.on(WATCH, move |_, cx, request| {
            let (request, handled) = request.detach(cx);
            // The test may have ended.
            let _ = keep.send(request);
            handled
        });
    });
    (server, kept)
}

/// The former limit was eight, and health queries were not answered either.
#[test]
fn two_thousand_long_polls__ping_and_health_are_answered_meanwhile() {
    for udp in [true, false] {
        let (server, kept) = watched(udp);
        let caller = Caller::start(over(udp, !udp), server.address);
        let client = &caller.client;
        let start = |number: u32| client.call(WATCH, number.to_le_bytes()).started();
        let mut polls: Vec<_> = (0..2_000).map(start).collect();
        let take = |_| kept.recv_timeout(HANG_GUARD).expect("a poll waits behind others");
        let mut requests: Vec<WorkerRequest> = (0..2_000).map(take).collect();

        for number in 0..100_u64 {
            let pong = client.call(ECHO, number.to_le_bytes()).options(soon()).wait();
            assert_eq!(pong.unwrap(), number.to_le_bytes());
        }
        let health = client.call(HEALTH_METHOD, []).options(soon()).wait().unwrap();
        assert_eq!(Health::from_code(health[0]), Some(Health::Serving));

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
    let server = Server::start(over(true, true), "127.0.0.1:0", {
        let lock = Arc::clone(&lock);
        move |endpoint| {
            let releasing = Arc::clone(&lock);
            endpoint.on(ACQUIRE, move |_, cx, request| {
                let (request, handled) = request.detach(cx);
                lock.lock().unwrap().acquire(request);
                handled
            });
            endpoint.on(RELEASE, move |_, cx, request| {
                let (request, handled) = request.detach(cx);
                releasing.lock().unwrap().release();
                request.reply_vec(Vec::new());
                handled
            });
        }
    });
    let caller = Caller::start(over(true, true), server.address);
    let holders = Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..TASKS {
            let (client, holders) = (caller.client.clone(), &holders);
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
