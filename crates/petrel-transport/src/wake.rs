//! Waking an endpoint that blocks in [`Transport::wait`](crate::Transport::wait).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Ends another thread's wait. Clones share one `eventfd`.
///
/// # No wake-up is lost
///
/// The kernel's counter remembers a [`wake`](Waker::wake) until a [`drain`](Waker::drain), so a
/// wake counts whether or not the sleeper is already asleep. Two rules make the protocol safe:
///
/// 1. A waking thread first publishes its work (a queue entry, a flag), then calls `wake`.
/// 2. A sleeping thread returns from its poll, drains, and only *then* looks for work.
///
/// A wake between the drain and the next poll leaves the descriptor readable, and the next poll
/// returns at once. Concurrent wakes merge into one.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
    bell: Option<Bell>,
}

/// An extra callback of a waker, for a simulator or a model checker of threads. Without a callback,
/// the simulator would have to query the kernel for wakes.
#[derive(Clone)]
struct Bell(Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}

impl Waker {
    /// Creates a waker with its own `eventfd`, not yet signalled.
    ///
    /// # Errors
    /// When the process or the system is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event: Arc::new(event), bell: None })
    }

    /// Creates a waker that calls `ring` after every wake.
    ///
    /// # Errors
    /// As [`Waker::new`].
    #[doc(hidden)]
    pub fn with_bell(ring: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        Ok(Self { bell: Some(Bell(Arc::new(ring))), ..Self::new()? })
    }

    /// Makes the current or the next wait return. Costs about 200 ns: for threads that may be
    /// asleep, not per message.
    pub fn wake(&self) {
        // EAGAIN means a counter at the maximum: the sleeper is already signalled.
        while rustix::io::write(&*self.event, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
        if let Some(Bell(ring)) = &self.bell {
            ring();
        }
    }

    /// Waits for a wake, at most for `time`, and does not clear it. Returns true if there is a wake.
    pub fn wait(&self, time: Duration) -> bool {
        let mut watched = [PollFd::new(self, PollFlags::IN)];
        let timeout = timespec(time.as_nanos() as u64);
        // An error is a signal, or shortage of kernel memory: callers look again.
        let _ = poll(&mut watched, Some(&timeout));
        !watched[0].revents().is_empty()
    }

    /// Clears all wakes so far, without blocking. Returns true if there was a wake.
    pub fn drain(&self) -> bool {
        let mut count = [0u8; 8];
        loop {
            match rustix::io::read(&*self.event, &mut count) {
                Err(Errno::INTR) => continue,
                other => return other.is_ok(),
            }
        }
    }
}

/// Most descriptors that end a sleep, the waker's included.
const WATCHED_MAX: usize = 64;

/// A sleep, with the descriptors of wake-ups.
#[derive(Debug)]
pub struct Watch<'a> {
    waker: &'a Waker,
    all: [PollFd<'a>; WATCHED_MAX],
    count: usize,
}

impl<'a> Watch<'a> {
    /// Creates a sleep that ends when the waker is used.
    pub fn new(waker: &'a Waker) -> Self {
        let all = [(); WATCHED_MAX].map(|()| PollFd::new(waker, PollFlags::IN));
        Self { waker, all, count: 1 }
    }

    /// Adds a descriptor, which ends the sleep when it is readable, or writable if `for_room`.
    ///
    /// # Panics
    /// With more than 63 descriptors: an endpoint has at most 31 further source ports and 8 sockets of a device.
    pub fn add(&mut self, fd: BorrowedFd<'a>, for_room: bool) {
        let events = if for_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        self.all[self.count] = PollFd::from_borrowed_fd(fd, events);
        self.count += 1;
    }

    /// Sleeps until a descriptor or the waker ends the sleep, `timeout_ns` have passed (`None`: no
    /// limit), or a signal came. Then clears the wakes.
    pub fn sleep(mut self, timeout_ns: Option<u64>) -> Woken {
        let timeout = timeout_ns.map(timespec);
        let all = &mut self.all[..self.count];
        // Errors are signals and shortage of kernel memory: callers look for work and return.
        let _ = poll(all, timeout.as_ref());
        if !all[0].revents().is_empty() {
            self.waker.drain();
        }
        let mut woken = Woken::NONE;
        for fd in all[1..].iter().filter(|fd| !fd.revents().is_empty()) {
            woken.ready[woken.count] = fd.as_fd().as_raw_fd();
            woken.count += 1;
        }
        woken
    }
}

/// The descriptors that ended a sleep.
#[derive(Clone, Copy, Debug)]
pub struct Woken {
    ready: [RawFd; WATCHED_MAX],
    count: usize,
}

impl Woken {
    /// None did.
    pub const NONE: Woken = Woken { ready: [-1; WATCHED_MAX], count: 0 };

    /// Returns true if the descriptor was added and ready.
    pub fn is_ready(&self, fd: BorrowedFd<'_>) -> bool {
        self.ready[..self.count].contains(&fd.as_raw_fd())
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(waker: &Waker, timeout: Option<&Timespec>) -> bool {
        poll(&mut [PollFd::new(waker, PollFlags::IN)], timeout).unwrap() == 1
    }

    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    #[test]
    fn drain__merges_wakes_and_leaves_none() {
        let waker = Waker::new().unwrap();
        assert!(!waker.drain());
        waker.wake();
        waker.clone().wake();
        assert!(is_readable(&waker, Some(&AT_ONCE)));
        assert!(waker.drain());
        assert!(!waker.drain());
        assert!(!is_readable(&waker, Some(&AT_ONCE)));
    }

    fn sleep(waker: &Waker, fds: &[(&Waker, bool)], timeout_ns: Option<u64>) -> Woken {
        let mut watch = Watch::new(waker);
        fds.iter().for_each(|(fd, for_room)| watch.add(fd.as_fd(), *for_room));
        watch.sleep(timeout_ns)
    }

    #[test]
    fn sleep__ends_by_wake_by_timeout_and_by_the_other_descriptor() {
        let (waker, other) = (Waker::new().unwrap(), Waker::new().unwrap());
        waker.wake();
        sleep(&waker, &[], None);
        sleep(&waker, &[], Some(0));
        assert!(!sleep(&waker, &[(&other, false)], Some(1_000)).is_ready(other.as_fd()));
        other.wake();
        assert!(sleep(&waker, &[(&other, false)], None).is_ready(other.as_fd()));
        assert!(other.drain());
        assert!(sleep(&waker, &[(&other, true)], None).is_ready(other.as_fd()));
        assert!(!waker.drain());
    }

    #[test]
    fn sleep__tells_which_of_any_descriptors_were_ready() {
        let fds = [(); 3].map(|()| Waker::new().unwrap());
        for ready in 0..8_u32 {
            let is_ready = |index: usize| ready & (1 << index) != 0;
            (0..3).filter(|index| is_ready(*index)).for_each(|index| fds[index].wake());
            for is_woken in [false, true] {
                let waker = Waker::new().unwrap();
                if is_woken {
                    waker.wake();
                }
                let woken = sleep(&waker, &[(&fds[0], false), (&fds[2], false)], Some(0));
                let found = [0, 1, 2].map(|index| woken.is_ready(fds[index].as_fd()));
                assert_eq!(found, [is_ready(0), false, is_ready(2)], "the second was not added");
                assert!(!waker.drain(), "its own wakes are taken back");
            }
            fds.iter().for_each(|fd| _ = fd.drain());
        }
    }

    #[test]
    fn timespec__is_whole_seconds_and_the_rest() {
        for (ns, tv_sec, tv_nsec) in [
            (0, 0, 0),
            (999_999_999, 0, 999_999_999),
            (1_000_000_000, 1, 0),
            (7_000_000_001, 7, 1),
            (u64::MAX, 18_446_744_073, 709_551_615),
        ] {
            assert_eq!(timespec(ns), Timespec { tv_sec, tv_nsec });
        }
    }

    #[test]
    fn wake__from_another_thread_ends_a_poll() {
        let waker = Waker::new().unwrap();
        let remote = waker.clone();
        let thread = std::thread::spawn(move || remote.wake());
        assert!(is_readable(&waker, None));
        thread.join().unwrap();
    }
}
