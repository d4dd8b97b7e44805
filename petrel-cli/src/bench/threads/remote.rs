//! Calls of another thread than the endpoint's.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use petrel::transport::clock::now_ns;
use petrel::{Endpoint, EndpointConfig, Nexus, RemoteCall, SessionClient, Stop};

use super::{Calls, Tally, WORK};
use crate::failure::Failure;

/// A client handle, and the thread that runs its endpoint until this is dropped.
pub(super) struct RemoteCaller {
    client: SessionClient,
    next: u64,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl RemoteCaller {
    pub(super) fn start(config: &EndpointConfig, server: SocketAddr) -> Result<Self, Failure> {
        let (ready, started) = mpsc::channel();
        let config = config.clone();
        let thread = thread::spawn(move || match connect(config, server) {
            Ok((mut endpoint, client)) => {
                let stop = endpoint.stop_handle();
                // If nobody waits the measurement is over.
                let _ = ready.send(Ok((client, stop.clone())));
                endpoint.run(&stop);
            }
            Err(failure) => drop(ready.send(Err(failure))),
        });
        let (client, stop) = started.recv().map_err(Failure::because)??;
        Ok(Self { client, next: 0, stop, thread: Some(thread) })
    }

    fn call(&mut self) -> Result<Flying, Failure> {
        let number = self.next;
        self.next += 1;
        let started_ns = now_ns();
        let call = self.client.start(WORK, number.to_le_bytes(), 8).map_err(Failure::because)?;
        Ok(Flying { number, started_ns, call })
    }
}

/// A call on its way.
struct Flying {
    number: u64,
    started_ns: u64,
    call: RemoteCall,
}

fn connect(
    config: EndpointConfig,
    server: SocketAddr,
) -> Result<(Endpoint, SessionClient), Failure> {
    let endpoint = Nexus::builder().start()?.endpoint(config);
    let mut endpoint = endpoint.map_err(Failure::because)?;
    let session = endpoint.connect_wait(server)?;
    let client = endpoint.session_client(session);
    Ok((endpoint, client))
}

impl Calls for RemoteCaller {
    /// Waits for the oldest call: those behind it count as ended when their turn comes.
    fn window(
        &mut self,
        in_flight: usize,
        length: Duration,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let first = (0..in_flight).map(|_| self.call());
        let mut flying = first.collect::<Result<VecDeque<_>, _>>()?;
        let (begin, mut done) = (Instant::now(), 0);
        while let Some(Flying { number, started_ns, call }) = flying.pop_front() {
            let outcome = call.wait();
            tally.count(number, now_ns() - started_ns, outcome.as_deref().ok());
            done += 1;
            if begin.elapsed() < length {
                flying.push_back(self.call()?);
            }
        }
        tally.rates.push(f64::from(done) / begin.elapsed().as_secs_f64());
        Ok(())
    }
}

impl Drop for RemoteCaller {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said why.
            let _ = thread.join();
        }
    }
}
