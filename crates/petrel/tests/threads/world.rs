//! The threads of a world, from first to last.

use std::sync::Arc;

use petrel::endpoint::Stop;
use petrel::workers::{Workers, WorkersStats};
use petrel::{Client, model};
use shuttle::sync::mpsc;
use shuttle::thread::{self, JoinHandle};

use crate::caller::Caller;
use crate::ledger::{Ledger, Method, count};
use crate::medium::Medium;
use crate::service::{self, CLIENT, Endpoint, PoolSlot, SERVER};
use crate::spec::{PoolEnd, Spec};

/// Far from both ends of the clock.
const BEGIN_NS: u64 = 1_000_000_000_000;

/// Turns after which an event loop has handled all posted messages.
const SETTLING_TURNS: usize = 100;

pub(crate) fn run(spec: &Spec) {
    model::restart(BEGIN_NS);
    let (medium, ledger) = (Medium::new(2), Arc::new(Ledger::new(spec)));
    let pool = PoolSlot::default();
    // The first: the scheduler knows the timekeeper by its number.
    let timekeeper = start_timekeeper(spec, &pool);
    let (server, stop_server) = start_server(spec, &medium, &ledger, &pool);
    let (client_thread, client, stop_client) = start_client(spec, &medium, &ledger);

    let callers: Vec<_> = (0..spec.callers)
        .map(|number| Caller::new(spec, number, client.clone(), &ledger))
        .map(|caller| thread::spawn(move || caller.run()))
        .collect();
    drop(client);
    let ends = start_ends(spec, &pool, [&stop_server, &stop_client]);
    callers.into_iter().chain(ends).for_each(join);

    check_clock(spec);
    check_sleep(spec);
    stop_client.stop();
    join(client_thread);
    stop_server.stop();
    join(server);
    wait_while(spec, || pool.is_being_dropped());
    if let Some(workers) = pool.take() {
        check_pool(spec, &workers, &ledger);
        end_pool(spec, workers);
    }

    ledger.finish();
    model::stop_time();
    join(timekeeper);
}

fn join(thread: JoinHandle<()>) {
    thread.join().expect("a thread without a panic");
}

fn start_timekeeper(spec: &Spec, pool: &PoolSlot) -> JoinHandle<()> {
    let (spec, pool) = (*spec, pool.clone());
    thread::spawn(move || model::keep_time(|| check_standstill(&spec, &pool)))
}

/// Checks that no worker sleeps while a request waits. No thread can run now, except with a restless clock.
fn check_standstill(spec: &Spec, pool: &PoolSlot) {
    if spec.clock_may_jump {
        return;
    }
    if let Some(stats) = pool.stats() {
        assert!(stats.waiting == 0 || stats.busy == spec.workers, "{stats:?}");
        count(|totals| &totals.standstills, 1);
    }
}

fn start_server(
    spec: &Spec,
    medium: &Medium,
    ledger: &Arc<Ledger>,
    pool: &PoolSlot,
) -> (JoinHandle<()>, Stop) {
    let (sender, ready) = mpsc::channel();
    let (spec, medium, ledger, pool) = (*spec, medium.clone(), Arc::clone(ledger), pool.clone());
    let server = thread::spawn(move || service::serve(&spec, &medium, &ledger, &pool, &sender));
    (server, ready.recv().expect("the server starts"))
}

fn start_client(
    spec: &Spec,
    medium: &Medium,
    ledger: &Arc<Ledger>,
) -> (JoinHandle<()>, Client, Stop) {
    let (sender, ready) = mpsc::channel();
    let (spec, medium, ledger) = (*spec, medium.clone(), Arc::clone(ledger));
    let thread = thread::spawn(move || {
        let mut endpoint = service::open_endpoint(&spec, &medium, CLIENT);
        endpoint.on(Method::Echo as u16, |_, cx, request| {
            assert!(request.deadline(cx).is_some(), "each call of a client has a deadline");
            let message = request.data().to_vec();
            request.reply(cx, &message)
        });
        let client = endpoint.client([SERVER.address()], service::plain());
        let stop = endpoint.stop_handle();
        sender.send((client, stop.clone())).expect("the world waits");
        endpoint.run(&stop);
        if spec.client_end.is_none() {
            check_client(&mut endpoint, &ledger);
        }
    });
    let (client, stop) = ready.recv().expect("the client starts");
    (thread, client, stop)
}

/// Checks that no calls are left after the last caller.
fn check_client(endpoint: &mut Endpoint, ledger: &Ledger) {
    (0..SETTLING_TURNS).for_each(|_| _ = endpoint.run_once());
    let calls = endpoint.stats().client_calls;
    assert_eq!((calls.under_way, calls.waiting), (0, 0), "{calls:?}");
    assert!(calls.made >= ledger.answered_count(), "{calls:?}");
}

/// Starts the threads that end the callers' endpoints and pool.
fn start_ends(spec: &Spec, pool: &PoolSlot, stops: [&Stop; 2]) -> Vec<JoinHandle<()>> {
    let after = |yields: usize, end: Box<dyn FnOnce() + Send>| {
        thread::spawn(move || {
            (0..yields).for_each(|_| thread::yield_now());
            end();
        })
    };
    let mut ends = Vec::new();
    for (yields, stop) in [spec.server_end, spec.client_end].into_iter().zip(stops) {
        let stop = stop.clone();
        ends.extend(yields.map(|yields| after(yields, Box::new(move || stop.stop()))));
    }
    if let Some(yields) = spec.pool_ends_early {
        let (pool, spec) = (pool.clone(), *spec);
        let end = move || pool.take().into_iter().for_each(|workers| end_pool(&spec, workers));
        ends.push(after(yields, Box::new(end)));
    }
    ends
}

fn end_pool(spec: &Spec, workers: Workers) {
    let _ = format!("{workers:?}");
    match spec.pool_end {
        PoolEnd::Shutdown => workers.shutdown(),
        PoolEnd::Drop => drop(workers),
        PoolEnd::StopThenDrop => {
            workers.stop();
            wait_while(spec, || !workers.is_idle());
        }
    }
}

/// A handler may wait for a time, which passes only while this thread does not run.
fn wait_while(spec: &Spec, goes_on: impl Fn() -> bool) {
    while goes_on() {
        match spec.is_untimed {
            true => thread::yield_now(),
            false => model::park_until(Some(model::now_ns() + 1_000)),
        }
    }
}

/// Checks that all requests are accounted for after the last.
fn check_pool(spec: &Spec, workers: &Workers, ledger: &Ledger) {
    wait_while(spec, || !workers.is_idle());
    let stats = workers.stats();
    let WorkersStats { queued, refused, executed, panicked, cancelled, expired, .. } = stats;
    assert_eq!((stats.waiting, stats.waiting_bytes, stats.busy), (0, 0, 0), "{stats:?}");
    assert_eq!(queued, executed + panicked + cancelled + expired + stats.failed, "{stats:?}");
    assert_eq!(executed + panicked, ledger.executed_by_workers(), "{stats:?}");
    assert!(stats.delay_ns_max <= stats.delay_ns_sum, "{stats:?}");
    count(|totals| &totals.pools_checked, 1);
    count(|totals| &totals.executed, executed);
    count(|totals| &totals.panicked, panicked);
    count(|totals| &totals.cancelled, cancelled);
    count(|totals| &totals.expired, expired);
    count(|totals| &totals.queue_refused, refused);
}

/// Without waits for a time, the clock advances only after a lost wake-up. A client whose server is gone waits to
/// reconnect.
fn check_clock(spec: &Spec) {
    count(|totals| &totals.clock_moves, model::moves());
    let nothing_waits = spec.is_untimed && spec.server_end.is_none() && spec.client_end.is_none();
    assert!(
        !nothing_waits || model::moves() == 0,
        "the world stood still {} times",
        model::moves()
    );
}

/// Checks that idle event loops and workers sleep: otherwise the clock would never wake the caller.
fn check_sleep(spec: &Spec) {
    if spec.sleeps_when_idle() {
        let end_ns = model::now_ns() + 1_000_000_000;
        while model::now_ns() < end_ns {
            model::park_until(Some(end_ns));
        }
    }
}
