//! The test bed of a measurement: threads, CPUs and addresses, and the placement of ends.

use std::net::IpAddr;
use std::rc::Rc;
use std::thread;

use petrel_command::cores::{self, CpuPlacement};
use petrel_command::failure::Failure;

use super::ends::{ClientEnd, OneThread, ServerEnd, Side, TwoThreads};
use super::probe::Probe;
use super::server_thread::{EndIndex, IdleServerEnd, ServerThread};

/// Whether the two ends share a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// The two ends take turns in one thread.
    One,
    /// The ends have separate threads and CPUs.
    Two,
}

/// Threads, CPUs and addresses.
pub struct TestBed {
    cores: Cores,
    /// The second thread: for the answering ends, or to keep the second CPU busy.
    server_thread: Option<Rc<ServerThread>>,
    idle_end: Option<EndIndex>,
    /// Placements of the calling end's thread and of the second thread.
    placements: [CpuPlacement; 2],
    /// Addresses of the calling and the answering end.
    pub addresses: [IpAddr; 2],
}

impl Cores {
    /// Returns the requested value, if the process may use two CPUs, else `One`.
    pub fn available(requested: Self) -> Self {
        if cores::pair().is_some() { requested } else { Self::One }
    }

    /// Converts the command line's number; `Two` only with two CPUs.
    pub fn requested(count: u8) -> Self {
        Self::available(if count == 1 { Self::One } else { Self::Two })
    }

    /// Returns the number of cores.
    pub fn count(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

impl TestBed {
    /// Creates a test bed with the two ends on loopback.
    pub fn new(requested: Cores, is_realtime: bool) -> Result<Self, Failure> {
        let server_thread = cores::pair().map(|_| ServerThread::start()).transpose()?;
        Self::with(requested, is_realtime, server_thread, [[127, 0, 0, 1].into(); 2])
    }

    /// Creates a test bed with the existing threads and the addresses of their namespaces.
    pub fn with(
        requested: Cores,
        is_realtime: bool,
        server_thread: Option<ServerThread>,
        addresses: [IpAddr; 2],
    ) -> Result<Self, Failure> {
        let cpus = cores::pair().map_or([None; 2], |cpus| cpus.map(Some));
        let placements = cpus.map(|cpu| CpuPlacement { cpu, is_realtime });
        let cores = if server_thread.is_some() { requested } else { Cores::One };
        let idle_end = match (&server_thread, cores) {
            (Some(thread), Cores::One) => Some(thread.install(|| Ok(IdleServerEnd))?),
            _ => None,
        };
        Ok(Self {
            cores,
            server_thread: server_thread.map(Rc::new),
            idle_end,
            placements,
            addresses,
        })
    }

    /// Returns the number of CPUs that the ends actually have.
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// Returns the CPUs of the ends.
    pub fn cpus(&self) -> Option<Vec<usize>> {
        let placements = &self.placements[..usize::from(self.cores.count())];
        placements.iter().map(|placement| placement.cpu).collect()
    }

    /// Returns the placements of the ends' threads.
    pub fn placements(&self) -> [CpuPlacement; 2] {
        self.placements
    }

    /// Creates the probe for the distance of the two CPUs, if two are used.
    pub fn probe(&self) -> Result<Option<Probe>, Failure> {
        match (&self.server_thread, self.cores) {
            (Some(thread), Cores::Two) => Ok(Some(Probe::new(Rc::clone(thread), self.placements)?)),
            _ => Ok(None),
        }
    }

    /// Runs `work` in this thread, and in the second thread if present.
    pub fn in_each_thread<T: Send + 'static>(
        &self,
        work: impl Fn() -> Result<T, Failure> + Clone + Send + 'static,
    ) -> Result<Vec<T>, Failure> {
        let own = work()?;
        let server_thread = self.server_thread.as_ref();
        let other = server_thread.map(|thread| thread.execute(work)).transpose()?;
        Ok([Some(own), other].into_iter().flatten().collect())
    }

    /// Runs `work` in the second thread.
    pub fn in_server_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        match &self.server_thread {
            Some(thread) => thread.execute(work),
            None => Err(Failure::because("the test bed has one thread only")),
        }
    }

    /// Creates two ends: first the answering end, then the calling end. `make_client` may call its
    /// argument repeatedly while waiting for the answering end.
    pub fn create_ends<C: ClientEnd + 'static, S: ServerEnd + 'static>(
        &self,
        make_server: impl FnOnce() -> Result<S, Failure> + Send + 'static,
        make_client: impl FnOnce(&mut dyn FnMut()) -> Result<C, Failure>,
    ) -> Result<Box<dyn Side>, Failure> {
        let placements = self.placements;
        match (&self.server_thread, self.cores) {
            (Some(thread), Cores::Two) => {
                let server = thread.install(make_server)?;
                // The control plane's threads are busy now; real-time priority would make them wait.
                let run =
                    thread.run(server, CpuPlacement { is_realtime: false, ..placements[1] })?;
                let client = make_client(&mut thread::yield_now)?;
                run.stop()?;
                Ok(Box::new(TwoThreads {
                    client,
                    server_thread: Rc::clone(thread),
                    server,
                    placements,
                }))
            }
            _ => {
                let mut server = make_server()?;
                let client = make_client(&mut || server.poll_once())?;
                let idle_end = self.server_thread.as_ref().map(Rc::clone).zip(self.idle_end);
                Ok(Box::new(OneThread { client, server, idle_end, placements }))
            }
        }
    }
}
