//! The second thread: runs the answering ends if the two ends have separate CPUs.
//!
//! Endpoints cannot change threads, so the thread itself creates and keeps the endpoints. Between windows the thread
//! sleeps on a channel. During a window it polls a single end, and checks only a flag besides. A permanently polling
//! library end uses no time of the baseline's window, nor vice versa.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use petrel_command::cores::CpuPlacement;
use petrel_command::failure::Failure;

use super::ends::ServerEnd;
use super::window::Traffic;

/// The handle of the thread.
pub struct ServerThread {
    commands: Option<Sender<Command>>,
    events: Receiver<Event>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The index of an answering end in the thread.
#[derive(Clone, Copy, Debug)]
pub struct EndIndex(usize);

/// A window in which an end runs, until the guard is dropped.
pub struct Run<'a> {
    server_thread: &'a ServerThread,
    is_over: bool,
}

type Ends = Vec<Box<dyn DynServerEnd>>;

enum Command {
    Do(Box<dyn FnOnce(&mut Ends) + Send>),
    Run(usize, CpuPlacement),
}

enum Event {
    Running,
    Stopped(Result<Traffic, Failure>),
}

/// An answering end of any type; one indirect call per window.
trait DynServerEnd {
    fn run(&mut self, is_stopped: &AtomicBool) -> Traffic;
}

impl<S: ServerEnd> DynServerEnd for S {
    fn run(&mut self, is_stopped: &AtomicBool) -> Traffic {
        let before = self.traffic();
        while !is_stopped.load(Ordering::Relaxed) {
            self.poll_once();
        }
        self.traffic().since(before)
    }
}

impl ServerThread {
    /// Starts the thread.
    pub fn start() -> Result<Self, Failure> {
        let (commands, command_receiver) = mpsc::channel();
        let (event_sender, events) = mpsc::channel();
        let is_stopped = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&is_stopped);
        let thread = thread::Builder::new()
            .name("bench-server".to_owned())
            .spawn(move || run_thread(&command_receiver, &event_sender, &flag))?;
        Ok(Self { commands: Some(commands), events, is_stopped, thread: Some(thread) })
    }

    /// Creates an answering end in the thread.
    pub fn install<S: ServerEnd + 'static>(
        &self,
        make: impl FnOnce() -> Result<S, Failure> + Send + 'static,
    ) -> Result<EndIndex, Failure> {
        self.with_ends(move |ends| {
            ends.push(Box::new(make()?));
            Ok(EndIndex(ends.len() - 1))
        })
    }

    /// Runs `work` in the thread, and waits for its result.
    pub fn execute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.with_ends(|_| work())
    }

    fn with_ends<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Ends) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, receiver) = mpsc::channel();
        // The result is received below.
        self.send(Command::Do(Box::new(move |ends| _ = sender.send(work(ends)))))?;
        receiver.recv().map_err(|_| ended())?
    }

    /// Polls an answering end, from before this function returns until the run ends. The thread
    /// has this placement meanwhile.
    pub fn run(&self, end: EndIndex, placement: CpuPlacement) -> Result<Run<'_>, Failure> {
        self.is_stopped.store(false, Ordering::Relaxed);
        let run = Run { server_thread: self, is_over: false };
        self.send(Command::Run(end.0, placement))?;
        match self.events.recv() {
            Ok(Event::Running) => Ok(run),
            _ => Err(ended()),
        }
    }

    fn send(&self, command: Command) -> Result<(), Failure> {
        self.commands.as_ref().ok_or_else(ended)?.send(command).map_err(|_| ended())
    }
}

impl Run<'_> {
    /// Ends the polls, and returns the end's traffic meanwhile.
    pub fn stop(mut self) -> Result<Traffic, Failure> {
        self.is_over = true;
        self.server_thread.is_stopped.store(true, Ordering::Relaxed);
        match self.server_thread.events.recv() {
            Ok(Event::Stopped(traffic)) => traffic,
            _ => Err(ended()),
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.server_thread.is_stopped.store(true, Ordering::Relaxed);
            // Either way the run sends exactly one more, useless event.
            let _ = self.server_thread.events.recv();
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
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
fn run_thread(commands: &Receiver<Command>, events: &Sender<Event>, is_stopped: &AtomicBool) {
    let mut ends = Ends::new();
    while let Ok(command) = commands.recv() {
        match command {
            Command::Do(work) => work(&mut ends),
            Command::Run(index, placement) => {
                let guard = placement.apply();
                let _ = events.send(Event::Running);
                let traffic = ends[index].run(is_stopped);
                let _ = events.send(Event::Stopped(guard.map(|_| traffic).map_err(Failure::from)));
            }
        }
    }
}

/// Spins without work: keeps the second CPU awake while the two ends share the first. A virtual CPU's
/// speed depends on its neighbour's sleep; therefore the neighbour never sleeps.
pub struct IdleServerEnd;

impl ServerEnd for IdleServerEnd {
    fn poll_once(&mut self) {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(Traffic);

    impl ServerEnd for Counter {
        fn poll_once(&mut self) {
            self.0.drops += 1;
        }

        fn traffic(&self) -> Traffic {
            self.0
        }
    }

    #[test]
    fn run__polls_one_end_until_it_is_stopped() {
        let server_thread = ServerThread::start().unwrap();
        let first = server_thread
            .install(|| Ok(Counter(Traffic { retransmissions: 5, ..Traffic::default() })))
            .unwrap();
        let second = server_thread.install(|| Ok(IdleServerEnd)).unwrap();
        for end in [first, second] {
            let run = server_thread.run(end, CpuPlacement::default()).unwrap();
            let traffic = run.stop().unwrap();
            assert_eq!(traffic.retransmissions, 0, "counted before the window");
        }
        drop(server_thread.run(first, CpuPlacement::default()).unwrap());
        server_thread.run(second, CpuPlacement::default()).unwrap().stop().unwrap();
    }

    #[test]
    fn execute__runs_in_the_thread_and_returns_the_result() {
        let server_thread = ServerThread::start().unwrap();
        let here = thread::current().id();
        assert_ne!(server_thread.execute(|| Ok(thread::current().id())).unwrap(), here);
        let failure = server_thread.execute(|| Err::<(), _>(Failure::because("no"))).unwrap_err();
        assert_eq!(failure.to_string(), "no");
    }

    #[test]
    fn install__returns_the_error() {
        let server_thread = ServerThread::start().unwrap();
        let failure =
            server_thread.install(|| Err::<IdleServerEnd, _>(Failure::because("no"))).unwrap_err();
        assert_eq!(failure.to_string(), "no");
    }
}
