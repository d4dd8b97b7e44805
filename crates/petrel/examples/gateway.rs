//! An HTTP gateway before three replicas, which are killed one after the other: `cargo run --example gateway`.
//!
//! The gateway is an ordinary axum program with a Petrel client. Each HTTP request becomes a call to one of the replicas. While a replica is
//! dead, the client sends its calls to the others, so every HTTP request is answered.

mod processes;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use petrel::{Client, Server};
use processes::{Failure, Process, end_with_parent, free_address};

/// Answers with the request in capital letters.
const UPPER: u16 = 1;

/// HTTP requests answered between two events.
const ENOUGH: u64 = 500;

fn main() -> Result<(), Failure> {
    match &std::env::args().collect::<Vec<_>>()[1..] {
        [role, address] if role == "replica" => replica(address),
        _ => tokio::runtime::Runtime::new()?.block_on(gateway()),
    }
}

fn replica(address: &str) -> Result<(), Failure> {
    end_with_parent();
    let server = Server::bind(address).serve(
        |_| (),
        |endpoint| {
            endpoint.on(UPPER, |_, cx, request| {
                let upper = request.data().to_ascii_uppercase();
                request.reply(cx, &upper)
            });
        },
    );
    Ok(server.run()?)
}

async fn gateway() -> Result<(), Failure> {
    let addresses = [free_address()?, free_address()?, free_address()?];
    let start = |address: &SocketAddr| Process::start(&["replica", &address.to_string()]);
    // The gateway may start before the replicas.
    let client = Client::builder().lazy().connect(addresses).await?;
    let mut replicas = Vec::new();
    for address in &addresses {
        replicas.push(start(address)?);
    }
    let routes = Router::new().route("/upper/{word}", get(upper)).with_state(client);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let http = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, routes).await });

    let load = Load::start(http);
    load.answers_further(ENOUGH).await;
    for (number, address) in addresses.iter().enumerate() {
        replicas[number].kill()?;
        load.answers_further(ENOUGH).await;
        replicas[number] = start(address)?;
        load.answers_further(ENOUGH).await;
        println!("replica {number} was killed and started again");
    }
    println!("{} HTTP requests were answered, and none failed", load.end()?);
    Ok(())
}

async fn upper(State(client): State<Client>, Path(word): Path<String>) -> (StatusCode, Vec<u8>) {
    // The call may be executed twice, if a replica dies meanwhile.
    let call = client.call(UPPER, word).timeout(Duration::from_secs(20));
    match call.idempotent().wait_for_ready().await {
        Ok(reply) => (StatusCode::OK, reply.to_vec()),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string().into_bytes()),
    }
}

/// Threads make HTTP requests in sequence.
struct Load {
    answered: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<Result<(), Failure>>>,
}

impl Load {
    fn start(http: SocketAddr) -> Self {
        let (answered, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let threads = (0..4)
            .map(|_| {
                let (answered, is_over) = (Arc::clone(&answered), Arc::clone(&is_over));
                thread::spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let answer = request(http, "petrel")?;
                        let is_right = answer.contains(" 200 OK") && answer.ends_with("PETREL");
                        assert!(is_right, "{answer}");
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        Self { answered, is_over, threads }
    }

    async fn answers_further(&self, count: u64) {
        let end = self.answered.load(Ordering::Relaxed) + count;
        while self.answered.load(Ordering::Relaxed) < end {
            assert!(self.threads.iter().all(|thread| !thread.is_finished()), "a request failed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn end(self) -> Result<u64, Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a thread of the load does not panic")?;
        }
        Ok(self.answered.load(Ordering::Relaxed))
    }
}

fn request(http: SocketAddr, word: &str) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(http)?;
    write!(stream, "GET /upper/{word} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
