//! An active attack: the attacker's objects and threads.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// An active attack. Its end drops the attacker's objects.
pub(crate) struct ActiveAttack {
    held: Vec<Box<dyn Any>>,
    obtained: String,
    flood: Option<Flood>,
}

/// Threads that send until the end of the attack.
struct Flood {
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    /// The name of a piece of the flood, for human readers.
    of: &'static str,
    threads: Vec<JoinHandle<()>>,
}

impl ActiveAttack {
    /// Returns an attack without further packets.
    pub(crate) fn holding(held: Vec<Box<dyn Any>>, obtained: String) -> Self {
        Self { held, obtained, flood: None }
    }

    /// Starts a thread for each piece of work. A thread repeats its work, which counts the sent pieces, until the attack ends.
    pub(crate) fn flooding<W>(of: &'static str, works: Vec<W>) -> Self
    where
        W: FnMut(&AtomicU64) + Send + 'static,
    {
        let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let spawn = |mut work: W| {
            let (stop, count) = (Arc::clone(&is_over), Arc::clone(&sent));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    work(&count);
                }
            })
        };
        let threads = works.into_iter().map(spawn).collect();
        let flood = Some(Flood { is_over, sent, of, threads });
        Self { held: Vec::new(), obtained: String::new(), flood }
    }

    /// Keeps an object until the attack ends.
    pub(crate) fn and_holding(mut self, held: Box<dyn Any>) -> Self {
        self.held.push(held);
        self
    }

    /// Adds to the resources that the attacker has, for human readers.
    pub(crate) fn and_obtained(mut self, more: &str) -> Self {
        self.obtained.push_str(more);
        self
    }

    /// The number of sent pieces.
    pub(crate) fn sent(&self) -> u64 {
        self.flood.as_ref().map_or(0, |flood| flood.sent.load(Ordering::Relaxed))
    }

    /// Ends the attack, and returns the attacker's resources, for human readers.
    pub(crate) fn end(self) -> String {
        match self.flood {
            None => self.obtained,
            Some(Flood { is_over, sent, of, threads }) => {
                is_over.store(true, Ordering::Relaxed);
                for thread in threads {
                    // The threads cannot panic, and nothing depends on their results.
                    let _ = thread.join();
                }
                format!("{} {of} in the last window", sent.load(Ordering::Relaxed))
            }
        }
    }
}
