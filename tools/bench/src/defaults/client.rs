//! The client's process, by each way to call.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use petrel::client::Background;
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId};
use petrel::{Client, Context, Endpoint, Nexus};
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_transport::clock;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

use super::{CPU, ECHO, HEAD, WORK};
use petrel_command::args::BenchTransport;

/// Bytes of a call.
pub(super) const CALL_BYTES: usize = 32;

/// Bytes of a large call.
const BULK_BYTES: usize = 8 << 20;

/// Share of the time for the warm-up.
const WARM_UP_SHARE: u32 = 5;

/// Clients, on two backgrounds, of [`Way::Clients`].
const CLIENTS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// An endpoint of the caller's thread: one call after the other, each waited for.
    Endpoint,
    /// An endpoint with 60 calls in flight, by continuations.
    EndpointMany,
    /// [`Way::EndpointMany`] between two ends that poll and never sleep.
    EndpointManyPolls,
    /// An endpoint with one small call and one large call in flight on the same session.
    EndpointBesideBulk,
    /// [`Client::call`] from a thread that waits.
    Thread,
    /// [`Client::call`] from a task of tokio's runtime of several threads.
    Task,
    /// [`Client::call`] from 60 such tasks.
    Tasks,
    /// [`Client::call`] from a thousand such tasks.
    ManyTasks,
    /// 16 clients on two backgrounds, with a thread each.
    Clients,
}

/// The figures of one round.
pub(super) struct Taken {
    pub(super) calls: u64,
    pub(super) time: Duration,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) client_cpu_ns: u64,
    pub(super) server_cpu_ns: u64,
    /// Bytes of the large calls.
    pub(super) bulk_bytes: u64,
}

impl Way {
    /// The ways to call a server that only echoes.
    pub(super) const PLAIN: [Self; 8] = [
        Self::Endpoint,
        Self::EndpointMany,
        Self::EndpointManyPolls,
        Self::EndpointBesideBulk,
        Self::Thread,
        Self::Task,
        Self::Tasks,
        Self::ManyTasks,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Endpoint | Self::EndpointMany => "endpoint",
            Self::EndpointManyPolls => "endpoint, polling",
            Self::EndpointBesideBulk => "endpoint, beside 8 MiB",
            Self::Thread => "client, a thread",
            Self::Task | Self::Tasks | Self::ManyTasks => "client, tokio",
            Self::Clients => "16 clients, threads",
        }
    }

    /// Returns true if both ends poll and never sleep.
    pub(super) fn polls(self) -> bool {
        self == Self::EndpointManyPolls
    }

    pub(super) fn in_flight(self) -> usize {
        match self {
            Self::Endpoint | Self::EndpointBesideBulk | Self::Thread | Self::Task => 1,
            Self::EndpointMany | Self::EndpointManyPolls | Self::Tasks => 60,
            Self::ManyTasks => 1_000,
            Self::Clients => CLIENTS,
        }
    }

    /// Calls for some time, after a warm-up.
    pub(super) fn run(
        self,
        server: (SocketAddr, BenchTransport),
        time: Duration,
        work: Duration,
    ) -> Result<Taken, Failure> {
        let control = connect(server)?;
        let calls = Calls { control: &control, time, work };
        match self {
            Self::Endpoint => call_by_endpoint(server, &calls),
            Self::EndpointMany | Self::EndpointManyPolls | Self::EndpointBesideBulk => {
                call_by_continuations(server, self, &calls)
            }
            Self::Thread => calls.measure(|watch| watch_thread(&control, watch)),
            Self::Task | Self::Tasks | Self::ManyTasks => {
                call_by_tasks(&control, &calls, self.in_flight())
            }
            Self::Clients => call_by_clients(server, &calls),
        }
    }
}

/// Calls until a time, and their latencies. Times are those of [`clock::now_ns`].
struct Watch {
    warm_ns: u64,
    end_ns: u64,
    work: Duration,
    latencies: Histogram<u64>,
}

impl Watch {
    /// Records a call with its times and its response. Calls of the warm-up are checked, too.
    fn record(
        &mut self,
        (begun_ns, ended_ns): (u64, u64),
        request: &[u8],
        response: &[u8],
    ) -> Result<(), Failure> {
        if request != response {
            return Err(Failure::because("a response differs from the request"));
        }
        if begun_ns >= self.warm_ns {
            self.latencies.saturating_record(ended_ns - begun_ns);
        }
        Ok(())
    }

    fn method(&self) -> u16 {
        if self.work.is_zero() { ECHO } else { WORK }
    }

    fn request(&self) -> [u8; CALL_BYTES] {
        let mut request = [0x5A; CALL_BYTES];
        request[..8].copy_from_slice(&(self.work.as_nanos() as u64).to_le_bytes());
        request
    }

    /// Returns an empty watch of the same time, for the calls of another thread or task.
    fn part(&self) -> Self {
        Self { latencies: histogram(), ..*self }
    }
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}

struct Calls<'a> {
    control: &'a Client,
    time: Duration,
    work: Duration,
}

impl Calls<'_> {
    /// Measures the calls that `call` makes until its watch is over.
    fn measure(
        &self,
        call: impl FnOnce(Watch) -> Result<Histogram<u64>, Failure>,
    ) -> Result<Taken, Failure> {
        let warm = self.time / WARM_UP_SHARE;
        let begin = Instant::now();
        let warm_ns = clock::now_ns() + warm.as_nanos() as u64;
        let end_ns = warm_ns + self.time.as_nanos() as u64;
        let watch = Watch { warm_ns, end_ns, work: self.work, latencies: histogram() };
        let (client_before, server_before) = (cpu_ns(), server_cpu_ns(self.control)?);
        let latencies = call(watch)?;
        let (client_after, server_after) = (cpu_ns(), server_cpu_ns(self.control)?);
        // The CPU time includes the warm-up.
        let share = self.time.as_secs_f64() / begin.elapsed().as_secs_f64();
        let of_time = |before: u64, after: u64| ((after - before) as f64 * share) as u64;
        if latencies.is_empty() {
            return Err(Failure::because("no call has ended"));
        }
        Ok(Taken {
            calls: latencies.len(),
            time: self.time,
            p50_ns: latencies.value_at_quantile(0.5),
            p99_ns: latencies.value_at_quantile(0.99),
            client_cpu_ns: of_time(client_before, client_after),
            server_cpu_ns: of_time(server_before, server_after),
            bulk_bytes: 0,
        })
    }
}

/// Returns the CPU time of the server's process.
pub(super) fn server_cpu_ns(control: &Client) -> Result<u64, Failure> {
    let reply = control.call(CPU, "").wait().map_err(Failure::because)?;
    let bytes = reply.first_chunk().ok_or_else(|| Failure::because("no CPU time"))?;
    Ok(u64::from_le_bytes(*bytes))
}

pub(super) fn connect(
    (server, transport): (SocketAddr, BenchTransport),
) -> Result<Client, Failure> {
    let mut builder = Client::builder().transports(transport.only());
    if let Some(security) = credentials::get() {
        builder = builder.credentials(Arc::clone(security));
    }
    builder.connect_wait(server).map_err(Failure::because)
}

fn watch_thread(client: &Client, mut watch: Watch) -> Result<Histogram<u64>, Failure> {
    let request = watch.request();
    let mut begun_ns = clock::now_ns();
    while begun_ns < watch.end_ns {
        let response = client.call(watch.method(), request).wait().map_err(Failure::because)?;
        let ended_ns = clock::now_ns();
        watch.record((begun_ns, ended_ns), &request, &response)?;
        begun_ns = ended_ns;
    }
    Ok(watch.latencies)
}

fn call_by_tasks(client: &Client, calls: &Calls<'_>, tasks: usize) -> Result<Taken, Failure> {
    let runtime = Runtime::new()?;
    calls.measure(|mut watch| {
        let call = |mut part: Watch| {
            let client = client.clone();
            async move {
                let request = part.request();
                let mut begun_ns = clock::now_ns();
                while begun_ns < part.end_ns {
                    let response = client.call(part.method(), request).await;
                    let ended_ns = clock::now_ns();
                    let response = response.map_err(Failure::because)?;
                    part.record((begun_ns, ended_ns), &request, &response)?;
                    begun_ns = ended_ns;
                }
                Ok::<_, Failure>(part.latencies)
            }
        };
        let running: Vec<_> =
            (0..tasks).map(|_| runtime.spawn(boxed(call(watch.part())))).collect();
        for task in running {
            let latencies = runtime.block_on(task).map_err(Failure::because)??;
            watch.latencies.add(latencies).map_err(Failure::because)?;
        }
        Ok(watch.latencies)
    })
}

fn boxed<T>(
    future: impl Future<Output = T> + Send + 'static,
) -> std::pin::Pin<Box<dyn Future<Output = T> + Send>> {
    Box::pin(future)
}

fn call_by_clients(
    (server, transport): (SocketAddr, BenchTransport),
    calls: &Calls<'_>,
) -> Result<Taken, Failure> {
    let mut endpoint = EndpointConfig::default();
    endpoint.transports = transport.only();
    let nexus = || credentials::apply(Nexus::builder(), false);
    let start = || Background::builder().nexus(nexus()).endpoint(endpoint.clone()).start();
    let backgrounds = [start().map_err(Failure::because)?, start().map_err(Failure::because)?];
    let client = |number: usize| {
        let background = &backgrounds[number % backgrounds.len()];
        Client::builder().background(background).connect_wait(server).map_err(Failure::because)
    };
    let clients = (0..CLIENTS).map(client).collect::<Result<Vec<_>, _>>()?;
    calls.measure(|mut watch| {
        let parts = thread::scope(|scope| {
            let call = |client| {
                let part = watch.part();
                scope.spawn(move || watch_thread(client, part))
            };
            let running: Vec<_> = clients.iter().map(call).collect();
            let ended = running.into_iter().map(|thread| thread.join());
            ended.collect::<Vec<_>>()
        });
        for part in parts {
            let part = part.map_err(|_| Failure::because("a thread has panicked"))??;
            watch.latencies.add(part).map_err(Failure::because)?;
        }
        Ok(watch.latencies)
    })
}

/// Creates an endpoint with a session, as in the guide.
fn endpoint<S: 'static>(
    (server, transport): (SocketAddr, BenchTransport),
    idle: IdlePolicy,
    state: S,
) -> Result<(Endpoint<S>, SessionId), Failure> {
    let mut config = EndpointConfig::default();
    config.transports = transport.only();
    config.idle = idle;
    let nexus = credentials::apply(Nexus::builder(), false).start()?;
    let mut endpoint = nexus.endpoint_with(config, state).map_err(Failure::because)?;
    let session = endpoint.connect_wait(server).map_err(Failure::because)?;
    Ok((endpoint, session))
}

fn call_by_endpoint(
    server: (SocketAddr, BenchTransport),
    calls: &Calls<'_>,
) -> Result<Taken, Failure> {
    let (mut endpoint, session) = endpoint(server, IdlePolicy::default(), ())?;
    calls.measure(|mut watch| {
        let request = watch.request();
        let mut begun_ns = clock::now_ns();
        while begun_ns < watch.end_ns {
            let response = endpoint.call(session, watch.method(), &request).wait();
            let ended_ns = clock::now_ns();
            watch.record((begun_ns, ended_ns), &request, &response.map_err(Failure::because)?)?;
            begun_ns = ended_ns;
        }
        Ok(watch.latencies)
    })
}

/// The state of an endpoint with many calls.
struct Many {
    session: SessionId,
    watch: Option<Watch>,
    outstanding: usize,
    /// Whether one small call is in flight at a time.
    is_alone: bool,
    /// Bytes of the large calls that ended after the warm-up.
    bulk_bytes: u64,
    failure: Option<Failure>,
}

impl Many {
    /// Returns true if no further call is to begin.
    fn is_over(&self, now_ns: u64) -> bool {
        self.failure.is_some() || self.watch.as_ref().is_none_or(|watch| now_ns >= watch.end_ns)
    }
}

fn call_by_continuations(
    server: (SocketAddr, BenchTransport),
    way: Way,
    calls: &Calls<'_>,
) -> Result<Taken, Failure> {
    let idle = if way.polls() { IdlePolicy::Poll } else { IdlePolicy::default() };
    let session = SessionId { index: 0, generation: 0 };
    let is_alone = way.in_flight() == 1;
    let many =
        Many { session, watch: None, outstanding: 0, is_alone, bulk_bytes: 0, failure: None };
    let (mut endpoint, session) = endpoint(server, idle, many)?;
    endpoint.state_mut().session = session;
    let taken = calls.measure(|watch| {
        endpoint.state_mut().watch = Some(watch);
        endpoint.with(|many, cx| {
            if way == Way::EndpointBesideBulk {
                begin_bulk(many, cx);
            }
            for _ in 0..way.in_flight() {
                begin(many, cx);
            }
        });
        while endpoint.state_mut().outstanding > 0 {
            endpoint.run_for(Duration::from_secs(1), |many, _| many.outstanding == 0);
        }
        let many = endpoint.state_mut();
        match (many.failure.take(), many.watch.take()) {
            (Some(failure), _) => Err(failure),
            (None, watch) => Ok(watch.expect("it was given before").latencies),
        }
    })?;
    Ok(Taken { bulk_bytes: endpoint.state_mut().bulk_bytes, ..taken })
}

/// Begins a large call, whose end begins the next one.
fn begin_bulk(many: &mut Many, cx: &mut Context<'_, Many>) {
    if many.is_over(cx.now().as_ns()) {
        return;
    }
    let Ok(mut request) = cx.alloc(BULK_BYTES) else {
        many.failure = Some(Failure::because("there is no memory for a large request"));
        return;
    };
    // The rest are the bytes of a former message: reading them costs the same.
    request[..CALL_BYTES].fill(many.bulk_bytes as u8);
    let head = [many.bulk_bytes as u8; CALL_BYTES];
    let call = cx.call(many.session, HEAD, request);
    let made = call.then(move |many: &mut Many, cx, reply| {
        many.outstanding -= 1;
        match reply.into_response() {
            Ok(response) if response[..] == head => {
                let now_ns = cx.now().as_ns();
                let is_warm = many.watch.as_ref().is_some_and(|watch| now_ns >= watch.warm_ns);
                many.bulk_bytes += if is_warm { BULK_BYTES as u64 } else { 0 };
            }
            Ok(_) => many.failure = Some(Failure::because("a response differs from the request")),
            Err(error) => many.failure = Some(Failure::because(error)),
        }
        begin_bulk(many, cx);
    });
    match made {
        Ok(_) => many.outstanding += 1,
        Err(rejected) => many.failure = Some(Failure::because(petrel::Error::from(rejected))),
    }
}

/// Returns the time: of the clock for a call alone, else of the turn, which is precise enough.
fn now_ns(many: &Many, cx: &Context<'_, Many>) -> u64 {
    if many.is_alone { cx.clock_now().as_ns() } else { cx.now().as_ns() }
}

/// Begins a call, whose end begins the next one.
fn begin(many: &mut Many, cx: &mut Context<'_, Many>) {
    let begun_ns = now_ns(many, cx);
    let Some(watch) = many.watch.as_ref().filter(|_| !many.is_over(begun_ns)) else { return };
    let request = watch.request();
    let call = cx.call(many.session, watch.method(), &request);
    let made = call.then(move |many: &mut Many, cx, reply| {
        many.outstanding -= 1;
        let ended_ns = now_ns(many, cx);
        let recorded = match (reply.into_response(), &mut many.watch) {
            (Ok(response), Some(watch)) => watch.record((begun_ns, ended_ns), &request, &response),
            (Err(error), _) => Err(Failure::because(error)),
            (Ok(_), None) => Ok(()),
        };
        many.failure = many.failure.take().or(recorded.err());
        begin(many, cx);
    });
    match made {
        Ok(_) => many.outstanding += 1,
        Err(rejected) => many.failure = Some(Failure::because(petrel::Error::from(rejected))),
    }
}

/// Returns the CPU time of the process.
pub(super) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Computes for some time.
pub(super) fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
