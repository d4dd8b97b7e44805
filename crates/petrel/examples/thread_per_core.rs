//! A server with a thread and an endpoint per core, and a client that spreads its calls over them: `cargo run --example
//! thread_per_core`.
//!
//! Threads share nothing: each has the counters for its part of the keys, and the client knows the part of a key. So no
//! request crosses a thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

use petrel::endpoint::EndpointId;
use petrel::endpoint::{EndpointConfig, SessionId, Stop};
use petrel::{Endpoint, Nexus};

/// Adds one to the counter of a key, and answers with the new value.
const COUNT: u16 = 1;

const KEYS: u64 = 100;
const ROUNDS: u64 = 20;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let cores = thread::available_parallelism()?.get().min(8) as u16;
    let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    let address = nexus.local_addr().ok_or("the server listens")?;
    let (ready, started) = mpsc::channel();
    let serve = |number| {
        let (nexus, ready) = (nexus.clone(), ready.clone());
        thread::spawn(move || run_server(&nexus, EndpointId(number), &ready))
    };
    let threads: Vec<_> = (0..cores).map(serve).collect();
    let stops: Vec<Stop> = started.iter().take(threads.len()).collect();

    count_all(address, cores)?;
    println!("{KEYS} counters on {cores} threads stand at {ROUNDS}");

    stops.iter().for_each(Stop::stop);
    for thread in threads {
        thread.join().map_err(|_| "a server thread panicked")?;
    }
    Ok(())
}

/// One thread of the server.
fn run_server(nexus: &Nexus, number: EndpointId, ready: &mpsc::Sender<Stop>) {
    let mut config = EndpointConfig::default();
    config.id = Some(number);
    let mut endpoint = nexus.endpoint(config).expect("an endpoint");
    let counters = RefCell::new(HashMap::<Vec<u8>, u64>::new());
    endpoint.on(COUNT, move |_, cx, request| {
        let mut counters = counters.borrow_mut();
        let counter = counters.entry(request.data().to_vec()).or_default();
        *counter += 1;
        request.reply(cx, &counter.to_le_bytes())
    });
    let stop = endpoint.stop_handle();
    ready.send(stop.clone()).expect("the main thread waits");
    endpoint.run(&stop);
}

/// The client: a thread and an endpoint, with a session to every thread of the server.
fn count_all(server: SocketAddr, cores: u16) -> Result<(), Box<dyn Error>> {
    let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
    let connect = |number| endpoint.connect_wait_to(server, EndpointId(number));
    let sessions = (0..cores).map(connect).collect::<Result<Vec<_>, _>>()?;
    for round in 1..=ROUNDS {
        let counts = count_each(&mut endpoint, &sessions)?;
        assert!(counts.iter().all(|count| *count == round), "round {round}: {counts:?}");
    }
    Ok(())
}

/// Counts every key once, all at the same time.
fn count_each(endpoint: &mut Endpoint, sessions: &[SessionId]) -> Result<Vec<u64>, Box<dyn Error>> {
    let (ended, ends) = mpsc::channel();
    for key in 0..KEYS {
        // The part of a key decides the thread with the key's counter.
        let session = sessions[key as usize % sessions.len()];
        let (request, response) = (endpoint.alloc_message(&key.to_le_bytes())?, endpoint.alloc(8)?);
        let ended = ended.clone();
        let called = endpoint.call(session, COUNT, request).into_buffer(response).then(
            move |_, _, reply| {
                ended.send(reply).expect("all ends are waited for");
            },
        );
        called.map_err(|rejected| rejected.error)?;
    }
    let mut counts = Vec::new();
    endpoint.run_until(|_, _| {
        counts.extend(ends.try_iter());
        counts.len() == KEYS as usize
    });
    let count = |reply: petrel::Reply| -> Result<u64, Box<dyn Error>> {
        Ok(u64::from_le_bytes(reply.message().map_err(Clone::clone)?.try_into()?))
    };
    counts.into_iter().map(count).collect()
}
