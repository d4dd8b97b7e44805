//! Bare wake-ups of a sleeping thread, without Petrel.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use petrel_command::failure::Failure;
use petrel_transport::clock;
use petrel_transport::wake::{Waker, Watch};

/// How long to wait for the woken thread.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The kernel's mechanism of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mechanism {
    /// A thread that sleeps on a word of memory.
    Futex,
    /// A thread that sleeps in `poll` for an `eventfd`: the sleep of an endpoint.
    Eventfd,
    /// A thread that reads from a Unix socket, by which a peer over shared memory wakes an endpoint.
    UnixSocket,
    /// A thread that reads from a UDP socket on loopback.
    Datagram,
}

impl Mechanism {
    pub(super) const ALL: [Self; 4] =
        [Self::Futex, Self::Eventfd, Self::UnixSocket, Self::Datagram];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Futex => "futex",
            Self::Eventfd => "eventfd and poll",
            Self::UnixSocket => "byte over a Unix socket",
            Self::Datagram => "datagram over loopback",
        }
    }
}

type Wake = Box<dyn FnMut() -> io::Result<()>>;
type Sleep = Box<dyn FnMut() -> io::Result<()> + Send>;

/// A thread that sleeps between wake-ups, and tells when it woke up.
pub(super) struct Sleeper {
    wake: Wake,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The time of the last wake-up, or 0.
    woken_ns: AtomicU64,
    is_over: AtomicBool,
}

impl Sleeper {
    /// Starts a thread that sleeps by a mechanism, and returns it with the means to wake it.
    pub(super) fn start(mechanism: Mechanism) -> Result<Self, Failure> {
        let shared = Arc::new(Shared::default());
        let run = |mut sleep: Sleep| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                while sleep().is_ok() && !shared.is_over.load(Ordering::Acquire) {
                    shared.woken_ns.store(clock::now_ns(), Ordering::Release);
                }
            })
        };
        let (wake, thread): (Wake, _) = match mechanism {
            Mechanism::Futex => {
                let thread = run(Box::new(|| {
                    thread::park();
                    Ok(())
                }));
                let sleeper = thread.thread().clone();
                let wake = move || {
                    sleeper.unpark();
                    Ok(())
                };
                (Box::new(wake), thread)
            }
            Mechanism::Eventfd => {
                let waker = Waker::new()?;
                let own = waker.clone();
                let thread = run(Box::new(move || {
                    Watch::new(&own).sleep(None);
                    Ok(())
                }));
                let wake = move || {
                    waker.wake();
                    Ok(())
                };
                (Box::new(wake), thread)
            }
            Mechanism::UnixSocket => {
                let (mut own, mut other) = UnixStream::pair()?;
                let thread = run(Box::new(move || other.read_exact(&mut [0])));
                (Box::new(move || own.write_all(&[1])), thread)
            }
            Mechanism::Datagram => {
                let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                let own = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                own.connect(other.local_addr()?)?;
                let thread = run(Box::new(move || other.recv(&mut [0]).map(|_| ())));
                (Box::new(move || own.send(&[1]).map(|_| ())), thread)
            }
        };
        Ok(Self { wake, shared, thread: Some(thread) })
    }

    /// Wakes the thread. Returns the time until the thread runs; meanwhile the caller polls and yields, as an endpoint
    /// that waits for a response.
    pub(super) fn wake(&mut self) -> Result<Duration, Failure> {
        self.shared.woken_ns.store(0, Ordering::Relaxed);
        let begun_ns = clock::now_ns();
        (self.wake)()?;
        loop {
            match self.shared.woken_ns.load(Ordering::Acquire) {
                0 => thread::yield_now(),
                woken_ns => return Ok(Duration::from_nanos(woken_ns.saturating_sub(begun_ns))),
            }
            if clock::now_ns() - begun_ns > TIMEOUT.as_nanos() as u64 {
                return Err(io::Error::from(ErrorKind::TimedOut).into());
            }
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // A thread that cannot be woken ends with the process.
        if (self.wake)().is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake__of_each_mechanism_returns_a_time() {
        for mechanism in Mechanism::ALL {
            let mut sleeper = Sleeper::start(mechanism).unwrap();
            for _ in 0..3 {
                let took = sleeper.wake().unwrap();
                assert!(took < TIMEOUT, "{}", mechanism.name());
            }
        }
    }
}
