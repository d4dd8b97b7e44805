//! Servers are replaced under load, without a lost call: `cargo run --example drain`.
//!
//! A draining server asks its clients to leave, and serves them until they leave. The client sends all calls to remaining
//! servers.

use std::cell::Cell;
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use petrel::client::ClientConfig;
use petrel::endpoint::{CallOptions, EndpointConfig, Stop};
use petrel::task::Handle;
use petrel::{Client, Endpoint, Nexus};

type Failure = Box<dyn Error + Send + Sync>;

const DOUBLE: u16 = 1;

/// Outstanding calls at all times.
const AT_ONCE: u64 = 16;

/// Answers to wait for before a server goes.
const ENOUGH: u64 = 1000;

fn main() -> Result<(), Failure> {
    let mut servers = vec![Server::start("one")?, Server::start("two")?];
    let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
    let handle = endpoint.handle();
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let client = endpoint.client(addresses, ClientConfig::default());
    let load = Rc::new(Load::default());
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|first| handle.spawn(Rc::clone(&load).call_on(client.clone(), first)))
        .collect();

    endpoint.block_on(async {
        while client.stats().servers_ready < 2 {
            handle.sleep(Duration::from_millis(1)).await;
        }
        load.wait_for(&handle, ENOUGH).await;
        // As a handler of SIGTERM would do.
        let leaving = servers.remove(0);
        let name = leaving.name;
        let served = leaving.drain(&handle).await?;
        println!("server {name} has served {served} calls, and has gone");
        load.wait_for(&handle, ENOUGH).await;
        load.is_over.set(true);
        for task in tasks {
            task.await?;
        }
        Ok::<_, Failure>(())
    })?;
    println!("{} calls were answered, and none was lost", load.answered.get());

    // No client is left.
    drop((client, endpoint));
    for server in servers {
        server.stop.stop();
        let name = server.name;
        println!("server {name} has served {} calls", server.result()?);
    }
    Ok(())
}

/// A continuous load of calls.
#[derive(Default)]
struct Load {
    answered: Cell<u64>,
    is_over: Cell<bool>,
}

impl Load {
    /// Makes one call after the other. A failed call ends the program.
    async fn call_on(self: Rc<Self>, client: Client, first: u64) -> Result<(), Failure> {
        // Calls may not be executed twice: the client retries only calls that certainly were not executed.
        let options = CallOptions::new().timeout(Duration::from_secs(60)).wait_for_ready();
        let mut number = first;
        while !self.is_over.get() {
            let answer = client.call(DOUBLE, number.to_le_bytes()).options(options).await?;
            assert_eq!(answer[..], (2 * number).to_le_bytes());
            self.answered.set(self.answered.get() + 1);
            number += AT_ONCE;
        }
        Ok(())
    }

    /// Waits for `count` further answers.
    async fn wait_for(&self, handle: &Handle, count: u64) {
        let enough = self.answered.get() + count;
        while self.answered.get() < enough {
            handle.sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A server on a separate thread, in place of another process.
struct Server {
    name: &'static str,
    address: SocketAddr,
    stop: Stop,
    thread: JoinHandle<Result<u64, String>>,
}

impl Server {
    fn start(name: &'static str) -> Result<Self, Failure> {
        let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
        let address = nexus.local_addr().ok_or("it listens")?;
        let (ready, started) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut endpoint =
                nexus.endpoint(EndpointConfig::default()).map_err(|error| error.to_string())?;
            let stop = endpoint.stop_handle();
            ready.send(stop.clone()).map_err(|_| "nobody waits for the server")?;
            serve_until(&mut endpoint, &stop)
        });
        Ok(Self { name, address, stop: started.recv()?, thread })
    }

    /// Drains the server while the load goes on, and returns its number of served calls.
    async fn drain(self, handle: &Handle) -> Result<u64, Failure> {
        self.stop.stop();
        while !self.thread.is_finished() {
            handle.sleep(Duration::from_millis(1)).await;
        }
        self.result()
    }

    fn result(self) -> Result<u64, Failure> {
        Ok(self.thread.join().map_err(|_| "the server panicked")??)
    }
}

/// Serves until `stop`, and then until no client is left. Returns the number of served calls.
fn serve_until(endpoint: &mut Endpoint, stop: &Stop) -> Result<u64, String> {
    let served = Rc::new(Cell::new(0));
    let count = Rc::clone(&served);
    endpoint.on(DOUBLE, move |_, cx, request| {
        count.set(count.get() + 1);
        let number = u64::from_le_bytes(request.data().try_into().expect("eight bytes"));
        request.reply(cx, &(2 * number).to_le_bytes())
    });
    endpoint.run(stop);
    match endpoint.drain(Duration::from_secs(60)) {
        0 => Ok(served.get()),
        sent_away => Err(format!("{sent_away} sessions were still there after 60 s")),
    }
}
