//! The stage of a measurement: threads, CPUs and addresses, and the placement of ends.

use std::net::IpAddr;
use std::rc::Rc;
use std::thread;

use petrel_command::cores::{self, Seat};
use petrel_command::failure::Failure;

use super::ends::{Apart, Drive, Serve, Side, Together};
use super::far::{Companion, Far, Place};
use super::probe::Probe;

/// Whether the two ends share a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// The two ends take turns in one thread.
    One,
    /// The ends have separate threads and CPUs.
    Two,
}

/// Threads, CPUs and addresses.
pub(super) struct Stage {
    cores: Cores,
    /// The second thread: for the answering ends, or to keep the second CPU busy.
    far: Option<Rc<Far>>,
    companion: Option<Place>,
    /// Seats of the calling end's thread and of the second thread.
    seats: [Seat; 2],
    /// Addresses of the calling and the answering end.
    pub(super) addresses: [IpAddr; 2],
}

impl Cores {
    /// Returns the wanted value, if the process may use two CPUs, else `One`.
    pub(crate) fn available(wanted: Self) -> Self {
        if cores::pair().is_some() { wanted } else { Self::One }
    }

    /// Converts the command line's number; `Two` only with two CPUs.
    pub(crate) fn wanted(count: u8) -> Self {
        Self::available(if count == 1 { Self::One } else { Self::Two })
    }

    /// Returns the number of cores.
    pub(crate) fn count(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

impl Stage {
    /// Creates a stage with the two ends on loopback.
    pub(super) fn new(wanted: Cores, is_realtime: bool) -> Result<Self, Failure> {
        let far = cores::pair().map(|_| Far::start()).transpose()?;
        Self::with(wanted, is_realtime, far, [[127, 0, 0, 1].into(); 2])
    }

    /// Creates a stage with the existing threads and the addresses of their namespaces.
    pub(super) fn with(
        wanted: Cores,
        is_realtime: bool,
        far: Option<Far>,
        addresses: [IpAddr; 2],
    ) -> Result<Self, Failure> {
        let cpus = cores::pair().map_or([None; 2], |cpus| cpus.map(Some));
        let seats = cpus.map(|cpu| Seat { cpu, is_realtime });
        let cores = if far.is_some() { wanted } else { Cores::One };
        let companion = match (&far, cores) {
            (Some(far), Cores::One) => Some(far.install(|| Ok(Companion))?),
            _ => None,
        };
        Ok(Self { cores, far: far.map(Rc::new), companion, seats, addresses })
    }

    /// Returns the number of CPUs that the ends actually have.
    pub(super) fn cores(&self) -> Cores {
        self.cores
    }

    /// Returns the CPUs of the ends.
    pub(super) fn cpus(&self) -> Option<Vec<usize>> {
        let seats = &self.seats[..usize::from(self.cores.count())];
        seats.iter().map(|seat| seat.cpu).collect()
    }

    /// Creates the probe for the distance of the two CPUs, if two are used.
    pub(super) fn probe(&self) -> Result<Option<Probe>, Failure> {
        match (&self.far, self.cores) {
            (Some(far), Cores::Two) => Ok(Some(Probe::new(Rc::clone(far), self.seats)?)),
            _ => Ok(None),
        }
    }

    /// Runs `work` in this thread, and in the second thread if present.
    pub(super) fn in_each_thread<T: Send + 'static>(
        &self,
        work: impl Fn() -> Result<T, Failure> + Clone + Send + 'static,
    ) -> Result<Vec<T>, Failure> {
        let near = work()?;
        let far = self.far.as_ref().map(|far| far.execute(work)).transpose()?;
        Ok([Some(near), far].into_iter().flatten().collect())
    }

    /// Puts two ends into place: first the answering end, then the calling end. `drive` may call its
    /// argument repeatedly while waiting for the answering end.
    pub(super) fn set<D: Drive + 'static, S: Serve + 'static>(
        &self,
        serve: impl FnOnce() -> Result<S, Failure> + Send + 'static,
        drive: impl FnOnce(&mut dyn FnMut()) -> Result<D, Failure>,
    ) -> Result<Box<dyn Side>, Failure> {
        let seats = self.seats;
        match (&self.far, self.cores) {
            (Some(far), Cores::Two) => {
                let place = far.install(serve)?;
                // The control plane's threads are busy now; real-time priority would make them wait.
                let run = far.run(place, Seat { is_realtime: false, ..seats[1] })?;
                let drive = drive(&mut thread::yield_now)?;
                run.halt()?;
                Ok(Box::new(Apart { drive, far: Rc::clone(far), place, seats }))
            }
            _ => {
                let mut serve = serve()?;
                let drive = drive(&mut || serve.turn())?;
                let companion = self.far.as_ref().map(Rc::clone).zip(self.companion);
                Ok(Box::new(Together { drive, serve, companion, seats }))
            }
        }
    }
}
