//! The two ends of a measurement, and a window of their execution.
//!
//! A [`ClientEnd`] calls and a [`ServerEnd`] answers; the library and every baseline implement both. Either the ends
//! have separate threads and CPUs ([`TwoThreads`]), or share a thread, which polls them in turn ([`OneThread`]). With a
//! single thread no cache line travels between CPUs; the figure is the cost of the work itself, and repeats well. Both
//! loops are compiled for their ends, without a call through a pointer per poll.

use std::rc::Rc;
use std::time::Duration;

use petrel_command::cores::CpuPlacement;
use petrel_command::failure::Failure;
use petrel_transport::clock;

use super::server_thread::{EndIndex, ServerThread};
use super::window::{Traffic, Window};

/// Calls still in flight this long after a window's end are given up. A request of 8 MiB of which
/// go-back-N loses every tenth packet takes several seconds, and more on a busy machine.
const GIVE_UP_AFTER_NS: u64 = 120_000_000_000;

/// Polls between two reads of the clock.
const POLLS_PER_CLOCK_READ: u32 = 1 << 14;

/// The calling end.
pub trait ClientEnd {
    /// Starts calls, and keeps starting them until `end_ns`.
    fn begin(&mut self, end_ns: u64);

    /// Polls once for received messages, and processes them.
    fn poll_once(&mut self);

    /// Returns true if the time is up and no call is in flight.
    fn is_over(&self) -> bool;

    /// Gives up the calls in flight, because they take too long.
    fn give_up(&mut self, timeout: Duration);

    /// Returns the counts since [`ClientEnd::begin`].
    fn finish(&mut self) -> Window;

    /// Returns this end's traffic counters since its creation.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// The answering end.
pub trait ServerEnd {
    /// Polls once for received messages, and processes them.
    fn poll_once(&mut self);

    /// Returns this end's traffic counters since its creation.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// One of the two sides of a comparison.
pub trait Side {
    /// Runs calls for about `length`.
    fn window(&mut self, length: Duration) -> Result<Window, Failure>;
}

/// The two ends with a thread each.
pub struct TwoThreads<C> {
    pub client: C,
    pub server_thread: Rc<ServerThread>,
    /// The answering end in the other thread.
    pub server: EndIndex,
    /// The placements of the calling thread and of the other thread.
    pub placements: [CpuPlacement; 2],
}

/// The two ends in one thread.
pub struct OneThread<C, S> {
    pub client: C,
    pub server: S,
    /// Keeps the other CPU busy; see [`super::server_thread::IdleServerEnd`].
    pub idle_end: Option<(Rc<ServerThread>, EndIndex)>,
    /// The placements of the thread and of the idle end.
    pub placements: [CpuPlacement; 2],
}

/// The calling end alone; the answering end is in another process.
pub struct ClientOnly<C>(pub(super) C);

impl<C: ClientEnd> Side for ClientOnly<C> {
    fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        let before = self.0.traffic();
        run_client(&mut self.0, length, || ());
        let mut window = self.0.finish();
        window.traffic = self.0.traffic().since(before);
        Ok(window)
    }
}

impl<C: ClientEnd> Side for TwoThreads<C> {
    fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        let [own, other] = self.placements;
        let _placement_guard = own.apply()?;
        let before = self.client.traffic();
        let run = self.server_thread.run(self.server, other)?;
        run_client(&mut self.client, length, || ());
        let mut window = self.client.finish();
        window.traffic = self.client.traffic().since(before) + run.stop()?;
        Ok(window)
    }
}

impl<C: ClientEnd, S: ServerEnd> Side for OneThread<C, S> {
    fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        let [own, other] = self.placements;
        let _placement_guard = own.apply()?;
        let idle_end = self.idle_end.as_ref();
        let idle_end = idle_end.map(|(thread, end)| thread.run(*end, other)).transpose()?;
        let before = self.client.traffic() + self.server.traffic();
        run_client(&mut self.client, length, || self.server.poll_once());
        let mut window = self.client.finish();
        window.traffic = (self.client.traffic() + self.server.traffic()).since(before);
        idle_end.map(|run| run.stop()).transpose()?;
        Ok(window)
    }
}

/// Runs the calling end for a window. `between` runs after every poll.
#[inline]
pub(super) fn run_client<C: ClientEnd>(
    client: &mut C,
    length: Duration,
    mut between: impl FnMut(),
) {
    let end_ns = clock::now_ns() + length.as_nanos() as u64;
    client.begin(end_ns);
    let mut is_given_up = false;
    while !client.is_over() {
        for _ in 0..POLLS_PER_CLOCK_READ {
            client.poll_once();
            between();
            if client.is_over() {
                return;
            }
        }
        if !is_given_up && clock::now_ns() > end_ns + GIVE_UP_AFTER_NS {
            client.give_up(Duration::from_nanos(GIVE_UP_AFTER_NS));
            is_given_up = true;
        }
    }
}
