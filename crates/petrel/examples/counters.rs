//! Counters divided among the threads of a server, which a new process takes over while clients count:
//! `cargo run --example counters`.
//!
//! A thread owns the counters of its keys. At SIGTERM the server drains, collects the counters of its threads, and starts its
//! successor with the listening socket and the counters. Calls meanwhile wait. The clients' increments are not repeated, and none is lost.

mod processes;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use petrel::server::{inherited_listeners, inherited_state, start_successor};
use petrel::{Client, Server};
use processes::{Failure, Process, free_address};
use rustix::process::{Pid, Signal, kill_process};

/// Adds one to the counter of the key, and answers with the sum.
const ADD: u16 = 1;
/// Answers with the id of the process.
const PROCESS: u16 = 2;

const KEYS: u64 = 64;
const THREADS: usize = 2;
const TAKE_OVERS: usize = 3;

type Counters = BTreeMap<u64, u64>;

fn main() -> Result<(), Failure> {
    match &std::env::args().collect::<Vec<_>>()[1..] {
        [role, address] if role == "serve" => serve(address),
        _ => count(),
    }
}

fn serve(address: &str) -> Result<(), Failure> {
    let counters = decode(&inherited_state()?.unwrap_or_default());
    let socket = match inherited_listeners()?.pop() {
        Some(socket) => socket,
        None => TcpListener::bind(address)?,
    };
    let (states, ended) = mpsc::channel();
    let server = Server::listen_on(socket.try_clone()?).threads(THREADS).serve(
        move |thread| {
            let own = counters.iter().filter(|(key, _)| thread.owns(&key.to_le_bytes()));
            own.map(|(key, sum)| (*key, *sum)).collect::<Counters>()
        },
        |endpoint| {
            endpoint.on(ADD, |counters, cx, request| {
                let key = u64::from_le_bytes(request.data().try_into().expect("a key"));
                let sum = counters.entry(key).or_default();
                *sum += 1;
                request.reply(cx, &sum.to_le_bytes())
            });
            endpoint
                .on(PROCESS, |_, cx, request| request.reply(cx, &std::process::id().to_le_bytes()));
        },
    );
    server
        .at_end(move |_, counters| states.send(counters).expect("the main thread waits"))
        .run()?;
    let all: Counters = ended.iter().take(THREADS).flatten().collect();
    let mut successor = Command::new(std::env::current_exe()?);
    start_successor(successor.args(["serve", address]), [&socket], &encode(&all))?;
    Ok(())
}

fn count() -> Result<(), Failure> {
    let address = free_address()?;
    let _first = Process::start(&["serve", &address.to_string()])?;
    let client = Client::builder().lazy().connect_wait(address)?;
    let (added, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let sums = thread::scope(|scope| {
        let counting: Vec<_> = (0..4)
            .map(|first| {
                scope.spawn({
                    let (client, added, is_over) = (&client, &added, &is_over);
                    move || {
                        let mut key = first;
                        while !is_over.load(Ordering::Relaxed) {
                            add(client, key % KEYS)?;
                            added.fetch_add(1, Ordering::Relaxed);
                            key += 4;
                        }
                        Ok::<_, Failure>(())
                    }
                })
            })
            .collect();
        for _ in 0..TAKE_OVERS {
            take_over(&client, &added)?;
        }
        is_over.store(true, Ordering::Relaxed);
        for thread in counting {
            thread.join().expect("a counting thread does not panic")?;
        }
        // Adds one to each.
        (0..KEYS).map(|key| add(&client, key)).sum::<Result<u64, Failure>>()
    });
    let last = process(&client)?;
    kill_process(last, Signal::KILL)?;
    let (sums, added) = (sums?, added.load(Ordering::Relaxed));
    assert_eq!(sums, added + KEYS, "each increment counts once");
    println!("{added} increments, and {TAKE_OVERS} processes took over: none was lost or repeated");
    Ok(())
}

/// Lets a new process take over, and waits until it serves.
fn take_over(client: &Client, added: &AtomicU64) -> Result<(), Failure> {
    let before = process(client)?;
    let enough = added.load(Ordering::Relaxed) + 1_000;
    while added.load(Ordering::Relaxed) < enough {
        thread::sleep(Duration::from_millis(1));
    }
    kill_process(before, Signal::TERM)?;
    while process(client)? == before {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn add(client: &Client, key: u64) -> Result<u64, Failure> {
    let key = key.to_le_bytes();
    // Not idempotent: the client repeats the call only if it was certainly not executed.
    let call = client.call(ADD, key).key(key).timeout(Duration::from_secs(60));
    Ok(u64::from_le_bytes(call.wait_for_ready().wait()?[..].try_into()?))
}

fn process(client: &Client) -> Result<Pid, Failure> {
    let call = client.call(PROCESS, "").timeout(Duration::from_secs(60));
    let id = i32::from_le_bytes(call.wait_for_ready().idempotent().wait()?[..].try_into()?);
    Pid::from_raw(id).ok_or_else(|| "a process has an id".into())
}

fn encode(counters: &Counters) -> Vec<u8> {
    counters.iter().flat_map(|(key, sum)| [key.to_le_bytes(), sum.to_le_bytes()].concat()).collect()
}

fn decode(state: &[u8]) -> Counters {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    state.chunks_exact(16).map(|pair| (number(&pair[..8]), number(&pair[8..]))).collect()
}
