//! `Endpoint::prefetch` and `prefetch_then`: the functions that fetch memory see requests before their handler does.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId};
use petrel::{Endpoint, Nexus};

const LOOKUP: u16 = 3;
const OTHER: u16 = 1;
const CALLS: u64 = 500;

fn config(transports: AllowedTransports) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.transports = transports;
    config.idle = IdlePolicy::Poll;
    config.sessions.slots = 64;
    config.sessions.credits = 64;
    config
}

thread_local! {
    static ANSWERED: Cell<u64> = const { Cell::new(0) };
}

fn call(client: &mut Endpoint, session: SessionId, method: u16, number: u64) {
    client
        .call(session, method, number.to_le_bytes())
        .then(move |_, _, reply| {
            assert_eq!(reply.message().unwrap(), number.to_le_bytes());
            ANSWERED.set(ANSWERED.get() + 1);
        })
        .unwrap();
}

/// Requests that `locate` saw and no handler has got yet.
#[derive(Default)]
struct Shown {
    waiting: RefCell<VecDeque<Vec<u8>>>,
    count: Cell<u64>,
    /// The largest number waiting at a time.
    most: Cell<usize>,
}

fn register(server: &mut Endpoint) -> Rc<Shown> {
    let shown = Rc::new(Shown::default());
    let (looked, handled) = (Rc::clone(&shown), Rc::clone(&shown));
    server.prefetch(LOOKUP, move |message| {
        looked.count.set(looked.count.get() + 1);
        let mut waiting = looked.waiting.borrow_mut();
        waiting.push_back(message.to_vec());
        looked.most.set(looked.most.get().max(waiting.len()));
        // An unmapped address must do no harm.
        std::ptr::without_provenance(message.len() << 40)
    });
    server.on(LOOKUP, move |_, cx, request| {
        // Handlers get requests in the same order, and without loss all of them.
        let first = handled.waiting.borrow_mut().pop_front();
        assert_eq!(first.as_deref(), Some(request.data()));
        let answer = request.data().to_vec();
        request.reply(cx, &answer)
    });
    crate::common::echo(server, OTHER);
    shown
}

/// Makes calls to a server, one in five of the other method, until all are answered.
fn exchange<S: 'static>(nexus: &Nexus, server: &mut Endpoint<S>, transports: AllowedTransports) {
    let mut client = nexus.endpoint(config(transports)).unwrap();
    let session = client.connect(nexus.local_addr().unwrap()).unwrap();
    crate::common::open(&mut client, server, session);
    ANSWERED.set(0);
    for number in 0..CALLS {
        call(&mut client, session, if number % 5 == 0 { OTHER } else { LOOKUP }, number);
    }
    while ANSWERED.get() < CALLS {
        client.run_once();
        server.run_once();
    }
}

fn requests_are_shown(transports: AllowedTransports) {
    let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start().unwrap();
    let mut server = nexus.endpoint(config(transports)).unwrap();
    let shown = register(&mut server);
    exchange(&nexus, &mut server, transports);
    assert_eq!(shown.count.get(), CALLS * 4 / 5, "the method's requests, and no other's");
    assert!(shown.waiting.borrow().is_empty());
    assert!(shown.most.get() > 1, "the requests of a burst are shown together");
}

/// The numbers whose second step was taken, and whose requests were not yet handled.
#[derive(Default)]
struct Steps {
    taken: VecDeque<u64>,
    /// The most at a time.
    most: usize,
}

fn number_of(message: &[u8]) -> u64 {
    message.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

fn second_steps_are_taken(transports: AllowedTransports) {
    let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start().unwrap();
    let mut server = nexus.endpoint_with(config(transports), Steps::default()).unwrap();
    let locate = |message: &[u8]| (std::ptr::null(), number_of(message));
    server.prefetch_then(LOOKUP, locate, |steps: &mut Steps, number| {
        steps.taken.push_back(number);
        steps.most = steps.most.max(steps.taken.len());
    });
    server.on(LOOKUP, |steps, cx, request| {
        // Steps are taken in the order of requests, each before its handler runs.
        assert_eq!(steps.taken.pop_front(), Some(number_of(request.data())));
        let answer = request.data().to_vec();
        request.reply(cx, &answer)
    });
    crate::common::echo(&mut server, OTHER);
    exchange(&nexus, &mut server, transports);
    let Steps { taken, most } = server.state();
    assert!(taken.is_empty(), "{taken:?}");
    // Frames of all methods take a step.
    assert!((2..=9).contains(most), "steps are taken for a few requests ahead: {most}");
}

#[test]
fn prefetch__and_prefetch_then_over_both_transports() {
    for transports in [AllowedTransports::SHM, AllowedTransports::UDP] {
        requests_are_shown(transports);
        second_steps_are_taken(transports);
    }
}
