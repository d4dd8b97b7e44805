//! The second thread: runs the answering ends if the two ends have separate CPUs.
//!
//! Endpoints cannot change threads, so the thread itself creates and keeps the endpoints. Between
//! windows the thread sleeps on a channel. During a window it gives turns to a single end, and checks
//! only a flag besides. A permanently polling library end uses no time of the bare medium's window, nor
//! vice versa.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use petrel_command::cores::Seat;
use petrel_command::failure::Failure;

use super::ends::Serve;
use super::window::Traffic;

/// The handle of the thread.
pub(super) struct Far {
    commands: Option<Sender<Command>>,
    events: Receiver<Event>,
    is_halted: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// An answering end in the thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(usize);

/// A window in which an end runs, until the guard is dropped.
pub(super) struct Run<'a> {
    far: &'a Far,
    is_over: bool,
}

type Make = Box<dyn FnOnce() -> Result<Box<dyn Resident>, Failure> + Send>;
type Work = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

enum Command {
    Install(Make),
    Execute(Work),
    Run(usize, Seat),
}

enum Event {
    Installed(Result<usize, Failure>),
    Executed(Result<(), Failure>),
    Running,
    Halted(Result<Traffic, Failure>),
}

/// An answering end of any type; one indirect call per window.
trait Resident {
    fn run(&mut self, is_halted: &AtomicBool) -> Traffic;
}

impl<S: Serve> Resident for S {
    fn run(&mut self, is_halted: &AtomicBool) -> Traffic {
        let before = self.traffic();
        while !is_halted.load(Ordering::Relaxed) {
            self.turn();
        }
        self.traffic().since(before)
    }
}

impl Far {
    /// Starts the thread.
    pub(super) fn start() -> Result<Self, Failure> {
        let (commands, orders) = mpsc::channel();
        let (reports, events) = mpsc::channel();
        let is_halted = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&is_halted);
        let thread = thread::Builder::new()
            .name("bench-far".to_owned())
            .spawn(move || live(&orders, &reports, &flag))?;
        Ok(Self { commands: Some(commands), events, is_halted, thread: Some(thread) })
    }

    /// Creates an answering end in the thread.
    pub(super) fn install<S: Serve + 'static>(
        &self,
        make: impl FnOnce() -> Result<S, Failure> + Send + 'static,
    ) -> Result<Place, Failure> {
        let make = move || make().map(|serve| Box::new(serve) as Box<dyn Resident>);
        match self.ask(Command::Install(Box::new(make)))? {
            Event::Installed(place) => place.map(Place),
            _ => Err(ended()),
        }
    }

    /// Runs `work` in the thread, and waits for its result.
    pub(super) fn execute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            // The result is received below.
            let _ = sender.send(work()?);
            Ok(())
        };
        match self.ask(Command::Execute(Box::new(work)))? {
            Event::Executed(result) => result?,
            _ => return Err(ended()),
        }
        receiver.recv().map_err(|_| ended())
    }

    /// Gives turns to an answering end, from before this function returns until the run ends. The thread
    /// has `seat` meanwhile.
    pub(super) fn run(&self, place: Place, seat: Seat) -> Result<Run<'_>, Failure> {
        self.is_halted.store(false, Ordering::Relaxed);
        let run = Run { far: self, is_over: false };
        match self.ask(Command::Run(place.0, seat))? {
            Event::Running => Ok(run),
            _ => Err(ended()),
        }
    }

    fn ask(&self, command: Command) -> Result<Event, Failure> {
        let commands = self.commands.as_ref().ok_or_else(ended)?;
        commands.send(command).map_err(|_| ended())?;
        self.events.recv().map_err(|_| ended())
    }
}

impl Run<'_> {
    /// Ends the turns, and returns the end's traffic meanwhile.
    pub(super) fn halt(mut self) -> Result<Traffic, Failure> {
        self.is_over = true;
        self.far.is_halted.store(true, Ordering::Relaxed);
        match self.far.events.recv() {
            Ok(Event::Halted(traffic)) => traffic,
            _ => Err(ended()),
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.far.is_halted.store(true, Ordering::Relaxed);
            // Either way the run sends exactly one more, useless event.
            let _ = self.far.events.recv();
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.is_halted.store(true, Ordering::Relaxed);
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported as a missing answer.
            let _ = thread.join();
        }
    }
}

fn ended() -> Failure {
    Failure::because("the benchmark's second thread has ended by an internal error")
}

/// The thread's loop. A send fails only if the receiver is gone; the next receive then ends the loop.
fn live(orders: &Receiver<Command>, reports: &Sender<Event>, is_halted: &AtomicBool) {
    let mut residents: Vec<Box<dyn Resident>> = Vec::new();
    while let Ok(order) = orders.recv() {
        let event = match order {
            Command::Install(make) => Event::Installed(make().map(|resident| {
                residents.push(resident);
                residents.len() - 1
            })),
            Command::Execute(work) => Event::Executed(work()),
            Command::Run(place, seat) => {
                let seated = seat.take();
                let _ = reports.send(Event::Running);
                let traffic = residents[place].run(is_halted);
                Event::Halted(seated.map(|_| traffic).map_err(Failure::from))
            }
        };
        let _ = reports.send(event);
    }
}

/// Spins without work: keeps the second CPU awake while the two ends share the first. A virtual CPU's
/// speed depends on its neighbour's sleep; therefore the neighbour never sleeps.
pub(super) struct Companion;

impl Serve for Companion {
    fn turn(&mut self) {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(Traffic);

    impl Serve for Counter {
        fn turn(&mut self) {
            self.0.drops += 1;
        }

        fn traffic(&self) -> Traffic {
            self.0
        }
    }

    #[test]
    fn run__gives_turns_to_one_end_until_it_is_halted() {
        let far = Far::start().unwrap();
        let first = far
            .install(|| Ok(Counter(Traffic { retransmissions: 5, ..Traffic::default() })))
            .unwrap();
        let second = far.install(|| Ok(Companion)).unwrap();
        for place in [first, second] {
            let run = far.run(place, Seat::default()).unwrap();
            let traffic = run.halt().unwrap();
            assert_eq!(traffic.retransmissions, 0, "counted before the window");
        }
        drop(far.run(first, Seat::default()).unwrap());
        far.run(second, Seat::default()).unwrap().halt().unwrap();
    }

    #[test]
    fn execute__happens_in_the_thread_and_gives_what_comes_of_it() {
        let far = Far::start().unwrap();
        let here = thread::current().id();
        assert_ne!(far.execute(|| Ok(thread::current().id())).unwrap(), here);
        let failure = far.execute(|| Err::<(), _>(Failure::because("no"))).unwrap_err();
        assert_eq!(failure.to_string(), "no");
    }

    #[test]
    fn install__says_why_there_is_no_end() {
        let far = Far::start().unwrap();
        let failure = far.install(|| Err::<Companion, _>(Failure::because("no"))).unwrap_err();
        assert_eq!(failure.to_string(), "no");
    }
}
