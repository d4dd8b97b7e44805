//! Servers of the threading models.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use petrel::endpoint::EndpointId;
use petrel::endpoint::{EndpointConfig, Stop};
use petrel::overload::Shedding;
use petrel::workers::Workers;
use petrel::{Endpoint, Nexus};
use petrel_command::failure::Failure;

use super::WORK;
use super::work::Job;

/// A server with an endpoint per thread, and optionally workers; runs until dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    threads: Vec<(Stop, JoinHandle<()>)>,
    /// Dropped after the threads have ended: late answers of workers are lost.
    _workers: Option<Arc<Workers>>,
}

impl Server {
    pub(super) fn start(
        config: &EndpointConfig,
        endpoints: usize,
        workers: usize,
        job: Job,
    ) -> Result<Self, Failure> {
        let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start()?;
        let address =
            nexus.local_addr().ok_or_else(|| Failure::because("the server has no address"))?;
        let pool = (workers > 0).then(|| start_workers(config, workers)).transpose()?;
        let mut threads = Vec::new();
        for number in 0..endpoints {
            let mut config = config.clone();
            config.id = Some(EndpointId(number as u16));
            threads.push(serve(nexus.clone(), config, pool.clone(), job)?);
        }
        Ok(Self { address, threads, _workers: pool })
    }
}

fn start_workers(config: &EndpointConfig, count: usize) -> Result<Arc<Workers>, Failure> {
    // The default policy's work for every request, with a longer target: if another program keeps a
    // worker from its CPU for a millisecond, no call must be refused.
    let shedding = Shedding::ExpectedWait { target: Duration::from_secs(10), services: 100 };
    let workers = Workers::builder().threads(count).shedding(shedding).idle(config.idle).start();
    Ok(Arc::new(workers.map_err(Failure::because)?))
}

fn serve(
    nexus: Nexus,
    config: EndpointConfig,
    pool: Option<Arc<Workers>>,
    job: Job,
) -> Result<(Stop, JoinHandle<()>), Failure> {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || match nexus.endpoint(config) {
        Ok(mut endpoint) => {
            register(&mut endpoint, pool.as_deref(), job);
            let stop = endpoint.stop_handle();
            // If the receiver is gone, the measurement is over.
            let _ = sender.send(Ok(stop.clone()));
            endpoint.run(&stop);
        }
        Err(error) => drop(sender.send(Err(error.to_string()))),
    });
    let stop = receiver.recv().map_err(Failure::because)?.map_err(Failure::because)?;
    Ok((stop, thread))
}

fn register(endpoint: &mut Endpoint, pool: Option<&Workers>, job: Job) {
    match pool {
        None => endpoint.on(WORK, move |_, cx, request| {
            let answer = job.execute(request.data());
            request.reply(cx, &answer)
        }),
        Some(workers) => endpoint.on_worker(WORK, workers, move |request| {
            let answer = job.execute(request.data());
            request.reply(&answer);
        }),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.threads.iter().for_each(|(stop, _)| stop.stop());
        for (_, thread) in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}
