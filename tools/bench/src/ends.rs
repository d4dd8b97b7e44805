//! The two ends of a measurement, and a window of their execution.
//!
//! A [`Drive`] calls and a [`Serve`] answers; the library and every bare medium implement both. Either
//! the ends have separate threads and CPUs ([`Apart`]), or share a thread, which gives them turns
//! ([`Together`]). With a single thread no cache line travels between CPUs; the figure is the cost of
//! the work itself, and repeats well. Both loops are compiled for their ends, without a call through a
//! pointer per turn.

use std::rc::Rc;
use std::time::Duration;

use petrel_command::cores::Seat;
use petrel_command::failure::Failure;
use petrel_transport::clock;

use super::far::{Far, Place};
use super::window::{Traffic, Window};

/// Calls still in flight this long after a window's end are given up. A request of 8 MiB of which
/// go-back-N loses every tenth packet takes several seconds, and more on a busy machine.
const PATIENCE_NS: u64 = 120_000_000_000;

/// Turns between two reads of the clock.
const TURNS_PER_LOOK: u32 = 1 << 14;

/// The calling end.
pub(super) trait Drive {
    /// Starts calls, and keeps starting them until `end_ns`.
    fn begin(&mut self, end_ns: u64);

    /// Polls once for received messages, and processes them.
    fn turn(&mut self);

    /// Returns true if the time is up and no call is in flight.
    fn is_over(&self) -> bool;

    /// Gives up the calls in flight, because they take too long.
    fn give_up(&mut self, patience: Duration);

    /// Returns the counts since [`Drive::begin`].
    fn finish(&mut self) -> Window;

    /// Returns this end's traffic counters since its creation.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// The answering end.
pub(super) trait Serve {
    /// Polls once for received messages, and processes them.
    fn turn(&mut self);

    /// Returns this end's traffic counters since its creation.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// One of the two sides of a comparison.
pub(super) trait Side {
    /// Runs calls for about `length`.
    fn window(&mut self, length: Duration) -> Result<Window, Failure>;
}

/// The two ends with a thread each.
pub(super) struct Apart<D> {
    pub(super) drive: D,
    pub(super) far: Rc<Far>,
    /// The place of the answering end in the other thread.
    pub(super) place: Place,
    /// The seats of the calling thread and of the other thread.
    pub(super) seats: [Seat; 2],
}

/// The two ends in one thread.
pub(super) struct Together<D, S> {
    pub(super) drive: D,
    pub(super) serve: S,
    /// Keeps the other CPU busy; see [`super::far::Companion`].
    pub(super) companion: Option<(Rc<Far>, Place)>,
    /// The seats of the thread and of the companion.
    pub(super) seats: [Seat; 2],
}

/// The calling end alone; the answering end is in another process.
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

/// Runs the calling end for a window. `between` runs after every turn.
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
