//! With any single optimisation of the fast path switched off, calls get the same answers.

use std::cell::RefCell;
use std::rc::Rc;

use petrel::Nexus;
use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, IdlePolicy};

/// Sizes around a packet of either transport, and one size of many packets.
const SIZES: [usize; 6] = [0, 1, 32, 1_400, 20_000, 300_000];

/// Calls of each size, enough to reuse slots and buffers.
const ROUNDS: usize = 30;

fn message(size: usize, round: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + round * 7 + size) as u8).collect()
}

/// Makes calls of all sizes, some at a time, between endpoints of this configuration; the server reverses the message.
fn answers_are_right(name: &str, config: &EndpointConfig) {
    let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start().unwrap();
    let address = nexus.local_addr().expect("it listens");
    let mut server = nexus.endpoint(config.clone()).unwrap();
    server.on(1, |_, cx, request| {
        let len = request.data().len();
        request.reply_with(cx, len, |data, out| {
            out.iter_mut().zip(data.iter().rev()).for_each(|(to, from)| *to = *from);
            len
        })
    });
    let mut client = nexus.endpoint(config.clone()).unwrap();
    let session = client.connect(address).unwrap();
    crate::common::open(&mut client, &mut server, session);
    let ended = Rc::new(RefCell::new(0));
    for round in 0..ROUNDS {
        for size in SIZES {
            let mut expected = message(size, round);
            let request = client.alloc_message(&expected).unwrap();
            let response = client.alloc(size).unwrap();
            expected.reverse();
            let (ended, name) = (Rc::clone(&ended), name.to_owned());
            client
                .call(session, 1, request)
                .into_buffer(response)
                .then(move |_, _, reply| {
                    let answer = reply.message().expect("the call succeeds");
                    assert!(answer == expected, "without {name}: {size} bytes differ");
                    *ended.borrow_mut() += 1;
                })
                .unwrap();
        }
        while *ended.borrow() < (round + 1) * SIZES.len() {
            if !client.run_once() & !server.run_once() {
                std::thread::yield_now();
            }
        }
    }
}

/// Switches one optimisation off.
type Switch = fn(&mut EndpointConfig);

fn without_each(transports: AllowedTransports) {
    let switches: &[(&str, Switch)] = &[
        ("nothing", |_| {}),
        ("short ways", |config| config.protocol.fast_path = false),
        ("response grants", |config| config.protocol.response_grants = false),
        #[cfg(feature = "factors")]
        ("one timestamp per turn", |config| config.optimisations.clock_once_per_turn = false),
        #[cfg(feature = "factors")]
        ("preallocated responses", |config| config.optimisations.preallocated_responses = false),
        #[cfg(feature = "factors")]
        ("zero-copy requests", |config| config.optimisations.zero_copy_requests = false),
        #[cfg(feature = "factors")]
        ("immediate sends", |config| config.optimisations.immediate_sends = false),
        #[cfg(feature = "factors")]
        ("bursts", |config| config.optimisations.bursts = false),
        #[cfg(feature = "factors")]
        ("fence-free publication", |config| config.optimisations.fence_free = false),
    ];
    for &(name, switch_off) in switches {
        let mut config = EndpointConfig::default();
        config.transports = transports;
        config.idle = IdlePolicy::Poll;
        switch_off(&mut config);
        answers_are_right(name, &config);
    }
}

#[test]
fn answers_stay_right() {
    [AllowedTransports::SHM, AllowedTransports::UDP].into_iter().for_each(without_each);
}
