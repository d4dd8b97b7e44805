//! Calls between two hosts, by endpoints of this process. The server logs every execution.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use petrel::client::{ClientConfig, Response};
use petrel::endpoint::{AllowedTransports, Device, EndpointConfig, EndpointStats};
use petrel::server::RunningServer;
use petrel::{Error, Nexus, Server, Status};
use petrel_netns::Host;

use crate::devices::{CLIENT, SERVER};

/// The method of all calls: the response is the request, which begins with the call's number.
const LOG: u16 = 1;

/// The server's data port.
pub(crate) const DATA_PORT: u16 = 7700;

/// The time limit of calls, and the time between two reports of progress.
const TIMEOUT: Duration = Duration::from_secs(20);
const SLICE: Duration = Duration::from_millis(10);

/// How many times the usual number of calls a test makes: `.ci/nightly` sets more than one.
pub(crate) fn times() -> u64 {
    std::env::var("PETREL_DEVICE_TIMES").map_or(1, |times| times.parse().unwrap())
}

/// The executions at the server.
#[derive(Clone, Default)]
pub(crate) struct Log {
    /// By the calls' numbers.
    executions: Arc<Mutex<HashMap<u64, u32>>>,
    /// Handlers wait while the first flag is set, and set the second one.
    stops: Arc<[AtomicBool; 2]>,
}

impl Log {
    fn note(&self, request: &[u8]) {
        let number = u64::from_le_bytes(*request.first_chunk().unwrap());
        *self.executions.lock().unwrap().entry(number).or_default() += 1;
        let [stop, is_stopped] = &*self.stops;
        while stop.load(Ordering::Acquire) {
            is_stopped.store(true, Ordering::Release);
            thread::yield_now();
        }
    }

    /// Runs `meanwhile` while a handler keeps the server's thread from everything else.
    pub(crate) fn with_stopped_server(&self, meanwhile: impl FnOnce()) {
        let [stop, is_stopped] = &*self.stops;
        is_stopped.store(false, Ordering::Release);
        stop.store(true, Ordering::Release);
        while !is_stopped.load(Ordering::Acquire) {
            thread::yield_now();
        }
        meanwhile();
        stop.store(false, Ordering::Release);
    }

    fn executions(&self, number: u64) -> u32 {
        self.executions.lock().unwrap().get(&number).copied().unwrap_or(0)
    }
}

pub(crate) fn serve(host: &Host, device: Device, log: &Log) -> RunningServer {
    let log = log.clone();
    let mut config = EndpointConfig::default();
    config.host.udp.bind.set_port(DATA_PORT);
    let start = move || {
        let server = Server::bind((SERVER, 0)).insecure().endpoint(config).device(device);
        let server = server.serve(
            |_| (),
            move |endpoint| {
                let log = log.clone();
                endpoint.on(LOG, move |_, cx, request| {
                    log.note(request.data());
                    let response = request.data().to_vec();
                    request.reply(cx, &response)
                });
            },
        );
        server.start().unwrap()
    };
    host.spawn(start).join().unwrap()
}

/// Calls to make, numbered from `first` on.
pub(crate) struct Plan {
    pub(crate) first: u64,
    pub(crate) in_flight: usize,
    /// The size of each call's request and response.
    pub(crate) bytes_of: fn(u64) -> usize,
}

#[derive(Default)]
pub(crate) struct Ended {
    begun: u64,
    is_over: bool,
    pub(crate) answered: Vec<u64>,
    pub(crate) late: Vec<u64>,
    /// Calls that failed otherwise, which must not happen.
    failed: Vec<(u64, String)>,
}

impl Ended {
    fn count(&self) -> u64 {
        (self.answered.len() + self.late.len() + self.failed.len()) as u64
    }

    fn note(&mut self, number: u64, expected: &[u8], result: Result<Response, Error>) {
        match result {
            Ok(response) if response[..] == *expected => self.answered.push(number),
            Ok(_) => self.failed.push((number, "a wrong response".to_owned())),
            Err(error) if error.status == Status::DeadlineExceeded => self.late.push(number),
            Err(error) => self.failed.push((number, error.to_string())),
        }
    }

    /// Checks that no call was executed twice, none answered without an execution, and none failed but by its deadline.
    pub(crate) fn check(&self, log: &Log) {
        assert!(self.failed.is_empty(), "{:?}", &self.failed[..self.failed.len().min(5)]);
        assert!(self.answered.iter().all(|number| log.executions(*number) == 1));
        assert!(self.late.iter().all(|number| log.executions(*number) <= 1));
    }
}

/// Makes calls by an endpoint of this thread while `goes_on` returns true. `goes_on` gets the calls that have ended and the counters.
pub(crate) fn call(
    server: SocketAddr,
    device: Device,
    plan: &Plan,
    mut goes_on: impl FnMut(u64, EndpointStats) -> bool,
) -> Ended {
    let nexus = Nexus::builder().insecure().device(device).start().unwrap();
    let mut config = EndpointConfig::default();
    config.data_address = Some(CLIENT.into());
    config.transports = AllowedTransports { udp: true, shm: false, stream: false, verbs: false };
    let mut endpoint = nexus.endpoint(config).unwrap();
    let client = Rc::new(endpoint.client([server], ClientConfig::default()));
    let ended = Rc::new(RefCell::new(Ended::default()));
    for _ in 0..plan.in_flight {
        let (client, ended) = (Rc::clone(&client), Rc::clone(&ended));
        let Plan { first, bytes_of, .. } = *plan;
        endpoint.handle().spawn(async move {
            while !ended.borrow().is_over {
                let number = first + ended.borrow().begun;
                ended.borrow_mut().begun += 1;
                let mut request = vec![number as u8; bytes_of(number).max(8)];
                request[..8].copy_from_slice(&number.to_le_bytes());
                let call = client.call(LOG, request.clone()).timeout(TIMEOUT);
                let result = call.wait_for_ready().await;
                ended.borrow_mut().note(number, &request, result);
            }
        });
    }
    loop {
        endpoint.run_for(SLICE, |_, _| false);
        let count = ended.borrow().count();
        let is_over = !goes_on(count, endpoint.stats());
        ended.borrow_mut().is_over |= is_over;
        if is_over && count == ended.borrow().begun {
            return ended.take();
        }
    }
}
