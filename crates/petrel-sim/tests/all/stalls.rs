//! Threads that stop within a turn of the event loop: their view of the clock, and their conclusions.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::common::*;
use petrel::client::ClientConfig;
use petrel::endpoint::{CallOptions, EndpointConfig, EndpointId, Responder};
use petrel::group::{Group, Late, Need};
use petrel::task::Handle;
use petrel_proto::wire::Frame;
use petrel_sim::control::{ControlConfig, ControlNetwork};
use petrel_sim::fabric::{
    Action, FabricHandle, HostId, LinkConfig, NicConfig, Observation, SimAddr,
};
use petrel_sim::{
    Actor, Rng, SimEndpoint, SimTransport, SimTransportConfig, Simulation, Stop, start_endpoint,
};
use petrel_transport::Transport;

const MS: u64 = 1_000_000;

/// Returns the result of a task that begins in a turn with a stop of 20 ms after `after` steps.
fn in_a_stalled_turn<T: Copy + 'static>(
    after: u64,
    task: impl AsyncFnOnce(Handle) -> T + 'static,
) -> Option<T> {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let control = ControlNetwork::new(&fabric, ControlConfig::default(), Rng::new(1));
    control.start_process(H0);
    let (settings, config) = (SimTransportConfig::default(), EndpointConfig::default());
    let started = start_endpoint(&fabric, &control, addr(H0), settings, Rng::new(2), &config);
    let endpoint = started.unwrap();
    let handle = endpoint.handle();
    let mut simulation = Simulation::new(fabric.clone());
    let id = simulation.spawn(addr(H0), Node(endpoint));
    simulation.run_until(MS);

    let result = Rc::new(Cell::new(None));
    let (inner, given) = (handle.clone(), Rc::clone(&result));
    handle.spawn(async move { given.set(Some(task(inner).await)) });
    fabric.apply(Action::Stall { host: H0, after, for_ns: 20 * MS });
    // The action comes before the turn.
    simulation.run_until(MS + 1);
    simulation.wake(id);
    simulation.run_until(100 * MS);
    assert_eq!(fabric.stats().stalls, 1);
    result.get()
}

#[test]
fn clock_now_ns__is_the_time_after_the_stop_and_now_ns_that_before() {
    let seen =
        in_a_stalled_turn(1, async |handle| (handle.now().as_ns(), handle.clock_now().as_ns()));
    let (turn_ns, clock_ns) = seen.unwrap();
    assert_eq!(clock_ns - turn_ns, 20 * MS);
    let seen =
        in_a_stalled_turn(0, async |handle| (handle.now().as_ns(), handle.clock_now().as_ns()));
    let (turn_ns, clock_ns) = seen.unwrap();
    assert_eq!(clock_ns, turn_ns, "the turn stopped before it read the clock");
}

#[test]
fn sleep__that_begins_after_the_stop_does_not_end_early() {
    let slept_ns = in_a_stalled_turn(1, async |handle| {
        let begin_ns = handle.clock_now().as_ns();
        handle.sleep(Duration::from_millis(5)).await;
        handle.clock_now().as_ns() - begin_ns
    });
    let slept_ns = slept_ns.unwrap();
    assert!((5 * MS..6 * MS).contains(&slept_ns), "{slept_ns}");
}

/// A node that takes a frame per step, and records frame number and clock.
struct Taker {
    transport: SimTransport,
    taken: Vec<(u32, u64)>,
}

impl Actor for Taker {
    fn poll(&mut self, _: u64) -> Option<u64> {
        let Self { transport, taken } = self;
        let clock = transport.clock();
        transport.now();
        for _ in 0..8 {
            transport.rx_burst(1, |_, bytes| taken.push((number_of(bytes), clock.now_ns())));
        }
        None
    }
}

#[test]
fn stall__shows_no_packet_from_after_the_time_that_its_reader_sees() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let (mut sender, transport) = (bind(&fabric, H0), bind(&fabric, H1));
    let mut simulation = Simulation::new(fabric.clone());
    let id = simulation.spawn(SimAddr::new(HostId(1), 1), Taker { transport, taken: Vec::new() });
    simulation.run_until(MS);
    fabric.apply(Action::Stall { host: H1, after: 6, for_ns: 20 * MS });
    simulation.run_until(MS + 1);
    // One frame before the turn begins, and one during its stop.
    send(&mut sender, H1, 1, 1, 100);
    simulation.run_until(10 * MS);
    send(&mut sender, H1, 2, 1, 100);
    simulation.run_until(50 * MS);
    let taken = &simulation.actor(id).unwrap().taken;
    let [(1, first_ns), (2, second_ns)] = taken[..] else { panic!("{taken:?}") };
    assert!(first_ns < 2 * MS && second_ns > 20 * MS, "{taken:?}");
}

/// The timeout of calls of a client with a stopped turn.
const TIMEOUT: Duration = Duration::from_millis(50);

const TIMEOUT_NS: u64 = TIMEOUT.as_nanos() as u64;

/// A client with one stopped turn.
struct Stopping {
    endpoint: SimEndpoint,
    fabric: FabricHandle,
    turns_before: Option<u64>,
    after: u64,
}

impl Actor for Stopping {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        if self.turns_before == Some(0) {
            self.fabric.apply(Action::Stall { host: H0, after: self.after, for_ns: 20 * MS });
        }
        self.turns_before = self.turns_before.and_then(|turns| turns.checked_sub(1));
        if self.endpoint.run_once() {
            Some(now_ns)
        } else {
            self.endpoint.next_due().map(petrel::Time::as_ns)
        }
    }
}

/// Runs a task of a client with a server that never answers. Returns the deadlines of all requests that
/// left: the remaining time on the wire, added to the clock read for it. The client stops after this number
/// of turns, and this number of steps of the next turn.
fn with_a_stop<F: Future<Output = ()> + 'static>(
    (turns, after): (u64, u64),
    task: impl FnOnce(Handle) -> F,
) -> Vec<u64> {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let control = ControlNetwork::new(&fabric, ControlConfig::default(), Rng::new(1));
    let ends_ns = Rc::new(RefCell::new(Vec::new()));
    let ends = Rc::clone(&ends_ns);
    fabric.watch(move |observation| {
        let Observation::Sent { frame, clock, .. } = observation else { return };
        if let Some(left_us) = Frame::parse(frame).unwrap().extensions.deadline_us {
            let read_ns = clock.read_ns.expect("the clock is read for what says what is left");
            ends.borrow_mut().push(read_ns + u64::from(left_us) * 1_000);
        }
    });
    let mut simulation = Simulation::new(fabric.clone());
    let mut handles = Vec::new();
    for host in [H0, H1] {
        control.start_process(host);
        let (settings, config) = (SimTransportConfig::default(), EndpointConfig::default());
        let rng = Rng::new(2 + u64::from(host.0));
        let started = start_endpoint(&fabric, &control, addr(host), settings, rng, &config);
        let mut endpoint = started.unwrap();
        let kept = RefCell::new(Vec::<Responder>::new());
        endpoint.on(1, move |_, cx, request| {
            let (responder, handled) = request.defer(cx);
            kept.borrow_mut().push(responder);
            handled
        });
        handles.push(endpoint.handle());
        let turns_before = (host == H0).then_some(turns);
        let actor = Stopping { endpoint, fabric: fabric.clone(), turns_before, after };
        simulation.spawn(addr(host), actor);
    }
    let _runs_on = handles[0].spawn(task(handles[0].clone()));
    while fabric.now_ns() < 300 * MS {
        let next_ns = control.next_ns().min(300 * MS);
        let goes_on = |_: &Stopping| control.next_ns() >= next_ns;
        if let Stop::Idle | Stop::Deadlock { .. } = simulation.run_while(next_ns, goes_on) {
            fabric.advance(next_ns.saturating_sub(fabric.now_ns()));
        }
        control.run();
    }
    assert_eq!(fabric.stats().stalls, 1);
    ends_ns.take()
}

/// Every step of every early turn.
fn stops() -> impl Iterator<Item = (u64, u64)> {
    (0..12).flat_map(|turns| (1..9).map(move |after| (turns, after)))
}

/// Checks that at least one request left, and that all deadlines are within the call's timeout.
fn assert_over_by(stop: (u64, u64), ends_ns: &[u64], latest_ns: u64) {
    assert!(!ends_ns.is_empty(), "it was sent");
    for end_ns in ends_ns {
        assert!(*end_ns <= latest_ns, "{stop:?}: {end_ns}, {latest_ns}");
    }
}

#[test]
fn client__attempts_have_the_time_of_the_call_and_no_more() {
    for stop in stops() {
        let latest_ns = Rc::new(Cell::new(0));
        let latest = Rc::clone(&latest_ns);
        let ends_ns = with_a_stop(stop, async move |handle| {
            let remote = ControlNetwork::address_of(H1);
            // A client that names the endpoint asks the server for no description.
            let client = handle.client([(remote, EndpointId(0))], ClientConfig::default());
            // The attempt follows when the client has connected.
            let mut call = pin!(client.call(1, b"x").timeout(TIMEOUT));
            let begins = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending()));
            assert!(begins.await);
            latest.set(handle.clock_now().as_ns() + TIMEOUT_NS);
            call.await.unwrap_err();
        });
        assert_over_by(stop, &ends_ns, latest_ns.get());
    }
}

#[test]
fn start_with__counts_from_the_start_of_the_call() {
    for stop in stops() {
        let latest_ns = Rc::new(Cell::new(0));
        let latest = Rc::clone(&latest_ns);
        let ends_ns = with_a_stop(stop, async move |handle| {
            let session = handle.connect(ControlNetwork::address_of(H1)).await.unwrap();
            let call = session.call(1, b"x").timeout(TIMEOUT).started();
            latest.set(handle.clock_now().as_ns() + TIMEOUT_NS);
            call.await.unwrap_err();
        });
        assert_over_by(stop, &ends_ns, latest_ns.get());
    }
}

#[test]
fn group__members_have_the_same_time() {
    for stop in stops() {
        let ends_ns = with_a_stop(stop, async move |handle| {
            let remote = ControlNetwork::address_of(H1);
            let sessions =
                [handle.connect(remote).await.unwrap(), handle.connect(remote).await.unwrap()];
            let group = Group::new(sessions.map(|session| session.id())).unwrap();
            let (message, options) = (handle.share(b"x").unwrap(), CallOptions::new());
            let options = options.timeout(TIMEOUT);
            let called = group.call_async(&handle, 1, &message, Need::All, options, Late::Finish);
            called.await.unwrap_err();
        });
        assert!(ends_ns.len() >= 2, "{stop:?}: both members got the request");
        let (first_ns, last_ns) = (ends_ns.iter().min().unwrap(), ends_ns.iter().max().unwrap());
        assert!(last_ns - first_ns < 1_000, "{stop:?}: {first_ns} {last_ns}");
    }
}
