//! Calls from a thread other than the endpoint's.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use petrel::client::Call;
use petrel::client::ClientConfig;
use petrel::endpoint::{EndpointConfig, Stop};
use petrel::{Client, Endpoint, Nexus};
use petrel_command::failure::Failure;
use petrel_transport::clock::now_ns;

use super::{Calls, Counts, WORK};

/// A client, and the thread of its endpoint, which ends when the value is dropped.
pub(super) struct ClientThread {
    client: Client,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl ClientThread {
    pub(super) fn start(config: &EndpointConfig, server: SocketAddr) -> Result<Self, Failure> {
        let (sender, receiver) = mpsc::channel();
        let config = config.clone();
        let thread = thread::spawn(move || match connect(config, server) {
            Ok((mut endpoint, client)) => {
                let stop = endpoint.stop_handle();
                // If the receiver is gone, the measurement is over.
                let _ = sender.send(Ok((client, stop.clone())));
                endpoint.run(&stop);
            }
            Err(failure) => drop(sender.send(Err(failure))),
        });
        let (client, stop) = receiver.recv().map_err(Failure::because)??;
        Ok(Self { client, stop, thread: Some(thread) })
    }
}

/// A source of calls by a client that others may share.
pub(super) struct RemoteCaller {
    shared: Arc<ClientThread>,
    next: u64,
}

impl RemoteCaller {
    pub(super) fn new(shared: Arc<ClientThread>) -> Self {
        Self { shared, next: 0 }
    }

    fn call(&mut self) -> OutstandingCall {
        let number = self.next;
        self.next += 1;
        let started_ns = now_ns();
        let call = self.shared.client.call(WORK, number.to_le_bytes()).started();
        OutstandingCall { number, started_ns, call }
    }
}

/// An outstanding call.
struct OutstandingCall {
    number: u64,
    started_ns: u64,
    call: Call,
}

fn connect(config: EndpointConfig, server: SocketAddr) -> Result<(Endpoint, Client), Failure> {
    let endpoint = Nexus::builder().start()?.endpoint(config);
    let mut endpoint = endpoint.map_err(Failure::because)?;
    let config = ClientConfig::default();
    let client = endpoint.client([server], config);
    endpoint.run_until(|_, _| client.stats().servers_ready > 0);
    Ok((endpoint, client))
}

impl Calls for RemoteCaller {
    /// Waits for the oldest call: later calls count when their turn comes.
    fn window(
        &mut self,
        in_flight: usize,
        length: Duration,
        counts: &mut Counts,
    ) -> Result<(), Failure> {
        let mut outstanding: VecDeque<_> = (0..in_flight).map(|_| self.call()).collect();
        let (begin, mut done) = (Instant::now(), 0);
        while let Some(OutstandingCall { number, started_ns, call }) = outstanding.pop_front() {
            let outcome = call.wait();
            counts.count(number, now_ns() - started_ns, outcome.as_deref().ok());
            done += 1;
            if begin.elapsed() < length {
                outstanding.push_back(self.call());
            }
        }
        counts.rates.push(f64::from(done) / begin.elapsed().as_secs_f64());
        Ok(())
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}
