//! The two ends of what is measured, and a window of time in which they run.
//!
//! A [`Drive`] calls and a [`Serve`] answers; the library has one of each, and so has every bare
//! medium. Either they have a thread and a CPU each ([`Apart`]), or one thread gives them turns
//! ([`Together`]): the second needs no cache line to travel, so it shows what the work itself costs
//! and repeats well. Both loops are compiled for their ends: no call through a pointer per turn.

use std::rc::Rc;
use std::time::Duration;

use petrel_transport::clock;

use super::far::{Far, Place};
use super::window::{Traffic, Window};
use crate::cores::Seat;
use crate::failure::Failure;

/// Calls in flight that long after a window's end are given up. A request of 8 MiB of which go-back-N
/// loses every tenth packet takes several seconds, and more on a busy machine.
const PATIENCE_NS: u64 = 120_000_000_000;

/// Turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 1 << 14;

/// The calling end.
pub(super) trait Drive {
    /// Starts calls, and goes on starting them until that time.
    fn begin(&mut self, end_ns: u64);

    /// Looks once whether something came in, and does what follows from it.
    fn turn(&mut self);

    /// Whether the time is up and no call is in flight.
    fn is_over(&self) -> bool;

    /// Gives up what is in flight, because it takes too long.
    fn give_up(&mut self, patience: Duration);

    /// What happened since [`Drive::begin`].
    fn finish(&mut self) -> Window;

    /// What this end has counted since it was made.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// The answering end.
pub(super) trait Serve {
    /// Looks once whether something came in, and does what follows from it.
    fn turn(&mut self);

    /// What this end has counted since it was made.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// One of the two things that are compared.
pub(super) trait Side {
    /// Calls for about that long.
    fn window(&mut self, length: Duration) -> Result<Window, Failure>;
}

/// Both ends with a thread each.
pub(super) struct Apart<D> {
    pub(super) drive: D,
    pub(super) far: Rc<Far>,
    /// Where the answering end is in the other thread.
    pub(super) place: Place,
    /// The calling thread's and the other one's.
    pub(super) seats: [Seat; 2],
}

/// Both ends in one thread.
pub(super) struct Together<D, S> {
    pub(super) drive: D,
    pub(super) serve: S,
    /// Keeps the other CPU busy; see [`super::far::Companion`].
    pub(super) companion: Option<(Rc<Far>, Place)>,
    /// The thread's and the companion's.
    pub(super) seats: [Seat; 2],
}

/// The calling end of somebody else's answering one.
pub(super) struct Alone<D>(pub(super) D);

impl<D: Drive> Side for Alone<D> {
    fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        let before = self.0.traffic();
        drive(&mut self.0, length, || ());
        let mut window = self.0.finish();
        window.traffic = self.0.traffic().since(before);
        Ok(window)
    }
}

impl<D: Drive> Side for Apart<D> {
    fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        let [near, far] = self.seats;
        let _seated = near.take()?;
        let before = self.drive.traffic();
        let run = self.far.run(self.place, far)?;
        drive(&mut self.drive, length, || ());
        let mut window = self.drive.finish();
        window.traffic = self.drive.traffic().since(before) + run.halt()?;
        Ok(window)
    }
}

impl<D: Drive, S: Serve> Side for Together<D, S> {
    fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        let [near, far] = self.seats;
        let _seated = near.take()?;
        let companion = self.companion.as_ref();
        let companion = companion.map(|(thread, place)| thread.run(*place, far)).transpose()?;
        let before = self.drive.traffic() + self.serve.traffic();
        drive(&mut self.drive, length, || self.serve.turn());
        let mut window = self.drive.finish();
        window.traffic = (self.drive.traffic() + self.serve.traffic()).since(before);
        companion.map(|run| run.halt()).transpose()?;
        Ok(window)
    }
}

/// Runs the calling end for a window. `between` runs after each of its turns.
#[inline]
fn drive<D: Drive>(drive: &mut D, length: Duration, mut between: impl FnMut()) {
    let end_ns = clock::now_ns() + length.as_nanos() as u64;
    drive.begin(end_ns);
    let mut is_given_up = false;
    while !drive.is_over() {
        for _ in 0..TURNS_PER_LOOK {
            drive.turn();
            between();
            if drive.is_over() {
                return;
            }
        }
        if !is_given_up && clock::now_ns() > end_ns + PATIENCE_NS {
            drive.give_up(Duration::from_nanos(PATIENCE_NS));
            is_given_up = true;
        }
    }
}
