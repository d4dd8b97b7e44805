//! The server: an endpoint with handlers on workers, and a handler that passes requests to a thread.

use std::panic;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use petrel::client::ClientConfig;
use petrel::endpoint::{CallOptions, EndpointConfig, Stop};
use petrel::overload::Shedding;
use petrel::workers::{WorkerRequest, Workers, WorkersStats};
use petrel::{Client, Status, model};
use shuttle::sync::mpsc;
use shuttle::thread;

use crate::ledger::{CallId, Ledger, Method};
use crate::medium::{Control, EndpointIndex, Medium, Port};
use crate::spec::Spec;

pub(crate) const SERVER: EndpointIndex = EndpointIndex(0);
pub(crate) const CLIENT: EndpointIndex = EndpointIndex(1);

pub(crate) type Endpoint = petrel::Endpoint<(), Port, Control>;

/// The pool, until its end.
#[derive(Clone, Default)]
pub(crate) struct PoolSlot(Arc<Mutex<Place>>);

#[derive(Default)]
struct Place {
    workers: Option<Workers>,
    /// A handler drops the pool, and waits for the other workers.
    is_being_dropped: bool,
}

impl PoolSlot {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.lock().expect("a lock that is held while nothing can panic")
    }

    fn put(&self, workers: Workers) {
        self.place().workers = Some(workers);
    }

    pub(crate) fn take(&self) -> Option<Workers> {
        self.place().workers.take()
    }

    pub(crate) fn stats(&self) -> Option<WorkersStats> {
        self.place().workers.as_ref().map(Workers::stats)
    }

    pub(crate) fn is_being_dropped(&self) -> bool {
        self.place().is_being_dropped
    }

    fn drop_pool(&self) {
        let taken = {
            let mut place = self.place();
            place.is_being_dropped |= place.workers.is_some();
            place.workers.take()
        };
        if taken.is_some() {
            drop(taken);
            self.place().is_being_dropped = false;
        }
    }
}

pub(crate) fn open_endpoint(spec: &Spec, medium: &Medium, at: EndpointIndex) -> Endpoint {
    let (port, control) = medium.attach(at, spec.seed ^ at.0 as u64);
    let mut config = EndpointConfig::default();
    config.idle = spec.endpoint_idle;
    config.client_calls_max = spec.client_calls_max;
    config.sessions.slots = 8;
    Endpoint::new(port, control, &config).expect("a configuration that keeps the rules")
}

fn start_pool(spec: &Spec) -> Workers {
    let mut builder = Workers::builder()
        .threads(spec.workers)
        .queue_requests(spec.queue_requests)
        .queue_bytes(spec.queue_bytes)
        .name("worker");
    // The default otherwise.
    if spec.shedding != Shedding::default() {
        builder = builder.shedding(spec.shedding);
    }
    if let Some(idle) = spec.worker_idle {
        builder = builder.idle(idle);
    }
    builder.start().expect("threads")
}

/// The state shared by handlers.
struct Service {
    ledger: Arc<Ledger>,
    pool: PoolSlot,
    /// From the server's endpoint to the client's.
    client: Client,
}

/// The server's thread.
pub(crate) fn serve(
    spec: &Spec,
    medium: &Medium,
    ledger: &Arc<Ledger>,
    pool: &PoolSlot,
    ready: &mpsc::Sender<Stop>,
) {
    let mut endpoint = open_endpoint(spec, medium, SERVER);
    let client = endpoint.client([CLIENT.address()], plain());
    let workers = start_pool(spec);
    let service = Arc::new(Service { ledger: Arc::clone(ledger), pool: pool.clone(), client });
    register(&mut endpoint, &workers, &service);
    let relay = register_relay(&mut endpoint, ledger);
    pool.put(workers);
    let stop = endpoint.stop_handle();
    ready.send(stop.clone()).expect("the world waits");
    endpoint.run(&stop);
    drop(endpoint);
    // The endpoint's handler owned the sender.
    relay.join().expect("the relay does not panic");
}

fn register(endpoint: &mut Endpoint, workers: &Workers, service: &Arc<Service>) {
    use Method::*;
    for method in [Work, Reuse, Fail, Panic, Forget, Sleep, Watch, Nest, DropPool] {
        let service = Arc::clone(service);
        endpoint.on_worker(method as u16, workers, move |request| {
            assert_eq!(request.method(), method as u16);
            service.execute(method, request);
        });
    }
}

impl Service {
    fn execute(&self, method: Method, mut request: WorkerRequest) {
        let id = CallId::of_request(request.data());
        // Every call of a client has a deadline.
        assert!(request.deadline().is_some() && request.time_left().is_some(), "{request:?}");
        self.ledger.execute(id, method);
        match method {
            Method::Fail => return request.fail(Status::Aborted, "as asked"),
            Method::Forget => return,
            // Without the panic hook's output.
            Method::Panic => panic::resume_unwind(Box::new("as asked")),
            Method::Reuse => {
                let mut memory = request.take_data();
                assert!(request.data().is_empty());
                memory.clear();
                memory.extend_from_slice(&id.answer());
                return request.reply_vec(memory);
            }
            Method::Sleep => sleep(Duration::from_micros(20)),
            Method::Watch => watch(&request),
            Method::Nest => {
                // The call inherits the deadline, also if it is set explicitly.
                let options = match id.is_even() {
                    true => CallOptions::new(),
                    false => CallOptions::new().within(&request),
                };
                let (echo, message) = (Method::Echo as u16, id.request(0));
                match self.client.call(echo, message).options(options).wait() {
                    Ok(answer) => assert_eq!(answer, id.request(0)),
                    Err(failure) => return request.fail(failure.status, &failure.message),
                }
            }
            Method::DropPool => self.pool.drop_pool(),
            Method::Work | Method::Relay | Method::RelayForget | Method::Echo => {}
        }
        request.reply(&id.answer());
    }
}

/// Checks for cancellation at intervals, and goes on if the caller still waits.
fn watch(request: &WorkerRequest) {
    for _ in 0..20 {
        if request.is_cancelled() {
            return;
        }
        thread::yield_now();
    }
}

fn sleep(span: Duration) {
    let end_ns = model::now_ns() + span.as_nanos() as u64;
    while model::now_ns() < end_ns {
        model::park_until(Some(end_ns));
    }
}

/// A thread that answers requests without a pool.
fn register_relay(endpoint: &mut Endpoint, ledger: &Arc<Ledger>) -> thread::JoinHandle<()> {
    let (pass_on, requests) = mpsc::channel::<WorkerRequest>();
    for method in [Method::Relay, Method::RelayForget] {
        let pass_on = pass_on.clone();
        endpoint.on(method as u16, move |_, cx, request| {
            let (request, handled) = request.detach(cx);
            pass_on.send(request).expect("the relay lives as long as the endpoint");
            handled
        });
    }
    let ledger = Arc::clone(ledger);
    thread::spawn(move || {
        for request in requests {
            let id = CallId::of_request(request.data());
            match request.method() == Method::Relay as u16 {
                true => {
                    ledger.execute(id, Method::Relay);
                    request.reply(&id.answer());
                }
                false => ledger.execute(id, Method::RelayForget),
            }
        }
    })
}

/// Each call is attempted once.
pub(crate) fn plain() -> ClientConfig {
    let mut config = ClientConfig::default();
    // The limit set by a refusal waits for a time, and a world without waits for a time has refusals, too.
    (config.attempts_max, config.concurrency) = (1, None);
    // Each reading of the model's clock takes some nanoseconds, and is a step of the schedule.
    config.connect_backoff.first = Duration::from_micros(1);
    config.retry_backoff.first = Duration::from_micros(1);
    config
}
