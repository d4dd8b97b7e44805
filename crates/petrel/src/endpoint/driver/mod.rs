//! The event loop of a [`Background`](crate::client::Background)'s endpoint: run by its thread, or by the caller of the only outstanding call.
//!
//! | situation | the event loop is run by |
//! | --- | --- |
//! | a thread makes one call after another, and no other call is outstanding | the caller, until its response has come |
//! | a task of an executor makes one call after another | the task, for 20 µs at most: other tasks wait for the executor's thread |
//! | tasks of an executor have several calls outstanding | the task of one call: a turn whenever the task is polled; the executor polls all tasks before the next turn |
//! | threads have several calls outstanding | the endpoint's thread, or a caller that drives already, until the caller's call has ended |
//! | no call for a millisecond | the endpoint's thread, which then sleeps |
//! | after the first [`Client::spawn`](crate::Client::spawn) | the endpoint's thread |
//!
//! While callers drive, the endpoint's thread looks every 1 to 4 ms whether callers still drive; messages of other threads and of the
//! control plane wake the thread at once.

mod baton;

use std::cell::Cell;
use std::mem;
use std::task;
use std::time::Duration;

use petrel_transport::wake::Waker;

use super::in_loop::InLoop;
use super::{Endpoint, Stop};
use crate::local::client_call::places::Places;
use crate::look;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, lock, now_ns, thread};
use crate::time::as_ns;
use baton::{Baton, Held};

/// The endpoint's thread takes the endpoint back if callers have not taken it for this time: at first, and after callers have driven for a
/// while. A look disturbs a caller on the same CPU: a look each millisecond disturbs every hundredth call over UDP.
const ABSENT: Duration = Duration::from_millis(1);
const ABSENT_MAX: Duration = Duration::from_millis(4);

/// A caller asks for the endpoint after this number of calls in a row without other calls: two threads that call in turn leave the event
/// loop to the endpoint's thread.
const ALONE_CALLS: u32 = 8;

/// A task without a poll for 2 ms leaves the event loop: its executor has many other tasks (a thousand calls take a
/// millisecond), or no CPU (Linux runs a thread for 3 ms). The endpoint's thread, which mostly sleeps, gets a CPU
/// sooner.
const POLLED_NS: u64 = 2_000_000;

/// From this number of outstanding calls on, tasks of an executor are busy with calls.
const BUSY_CALLS: usize = 16;

/// The time without a driving task after a task was away for long: at first, and at most.
const AWAY_NS_MIN: u64 = 10_000_000;
const AWAY_NS_MAX: u64 = 1_000_000_000;

/// A task leaves the event loop after this time of turns without work, or earlier by the endpoint's idle policy.
const WORKED_NS: u64 = 50_000;

std::thread_local! {
    /// The thread's calls in a row without other calls, and the begin of the last call.
    static ALONE: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// An endpoint, with the threads and tasks that run the event loop.
pub(crate) struct Driver {
    baton: Baton<Endpoint>,
    stop: Stop,
    waker: Waker,
    /// How long a task takes turns without work; 0 if the endpoint is to sleep, which a task cannot.
    task_spin_ns: u64,
    /// Whether the endpoint stays on its thread.
    is_bound: AtomicBool,
    /// The time until which no task drives, and the length of the next such time.
    away_until_ns: AtomicU64,
    away_ns: AtomicU64,
    task: DrivingTask,
}

/// The task that runs the event loop, a turn whenever it is polled.
#[derive(Default)]
struct DrivingTask {
    /// Names the task's call; 0 without a task.
    call: AtomicUsize,
    /// The next task to drive.
    heir: Mutex<Option<task::Waker>>,
    has_heir: AtomicBool,
    /// The time of the task's last poll, and of its last turn with work. Written by the task.
    polled_ns: AtomicU64,
    worked_ns: AtomicU64,
}

/// A caller that runs the event loop.
pub(crate) struct Driving<'a> {
    driver: &'a Driver,
    held: Held<'a, Endpoint>,
    /// The longest time to drive, if other tasks need the thread.
    limit_ns: Option<u64>,
}

impl Driver {
    /// Creates the driver of an endpoint on its thread.
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let (stop, waker) = (endpoint.stop_handle(), endpoint.waker());
        let task_spin_ns = as_ns(endpoint.spin()).min(WORKED_NS);
        let (baton, is_bound) = (Baton::new(endpoint), AtomicBool::new(false));
        let (away_until_ns, away_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            baton,
            stop,
            waker,
            task_spin_ns,
            is_bound,
            away_until_ns,
            away_ns,
            task: DrivingTask::default(),
        }
    }

    /// Returns the handle that ends the event loop.
    pub(crate) fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Runs the event loop on the endpoint's thread, until it is stopped.
    pub(crate) fn run(&self) {
        let _running = InLoop::enter();
        let _end = Ending(self);
        while !self.stop.is_requested() {
            // SAFETY: on the endpoint's thread, which holds the endpoint; the reference ends before the thread gives it.
            let endpoint = unsafe { self.baton.held() };
            endpoint.turn();
            if !self.baton.is_asked() || !self.prepares(endpoint) {
                continue;
            }
            self.baton.give();
            if !self.stand_by() {
                break;
            }
            // SAFETY: the thread has taken the endpoint back, and has no other reference.
            unsafe { self.baton.held() }.resume();
        }
    }

    /// Answers callers that have asked for the endpoint. Returns true if the endpoint is ready for callers: for a task, or without outstanding
    /// calls and messages.
    #[cold]
    fn prepares(&self, endpoint: &mut Endpoint) -> bool {
        if endpoint.is_bound() {
            self.is_bound.store(true, Ordering::Relaxed);
            self.baton.clear_request();
            return false;
        }
        // Beside computing threads, a thread that sleeps until a message comes gets the CPU sooner than an executor's thread. But with many
        // calls outstanding, the computing thread may be the executor's own.
        let is_busy = self.task.exists() && endpoint.client_calls_under_way() >= BUSY_CALLS;
        if endpoint.is_crowded() && !is_busy {
            self.baton.clear_request();
            self.stay_away(now_ns());
            self.task.leave();
            return false;
        }
        if self.task.exists() {
            // The task takes turns soon: no message has to wake a sleeper.
            self.baton.clear_request();
            return true;
        }
        let rests = endpoint.rest_anew();
        if rests {
            self.baton.clear_request();
        }
        rests
    }

    /// Waits while callers take the endpoint, and takes it back. Returns false if a caller has panicked in the event loop.
    fn stand_by(&self) -> bool {
        let (mut seen, mut since_ns, mut patience) = (self.baton.taken(), now_ns(), ABSENT);
        loop {
            let is_called = self.waker.wait(patience);
            let now_ns = now_ns();
            let taken = self.baton.taken();
            if mem::replace(&mut seen, taken) != taken {
                since_ns = now_ns;
                // Messages wake no thread while a task drives: this thread notices soon when the executor polls the task no longer.
                let longer = if self.task.exists() { ABSENT } else { patience * 2 };
                patience = longer.min(ABSENT_MAX);
            }
            let absent_ns = if self.task.exists() { POLLED_NS } else { as_ns(ABSENT) };
            let are_absent = now_ns.saturating_sub(since_ns) >= absent_ns;
            if is_called && !are_absent && self.task.exists() && !self.stop.is_requested() {
                // The driving task polls everything in its next turn, and never sleeps.
                self.waker.drain();
            } else if is_called || are_absent {
                if let Some(is_sound) = self.baton.try_take_back() {
                    if self.task.exists() {
                        self.stay_away(now_ns);
                        self.task.leave();
                    }
                    return is_sound;
                }
                if is_called {
                    self.baton.park_while_taken();
                }
            }
        }
    }

    /// Makes this thread run the event loop for a call that is about to begin, if no call is outstanding, and no other thread runs
    /// the event loop.
    pub(crate) fn try_drive(&self, places: &Places, limit_ns: Option<u64>) -> Option<Driving<'_>> {
        if !places.are_all_free() || limit_ns.is_some() && !self.is_worth_it() {
            return None;
        }
        let held = self.baton.try_take()?;
        held.resume();
        let limit_ns = limit_ns.map(|limit_ns| limit_ns.min(self.task_spin_ns));
        Some(Driving { driver: self, held, limit_ns })
    }

    /// Returns true if a task may drive.
    fn is_worth_it(&self) -> bool {
        let away_until_ns = self.away_until_ns.load(Ordering::Relaxed);
        let is_away = away_until_ns != 0 && now_ns() < away_until_ns;
        !is_away && self.task_spin_ns > 0 && look::is_worth_it()
    }

    /// Keeps tasks from driving for some time, as a task's thread was away from the event loop for long.
    fn stay_away(&self, now_ns: u64) {
        let (until_ns, former_ns) =
            (self.away_until_ns.load(Ordering::Relaxed), self.away_ns.load(Ordering::Relaxed));
        let was_well = now_ns.saturating_sub(until_ns) >= 8 * former_ns;
        let away_ns = if was_well { AWAY_NS_MIN } else { (2 * former_ns).min(AWAY_NS_MAX) };
        self.away_until_ns.store(now_ns + away_ns, Ordering::Relaxed);
        self.away_ns.store(away_ns, Ordering::Relaxed);
    }

    /// Makes the task of an outstanding call run the event loop whenever it is polled, if no other task does. Returns true if it is to be
    /// polled soon.
    #[inline(never)]
    pub(crate) fn try_drive_by_task(&self, call: usize) -> bool {
        let is_taken = self.task.exists() || self.is_bound.load(Ordering::Relaxed);
        if is_taken || !self.is_worth_it() || !self.task.enter(call) {
            return false;
        }
        self.baton.ask();
        true
    }

    /// Makes the task of a call run the event loop if nothing else does, and returns true if so.
    pub(crate) fn try_inherit(&self, call: usize) -> bool {
        self.task_spin_ns > 0 && self.baton.is_free() && self.task.enter(call)
    }

    /// Has the waker's task drive after the driving task, if an heir is missing.
    pub(crate) fn offer_heir(&self, waker: &task::Waker) {
        if self.task.exists() && !self.task.has_heir.load(Ordering::Relaxed) {
            let former = lock(&self.task.heir).replace(waker.clone());
            self.task.has_heir.store(true, Ordering::Relaxed);
            drop(former);
        }
    }

    /// Runs a turn in the task that drives. Returns false if the task drives no longer.
    pub(crate) fn turn_by_task(&self, call: usize) -> bool {
        let now_ns = now_ns();
        let task = &self.task;
        if !task.is(call) {
            // The endpoint's thread keeps the event loop, or has taken the event loop back.
            look::record(false);
            return false;
        }
        let polled_ns = task.polled_ns.swap(now_ns, Ordering::Relaxed);
        let mut is_over = now_ns.saturating_sub(polled_ns) > POLLED_NS;
        if is_over {
            self.stay_away(now_ns);
        }
        if let Some(mut held) = self.baton.try_take() {
            held.resume();
            if held.turn_until(Some(now_ns)) {
                task.worked_ns.store(now_ns, Ordering::Relaxed);
            }
            is_over |= held.wants_thread() || self.stop.is_requested();
        } else {
            // The thread that is to give the endpoint may wait for this CPU.
            thread::yield_now();
        }
        is_over |=
            now_ns.saturating_sub(task.worked_ns.load(Ordering::Relaxed)) > self.task_spin_ns;
        if is_over {
            look::record(false);
            self.leave_by_task(call);
        }
        !is_over
    }

    /// Ends the driving of a task whose call has ended or is given up. Another task drives, or the endpoint's thread.
    pub(crate) fn pass_on(&self, call: usize) {
        if !self.task.is(call) {
            return;
        }
        look::record(true);
        let heir = lock(&self.task.heir).take();
        self.task.has_heir.store(false, Ordering::Relaxed);
        match heir {
            Some(heir) => {
                self.task.leave();
                heir.wake();
            }
            None => self.leave_by_task(call),
        }
    }

    /// Leaves the event loop to the endpoint's thread.
    pub(crate) fn leave_by_task(&self, call: usize) {
        if self.task.is(call) {
            self.task.leave();
            self.baton.clear_request();
            // A holder looks for messages before leaving, and the endpoint's thread looks after a millisecond without turns.
            if let Some(held) = self.baton.try_take() {
                held.resume();
                drop(Driving { driver: self, held, limit_ns: None });
            }
        }
    }

    /// Notes the begin of a posted call without other calls. After several, asks for the endpoint.
    pub(crate) fn note_alone(&self) {
        let (calls, last_ns) = ALONE.get();
        let begin_ns = now_ns();
        let is_soon = begin_ns.saturating_sub(last_ns) < as_ns(ABSENT);
        let calls = if is_soon { calls + 1 } else { 0 };
        let asks = calls >= ALONE_CALLS && self.baton.ask();
        ALONE.set((if asks { 0 } else { calls }, begin_ns));
    }
}

/// Ends the endpoint when its thread leaves the event loop, also by a panic.
struct Ending<'a>(&'a Driver);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        drop(self.0.baton.end());
    }
}

impl DrivingTask {
    fn exists(&self) -> bool {
        self.call.load(Ordering::Relaxed) != 0
    }

    fn is(&self, call: usize) -> bool {
        self.call.load(Ordering::Relaxed) == call
    }

    fn enter(&self, call: usize) -> bool {
        let now_ns = now_ns();
        let entered = self.call.compare_exchange(0, call, Ordering::AcqRel, Ordering::Relaxed);
        if entered.is_ok() {
            self.polled_ns.store(now_ns, Ordering::Relaxed);
            self.worked_ns.store(now_ns, Ordering::Relaxed);
        }
        entered.is_ok()
    }

    fn leave(&self) {
        self.call.store(0, Ordering::Release);
    }
}

impl Driving<'_> {
    /// Runs the event loop until the wait is over, or a message needs the endpoint's thread, or other tasks need this thread.
    pub(crate) fn run(mut self, is_over: impl Fn() -> bool) {
        let _running = InLoop::enter();
        let end_ns = self.limit_ns.map(|limit_ns| now_ns().saturating_add(limit_ns));
        loop {
            self.held.turn_until(end_ns);
            let has_ended = is_over();
            let is_late = end_ns.is_some_and(|end_ns| {
                let now_ns = now_ns();
                if now_ns >= end_ns + POLLED_NS {
                    self.driver.stay_away(now_ns);
                }
                now_ns >= end_ns
            });
            if has_ended || is_late {
                if end_ns.is_some() {
                    look::record(has_ended);
                }
                return;
            }
            if self.driver.stop.is_requested() || self.held.wants_thread() {
                return;
            }
        }
    }
}

impl Drop for Driving<'_> {
    /// Leaves the event loop, and wakes the endpoint's thread if other callers wait for turns.
    fn drop(&mut self) {
        if self.held.has_panicked() {
            return self.driver.waker.wake();
        }
        if !self.held.rest() || self.driver.stop.is_requested() {
            // The thread finds the endpoint taken, and waits until this caller has left.
            self.driver.waker.wake();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::future::Future;
    use std::task::{Context, Waker};
    use std::time::Instant;

    use super::*;
    use crate::client::Background;
    use crate::server::RunningServer;
    use crate::{Client, Server};

    /// Returns a server that echoes, and a client whose endpoint has no other clients.
    fn start() -> (RunningServer, Client) {
        let server = Server::bind("127.0.0.1:0").serve(
            |_| (),
            |endpoint| {
                endpoint.on(1, |_, cx, request| {
                    let data = request.data().to_vec();
                    request.reply(cx, &data)
                });
            },
        );
        let server = server.start().unwrap();
        let background = Background::builder().start().unwrap();
        let client = Client::builder().background(&background);
        let client = client.connect_wait(server.local_addr()).unwrap();
        (server, client)
    }

    /// Far longer than callers need to get the endpoint.
    const HANG_GUARD: Duration = Duration::from_secs(60);

    fn driver(client: &Client) -> &Driver {
        client.endpoint().driver().expect("callers may run a background's endpoint")
    }

    /// Returns true if the endpoint keeps callers away, beside threads of other programs that compute: then only the answers are checked.
    fn keeps_away(driver: &Driver) -> bool {
        driver.away_until_ns.load(Ordering::Relaxed) != 0
    }

    /// Calls one call after another until `done`.
    fn call_until(client: &Client, done: impl Fn(&Driver) -> bool) {
        let begin = Instant::now();
        while !done(driver(client)) {
            assert!(begin.elapsed() < HANG_GUARD, "callers never get the endpoint");
            assert_eq!(client.call(1, b"x").wait().unwrap(), b"x");
        }
    }

    #[test]
    fn run__leaves_the_endpoint_to_a_thread_that_makes_one_call_after_another() {
        let (_server, client) = start();
        call_until(&client, |driver| driver.baton.taken() > 100 || keeps_away(driver));
        // Without further calls the thread takes the endpoint back.
        while driver(&client).baton.is_free() {
            std::thread::yield_now();
        }
        // A task of the application binds the endpoint to its thread.
        crate::client::wait(client.spawn(async |_| ())).unwrap();
        driver(&client).baton.ask();
        call_until(&client, |driver| driver.is_bound.load(Ordering::Relaxed));
        let taken = driver(&client).baton.taken();
        (0..200).for_each(|_| assert_eq!(client.call(1, b"y").wait().unwrap(), b"y"));
        assert_eq!(driver(&client).baton.taken(), taken);
    }

    /// The library's own task keeps no object of the endpoint.
    #[test]
    fn timeout__of_a_client_binds_no_endpoint() {
        let (_server, client) = start();
        let call = client.timeout(HANG_GUARD, client.call(1, b"x"));
        assert_eq!(crate::client::wait(call).unwrap().unwrap(), b"x");
        call_until(&client, |driver| driver.baton.taken() > 0 || keeps_away(driver));
    }

    #[test]
    fn turn_by_task__is_of_one_task_at_a_time_and_passes_to_its_heir() {
        let (_server, client) = start();
        let mut cx = Context::from_waker(Waker::noop());
        let begin = Instant::now();
        let mut drove = 0;
        while drove < 100 && !keeps_away(driver(&client)) {
            assert!(begin.elapsed() < HANG_GUARD, "tasks never get the endpoint");
            let mut calls = [(); 8].map(|()| Some(Box::pin(client.call(1, b"x"))));
            while calls.iter().any(Option::is_some) {
                for slot in &mut calls {
                    let Some(call) = slot else { continue };
                    if let task::Poll::Ready(response) = call.as_mut().poll(&mut cx) {
                        assert_eq!(response.unwrap(), b"x");
                        *slot = None;
                    }
                    drove += u32::from(driver(&client).task.exists());
                }
            }
            assert!(!driver(&client).task.exists(), "no call is outstanding that could drive");
        }
    }
}
