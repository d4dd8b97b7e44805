//! Threads that call at the same time, with a source of calls each.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use petrel_command::failure::Failure;

use super::{Calls, Counts};

/// Threads that run their windows together. They end when the crew is dropped.
pub(super) struct Crew {
    members: Vec<Member>,
}

struct Member {
    /// `None` once the thread has to end.
    windows: Option<mpsc::Sender<Window>>,
    counted: mpsc::Receiver<Result<Counts, Failure>>,
    thread: Option<JoinHandle<()>>,
}

/// A window of one thread.
#[derive(Clone, Copy)]
struct Window {
    in_flight: usize,
    length: Duration,
}

impl Crew {
    /// Starts the threads. `source` makes a thread's source of calls, on the thread, from its number.
    pub(super) fn start(
        count: usize,
        source: impl Fn(usize) -> Result<Box<dyn Calls>, Failure> + Clone + Send + 'static,
    ) -> Result<Self, Failure> {
        let members = (0..count).map(|number| {
            let source = source.clone();
            Member::start(move || source(number))
        });
        Ok(Self { members: members.collect::<Result<_, _>>()? })
    }
}

impl Calls for Crew {
    /// Runs a window on all threads, each with `in_flight` calls in flight. Their rates are added.
    fn window(
        &mut self,
        in_flight: usize,
        length: Duration,
        counts: &mut Counts,
    ) -> Result<(), Failure> {
        for member in &self.members {
            member.begin(Window { in_flight, length })?;
        }
        let mut rate = 0.0;
        for member in &self.members {
            let own = member.counted.recv().map_err(Failure::because)??;
            rate += own.rates.iter().sum::<f64>();
            counts.latencies.add(&own.latencies);
            counts.checks = counts.checks.and(own.checks);
        }
        counts.rates.push(rate);
        Ok(())
    }
}

impl Member {
    fn start(
        source: impl FnOnce() -> Result<Box<dyn Calls>, Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        let (windows, ordered) = mpsc::channel::<Window>();
        let (report, counted) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut source = match source() {
                Ok(source) => source,
                Err(failure) => return drop(report.send(Err(failure))),
            };
            // Memory for the counts is taken before the window. If the receiver is gone, the measurement is over.
            let mut counts = Counts::new();
            let _ = report.send(Ok(Counts::new()));
            for Window { in_flight, length } in ordered {
                let result = source.window(in_flight, length, &mut counts);
                let _ = report.send(result.map(|()| std::mem::replace(&mut counts, Counts::new())));
            }
        });
        let member = Self { windows: Some(windows), counted, thread: Some(thread) };
        member.counted.recv().map_err(Failure::because)??;
        Ok(member)
    }

    fn begin(&self, window: Window) -> Result<(), Failure> {
        let windows = self.windows.as_ref().expect("the thread runs until it is dropped");
        windows.send(window).map_err(Failure::because)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.windows = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}
