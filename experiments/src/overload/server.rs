//! The server's process: an endpoint, workers that sleep for every request, and their counters.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use petrel::endpoint::EndpointConfig;
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Nexus, Status};
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use serde::Serialize;

use super::args::{OverloadServerArgs, WorkArgs};
use super::wire::{self, Done};
use petrel_bench::measure::process::end_with_parent;

/// The line that tells the client the address.
#[derive(Serialize)]
struct Ready {
    address: SocketAddr,
}

/// The counters of the workers.
#[derive(Default)]
struct WorkCounts {
    executed: AtomicU64,
    wasted: AtomicU64,
    busy_ns: AtomicU64,
}

/// Serves until the process is killed, at the latest when its parent has ended.
pub(crate) fn run(args: &OverloadServerArgs, output: Output) -> Result<(), Failure> {
    end_with_parent()?;
    let transports = args.transport.only();
    let listen = ([127, 0, 0, 1], 0).into();
    let nexus = Nexus::builder().listen(listen).transports(transports).start()?;
    let address = nexus.local_addr().unwrap_or(listen);
    let mut config = EndpointConfig::default();
    config.transports = transports;
    let mut endpoint = nexus.endpoint(config).map_err(Failure::because)?;
    let counts = Arc::new(WorkCounts::default());
    let workers = workers(args)?;
    let (work, done, service) = (Arc::clone(&counts), counts, args.work.service);
    endpoint.on_worker(wire::WORK, &workers, move |request| run_one(request, service, &work));
    endpoint.on(wire::TAKE, move |_, cx, request| request.reply(cx, &done.take().to_bytes()));
    output.record(&Ready { address })?;
    let stop = endpoint.stop_handle();
    endpoint.run(&stop);
    Ok(())
}

fn workers(args: &OverloadServerArgs) -> Result<Workers, Failure> {
    let WorkArgs { workers, target, .. } = args.work;
    let admission = args.policy.admission(target);
    let builder = Workers::builder()
        .threads(workers.into())
        .queue_requests(admission.requests_max)
        .queue_bytes(admission.bytes_max)
        .shedding(admission.shedding);
    Ok(builder.start()?)
}

fn run_one(request: WorkerRequest, service: Duration, counts: &WorkCounts) {
    let begin_ns = wire::now_ns();
    let Some(useful_until_ns) = wire::useful_until_ns(request.data()) else {
        return request.fail(Status::InvalidArgument, "no request of this benchmark");
    };
    thread::sleep(service);
    let reply = wire::reply_to(request.data());
    let end_ns = wire::now_ns();
    counts.add(end_ns > useful_until_ns, end_ns - begin_ns);
    request.reply(&reply);
}

impl WorkCounts {
    fn add(&self, is_wasted: bool, busy_ns: u64) {
        // Only the sums are used, and no conclusion relates one sum to another.
        self.executed.fetch_add(1, Ordering::Relaxed);
        self.wasted.fetch_add(is_wasted.into(), Ordering::Relaxed);
        self.busy_ns.fetch_add(busy_ns, Ordering::Relaxed);
    }

    /// Returns and resets the counts since the last call.
    fn take(&self) -> Done {
        let take = |sum: &AtomicU64| sum.swap(0, Ordering::Relaxed);
        Done {
            executed: take(&self.executed),
            wasted: take(&self.wasted),
            busy_ns: take(&self.busy_ns),
        }
    }
}
