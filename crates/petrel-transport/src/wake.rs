//! Waking an endpoint that blocks in [`Transport::wait`](crate::Transport::wait).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

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

    /// Sleeps until the waker is used, `other` is readable (or writable, if the flag is set),
    /// `timeout_ns` have passed (`None`: no limit), or a signal came. Then clears the wakes.
    pub fn sleep(&self, other: Option<(BorrowedFd<'_>, bool)>, timeout_ns: Option<u64>) {
        self.sleep_with(other, [None; 2], timeout_ns);
    }

    /// [`Waker::sleep`] that also ends when a descriptor in `more` is readable. Returns true if the
    /// last descriptor of `more` is readable.
    pub fn sleep_with(
        &self,
        other: Option<(BorrowedFd<'_>, bool)>,
        more: [Option<BorrowedFd<'_>>; 2],
        timeout_ns: Option<u64>,
    ) -> bool {
        let timeout = timeout_ns.map(timespec);
        let mut all = [(); 4].map(|()| PollFd::new(self, PollFlags::IN));
        let mut count = 1;
        if let Some((other, for_room)) = other {
            let events = if for_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            all[count] = PollFd::from_borrowed_fd(other, events);
            count += 1;
        }
        for fd in more.into_iter().flatten() {
            all[count] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            count += 1;
        }
        // Errors are signals and shortage of kernel memory: callers look for work and return.
        let _ = poll(&mut all[..count], timeout.as_ref());
        if !all[0].revents().is_empty() {
            self.drain();
        }
        more[1].is_some() && !all[count - 1].revents().is_empty()
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
    use std::os::fd::AsRawFd;

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

    #[test]
    fn sleep__ends_by_wake_by_timeout_and_by_the_other_descriptor() {
        let (waker, other) = (Waker::new().unwrap(), Waker::new().unwrap());
        waker.wake();
        waker.sleep(None, None);
        waker.sleep(None, Some(0));
        waker.sleep(Some((other.as_fd(), false)), Some(1_000));
        other.wake();
        waker.sleep(Some((other.as_fd(), false)), None);
        assert!(other.drain());
        waker.sleep(Some((other.as_fd(), true)), None);
        assert!(!waker.drain());
    }

    /// The result depends only on the last descriptor, whatever ends the sleep.
    #[test]
    fn sleep_with__tells_whether_the_last_one_has_something_to_read() {
        let ready = Waker::new().unwrap();
        ready.wake();
        let (ready, idle) = (ready.as_fd(), Waker::new().unwrap());
        let any = [None, Some(idle.as_fd()), Some(ready)];
        for (other, first, last) in
            any.into_iter().flat_map(|a| any.map(|b| any.map(|c| (a, b, c)))).flatten()
        {
            for is_woken in [false, true] {
                let waker = Waker::new().unwrap();
                if is_woken {
                    waker.wake();
                }
                let other = other.map(|other| (other, false));
                let is_last = waker.sleep_with(other, [first, last], Some(0));
                assert_eq!(is_last, last.is_some_and(|last| last.as_raw_fd() == ready.as_raw_fd()));
                assert!(!waker.drain(), "its own wakes are taken back");
            }
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
