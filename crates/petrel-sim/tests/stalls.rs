//! Threads that stand still within a turn of the event loop: which clock they see, and what they may conclude.

#![allow(non_snake_case, reason = "tests are named function__condition")]

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use common::*;
use petrel::control::EndpointId;
use petrel::{Endpoint, EndpointConfig, Handle};
use petrel_sim::control::{ControlConfig, ControlNetwork, SimControl};
use petrel_sim::fabric::{Action, HostId, LinkConfig, NicConfig, SimAddr};
use petrel_sim::{Actor, Rng, SimTransport, SimTransportConfig, Simulation};
use petrel_transport::Transport;

const MS: u64 = 1_000_000;

struct Node(Endpoint<SimTransport, SimControl>);

impl Actor for Node {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        if self.0.run_once() { Some(now_ns) } else { self.0.next_due_ns() }
    }
}

/// What a task sees that begins in a turn which stops for 20 ms, after so many steps.
fn in_a_stalled_turn<T: Copy + 'static>(
    after: u64,
    task: impl AsyncFnOnce(Handle) -> T + 'static,
) -> Option<T> {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let control = ControlNetwork::new(&fabric, ControlConfig::default(), Rng::new(1));
    control.start_process(H0);
    let settings = SimTransportConfig::default();
    let transport = SimTransport::bind(&fabric, addr(H0), settings).unwrap();
    let port = control.attach(addr(H0), EndpointId(0), 1472, Rng::new(2));
    let endpoint = Endpoint::new(transport, port, &EndpointConfig::default()).unwrap();
    let handle = endpoint.handle();
    let mut simulation = Simulation::new(fabric.clone());
    let id = simulation.spawn(addr(H0), Node(endpoint));
    simulation.run_until(MS);

    let result = Rc::new(Cell::new(None));
    let (inner, given) = (handle.clone(), Rc::clone(&result));
    handle.spawn(async move { given.set(Some(task(inner).await)) });
    fabric.apply(Action::Stall { host: H0, after, for_ns: 20 * MS });
    // The action comes before the pass.
    simulation.run_until(MS + 1);
    simulation.wake(id);
    simulation.run_until(100 * MS);
    assert_eq!(fabric.stats().stalls, 1);
    result.get()
}

#[test]
fn clock_now_ns__is_the_time_after_the_stop_and_now_ns_that_before() {
    let seen = in_a_stalled_turn(1, async |handle| (handle.now_ns(), handle.clock_now_ns()));
    let (turn_ns, clock_ns) = seen.unwrap();
    assert_eq!(clock_ns - turn_ns, 20 * MS);
    let seen = in_a_stalled_turn(0, async |handle| (handle.now_ns(), handle.clock_now_ns()));
    let (turn_ns, clock_ns) = seen.unwrap();
    assert_eq!(clock_ns, turn_ns, "the turn stopped before it read the clock");
}

#[test]
fn sleep__that_begins_after_the_stop_does_not_end_early() {
    let slept_ns = in_a_stalled_turn(1, async |handle| {
        let begin_ns = handle.clock_now_ns();
        handle.sleep(Duration::from_millis(5)).await;
        handle.clock_now_ns() - begin_ns
    });
    let slept_ns = slept_ns.unwrap();
    assert!((5 * MS..6 * MS).contains(&slept_ns), "{slept_ns}");
}

/// A node that takes one frame a step, and notes when it came and what the clock said then.
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
    // One before the pass begins, and one while it stands still.
    send(&mut sender, H1, 1, 1, 100);
    simulation.run_until(10 * MS);
    send(&mut sender, H1, 2, 1, 100);
    simulation.run_until(50 * MS);
    let taken = &simulation.actor(id).unwrap().taken;
    let [(1, first_ns), (2, second_ns)] = taken[..] else { panic!("{taken:?}") };
    assert!(first_ns < 2 * MS && second_ns > 20 * MS, "{taken:?}");
}
